"""Parts of all endpoints: bodies up to a limit, work in a thread, security headers, errors,
responses in pieces."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, TypeVar, TypeVarTuple

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.errors import InvalidData
from shoal.server_node.outputs.encoding import as_json, plain
from shoal.telemetry.events import log_event

Result = TypeVar("Result")
Given = TypeVarTuple("Given")


async def in_thread(function: Callable[[*Given], Result], *given: *Given) -> Result:
    """The result of `function`, or its error. A caller that is cancelled meanwhile leaves the
    thread to itself."""
    # Not Starlette's `run_in_threadpool`, for which anyio would be loaded: 3 MiB.
    thread = ThreadPoolExecutor(1, thread_name_prefix="web-request")
    try:
        return await asyncio.wrap_future(thread.submit(function, *given))
    finally:
        thread.shutdown(wait=False)


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The whole body. Raises `HTTPException` (413) for a longer one."""
    # Counted as they come: a request need not say how long its body is, and may say anything.
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise HTTPException(
                413, f"the body is too large; send at most {bytes_max} bytes at a time"
            )
    return bytes(body)


# `frame-ancestors` is against a page of another site that lays itself over this one, so that a
# person who clicks there names or mutes clusters here.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The last two keep pages of other sites from loading what is served here as an image or a script,
# and from keeping a handle of a window that shows it.
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class SecurityHeaders:
    """Middleware that adds those of `HEADERS` that a response lacks; it passes bodies on
    unbuffered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


_log = logging.getLogger(__name__)


def conditional(
    request: Request,
    etag: str,
    make: Callable[[], bytes | AsyncIterator[bytes]],
    media_type: str = "application/json",
) -> Response:
    """The response of `make`, whole or in pieces, or 304 where the request names this etag."""
    headers = {"etag": f'"{etag}"', "cache-control": "no-cache"}
    known = [
        # A proxy that compresses makes the tag a weak one.
        tag.strip().removeprefix("W/")
        for tag in request.headers.get("if-none-match", "").split(",")
    ]
    if headers["etag"] in known or "*" in known:
        return Response(status_code=304, headers=headers)
    body = make()
    if isinstance(body, bytes):
        return Response(body, media_type=media_type, headers=headers)
    return PiecesResponse(body, media_type=media_type, headers=headers)


def tagged(request: Request, value: Any) -> Response:
    """`value` as JSON with an etag of its bytes, or 304 where the request names it."""
    body = as_json(value).encode()
    return conditional(request, hashlib.sha256(body).hexdigest()[:16], lambda: body)


def answered(request: Request, value: Any) -> Response:
    """A value of a type as JSON with an etag of its bytes, or 304 where the request names it."""
    return tagged(request, plain(value))


def problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **more: str
) -> Response:
    """An error as JSON (RFC 9457): `detail` says what is wrong and what to do."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **more,
    }
    content = json.dumps(body, ensure_ascii=False).encode()
    return Response(content, status, headers, media_type="application/problem+json")


async def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = error.detail
    if reason == HTTPStatus(error.status_code).phrase:
        allowed = (error.headers or {}).get("Allow", "")
        reason = "there is nothing at this path; the page is at /"
        if allowed:
            reason = f"this path accepts {allowed} only"
    return problem(error.status_code, reason, error.headers)


async def shoal_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, InvalidData):
        _log.error("%s failed: %s", request.url.path, error)
        return problem(503, "the server cannot answer this now")
    return problem(422, str(error))


async def aborted(request: Request, error: Exception) -> Response:
    """The client has closed the connection before the end of its body: no client reads this
    response."""
    log_event("request_aborted", address=request.client.host if request.client else "")
    return Response(status_code=400)


async def internal_error(request: Request, error: Exception) -> Response:
    """The response to any other exception. It bypasses the middleware, so it sets the security
    headers itself."""
    return problem(500, "internal error; the server's log has the details", HEADERS)


class PiecesResponse(StreamingResponse):
    """A response whose body is sent piece by piece, in the task of the request alone.

    Starlette would start a task beside it to see whether the client has left, and load anyio for
    that, which takes 3 MiB. What is sent to a client that has left is dropped; a body without an
    end must watch for it (`Disconnection`).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


class Disconnection:
    """The end of a client's connection, as a context that watches for it: its request must have
    been read."""

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
        self._app = app
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._closing.is_set():
                raise
