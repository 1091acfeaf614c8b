"""HTTP connections that end: each has a time limit for its handshake, and one for its answer.

The time limit of a socket begins anew with each byte. A receiver that sends one byte at a time, out
of malice or because it is broken, would hold all alerts for ever. So a timer shuts the connection
down, from another thread, and what is waiting for a byte returns with an error.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import urllib.request
from contextlib import suppress
from typing import Any, Final

ANSWER_S: Final = 30.0
"""seconds until a receiver has ended its handshake, and until it has answered"""


def timed_opener() -> urllib.request.OpenerDirector:
    """An opener whose connections end, and that follows no redirect."""
    return urllib.request.build_opener(_NoRedirects, _TimedHTTP, _TimedHTTPS)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the host in the settings, and a GET of another page
    delivers nothing."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Let the answer be an error."""


def _start_timer(connection: _TimedConnection | None, opened: socket.socket) -> threading.Timer:
    """Start the timer that shuts a socket down, and marks its connection as late."""

    def shut_down() -> None:
        if connection is not None:
            connection.is_late = True
        # It may have ended by itself just before.
        with suppress(OSError):
            # The method of an SSL socket would also drop its TLS object, which a thread is using.
            socket.socket.shutdown(opened, socket.SHUT_RDWR)

    timer = threading.Timer(ANSWER_S, shut_down)
    # A forwarder that ends waits for no receiver.
    timer.daemon = True
    timer.start()
    return timer


class _TimedConnection(http.client.HTTPConnection):
    """A connection that is shut down `ANSWER_S` after it was made, unless it has been answered."""

    is_late = False
    _timer: threading.Timer | None = None

    def connect(self) -> None:
        """Connect, and begin to count."""
        super().connect()
        self._timer = _start_timer(self, self.sock)

    def getresponse(self) -> http.client.HTTPResponse:
        """Read the answer's status and headers."""
        try:
            answer = super().getresponse()
        except OSError:
            # A connection that was shut down can look like one that was reset.
            if not self.is_late:
                raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        # What was cut off can look like an answer.
        if self.is_late:
            raise TimeoutError(f"no whole answer in {ANSWER_S:g} s")
        return answer


class _TimedSecureConnection(_TimedConnection, http.client.HTTPSConnection):
    """The same over TLS."""


class _TimedHandshake(ssl.SSLSocket):
    """A socket that is shut down where its handshake takes longer than `ANSWER_S`.

    The handshake is part of `connect`, so the timer of the connection has not begun.
    """

    def do_handshake(self, block: bool = False) -> None:
        """See `ssl.SSLSocket.do_handshake`."""
        timer = _start_timer(None, self)
        try:
            super().do_handshake(block)
        finally:
            timer.cancel()


class _TimedHTTP(urllib.request.HTTPHandler):
    """Opens connections that end."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open one without TLS."""
        return self.do_open(_TimedConnection, req)


class _TimedHTTPS(urllib.request.HTTPSHandler):
    """The same over TLS."""

    def __init__(self) -> None:
        self._timed = ssl.create_default_context()
        # As `http.client` does for a context of its own: some receivers refuse a connection that
        # names no protocol.
        self._timed.set_alpn_protocols(["http/1.1"])
        self._timed.sslsocket_class = _TimedHandshake
        super().__init__()

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open one with TLS."""
        return self.do_open(_TimedSecureConnection, req, context=self._timed)
