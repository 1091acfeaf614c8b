"""Responses that several endpoints share: those that may be in the browser already, and those to errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from server_node.web.headers import HEADERS
from shoal.errors import InvalidData
from shoal.telemetry.events import log_event

_log = logging.getLogger(__name__)


def conditional(
    request: Request, etag: str, make: Callable[[], bytes], media_type: str = "application/json"
) -> Response:
    """What `make` returns, or 304 where the request names this etag."""
    headers = {"etag": f'"{etag}"', "cache-control": "no-cache"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if headers["etag"] in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(make(), media_type=media_type, headers=headers)


async def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = error.detail
    if reason == HTTPStatus(error.status_code).phrase:
        allowed = (error.headers or {}).get("Allow", "")
        reason = f"this path accepts {allowed} only" if allowed else "there is nothing at this path; the page is at /"
    return JSONResponse({"error": reason}, error.status_code, headers=error.headers)


async def shoal_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, InvalidData):
        _log.error("%s failed: %s", request.url.path, error)
        return JSONResponse({"error": "the server cannot answer this now"}, 503)
    return JSONResponse({"error": str(error)}, 422)


async def aborted(request: Request, error: Exception) -> Response:
    """The client has closed the connection before the end of its body: no client reads this response."""
    log_event("request_aborted", address=request.client.host if request.client else "")
    return Response(status_code=400)


async def internal_error(request: Request, error: Exception) -> Response:
    """The response to any other exception. It bypasses the middleware, so it sets the security headers itself."""
    return JSONResponse({"error": "internal error; the server's log has the details"}, 500, headers=HEADERS)
