"""`shoal run`: somebody's own files or messages through a whole federation in one process, with the
live page."""

from __future__ import annotations

import json
import logging
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from prometheus_client import CollectorRegistry

from shoal.cli.options import CLIENT_NAME
from shoal.config.settings import Config, load_config
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.forms import PROCESS
from shoal.onebox.federation import OneBox
from shoal.onebox.live import LiveRun, opened_stream
from shoal.producers.files.source import FILES, PLAIN_REPLAY, with_settings
from shoal.producers.pacing import Pacing
from shoal.producers.progress import display_on
from shoal.producers.publisher import open_bookmark
from shoal.producers.pump import Pump
from shoal.producers.reading_watch import ReadingWatch
from shoal.producers.repeats import refuse_repeats
from shoal.producers.source_type import AGAIN, FAULTS, PATH, watch_lines
from shoal.protocol.model_state import model_state
from shoal.protocol.reading_faults import Rejected, unusable
from shoal.protocol.topics import readings_settings
from shoal.runtime.client_folders import client_folder
from shoal.runtime.logs import open_readings
from shoal.runtime.service import stopped_by_signals
from shoal.server_node.bootstrap import initial_status
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from shoal.server_node.ingest.request_publishing import request_publisher
from shoal.server_node.outputs.web import page_server
from shoal.server_node.report.build import Reports
from shoal.server_node.report.clusters import whole_percents
from shoal.server_node.report.status import StatusBoard
from shoal.server_node.report.types import Clustering, Counted
from shoal.telemetry.events import start_logging
from shoal.telemetry.export import exporting
from shoal.telemetry.resource import Telemetry
from shoal.text import counted
from shoal.transports import open_log
from shoal.transports.base import Log

STATUS_EVERY_S = 0.2
IDLE_S = 0.02
SAID_READINGS = 1000
"""fewest readings that allow to say that there is one cluster only"""
REMAINDER_MIN = 0.01
"""part of the readings from which on those that fell to no listed cluster get a line"""
DESCRIBED_MAX = 12
"""clusters that the list of a model describes by what sets them apart"""
REASONS_MAX = 5
"""kinds of rejected readings that are listed"""
LAST_UPDATE_S = 1.0
"""seconds after which a client publishes what it has learnt, so that the end of a file is not
waited for"""


class Run(NamedTuple):
    """An open federation that reads files."""

    config: Config
    pump: Pump
    box: OneBox
    board: StatusBoard
    faults: Mapping[str, int]
    watch: ReadingWatch
    places: Callable[[Sequence[int]], Mapping[int, str]]
    """numbers of readings -> file and line of each"""
    texts: Mapping[str, str]
    """client -> what the files call it, of those met so far"""

    def step(self) -> bool:
        """Store some readings, and let every node take what there is for it; True if anything was
        done."""
        worked = self.pump.step()
        return self.box.step() or worked

    @property
    def ended(self) -> bool:
        """Whether all readings are learnt."""
        return self.pump.finished and all(node.up_to_date for node in self.box.clients.values())

    @property
    def finished(self) -> bool:
        """Whether all readings are learnt, and all that was learnt is in the models."""
        return self.ended and self.box.server.up_to_date and self.box.server.idle

    def post_status(self) -> None:
        """Give the page the newest status."""
        # Not before the models have all that clients have published: the page then says that all
        # readings are learnt, and shows shares of all of them.
        ended = self.ended and self.box.server.up_to_date
        self.board.post(replace(self.box.server.status(), ended=ended))

    def rejected(self) -> list[Rejected]:
        """Readings that the clients have rejected since their first start, with the first place of
        each."""
        found: dict[tuple[str, str], Rejected] = {}
        first: dict[tuple[str, str], int] = {}
        for name, node in self.box.clients.items():
            for rejection, number in node.rejected_of(self.pump.run):
                key = rejection.reason, rejection.feature
                before = found.get(
                    key, rejection._replace(readings=0, first=f"{rejection.first} of {name}")
                )
                found[key] = before._replace(readings=before.readings + rejection.readings)
                if number is not None:
                    first[key] = min(number, first.get(key, number))
        places = self.places(list(first.values()))
        placed = [
            rejection._replace(first=places.get(first.get(key, -1), rejection.first))
            for key, rejection in found.items()
        ]
        return sorted(placed, key=lambda rejection: -rejection.readings)

    def total(self, name: str) -> int:
        """The sum of a counter over the clients."""
        return int(sum(node.totals.get(name, 0) for node in self.box.clients.values()))


