"""The web server: uvicorn in a background thread, with `start` and `stop`."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
from pathlib import Path
from typing import NamedTuple

import uvicorn
from starlette.applications import Starlette

from server_node.web.connections import DEFAULT_LIMITS, Limits, Listener, TimedProtocol, WithoutMalformed
from shoal.config.sections import is_loopback
from shoal.errors import SettingsError

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
        """The settings of its connections: TLS 1.2 and later. Raises `SettingsError` for files that cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except OSError as unusable:
            raise SettingsError(
                f"[server] certificate_file {self.certificate} and key_file {self.key} cannot be used "
                f"({unusable.strerror or unusable}); name PEM files that belong together, the key without a password"
            ) from None
        return context


class WebServer:
    """Serves an application of `create_app` from a background thread; signals stay with the main thread."""

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
        self._app, self._host, self._port = app, host, port
        self._tls, self._limits, self._needs_token = tls, limits, needs_token
        self._server: uvicorn.Server | None = None
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

    def start(self) -> int:
        """Listen and serve; returns the port, which is a free one if the port given was 0.

        Raises `SettingsError` if the address or the certificate cannot be used.
        """
        if self._server is not None:
            raise RuntimeError("a web server starts once only; create a new one")
        context = None if self._tls is None else self._tls.context()
        listening = _listening_socket(self._host, self._port, self._limits)
        self._port = int(listening.getsockname()[1])
        config = uvicorn.Config(
            self._app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=TASKS_GRACE_S,
        )
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
                    f"the web server on {self._host} port {self._port} stopped during its start; see the log"
                )
        return self._port

    def stop(self) -> None:
        """End open event streams, give responses in progress a moment to finish, and stop. May be called again."""
        if self._server is None or self._thread is None:
            return
        self._app.state.closing.set()
        self._server.should_exit = True
        self._thread.join(STOP_GRACE_S)
        # A client that does not read its response would keep the thread alive, so its connection is closed.
        for connection in list(self._server.server_state.connections):
            connection.loop.call_soon_threadsafe(connection.transport.abort)
        self._thread.join(STOP_GRACE_S / 2)
        self._server.force_exit = True
        self._thread.join()


class SweepingServer(uvicorn.Server):
    """A server that looks ten times a second for connections that have taken too long."""

    def __init__(self, config: uvicorn.Config, listener: Listener) -> None:
        super().__init__(config)
        self._listener = listener

    async def on_tick(self, counter: int) -> bool:
        """See `uvicorn.Server.on_tick`."""
        self._listener.sweep()
        return await super().on_tick(counter)


def _listening_socket(host: str, port: int, limits: Limits) -> Listener:
    """A socket that listens on the address. Raises `SettingsError`."""
    if not 0 <= port <= 65535:
        raise SettingsError(f"the web page cannot be served on port {port}; choose one from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise SettingsError(f"no address {host!r} to serve the web page on; use 127.0.0.1 or 0.0.0.0") from None
    listening = Listener(family, kind, protocol, limits)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except (OSError, OverflowError) as refused:
        listening.close()
        raise SettingsError(f"the web page cannot be served on {host} port {port}: {_reason(refused)}") from None
    return listening


def _reason(refused: Exception) -> str:
    if isinstance(refused, OSError) and refused.errno == errno.EADDRINUSE:
        return "the port is in use; stop what uses it, or choose another by [server] port (0: any free one)"
    if isinstance(refused, OSError) and refused.errno == errno.EACCES:
        return "ports below 1024 need special rights; choose another"
    return f"{refused}; choose another"
