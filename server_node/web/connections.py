"""The connections of the web server: how many there may be, and how long each may take.

uvicorn accepts as many connections as there are descriptors and waits for a request for ever; its documentation leaves
both to a proxy. The server of a federation must live without one. So its socket accepts a limited number, and a
connection that waits too long for a request is closed: to make room for a new one, or when its time is over.
"""

from __future__ import annotations

import errno
import resource
import socket
import time
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

SLACK = 16
"""connections above the most, while those that are closed for them have not been closed yet"""
DESCRIPTORS_KEPT = 48
"""descriptors that the rest of the process needs: the log, the checkpoint, and what they open for a moment"""
PATIENCE = 3
"""a body may take so many times as long as a header, and so may a client that does not read"""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Limits(NamedTuple):
    """How much others may ask of the web server; see [server]."""

    connections_max: int = 256
    requests_per_s: float = 0.0
    request_s: float = 10.0


DEFAULT_LIMITS = Limits()


class Exchange(Protocol):
    """The requests and responses of one connection."""

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered; the rest of the body of an answered one does not count."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for the rest of a body, or for the client to read."""
        ...

    def refuse(self) -> None:
        """Close the connection; a client whose request has not been answered gets the status 408."""
        ...


class Connection(socket.socket):
    """An accepted connection, from its TLS handshake to its end."""

    since: float
    """when it was accepted, or when its newest request or response began to wait; monotonic"""
    exchange: Exchange | None = None
    """None during the TLS handshake"""
    ended = False

    @property
    def waits(self) -> bool:
        """Whether it waits for its client, and so may be closed for another one."""
        return not self.ended and (self.exchange is None or self.exchange.is_idle or self.exchange.is_stuck)

    def is_overdue(self, now: float, limit_s: float) -> bool:
        """Whether it has taken too long for a header, a body, or to read what was sent."""
        if self.exchange is None or self.exchange.is_idle:
            return now > self.since + limit_s
        return self.exchange.is_stuck and now > self.since + PATIENCE * limit_s

    def end(self) -> None:
        """Make its transport, which owns the descriptor, find the end of the connection."""
        self.ended = True
        if self.exchange is not None:
            self.exchange.refuse()
        else:
            with suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket that accepts no more connections than its limits allow."""

    def __init__(self, family: int, kind: int, protocol: int, limits: Limits) -> None:
        super().__init__(family, kind, protocol)
        self._connections_max, self._request_s = bounded_by_descriptors(limits.connections_max), limits.request_s
        self._open: dict[int, Connection] = {}
        """descriptor -> connection"""

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.accept`. `BlockingIOError` also while there is no room; asyncio then asks again."""
        self._forget_closed()
        if len(self._open) >= self._connections_max:
            self._make_room()
        if len(self._open) >= self._connections_max + SLACK:
            raise BlockingIOError
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._make_room()
            raise BlockingIOError from None
        connection = Connection(accepted.family, accepted.type, accepted.proto, accepted.detach())
        connection.since = time.monotonic()
        self._open[connection.fileno()] = connection
        return connection, address

    def find(self, descriptor: int) -> Connection:
        """The open connection with this descriptor."""
        return self._open[descriptor]

    def sweep(self) -> None:
        """Close the connections that have taken too long."""
        now = time.monotonic()
        self._forget_closed()
        for connection in self._open.values():
            if connection.is_overdue(now, self._request_s):
                connection.end()

    def _make_room(self) -> None:
        """Close the connection that has waited longest for its client, if any waits."""
        waiting = [connection for connection in self._open.values() if connection.waits]
        if waiting:
            min(waiting, key=lambda connection: connection.since).end()

    def _forget_closed(self) -> None:
        self._open = {number: one for number, one in self._open.items() if one.fileno() == number}


def bounded_by_descriptors(connections_max: int) -> int:
    """`connections_max`, or fewer where the process may not have as many descriptors; one connection at least."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return connections_max
    return max(1, min(connections_max, descriptors - DESCRIPTORS_KEPT - SLACK))
