"""Bearer tokens for logins at Kafka (OAUTHBEARER): of a file, or of a token endpoint.

A token endpoint gives one for the id and the secret of a client (OAuth 2.0, RFC 6749, 4.4: the
client credentials grant), as every provider of OpenID Connect has it.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from shoal.errors import LogError, LogUnavailable, SettingsError, ShoalError
from shoal.files import read_password
from shoal.transports.kafka.settings import BrokerAccess

FILE_S: Final = 300.0
"""seconds after which a token in a file is read again"""
KEPT_SHARE: Final = 0.8
"""share of its lifetime after which a token is replaced. kafka-python logs in again after 85 % of
what was left of it, librdkafka after 80 %, so each of these logins gets a new one"""
TIMEOUT_S: Final = 4.0
"""longest wait for an endpoint. The thread that connects waits, and sends no heartbeat meanwhile:
less than the session of a group"""
LIFETIME_S: Final = 60.0
"""lifetime of a token of which the endpoint does not tell it (expires_in is optional): a common
shortest one"""
FAILED_FOR_S: Final = 1.0
"""seconds for which a failure counts for all who ask: several connections may wait for a token"""
ANSWER_BYTES_MAX: Final = 2**18
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750, 2.1"""
_CODE = re.compile(r"[a-z_]{1,40}")
"""the form of the error codes of RFC 6749, 5.2"""
_BUSY: Final = (408, 425, 429)


class TokenSource(Protocol):
    """A source of bearer tokens."""

    def token(self) -> tuple[str, float]:
        """A token, and when to ask for the next one at the latest, in seconds since 1970.

        Raises `LogUnavailable` where a later try may succeed, else `LogError` or `SettingsError`.
        """
        ...


class TokenFile:
    """A bearer token in a file that another program renews: it is read at each login."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def token(self) -> tuple[str, float]:
        """See `TokenSource.token`."""
        return read_password(self._file, "log"), time.time() + FILE_S


class TokenEndpoint:
    """Tokens of one client at a token endpoint. Each is kept for most of its lifetime.

    Several threads may ask.
    """

    def __init__(
        self,
        url: str,
        client: str,
        secret_file: Path,
        scope: str = "",
        ca_file: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`client`: its id; `ca_file`: authorities of the endpoint, None for those of the system;
        `clock`: seconds since 1970. Asks the endpoint nothing yet."""
        self._url = url
        self._client = client
        self._secret_file = secret_file
        self._scope = scope
        self._ca_file = ca_file
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._from = math.inf
        self._until = -math.inf
        self._failure: ShoalError | None = None
        self._failed_at = -math.inf

    def token(self) -> tuple[str, float]:
        """See `TokenSource.token`. While the endpoint is away, a token serves to its end."""
        with self._lock:
            now = self._clock()
            # After the clock was set back, when a token ends is not known.
            is_valid = self._from <= now < self._until
            if is_valid and now < self._from + KEPT_SHARE * (self._until - self._from):
                return self._token, self._until
            try:
                self._renew(now)
            except LogUnavailable:
                if not is_valid:
                    raise
            return self._token, self._until

    def _renew(self, now: float) -> None:
        if self._failure is not None and 0 <= now - self._failed_at < FAILED_FOR_S:
            raise self._failure
        self._failure = None
        try:
            token, lifetime_s = self._asked()
        except ShoalError as failure:
            self._failure = failure
            self._failed_at = self._clock()
            raise
        self._token = token
        # Before it was asked for, when it cannot have begun yet.
        self._from = now
        self._until = now + lifetime_s

    def _asked(self) -> tuple[str, float]:
        """A new token, and its lifetime in seconds."""
        where = f"token endpoint {self._url}"
        found = self._answer(where)
        token = found.get("access_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise LogError(f"{where}: its answer has no access_token; check oauth_url")
        try:
            # Some endpoints write the number as text.
            lifetime_s = float(found.get("expires_in", LIFETIME_S))
        except (TypeError, ValueError):
            lifetime_s = LIFETIME_S
        if not 0 < lifetime_s < math.inf:
            lifetime_s = LIFETIME_S
        return token, lifetime_s

    def _answer(self, where: str) -> dict[str, Any]:
        fields = {"grant_type": "client_credentials"}
        if self._scope:
            fields["scope"] = self._scope
        request = urllib.request.Request(
            self._url, data=urllib.parse.urlencode(fields).encode(), method="POST"
        )
        secret = read_password(self._secret_file, "log")
        # Both are encoded first (RFC 6749, 2.3.1), as either may have a colon.
        login = f"{urllib.parse.quote_plus(self._client)}:{urllib.parse.quote_plus(secret)}"
        encoded = base64.b64encode(login.encode()).decode()
        request.add_header("Authorization", f"Basic {encoded}")
        request.add_header("Accept", "application/json")
        try:
            with self._opener().open(request, timeout=TIMEOUT_S) as answer:
                content = answer.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as refused:
            with refused:
                raise _refusal(where, refused) from None
        except (OSError, http.client.HTTPException) as away:
            reason = getattr(away, "reason", away)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise LogError(
                    f"{where}: its certificate is not one we trust; check oauth_ca_file and the"
                    " host in oauth_url"
                ) from None
            raise LogUnavailable(f"{where}: not reached ({type(reason).__name__})") from None
        found = _object(content)
        if found is None:
            raise LogError(f"{where}: its answer is no JSON object; check oauth_url")
        return found

    def _opener(self) -> urllib.request.OpenerDirector:
        # Made for each request, which is seldom: a file of authorities may be replaced, too.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._ca_file is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(cafile=str(self._ca_file))
            except OSError as error:
                raise SettingsError(
                    f"[log] {self._ca_file}: cannot be read as certificates (PEM)"
                    f" ({type(error).__name__}); correct oauth_ca_file"
                ) from None
        return urllib.request.build_opener(
            _NoRedirects(), urllib.request.HTTPSHandler(context=context)
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the secret would go to wherever it points."""

    def redirect_request(self, *about: Any) -> None:
        """None: a redirect is an error."""


def _refusal(where: str, refused: urllib.error.HTTPError) -> ShoalError:
    """The error for an answer with a status that is none of success."""
    if refused.code >= 500 or refused.code in _BUSY:
        return LogUnavailable(f"{where}: it answers with status {refused.code}")
    try:
        found = _object(refused.read(ANSWER_BYTES_MAX)) or {}
    except (OSError, http.client.HTTPException):
        found = {}
    code = str(found.get("error"))
    # Of what a foreign program writes, a code goes into our messages, and nothing else.
    shown = f", {code}" if _CODE.fullmatch(code) else ""
    return LogError(
        f"{where}: it refuses the client (status {refused.code}{shown}): check user (the client"
        " id), secret_file, oauth_scope and oauth_url"
    )


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# One for all connections of a process: a host of many partitions has as many of them.
_endpoint = cache(TokenEndpoint)


def token_source(settings: BrokerAccess) -> TokenSource:
    """The source of the tokens of these settings, which have `sasl = "oauthbearer"`."""
    assert settings.secret_file is not None  # BrokerAccess checks it
    if not settings.oauth_url:
        return TokenFile(settings.secret_file)
    return _endpoint(
        settings.oauth_url,
        settings.user,
        settings.secret_file,
        settings.oauth_scope,
        settings.oauth_ca_file,
    )
