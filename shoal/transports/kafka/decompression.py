"""Bounds what a compressed batch of records can grow to while it is read.

A few kilobytes on the wire can become gigabytes: zeros shrink a thousandfold. kafka-python decompresses a batch as a
whole and has no limit, so its decoders are replaced by ones that stop at the largest batch that a writer of the topic
can have sent. A batch beyond it is undecodable to the reader (`shoal.transports.kafka.consumer`): the values of its
records are left out, and the length and the digest of what travelled are kept.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from kafka import codec
from kafka.errors import CorruptRecordError
from kafka.record import default_records, legacy_records

from shoal.config.limits import COPY_BYTES, RECORD_BYTES_MAX
from shoal.transports.kafka.client_configs import FRAME_BYTES

BATCH_BYTES_MAX: Final = RECORD_BYTES_MAX + COPY_BYTES + FRAME_BYTES
"""of a batch, decompressed, where the topic has no smaller limit: the largest record of any topic"""

Decode = Callable[[Any], bytes]
_limit: ContextVar[int] = ContextVar("batch_bytes_max", default=BATCH_BYTES_MAX)


class BatchTooLarge(CorruptRecordError):  # type: ignore[misc]  # kafka-python has no types
    """A compressed batch that grows beyond the limit. `packed` is its length as it travelled, `sha256` its digest."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(f"a compressed batch of more than {_limit.get()} bytes")
        self.packed = len(payload)
        self.sha256 = hashlib.sha256(payload).hexdigest()


@contextmanager
def batches_of(record_bytes_max: int) -> Iterator[None]:
    """Inside, no batch is decompressed beyond what a topic with records of so many bytes accepts uncompressed."""
    token = _limit.set(record_bytes_max + FRAME_BYTES)
    try:
        yield
    finally:
        _limit.reset(token)


def bound_decompression() -> None:
    """Replace the decoders of kafka-python, in this process, by bounded ones. Once or more often."""
    for module in (default_records, legacy_records):
        for name, decode in DECODERS.items():
            if hasattr(module, name):
                setattr(module, name, decode)


def gunzip(payload: Any) -> bytes:
    """gzip, of one member or several. Raises `CorruptRecordError`."""
    packed = left = bytes(payload)
    parts, size, most = [], 0, _limit.get()
    while left:
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(left, most - size + 1))
        except zlib.error as damaged:
            raise CorruptRecordError(f"gzip: {damaged}") from None
        size += len(parts[-1])
        if size > most:
            raise BatchTooLarge(packed)
        if not member.eof:
            raise CorruptRecordError("gzip: it ends too early")
        left = member.unused_data
    return b"".join(parts)


def unlz4(payload: Any) -> bytes:
    """An lz4 frame. Raises `CorruptRecordError`."""
    from lz4.frame import LZ4FrameDecompressor  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

    frame = LZ4FrameDecompressor()
    try:
        unpacked: bytes = frame.decompress(bytes(payload), max_length=_limit.get() + 1)
    except RuntimeError as damaged:
        raise CorruptRecordError(f"lz4: {damaged}") from None
    if len(unpacked) > _limit.get():
        raise BatchTooLarge(bytes(payload))
    return unpacked


def unzstd(payload: Any) -> bytes:
    """zstd frames. Raises `CorruptRecordError`."""
    with codec.zstd.ZstdDecompressor().stream_reader(bytes(payload), read_across_frames=True) as reader:
        unpacked: bytes = reader.read(_limit.get() + 1)
    if len(unpacked) > _limit.get():
        raise BatchTooLarge(bytes(payload))
    return unpacked


def unsnappy(payload: Any) -> bytes:
    """Snappy, in blocks or as a whole: each begins with the size that it unpacks to. Raises `CorruptRecordError`."""
    packed, size = bytes(payload), 0
    blocks = list(_blocks(packed)) if packed.startswith(_XERIAL) else [packed]
    for block in blocks:
        size += _varint(block)
    if size > _limit.get():
        raise BatchTooLarge(packed)
    unpacked: bytes = codec.snappy_decode(packed)
    return unpacked


_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16


def _blocks(packed: bytes) -> list[bytes]:
    found, at = [], _XERIAL_HEADER_BYTES
    while at + 4 <= len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        found.append(packed[at + 4 : at + 4 + size])
        at += 4 + size
    return found


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
