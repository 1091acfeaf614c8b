"""The HTTP application: health, metrics, snapshots, predictions, the privacy statement and the live
page.

Every endpoint reads the newest status from the board; none can delay the server. Naming a cluster
publishes a request to the log, where the server reads it as it reads updates.
"""

from __future__ import annotations

import asyncio
import math
import threading
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from shoal.config.privacy_report import privacy_report
from shoal.config.resolved import ResolvedContract
from shoal.errors import MissingExtra, ShoalError
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.messages import OperatorRequest, Snapshot
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.outputs.encoding import as_json, plain
from shoal.server_node.outputs.snapshot_view import SnapshotView, snapshot_view
from shoal.server_node.outputs.web.access import (
    REQUEST_BYTES_MAX,
    Access,
    AccessControl,
    Sessions,
    check_sender,
    parse_alerts,
    parse_name,
)
from shoal.server_node.outputs.web.answers import (
    Clients,
    NewAlerts,
    NewName,
    Predictions,
    Readings,
    RequestedAlerts,
    RequestedName,
    Rows,
)
from shoal.server_node.outputs.web.api import JSON, TEXT, Operation, Parameter, routes_of
from shoal.server_node.outputs.web.clusters import ClusterEndpoints
from shoal.server_node.outputs.web.page import SUBSCRIBERS_MAX, Page
from shoal.server_node.outputs.web.predictions import (
    MEDIA_TYPES,
    ROWS_BYTES_MAX,
    first_predicting,
    predicted_feature,
    read_readings,
    rules_response,
    with_predictions,
)
from shoal.server_node.outputs.web.query import (
    known_cluster,
    no_clustering,
    requested_model,
    whole_number,
)
from shoal.server_node.outputs.web.responses import (
    EndsWithServer,
    SecurityHeaders,
    aborted,
    answered,
    conditional,
    http_error,
    in_thread,
    internal_error,
    read_body,
    shoal_error,
    tagged,
)
from shoal.server_node.outputs.web.server import (
    DEFAULT_LIMITS,
    Limits,
    RateLimit,
    bounded_by_descriptors,
)
from shoal.server_node.outputs.web.topic_pages import OpenLog, TopicPages
from shoal.server_node.report.build import Reports, clients_of
from shoal.server_node.report.status import ServerStatus, StatusBoard
from shoal.server_node.report.types import Rules

R = TypeVar("R", bound=OperatorRequest)

Predict = Callable[[Snapshot, Floats, ResolvedContract], Ints]
"""(snapshot, rows (n, d) in unit coordinates, contract) -> (n,) clusters"""

PublishRequest = Callable[[OperatorRequest], None]
"""publishes the request to the log; it is called in a thread of its own"""
LOGS_MAX = 2
"""logs that are open for requests about clusters at once"""
CLIENTS_AT_ONCE_MAX = 1000
AFTER_CLIENT = Parameter(
    "after", TEXT, "the name after which to begin: `next` of the answer before"
)
CLIENTS_LIMIT = Parameter(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": CLIENTS_AT_ONCE_MAX},
    "clients at most, by default 1000",
)

# A shorter response fits into one packet of a network as it is.
COMPRESSED_FROM_BYTES = 1000
COMPRESSION_LEVEL = 6
"""responses are compressed for a client that takes gzip; an event stream is not"""
LOOPBACK_ONLY = Access()
"""called by the names of the loopback, without a token"""


def create_app(  # noqa: PLR0913 - one argument for each part of a page
    board: StatusBoard,
    registry: CollectorRegistry,
    predict: Predict,
    publish_request: PublishRequest | None = None,
    access: Access = LOOPBACK_ONLY,
    limits: Limits = DEFAULT_LIMITS,
    history: HistoryReader | None = None,
    open_log: OpenLog | None = None,
    *,
    read_only: str = "",
) -> Starlette:
    """The application. Setting `app.state.closing` ends the open event streams;
    `app.state.operations` is its table.

    `publish_request` publishes requests about clusters; None: they are not accepted. `access`: who
    may send requests; `limits`: how many. `history` None: there is none. `open_log` opens the
    federation's log, of which events and labels are listed; None: they are not. `read_only`: why
    no requests about clusters are accepted, and where they are; empty: they may be.
    """
    closing = threading.Event()
    # Half of the connections at most: an event stream holds one for as long as its page is open,
    # and requests need some, too.
    subscribers_max = min(SUBSCRIBERS_MAX, bounded_by_descriptors(limits.connections_max) // 2)
    endpoints = Endpoints(board, registry, predict, publish_request, read_only)
    reports = Reports(history)
    page = Page(board, reports, closing, subscribers_max)
    operations = [
        *endpoints.operations(),
        *ClusterEndpoints(board, reports).operations(),
        *TopicPages(board, open_log).operations(),
        *page.operations(),
    ]
    routes = [
        Route("/livez", endpoints.livez),
        Route("/readyz", endpoints.readyz),
        Route("/metrics", endpoints.metrics),
        Route("/session", Sessions(access).endpoint, methods=["GET", "POST", "DELETE"]),
        *routes_of(operations),
        *page.routes(),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            # The first is outermost: what a later one refuses still gets the headers of those
            # before it.
            Middleware(EndsWithServer, closing),
            Middleware(SecurityHeaders),
            Middleware(
                GZipMiddleware, minimum_size=COMPRESSED_FROM_BYTES, compresslevel=COMPRESSION_LEVEL
            ),
            Middleware(RateLimit, limits.requests_per_s),
            Middleware(AccessControl, access),
        ],
        exception_handlers={
            HTTPException: http_error,
            ClientDisconnect: aborted,
            ShoalError: shoal_error,
            Exception: internal_error,
        },
    )
    app.state.closing = closing
    app.state.operations = operations
    return app


