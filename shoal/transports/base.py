"""The contract of every transport: an ordered, partitioned log of records, and what opens one.

Positions belong to the reader and are in its checkpoint, so there is no commit. Reading from the
same positions gives the same records, for every reader and every time.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, repeat
from operator import sub
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar, overload, runtime_checkable

from shoal.config.base import Settings
from shoal.config.limits import DEFAULT_RECORD_BYTES_MAX
from shoal.errors import LogError, OffsetOutOfRange, SettingsError
from shoal.kernels.arrays import Indices
from shoal.telemetry.events import log_event

Headers = tuple[tuple[str, bytes], ...]
Entry = TypeVar("Entry")
Positions = dict[int, int]
"""partition -> next offset to read"""


class Record(NamedTuple):
    """One record of a log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """time at which it was appended, milliseconds since 1970; no algorithm uses it"""
    key: bytes | None
    value: bytes | None
    """content; None is a tombstone, which removes the key from the compacted view"""
    headers: Headers


class ListLike(Sequence[Entry]):
    """A sequence that equals any other one with the same entries; as a list, it has no hash."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # a type checker expects the method of `object`


class BytesColumn(ListLike[bytes]):
    """Contents of n records, one after the other in one block.

    Each is there as bytes too, made when it is needed.
    """

    def __init__(self, block: bytes, lengths: int | Sequence[int]) -> None:
        """`lengths`: of each content, or the one length of all of them, which is above 0."""
        self.block = block
        self.length: int | None = None
        """length of every content; None where they differ"""
        self._ends: Sequence[int]
        if isinstance(lengths, int):
            self.length = lengths
            self._ends = range(0, len(block) + 1, lengths)
        else:
            self._ends = [0, *accumulate(lengths)]

    @classmethod
    def of(cls, contents: Sequence[bytes]) -> BytesColumn:
        """Any contents in one block."""
        if isinstance(contents, BytesColumn):
            return contents
        lengths = list(map(len, contents))
        # Of one length no list of ends is kept: readings of one contract nearly always are.
        same = len(set(lengths)) == 1 and lengths[0] > 0
        return cls(b"".join(contents), lengths[0] if same else lengths)

    @property
    def lengths(self) -> list[int]:
        """The length of each content."""
        return list(map(sub, self._ends[1:], self._ends))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> BytesColumn: ...

    def __getitem__(self, place: int | slice) -> bytes | BytesColumn:
        if isinstance(place, slice):
            first, end, step = place.indices(len(self))
            if step != 1:
                return BytesColumn.of([self[position] for position in range(first, end, step)])
            ends = self._ends[first : max(first, end) + 1]
            # A slice of the block is one copy of bytes, whatever number of records it has.
            lengths = self.length or list(map(sub, ends[1:], ends))
            return BytesColumn(self.block[ends[0] : ends[-1]], lengths)
        place = range(len(self))[place]
        return self.block[self._ends[place] : self._ends[place + 1]]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.block.__getitem__, map(slice, self._ends, self._ends[1:]))


class RecordColumns(ListLike[Record]):
    """Records of one partition by column, n of them.

    Each is there as a `Record` too, made when it is asked for. Records whose headers differ in the
    last content alone have one form: `forms` has the headers of the first of each.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: tuple[
            Sequence[int], Sequence[int], Sequence[bytes | None], Sequence[bytes | None]
        ],
        forms: Sequence[Headers],
        form_of: Indices,
        last_contents: Sequence[bytes],
    ) -> None:
        """`columns`: offsets, times in ms, keys and values, (n,) each; `form_of` (n,): which of the
        forms."""
        self.topic = topic
        self.partition = partition
        self.offsets, self.timestamps_ms, self.keys, self.values = columns
        self.forms = forms
        self.form_of = form_of
        self.last_contents = last_contents

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> RecordColumns: ...

    def __getitem__(self, place: int | slice) -> Record | RecordColumns:
        if isinstance(place, slice):
            columns = (
                self.offsets[place],
                self.timestamps_ms[place],
                self.keys[place],
                self.values[place],
            )
            of_each = self.form_of[place], self.last_contents[place]
            return RecordColumns(self.topic, self.partition, columns, self.forms, *of_each)
        return Record(
            self.topic,
            self.partition,
            self.offsets[place],
            self.timestamps_ms[place],
            self.keys[place],
            self.values[place],
            self.headers_of(place),
        )

    def __iter__(self) -> Iterator[Record]:
        forms = self.forms
        # An empty column of last contents is one of no headers.
        last_contents = self.last_contents or repeat(b"")
        columns = zip(
            self.offsets,
            self.timestamps_ms,
            self.keys,
            self.values,
            self.form_of.tolist(),
            last_contents,
            strict=False,
        )
        for offset, timestamp_ms, key, value, form_number, last_content in columns:
            headers = _headers_of(forms[form_number], last_content)
            yield Record(self.topic, self.partition, offset, timestamp_ms, key, value, headers)

    def headers_of(self, place: int) -> Headers:
        """The headers of one record."""
        form: Headers = self.forms[self.form_of[place]]
        if not form:
            return form
        return _headers_of(form, self.last_contents[place])


