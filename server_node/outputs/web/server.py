"""The web server: uvicorn in a background thread, and its limits: connections, the time of each,
requests per address.

uvicorn accepts as many connections as there are descriptors and waits for a request for ever; its
documentation leaves both to a proxy. The server of a federation must live without one. So its
socket accepts a limited number, and a connection that waits too long for a request is closed: to
make room for a new one, or when its time is over.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from shoal.config.sections import is_loopback
from shoal.errors import SettingsError
from shoal.server_node.outputs.web.responses import problem
from shoal.telemetry.events import log_event

SLACK = 16
"""connections above the most, while those that are closed for them have not been closed yet"""
DESCRIPTORS_KEPT = 48
"""descriptors that the rest of the process needs: the log, the checkpoint, and what they open for a
moment"""
PATIENCE = 3
"""multiple of the time of a header that a body may take, and a client that does not read"""
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
        """Whether every request has been answered; the rest of the body of an answered one does not
        count."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for the rest of a body, or for the client to read."""
        ...

    def refuse(self) -> None:
        """Close the connection; a client whose request is not answered yet gets the status 408."""
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
        return not self.ended and (
            self.exchange is None or self.exchange.is_idle or self.exchange.is_stuck
        )

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
            # The other end may have closed it already.
            with suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket that accepts no more connections than its limits allow."""

    def __init__(self, family: int, kind: int, protocol: int, limits: Limits) -> None:
        super().__init__(family, kind, protocol)
        self._connections_max = bounded_by_descriptors(limits.connections_max)
        self._request_s = limits.request_s
        self._open: dict[int, Connection] = {}
        """descriptor -> connection"""
        self.on_accept: Callable[[], None] = lambda: None
        """called in the thread of the server for each connection that is accepted"""

    @property
    def has_connections(self) -> bool:
        """Whether there may be open connections; one that has just closed counts until the next
        `sweep`."""
        return bool(self._open)

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.accept`. `BlockingIOError` also while there is no room; asyncio then asks
        again."""
        self._forget_closed()
        if len(self._open) >= self._connections_max:
            self._make_room()
        # What `_make_room` has ended is closed only when the loop comes to it, so for a moment
        # there are more.
        if len(self._open) >= self._connections_max + SLACK:
            raise BlockingIOError
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._make_room()
            # After the error itself asyncio would accept nothing for a second.
            raise BlockingIOError from None
        # `detach`, as the descriptor now belongs to this object: the first one would close it when
        # it is collected.
        connection = Connection(accepted.family, accepted.type, accepted.proto, accepted.detach())
        connection.since = time.monotonic()
        self._open[connection.fileno()] = connection
        self.on_accept()
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
        # A connection whose request is being answered stays: only what waits for its client gives
        # way.
        waiting = [connection for connection in self._open.values() if connection.waits]
        # The longest wait is the least likely to end: a slow attacker gives way before a new
        # reader.
        if waiting:
            min(waiting, key=lambda connection: connection.since).end()

    def _forget_closed(self) -> None:
        self._open = {
            number: subscriber
            for number, subscriber in self._open.items()
            # A closed socket has the number -1; a new one may have the number that it had.
            if subscriber.fileno() == number
        }


def bounded_by_descriptors(connections_max: int) -> int:
    """`connections_max`, or fewer where the process may not have as many descriptors; one
    connection at least."""
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

    def connection_made(  # type: ignore[override]  # uvicorn narrows it, too
        self, transport: asyncio.Transport
    ) -> None:
        """The connection is open, after its TLS handshake if it has one."""
        super().connection_made(transport)
        self._connection: Connection = self.listener.find(
            transport.get_extra_info("socket").fileno()
        )
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
        # A client that does not read would never take the rest: only an abort ends it.
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
        self._paused = True
        self._connection.since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has read again."""
        self._paused = False
        self._connection.since = time.monotonic()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP."""
        address = self.client[0] if self.client else ""
        log_event("request_malformed", logging.WARNING, address=address)
        super().send_400_response(msg)


