"""What travels: readings (on the client's own premises), updates and snapshots, in a versioned envelope.

The headers carry type and version, so that a reader can refuse before decoding. A message that cannot
be true cannot be built: the same checks run where it is made and again where it is received.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shoal.config.contract import NAME_PATTERN
from shoal.errors import MessageRejected
from shoal.protocol.codec import pack, unpack
from shoal.transports.base import Headers, Positions

VERSION = 1
"""of the envelope; a reader refuses any other before decoding"""
RECORD_BYTES_MAX = 32 * 1024 * 1024
"""of a record with its key and headers; updates are cut to less (`shoal.protocol.chunking`)"""
MESSAGE_BYTES_MAX = RECORD_BYTES_MAX - 64 * 1024
PARTS_MAX = 4096
MESSAGE_ITEMS_MAX = 16_384
"""values a message is made of; the largest honest one lists an epsilon or a number for each of 4096 features"""
COUNT_MAX = 2**53
MOMENT_MAX = 253_402_300_799
"""seconds from 1970 to the end of the year 9999, which calendars end with; a clock in milliseconds lies beyond it"""
ORIGINAL_HEADERS_BYTES_MAX = 64 * 1024
"""how much of a refused message's headers is kept with it"""
REASONS = (
    "type",
    "version",
    "oversized",
    "malformed",
    "federation",
    "contract",
    "model",
    "privacy",
    "arrays",
    "not_finite",
    "bounds",
    "sequence",
    "parts",
    "signature",
)
"""every word `MessageRejected.reason` can be: a closed set, fit for a metric label"""


@dataclass(frozen=True)
class Envelope:
    """What every message has in common. Subclasses add fields; `_check` refuses what cannot be true."""

    TYPE: ClassVar[str] = ""

    def encode(self) -> bytes:
        """The value of the record. Raises `MessageRejected` ("oversized"): what nobody could receive is not sent."""
        value = pack({part.name: getattr(self, part.name) for part in fields(self)})
        if len(value) > MESSAGE_BYTES_MAX:
            detail = f"{len(value)} bytes to send, at most {MESSAGE_BYTES_MAX} travel; let its model keep fewer nodes"
            raise MessageRejected("oversized", detail)
        return value

    @classmethod
    def headers(cls) -> Headers:
        """The headers of the record."""
        return (("type", cls.TYPE.encode()), ("v", str(VERSION).encode()))

    @classmethod
    def decode(cls, value: bytes | None, headers: Headers) -> Self:
        """Raises `MessageRejected` with one of `REASONS`; names that a newer sender added are ignored."""
        _check_headers(cls.TYPE, headers)
        if value is None:
            raise MessageRejected("malformed", "no value")
        parts = unpack(value, MESSAGE_BYTES_MAX, MESSAGE_ITEMS_MAX)
        if not isinstance(parts, dict):
            raise MessageRejected("malformed", "not a mapping")
        known = {part.name: parts[part.name] for part in fields(cls) if part.name in parts}
        try:
            return cls(**known)
        except TypeError:
            missing = sorted({part.name for part in fields(cls)} - set(known))
            raise MessageRejected("malformed", f"without {', '.join(missing)}") from None


@dataclass(frozen=True)
class Reading(Envelope):
    """One reading in the readings log of a client. Raw: it never leaves the client's premises."""

    TYPE: ClassVar[str] = "reading"

    time: float | None
    """event time, seconds since 1970; None when the source has none"""
    values: NDArray[np.float64] | list[Any]
    """d numbers in the order of the contract; a list when the source gave something that may not be numbers"""

    def __post_init__(self) -> None:
        _require(self.time is None or _moment(self.time), "malformed", "time")


@dataclass(frozen=True)
class Update(Envelope):
    """What a client publishes for a model: what it has learnt, never what it has read."""

    TYPE: ClassVar[str] = "update"

    federation: str
    contract: str
    """digest of the contract it was learnt under"""
    model: str
    algorithm: str
    client: str
    sequence: int
    """1, 2, 3, ... per client and model; a receiver drops what it has seen"""
    readings: int
    """readings learnt since the update before this one"""
    privacy: dict[str, Any]
    """the privacy statement (`shoal.privacy`)"""
    arrays: Mapping[str, NDArray[Any]]
    made_at: float
    """the client's clock, seconds since 1970"""
    newest_reading_at: float | None = None
    """event time of the newest reading behind it"""
    round: int | None = None
    """the call it answers; None in the streaming family"""
    part: int = 1
    """which one this is, 1 to `parts`, of an update too large for one record"""
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("federation", "contract", "model", "algorithm", "client"):
            _require(_name(getattr(self, name)), "malformed", name)
        _require(_count(self.sequence, 1), "sequence", "the sequence number must be 1 or more")
        _require(_count(self.readings, 0), "malformed", "readings")
        _require(_plain_table(self.privacy), "malformed", "privacy")
        _require(_moment(self.made_at), "malformed", "made_at")
        _require(self.newest_reading_at is None or _moment(self.newest_reading_at), "malformed", "newest_reading_at")
        _require(self.round is None or _count(self.round, 0), "malformed", "round")
        _require(_count(self.parts, 1) and self.parts <= PARTS_MAX, "parts", f"it must have 1 to {PARTS_MAX} parts")
        _require(_count(self.part, 1) and self.part <= self.parts, "parts", "it is no part of so many parts")
        _require_arrays(self.arrays)


