"""Writing to Kafka: bounded in memory, in order, with a new producer after any failure."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from shoal.errors import LogUnavailable
from shoal.transports.base import Headers
from shoal.transports.kafka.client_configs import BATCH_BYTES, CONNECT_S
from shoal.transports.kafka.errors import connect, kafka_errors, to_shoal_error

IN_FLIGHT_RECORD_BYTES = 512
"""memory of a record in flight besides its own bytes"""
REQUEST_BYTES_MAX = 90 * 1024 * 1024
"""below the brokers' socket.request.max.bytes; the limit of each topic is checked before"""
DELIVERY_S = 120.0
CLOSE_S = 5.0


class InFlight:
    """Bounds the bytes that are published and not yet stored; the library itself accepts any number."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    def acquire(self, size: int, timeout_s: float) -> bool:
        """Wait for room for `size` bytes; False if there was none in time. A single record always has room."""
        with self._changed:
            room = self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= self._bytes_max, timeout_s)
            self._bytes += size if room else 0
            return room

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, timeout_s)

    def release(self, size: int) -> None:
        """Free `size` bytes: they are stored, or lost."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()


class LogWriter:
    """An idempotent producer, replaced by a new one after any failure.

    A producer that failed once is not used again: a record that the broker rejects as too large makes all later sends
    fail, and records that timed out could still be stored late. What was in flight may be stored or not; the caller
    gets the error and publishes it again.
    """

    def __init__(self, where: str, client_config: dict[str, Any], compression: str, bytes_max: int) -> None:
        self._where, self._client_config, self._bytes_max = where, client_config, bytes_max
        self._compression = None if compression == "none" else compression
        self._producer: Any = None
        self._in_flight = InFlight(bytes_max)
        self._failure: BaseException | None = None
        self.unsure = False
        """whether anything was published since the last flush"""

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers, size: int
    ) -> None:
        """Send one record; blocks while too much is in flight. Raises as `flush` does, for a record not accepted."""
        if self._failure is not None:
            self._fail(self._failure)
        weight = size + IN_FLIGHT_RECORD_BYTES
        producer = self._connected()
        in_flight = self._in_flight
        if not in_flight.acquire(weight, CONNECT_S):
            self._discard()
            raise LogUnavailable(
                f"{self._where}: more than {self._bytes_max} bytes wait to be stored; is a broker unavailable?"
            )
        self.unsure = True
        try:
            with kafka_errors(self._where):
                stored = producer.send(topic, value, key, list(headers), partition)
        except BaseException:
            in_flight.release(weight)
            raise
        stored.add_callback(lambda _: in_flight.release(weight))
        stored.add_errback(lambda error: self._on_error(error, producer, in_flight, weight))

    def flush(self, timeout_s: float) -> None:
        """Return when everything sent is stored, else raise `LogUnavailable` or `LogError`."""
        # Not the library's flush: it waits this long for each batch anew.
        if not self._in_flight.wait_until_empty(timeout_s) and self._failure is None:
            self._discard()
            raise LogUnavailable(f"{self._where}: not stored within {timeout_s:.0f} s; is a broker unavailable?")
        if self._failure is not None:
            self._fail(self._failure)
        self.unsure = False

    def close(self) -> None:
        """Discard at once what is still in flight."""
        self._discard()

    def _on_error(self, error: BaseException, producer: Any, in_flight: InFlight, weight: int) -> None:
        # Set before the bytes are released, so that a flush cannot miss it. A discarded producer fails for everything
        # it still held; that is ignored.
        if producer is self._producer and self._failure is None:
            self._failure = error
        in_flight.release(weight)

    def _fail(self, error: BaseException) -> None:
        self._discard()
        raise to_shoal_error(error, self._where) from error

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        self._failure, self.unsure = None, False
        self._in_flight = InFlight(self._bytes_max)
        if producer is not None:
            _close_producer(producer)

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
            self._producer = connect(self._where, KafkaProducer, self._client_config | more)
        return self._producer


def _close_producer(producer: Any) -> None:
    try:
        producer.close(timeout=0 if producer._accumulator.has_incomplete else CLOSE_S)
    except KafkaError:
        # Closing waits for an unavailable broker, times out, and leaves the sender running: discarded records could be
        # stored later. So the sender is closed by force.
        producer._sender.force_close()
        with suppress(KafkaError):
            producer.close(timeout=CLOSE_S)
