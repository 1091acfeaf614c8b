"""Server-sent events: each subscriber gets the status when it changes, and a heartbeat when it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from server_node.status import StatusBoard
from server_node.web.page_renderer import PageRenderer, RenderedStatus

INTERVAL_S = 0.2
"""at most five events a second"""
HEARTBEAT_S = 10.0
RETRY_MS = 1000
SUBSCRIBERS_MAX = 64


class EventStream:
    """The statuses of a board as events. All subscribers share one renderer, so each status is rendered once."""

    def __init__(self, board: StatusBoard, renderer: PageRenderer, closing: threading.Event) -> None:
        self._board, self._renderer, self._closing = board, renderer, closing
        self._subscribers = 0

    @property
    def is_full(self) -> bool:
        """Whether as many clients subscribe as are allowed at once."""
        return self._subscribers >= SUBSCRIBERS_MAX

    async def events(self, last_etag: str) -> AsyncIterator[bytes]:
        """Events until the server closes or the subscriber leaves.

        `last_etag` is the etag of the status that the subscriber has already, or empty.
        """
        self._subscribers += 1
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            idle_s = 0.0
            while not self._closing.is_set():
                rendered = self._renderer.render(self._board.status)
                if rendered.etag != last_etag:
                    last_etag, idle_s = rendered.etag, 0.0
                    yield _event(rendered)
                elif idle_s >= HEARTBEAT_S:
                    idle_s = 0.0
                    yield b"event: heartbeat\ndata: no change\n\n"
                await asyncio.sleep(INTERVAL_S)
                idle_s += INTERVAL_S
        finally:
            self._subscribers -= 1


def _event(rendered: RenderedStatus) -> bytes:
    return b"id: " + rendered.etag.encode() + b"\nevent: status\ndata: " + rendered.body + b"\n\n"