@dataclass(frozen=True)
class Snapshot(Envelope):
    """What the server publishes for a model: the clustering as it stands."""

    TYPE: ClassVar[str] = "snapshot"

    federation: str
    contract: str
    model: str
    algorithm: str
    version: int
    """1, 2, 3, ... per model; a reader ignores versions it has seen"""
    positions: list[list[int]]
    """[partition, next offset] of the updates read so far: the log up to there *is* this model"""
    updates: int
    """updates absorbed"""
    readings: int
    """readings behind them"""
    clients: int
    """distinct clients heard"""
    clusters: int
    nodes: int
    pooled: int
    """updates that were merged together to begin with: a rebuild from the log begins in the same way"""
    privacy: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    made_at: float
    newest_reading_at: float | None = None
    round: int | None = None
    call: dict[str, Any] | None = None
    """what the clients are asked for and until when; None when nothing is asked"""

    def __post_init__(self) -> None:
        for name in ("federation", "contract", "model", "algorithm"):
            _require(_name(getattr(self, name)), "malformed", name)
        _require(_count(self.version, 1), "sequence", "the version must be 1 or more")
        for name in ("updates", "readings", "clients", "clusters", "nodes", "pooled"):
            _require(_count(getattr(self, name), 0), "malformed", name)
        _require(isinstance(self.positions, list) and all(map(_pair, self.positions)), "malformed", "positions")
        _require(_plain_table(self.privacy), "malformed", "privacy")
        _require(_moment(self.made_at), "malformed", "made_at")
        _require(self.newest_reading_at is None or _moment(self.newest_reading_at), "malformed", "newest_reading_at")
        _require(self.round is None or _count(self.round, 0), "malformed", "round")
        _require(self.call is None or _plain_table(self.call), "malformed", "call")
        _require_arrays(self.arrays)

    @property
    def read_up_to(self) -> Positions:
        """partition -> the first update that is not in it."""
        return {pair[0]: pair[1] for pair in self.positions}


@dataclass(frozen=True)
class Wake(Envelope):
    """Somebody wants a model in rounds to look at its clients' rows now. It stands among the updates."""

    TYPE: ClassVar[str] = "wake"

    federation: str
    contract: str
    model: str

    def __post_init__(self) -> None:
        for name in ("federation", "contract", "model"):
            _require(_name(getattr(self, name)), "malformed", name)


@dataclass(frozen=True)
class Rejected:
    """A message that was set aside: its bytes untouched, why, and where it stood."""

    value: bytes | None
    key: bytes | None
    reason: str
    detail: str
    topic: str
    partition: int
    offset: int
    original_headers: Headers = field(default=())

    @property
    def record_key(self) -> bytes:
        """The same for the same message: setting it aside twice changes nothing in the compacted view."""
        return f"{self.topic}/{self.partition}/{self.offset}".encode()

    @property
    def headers(self) -> Headers:
        """Why, where from, and the original key and headers, these up to `ORIGINAL_HEADERS_BYTES_MAX`: a record full
        of small headers would outgrow the topic with their new names."""
        why = (("type", b"rejected"), ("v", str(VERSION).encode()), ("reason", self.reason.encode()))
        origin = (("detail", self.detail.encode()), ("origin", self.record_key), ("key", self.key or b""))
        return why + origin + tuple(self._kept_headers())

    def _kept_headers(self) -> Iterator[tuple[str, bytes]]:
        left = ORIGINAL_HEADERS_BYTES_MAX
        for name, value in self.original_headers:
            kept = f"original.{name}"
            left -= len(kept.encode()) + len(value)
            if left < 0:
                yield "original_headers_cut", b"1"
                return
            yield kept, value


def _check_headers(wanted: str, headers: Headers) -> None:
    known = dict(headers)
    if known.get("type") != wanted.encode():
        raise MessageRejected("type", f"not marked as {wanted}")
    if known.get("v") != str(VERSION).encode():
        raise MessageRejected("version", f"another version than {VERSION}; upgrade the older side")


def _require(holds: bool, reason: str, detail: str) -> None:
    if not holds:
        raise MessageRejected(reason, detail)


def _require_arrays(arrays: object) -> None:
    holds = isinstance(arrays, Mapping) and all(
        isinstance(name, str) and isinstance(array, np.ndarray) for name, array in arrays.items()
    )
    _require(holds, "malformed", "arrays")


def _name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(NAME_PATTERN, value) is not None


def _count(value: object, smallest: int) -> bool:
    return type(value) is int and smallest <= value <= COUNT_MAX


def _moment(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOMENT_MAX <= value <= MOMENT_MAX


def _plain_table(value: object) -> bool:
    """A mapping of names to numbers, texts, None, or lists of these: comparing it can do no harm."""
    return isinstance(value, dict) and all(
        all(map(_plain, inner)) if isinstance(inner, list) else _plain(inner) for inner in value.values()
    )


def _plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_count(part, 0) for part in value)
