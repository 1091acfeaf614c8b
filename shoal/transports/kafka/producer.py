"""The writing end of the Kafka log: bounded, in order, and made anew after any failure."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from shoal.errors import LogUnavailable
from shoal.transports.base import Headers
from shoal.transports.kafka.client_configs import BATCH_BYTES, CONNECT_S
from shoal.transports.kafka.errors import connect, explained, ours

IN_FLIGHT_RECORD_BYTES = 512
"""what a record on its way weighs in memory besides its own bytes"""
REQUEST_BYTES_MAX = 90 * 1024 * 1024
"""Each topic has a limit of its own, which is checked before; this is for the brokers' socket.request.max.bytes"""
DELIVERY_S = 120.0
CLOSE_S = 5.0


class InFlight:
    """Counts the bytes that are published and not yet stored. The library itself would take any number."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    def take(self, size: int, timeout_s: float) -> bool:
        """Wait for room; False if there was none in time. One record always has room."""
        with self._changed:
            room = self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= self._bytes_max, timeout_s)
            self._bytes += size if room else 0
            return room

    def run_dry(self, timeout_s: float) -> bool:
        """Wait until nothing is on its way; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, timeout_s)

    def give(self, size: int) -> None:
        """These bytes are stored, or lost."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()


class Writer:
    """One idempotent producer and its successors.

    A producer that failed once is not used again: a record that the broker refuses as too large ends it for good, and
    one that was given up on could still arrive late. What was on its way then may be stored or not; the caller, who
    is told, publishes it again.
    """

    def __init__(self, where: str, reach: dict[str, Any], compression: str, bytes_max: int) -> None:
        self._where, self._reach, self._bytes_max = where, reach, bytes_max
        self._compression = None if compression == "none" else compression
        self._producer: Any = None
        self._in_flight = InFlight(bytes_max)
        self._failure: BaseException | None = None
        self.unsure = False
        """whether anything was published since the last flush"""

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers, size: int
    ) -> None:
        """Hand one record over; blocks while too much is on its way. Raises as `flush` does; it was not taken then."""
        if self._failure is not None:
            self._give_up(self._failure)
        weight = size + IN_FLIGHT_RECORD_BYTES
        producer = self._connected()
        in_flight = self._in_flight
        if not in_flight.take(weight, CONNECT_S):
            self._drop()
            raise LogUnavailable(
                f"{self._where}: more than {self._bytes_max} bytes wait to be stored; is a broker away?"
            )
        self.unsure = True
        try:
            with explained(self._where):
                stored = producer.send(topic, value, key, list(headers), partition)
        except BaseException:
            in_flight.give(weight)
            raise
        stored.add_callback(lambda _: in_flight.give(weight))
        stored.add_errback(lambda error: self._failed(error, producer, in_flight, weight))

    def flush(self, timeout_s: float) -> None:
        """Return when everything sent is stored, else raise `LogUnavailable` or `LogError`."""
        # Not the library's flush: it waits this long for each batch anew.
        if not self._in_flight.run_dry(timeout_s) and self._failure is None:
            self._drop()
            raise LogUnavailable(f"{self._where}: not stored within {timeout_s:.0f} s; is a broker away?")
        if self._failure is not None:
            self._give_up(self._failure)
        self.unsure = False

    def close(self) -> None:
        """Let go at once of whatever is still on its way."""
        self._drop()

    def _failed(self, error: BaseException, producer: Any, in_flight: InFlight, weight: int) -> None:
        # Noted before it counts as done, so that a flush cannot miss it. A producer that was dropped fails for
        # everything it still held; nobody waits for that any more.
        if producer is self._producer and self._failure is None:
            self._failure = error
        in_flight.give(weight)

    def _give_up(self, error: BaseException) -> None:
        self._drop()
        raise ours(error, self._where) from error

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        self._failure, self.unsure = None, False
        self._in_flight = InFlight(self._bytes_max)
        if producer is not None:
            _end(producer)

    def _connected(self) -> Any:
        if self._producer is None:
            more = {
                "acks": "all",
                "enable_idempotence": True,
                "batch_size": BATCH_BYTES,
                "compression_type": self._compression,
                "max_request_size": REQUEST_BYTES_MAX,
                "max_block_ms": int(1000 * CONNECT_S),
                "delivery_timeout_ms": int(1000 * DELIVERY_S),
                "allow_auto_create_topics": False,
                "metrics_enabled": False,
            }
            self._producer = connect(self._where, KafkaProducer, self._reach | more)
        return self._producer


def _end(producer: Any) -> None:
    try:
        producer.close(timeout=0 if producer._accumulator.has_incomplete else CLOSE_S)
    except KafkaError:
        # Closing waits for a broker that is away, says that it waited in vain, and leaves everything running: what
        # was given up would still be stored some day. Its sender has to be told itself.
        producer._sender.force_close()
        with suppress(KafkaError):
            producer.close(timeout=CLOSE_S)