class WithoutMalformed(logging.Filter):
    """Leaves out uvicorn's own lines about malformed requests, which `TimedProtocol` logs as
    events."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.getMessage() not in (
            "Invalid HTTP request received.",
            "Unsupported upgrade request.",
        )


UNLIMITED = ("/livez", "/readyz")
"""paths of health checks"""
BURST = 2.0
"""seconds of the rate that one address may use at once"""
ADDRESSES_MAX = 4096
"""addresses that are remembered: those seen last"""
LOG_S = 60.0
"""seconds between two lines of the log about one address"""


class RateLimit:
    """Answers 429 to an address that sends more than `per_s` requests a second. `clock` is
    monotonic, seconds."""

    def __init__(
        self, app: ASGIApp, per_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._per_s = per_s
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """address -> (requests it may send at once, when that was counted)"""
        self._logged: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or scope["path"] in UNLIMITED
            or self._per_s <= 0
            or not scope["client"]
        ):
            await self._app(scope, receive, send)
            return
        address = network_of(scope["client"][0])
        wait_s = self.take(address)
        if wait_s == 0:
            await self._app(scope, receive, send)
            return
        self._log(address)
        error = (
            f"more than {self._per_s:g} requests a second from your address; wait and send fewer"
        )
        await problem(429, error, {"retry-after": str(math.ceil(wait_s))})(scope, receive, send)

    def take(self, address: str) -> float:
        """Count one request of this address; 0 if it may be answered, else the seconds until the
        next one may."""
        now = self._clock()
        full = max(1.0, BURST * self._per_s)
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
    # Addresses of version 4 in the form of version 6 are in one network of 64 bits, all of them.
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return address


STOP_GRACE_S = 0.5
"""seconds that a response in progress has once the server stops, before its connection is closed"""
TASKS_GRACE_S = 10
"""seconds after which uvicorn cancels requests and logs an error; `stop` ends them much sooner"""

_uvicorn_log = logging.getLogger("uvicorn.error")
_WITHOUT_MALFORMED = WithoutMalformed()


class TlsFiles(NamedTuple):
    """Files with which a server proves its name (PEM)."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """The settings of its connections: TLS 1.2 and later. Raises `SettingsError` for files that
        cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # With a password at hand, though it is empty: OpenSSL would ask for one at the
            # terminal, and a service would wait for ever.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except OSError as unusable:
            raise SettingsError(
                f"[server] certificate_file {self.certificate} and key_file {self.key} cannot be "
                f"used ({unusable.strerror or unusable}); name PEM files that belong together, the "
                "key without a password"
            ) from None
        return context


class WebServer:
    """Serves an application of `create_app` from a background thread; signals stay with the main
    thread."""

    def __init__(
        self,
        app: Starlette,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: TlsFiles | None = None,
        limits: Limits = DEFAULT_LIMITS,
        *,
        needs_token: bool = False,
    ) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._tls = tls
        self._limits = limits
        self._needs_token = needs_token
        self._server: SweepingServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address of the page, once the server has started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self._port}/"

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach the page, and need no token."""
        return not self._needs_token and not is_loopback(self._host)

    def start(self, *, or_any_port: bool = False) -> int:
        """Listen and serve; returns the port, which is a free one if the port given was 0.

        `or_any_port`: a free one as well where another process has the port. Raises `SettingsError`
        if the address or the certificate cannot be used, `PortInUse` if another process has the
        port.
        """
        if self._server is not None:
            raise RuntimeError("a web server starts once only; create a new one")
        context = None if self._tls is None else self._tls.context()
        try:
            listening = _listening_socket(self._host, self._port, self._limits)
        except PortInUse:
            if not or_any_port:
                raise
            listening = _listening_socket(self._host, 0, self._limits)
        self._port = int(listening.getsockname()[1])
        config = uvicorn.Config(
            self._app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            # uvicorn would otherwise give its loggers handlers of their own, beside those of the
            # events.
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            # The address is that of the connection: what a request says of itself may be anything.
            proxy_headers=False,
            timeout_graceful_shutdown=TASKS_GRACE_S,
        )
        # Loaded before the settings below are set, as loading would replace them.
        config.load()
        config.ssl = context
        config.http_protocol_class = type("Protocol", (TimedProtocol,), {"listener": listening})
        _uvicorn_log.addFilter(_WITHOUT_MALFORMED)  # once only, however often it is called
        self._server = SweepingServer(config, listening)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name=f"web:{self._port}", daemon=True
        )
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.005)
            if not self._thread.is_alive():
                raise SettingsError(
                    f"the web server on {self._host} port {self._port} stopped during its start; "
                    "see the log"
                )
        return self._port

    def stop(self) -> None:
        """End open event streams, give responses in progress a moment to finish, and stop. May be
        called again."""
        if self._server is None or self._thread is None:
            return
        self._app.state.closing.set()
        self._server.request_exit()
        self._thread.join(STOP_GRACE_S)
        # A client that does not read its response would keep the thread alive, so its connection is
        # closed.
        for connection in list(self._server.server_state.connections):
            connection.loop.call_soon_threadsafe(connection.transport.abort)
        self._thread.join(STOP_GRACE_S / 2)
        self._server.force_exit = True
        self._thread.join()


TICK_S = 0.1
"""seconds between two looks for connections that have taken too long, as long as there are any"""
IDLE_TICK_S = 60.0
"""seconds between two looks without connections: one that is accepted wakes the server"""
TICKS_MAX = 864_000
"""uvicorn counts this many ticks, a day's, and begins again"""


