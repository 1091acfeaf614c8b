"""The one contract every transport keeps: an ordered, partitioned log of records.

Positions belong to the reader and live in the reader's checkpoint, so there is no commit here. A log
that was read from the same positions gives the same records, whoever reads and however often.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from shoal.config.limits import DEFAULT_RECORD_BYTES_MAX

Headers = tuple[tuple[str, bytes], ...]
Positions = dict[int, int]
"""partition -> next offset to read"""


class Record(NamedTuple):
    """One record as it stands in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """when it was appended, milliseconds since 1970 (never used by an algorithm)"""
    key: bytes | None
    value: bytes | None
    """`None` is a tombstone: the key is gone from the compacted view"""
    headers: Headers


@dataclass(frozen=True)
class TopicSettings:
    """How a topic is kept. Declared once, by `Log.ensure`; another declaration of the same topic must agree."""

    partitions: int = 1
    compact: bool = False
    """keep only the newest record of each key"""
    retain_bytes: int | None = None
    """drop the oldest records above this many bytes of keys, values and headers, per partition"""
    retain_s: float | None = None
    """drop records older than this many seconds"""
    record_bytes_max: int = DEFAULT_RECORD_BYTES_MAX
    """the largest record (key + value + headers) accepted"""


@runtime_checkable
class Log(Protocol):
    """A place to publish records and to read them back by position.

    Errors: `LogUnavailable` (try again later), `LogError` (will never be accepted), `OffsetOutOfRange`
    (retention has passed the position).
    """

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """Create `topic`, or check that it exists with these settings; `LogError` names any difference."""
        ...

    def identity(self, topic: str) -> bytes:
        """16 bytes that name this creation of `topic`; a topic made again after deletion has others."""
        ...

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Append one record, buffered; it is stored for certain only after `flush`.

        Without a `partition` it goes where its key belongs (`partition_of`).
        """
        ...

    def flush(self, timeout_s: float = 30.0) -> None:
        """Return when everything published before is stored; raise if anything was not."""
        ...

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """Up to `limit` records from `at` on, and the positions to read from next.

        Waits up to `timeout_s` while there is nothing. Offsets may have gaps (compaction), so the next
        position is the log's word, not the last offset plus one. Partitions missing from `at` are not read.
        """
        ...

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """partition -> (first offset kept, offset the next record will get)."""
        ...

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        """Let the log's own tools see how far `reader` has come.

        For people to look at: nobody reads it back, and as nothing depends on it, it never raises for a log that is
        away.
        """
        ...

    def close(self) -> None:
        """Let go of everything; closing twice is harmless."""
        ...


def partition_of(key: bytes | None, partitions: int) -> int:
    """Where a key belongs, the same for every log and for ever: all records of a key are in one order.

    CRC-32, as librdkafka's `consistent` partitioner has it, so that others can find the place too.
    """
    return 0 if key is None else zlib.crc32(key) % partitions


def beginning(log: Log, topic: str) -> Positions:
    """The positions of the oldest records kept."""
    return {partition: first for partition, (first, _) in log.bounds(topic).items()}


def latest(log: Log, topic: str) -> dict[bytes, Record]:
    """The compacted view: the newest record of each key, tombstones left out. Records without a key do not count."""
    ends = {partition: end for partition, (_, end) in log.bounds(topic).items()}
    at = beginning(log, topic)
    newest: dict[bytes, Record] = {}
    while any(at[partition] < end for partition, end in ends.items()):
        records, at = log.read(topic, at)
        for record in records:
            if record.key is None:
                continue
            if record.value is None:
                newest.pop(record.key, None)
            else:
                newest[record.key] = record
    return newest
