"""Who may read the page and name clusters: the host names of the server, its token, and sessions of the page.

A browser sends the name under which it called the server as the header `Host`. The page of another site can have its
own name made to point to this machine, and its scripts then count as of the same origin (DNS rebinding); but the name
stays theirs, so requests under a foreign name are refused.

The token is a secret that programs send with each request (RFC 6750). A browser sends it once, in the form that the
page shows, and gets a session: a cookie with the time when it ends and its HMAC with a key derived from the token. So
the server keeps no sessions, a restart ends none, and another token ends all.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from shoal.config.sections import is_loopback
from shoal.errors import SettingsError
from shoal.files import read_password

TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")
"""what a header can carry (RFC 6750), and long enough not to be guessed"""
SESSION_S = 12 * 3600
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""headers of a proxy: it runs on this machine, but the one who sent the request may not"""
SAME_SITE = ("same-origin", "none", None)
"""values of Sec-Fetch-Site: from a page of this server, typed by a person, or from a program that is no browser"""
WILDCARDS = ("", "0.0.0.0", "::")
"""values of `host` that listen on every address of the machine and name none"""

Grant = Literal["open", "token", "session"]
"""why a request is answered: the server has no token, the request has it, or it has a session"""


@dataclass(frozen=True)
class Access:
    """The rules. `hosts` are names besides those of the loopback; without a `token` every request is granted."""

    hosts: frozenset[str] = frozenset()
    token: str = field(default="", repr=False)
    clock: Callable[[], float] = time.time

    def knows_host(self, header: str) -> bool:
        """Whether `header`, the value of Host, names this server."""
        name = host_name(header)
        return is_loopback(name) or name in self.hosts

    def grant(self, authorization: str, cookies: str, *, secure: bool) -> Grant | None:
        """Why a request with these headers is answered; None: it is not. `secure`: it came over TLS."""
        if not self.token:
            return "open"
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return "token"
        try:
            cookie = SimpleCookie(cookies).get(cookie_name(secure=secure))
        except CookieError:
            return None
        return "session" if cookie is not None and self._is_session(cookie.value) else None

    def is_token(self, given: str) -> bool:
        """Whether `given` is the token. How long that takes does not tell how much of it is right."""
        return bool(self.token) and hmac.compare_digest(_digest(given), _digest(self.token))

    def new_session(self) -> str:
        """The value of a cookie that is good for `SESSION_S` seconds."""
        return self._signed(int(self.clock()) + SESSION_S)

    def _is_session(self, value: str) -> bool:
        ends, _, _ = value.partition(".")
        if not re.fullmatch(r"[0-9]{1,12}", ends) or not self.clock() < int(ends) <= self.clock() + SESSION_S + 1:
            return False
        return hmac.compare_digest(value.encode(), self._signed(int(ends)).encode())

    def _signed(self, ends: int) -> str:
        key = _digest(f"shoal session 1\n{self.token}")
        return f"{ends}.{hmac.new(key, str(ends).encode(), 'sha256').hexdigest()}"


def make_access(host: str, allowed_hosts: Iterable[str] = (), token_file: Path | None = None) -> Access:
    """The rules of a server that listens on `host`. Raises `SettingsError` for a token that cannot be used."""
    names = {name.lower().strip("[]") for name in (*allowed_hosts, host)} - set(WILDCARDS)
    return Access(frozenset(names), "" if token_file is None else read_token(token_file))


def read_token(file: Path) -> str:
    """The token in a file. Raises `SettingsError`, without the token."""
    token = read_password(file, "server")
    if not TOKEN.fullmatch(token):
        raise SettingsError(
            f"[server] token_file {file}: must hold one token, 16 to 512 letters, digits and -._~+/; "
            f"`shoal keys token` makes one"
        )
    return token


def cookie_name(*, secure: bool) -> str:
    """The name of the session's cookie. Browsers take a cookie with the prefix `__Host-` over TLS only."""
    return "__Host-shoal-session" if secure else "shoal-session"


def is_from_this_page(host: str, origin: str | None, fetch_site: str | None) -> bool:
    """Whether a request with these headers comes from a page of this server, or from no page of any site."""
    foreign = origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}")
    return not foreign and fetch_site in SAME_SITE


def host_name(header: str) -> str:
    """The value of Host without its port and in lower case; empty if it is malformed."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
