"""`shoal demo`: a whole federation on this machine, in under a minute."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Protocol, TextIO

import click

from shoal.config.settings import Config
from shoal.kernels.forms import PROCESS
from shoal.onebox.demo.demo import (
    COUNTS_EPSILON,
    ROWS,
    ROWS_EPSILON,
    Demo,
    open_demo,
    prepare_folder,
)
from shoal.onebox.demo.findings import (
    Result,
    names,
    occupancy,
    price,
    read_office,
    results,
    sentences,
    table,
)
from shoal.onebox.demo.plot import plot
from shoal.privacy.count_noise import EPSILON_MAX, EPSILON_MIN
from shoal.runtime.service import stopped_by_signals
from shoal.server_node.bootstrap import initial_status
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from shoal.server_node.ingest.request_publishing import request_publisher
from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.build import Reports
from shoal.server_node.report.status import ServerStatus
from shoal.telemetry.events import start_logging
from shoal.transports import open_log

# A pipe gets lines, a terminal a table that is drawn anew: eight times a second looks steady.
LINE_EVERY_S = 5.0
REFRESHES_PER_S = 8.0


class Progress(Protocol):
    """Shows the progress of the demo."""

    def show(
        self, clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None
    ) -> None:
        """Show the progress, unless it was shown a moment ago; may be called after every step.

        `position` is the number of readings produced, of `rows` in the stream, None if that is
        unknown.
        """
        ...


class LineProgress:
    """Writes a line every `LINE_EVERY_S` seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next_at = clock()

    def show(
        self, clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None
    ) -> None:
        """See `Progress.show`."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + LINE_EVERY_S
        clusters = f"{total['clusters']:>3} cluster{'s' * (total['clusters'] != 1)}"
        self._stream.write(
            f"{total['readings']:>7,} readings learnt, {total['nodes']:>4} nodes, {clusters}, "
            f"epsilon {total['epsilon_total']:g} per reading\n"
        )
        self._stream.flush()


@contextmanager
def progress_on(stream: TextIO) -> Iterator[Progress]:
    """A live table where `stream` is a terminal and rich is installed, lines elsewhere."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.live import Live  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        yield LineProgress(stream)
        return
    console = Console(file=stream)
    if not console.is_terminal:
        yield LineProgress(stream)
        return
    with Live(console=console, refresh_per_second=REFRESHES_PER_S, auto_refresh=False) as live:
        yield TableProgress(live.update)