def _show_source(sentences: Sequence[str], texts: Mapping[str, str]) -> None:
    """Print how the files were understood, and the names of clients that differ from the data."""
    for sentence in sentences:
        click.echo(sentence, err=True)
    for name, text in texts.items():
        if text != name:
            click.echo(f"client {text!r} has the name {name}", err=True)


@contextmanager
def open_run(config: Config, options: Mapping[str, Any]) -> Iterator[Run]:
    """Clients, server and producer of a federation in this process. Raises `ShoalError`."""
    source = FILES.open(config.contract, with_settings(options, config))
    files = FILES.source_files(source)
    if not options["again"]:
        refuse_repeats(files, config.readings_folder, ask=not options["as_json"])
    names = FILES.clients(source)
    texts = FILES.texts(source)
    if not options["as_json"]:
        _show_source(FILES.sentences(source), texts)
    # Labels stay in the folders of the clients.
    client = config.client.model_copy(update={"publish_s": LAST_UPDATE_S, "label": True})
    # All clients are known: no first clustering waits for others.
    server = config.server.model_copy(
        update={"pool_clients": min(config.server.pool_clients, len(names))}
    )
    config = config.model_copy(update={"client": client, "server": server})

    def open_log(name: str) -> Log:
        own = client_folder(config.readings_folder, name, texts.get(name))
        files.keep(own)
        return open_readings(config, name, own.parent)

    with ExitStack() as stack:
        box = stack.enter_context(OneBox(config, names, texts=texts))
        bookmark = open_bookmark(config.readings_folder, source.identity)
        if options["again"]:
            bookmark.start_again()
        pump = Pump(
            source,
            open_log,
            clock=time.monotonic,
            pacing=Pacing(),
            bookmark=bookmark,
            topic_settings=readings_settings(config.client),
        )
        stack.enter_context(closing(pump))
        pump.watch = ReadingWatch(config.contract)
        board = StatusBoard(initial_status(config, time.time()))
        yield Run(
            config,
            pump,
            box,
            board,
            source.faults,
            pump.watch,
            partial(FILES.places, source),
            texts,
        )


