"""POST requests that end: each has one deadline for everything from the connection to the answer.

The time limit of a socket begins anew with each byte. A receiver that sends one byte at a time, out
of malice or because it is broken, would hold all alerts for ever.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from typing import Final

from shoal.errors import LogUnavailable, MissingExtra, SettingsError

try:
    import anyio
    import httpx2
except ImportError:
    raise MissingExtra("A webhook", "webhook") from None

# At the levels below they name each URL, which is secret for many receivers.
logging.getLogger("httpx2").setLevel(logging.WARNING)
logging.getLogger("httpcore2").setLevel(logging.WARNING)

ANSWER_S: Final = 30.0
"""seconds from the beginning of a request until its receiver has answered"""


class HttpPost:
    """POSTs to one URL, each time over a connection of its own, and follows no redirect."""

    def __init__(self, url: str, shown: str, timeout_s: float) -> None:
        """`shown`: what messages call the URL, as a part of it may be secret; `timeout_s`: for each
        wait for a byte. Raises `SettingsError`."""
        try:
            self._url = httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise SettingsError(f"{shown}: is no URL ({error})") from None
        self._shown = shown
        self._timeout_s = timeout_s
        # Made once: to read the certificates of the system takes longer than a request.
        self._tls = ssl.create_default_context()

    def send(self, headers: Mapping[str, str], body: bytes) -> int:
        """The status of the answer, whose body is not read.

        Raises `LogUnavailable` where there is no whole answer within `ANSWER_S`.
        """
        try:
            return anyio.run(self._send, headers, body)
        except TimeoutError:
            raise LogUnavailable(f"{self._shown}: no whole answer in {ANSWER_S:g} s") from None
        except httpx2.TimeoutException:
            raise LogUnavailable(f"{self._shown}: nothing in {self._timeout_s:g} s") from None
        except httpx2.HTTPError as error:
            raise LogUnavailable(f"{self._shown}: {_reason(error)}") from None

    async def _send(self, headers: Mapping[str, str], body: bytes) -> int:
        with anyio.fail_after(ANSWER_S):
            async with httpx2.AsyncClient(
                verify=self._tls, timeout=self._timeout_s, follow_redirects=False
            ) as client:
                request = client.stream("POST", self._url, headers=headers, content=body)
                async with request as answer:
                    return answer.status_code


def _reason(error: BaseException) -> str:
    """What happened, in the words of the operating system or of TLS where the error comes from
    there: those of the client are "All connection attempts failed"."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            # Both addresses of a name were tried; the first one is as good as any.
            cause = cause.exceptions[0]
        is_from_below = isinstance(cause, OSError) and cause.errno is not None
        if is_from_below:
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
