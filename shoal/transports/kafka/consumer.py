"""Reading from Kafka: one consumer that uses `assign` and `seek` from the reader's own positions.

There is no consumer group, so nothing is ever rebalanced, and the same positions give the same records to every reader.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError, UnsupportedCodecError

from shoal.errors import LogError, LogUnavailable, OffsetOutOfRange
from shoal.transports.base import Headers, Positions, Record
from shoal.transports.kafka.client_configs import MIB
from shoal.transports.kafka.decompression import BatchTooLarge, batches_of, bound_decompression
from shoal.transports.kafka.errors import connect, kafka_errors
from shoal.transports.kafka.topics import Topics
from shoal.transports.limits import UNREADABLE

FETCH_BYTES = 4 * MIB
"""fetched ahead of the reader, per partition; a larger record is fetched all the same"""
FETCH_WAIT_S = 0.1
"""how long a broker delays an empty answer; a reader that changes its position meanwhile waits as long"""
FETCH_S = 30.0
"""how long records that are known to exist may take to arrive"""
CLOSE_S = 5.0
UNDECODABLE = (CorruptRecordError, UnicodeDecodeError, UnsupportedCodecError)


class LogReader:
    """One consumer, used for reads at any topic and position."""

    def __init__(self, where: str, client_config: dict[str, Any], topics: Topics) -> None:
        self._where, self._client_config, self._topics = where, client_config, topics
        self._client: Any = None
        bound_decompression()
        self._next: tuple[str, Positions] | None = None
        """the consumer's topic and positions; None when they are unknown"""

    def read(self, topic: str, at: Positions, limit: int, timeout_s: float) -> tuple[list[Record], Positions]:
        """See `Log.read`; `at` has partitions of this topic, one at least."""
        try:
            return self._read(topic, at, limit, timeout_s)
        except UNDECODABLE:
            self.close()  # its fetcher would fail at this record again and again
            return self._read_one(topic, at)

    def close(self) -> None:
        """Close the consumer; never raises."""
        client, self._client, self._next = self._client, None, None
        if client is not None:
            with suppress(KafkaError):
                client.close(autocommit=False, timeout_ms=int(1000 * CLOSE_S))

    def _read(self, topic: str, at: Positions, limit: int, timeout_s: float) -> tuple[list[Record], Positions]:
        with self._consumer() as consumer, batches_of(self._topics.get(topic).settings.record_bytes_max):
            if self._next != (topic, at):
                self._seek(consumer, topic, at)
            records, after = self._take(consumer, topic, at, limit, timeout_s)
        self._next = (topic, after)
        return records, dict(after)

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        """The consumer. Raises its errors inside as errors of shoal; after one, its positions are unknown."""
        if self._client is None:
            more = {
                # A position that retention has removed is an error, never a silent jump to what is left.
                "auto_offset_reset": "none",
                "enable_auto_commit": False,
                "allow_auto_create_topics": False,
                "max_partition_fetch_bytes": FETCH_BYTES,
                "fetch_max_wait_ms": int(1000 * FETCH_WAIT_S),
                "metrics_enabled": False,
            }
            self._client = connect(self._where, KafkaConsumer, self._client_config | more)
        try:
            with kafka_errors(self._where, but=UNDECODABLE):
                yield self._client
        except BaseException:
            self._next = None
            raise

    def _seek(self, consumer: Any, topic: str, at: Positions) -> None:
        self._check_positions(topic, at)
        consumer.assign([TopicPartition(topic, partition) for partition in at])
        for partition, position in at.items():
            consumer.seek(TopicPartition(topic, partition), position)

    def _check_positions(self, topic: str, at: Positions) -> None:
        for partition, (first, end) in self._topics.bounds(topic, at).items():
            if not 0 <= at[partition] <= end:
                raise LogError(
                    f"{topic}/{partition}: position {at[partition]} was asked for but the log ends at {end}; "
                    "is it another log than the one that was read before?"
                )
            if at[partition] < first:
                raise OffsetOutOfRange(topic, partition, at[partition], first)

    def _take(
        self, consumer: Any, topic: str, at: Positions, limit: int, timeout_s: float
    ) -> tuple[list[Record], Positions]:
        """Poll until records arrive; the result is empty only when the log has none from these positions on."""
        until = time.monotonic() + timeout_s + FETCH_S
        wait_s = timeout_s
        while True:
            records = self._poll(consumer, topic, at, limit, wait_s)
            after = {partition: consumer.position(TopicPartition(topic, partition)) for partition in at}
            if records or after != at:  # compaction leaves gaps, and there may be no record after the last gap
                return records, after
            ends = self._topics.ends(topic, at)
            if all(ends[partition] <= position for partition, position in at.items()):
                return [], at
            if time.monotonic() > until:
                raise LogUnavailable(f"{self._where}: records of {topic} did not arrive within {FETCH_S:.0f} s")
            wait_s = 1.0

    def _poll(self, consumer: Any, topic: str, at: Positions, limit: int, wait_s: float) -> list[Record]:
        try:
            fetched = consumer.poll(timeout_ms=math.ceil(1000 * wait_s), max_records=limit)
        except OffsetOutOfRangeError:
            self._check_positions(topic, at)
            raise
        return [_record(one) for records in fetched.values() for one in records]

    def _read_one(self, topic: str, at: Positions) -> tuple[list[Record], Positions]:
        """One record, from the first partition that has any; at least one partition begins with an undecodable record.

        Such a record has a header name that is not UTF-8, a compression that is not installed, or is in a batch that
        grows beyond what its topic accepts. Every writer can send
        one, and a reader that stopped at it could be stopped by any writer. Other records of its batch may be
        undecodable too.
        """
        ends = self._topics.ends(topic, at)
        for partition, position in at.items():
            if position >= ends[partition]:
                continue
            try:
                records, after = self._read(topic, {partition: position}, 1, 0.0)
            except UNDECODABLE as error:
                self.close()
                why: Headers = ((UNREADABLE, type(error).__name__.encode()),)
                if isinstance(error, BatchTooLarge):
                    why += (("packed_bytes", str(error.packed).encode()), ("packed_sha256", error.sha256.encode()))
                return [Record(topic, partition, position, 0, None, None, why)], at | {partition: position + 1}
            return records, at | after
        raise LogUnavailable(f"{self._where}: records of {topic} disappeared while they were read")


def _record(one: Any) -> Record:
    headers = tuple((name, content or b"") for name, content in one.headers)
    return Record(one.topic, one.partition, one.offset, one.timestamp, one.key, one.value, headers)
