"""Server-sent events: whoever watches gets the drawing when it changes, and a sign of life when it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from server_node.status import StatusBoard
from server_node.web.page_renderer import Drawing, PageRenderer

INTERVAL_S = 0.2
"""at most five drawings a second"""
HEARTBEAT_S = 10.0
RETRY_MS = 1000
WATCHERS_MAX = 64


class Feed:
    """The drawings of a board, one after the other. All watchers share one easel, so each is drawn once."""

    def __init__(self, board: StatusBoard, easel: PageRenderer, closing: threading.Event) -> None:
        self._board, self._easel, self._closing = board, easel, closing
        self._watchers = 0

    @property
    def is_full(self) -> bool:
        return self._watchers >= WATCHERS_MAX

    async def events(self, seen: str) -> AsyncIterator[bytes]:
        """Events until the server closes or the watcher leaves; `seen` is the mark of the drawing it has, or empty."""
        self._watchers += 1
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            quiet_s = 0.0
            while not self._closing.is_set():
                drawing = self._easel.draw(self._board.status)
                if drawing.mark != seen:
                    seen, quiet_s = drawing.mark, 0.0
                    yield _event(drawing)
                elif quiet_s >= HEARTBEAT_S:
                    quiet_s = 0.0
                    yield b"event: alive\ndata: nothing new\n\n"
                await asyncio.sleep(INTERVAL_S)
                quiet_s += INTERVAL_S
        finally:
            self._watchers -= 1


def _event(drawing: Drawing) -> bytes:
    return b"id: " + drawing.mark.encode() + b"\nevent: picture\ndata: " + drawing.body + b"\n\n"
