"""Reading from Kafka: one consumer that uses `assign` and `seek` from the reader's own positions.

There is no consumer group, so nothing is ever rebalanced, and the same positions give the same
records to every reader.

A compressed batch has a bound. A few kilobytes on the wire can become gigabytes: zeros shrink a
thousandfold. kafka-python decompresses a batch as a whole and has no limit, so its decoders are
replaced by ones that stop at the largest batch that a writer of the topic can have sent. A batch
beyond it is undecodable: the values of its records are left out, and the length and the digest of
what travelled are kept.
"""

from __future__ import annotations

import hashlib
import math
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition, codec
from kafka.errors import (
    CorruptRecordError,
    KafkaError,
    OffsetOutOfRangeError,
    UnsupportedCodecError,
)
from kafka.record import default_records, legacy_records

from shoal.config.limits import COPY_BYTES, RECORD_BYTES_MAX
from shoal.errors import LogError, LogUnavailable, MissingCodec, OffsetOutOfRange
from shoal.transports.base import CODEC, CODECS, UNREADABLE, Headers, Positions, Record
from shoal.transports.kafka.connection import FRAME_BYTES, MIB, connect, kafka_errors
from shoal.transports.kafka.topics import Topics

BATCH_BYTES_MAX: Final = RECORD_BYTES_MAX + COPY_BYTES + FRAME_BYTES
"""largest batch, decompressed, where the topic has no smaller limit: the largest record of any
topic"""

Decode = Callable[[Any], bytes]
_limit: ContextVar[int] = ContextVar("batch_bytes_max", default=BATCH_BYTES_MAX)


class BatchTooLarge(CorruptRecordError):  # type: ignore[misc]  # kafka-python has no types
    """A compressed batch that grows beyond the limit. `packed` is its length as it travelled,
    `sha256` its digest."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(f"a compressed batch of more than {_limit.get()} bytes")
        self.packed = len(payload)
        self.sha256 = hashlib.sha256(payload).hexdigest()


@contextmanager
def batches_of(record_bytes_max: int) -> Iterator[None]:
    """Decompress no batch within the context beyond what a topic with records of this size accepts
    uncompressed."""
    token = _limit.set(record_bytes_max + FRAME_BYTES)
    try:
        yield
    finally:
        _limit.reset(token)


def bound_decompression() -> None:
    """Replace the decoders of kafka-python, in this process, by bounded ones.

    Once or more often: a few bytes of a record may inflate to gigabytes, and every writer can send
    one.
    """
    for module in (default_records, legacy_records):
        for name, decode in DECODERS.items():
            if hasattr(module, name):
                setattr(module, name, decode)


def gunzip(payload: Any) -> bytes:
    """Decompress gzip, of one member or several. Raises `CorruptRecordError`."""
    packed = bytes(payload)
    remaining = packed
    parts = []
    size = 0
    bytes_max = _limit.get()
    while remaining:
        member = zlib.decompressobj(wbits=31)
        try:
            # One more than may be: reaching it shows that there is too much.
            parts.append(member.decompress(remaining, bytes_max - size + 1))
        except zlib.error as damaged:
            raise CorruptRecordError(f"gzip: {damaged}") from None
        size += len(parts[-1])
        if size > bytes_max:
            raise BatchTooLarge(packed)
        if not member.eof:
            raise CorruptRecordError("gzip: it ends too early")
        remaining = member.unused_data
    return b"".join(parts)


def unlz4(payload: Any) -> bytes:
    """Decompress an lz4 frame. Raises `CorruptRecordError`."""
    from lz4.frame import (  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
        LZ4FrameDecompressor,
    )

    frame = LZ4FrameDecompressor()
    try:
        unpacked: bytes = frame.decompress(bytes(payload), max_length=_limit.get() + 1)
    except RuntimeError as damaged:
        raise CorruptRecordError(f"lz4: {damaged}") from None
    if len(unpacked) > _limit.get():
        raise BatchTooLarge(bytes(payload))
    return unpacked


def unzstd(payload: Any) -> bytes:
    """Decompress zstd frames. Raises `CorruptRecordError`."""
    with codec.zstd.ZstdDecompressor().stream_reader(
        bytes(payload), read_across_frames=True
    ) as reader:
        unpacked: bytes = reader.read(_limit.get() + 1)
    if len(unpacked) > _limit.get():
        raise BatchTooLarge(bytes(payload))
    return unpacked


def unsnappy(payload: Any) -> bytes:
    """Decompress Snappy, in blocks or as a whole: each begins with its unpacked size.

    Raises `CorruptRecordError`.
    """
    packed = bytes(payload)
    size = 0
    blocks = [packed]
    if packed.startswith(_XERIAL):
        blocks = _blocks(packed)
    for block in blocks:
        size += _varint(block)
    if size > _limit.get():
        raise BatchTooLarge(packed)
    unpacked: bytes = codec.snappy_decode(packed)
    return unpacked


_XERIAL: Final = b"\x82SNAPPY\x00"
# A magic of 8 bytes and two version numbers of 4, as snappy-java writes them.
_XERIAL_HEADER_BYTES: Final = 16


def _blocks(packed: bytes) -> list[bytes]:
    blocks = []
    at = _XERIAL_HEADER_BYTES
    while at + 4 <= len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        blocks.append(packed[at + 4 : at + 4 + size])
        at += 4 + size
    return blocks


def _varint(block: bytes) -> int:
    """The number at the start of a snappy block: the size that it unpacks to."""
    number = 0
    for place, byte in enumerate(block[:5]):
        number |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            break
    return number


DECODERS: Final[dict[str, Decode]] = {
    "gzip_decode": gunzip,
    "lz4_decode": unlz4,
    "zstd_decode": unzstd,
    "snappy_decode": unsnappy,
}


def _codec_of(error: UnsupportedCodecError) -> str:
    """The name of the codec in the library's message."""
    words = str(error).split()
    return next((name for name in CODECS if name in words), "unknown")