class SweepingServer(uvicorn.Server):
    """A server that looks ten times a second for connections that have taken too long, and rests
    while there are none."""

    def __init__(self, config: uvicorn.Config, listener: Listener) -> None:
        super().__init__(config)
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        listener.on_accept = self._woken.set

    async def main_loop(self) -> None:
        """See `uvicorn.Server.main_loop`, which wakes ten times a second at any time."""
        # Before the first look at `should_exit`, so that `request_exit` is never missed.
        self._loop = asyncio.get_running_loop()
        counter = 0
        while not await self.on_tick(counter):
            if self._listener.has_connections:
                await asyncio.sleep(TICK_S)
                counter = (counter + 1) % TICKS_MAX
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), IDLE_TICK_S)
            self._woken.clear()
            # uvicorn renews the date in its headers at every tenth tick, and at this one.
            counter = 0

    def request_exit(self) -> None:
        """Make it stop soon. For any thread."""
        self.should_exit = True
        if self._loop is not None:
            # It may have ended by itself.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._woken.set)

    async def on_tick(self, counter: int) -> bool:
        """See `uvicorn.Server.on_tick`."""
        self._listener.sweep()
        return await super().on_tick(counter)


class PortInUse(SettingsError):
    """Another process listens on the port of the page."""


def _listening_socket(host: str, port: int, limits: Limits) -> Listener:
    """A socket that listens on the address. Raises `SettingsError`."""
    if not 0 <= port <= 65535:
        raise SettingsError(
            f"the web page cannot be served on port {port}; choose one from 0 to 65535"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise SettingsError(
            f"no address {host!r} to serve the web page on; use 127.0.0.1 or 0.0.0.0"
        ) from None
    listening = Listener(family, kind, protocol, limits)
    try:
        # Connections of a server that was stopped keep its port for a minute, in which it could not
        # start again.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except (OSError, OverflowError) as refused:
        listening.close()
        in_use = isinstance(refused, OSError) and refused.errno == errno.EADDRINUSE
        kind_of_error = PortInUse if in_use else SettingsError
        raise kind_of_error(
            f"the web page cannot be served on {host} port {port}: {_reason(refused)}"
        ) from None
    return listening


def _reason(refused: Exception) -> str:
    if isinstance(refused, OSError) and refused.errno == errno.EADDRINUSE:
        return (
            "the port is in use; stop what uses it, or choose another by [server] port "
            "(0: any free one)"
        )
    if isinstance(refused, OSError) and refused.errno == errno.EACCES:
        return "ports below 1024 need special rights; choose another"
    return f"{refused}; choose another"
