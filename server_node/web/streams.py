"""Responses in pieces, and requests that are still answered when the server stops."""

from __future__ import annotations

import asyncio
import threading

from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class PiecesResponse(StreamingResponse):
    """A response whose body is sent piece by piece, in the task of the request alone.

    Starlette would start a task beside it to see whether the client has left, and load anyio for that, which takes
    3 MiB. What is sent to a client that has left is dropped; a body without an end has to watch for it (`Departure`).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


class Departure:
    """Whether a client has left, as a context: its request must have been read."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    async def __aenter__(self) -> asyncio.Task[None]:
        """A task that is done once the client has left."""
        self._task = asyncio.create_task(self._wait())
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class EndsWithServer:
    """Middleware: a request that is cancelled because the server stops ends without an error.

    uvicorn would log each as one, with a traceback.
    """

    def __init__(self, app: ASGIApp, closing: threading.Event) -> None:
        self._app, self._closing = app, closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._closing.is_set():
                raise