def _headers_of(form: Headers, last_content: bytes) -> Headers:
    """Headers of a form, the last of them with this content."""
    # The same object for all records that have the same headers: to look it up is quick.
    if not form or form[-1][1] == last_content:
        return form
    return (*form[:-1], (form[-1][0], last_content))


class RecordBatch(NamedTuple):
    """Records without keys, n of them, whose headers differ in the last contents alone."""

    values: Sequence[bytes]
    headers: Headers
    """first headers of every record"""
    varying: Sequence[tuple[str, Sequence[bytes]]] = ()
    """further headers: the name, and its content (n) in each record"""

    def records(self) -> Iterator[tuple[bytes, Headers]]:
        """Value and headers of each record."""
        if not self.varying:
            for value in self.values:
                yield value, self.headers
            return
        names, columns = zip(*self.varying, strict=True)
        for value, contents in zip(self.values, zip(*columns, strict=True), strict=True):
            yield value, (*self.headers, *zip(names, contents, strict=True))


@dataclass(frozen=True)
class TopicSettings:
    """How a topic is kept.

    `Log.ensure` declares it; every later declaration of the same topic must agree.
    """

    partitions: int = 1
    compact: bool = False
    """whether only the newest record of each key is kept"""
    retain_bytes: int | None = None
    """bytes of keys, values and headers, per partition, above which the oldest records are dropped
    """
    retain_s: float | None = None
    """age in seconds above which records are dropped"""
    record_bytes_max: int = DEFAULT_RECORD_BYTES_MAX
    """the largest record (key + value + headers) accepted"""