@click.command("run", params=[copy(AGAIN)])
@click.argument("file", type=PATH)
@click.argument("files", nargs=-1, type=PATH, metavar="[DATA]...")
@click.option(
    "--name",
    type=CLIENT_NAME,
    metavar="CLIENT",
    help="Without DATA: the client that all messages are of, or the only one to feed.",
)
@click.option(
    "--until-idle",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Without DATA: end when no message has arrived for this long.",
)
@click.option("--no-browser", is_flag=True, help="Do not open the live page in a browser.")
@click.option("--no-wait", is_flag=True, help="End with the data; do not keep serving the page.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def run_command(file: Path, **options: Any) -> None:
    """Cluster the readings in DATA as the federation FILE says, in one process, with the live page.

    Without DATA, it reads the Kafka topic of [kafka] or the sensors of [mqtt] until it is stopped.
    Runs the producer, all clients and the server, on the logs and folders of the file, so that the
    commands for separate processes can go on from there. How DATA are read is in [files] of the
    file; `shoal init` writes it. A run that was stopped continues where it was.

    \b
    shoal init readings.csv
    shoal run readings.toml readings.csv
    shoal init --kafka broker:9092 --topic plant.devices
    shoal run plant-devices.toml
    """
    config = load_config(file)
    start_logging("run", options["as_json"], logging.WARNING)
    if options["files"]:
        for name, label in (("name", "--name"), ("until_idle", "--until-idle")):
            if options[name] is not None:
                raise SettingsError(f"{label} means nothing with DATA; leave it out")
        _run_files(config, options)
    else:
        if options["no_wait"]:
            raise SettingsError("--no-wait means nothing without DATA; see --until-idle")
        _run_live(config, options)


def _run_files(config: Config, options: Mapping[str, Any]) -> None:
    with stopped_by_signals() as stop, open_run(config, {**PLAIN_REPLAY, **options}) as run:
        registry = run.box.server.metrics.registry
        with _page(run.config, run.board, registry, options) as page:
            seconds = _run_to_the_end(run, stop, options["as_json"])
            _report(run, seconds, page, options["as_json"])
            if not options["no_wait"] and not options["as_json"] and not stop.is_set():
                click.echo(f"\nThe page stays up at {page} until you press Ctrl-C.", err=True)
                while not stop.is_set():
                    # Names that people give to clusters on the page are read here.
                    if not run.step():
                        run.post_status()
                        stop.wait(STATUS_EVERY_S)


def _run_live(config: Config, options: Mapping[str, Any]) -> None:
    stream = opened_stream(config, options)
    board = StatusBoard(initial_status(config, time.time()))
    live = LiveRun(config, stream, board)
    start = time.monotonic()
    with (
        stopped_by_signals() as stop,
        _page(live.config, board, live.metrics.registry, options) as page,
        closing(display_on(sys.stderr, time.monotonic, options["as_json"])) as display,
    ):
        live.until(stop, options["until_idle"], lambda stored: display.show(stored, None))
    seconds = time.monotonic() - start
    status = board.status
    reports = Reports(HistoryReader(live.config.server.folder / HISTORY_FILE))
    clusterings = {name: reports.clustering(status, name) for name in status.models}
    found = {name: clusters_of(clustering) for name, clustering in clusterings.items()}
    learnt = live.totals["learned"]
    rejected = live.totals["rejected"]
    faults = stream.totals(True).faults
    if options["as_json"]:
        summary = _summary(seconds, page, learnt, rejected)
        click.echo(
            json.dumps(
                {**summary, "clients": live.clients, "faults": dict(faults), "models": found}
            )
        )
    else:
        click.echo("\n".join(_live_lines(live, faults, clusterings)))
    if not learnt and live.rejected:
        raise InvalidData(f"{unusable(live.rejected)}, or let `shoal init` look at the messages")


def _live_lines(
    live: LiveRun, faults: Mapping[str, int], clusterings: Mapping[str, Clustering]
) -> list[str]:
    learnt = live.totals["learned"]
    rejected = live.totals["rejected"]
    clients = counted(live.clients, "client")
    lines = ["", f"Learnt since the first start: {counted(learnt, 'reading')} of {clients}."]
    if rejected:
        reasons = "; ".join(map(Rejected.text, live.rejected[:REASONS_MAX]))
        lines.append(f"Rejected: {counted(rejected, 'reading')}: {reasons}.")
    lines += [f"{number:,} {FAULTS[fault]}" for fault, number in faults.items()]
    for model, clustering in clusterings.items():
        lines += cluster_lines(model, clusters_of(clustering), clustering.counted)
    return lines


@contextmanager
def _page(
    config: Config, board: StatusBoard, registry: CollectorRegistry, options: Mapping[str, Any]
) -> Iterator[str]:
    """Serve the live page, and export metrics and spans where variables say so, while the context
    is open; the address of the page."""
    server = config.server
    resource = {"shoal.federation": config.contract.federation}
    history = HistoryReader(server.folder / HISTORY_FILE)
    web = page_server(
        board,
        registry,
        server.host,
        server.port,
        request_publisher(config),
        history=history,
        open_log=partial(open_log, config.log),
    )
    # Another run or a demo may use the default port, which no setting has asked for.
    port = web.start(or_any_port="port" not in server.model_fields_set)
    page = f"http://{server.host}:{port}/"
    try:
        click.echo(f"The live page: {page}", err=True)
        PROCESS.on_slow = partial(click.echo, err=True)
        if sys.stdout.isatty() and not options["as_json"] and not options["no_browser"]:
            webbrowser.open(page)
        with exporting("run", Telemetry(registry, resource)):
            yield page
    finally:
        web.stop()


def _run_to_the_end(run: Run, stop: Any, as_json: bool) -> float:
    """Run until the data are learnt or `stop` is set; returns the seconds that took."""
    start = shown = time.monotonic()
    woken = False
    with closing(display_on(sys.stderr, time.monotonic, as_json)) as display:
        while not stop.is_set():
            worked = run.step()
            if run.finished and not worked:
                # Once more is enough: the rounds that this has led to have ended by now.
                if woken:
                    break
                run.box.wake_rounds()
                woken = True
            elif not worked:
                stop.wait(IDLE_S)
            if time.monotonic() - shown > STATUS_EVERY_S or run.finished:
                run.post_status()
                shown = time.monotonic()
                display.show(run.pump.position, run.pump.total)
    run.post_status()
    return time.monotonic() - start


def _report(run: Run, seconds: float, page: str, as_json: bool) -> None:
    """Print what was found. Raises `InvalidData` where no reading could be used."""
    learnt = run.total("learned")
    rejected = run.total("rejected")
    reports = Reports(HistoryReader(run.config.server.folder / HISTORY_FILE))
    status = run.box.server.status()
    clusterings = {name: reports.clustering(status, name) for name in status.models}
    found = {name: clusters_of(clustering) for name, clustering in clusterings.items()}
    if as_json:
        summary = _summary(seconds, page, learnt, rejected)
        click.echo(
            json.dumps(
                {
                    **summary,
                    "clients": len(run.box.clients),
                    "faults": dict(run.faults),
                    "models": found,
                }
            )
        )
    else:
        click.echo("\n".join(_lines(run, seconds, clusterings)))
    if not learnt and rejected:
        raise InvalidData(f"{unusable(run.rejected())}, or let `shoal init` look at the file")


def _summary(seconds: float, page: str, learnt: int, rejected: int) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 1),
        "page": page,
        "learnt": learnt,
        "rejected": rejected,
    }


