"""`shoal page`: serves the live page, the API and metrics of a federation from its log alone."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.options import config_option, log_json_option, until_idle_option, verbose_option
from shoal.config.settings import Config, load_config
from shoal.protocol.published_contract import contract_in
from shoal.runtime.logs import open_federation_log
from shoal.runtime.service import LIVE_S, resumed, run, start_kernels, stopped_by_signals
from shoal.server_node.bootstrap import StatusUpdater, initial_status
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader, HistoryStore
from shoal.server_node.outputs.page_serving import find_page_server, page_served, totals
from shoal.server_node.page.metrics import PageMetrics
from shoal.server_node.page.published import PublishedFederation
from shoal.server_node.page.topic import FollowedTopic
from shoal.server_node.report.status import StatusBoard
from shoal.telemetry.events import log_event, start_logging
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports import check_installed

if TYPE_CHECKING:
    from shoal.server_node.outputs.web import WebServer

READ_ONLY = (
    "this page is read-only: name, confirm or mute clusters on the page of the server, or with"
    " shoal name, confirm or mute"
)


@click.command()
@config_option
@click.option(
    "--host", help="Address at which the page is served. [default: [server] host of the file]"
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Its port; 0: any free one. [default: [server] port of the file, and where the file names"
    " none and 8765 is in use, any free one]",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the index of the history, which is made anew where it is lost. "
    "[default: page/FEDERATION in [server] folder]",
)
@until_idle_option("snapshot")
@log_json_option
@verbose_option
def page(
    file: Path,
    host: str | None,
    port: int | None,
    folder: Path | None,
    until_idle: float | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Serve the live page, the API and /metrics of a federation from its log: a process that only
    reads.

    It shows what a server or replicas publish, on any machine that reaches the log, and goes on
    while they are away. It writes nothing to the log and takes no names of clusters. Token,
    certificate and limits are those of [server] in the federation file. Stop it with Ctrl-C or
    SIGTERM, or kill it: started again it reads the log from its beginning.
    """
    config = with_options(load_config(file), host, port)
    check_installed(config.log)
    page_server = find_page_server()
    start_kernels()
    start_logging("page", as_json, logging.DEBUG if verbose else logging.INFO)
    log_event("started", federation=config.contract.federation, contract=config.contract.digest)
    metrics = PageMetrics()
    board = StatusBoard(initial_status(config, time.time(), "page"), stale_s=LIVE_S)
    updater = StatusUpdater(board)
    path = history_file(config, folder)

    @contextmanager
    def build() -> Iterator[PublishedFederation]:
        with (
            updater.showing_failures(),
            resumed(open_published(config, path, metrics.server)) as published,
            updater.until_closed(published),
        ):
            yield published

    with stopped_by_signals() as stop, _served(page_server, config, board, metrics, path):
        run(build, stop, until_idle, on_step=updater.update)
    models = totals(board)
    log_event("stopped", models=len(models))
    if as_json:
        click.echo(json.dumps({"models": models}))


def with_options(config: Config, host: str | None, port: int | None) -> Config:
    """The settings with the address of the options."""
    given: dict[str, object] = {}
    if host is not None:
        given["host"] = host
    if port is not None:
        given["port"] = port
    if not given:
        return config
    return config.model_copy(update={"server": config.server.model_copy(update=given)})


def history_file(config: Config, folder: Path | None) -> Path:
    """The index of the history. A server in the same folder has one of its own, which it alone
    writes."""
    if folder is None:
        folder = config.server.folder / "page" / config.contract.federation
    return folder / HISTORY_FILE


@contextmanager
def open_published(
    config: Config, history_path: Path, metrics: ServerMetrics
) -> Iterator[PublishedFederation]:
    """Open the log, to be read, and the index of the history. `resumed` resumes it and closes all.

    Raises `LogUnavailable` where there are no topics yet, and as `open_log_to_read` does.
    """
    with ExitStack() as stack:
        log = stack.enter_context(closing(open_federation_log(config, read_only=True)))
        # Before it is read whole: a topic that is not there is an error that passes.
        FollowedTopic(log, config.contract.snapshots_topic)
        contract = contract_in(log, config.resolved)
        history = HistoryStore(contract, history_path)
        stack.enter_context(closing(history))
        yield PublishedFederation(contract, log, history, metrics, config.server.client_names)


@contextmanager
def _served(
    page_server: Callable[..., WebServer],
    config: Config,
    board: StatusBoard,
    metrics: PageMetrics,
    history_path: Path,
) -> Iterator[None]:
    """Serves the page and the metrics from a thread of its own while the context is open."""
    web = page_server(
        config.server,
        board,
        metrics.registry,
        history=HistoryReader(history_path),
        open_log=partial(open_federation_log, config, read_only=True),
        read_only=READ_ONLY,
    )
    # A server on this machine has the default port, which no setting of the page has asked for.
    or_any_port = "port" not in config.server.model_fields_set
    with page_served(web, config.server, or_any_port=or_any_port):
        yield
