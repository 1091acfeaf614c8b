"""Who may read the page and name clusters: host names, the token, sessions of the page, and the
form that begins one.

A browser sends the name under which it called the server as the header `Host`. The page of another
site can have its own name made to point to this machine, and its scripts then count as of the same
origin (DNS rebinding); but the name stays theirs, so requests under a foreign name are refused.

The token is a secret that programs send with each request (RFC 6750). A browser sends it once, in
the form that the page shows, and gets a session: a cookie with the time when it ends and its HMAC
with a key derived from the token. So the server keeps no sessions, a restart ends none, and another
token ends all.

Naming a cluster is the only request that changes something. It is accepted with the token or a
session, and where the server has no token, from this machine alone. It is never accepted from a
page of another site: a browser can be made to send requests by any page that it shows.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.config.resolved import ResolvedContract
from shoal.config.sections import is_loopback
from shoal.errors import SettingsError
from shoal.files import read_password
from shoal.protocol.messages import ClusterAlerts, ClusterName
from shoal.server_node.ingest.request_publishing import alerts_request, name_request
from shoal.server_node.outputs.web.responses import problem, read_body
from shoal.telemetry.events import log_event

TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")
"""characters that a header can carry (RFC 6750), and long enough not to be guessed"""
SESSION_S = 12 * 3600
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""headers of a proxy: it runs on this machine, but the one who sent the request may not"""
SAME_SITE = ("same-origin", "none", None)
"""values of Sec-Fetch-Site: from a page of this server, typed by a person, or from a program that
is no browser"""
WILDCARDS = ("", "0.0.0.0", "::")
"""values of `host` that listen on every address of the machine and name none"""

Grant = Literal["open", "token", "session"]
"""why a request is answered: the server has no token, the request has it, or it has a session"""


@dataclass(frozen=True)
class Access:
    """The rules. `hosts` are names besides those of the loopback; without a `token` every request
    is granted."""

    hosts: frozenset[str] = frozenset()
    token: str = field(default="", repr=False)
    clock: Callable[[], float] = time.time

    def knows_host(self, header: str) -> bool:
        """Whether `header`, the value of Host, names this server."""
        name = host_name(header)
        return is_loopback(name) or name in self.hosts

    def grant(self, authorization: str, cookies: str, *, secure: bool) -> Grant | None:
        """Why a request with these headers is answered; None: it is not. `secure`: it came over
        TLS."""
        if not self.token:
            return "open"
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return "token"
        try:
            cookie = SimpleCookie(cookies).get(cookie_name(secure=secure))
        except CookieError:
            return None
        if cookie is not None and self._is_session(cookie.value):
            return "session"
        return None

    def is_token(self, given: str) -> bool:
        """Whether `given` is the token; how long that takes does not tell how much is right."""
        # Digests have one length, and are bytes: texts that are not ASCII cannot be compared so.
        return bool(self.token) and hmac.compare_digest(_digest(given), _digest(self.token))

    def new_session(self) -> str:
        """The value of a cookie that is good for `SESSION_S` seconds."""
        return self._signed(int(self.clock()) + SESSION_S)

    def _is_session(self, value: str) -> bool:
        # Twelve digits at most: a long text is never turned into a number.
        ends, _, _ = value.partition(".")
        if (
            not re.fullmatch(r"[0-9]{1,12}", ends)
            # No later than a session that begins now would end: one of a clock that was far ahead
            # would last.
            or not self.clock() < int(ends) <= self.clock() + SESSION_S + 1
        ):
            return False
        # In constant time: how long a comparison takes must not tell how much of a forged session
        # is right.
        return hmac.compare_digest(value.encode(), self._signed(int(ends)).encode())

    def _signed(self, ends: int) -> str:
        # Derived from the token, so that another token ends all sessions; the prefix keeps the key
        # apart from any other that is made of it.
        key = _digest(f"shoal session 1\n{self.token}")
        return f"{ends}.{hmac.new(key, str(ends).encode(), 'sha256').hexdigest()}"


def make_access(
    host: str, allowed_hosts: Iterable[str] = (), token_file: Path | None = None
) -> Access:
    """The rules of a server that listens on `host`. Raises `SettingsError` for a token that cannot
    be used."""
    # A wildcard names no server: a page that calls this machine 0.0.0.0 is of another site.
    names = {name.lower().strip("[]") for name in (*allowed_hosts, host)} - set(WILDCARDS)
    return Access(frozenset(names), "" if token_file is None else read_token(token_file))


def read_token(file: Path) -> str:
    """The token in a file. Raises `SettingsError`, without the token."""
    token = read_password(file, "server")
    if not TOKEN.fullmatch(token):
        raise SettingsError(
            f"[server] token_file {file}: must hold one token, 16 to 512 letters, digits and "
            f"-._~+/; `shoal keys token` makes one"
        )
    return token


def cookie_name(*, secure: bool) -> str:
    """The name of the session's cookie. Browsers take a cookie with the prefix `__Host-` over TLS
    only."""
    return "__Host-shoal-session" if secure else "shoal-session"


def is_from_this_page(host: str, origin: str | None, fetch_site: str | None) -> bool:
    """Whether a request with these headers comes from a page of this server, or from no page of any
    site."""
    # An old browser sends no Sec-Fetch-Site and a program no Origin, so each is checked where it is
    # there.
    foreign = origin is not None and origin.lower() not in (
        f"http://{host.lower()}",
        f"https://{host.lower()}",
    )
    return not foreign and fetch_site in SAME_SITE


