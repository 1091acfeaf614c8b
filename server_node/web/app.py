"""The HTTP application: health, metrics, snapshots, predictions, the privacy statement and the live page.

Every endpoint reads the newest status from the board; none can delay the server. Naming a cluster publishes a request
to the log, where the server reads it as it reads updates.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

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

from server_node.clusters.history.store import HistoryReader
from server_node.status import StatusBoard
from server_node.web.access import (
    REQUEST_BYTES_MAX,
    Access,
    AccessControl,
    Sessions,
    check_sender,
    parse_alerts,
    parse_name,
)
from server_node.web.changes import as_json
from server_node.web.clusters import cluster_routes, known_cluster, requested_model
from server_node.web.connections import DEFAULT_LIMITS, Limits, RateLimit, bounded_by_descriptors
from server_node.web.page import SUBSCRIBERS_MAX, Page
from server_node.web.page_renderer import NO_SNAPSHOT
from server_node.web.predictions import (
    ROWS_BYTES_MAX,
    first_predicting,
    parse_rows,
    predicted_feature,
    predictions_json,
    rules_response,
)
from server_node.web.responses import (
    EndsWithServer,
    SecurityHeaders,
    aborted,
    conditional,
    http_error,
    in_thread,
    internal_error,
    read_body,
    shoal_error,
)
from server_node.web.snapshot_json import snapshot_json
from shoal.config.privacy_report import privacy_report
from shoal.config.resolved import ResolvedContract
from shoal.errors import ShoalError
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.messages import OperatorRequest, Snapshot

R = TypeVar("R", bound=OperatorRequest)

Predict = Callable[[Snapshot, Floats, ResolvedContract], Ints]
"""(snapshot, rows (n, d) in unit coordinates, contract) -> (n,) clusters"""

PublishRequest = Callable[[OperatorRequest], None]
"""publishes the request to the log; it is called in a thread of its own"""
LOGS_MAX = 2
"""logs that are open for requests about clusters at once"""

COMPRESSED_FROM_BYTES = 1000
COMPRESSION_LEVEL = 6
"""responses are compressed for a client that takes gzip; an event stream is not"""
LOOPBACK_ONLY = Access()
"""called by the names of the loopback, without a token"""


def create_app(
    board: StatusBoard,
    registry: CollectorRegistry,
    predict: Predict,
    publish_request: PublishRequest | None = None,
    access: Access = LOOPBACK_ONLY,
    limits: Limits = DEFAULT_LIMITS,
    history: HistoryReader | None = None,
) -> Starlette:
    """The application. Setting `app.state.closing` ends the open event streams.

    `publish_request` publishes requests about clusters; None: they are not accepted. `access`: who may send
    requests; `limits`: how many. `history` None: there is none.
    """
    closing = threading.Event()
    subscribers_max = min(SUBSCRIBERS_MAX, bounded_by_descriptors(limits.connections_max) // 2)
    endpoints = Endpoints(board, registry, predict, publish_request)
    routes = [
        Route("/livez", endpoints.livez),
        Route("/readyz", endpoints.readyz),
        Route("/metrics", endpoints.metrics),
        Route("/snapshot", endpoints.snapshot),
        Route("/predict", endpoints.predict, methods=["POST"]),
        Route("/rules", endpoints.rules),
        Route("/clusters/{identity}/name", endpoints.name, methods=["POST"]),
        Route("/clusters/{identity}/alerts", endpoints.alerts, methods=["POST"]),
        *cluster_routes(board, history),
        Route("/privacy", endpoints.privacy),
        Route("/session", Sessions(access).endpoint, methods=["GET", "POST", "DELETE"]),
        *Page(board, history, closing, subscribers_max).routes(),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(EndsWithServer, closing),
            Middleware(SecurityHeaders),
            Middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM_BYTES, compresslevel=COMPRESSION_LEVEL),
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
    return app


class Endpoints:
    """One method for each path, and what they share."""

    def __init__(
        self,
        board: StatusBoard,
        registry: CollectorRegistry,
        predict: Predict,
        publish_request: PublishRequest | None,
    ) -> None:
        self._board, self._registry = board, registry
        self._predict, self._publish_request = predict, publish_request
        self._logs = asyncio.Semaphore(LOGS_MAX)

    async def livez(self, request: Request) -> Response:
        """200 while the process runs."""
        return PlainTextResponse("alive\n")

    async def readyz(self, request: Request) -> Response:
        """200 once the records that were in the log at the start have been read; 503 with the reason until then."""
        status = self._board.status
        if status.ready:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(
            f"not ready: the log is being opened or read, {status.lag_records} updates are left\n", 503
        )

    async def metrics(self, request: Request) -> Response:
        """The metrics in the format that Prometheus asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = await in_thread(encode, self._registry)
        return Response(body, headers={"content-type": content_type})

    async def snapshot(self, request: Request) -> Response:
        """The newest snapshot of a model, as JSON in the units of the contract; 404 before there is one."""
        status = self._board.status
        model = requested_model(request, status)
        snapshot = model.snapshot
        if snapshot is None:
            missing = {"error": "no clustering yet", "waiting_for": model.waiting_for or NO_SNAPSHOT}
            return JSONResponse(missing, 404)
        # The version alone is not unique: a federation restarted on an empty log counts from 1 again.
        etag = f"{snapshot.contract[:8]}-{snapshot.model}-{snapshot.version}-{int(snapshot.made_at * 1000)}"
        return conditional(
            request, etag, lambda: as_json(snapshot_json(snapshot, model.lineage, status.contract)).encode()
        )

    async def predict(self, request: Request) -> Response:
        """The cluster of each posted reading: its number in this version, and its identity over all versions.

        Both are -1 before the first snapshot. Readings are clipped to the bounds of the contract. Of a model that
        predicts a feature, also the predictions.
        """
        status = self._board.status
        model = requested_model(request, status)
        target = predicted_feature(status.contract, model.name)
        readings = parse_rows(await read_body(request, ROWS_BYTES_MAX), status.contract.width, target)
        snapshot = model.snapshot
        if snapshot is None or not len(readings):
            version = snapshot.version if snapshot else 0
            none = [-1] * len(readings)
            more = predictions_json(target, None, readings, status.contract)
            return JSONResponse({"clusters": none, "identities": none, "version": version, **more})
        bounds = status.contract.bounds
        rows = bounds.to_unit(bounds.clip(readings)[0])
        clusters = await in_thread(self._predict, snapshot, rows, status.contract)
        numbers = np.asarray(clusters).tolist()
        identities = [model.lineage.of_number.get(number, -1) for number in numbers]
        more = await in_thread(predictions_json, target, snapshot, rows, status.contract)
        return JSONResponse({"clusters": numbers, "identities": identities, "version": snapshot.version, **more})

    async def rules(self, request: Request) -> Response:
        """The rules by which a model predicts a feature, by default the first one that does. 404 if there are none."""
        status = self._board.status
        return rules_response(requested_model(request, status, first_predicting(status.contract)), status.contract)

    async def name(self, request: Request) -> Response:
        """Request a name for the cluster with this identity; the server takes it when it reads the request in its log.

        202 with the request. With the token or a session, or else from this machine only: 403 for others and for
        pages of other sites.
        """
        asked = await self._publish(request, parse_name)
        return JSONResponse({"model": asked.model, "cluster": asked.identity, "name": asked.name}, 202)

    async def alerts(self, request: Request) -> Response:
        """Request that the cluster with this identity raises no alerts, or raises them again. 202 and 403 as `name`."""
        asked = await self._publish(request, parse_alerts)
        body = {"model": asked.model, "cluster": asked.identity, "action": asked.action, "until": asked.until}
        return JSONResponse(body, 202)

    async def _publish(self, request: Request, parse: Callable[[bytes, ResolvedContract, str, int], R]) -> R:
        check_sender(request)
        if self._publish_request is None:
            raise HTTPException(503, "this server takes no requests over HTTP; use shoal name, confirm or mute")
        body = await read_body(request, REQUEST_BYTES_MAX)
        status = self._board.status
        model = requested_model(request, status)
        asked = parse(body, status.contract, model.name, known_cluster(request, model))
        async with self._logs:
            await in_thread(self._publish_request, asked)
        return asked

    async def privacy(self, request: Request) -> Response:
        """Guarantees of the contract, in all and for each model, and what they do not cover."""
        return JSONResponse(privacy_report(self._board.status.contract))
