"""One partition of a changelog on Kafka: a compacted topic with the newest value of each key.

One process at a time writes a partition. To open it fences the writer before, by the epoch of its
transactional id: whatever that one, paused or cut off, still has under way is never committed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError

from shoal.config.limits import DEFAULT_RECORD_BYTES_MAX
from shoal.errors import InvalidState, LogUnavailable, PartitionLost
from shoal.transports.base import TopicSettings
from shoal.transports.kafka.connection import (
    BATCH_BYTES,
    CONNECT_S,
    FRAME_BYTES,
    MIB,
    client_config,
    connect,
    kafka_errors,
)
from shoal.transports.kafka.settings import KafkaSettings, check_compression, servers_of

TRANSACTION_S: Final = 60.0
"""seconds after which the brokers abort a transaction whose process has died"""
CLOSE_S: Final = 5.0
ARRIVE_S: Final = 30.0
"""wait for records that the brokers say are there"""
IN_FLIGHT_BYTES: Final = 16 * MIB
"""bytes after which a commit waits until they are stored: the library itself has no bound"""
VALUE_BYTES_MAX: Final = DEFAULT_RECORD_BYTES_MAX - 64 * 1024
"""largest value with its key"""


def changelog_settings(partitions: int) -> TopicSettings:
    """How a changelog is kept: the newest record of each key, for ever."""
    return TopicSettings(partitions=partitions, compact=True)


class PartitionChangelog:
    """A partition of a changelog, for its one writer. It connects when it is opened.

    Raises as `KafkaLog` does, and `PartitionLost` where a commit has failed, by another writer or
    by an outage: then this object is of no more use, and what was to be committed counts for
    nothing or for all.
    """

    def __init__(self, place: str, settings: KafkaSettings, topic: str, partition: int) -> None:
        """`topic`: it is there, as `changelog_settings` says."""
        servers = servers_of(place)
        check_compression(settings)
        self._where = f"kafka://{','.join(servers)}"
        self._client_config = client_config(servers, settings)
        self._compression = None if settings.compression == "none" else settings.compression
        self._topic = topic
        self._partition = partition
        self._producer: Any = None
        self._has_failed = False

    def open(self) -> None:
        """Become the writer: the one before can commit nothing more from now on."""
        more = {
            "transactional_id": f"{self._topic}.{self._partition}",
            "transaction_timeout_ms": int(1000 * TRANSACTION_S),
            "acks": "all",
            "batch_size": BATCH_BYTES,
            "compression_type": self._compression,
            "max_request_size": DEFAULT_RECORD_BYTES_MAX + FRAME_BYTES,
            "max_block_ms": int(1000 * CONNECT_S),
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
        }
        self._producer = connect(self._where, KafkaProducer, self._client_config | more)
        with kafka_errors(self._where):
            self._producer.init_transactions()

    def read(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Key and value of every committed record, from the first to the newest; None for a
        tombstone.

        A key may come several times; its last record counts. Only after `open`, by which nothing
        more comes.
        """
        assert self._producer is not None, "another writer could still add to it"
        place = TopicPartition(self._topic, self._partition)
        more = {
            "isolation_level": "read_committed",
            "auto_offset_reset": "none",
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
            "max_partition_fetch_bytes": IN_FLIGHT_BYTES,
            "metrics_enabled": False,
        }
        first = self._offset(place, OffsetSpec.EARLIEST)
        end = self._offset(place, OffsetSpec.LATEST)
        consumer = connect(self._where, KafkaConsumer, self._client_config | more)
        try:
            with kafka_errors(self._where):
                consumer.assign([place])
                consumer.seek(place, first)
                waits_until = time.monotonic() + ARRIVE_S
                # By position: the newest places may be markers of transactions, which are no
                # records.
                while consumer.position(place) < end:
                    before = consumer.position(place)
                    fetched = consumer.poll(timeout_ms=500)
                    for record in fetched.get(place, ()):
                        if record.key is not None:
                            yield record.key, record.value
                    now = time.monotonic()
                    if consumer.position(place) > before:
                        waits_until = now + ARRIVE_S
                    elif now > waits_until:
                        raise LogUnavailable(
                            f"{self._where}: records of {self._topic}/{self._partition} did not"
                            f" arrive within {ARRIVE_S:.0f} s"
                        )
        finally:
            with suppress(KafkaError):
                consumer.close(autocommit=False, timeout_ms=int(1000 * CLOSE_S))

    def commit(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write all of these in one transaction: all of them count once this returns.

        None for a tombstone. Raises `InvalidState` for a value that is too large.
        """
        if self._has_failed:
            raise self._lost("an earlier commit has failed")
        for key, value in changes.items():
            if len(key) + len(value or b"") > VALUE_BYTES_MAX:
                raise InvalidState(
                    f"a part of a client's state has {len(value or b'')} bytes, and a changelog"
                    f" takes {VALUE_BYTES_MAX}: bound the models, with the option nodes_max or"
                    " window_readings for instance"
                )
        size = 0
        try:
            self._producer.begin_transaction()
            for key, value in changes.items():
                self._producer.send(self._topic, value, key, None, self._partition)
                size += len(key) + len(value or b"")
                if size > IN_FLIGHT_BYTES:
                    self._producer.flush()
                    size = 0
            self._producer.commit_transaction()
        except KafkaError as error:
            # Whether it was committed is not known, and another writer may be at work: only to open
            # it anew, and to read what is there, tells.
            self._has_failed = True
            raise self._lost(type(error).__name__) from error

    def close(self) -> None:
        """Give it up; never raises."""
        producer = self._producer
        self._producer = None
        if producer is not None:
            with suppress(KafkaError):
                producer.close(timeout=CLOSE_S)

    def _lost(self, why: str) -> PartitionLost:
        return PartitionLost(
            f"{self._topic}/{self._partition}: this process writes it no more ({why})"
        )

    def _offset(self, place: Any, which: OffsetSpec) -> int:
        # By the administration, whose end is that of all records: the consumer's own, for
        # committed reads, is before a transaction that is still open.
        admin = connect(self._where, KafkaAdminClient, self._client_config)
        try:
            with kafka_errors(self._where):
                answer = admin.list_partition_offsets(
                    {place: which}, timeout_ms=math.ceil(1000 * CONNECT_S)
                )
            return int(answer[place].offset)
        finally:
            with suppress(KafkaError):
                admin.close()
