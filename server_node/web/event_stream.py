"""Server-sent events: each subscriber gets what changes in the status, and a heartbeat when nothing does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from server_node.status import StatusBoard
from server_node.web.changes import as_json
from server_node.web.page_renderer import PageRenderer, RenderedStatus
from server_node.web.streams import Departure, PiecesResponse

INTERVAL_S = 0.2
"""at most five events a second"""
HEARTBEAT_S = 10.0
RETRY_MS = 1000
SUBSCRIBERS_MAX = 64


class EventStream:
    """The statuses of a board as events. All subscribers share one renderer, so each status is rendered once."""

    def __init__(
        self,
        board: StatusBoard,
        renderer: PageRenderer,
        closing: threading.Event,
        subscribers_max: int = SUBSCRIBERS_MAX,
    ) -> None:
        self._board, self._renderer, self._closing = board, renderer, closing
        self._subscribers, self._subscribers_max = 0, subscribers_max

    @contextmanager
    def subscription(self) -> Iterator[bool]:
        """Whether one more client may subscribe; if so, it counts as a subscriber inside the context."""
        if self._subscribers >= self._subscribers_max:
            yield False
            return
        self._subscribers += 1
        try:
            yield True
        finally:
            self._subscribers -= 1

    async def events(self, last_etag: str, shown: str | None, left: asyncio.Task[None]) -> AsyncIterator[bytes]:
        """Events until the server closes or the subscriber leaves: then `left` is done.

        `last_etag` is the etag of the status that the subscriber has already, or empty; of that and of every later one
        only what changes is sent, with the clustering of the model `shown` only, or of all models.
        """
        yield f"retry: {RETRY_MS}\n\n".encode()
        idle_s = 0.0
        last = self._renderer.recent(shown, last_etag)
        while not self._closing.is_set() and not left.done():
            rendered = self._renderer.render(self._board.status, shown)
            if rendered.etag != last_etag:
                last, last_etag, before, idle_s = rendered, rendered.etag, last, 0.0
                yield _status_event(rendered) if before is None else self._change_event(before, rendered)
            elif idle_s >= HEARTBEAT_S:
                idle_s = 0.0
                yield b"event: heartbeat\ndata: no change\n\n"
            await asyncio.sleep(INTERVAL_S)
            idle_s += INTERVAL_S

    def _change_event(self, before: RenderedStatus, after: RenderedStatus) -> bytes:
        """The change between two statuses, or the newer status where that is shorter."""
        changed, body = self._renderer.change(before, after), after.body
        if len(changed) >= len(body):
            return _status_event(after)
        data = b'{"of":"%s","now":%s,"change":%s}' % (before.etag.encode(), as_json(after.now).encode(), changed)
        return _event("change", after.etag, data)


class EventResponse(Response):
    """The response to a subscriber. It is counted while it is sent, and refused when as many are as may be.

    Between the count and the first byte nothing else runs, so that the limit is exact.
    """

    def __init__(self, stream: EventStream, last_etag: str, shown: str | None) -> None:
        super().__init__()
        self._stream, self._last_etag, self._shown = stream, last_etag, shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stream.subscription() as granted:
            if not granted:
                refusal = JSONResponse({"error": "too many event streams are open; try again later"}, 503)
                await refusal(scope, receive, send)
                return
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            async with Departure(receive) as left:
                events = self._stream.events(self._last_etag, self._shown, left)
                response = PiecesResponse(events, media_type="text/event-stream", headers=headers)
                await response(scope, receive, send)


def _status_event(rendered: RenderedStatus) -> bytes:
    return _event("status", rendered.etag, rendered.body)


def _event(kind: str, etag: str, data: bytes) -> bytes:
    return f"id: {etag}\nevent: {kind}\ndata: ".encode() + data + b"\n\n"
