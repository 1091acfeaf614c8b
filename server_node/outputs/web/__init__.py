"""The server's HTTP interface: the live page, snapshots, predictions, metrics and health."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shoal.algorithms.registry import predict_rows
from shoal.config.resolved import ResolvedContract
from shoal.config.sections import ServerSettings
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.messages import Snapshot
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.outputs.web.access import Access, make_access
from shoal.server_node.outputs.web.app import PublishRequest, create_app
from shoal.server_node.outputs.web.server import DEFAULT_LIMITS, Limits, TlsFiles, WebServer
from shoal.server_node.outputs.web.topic_pages import OpenLog
from shoal.server_node.report.status import StatusBoard

__all__ = ["WebServer", "configured_server", "create_app", "make_access", "page_server", "predict"]


def configured_server(
    settings: ServerSettings,
    board: StatusBoard,
    registry: CollectorRegistry,
    publish_request: PublishRequest | None = None,
    history: HistoryReader | None = None,
    open_log: OpenLog | None = None,
    read_only: str = "",
) -> WebServer:
    """The web server that [server] describes. Raises `SettingsError` for a token that cannot be
    used."""
    access = make_access(settings.host, settings.allowed_hosts, settings.token_file)
    tls = None
    if settings.certificate_file is not None and settings.key_file is not None:
        tls = TlsFiles(settings.certificate_file, settings.key_file)
    limits = Limits(settings.connections_max, settings.requests_per_s, settings.request_s)
    return page_server(
        board,
        registry,
        settings.host,
        settings.port,
        publish_request,
        history=history,
        open_log=open_log,
        access=access,
        tls=tls,
        limits=limits,
        read_only=read_only,
    )


def page_server(  # noqa: PLR0913 - one argument for each part of a page
    board: StatusBoard,
    registry: CollectorRegistry,
    host: str = "127.0.0.1",
    port: int = 0,
    publish_request: PublishRequest | None = None,
    *,
    history: HistoryReader | None = None,
    open_log: OpenLog | None = None,
    access: Access | None = None,
    tls: TlsFiles | None = None,
    limits: Limits = DEFAULT_LIMITS,
    read_only: str = "",
) -> WebServer:
    """A web server, not started yet: it serves the status on `board` and the metrics in `registry`.

    `publish_request` publishes what people ask for clusters on the page, names and alerts; None: it
    takes none. `history` reads the history of all models; None: there is none. `open_log` opens the
    federation's log, for lists of events and labels; None: there are none. `access`: who may send
    requests; by default all
    that call it by its address or a name of the loopback. `tls`: its certificate. `limits`: how
    much others may ask of it. `read_only`: see `create_app`.
    """
    access = access or make_access(host)
    parts = (publish_request, access, limits, history, open_log)
    app = create_app(board, registry, predict, *parts, read_only=read_only)
    return WebServer(app, host, port, tls, limits, needs_token=bool(access.token))


def predict(snapshot: Snapshot, rows: Floats, contract: ResolvedContract) -> Ints:
    """rows (n, d) in unit coordinates, NaN for missing values -> (n,) clusters by the snapshot's
    algorithm, or -1."""
    return predict_rows(contract.models[snapshot.model].algorithm, snapshot.arrays, rows)
