"""Middleware that refuses requests under a foreign host name, and those without the token or a session."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from server_node.web.access import Access, Grant, host_name
from server_node.web.login_form import login_form

GRANT = "shoal.grant"
"""key of the scope of a request: why it is answered"""
PUBLIC = ("/livez", "/session")
"""paths that need no token: whether the process runs, and where a session begins"""


class AccessControl:
    """Applies the rules of `Access` to each request before the application sees it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        header = request.headers.get("host", "")
        if not self._access.knows_host(header):
            await _unknown_host(header)(scope, receive, send)
            return
        grant = grant_of(request, self._access)
        if grant is None and scope["path"] not in PUBLIC:
            await _without_token(request)(scope, receive, send)
            return
        scope[GRANT] = grant
        await self._app(scope, receive, send)


def grant_of(request: Request, access: Access) -> Grant | None:
    """Why a request is answered; None: it is not."""
    headers = request.headers
    secure = request.url.scheme == "https"
    return access.grant(headers.get("authorization", ""), headers.get("cookie", ""), secure=secure)


def _unknown_host(header: str) -> Response:
    name = host_name(header) or "without a name"
    advice = f"this server is not called {name}; if it is yours, add that name to [server] allowed_hosts"
    return JSONResponse({"error": advice}, HTTPStatus.MISDIRECTED_REQUEST)


def _without_token(request: Request) -> Response:
    """The form for a browser that opens the page, else the error as JSON."""
    if request.url.path == "/" and "text/html" in request.headers.get("accept", ""):
        return login_form()
    headers = {"www-authenticate": 'Bearer realm="shoal"', "cache-control": "no-store"}
    return JSONResponse({"error": "the token is missing or wrong; send Authorization: Bearer TOKEN"}, 401, headers)