def clusters_of(clustering: Clustering) -> list[dict[str, Any]]:
    """The known clusters of a model, the largest first: identity, name, share of the readings, and
    what sets them apart."""
    described = [cluster for cluster in clustering.clusters if cluster.text]
    described.sort(key=lambda cluster: (-(cluster.share or 0.0), cluster.identity))
    return [
        {
            "cluster": cluster.identity,
            "name": cluster.name or cluster.label,
            "share": cluster.share,
            "description": cluster.text,
        }
        for cluster in described
    ]


def _lines(run: Run, seconds: float, clusterings: Mapping[str, Clustering]) -> list[str]:
    learnt = run.total("learned")
    rejected = run.total("rejected")
    clients = counted(len(run.box.clients), "client")
    lines = ["", f"Learnt in {seconds:.0f} s: {counted(learnt, 'reading')} of {clients}."]
    if not run.ended:
        of = "" if run.pump.total is None else f" of {run.pump.total:,}"
        lines.append(
            f"Stopped after {counted(run.pump.position, 'reading')}{of}; the same command goes on "
            "from there."
        )
    if rejected:
        reasons = "; ".join(map(Rejected.text, run.rejected()))
        lines.append(f"Rejected: {counted(rejected, 'reading')}: {reasons}.")
    lines += watch_lines((), run.watch.clipped(run.places, run.texts))
    lines += [f"{number:,} {FAULTS[fault]}" for fault, number in run.faults.items()]
    for model, clustering in clusterings.items():
        lines += cluster_lines(model, clusters_of(clustering), clustering.counted)
        snapshot = run.box.server.models()[model].snapshot
        resolved = run.config.resolved.models[model]
        state = model_state(resolved, snapshot)
        if state and learnt >= SAID_READINGS:
            lines.append(f"  {state}")
        waiting = learnt - (snapshot.readings if snapshot else 0)
        if resolved.counts is not None and waiting > 0:
            lines.append(
                f"  {counted(waiting, 'reading')} of it in a window of counts that is not full yet"
                " (window_readings)."
            )
    return lines


def cluster_lines(
    model: str, clusters: list[dict[str, Any]], of: Counted | None = None
) -> list[str]:
    """Lines with the clusters of a model, as `clusters_of` gives them; `of` are the readings that
    shares are of."""
    n = len(clusters)
    lines = ["", f"{model}: {counted(n, 'cluster')}" + ("" if n else " so far")]
    shares = {
        cluster["cluster"]: cluster["share"] for cluster in clusters if cluster["share"] is not None
    }
    if shares and of is not None:
        # The end is that of the last 5 minutes: it may be the next midnight.
        days = f"{_day(of.start)} to {_day(of.end - 1)}"
        lines.append(f"  Shares are of {counted(of.readings, 'reading')}, {days} (UTC).")
    # Rounded as the page does, so that both show the same percents.
    percents: dict[int, int] = {}
    for identity, percent in whole_percents(list(shares.items())):
        percents[identity] = percent
    for place, cluster in enumerate(clusters):
        share = ""
        if cluster["cluster"] in shares:
            share = _percent_text(percents[cluster["cluster"]], shares[cluster["cluster"]])
        lines.append(f"  {share:>4}  {cluster['name']} (cluster {cluster['cluster']})")
        if n > 1 and place < DESCRIBED_MAX:
            lines.append(f"        {cluster['description']}")
    rest = 1 - sum(shares.values())
    # The readings that fell to none of these: the first came before any cluster was known, which
    # of a short file are many.
    if shares and rest >= REMAINDER_MIN:
        share = _percent_text(100 - sum(percents.values()), rest)
        lines.append(
            f"  {share:>4}  to no cluster that was known when they came, or to one that has ended"
        )
    return lines


def _day(at: int) -> str:
    """The day of a time in seconds since 1970."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _percent_text(percent: int, share: float) -> str:
    """A share in whole percents; what rounds to none of them is not nothing."""
    return "<1%" if share > 0 and percent == 0 else f"{percent}%"
