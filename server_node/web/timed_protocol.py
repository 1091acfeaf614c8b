"""uvicorn's protocol for HTTP/1.1, which knows since when it waits, and logs one line for a request that is no HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from server_node.web.connections import Connection, Listener
from shoal.telemetry.events import log_event

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
