"""The contract of a source of readings: numbered rows, the same ones in the same order every time it is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class SourceRow(NamedTuple):
    """One row of a source: a reading before it is stored, and the client it belongs to."""

    client: str
    time: float | None
    """event time, seconds since 1970; None when the source has none"""
    values: NDArray[np.float64] | list[Any]
    """d numbers in the order of the contract; a list when a cell was not a number, an empty one for a broken row"""
    label: str | None = None
    """true class, for evaluation only; it is never part of the reading"""
    user: str | None = None
    """user id: which person or device the reading is from. It stays with the reading, on the client's site"""


class Source(Protocol):
    """Rows numbered from 0. Opened again with the same arguments it gives the same rows, so `skip` resumes it."""

    @property
    def identity(self) -> str:
        """Hex digits that differ whenever the rows may differ."""
        ...

    @property
    def position(self) -> int:
        """The number of the next row."""
        ...

    @property
    def total(self) -> int | None:
        """About how many rows there are; None when it is unknown or the source does not end."""
        ...

    @property
    def timed(self) -> bool:
        """Whether rows have an event time and come in its order, so that they can be paced by it."""
        ...

    @property
    def faults(self) -> Mapping[str, int]:
        """How many of the rows read so far had which fault; they are given out all the same."""
        ...

    def read(self, limit: int) -> list[SourceRow]:
        """The next rows, at most `limit`; none when the source has ended. Raises `InvalidData` for a damaged file."""
        ...

    def skip(self, rows: int) -> None:
        """Pass over the next `rows` rows."""
        ...


def identity_of(*parts: object) -> str:
    """16 hex digits over the representations of `parts` (strings, numbers, tuples of these)."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
