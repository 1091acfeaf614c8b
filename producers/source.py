"""What a source of readings is: numbered rows, the same ones in the same order every time it is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class SourceRow(NamedTuple):
    """One row of a source: a reading to be, and whose it is."""

    client: str
    time: float | None
    """event time, seconds since 1970; None when the source has none"""
    values: NDArray[np.float64] | list[Any]
    """d numbers in the order of the contract; a list when a cell was no number, an empty one when the row is broken"""
    label: str | None = None
    """ground truth, for those who evaluate; it is never part of the reading"""


class Source(Protocol):
    """Rows numbered from 0. Opened again with the same arguments it gives the same rows, so `skip` finds the place."""

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
        """How many rows there are, as good as it is known; None when the source does not end."""
        ...

    @property
    def timed(self) -> bool:
        """Whether rows have an event time and come in its order, so that they can be paced by it."""
        ...

    @property
    def faults(self) -> Mapping[str, int]:
        """What was wrong with the rows read so far, by kind; they were passed on all the same."""
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
