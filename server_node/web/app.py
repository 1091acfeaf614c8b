"""What the server answers over HTTP: health, metrics, snapshots, predictions, privacy, and the live page.

Everything is read from the newest picture on the board; nothing here can change or delay the server.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from server_node.status import ModelStatus, ServerStatus, StatusBoard
from server_node.web.clustering import snapshot_in_units
from server_node.web.event_stream import Feed
from server_node.web.headers import HEADERS, GuardedHeaders
from server_node.web.page_renderer import NO_SNAPSHOT, PageRenderer
from server_node.web.posted_rows import BODY_BYTES_MAX, rows_of
from shoal.config.privacy_terms import bounds_of
from shoal.errors import InvalidData, ShoalError
from shoal.protocol.messages import Snapshot

Predict = Callable[[Snapshot, NDArray[np.float64]], NDArray[np.int64]]
"""(snapshot, rows (n, d) in unit coordinates) -> (n,) clusters"""

SCRIPTS = (
    *("page", "live", "theme", "tabs", "counters", "format"),
    *("map", "map_text", "axes", "marks", "chart"),
    *("clusters", "clients", "sorting", "privacy"),
)
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS},
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""path -> file in static/, media type"""

_log = logging.getLogger(__name__)


def create_app(board: StatusBoard, registry: CollectorRegistry, predict: Predict) -> Starlette:
    """The application. Setting `app.state.closing` ends the open event streams."""
    closing = threading.Event()
    site = Site(board, registry, predict, closing)
    routes = [
        Route("/livez", site.livez),
        Route("/readyz", site.readyz),
        Route("/metrics", site.metrics),
        Route("/snapshot", site.snapshot),
        Route("/predict", site.predict, methods=["POST"]),
        Route("/privacy", site.privacy),
        Route("/picture", site.picture),
        Route("/events", site.events),
        *(Route(path, site.file) for path in FILES),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(GuardedHeaders)],
        exception_handlers={HTTPException: _rejected, ShoalError: _failed, Exception: _broken},
    )
    app.state.closing = closing
    return app


class Site:
    """The answers, one method for each address."""

    def __init__(
        self, board: StatusBoard, registry: CollectorRegistry, predict: Predict, closing: threading.Event
    ) -> None:
        self._board, self._registry, self._predict = board, registry, predict
        here = Path(__file__).parent / "static"
        self._files = {path: ((here / name).read_bytes(), kind) for path, (name, kind) in FILES.items()}
        parts = b"".join(content for content, _ in self._files.values())
        self._easel = PageRenderer(hashlib.sha256(parts).hexdigest()[:16])
        self._feed = Feed(board, self._easel, closing)

    async def livez(self, request: Request) -> Response:
        """200 while the process serves."""
        return PlainTextResponse("alive\n")

    async def readyz(self, request: Request) -> Response:
        """200 once what stood in the log at the start has been read; 503 with the reason before."""
        picture = self._board.status
        if picture.ready:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(
            f"not ready: the log is being opened or read, {picture.lag_records} updates are left\n", 503
        )

    async def metrics(self, request: Request) -> Response:
        """The registry as Prometheus reads it."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(
            await to_thread.run_sync(encode, self._registry, abandon_on_cancel=True), headers={"content-type": kind}
        )

    async def snapshot(self, request: Request) -> Response:
        """The newest snapshot of a model in the units of the contract."""
        picture = self._board.status
        shown = _model_asked_for(request, picture)
        newest = shown.snapshot
        if newest is None:
            missing = {"error": "no clustering yet", "waiting_for": shown.waiting_for or NO_SNAPSHOT}
            return JSONResponse(missing, 404)
        # The version alone would not do: a federation that starts anew on an empty log counts from 1 again.
        mark = f"{newest.contract[:8]}-{newest.model}-{newest.version}-{int(newest.made_at * 1000)}"
        return _unless_known(request, mark, lambda: _json(snapshot_in_units(newest, shown.lineage, picture.contract)))

    async def predict(self, request: Request) -> Response:
        """The cluster of each posted reading, by its number in this version and by what it keeps from one to the next.

        -1 before anything was learnt. Readings are moved into the bounds.
        """
        picture = self._board.status
        shown = _model_asked_for(request, picture)
        readings = rows_of(await _body(request), picture.contract.width)
        newest = shown.snapshot
        if newest is None or not len(readings):
            version = newest.version if newest else 0
            nowhere = [-1] * len(readings)
            return JSONResponse({"clusters": nowhere, "identities": nowhere, "version": version})
        bounds = bounds_of(picture.contract)
        rows = bounds.to_unit(bounds.clip(readings)[0])
        clusters = await to_thread.run_sync(self._predict, newest, rows, abandon_on_cancel=True)
        numbers = np.asarray(clusters).tolist()
        identities = [shown.lineage.of_cluster.get(number, -1) for number in numbers]
        return JSONResponse({"clusters": numbers, "identities": identities, "version": newest.version})

    async def privacy(self, request: Request) -> Response:
        """The privacy statement of the contract."""
        return JSONResponse(dict(self._board.status.privacy))

    async def picture(self, request: Request) -> Response:
        """What the page draws."""
        drawing = self._easel.draw(self._board.status)
        return _unless_known(request, drawing.mark, lambda: drawing.body)

    async def events(self, request: Request) -> Response:
        """The drawings as server-sent events; `Last-Event-ID` says which one the watcher has."""
        if self._feed.is_full:
            raise HTTPException(503, "too many are watching; try again later")
        seen = request.headers.get("last-event-id", "")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._feed.events(seen), media_type="text/event-stream", headers=headers)

    async def file(self, request: Request) -> Response:
        """The page and its parts."""
        content, kind = self._files[request.url.path]
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})


def _model_asked_for(request: Request, picture: ServerStatus) -> ModelStatus:
    agreed = picture.contract.models
    name = request.query_params.get("model", agreed[0].name)
    for model in agreed:
        if model.name == name:
            return picture.models.get(name) or ModelStatus(name, model.algorithm)
    raise HTTPException(404, f"no such model; this federation has {', '.join(model.name for model in agreed)}")


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, f"the body is too large; send at most {BODY_BYTES_MAX} bytes at a time")
    return bytes(body)


def _unless_known(request: Request, mark: str, make: Callable[[], bytes]) -> Response:
    headers = {"etag": f'"{mark}"', "cache-control": "no-cache"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if headers["etag"] in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(make(), media_type="application/json", headers=headers)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


async def _rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = error.detail
    if why == HTTPStatus(error.status_code).phrase:
        allowed = (error.headers or {}).get("Allow", "")
        why = f"this address answers {allowed} only" if allowed else "nothing is at this address; the page is at /"
    return JSONResponse({"error": why}, error.status_code, headers=error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    if not isinstance(error, InvalidData):
        _log.error("%s failed: %s", request.url.path, error)
        return JSONResponse({"error": "the server cannot answer this now"}, 503)
    return JSONResponse({"error": str(error)}, 422)


async def _broken(request: Request, error: Exception) -> Response:
    """The last word on what nobody foresaw; it is said outside of all else, so the headers go with it from here."""
    return JSONResponse({"error": "the server is at fault here; its log says more"}, 500, headers=HEADERS)