class TableProgress:
    """Refreshes a table with one row per client and one for the server."""

    def __init__(
        self, update: Callable[..., None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._update = update
        self._clock = clock
        self._next_at = clock()

    def show(
        self, clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None
    ) -> None:
        """See `Progress.show`."""
        if self._clock() < self._next_at:
            return
        self._next_at = self._clock() + 1 / REFRESHES_PER_S
        self._update(_table(clients, total, position, rows), refresh=True)


def _table(
    clients: list[dict[str, Any]], total: dict[str, Any], position: int, rows: int | None
) -> Any:
    from rich.table import Table  # noqa: PLC0415 - an extra

    share = f" ({position / rows:.0%})" if rows else ""
    table = Table(title=f"{position:,} readings replayed{share}", title_justify="left")
    for heading in (
        "",
        "readings",
        "rejected",
        "nodes",
        "updates",
        "clusters",
        "epsilon per reading",
    ):
        table.add_column(heading, justify="left" if not heading else "right")
    for client in clients:
        counts = (
            f"{client.get(name, 0):,}" for name in ("learned", "rejected", "nodes", "updates")
        )
        table.add_row(client["client"], *counts, "", f"{total['epsilon_total']:g}")
    table.add_section()
    counts = (f"{total[name]:,}" for name in ("readings", "rejected", "nodes", "updates"))
    table.add_row("server", *counts, str(total["clusters"]), "")
    return table


# Shorter than the page takes to show a change, and long enough for an idle demo to use little
# processor time.
IDLE_S = 0.02
PUBLIC_NOISE = (
    "The noise of this run is a function of --seed {seed}: it can be computed and taken away, so "
    "it protects nothing. The data are public. With --seed random every client draws a secret "
    "key."
)


class Seed(click.ParamType[int | None]):
    """A whole number from 0 on, or "random", which is None."""

    name = "number or random"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """The seed. Fails for anything else."""
        text = str(value)
        if text != "random" and not (text.isascii() and text.isdigit()):
            self.fail(f"{text!r} is neither a whole number from 0 on nor random", param, ctx)
        if text == "random":
            return None
        return int(text)


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("shoal-demo"),
    show_default=True,
    help="Where the demo writes its files; emptied at each start.",
)
@click.option(
    "--clients", type=click.IntRange(1, 50), default=5, show_default=True, help="Number of clients."
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=25.0,
    show_default=True,
    help="Seconds in which the sixteen days of readings are replayed.",
)
@click.option(
    "--seed",
    type=Seed(),
    default="0",
    show_default=True,
    help=(
        "A whole number: the same noise, and the same numbers, at every run; such noise "
        "protects nothing, as it can be computed. Or random: every client draws a secret key, as "
        "outside of the demo."
    ),
)
@click.option(
    "--epsilon",
    type=click.FloatRange(EPSILON_MIN, EPSILON_MAX),
    help=(
        "What one reading costs in the private counts, and with --compare in the noisy rows "
        "alike. [4 in counts, 400 in rows]"
    ),
)
@click.option(
    "--compare",
    is_flag=True,
    help="Add three models that learn from noisy rows, which take a hundred times the epsilon.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Port of the page; 0: any.",
)
@click.option("--no-browser", is_flag=True, help="Do not open the live page in a browser.")
@click.option("--no-wait", is_flag=True, help="End with the stream; do not keep serving the page.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def demo(**options: Any) -> None:
    """Cluster a real sensor stream over five clients, with a live page.

    Replays sixteen days of an office room (temperature, humidity, light, CO2; UCI Occupancy
    Detection, CC BY 4.0) in half a minute. Every client counts its readings, adds noise to the
    counts, and publishes nothing else; the server adds them up and finds clusters in them, which
    the live page shows. A reading costs an epsilon of 4 in all. The data are public, so the noise
    may be a function of --seed: every run gives the same numbers, and the noise protects nothing.
    """
    file = prepare_folder(
        options["folder"], options["epsilon"], options["port"], options["compare"]
    )
    remark = "" if options["seed"] is None else PUBLIC_NOISE.format(seed=options["seed"])

    def first_status(config: Config) -> ServerStatus:
        return replace(initial_status(config, time.time()), remark=remark)

    # The faults of the demo's own rows, such as a pause of five days, are known and no news.
    start_logging("demo", options["as_json"], logging.ERROR)
    interactive = sys.stdout.isatty() and not options["as_json"]
    with (
        stopped_by_signals() as stop,
        open_demo(
            file, options["clients"], options["seconds"], options["seed"], first_status
        ) as run,
    ):
        registry = run.box.server.metrics.registry
        host = run.config.server.host
        history = HistoryReader(run.config.server.folder / HISTORY_FILE)
        publisher = request_publisher(run.config)
        reader = partial(open_log, run.config.log)
        web = page_server(
            run.board, registry, host, options["port"], publisher, history=history, open_log=reader
        )
        page = f"http://{host}:{web.start()}/"
        try:
            click.echo(price(run.config.resolved), err=True)
            if remark:
                click.echo(remark, err=True)
            click.echo(f"The live page: {page}", err=True)
            PROCESS.on_slow = partial(click.echo, err=True)
            if interactive and not options["no_browser"]:
                webbrowser.open(page)
            seconds = _run(run, stop)
            # Comparing the models and drawing take seconds, which somebody who stops it does not
            # want to wait for.
            if stop.is_set():
                _report_stopped(run, seconds, options["as_json"])
            else:
                _report(run, seconds, options["folder"], file, options["as_json"], remark)
            if interactive and not options["no_wait"] and not stop.is_set():
                click.echo(f"\nThe page stays up at {page} until you press Ctrl-C.", err=True)
                while not stop.is_set():
                    # Names that people give to clusters on the page are read here.
                    if not run.step():
                        stop.wait(IDLE_S)
        finally:
            web.stop()


def _run(run: Demo, stop: Event) -> float:
    """Run until the stream is learnt or `stop` is set; returns the seconds that took."""
    start = time.monotonic()
    with progress_on(sys.stderr) as progress:
        while not (stop.is_set() or run.finished):
            if not run.step():
                stop.wait(IDLE_S)
            _show(run, progress, time.monotonic() - start)
    return time.monotonic() - start


def _show(run: Demo, progress: Progress, seconds: float) -> None:
    summary = run.summary(seconds)
    progress.show(run.rows(), summary, run.pump.position, run.pump.total)


def _report_stopped(run: Demo, seconds: float, as_json: bool) -> None:
    """Print how far a demo came that was stopped before the end of the stream."""
    summary = run.summary(seconds)
    if as_json:
        click.echo(json.dumps(summary))
    else:
        click.echo(
            f"Stopped after {seconds:.0f} seconds and {summary['readings']:,} of {ROWS:,} readings."
        )


def _report(
    run: Demo, seconds: float, folder: Path, file: Path, as_json: bool, remark: str
) -> None:
    """Print the summary, plot the clusters, and suggest what to try next."""
    summary = run.summary(seconds)
    contract = run.config.resolved
    models = run.box.server.models()
    history = HistoryReader(run.config.server.folder / HISTORY_FILE)
    first = next(iter(contract.models))
    clustering = Reports(history).clustering(run.box.server.status(), first)
    office = read_office(contract.contract)
    compared = results(models, contract, office)
    summary["found"] = sentences(clustering)
    summary["occupancy"] = occupancy(models[first], contract, office)
    summary["models"] = [result.as_json() for result in compared]
    summary["price"] = price(contract)
    summary["remark"] = remark
    if (compared[0].labels >= 0).any():
        file_of_plot = folder / "clusters.png"
        title = (
            f"{contract.federation}: {summary['readings']:,} readings of {summary['clients']}"
            " clients"
        )
        plot(
            contract.contract,
            office,
            compared,
            names(clustering),
            title,
            file_of_plot,
        )
        summary["plot"] = str(file_of_plot)
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo("\n".join([*_summary_lines(summary, compared), *_next_lines(file, run)]))


def _summary_lines(summary: dict[str, Any], compared: list[Result]) -> list[str]:
    lines = [
        "",
        (
            f"In {summary['seconds']:.0f} seconds, {summary['clients']} clients learnt "
            f"{summary['readings']:,} readings and published {summary['updates']:,} updates. No "
            "reading left its client."
        ),
        "",
        *summary["found"],
        *filter(None, [summary["occupancy"]]),
        "",
        *table(compared),
        (
            "Agreement: with whether somebody was in the room (adjusted Rand index: 1 is perfect, 0"
            " is chance)."
        ),
        summary["price"],
    ]
    if (waiting := summary["readings"] - summary["counted"]) > 0:
        lines.append(
            f"{waiting:,} readings wait on their clients until a window of counts is full."
        )
    if "plot" in summary:
        lines.append(f"A picture of the clusters: {summary['plot']}")
    return lines


def _next_lines(file: Path, run: Demo) -> list[str]:
    shoal = "shoal"
    if shutil.which(shoal) is None:
        shoal = str(Path(sys.executable).with_name(shoal))
    compares = len(run.config.contract.models) > 1
    with_rows = COUNTS_EPSILON + ROWS_EPSILON
    other = (
        "demo --compare",
        f"beside it, models that learn from noisy rows: epsilon {with_rows:g} for a reading in all",
    )
    if compares:
        other = ("demo", "private counts alone: no noisy row is published")
    tries = [other]
    if run.config.contract.privacy.counts_epsilon != 1.0:
        tries.append(("demo --epsilon 1", "stricter: a quarter of the epsilon for each reading"))
    tries += [
        (f"history export --config {file}", "the share of each cluster over the sixteen days"),
        (f"check {file}", "the contract of this federation, and what it costs"),
        ("init FILE.csv", "a federation file for readings of your own; then shoal run"),
    ]
    lines = ["", "Try next:"]
    for words, why in tries:
        lines += [f"  {shoal} {words}", f"      {why}"]
    return lines