def host_name(header: str) -> str:
    """The value of Host without its port and in lower case; empty if it is malformed."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


LOGIN_PAGE = (Path(__file__).parent / "login.html").read_text(encoding="utf-8")
_STYLE = LOGIN_PAGE.partition("<style>")[2].partition("</style>")[0]
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
LOGIN_POLICY = (
    # The style by its hash: none that was brought into the page applies.
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)


def login_form(notice: str = "") -> Response:
    """The form, with what was wrong with the token given before."""
    headers = {
        "www-authenticate": 'Bearer realm="shoal"',
        "cache-control": "no-store",
        "content-security-policy": LOGIN_POLICY,
        # With no-referrer, as elsewhere, browsers would send the form with the origin "null".
        "referrer-policy": "same-origin",
    }
    return HTMLResponse(LOGIN_PAGE.replace("{notice}", escape(notice)), 401, headers)


GRANT = "shoal.grant"
"""name of the entry in the scope of a request that says why it is answered"""
PUBLIC = ("/livez", "/session")
"""paths that need no token: whether the process runs, and where a session begins"""


class AccessControl:
    """Applies the rules of `Access` to each request before the application sees it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        header = request.headers.get("host", "")
        # Before the token: not even the form is for a request under a foreign name.
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
    advice = (
        f"this server is not called {name}; if it is yours, add that name to [server] allowed_hosts"
    )
    return problem(HTTPStatus.MISDIRECTED_REQUEST, advice)


def _without_token(request: Request) -> Response:
    """The form for a browser that opens the page, else the error as JSON."""
    if request.url.path == "/" and "text/html" in request.headers.get("accept", ""):
        return login_form()
    headers = {"www-authenticate": 'Bearer realm="shoal"', "cache-control": "no-store"}
    return problem(401, "the token is missing or wrong; send Authorization: Bearer TOKEN", headers)


REQUEST_BYTES_MAX = 4096
"""a name of 100 characters, each written as two escapes of six bytes, has 1200"""
ONLY_HERE = (
    "without a [server] token_file, clusters are named and muted from the server's own machine "
    "only; or use shoal name, confirm and mute"
)


def check_sender(request: Request) -> None:
    """Raises `HTTPException`: 403 for one who may not name or the page of another site, 415 for a
    body not JSON."""
    if not may_request(request):
        raise HTTPException(403, ONLY_HERE)
    headers = request.headers
    if not is_from_this_page(
        headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")
    ):
        raise HTTPException(403, "pages of other sites may not name or mute clusters")
    # A page of another site can make a browser send a form or a text, but no JSON without asking
    # this server first (CORS).
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send the request as JSON, with Content-Type: application/json")


def may_request(request: Request) -> bool:
    """Whether the sender has given the token, or where the server has none, is on this machine and
    behind no proxy."""
    if request.scope[GRANT] != "open":
        return request.scope[GRANT] is not None
    headers = request.headers
    peer = request.client.host if request.client else ""
    if not is_loopback(peer) or any(name in headers for name in FORWARDED):
        return False
    # A site whose name has been made to resolve to this machine is of the same origin, so the name
    # must be checked too.
    return is_loopback(host_name(headers.get("host", "")))


def parse_alerts(
    body: bytes, contract: ResolvedContract, model: str, identity: int
) -> ClusterAlerts:
    """The body `{"action": "confirm" | "mute" | "alert"}`, for `mute` with `until` -> the request
    to publish.

    Raises `HTTPException` (400).
    """
    parsed = _parsed(body)
    if not isinstance(parsed, Mapping) or not {"action"} <= set(parsed) <= {"action", "until"}:
        raise HTTPException(
            400, 'send {"action": "confirm"}, "alert", or "mute" with "until" in seconds since 1970'
        )
    try:
        return alerts_request(contract, model, identity, parsed["action"], parsed.get("until", 0.0))
    except SettingsError as wrong:
        raise HTTPException(400, str(wrong)) from None


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    # Deeply nested lists raise `RecursionError`: a body from outside must not be an internal error.
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None


def parse_name(body: bytes, contract: ResolvedContract, model: str, identity: int) -> ClusterName:
    """The body `{"name": "..."}` -> the request to publish. Raises `HTTPException` (400)."""
    parsed = _parsed(body)
    if (
        not isinstance(parsed, Mapping)
        or set(parsed) != {"name"}
        or not isinstance(parsed["name"], str)
    ):
        raise HTTPException(
            400, 'there is no name; send {"name": "..."}, with an empty name to take it away'
        )
    try:
        return name_request(contract, model, identity, parsed["name"])
    except SettingsError as wrong:
        raise HTTPException(400, str(wrong)) from None


# A form holds one token: a request without a login must not make the server keep more than that.
LOGIN_BYTES_MAX = 4096
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
        allowed = {"grant": grant, "may_request": may_request(request)}
        return JSONResponse(allowed, headers={"cache-control": "no-store"})

    async def _begin(self, request: Request) -> Response:
        headers = request.headers
        if not is_from_this_page(
            headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")
        ):
            raise HTTPException(403, "a session begins in the form of this page only")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise HTTPException(415, f"send the token as a form, with Content-Type: {FORM}")
        form = parse_qs((await read_body(request, LOGIN_BYTES_MAX)).decode("utf-8", "replace"))
        if not self._access.is_token(form.get("token", [""])[0].strip()):
            log_event(
                "login_failed",
                logging.WARNING,
                address=request.client.host if request.client else "",
            )
            return login_form("This is not the token of this server.")
        # The page is beside this path, also where a proxy serves it under another one.
        opened = RedirectResponse("./", 303, {"cache-control": "no-store"})
        return _with_cookie(opened, request, self._access.new_session(), SESSION_S)


def _with_cookie(response: Response, request: Request, value: str, max_age_s: int) -> Response:
    secure = request.url.scheme == "https"
    # Neither a script in the page nor a request from the page of another site gets the session.
    response.set_cookie(
        cookie_name(secure=secure),
        value,
        max_age_s,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
    return response
