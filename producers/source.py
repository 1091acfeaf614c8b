"""The contract of a source: numbered readings, the same ones in the same order every time it is
opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.protocol.readings import RowsOfValues


class SourceReading(NamedTuple):
    """One reading of a source before it is stored, and the client it belongs to."""

    client: str
    time: float | None
    """event time, seconds since 1970; None when the source has none"""
    values: Floats | list[Any]
    """d numbers in the order of the contract; a list where a value is no number, empty where none
    was read"""
    label: str | None = None
    """true class, for evaluation only; it is never part of the reading"""
    user: str | None = None
    """user id: which person or device the reading is from. It stays with the reading, on the
    client's site"""


class SourceReadings(Sequence[SourceReading]):
    """Consecutive readings of a source by column. What handles many takes the columns; each is
    there as a whole too."""

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
        clients, times, values, labels, users = (
            zip(*readings, strict=True) if readings else ((), (), (), (), ())
        )
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
        form: Any = SourceReadings if isinstance(place, slice) else SourceReading
        reading: SourceReading | SourceReadings = form(
            self.clients[place], self.times[place], self.values[place], labels, users
        )
        return reading

    def select(self, places: Sequence[int]) -> SourceReadings:
        """The readings at these places."""
        values = self.values
        return SourceReadings(
            [self.clients[place] for place in places],
            [self.times[place] for place in places],
            values[np.asarray(places)]
            if isinstance(values, np.ndarray)
            else [values[place] for place in places],
            None if self.labels is None else [self.labels[place] for place in places],
            None if self.users is None else [self.users[place] for place in places],
        )


def joined(parts: Sequence[SourceReadings]) -> SourceReadings:
    """The readings of all parts, one after the other; the parts have the same columns."""
    if len(parts) == 1:
        return parts[0]
    values: list[Any] = [part.values for part in parts]
    are_numbers = bool(parts) and all(isinstance(each, np.ndarray) for each in values)
    labels = [part.labels for part in parts]
    users = [part.users for part in parts]
    return SourceReadings(
        list(chain.from_iterable(part.clients for part in parts)),
        list(chain.from_iterable(part.times for part in parts)),
        np.concatenate(values) if are_numbers else list(chain.from_iterable(values)),
        None if None in labels else list(chain.from_iterable(each or () for each in labels)),
        None if None in users else list(chain.from_iterable(each or () for each in users)),
    )


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
        """Whether readings have an event time and come in its order, so that they can be paced by
        it."""
        ...

    @property
    def faults(self) -> Mapping[str, int]:
        """How many of the readings read so far had which fault; they are given out all the same."""
        ...

    def read(self, limit: int) -> Sequence[SourceReading]:
        """The next readings, at most `limit`; none at the end of the source. Raises `InvalidData`
        (damaged file)."""
        ...

    def skip(self, readings: int) -> None:
        """Pass over the next `readings` readings."""
        ...


def identity_of(*parts: object) -> str:
    """16 hex digits over the representations of `parts` (strings, numbers, tuples of these)."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
