"""The session of the page: begun with the token, ended by the person or after some hours."""

from __future__ import annotations

import logging
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from server_node.web.access import SESSION_S, Access, cookie_name, is_from_this_page
from server_node.web.access_control import GRANT
from server_node.web.bodies import read_body
from server_node.web.login_form import login_form
from server_node.web.naming import may_name
from shoal.telemetry.events import log_event

BODY_BYTES_MAX = 4096
FORM = "application/x-www-form-urlencoded"


class Sessions:
    """The endpoint /session."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def endpoint(self, request: Request) -> Response:
        """GET: what this browser may do. POST with the token: begin a session. DELETE: end it."""
        if request.method == "POST":
            return await self._begin(request)
        if request.method == "DELETE":
            return _with_cookie(Response(status_code=204), request, "", 0)
        grant = request.scope[GRANT]
        allowed = {"grant": grant, "may_name": may_name(request)}
        return JSONResponse(allowed, headers={"cache-control": "no-store"})

    async def _begin(self, request: Request) -> Response:
        headers = request.headers
        if not is_from_this_page(headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")):
            raise HTTPException(403, "a session begins in the form of this page only")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise HTTPException(415, f"send the token as a form, with Content-Type: {FORM}")
        form = parse_qs((await read_body(request, BODY_BYTES_MAX)).decode("utf-8", "replace"))
        if not self._access.is_token(form.get("token", [""])[0].strip()):
            log_event("login_failed", logging.WARNING, address=request.client.host if request.client else "")
            return login_form("This is not the token of this server.")
        # The page is beside this path, also where a proxy serves it under another one.
        opened = RedirectResponse("./", 303, {"cache-control": "no-store"})
        return _with_cookie(opened, request, self._access.new_session(), SESSION_S)


def _with_cookie(response: Response, request: Request, value: str, max_age_s: int) -> Response:
    secure = request.url.scheme == "https"
    response.set_cookie(
        cookie_name(secure=secure), value, max_age_s, path="/", secure=secure, httponly=True, samesite="strict"
    )
    return response