@runtime_checkable
class Log(Protocol):
    """An ordered, partitioned log: records are published to topics and read back by position.

    Errors: `LogUnavailable` (a later try may succeed), `LogError` (no later try can),
    `OffsetOutOfRange` (retention has removed the records at the position).
    """

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """Create `topic`, or check that it exists with these settings; `LogError` names any
        difference."""
        ...

    def identity(self, topic: str) -> bytes:
        """16 bytes that identify `topic`; a topic that was deleted and created again has others."""
        ...

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Append one record. It is buffered, and stored for certain only after `flush`.

        Without a `partition`, its key decides (`partition_of`).
        """
        ...

    def flush(self, timeout_s: float = 30.0) -> None:
        """Return when everything published before is stored; raise if something could not be."""
        ...

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """Up to `limit` records from `at` on, and the positions to read from next.

        Waits up to `timeout_s` while there is none. Compaction leaves gaps in the offsets, so the
        next position is the one returned and not the last offset plus one. Partitions that `at`
        lacks are not read.
        """
        ...

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """partition -> (first offset kept, offset of the next record)."""
        ...

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        """Show in the log's own tools how far `reader` has read.

        It is for display and never read back, so a log that is unavailable raises no error.
        """
        ...

    def close(self) -> None:
        """Release everything; closing twice is allowed."""
        ...


class BatchLog(Log, Protocol):
    """A log that takes a whole batch in one call, which spares the work of one for each record.
    Optional for a log."""

    def publish_batch(self, topic: str, batch: RecordBatch, partition: int) -> None:
        """Append all records of the batch, in order, as `publish` of each one does."""
        ...


def publish_batch(log: Log, topic: str, batch: RecordBatch, partition: int) -> None:
    """Append all records of the batch to a log, in one call if it is a `BatchLog`. Raises as the
    log does."""
    # By attribute and not by type: a log of another package has the method or not.
    in_one_call = getattr(log, "publish_batch", None)
    if in_one_call is not None:
        in_one_call(topic, batch, partition)
        return
    for value, headers in batch.records():
        log.publish(topic, value, headers=headers, partition=partition)


def flush_unsynced(log: Log) -> None:
    """Flush so that every other process sees the records; a power cut may lose them until the log's
    next flush.

    A log without `flush_unsynced(timeout_s)` flushes as ever.
    """
    flush: Callable[[], None] = getattr(log, "flush_unsynced", log.flush)
    flush()


def show_renewal(log: Log, holder: str, count: int) -> bool:
    """Show other processes the renewal number `count` of a lease without a record; False where the
    log cannot.

    Optional for a log: one without `show_renewal(holder, count)` cannot. `holder` is the random
    name of the process that holds the lease. Raises as the log does.
    """
    show: Callable[[str, int], bool] | None = getattr(log, "show_renewal", None)
    return show is not None and show(holder, count)


def shown_renewal(log: Log, holder: str) -> int | None:
    """The number of the newest renewal that a holder has shown with `show_renewal`; None without
    one."""
    shown: Callable[[str], int | None] | None = getattr(log, "shown_renewal", None)
    if shown is None:
        return None
    return shown(holder)


class Transport:
    """One kind of log: an object that the entry-point group `shoal.transports` names by its address
    scheme."""

    name: str
    """scheme of its addresses and name of its entry point"""
    settings: type[Settings] = Settings
    """the keys it adds to [log] and [readings]: every field with a default and a description"""

    def check_installed(self, settings: Settings) -> None:
        """Raise `MissingExtra` unless everything that a log with these settings needs is installed.

        A process asks before it starts, so that a missing extra is one line and nothing else.
        """

    def open(self, location: str, settings: Settings) -> Log:
        """The log at `location`, the address without its scheme. `settings` is an instance of
        `self.settings`.

        Raises `SettingsError` for a location or settings that cannot be, and what the log's own
        opening raises.
        """
        raise NotImplementedError

    def open_to_read(self, location: str, settings: Settings) -> Log:
        """The log at `location` for a command that publishes nothing, and must not change it.

        A topic that is declared with `ensure` and is missing is not created: it has no records.
        Where reading changes nothing in any case, the log that `open` opens will do.
        """
        return self.open(location, settings)

    def resolve(self, location: str, file: Path) -> str:
        """The location with its relative paths made relative to the federation file; unchanged if
        it holds no path."""
        return location

    def servers(self, location: str) -> frozenset[str]:
        """The servers that keep the log, each by one name; none for a log on this machine.

        A federation's log and a client's readings must not share a server: raw readings would leave
        the client's site.
        """
        return frozenset()


def partition_of(key: bytes | None, partitions: int) -> int:
    """The partition of a key, the same in every log: all records of a key are in one order.

    CRC-32, like the `consistent` partitioner of librdkafka, so that clients in other languages find
    it too.
    """
    if key is None:
        return 0
    return zlib.crc32(key) % partitions


def beginning(log: Log, topic: str) -> Positions:
    """The positions of the oldest records kept."""
    return {partition: first for partition, (first, _) in log.bounds(topic).items()}


def first_positions(log: Log, topic: str) -> Positions:
    """The positions of the first records ever.

    A reader that begins there notices if retention has removed any.
    """
    # 0 and not the oldest that is kept, which would hide that records are gone.
    return dict.fromkeys(log.bounds(topic), 0)


def latest(
    log: Log, topic: str, on_unreadable: Callable[[Record], None] = lambda _: None
) -> dict[bytes, Record]:
    """The newest record of each key, without tombstones; records without a key are ignored.

    `on_unreadable` gets those that could not be read, whose keys are not known.
    """
    ends = {partition: end for partition, (_, end) in log.bounds(topic).items()}
    at = beginning(log, topic)
    newest: dict[bytes, Record] = {}
    # Up to the ends of the beginning: records that come meanwhile must not keep the caller here.
    while any(at[partition] < end for partition, end in ends.items()):
        records, at = log.read(topic, at)
        for record in records:
            if record.key is None:
                if UNREADABLE in dict(record.headers):
                    on_unreadable(record)
                continue
            if record.value is None:
                newest.pop(record.key, None)
            else:
                newest[record.key] = record
    return newest


PARTITIONS_MAX = 1024
LOG_RECORD_BYTES_MAX = 512 * 1024 * 1024
"""largest record that a topic may be declared with; SQLite stores rows of up to 1e9 bytes"""
RETAIN_BYTES_MAX = 2**62
"""most bytes of retention: they fit an integer of SQLite"""

BYTES_OR_NONE: Final = (bytes, type(None))
UNREADABLE = "unreadable"
"""header of a record that cannot be read; its value is left out"""
CODEC: Final = "codec"
"""header of such a record where only the library of its compression is not installed: its name"""
CODECS: Final = ("zstd", "snappy", "lz4", "gzip")
"""the compressions of Kafka"""


def check_settings(name: str, settings: TopicSettings) -> None:
    """Raises `SettingsError` for settings that no topic can have."""
    ranges = {
        "partitions": (settings.partitions, 1, PARTITIONS_MAX),
        "retain_bytes": (settings.retain_bytes, 1, RETAIN_BYTES_MAX),
        "retain_s": (settings.retain_s, 0, float("inf")),
        "record_bytes_max": (settings.record_bytes_max, 1, LOG_RECORD_BYTES_MAX),
    }
    for setting, (value, least, most) in ranges.items():
        if value is not None and not least <= value <= most:
            raise SettingsError(
                f"topic {name!r}: {setting} must be from {least} to {most}, not {value}"
            )


def differences(kept: TopicSettings, wanted: TopicSettings) -> str:
    """Each setting that differs, in one line; empty when there is none."""
    # All at once, so that a user mends a topic in one step.
    values_kept = asdict(kept)
    texts = []
    for setting, value in asdict(wanted).items():
        if values_kept[setting] != value:
            texts.append(f"{setting} is {values_kept[setting]}, not {value}")
    return ", ".join(texts)


def size_of(name: str, value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """Bytes of key, value and headers. Raises `LogError` for a part that is not bytes."""
    # Not bytearray: the caller could change it before it is stored.
    size = 0
    valid = isinstance(value, BYTES_OR_NONE) and isinstance(key, BYTES_OR_NONE)
    try:
        for title, content in headers:
            valid = valid and isinstance(title, str) and isinstance(content, bytes)
            # Nearly all are ASCII, for which the length is known without encoding.
            size += (len(title) if title.isascii() else len(title.encode())) + len(content)
    except (AttributeError, TypeError, ValueError) as error:
        raise LogError(
            f"topic {name!r}: headers must be pairs of text and bytes ({type(error).__name__})"
        ) from error
    if not valid:
        raise LogError(
            f"topic {name!r}: key and value must be bytes or None, headers pairs of text and bytes"
        )
    return size + len(key or b"") + len(value or b"")


def check_record(
    name: str, settings: TopicSettings, partition: int, key: bytes | None, size: int
) -> None:
    """Raises `LogError` for a record of `size` bytes that this topic does not take."""
    if not 0 <= partition < settings.partitions:
        raise LogError(
            f"topic {name!r} has partitions 0 to {settings.partitions - 1}, not {partition}"
        )
    # Compaction keeps the newest of each key: a record without one would stay for ever, or never.
    if settings.compact and key is None:
        raise LogError(f"topic {name!r} is compacted by key; give every record a key")
    if size > settings.record_bytes_max:
        raise LogError(
            f"topic {name!r} takes records up to {settings.record_bytes_max} bytes, this one has "
            f"{size}; send less at once, or declare the topic with a larger record_bytes_max"
        )


def read_next(
    log: Log,
    topic: str,
    at: Positions,
    limit: int,
    timeout_s: float,
    accept_gap: bool,
    on_gap: Callable[[int], None] = lambda _: None,
) -> tuple[Sequence[Record], Positions]:
    """Read as `Log.read` does; where records are gone, raise `OffsetOutOfRange` or skip the gap.

    A gap is skipped with `accept_gap`: it is logged, and `on_gap` called. `on_gap` gets the number
    of records that are gone.
    """
    while True:
        try:
            return log.read(topic, at, limit, timeout_s)
        except OffsetOutOfRange as gone:
            if not accept_gap:
                raise
            lost = gone.first - gone.asked
            log_event(
                "gap_accepted",
                logging.WARNING,
                topic=topic,
                partition=gone.partition,
                records_lost=lost,
            )
            # Only this partition is known to have a gap; the next read finds those of others.
            at = {**at, gone.partition: gone.first}
            on_gap(lost)
