"""The live page: its files, the status that it shows, the changes of that, and the nodes of its map."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from server_node.history.store import HistoryReader
from server_node.status import StatusBoard
from server_node.web.clusters import requested_model
from server_node.web.event_stream import EventResponse, EventStream
from server_node.web.page_renderer import NO_SNAPSHOT, PageRenderer
from server_node.web.responses import conditional

SCRIPTS = (
    *("page", "live", "nodes", "theme", "tabs", "counters", "format"),
    *("map", "map_panel", "map_text", "missing", "axes", "marks", "chart"),
    *("now", "lives", "bars", "share", "span", "times", "strip", "overview", "opened", "histograms", "partings"),
    *("order", "past", "differ", "happened", "feeds", "clusters", "rules", "naming", "clients", "regions"),
    *("sorting", "privacy", "session", "below", "observed"),
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
        self, board: StatusBoard, history: HistoryReader | None, closing: threading.Event, subscribers_max: int
    ) -> None:
        static = Path(__file__).parent / "static"
        self._board = board
        self._files = {path: ((static / name).read_bytes(), media_type) for path, (name, media_type) in FILES.items()}
        contents = b"".join(content for content, _ in self._files.values())
        self._version = hashlib.sha256(contents).hexdigest()[:16]
        self._renderer = PageRenderer(self._version, history)
        self._event_stream = EventStream(board, self._renderer, closing, subscribers_max)

    def routes(self) -> list[Route]:
        return [
            Route("/status", self.status),
            Route("/nodes", self.nodes),
            Route("/events", self.events),
            *(Route(path, self.file) for path in FILES),
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
            return JSONResponse({"error": "no clustering yet", "waiting_for": model.waiting_for or NO_SNAPSHOT}, 404)
        return conditional(request, rendered.etag, lambda: rendered.body)

    async def events(self, request: Request) -> Response:
        """The status and its changes as server-sent events, with the clustering of one model or of all.

        `Last-Event-ID`, or else `after` in the query, is the etag of the status that the subscriber has already.
        """
        last_etag = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return EventResponse(self._event_stream, last_etag, self._shown(request))

    def _shown(self, request: Request) -> str | None:
        """The model in the query, if there is one; an empty name is that of the first."""
        name = request.query_params.get("model")
        if name is None:
            return None
        status = self._board.status
        return requested_model(request, status).name if name else status.contract.models[0].name

    async def file(self, request: Request) -> Response:
        """A file of the page."""
        content, media_type = self._files[request.url.path]
        return conditional(request, self._version, lambda: content, media_type)
