"""The contract of a source of readings: numbered rows, the same ones in the same order every time it is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from shoal.protocol.readings import RowsOfValues


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


class SourceRows(Sequence[SourceRow]):
    """Consecutive rows of a source by column. What handles many rows takes the columns; each is there as a row too."""

    def __init__(
        self,
        clients: Sequence[str],
        times: Sequence[float | None],
        values: RowsOfValues,
        labels: Sequence[str | None] | None = None,
        users: Sequence[str | None] | None = None,
    ) -> None:
        """The fields of `SourceRow` for each of n rows; None: no row has one."""
        self.clients, self.times, self.values = clients, times, values
        self.labels, self.users = labels, users

    @classmethod
    def of(cls, rows: Sequence[SourceRow]) -> SourceRows:
        """Any rows, by column."""
        if isinstance(rows, SourceRows):
            return rows
        clients, times, values, labels, users = zip(*rows, strict=True) if rows else ((), (), (), (), ())
        return cls(clients, times, values, labels, users if any(users) else None)

    def __len__(self) -> int:
        return len(self.clients)

    @overload
    def __getitem__(self, place: int) -> SourceRow: ...

    @overload
    def __getitem__(self, place: slice) -> SourceRows: ...

    def __getitem__(self, place: int | slice) -> SourceRow | SourceRows:
        labels = None if self.labels is None else self.labels[place]
        users = None if self.users is None else self.users[place]
        form: Any = SourceRows if isinstance(place, slice) else SourceRow
        row: SourceRow | SourceRows = form(self.clients[place], self.times[place], self.values[place], labels, users)
        return row

    def select(self, places: Sequence[int]) -> SourceRows:
        """The rows at these places."""
        values = self.values
        return SourceRows(
            [self.clients[place] for place in places],
            [self.times[place] for place in places],
            values[np.asarray(places)] if isinstance(values, np.ndarray) else [values[place] for place in places],
            None if self.labels is None else [self.labels[place] for place in places],
            None if self.users is None else [self.users[place] for place in places],
        )


def joined(parts: Sequence[SourceRows]) -> SourceRows:
    """The rows of all parts, one after the other; the parts have the same columns."""
    if len(parts) == 1:
        return parts[0]
    values: list[Any] = [part.values for part in parts]
    are_numbers = bool(parts) and all(isinstance(each, np.ndarray) for each in values)
    labels, users = [part.labels for part in parts], [part.users for part in parts]
    return SourceRows(
        list(chain.from_iterable(part.clients for part in parts)),
        list(chain.from_iterable(part.times for part in parts)),
        np.concatenate(values) if are_numbers else list(chain.from_iterable(values)),
        None if None in labels else list(chain.from_iterable(each or () for each in labels)),
        None if None in users else list(chain.from_iterable(each or () for each in users)),
    )


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

    def read(self, limit: int) -> Sequence[SourceRow]:
        """The next rows, at most `limit`; none when the source has ended. Raises `InvalidData` for a damaged file."""
        ...

    def skip(self, rows: int) -> None:
        """Pass over the next `rows` rows."""
        ...


def identity_of(*parts: object) -> str:
    """16 hex digits over the representations of `parts` (strings, numbers, tuples of these)."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