UNDECLARED = ("", "application/x-www-form-urlencoded")
"""media types of a program that names none, such as `curl -d`: the body is read as JSON"""


def asking(
    what: str, endpoint: Callable[[Request], Awaitable[Response]], body: Any, answer: Any
) -> Operation:
    """The operation of a request about one cluster."""
    errors = (400, 403, 404, 413, 415)
    path = f"/v1/clusters/{{identity}}/{what}"
    return Operation(
        path, endpoint, answer, method="POST", body={JSON: body}, status=202, errors=errors
    )


class Endpoints:
    """One method for each path, and what they share."""

    def __init__(
        self,
        board: StatusBoard,
        registry: CollectorRegistry,
        predict: Predict,
        publish_request: PublishRequest | None,
        read_only: str = "",
    ) -> None:
        self._board = board
        self._registry = registry
        self._predict = predict
        self._publish_request = publish_request
        self._read_only = read_only
        self._logs = asyncio.Semaphore(LOGS_MAX)

    def operations(self) -> list[Operation]:
        """The operations of snapshots, predictions, clients, privacy and requests."""
        readings = {
            media: Readings | Rows if media == MEDIA_TYPES[0] else str for media in MEDIA_TYPES
        }
        return [
            Operation("/v1/snapshot", self.snapshot, SnapshotView, errors=(404,), etag=True),
            Operation(
                "/v1/predict",
                self.predict,
                Predictions,
                method="POST",
                body=readings,
                errors=(404, 413, 415, 422),
            ),
            Operation("/v1/rules", self.rules, Rules, errors=(404,), etag=True),
            Operation(
                "/v1/clients",
                self.clients,
                Clients,
                (AFTER_CLIENT, CLIENTS_LIMIT),
                errors=(400,),
                etag=True,
            ),
            Operation("/v1/privacy", self.privacy, dict[str, Any], (), etag=True),
            asking("name", self.name, NewName, RequestedName),
            asking("alerts", self.alerts, NewAlerts, RequestedAlerts),
        ]

    async def livez(self, request: Request) -> Response:
        """200 while the process runs."""
        return PlainTextResponse("alive\n")

    async def readyz(self, request: Request) -> Response:
        """200 once the records that were in the log at the start have been read; 503 with the
        reason until then, and while the log or the disk fails or does not answer.

        A history that is made again from the log does not make it 503: no model waits for it.
        """
        status = self._board.status
        if status.ready and self._board.is_stale:
            return PlainTextResponse(
                f"not ready: no step has ended for {self._board.stale_s:.0f} s; a disk or a log"
                " does not answer, or the machine is overloaded\n",
                503,
            )
        if status.ready and status.history_read < 1.0:
            return PlainTextResponse(
                "ready; the history is made again from the log, "
                f"{math.floor(100 * status.history_read)} % is there\n"
            )
        if status.ready:
            return PlainTextResponse("ready\n")
        if status.unavailable:
            # No more: anybody may ask, and the error names files.
            return PlainTextResponse(
                "not ready: the log, or a file of the server, cannot be read or written at "
                "present; the log of this process has the reason\n",
                503,
            )
        # A page that reads no updates does not know how many are left.
        left = "" if status.lag_records is None else f", {status.lag_records} updates are left"
        return PlainTextResponse(f"not ready: the log is being opened or read{left}\n", 503)

    async def metrics(self, request: Request) -> Response:
        """The metrics in the format that Prometheus asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = await in_thread(encode, self._registry)
        return Response(body, headers={"content-type": content_type})

    async def snapshot(self, request: Request) -> Response:
        """The newest snapshot of a model, as JSON in the units of the contract; 404 before there is
        one."""
        status = self._board.status
        model = requested_model(request, status)
        snapshot = model.snapshot
        if snapshot is None:
            return no_clustering(model)
        # The version alone is not unique: a federation restarted on an empty log counts from 1
        # again.
        made_ms = int(snapshot.made_at * 1000)
        etag = f"{snapshot.contract[:8]}-{snapshot.model}-{snapshot.version}-{made_ms}"
        return conditional(
            request,
            etag,
            lambda: as_json(
                plain(snapshot_view(snapshot, model.lineage, status.contract))
            ).encode(),
        )

    async def predict(self, request: Request) -> Response:
        """The cluster of each posted reading: its number in this version, and its identity over all
        versions.

        Both are -1 before the first snapshot. At most 10 000 readings in 4 MiB, as JSON, CSV with
        names in the first line, Parquet (uncompressed or Snappy) or a stream of uncompressed Arrow
        record batches; those two where the extra `parquet` is installed. Other columns are ignored.
        Readings are clipped to the bounds of the contract. A category is one of its values; with
        `missing = "learn"` values may be null, or not there. Of a model that predicts a feature,
        also the predictions.
        """
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in (*MEDIA_TYPES, *UNDECLARED):
            raise HTTPException(415, f"send the readings as {', '.join(MEDIA_TYPES)}")
        status = self._board.status
        model = requested_model(request, status)
        target = predicted_feature(status.contract, model.name)
        body = await read_body(request, ROWS_BYTES_MAX)
        media_type = "" if media_type in UNDECLARED else media_type
        try:
            # In a thread: reading ten thousand rows would keep all other requests and event streams
            # waiting.
            readings = await in_thread(read_readings, media_type, body, status.contract, target)
        except MissingExtra as missing:
            raise HTTPException(415, str(missing)) from None
        snapshot = model.snapshot
        if snapshot is None or not len(readings):
            none = [-1] * len(readings)
            version = snapshot.version if snapshot else 0
            empty = Predictions(model=model.name, version=version, clusters=none, identities=none)
            answer = with_predictions(empty, target, None, readings, status.contract)
            return JSONResponse(plain(answer))
        bounds = status.contract.bounds
        rows = bounds.to_unit(bounds.clip(readings, gaps=True)[0])
        clusters = await in_thread(self._predict, snapshot, rows, status.contract)
        numbers = np.asarray(clusters).tolist()
        identities = [model.lineage.of_number.get(number, -1) for number in numbers]
        answer = Predictions(
            model=model.name, version=snapshot.version, clusters=numbers, identities=identities
        )
        answer = await in_thread(with_predictions, answer, target, snapshot, rows, status.contract)
        return JSONResponse(plain(answer))

    async def rules(self, request: Request) -> Response:
        """The rules by which a model predicts a feature, by default the first one that does. 404 if
        there are none."""
        status = self._board.status
        model = requested_model(request, status, first_predicting(status.contract))
        return rules_response(request, model, status.contract)

    async def name(self, request: Request) -> Response:
        """Request a name for the cluster with this identity; the server takes it when it reads the
        request in its log.

        202 with the request. With the token or a session, or else from this machine only: 403 for
        others and for pages of other sites.
        """
        asked = await self._publish(request, parse_name)
        answer = RequestedName(model=asked.model, cluster=asked.identity, name=asked.name)
        return JSONResponse(plain(answer), 202)

    async def alerts(self, request: Request) -> Response:
        """Request that the cluster with this identity raises no alerts, or raises them again. 202
        and 403 as `name`."""
        asked = await self._publish(request, parse_alerts)
        answer = RequestedAlerts(
            model=asked.model, cluster=asked.identity, action=asked.action, until=asked.until
        )
        return JSONResponse(plain(answer), 202)

    async def _publish(
        self, request: Request, parse: Callable[[bytes, ResolvedContract, str, int], R]
    ) -> R:
        # Before the body is read: who may not ask must not make the server keep anything.
        check_sender(request)
        if self._read_only:
            raise HTTPException(403, self._read_only)
        if self._publish_request is None:
            raise HTTPException(
                503, "this server takes no requests over HTTP; use shoal name, confirm or mute"
            )
        body = await read_body(request, REQUEST_BYTES_MAX)
        status = self._board.status
        model = requested_model(request, status)
        asked = parse(body, status.contract, model.name, known_cluster(request, model))
        # Each opens the log: many at once would use up descriptors.
        async with self._logs:
            await in_thread(self._publish_request, asked)
        return asked

    async def privacy(self, request: Request) -> Response:
        """Guarantees of the contract, in all and for each model, and what they do not cover."""
        return tagged(request, privacy_report(self._board.status.contract))

    async def clients(self, request: Request) -> Response:
        """The clients by name, as the server knows them from their updates, and how many there are
        in `total`.

        At most 1000 of them; ask again with `after` set to `next` until that is null.
        """
        asked = request.query_params
        limit = whole_number(
            asked.get("limit"), "limit", CLIENTS_AT_ONCE_MAX, 1, CLIENTS_AT_ONCE_MAX
        )
        return answered(request, some_clients(self._board.status, asked.get("after", ""), limit))


def some_clients(status: ServerStatus, after: str, limit: int) -> Clients:
    """The first `limit` clients whose names come after this one, by name."""
    first = bisect_right(status.clients, after, key=lambda client: client.client)
    listed = status.clients[first : first + limit]
    rest = len(status.clients) - first - limit
    return Clients(
        clients=clients_of(status, listed),
        total=len(status.clients),
        next=listed[-1].client if rest > 0 else None,
    )
