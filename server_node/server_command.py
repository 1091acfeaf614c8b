"""`shoal server`: runs the server node and its live page."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.options import config_option, log_json_option, until_idle_option, verbose_option
from shoal.config.settings import Config, load_config
from shoal.config.upstream import load_upstream
from shoal.runtime.logs import open_federation_log
from shoal.runtime.service import LIVE_S, resumed, run, start_kernels, stopped_by_signals
from shoal.server_node.bootstrap import OwnHelper, StatusUpdater, initial_status, open_server
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from shoal.server_node.ingest.request_publishing import request_publisher
from shoal.server_node.lease import LeaseHolder, LeaseRenewal
from shoal.server_node.node import ServerNode
from shoal.server_node.outputs.page_serving import find_page_server, page_served, totals
from shoal.server_node.regions.bridge import BridgeThread
from shoal.server_node.report.status import StatusBoard
from shoal.telemetry.events import log_event, start_logging
from shoal.telemetry.export import exporting
from shoal.telemetry.metrics import ServerMetrics
from shoal.telemetry.resource import Telemetry
from shoal.transports import check_installed, open_log

if TYPE_CHECKING:
    from shoal.server_node.outputs.web import WebServer


@click.command()
@config_option
@until_idle_option("update")
@click.option("--no-page", is_flag=True, help="Serve no HTTP: no page, no metrics.")
@click.option(
    "--rebuild", is_flag=True, help="Without a checkpoint, learn everything again from the log."
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Take the lease of the federation from another server, which then ends.",
)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on under a changed contract, as `shoal check --changes` describes it.",
)
@log_json_option
@verbose_option
def server(
    file: Path,
    until_idle: float | None,
    no_page: bool,
    rebuild: bool,
    take_over: bool,
    accept_changes: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run the server node: merge the updates of all clients into one growing clustering and publish
    its snapshots.

    Serves the live page, HTTP under /v1, /metrics, /livez and /readyz at [server] host and port of
    the federation file. Stop it with Ctrl-C or SIGTERM, or kill it: started again it continues from
    its checkpoint, to the same clustering bit for bit.
    """
    config = load_config(file)
    contract = config.resolved
    bridge = BridgeThread(config, load_upstream(config))
    for log in bridge.logs:
        check_installed(log)
    page_server = None if no_page else find_page_server()
    start_kernels()
    start_logging("server", as_json, logging.DEBUG if verbose else logging.INFO)
    log_event("started", federation=config.contract.federation, contract=config.contract.digest)
    log_event("privacy", statement=contract.mode.describe().text())
    metrics = ServerMetrics()
    board = StatusBoard(initial_status(config, time.time()), stale_s=LIVE_S)
    lease = LeaseHolder(config, take_over)
    own_helper = OwnHelper(config)
    renewal = LeaseRenewal(lease, lambda: open_federation_log(config, as_server=True))
    updater = StatusUpdater(board, is_failing=lambda: renewal.is_failing)

    opened = partial(open_server, config, rebuild, metrics, accept_changes=accept_changes)

    @contextmanager
    def build() -> Iterator[ServerNode]:
        with (
            # The last one is left first: the page shows that the server is not ready before its
            # node and log are closed.
            updater.showing_failures(),
            resumed(opened(lease=lease, renewal=renewal, upstream=bridge.upstream)) as node,
            bridge.running(),
            updater.until_closed(node),
            own_helper.running(),
        ):
            yield node

    def on_step(node: ServerNode) -> None:
        # First of all: a server that has lost its lease must not take another step.
        renewal.check()
        bridge.check()
        updater.update(node)
        own_helper.step()

    federation = {"shoal.federation": config.contract.federation}
    with (
        stopped_by_signals() as stop,
        exporting("server", Telemetry(metrics.registry, federation)),
        _page(page_server, config, board, metrics),
    ):
        run(build, stop, until_idle, on_step=on_step)
    models = totals(board)
    log_event("stopped", models=len(models))
    if as_json:
        click.echo(json.dumps({"models": models}))


@contextmanager
def _page(
    page_server: Callable[..., WebServer] | None,
    config: Config,
    board: StatusBoard,
    metrics: ServerMetrics,
) -> Iterator[None]:
    """Serves the page and the metrics from a thread of its own while the context is open."""
    if page_server is None:
        yield
        return
    history = HistoryReader(config.server.folder / HISTORY_FILE)
    publisher = request_publisher(config)
    reader = partial(open_log, config.log)
    web = page_server(config.server, board, metrics.registry, publisher, history, reader)
    with page_served(web, config.server):
        yield
