"""The live page: its files, the status that it shows, its changes as server-sent events, and the
nodes of its map."""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from shoal.server_node.outputs.encoding import as_json
from shoal.server_node.outputs.web.api import MODEL, TEXT, Operation, Parameter
from shoal.server_node.outputs.web.page_renderer import PageRenderer, RenderedStatus
from shoal.server_node.outputs.web.query import no_clustering, requested_model
from shoal.server_node.outputs.web.responses import (
    Disconnection,
    PiecesResponse,
    conditional,
    problem,
)
from shoal.server_node.report.build import Reports
from shoal.server_node.report.status import StatusBoard

INTERVAL_S = 0.2
"""seconds between two events of a stream: at most five a second"""
# The page takes the server for gone after 25 s, so two heartbeats may be lost or late.
HEARTBEAT_S = 10.0
RETRY_MS = 1000
SUBSCRIBERS_MAX = 64


class EventStream:
    """The statuses of a board as events. All subscribers share one renderer, so each status is
    rendered once."""

    def __init__(
        self,
        board: StatusBoard,
        renderer: PageRenderer,
        closing: threading.Event,
        subscribers_max: int = SUBSCRIBERS_MAX,
    ) -> None:
        self._board = board
        self._renderer = renderer
        self._closing = closing
        self._subscribers = 0
        self._subscribers_max = subscribers_max

    @contextmanager
    def subscription(self) -> Iterator[bool]:
        """Whether one more client may subscribe; if so, it counts as a subscriber inside the
        context."""
        if self._subscribers >= self._subscribers_max:
            yield False
            return
        self._subscribers += 1
        try:
            yield True
        finally:
            self._subscribers -= 1

    async def events(
        self, last_etag: str, shown: str | None, left: asyncio.Task[None]
    ) -> AsyncIterator[bytes]:
        """Events until the server closes or the subscriber leaves: then `left` is done.

        `last_etag` is the etag of the status that the subscriber has already, or empty; of that and
        of every later one only what changes is sent, with the clustering of the model `shown` only,
        or of all models.
        """
        yield f"retry: {RETRY_MS}\n\n".encode()
        idle_s = 0.0
        last = self._renderer.recent(shown, last_etag)
        while not self._closing.is_set() and not left.done():
            rendered = self._renderer.render(self._board.status, shown)
            if rendered.etag != last_etag:
                before = last
                last = rendered
                last_etag = rendered.etag
                idle_s = 0.0
                if before is None:
                    yield _status_event(rendered)
                else:
                    yield self._change_event(before, rendered)
            elif idle_s >= HEARTBEAT_S:
                idle_s = 0.0
                yield b"event: heartbeat\ndata: no change\n\n"
            await asyncio.sleep(INTERVAL_S)
            idle_s += INTERVAL_S

    def _change_event(self, before: RenderedStatus, after: RenderedStatus) -> bytes:
        """The change between two statuses, or the newer status where that is shorter."""
        changed = self._renderer.change(before, after)
        body = after.body
        if len(changed) >= len(body):
            return _status_event(after)
        data = b'{"of":"%s","now":%s,"change":%s}' % (
            before.etag.encode(),
            as_json(after.now).encode(),
            changed,
        )
        return _event("change", after.etag, data)


class EventResponse(Response):
    """The response to a subscriber. It is counted while it is sent, and refused when as many are as
    may be.

    Between the count and the first byte nothing else runs, so that the limit is exact.
    """

    def __init__(self, stream: EventStream, last_etag: str, shown: str | None) -> None:
        super().__init__()
        self._stream = stream
        self._last_etag = last_etag
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stream.subscription() as granted:
            if not granted:
                refusal = problem(503, "too many event streams are open; try again later")
                await refusal(scope, receive, send)
                return
            # nginx would otherwise collect events until its buffer is full.
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            async with Disconnection(receive) as left:
                events = self._stream.events(self._last_etag, self._shown, left)
                response = PiecesResponse(events, media_type="text/event-stream", headers=headers)
                await response(scope, receive, send)


def _status_event(rendered: RenderedStatus) -> bytes:
    return _event("status", rendered.etag, rendered.body)


def _event(kind: str, etag: str, data: bytes) -> bytes:
    return f"id: {etag}\nevent: {kind}\ndata: ".encode() + data + b"\n\n"


SCRIPTS = (
    "page",
    "theme",
    "status",
    "format",
    "summary",
    "timeline",
    "history",
    "sorting",
    "map_panel",
    "overview",
    "histograms",
    "map",
    "details",
    "clusters",
    "clients",
    "states",
    "cycles",
    "unusual",
)
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS},
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""path -> file in static/, media type"""


class Page:
    """One method for each path of the page, and what they share."""

    def __init__(
        self,
        board: StatusBoard,
        reports: Reports,
        closing: threading.Event,
        subscribers_max: int,
    ) -> None:
        static = Path(__file__).parent / "static"
        self._board = board
        self._files = {
            path: (_content(static / name), media_type)
            for path, (name, media_type) in FILES.items()
        }
        contents = b"".join(content for content, _ in self._files.values())
        self._version = hashlib.sha256(contents).hexdigest()[:16]
        self._renderer = PageRenderer(self._version, reports)
        self._event_stream = EventStream(board, self._renderer, closing, subscribers_max)

    def routes(self) -> list[Route]:
        """The files of the page."""
        return [Route(path, self.file) for path in FILES]

    def operations(self) -> list[Operation]:
        """Endpoints of the page besides those of all programs."""
        after = Parameter("after", TEXT, "the etag of the status that the subscriber has")
        return [
            Operation("/v1/status", self.status, dict[str, Any], errors=(404,), etag=True),
            Operation(
                "/v1/status/stream",
                self.stream,
                str,
                (MODEL, after),
                errors=(404,),
                media_type="text/event-stream",
            ),
            Operation("/v1/nodes", self.nodes, dict[str, Any], errors=(404,), etag=True),
        ]

    async def status(self, request: Request) -> Response:
        """The status as the page shows it, as JSON, with the clustering of one model or of all."""
        rendered = self._renderer.render(self._board.status, self._shown(request))
        return conditional(request, rendered.etag, lambda: rendered.body)

    async def nodes(self, request: Request) -> Response:
        """The nodes of a model on the axes of the page's map; 404 before its first snapshot."""
        status = self._board.status
        model = requested_model(request, status)
        rendered = self._renderer.nodes(status, model.name)
        if rendered is None:
            return no_clustering(model)
        return conditional(request, rendered.etag, lambda: rendered.body)

    async def stream(self, request: Request) -> Response:
        """The status and its changes as server-sent events, with the clustering of one model or of
        all.

        At most five a second. `Last-Event-ID`, or else `after`, is the etag of the status that the
        subscriber has.
        """
        last_etag = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return EventResponse(self._event_stream, last_etag, self._shown(request))

    def _shown(self, request: Request) -> str | None:
        """The model in the query, if there is one; an empty name is that of the first."""
        name = request.query_params.get("model")
        if name is None:
            return None
        status = self._board.status
        if name:
            return requested_model(request, status).name
        return next(iter(status.contract.models))

    async def file(self, request: Request) -> Response:
        """A file of the page."""
        content, media_type = self._files[request.url.path]
        return conditional(request, self._version, lambda: content, media_type)


def _content(file: Path) -> bytes:
    """A file of the page as it is sent: scripts without the lines that hold a comment alone.

    An empty line is left in the place of each, so that errors in a browser's console have the line
    numbers of the file.
    """
    content = file.read_bytes()
    if file.suffix != ".js":
        return content
    return re.sub(rb"(?m)^[ \t]*//.*$", b"", content)
