"""`shoal demo`: the whole of shoal in under a minute, on this machine."""

from __future__ import annotations

import json
import shutil
import sys
import time
import webbrowser
from pathlib import Path
from threading import Event
from typing import Any

import click

from onebox.demo import Demo, demo_of, prepare
from onebox.picture import draw
from onebox.table import Table, table_on
from server_node.bootstrap import initial_status
from server_node.web import page_server
from shoal.config.privacy import privacy_mode
from shoal.runtime.service import stopped_by_signals

IDLE_S = 0.02


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("shoal-demo"),
    show_default=True,
    help="Where the demo keeps everything; emptied at each start.",
)
@click.option("--clients", type=click.IntRange(1, 50), default=5, show_default=True, help="Rooms to pretend there are.")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=25.0,
    show_default=True,
    help="How long the sixteen days of readings take.",
)
@click.option("--epsilon", type=click.FloatRange(min=0, min_open=True), help="Privacy budget of one reading. [400]")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="Of the page; 0: any.")
@click.option("--no-browser", is_flag=True, help="Do not open the page.")
@click.option("--no-wait", is_flag=True, help="End with the stream; do not keep the page up.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def demo(**options: Any) -> None:
    """Replay a real sensor stream over five clients and watch one clustering grow.

    Sixteen days of an office room (temperature, humidity, light, CO2; UCI Occupancy Detection, CC BY 4.0) run in
    half a minute. Every client adds noise to its readings, learns them, and tells the server only the nodes it
    has found. The live page shows what the server makes of them.
    """
    file = prepare(options["folder"], options["epsilon"], options["port"])
    interactive = sys.stdout.isatty() and not options["as_json"]
    with (
        stopped_by_signals() as stop,
        demo_of(
            file, options["clients"], options["seconds"], lambda config: initial_status(config, time.time())
        ) as run,
    ):
        web = page_server(run.board, run.box.server.metrics.registry, run.config.server.host, options["port"])
        page = f"http://{run.config.server.host}:{web.start()}/"
        try:
            click.echo(privacy_mode(run.config.contract).describe().text(), err=True)
            click.echo(f"The live page: {page}", err=True)
            if interactive and not options["no_browser"]:
                webbrowser.open(page)
            seconds = _watch(run, stop)
            _tell(run, seconds, options["folder"], file, options["as_json"])
            if interactive and not options["no_wait"] and not stop.is_set():
                click.echo(f"\nThe page stays up at {page} until you press Ctrl-C.", err=True)
                stop.wait()
        finally:
            web.stop()


def _watch(run: Demo, stop: Event) -> float:
    """Run until the stream is learnt or somebody asks for an end; how many seconds that took."""
    began = time.monotonic()
    with table_on(sys.stderr) as table:
        while not (stop.is_set() or run.finished):
            if not run.step():
                stop.wait(IDLE_S)
            _show(run, table, time.monotonic() - began)
    return time.monotonic() - began


def _show(run: Demo, table: Table, seconds: float) -> None:
    summary = run.summary(seconds)
    table.show(run.rows(), summary, run.pump.position, run.pump.total)


def _tell(run: Demo, seconds: float, folder: Path, file: Path, as_json: bool) -> None:
    """The summary, the picture, and what to try next."""
    summary = run.summary(seconds)
    model = next(iter(run.box.server.models().values()))
    if model.snapshot is not None and model.snapshot.nodes:
        drawn = folder / "clusters.png"
        draw(run.config.contract, model.snapshot, model.status().history, drawn)
        summary["picture"] = str(drawn)
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo(
        f"\n{summary['readings']:,} readings of {summary['clients']} clients became {summary['client_nodes']:,} nodes "
        f"on the clients and {summary['nodes']} nodes in {summary['clusters']} clusters on the server, "
        f"in {summary['seconds']:.0f} seconds. Not one reading left its client."
    )
    for name, seen in summary["rounds"].items():
        click.echo(f"Beside it, {name} found {seen['clusters']} clusters on the same rows in {seen['round']} rounds.")
    if "picture" in summary:
        click.echo(f"A picture of it: {summary['picture']}")
    shoal = "shoal" if shutil.which("shoal") else str(Path(sys.executable).with_name("shoal"))
    click.echo(
        "\nTry next:\n"
        f"  {shoal} demo --epsilon 20                what a strict budget does to the clusters\n"
        f"  {shoal} check {file}      what this federation has agreed on\n"
        f"  {shoal} check --example > mine.toml      a federation of your own; then shoal server, client, producer\n"
        f"  {shoal} producer --synthetic plant --print-federation > plant.toml"
    )
