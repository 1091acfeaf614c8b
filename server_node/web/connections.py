"""The limits of the web server: how many connections there may be, how long each may take, and requests per address.

uvicorn accepts as many connections as there are descriptors and waits for a request for ever; its documentation leaves
both to a proxy. The server of a federation must live without one. So its socket accepts a limited number, and a
connection that waits too long for a request is closed: to make room for a new one, or when its time is over.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any, ClassVar, NamedTuple, Protocol

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from server_node.web.responses import problem
from shoal.telemetry.events import log_event

SLACK = 16
"""connections above the most, while those that are closed for them have not been closed yet"""
DESCRIPTORS_KEPT = 48
"""descriptors that the rest of the process needs: the log, the checkpoint, and what they open for a moment"""
PATIENCE = 3
"""how many times as long as a header a body may take, and a client that does not read"""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Limits(NamedTuple):
    """Limits of what others may ask of the web server; see [server]."""

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
    """time at which it was accepted, or its newest request or response began to wait; monotonic"""
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
        # A connection whose request is being answered stays: only what waits for its client gives way.
        waiting = [connection for connection in self._open.values() if connection.waits]
        # The longest wait is the least likely to end: a slow attacker gives way before a new reader.
        if waiting:
            min(waiting, key=lambda connection: connection.since).end()

    def _forget_closed(self) -> None:
        self._open = {number: one for number, one in self._open.items() if one.fileno() == number}


def bounded_by_descriptors(connections_max: int) -> int:
    """`connections_max`, or fewer where the process may not have as many descriptors; one connection at least."""
    try:
        import resource  # noqa: PLC0415 - Windows has none, and no such limit
    except ImportError:
        return connections_max
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return connections_max
    return max(1, min(connections_max, descriptors - DESCRIPTORS_KEPT - SLACK))


TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class TimedProtocol(H11Protocol):
    """One connection, and its `Exchange`. A subclass for each server names its `listener`."""

    listener: ClassVar[Listener]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        """The connection is open, after its TLS handshake if it has one."""
        super().connection_made(transport)
        self._connection: Connection = self.listener.find(transport.get_extra_info("socket").fileno())
        self._cycle_seen: Any = None
        self._paused = False
        self._connection.exchange = self

    @property
    def is_idle(self) -> bool:
        """See `Exchange.is_idle`."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_stuck(self) -> bool:
        """See `Exchange.is_stuck`."""
        return self._paused or (self.cycle is not None and self.cycle.more_body)

    def refuse(self) -> None:
        """See `Exchange.refuse`."""
        if self.transport.is_closing():
            return
        if self._paused:
            self.transport.abort()
            return
        if (self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]) or not self.is_idle:
            self.transport.write(TOO_SLOW)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        super().data_received(data)
        if self.cycle is not self._cycle_seen:
            self._cycle_seen = self.cycle
            self._connection.since = time.monotonic()

    def on_response_complete(self) -> None:
        """The connection waits for the next request."""
        self._connection.since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read as fast as the server writes."""
        self._paused, self._connection.since = True, time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has read again."""
        self._paused, self._connection.since = False, time.monotonic()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP."""
        address = self.client[0] if self.client else ""
        log_event("request_malformed", logging.WARNING, address=address)
        super().send_400_response(msg)


class WithoutMalformed(logging.Filter):
    """Leaves out uvicorn's own lines about malformed requests, which `TimedProtocol` logs as events."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.getMessage() not in ("Invalid HTTP request received.", "Unsupported upgrade request.")


UNLIMITED = ("/livez", "/readyz")
"""paths of health checks"""
BURST = 2.0
"""seconds of the rate that one address may use at once"""
ADDRESSES_MAX = 4096
"""addresses that are remembered: those seen last"""
LOG_S = 60.0
"""seconds between two lines of the log about one address"""


class RateLimit:
    """Answers 429 to an address that sends more than `per_s` requests a second. `clock` is monotonic, seconds."""

    def __init__(self, app: ASGIApp, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._per_s, self._clock = app, per_s, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """address -> (requests it may send at once, when that was counted)"""
        self._logged: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNLIMITED or self._per_s <= 0 or not scope["client"]:
            await self._app(scope, receive, send)
            return
        address = network_of(scope["client"][0])
        wait_s = self.take(address)
        if wait_s == 0:
            await self._app(scope, receive, send)
            return
        self._log(address)
        error = f"more than {self._per_s:g} requests a second from your address; wait and send fewer"
        await problem(429, error, {"retry-after": str(math.ceil(wait_s))})(scope, receive, send)

    def take(self, address: str) -> float:
        """Count one request of this address; 0 if it may be answered, else the seconds until the next one may."""
        now, full = self._clock(), max(1.0, BURST * self._per_s)
        left, counted_at = self._buckets.get(address, (full, now))
        # The bucket has filled since then, up to its size.
        left = min(full, left + (now - counted_at) * self._per_s)
        allowed = left >= 1
        self._buckets[address] = (left - allowed, now)
        self._buckets.move_to_end(address)
        while len(self._buckets) > ADDRESSES_MAX:
            gone, _ = self._buckets.popitem(last=False)
            self._logged.pop(gone, None)
        return 0.0 if allowed else (1 - left) / self._per_s

    def _log(self, address: str) -> None:
        now = self._clock()
        if now >= self._logged.get(address, -math.inf) + LOG_S:
            self._logged[address] = now
            log_event("requests_limited", logging.WARNING, address=address)


def network_of(address: str) -> str:
    """The address, or for version 6 its network of 64 bits, which one client has as a whole."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return address
