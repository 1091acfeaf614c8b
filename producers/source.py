"""The contract of a source: numbered readings, the same ones whenever it is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar, overload

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.protocol.readings import RowsOfValues

T = TypeVar("T")


class SourceReading(NamedTuple):
    """One reading of a source before it is stored, and the client it belongs to."""

    client: str
    time: float | None
    """event time, seconds since 1970; None when the source has none"""
    values: Floats | list[Any]
    """d numbers in the order of the contract; a list where one is no number, empty where none is"""
    label: str | None = None
    """true class, for evaluation only; it is never part of the reading"""
    user: str | None = None
    """user id: which person or device the reading is from; it stays on the client's site"""


class SourceReadings(Sequence[SourceReading]):
    """Consecutive readings of a source by column, for what handles many of them at once."""

    def __init__(
        self,
        clients: Sequence[str],
        times: Sequence[float | None],
        values: RowsOfValues,
        labels: Sequence[str | None] | None = None,
        users: Sequence[str | None] | None = None,
    ) -> None:
        """The fields of `SourceReading` for each of n readings; None: no reading has one."""
        self.clients = clients
        self.times = times
        self.values = values
        self.labels = labels
        self.users = users

    @classmethod
    def of(cls, readings: Sequence[SourceReading]) -> SourceReadings:
        """Any readings, by column."""
        if isinstance(readings, SourceReadings):
            return readings
        if not readings:
            return cls((), (), (), (), None)
        clients, times, values, labels, users = zip(*readings, strict=True)
        return cls(clients, times, values, labels, users if any(users) else None)

    def __len__(self) -> int:
        return len(self.clients)

    @overload
    def __getitem__(self, place: int) -> SourceReading: ...

    @overload
    def __getitem__(self, place: slice) -> SourceReadings: ...

    def __getitem__(self, place: int | slice) -> SourceReading | SourceReadings:
        labels = None if self.labels is None else self.labels[place]
        users = None if self.users is None else self.users[place]
        columns: Any = (self.clients[place], self.times[place], self.values[place], labels, users)
        if isinstance(place, slice):
            return SourceReadings(*columns)
        return SourceReading(*columns)

    def select(self, places: Sequence[int]) -> SourceReadings:
        """The readings at these places."""
        values: RowsOfValues
        if isinstance(self.values, np.ndarray):
            values = self.values[np.asarray(places)]
        else:
            values = _at(self.values, places)
        return SourceReadings(
            _at(self.clients, places),
            _at(self.times, places),
            values,
            None if self.labels is None else _at(self.labels, places),
            None if self.users is None else _at(self.users, places),
        )


def _at(column: Sequence[T], places: Sequence[int]) -> list[T]:
    return [column[place] for place in places]


def joined(parts: Sequence[SourceReadings]) -> SourceReadings:
    """The readings of all parts, one after the other; the parts have the same columns."""
    if len(parts) == 1:
        return parts[0]
    values: list[Any] = [part.values for part in parts]
    # Arrays only where all parts are: a list among them means cells that are not converted yet.
    are_numbers = bool(parts) and all(isinstance(rows, np.ndarray) for rows in values)
    return SourceReadings(
        list(chain.from_iterable(part.clients for part in parts)),
        list(chain.from_iterable(part.times for part in parts)),
        np.concatenate(values) if are_numbers else list(chain.from_iterable(values)),
        _joined_columns([part.labels for part in parts]),
        _joined_columns([part.users for part in parts]),
    )


def _joined_columns(columns: Sequence[Sequence[str | None] | None]) -> list[str | None] | None:
    """The entries of all columns; None where a part has no such column."""
    entries: list[str | None] = []
    for column in columns:
        if column is None:
            return None
        entries += column
    return entries


class Source(Protocol):
    """Readings numbered from 0. Opened again with the same arguments it gives the same ones, so
    `skip` resumes it."""

    @property
    def identity(self) -> str:
        """Hex digits that differ whenever the readings may differ."""
        ...

    @property
    def position(self) -> int:
        """The number of the next reading."""
        ...

    @property
    def total(self) -> int | None:
        """About how many readings there are; None when it is unknown or the source does not end."""
        ...

    @property
    def timed(self) -> bool:
        """Whether readings have an event time and come in its order, and so can be paced by it."""
        ...

    @property
    def faults(self) -> Mapping[str, int]:
        """How many of the readings read so far had which fault; they are given out all the same."""
        ...

    def read(self, limit: int) -> Sequence[SourceReading]:
        """The next readings, at most `limit`; none at the end of the source.

        Raises `InvalidData` for a damaged file.
        """
        ...

    def skip(self, readings: int) -> None:
        """Pass over the next `readings` readings."""
        ...


def identity_of(*parts: object) -> str:
    """16 hex digits over the representations of `parts` (strings, numbers, tuples of these)."""
    # 64 bits: chance makes two of n sources the same with about n² / 2^65, and a folder has few.
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
