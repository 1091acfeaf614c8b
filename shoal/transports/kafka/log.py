"""The log on Kafka, by kafka-python. It joins no consumer group: positions belong to the reader.

Writing is bounded in memory, in order, and uses a new producer after any failure.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from shoal.errors import LogError, LogUnavailable
from shoal.transports.base import (
    Headers,
    Positions,
    Record,
    TopicSettings,
    check_record,
    check_settings,
    partition_of,
    size_of,
)
from shoal.transports.kafka.connection import (
    BATCH_BYTES,
    CONNECT_S,
    MIB,
    client_config,
    connect,
    kafka_errors,
    to_shoal_error,
)
from shoal.transports.kafka.consumer import LogReader
from shoal.transports.kafka.settings import KafkaSettings, check_compression, servers_of
from shoal.transports.kafka.topics import Topics

IN_FLIGHT_RECORD_BYTES = 512
"""memory of a record in flight besides its own bytes"""
REQUEST_BYTES_MAX = 90 * 1024 * 1024
"""largest request, below the brokers' socket.request.max.bytes; the limit of each topic is checked
before"""
DELIVERY_S = 120.0
PRODUCER_CLOSE_S = 5.0


class InFlight:
    """Bounds the bytes that are published and not yet stored; the library itself accepts any
    number."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    def acquire(self, size: int, timeout_s: float) -> bool:
        """Wait for room for `size` bytes; False if there was none in time. A single record always
        has room."""
        with self._changed:
            room = self._changed.wait_for(
                lambda: not self._bytes or self._bytes + size <= self._bytes_max, timeout_s
            )
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

    A producer that failed once is not used again: a record that the broker rejects as too large
    makes all later sends fail, and records that timed out could still be stored late. What was in
    flight may be stored or not; the caller gets the error and publishes it again.
    """

    def __init__(
        self, where: str, client_config: dict[str, Any], compression: str, bytes_max: int
    ) -> None:
        self._where = where
        self._client_config = client_config
        self._bytes_max = bytes_max
        self._compression = None if compression == "none" else compression
        self._producer: Any = None
        self._in_flight = InFlight(bytes_max)
        self._failure: BaseException | None = None
        self.unsure = False
        """whether anything was published since the last flush"""

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        size: int,
    ) -> None:
        """Send one record; blocks while too much is in flight. Raises as `flush` does, for a record
        not accepted."""
        if self._failure is not None:
            self._fail(self._failure)
        weight = size + IN_FLIGHT_RECORD_BYTES
        producer = self._connected()
        in_flight = self._in_flight
        if not in_flight.acquire(weight, CONNECT_S):
            self._discard()
            raise LogUnavailable(
                f"{self._where}: more than {self._bytes_max} bytes wait to be stored; is a broker "
                "unavailable?"
            )
        self.unsure = True
        try:
            with kafka_errors(self._where):
                stored = producer.send(topic, value, key, list(headers), partition)
        # A record that was not accepted never comes to a callback, and would hold its room for
        # ever.
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
            raise LogUnavailable(
                f"{self._where}: not stored within {timeout_s:.0f} s; is a broker unavailable?"
            )
        if self._failure is not None:
            self._fail(self._failure)
        self.unsure = False

    def close(self) -> None:
        """Discard at once what is still in flight."""
        self._discard()

    def _on_error(
        self, error: BaseException, producer: Any, in_flight: InFlight, weight: int
    ) -> None:
        # Set before the bytes are released, so that a flush cannot miss it. A discarded producer
        # fails for everything it still held; that is ignored.
        if producer is self._producer and self._failure is None:
            self._failure = error
        in_flight.release(weight)

    def _fail(self, error: BaseException) -> None:
        self._discard()
        raise to_shoal_error(error, self._where) from error

    def _discard(self) -> None:
        producer = self._producer
        self._producer = None
        self._failure = None
        self.unsure = False
        self._in_flight = InFlight(self._bytes_max)
        if producer is not None:
            _close_producer(producer)

    def _connected(self) -> Any:
        if self._producer is None:
            more = {
                # By all replicas in sync: a flush promises that the loss of one broker loses no
                # record.
                "acks": "all",
                # A request that the library repeats must store no record twice, nor two in another
                # order.
                "enable_idempotence": True,
                "batch_size": BATCH_BYTES,
                "compression_type": self._compression,
                "max_request_size": REQUEST_BYTES_MAX,
                "max_block_ms": int(1000 * CONNECT_S),
                "delivery_timeout_ms": int(1000 * DELIVERY_S),
                # A topic that a broker makes by itself has other settings than the declared ones.
                "allow_auto_create_topics": False,
                "metrics_enabled": False,
            }
            self._producer = connect(self._where, KafkaProducer, self._client_config | more)
        return self._producer


def _close_producer(producer: Any) -> None:
    try:
        producer.close(timeout=0 if producer._accumulator.has_incomplete else PRODUCER_CLOSE_S)
    except KafkaError:
        # Closing waits for an unavailable broker, times out, and leaves the sender running:
        # discarded records could be stored later. So the sender is closed by force.
        producer._sender.force_close()
        with suppress(KafkaError):
            producer.close(timeout=PRODUCER_CLOSE_S)


IN_FLIGHT_BYTES_MAX = 64 * MIB
CLOSE_S = 10.0


class KafkaLog:
    """`Log` on the brokers `//host:port,host:port`. One object per thread. It connects when it is
    first used.

    `in_flight_bytes_max` bounds what is published and not yet stored: beyond it `publish` waits,
    and then raises `LogUnavailable`. After an error of `publish` or `flush`, what was published
    since the last flush may be stored or not: publish it again; readers drop repetitions.

    Raises `SettingsError` (address, files of secrets), `MissingExtra`; later `LogUnavailable`
    (brokers unavailable), `LogError` (a wrong secret, an unknown certificate, an access rule, and
    as `Log` describes).
    """

    def __init__(
        self,
        place: str,
        settings: KafkaSettings | None = None,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> None:
        settings = settings or KafkaSettings()
        servers = servers_of(place)
        check_compression(settings)
        self._where = f"kafka://{','.join(servers)}"
        config = client_config(servers, settings)
        self._topics = Topics(self._where, config, settings.replication)
        self._writer = LogWriter(self._where, config, settings.compression, in_flight_bytes_max)
        self._reader = LogReader(self._where, config, self._topics)
        self._closed = False

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """See `Log.ensure`. `SettingsError` if impossible."""
        self._check_open()
        check_settings(topic, settings or TopicSettings())
        self._topics.ensure(topic, settings)

    def identity(self, topic: str) -> bytes:
        """See `Log.identity`; the topic id of Kafka. `LogError` when it has changed since this log
        was opened."""
        self._check_open()
        return self._topics.identity(topic)

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Log.publish`."""
        self._check_open()
        settings = self._topics.get(topic).settings
        size = size_of(topic, value, key, headers)
        if partition is None:
            partition = partition_of(key, settings.partitions)
        check_record(topic, settings, partition, key, size)
        if value is None and key is None:
            raise LogError(
                f"topic {topic!r}: a record without a value is a tombstone, and needs the key it "
                "is for"
            )
        self._writer.send(topic, partition, value, key, headers, size)

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`."""
        self._check_open()
        self._writer.flush(timeout_s)

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[list[Record], Positions]:
        """See `Log.read`. A record that cannot be decoded comes without a value, with the header
        `unreadable`."""
        self._check_open()
        if limit < 1:
            raise LogError(f"a read of {limit} records was asked for; limit must be 1 or more")
        at = {int(partition): int(position) for partition, position in at.items()}
        partitions = self._topics.get(topic).settings.partitions
        for partition in at:
            if not 0 <= partition < partitions:
                raise LogError(
                    f"topic {topic!r} has partitions 0 to {partitions - 1}, not {partition}"
                )
        if not at:
            return [], {}
        return self._reader.read(topic, at, limit, timeout_s)

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """See `Log.bounds`."""
        self._check_open()
        self._topics.check_partitions(topic)
        partitions = range(self._topics.get(topic).settings.partitions)
        return self._topics.bounds(topic, partitions)

    def cluster(self) -> str:
        """The id of the brokers' cluster, the same for every address they are reached by."""
        self._check_open()
        return self._topics.cluster()

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        """See `Log.show_progress`: committed to the consumer group `reader`, where tools look for
        lag."""
        self._check_open()
        self._topics.show_progress(reader, topic, at)

    def close(self) -> None:
        """Flush and close. Raises only if records published since the last flush are lost."""
        if self._closed:
            return
        try:
            if self._writer.unsure:
                self._writer.flush(CLOSE_S)
        finally:
            self._closed = True
            self._writer.close()
            self._reader.close()
            with suppress(KafkaError):
                self._topics.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LogError(f"{self._where}: this log was closed; open it again")