def check_codec(record: Record) -> None:
    """Raise `MissingCodec` for a record that lacks its value only because a library is missing
    here.

    A topic of somebody else is read so: what is lacking here must not cost a reading. In shoal's
    own topics every writer of the federation could stop all readers that way.
    """
    headers = dict(record.headers)
    if record.value is None and UNREADABLE in headers and CODEC in headers:
        raise MissingCodec(record.topic, headers[CODEC].decode())


FETCH_BYTES = 4 * MIB
"""bytes fetched ahead of the reader, per partition; a larger record is fetched all the same"""
FETCH_WAIT_S = 0.1
"""seconds by which a broker delays an empty answer; a reader that changes its position meanwhile
waits as long"""
FETCH_S = 30.0
"""seconds that records which exist may take to arrive"""
# Nothing is committed at the end, so a broker that does not answer is not waited for.
CONSUMER_CLOSE_S = 5.0
UNDECODABLE = (CorruptRecordError, UnicodeDecodeError, UnsupportedCodecError)


class LogReader:
    """One consumer, used for reads at any topic and position."""

    def __init__(self, where: str, client_config: dict[str, Any], topics: Topics) -> None:
        self._where = where
        self._client_config = client_config
        self._topics = topics
        self._client: Any = None
        bound_decompression()
        self._next: tuple[str, Positions] | None = None
        """the consumer's topic and positions; None when they are unknown"""

    def read(
        self, topic: str, at: Positions, limit: int, timeout_s: float
    ) -> tuple[list[Record], Positions]:
        """See `Log.read`; `at` has partitions of this topic, one at least."""
        try:
            return self._read(topic, at, limit, timeout_s)
        except UNDECODABLE:
            self.close()  # its fetcher would fail at this record again and again
            return self._read_one(topic, at)

    def close(self) -> None:
        """Close the consumer; never raises."""
        client = self._client
        self._client = None
        self._next = None
        if client is not None:
            # What it would tell the broker counts for nothing: positions are in checkpoints.
            with suppress(KafkaError):
                client.close(autocommit=False, timeout_ms=int(1000 * CONSUMER_CLOSE_S))

    def _read(
        self, topic: str, at: Positions, limit: int, timeout_s: float
    ) -> tuple[list[Record], Positions]:
        with (
            self._consumer() as consumer,
            batches_of(self._topics.get(topic).settings.record_bytes_max),
        ):
            if self._next != (topic, at):
                self._seek(consumer, topic, at)
            records, after = self._take(consumer, topic, at, limit, timeout_s)
        self._next = (topic, after)
        return records, dict(after)

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        """The consumer. Raises its errors inside as errors of shoal; after one, its positions are
        unknown."""
        if self._client is None:
            more = {
                # A position that retention has removed is an error, never a silent jump to what is
                # left.
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
                    f"{topic}/{partition}: position {at[partition]} was asked for but the log "
                    f"ends at {end}; is it another log than the one that was read before?"
                )
            if at[partition] < first:
                raise OffsetOutOfRange(topic, partition, at[partition], first)

    def _take(
        self, consumer: Any, topic: str, at: Positions, limit: int, timeout_s: float
    ) -> tuple[list[Record], Positions]:
        """Poll until records arrive; the result is empty only when the log has none from these
        positions on."""
        until = time.monotonic() + timeout_s + FETCH_S
        wait_s = timeout_s
        while True:
            records = self._poll(consumer, topic, at, limit, wait_s)
            after = {
                partition: consumer.position(TopicPartition(topic, partition)) for partition in at
            }
            # compaction leaves gaps, and there may be no record after the last gap
            if records or after != at:
                return records, after
            ends = self._topics.ends(topic, at)
            if all(ends[partition] <= position for partition, position in at.items()):
                return [], at
            if time.monotonic() > until:
                raise LogUnavailable(
                    f"{self._where}: records of {topic} did not arrive within {FETCH_S:.0f} s"
                )
            wait_s = 1.0

    def _poll(
        self, consumer: Any, topic: str, at: Positions, limit: int, wait_s: float
    ) -> list[Record]:
        try:
            fetched = consumer.poll(timeout_ms=math.ceil(1000 * wait_s), max_records=limit)
        except OffsetOutOfRangeError:
            self._check_positions(topic, at)
            raise
        records: list[Record] = []
        for fetched_records in fetched.values():
            records += map(_record, fetched_records)
        return records

    def _read_one(self, topic: str, at: Positions) -> tuple[list[Record], Positions]:
        """One record, from the first partition that has any; at least one partition begins with an
        undecodable record.

        Such a record has a header name that is not UTF-8, a compression that is not installed, or
        is in a batch that grows beyond what its topic accepts. Every writer can send one, and a
        reader that stopped at it could be stopped by any writer. Other records of its batch may be
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
                if isinstance(error, UnsupportedCodecError):
                    why += ((CODEC, _codec_of(error).encode()),)
                if isinstance(error, BatchTooLarge):
                    why += (
                        ("packed_bytes", str(error.packed).encode()),
                        ("packed_sha256", error.sha256.encode()),
                    )
                return [Record(topic, partition, position, 0, None, None, why)], at | {
                    partition: position + 1
                }
            return records, at | after
        raise LogUnavailable(f"{self._where}: records of {topic} disappeared while they were read")


def _record(fetched: Any) -> Record:
    # Kafka has headers without a content, and we have none.
    headers = tuple((name, content or b"") for name, content in fetched.headers)
    return Record(
        fetched.topic,
        fetched.partition,
        fetched.offset,
        fetched.timestamp,
        fetched.key,
        fetched.value,
        headers,
    )
