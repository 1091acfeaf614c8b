"""Faults of readings: why one is rejected, and how many were for which reason and feature.

Features whose values are clipped are counted here as well.

Producers and clients count them on the client's own site. Nothing here holds a value of a reading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from shoal.errors import InvalidState
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.privacy.base import Bounds
from shoal.protocol.checks import is_count

Reason = Literal[
    "malformed", "width", "missing", "not_a_number", "infinite", "time", "repeat", "user"
]
CAUSES: Final[Mapping[str, str]] = {
    "malformed": "a record is no reading",
    "width": "a row has another number of values than the contract has features",
    "missing": "a value is missing",
    "not_a_number": "a value is no number; compare the columns and the decimal sign",
    "infinite": "a value is infinite",
    "time": "the time lies in the future: the clock, or the unit of the time column",
    "repeat": "the time is that of an earlier reading (drop_repeats)",
    "user": "the user id is missing",
}
"""reason -> the likely cause, for people"""
CLIPPED_SHARE: Final = 0.01
"""share of the readings beyond the bounds of a feature from which on people are warned: clipped
values look alike"""
CLIPPING: Final = "values beyond low and high are clipped to them, and look alike: {features}"
CLIPPING_ADVICE: Final = f"{CLIPPING}. Give wider bounds"
CLIPPING_REMEDY: Final = (
    "change low and high of the feature before the federation begins; shoal init --diff proposes"
    " them"
)


Place = int | tuple[int, int]
"""the number of a reading in its source, or (partition, offset) in the readings log"""


class Fault(NamedTuple):
    """Why a reading cannot be learnt."""

    reason: Reason
    feature: int | None = None
    """position of the first feature that has the fault; None where it is of no single one"""


def fault_of(values: object, width: int, gaps: bool = False) -> Fault | None:
    """The fault in the values of a reading of d = `width` features, as it is stored; else None.

    With `gaps` a value may be missing, which is None or NaN, but not all of them.
    """
    if isinstance(values, list):
        if len(values) != width:
            return Fault("width")
    elif not isinstance(values, np.ndarray) or values.dtype != np.float64:
        return Fault("malformed")
    elif values.shape != (width,):
        return Fault("width")
    if gaps:
        return _fault_beside_gaps(list(values))
    if isinstance(values, list):
        return _fault_of_list(values)
    return _fault_of_numbers(values)


def _fault_of_list(values: list[Any]) -> Fault | None:
    for position, value in enumerate(values):
        reason = _reason_against(value)
        if reason is not None:
            return Fault(reason, position)
    return None


def _fault_of_numbers(values: Floats) -> Fault | None:
    wrong = np.flatnonzero(~np.isfinite(values))
    if not len(wrong):
        return None
    nan = np.flatnonzero(np.isnan(values))
    if len(nan):
        return Fault("missing", int(nan[0]))
    return Fault("infinite", int(wrong[0]))


def _fault_beside_gaps(values: list[Any]) -> Fault | None:
    """The fault in values, some of which may be missing."""
    all_missing = True
    for position, value in enumerate(values):
        if is_missing(value):
            continue
        all_missing = False
        reason = _reason_against(value)
        if reason is not None:
            return Fault(reason, position)
    if not all_missing:
        return None
    return Fault("missing")


def is_missing(value: object) -> bool:
    """Whether a value of a reading is missing: None, or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _reason_against(value: object) -> Reason | None:
    """Why one value cannot be learnt; None where it can."""
    if is_missing(value):
        return "missing"
    # To Python true is an integer, and would be learnt as 1.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not_a_number"
    if math.isinf(value):
        return "infinite"
    return None


class Rejected(NamedTuple):
    """Readings that were rejected for one reason, in one feature."""

    reason: str
    feature: str
    """name of the feature; empty where it is of no single one"""
    readings: int
    first: str
    """place of the first of them: a file and line, or the position in a log"""

    def text(self) -> str:
        """Text for people: `120 not_a_number in warm, the first in rooms.csv, line 18`."""
        within = f" in {self.feature}" if self.feature else ""
        return f"{self.readings:,} {self.reason}{within}, the first in {self.first}"


def unusable(rejected: Sequence[Rejected]) -> str:
    """The message where none of the readings could be used, with the likely cause."""
    readings = sum(entry.readings for entry in rejected)
    most = rejected[0]
    return (
        f"none of the {readings:,} readings could be used: {most.text()}. Likely, "
        f"{CAUSES[most.reason]}"
    )


class FaultCounts:
    """Rejected readings by reason and feature, with the place of the first example of each."""

    def __init__(self, features: Sequence[str]) -> None:
        self.features = list(features)
        self._counts: dict[Fault, int] = {}
        self._first: dict[Fault, Place] = {}

    def add(self, fault: Fault, place: Place) -> None:
        """Count one."""
        self._counts[fault] = self._counts.get(fault, 0) + 1
        before = self._first.setdefault(fault, place)
        # Readings of one client are counted before those of another that come before them in their
        # source.
        if isinstance(place, int) and isinstance(before, int):
            self._first[fault] = min(before, place)

    @property
    def first_numbers(self) -> list[int]:
        """The numbers in the source of the first examples."""
        return [place for place in self._first.values() if isinstance(place, int)]

    def with_places(self) -> list[tuple[Rejected, tuple[int, int]]]:
        """What was counted, with (partition, offset) of the first example of each."""
        entries = []
        for fault, place in self._first.items():
            if isinstance(place, tuple):
                entries.append((self._rejected(fault, {}), place))
        return entries

    def rejected(self, names: Mapping[int, str] | None = None) -> list[Rejected]:
        """What was counted, the most frequent first.

        `names`: number in the source -> its place for people.
        """
        entries = [self._rejected(fault, names or {}) for fault in self._counts]
        # Names break ties, so that two starts list the same faults in the same order.
        return sorted(entries, key=lambda entry: (-entry.readings, entry.reason, entry.feature))

    def _rejected(self, fault: Fault, names: Mapping[int, str]) -> Rejected:
        place = place_text(self._first[fault], names)
        return Rejected(fault.reason, self._name(fault), self._counts[fault], place)

    def by_label(self) -> dict[tuple[str, str], int]:
        """(reason, feature) -> readings."""
        return {(fault.reason, self._name(fault)): number for fault, number in self._counts.items()}

    def _name(self, fault: Fault) -> str:
        if fault.feature is None:
            return ""
        return self.features[fault.feature]

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        entries = []
        for fault, number in self._counts.items():
            place = np.atleast_1d(self._first[fault]).tolist()
            entries.append([fault.reason, fault.feature, number, place])
        return entries

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`."""
        self._counts = {}
        self._first = {}
        try:
            for reason, feature, number, place in state:
                fault = Fault(reason, feature)
                fits = reason in CAUSES and is_count(number) and all(map(is_count, place))
                if not fits or (feature is not None and not 0 <= feature < len(self.features)):
                    raise InvalidState("the checkpoint's counts of rejected readings are damaged")
                self._counts[fault] = number
                self._first[fault] = tuple(place)
        except (TypeError, ValueError) as broken:
            raise InvalidState(
                f"the checkpoint's counts of rejected readings are damaged: {broken}"
            ) from None


def place_text(place: Place, names: Mapping[int, str] | None = None) -> str:
    """A place for people; `names`: number in the source -> its place."""
    if isinstance(place, int):
        return (names or {}).get(place, f"reading {place + 1:,} of the source")
    return f"the readings log at {'/'.join(map(str, place))}"


class Clipped(NamedTuple):
    """Readings that lie beyond the bounds of a feature."""

    feature: str
    share: float
    """share of all readings that lie beyond them"""
    client: str
    """the client that most of these are of, as its source calls it"""
    client_share: float
    """share of these that are of this client"""
    first: str
    """place of the first of them: a file and line, or its number in the source"""

    def text(self) -> str:
        """Text for people: `warm (5%; 80% of them of client north; the first in rooms.csv, line
        9)`."""
        # Rounded down: a client with nearly all of them is not the only one.
        of = "all" if self.client_share == 1 else f"{math.floor(self.client_share * 100)}%"
        return (
            f"{self.feature} ({self.share:.0%}; {of} of them of client {self.client}; the first in"
            f" {self.first})"
        )


class ClippingCounts:
    """How many readings of each client lie beyond the bounds of each feature, and the first."""

    def __init__(self, features: Sequence[str], bounds: Bounds) -> None:
        self._features = list(features)
        self._bounds = bounds
        self._readings = 0
        self._outside: dict[str, Ints] = {}
        self._first: dict[int, int] = {}

    def add(self, client: str, numbers: Sequence[int], rows: Floats) -> None:
        """Count rows (n, d) of a client with these n numbers in their source, which ascend.

        The rows are finite but for missing values (NaN).
        """
        self._readings += len(rows)
        beyond = beyond_bounds(rows, self._bounds)
        outside = beyond.sum(axis=0)
        if not outside.any():
            return
        before = self._outside.get(client, np.zeros(len(self._features), dtype=np.int64))
        self._outside[client] = before + outside
        for position, row in first_rows(beyond).items():
            # Readings of one client are counted before those of another that come before them in
            # their source.
            number = numbers[row]
            self._first[position] = min(number, self._first.get(position, number))

    def _clipped_positions(self) -> list[int]:
        """The positions of the features whose share is above `CLIPPED_SHARE`."""
        total = np.zeros(len(self._features), dtype=np.int64)
        for outside in self._outside.values():
            total += outside
        shares = total / max(1, self._readings)
        positions: list[int] = np.flatnonzero(shares > CLIPPED_SHARE).tolist()
        return positions

    @property
    def first_numbers(self) -> list[int]:
        """The numbers in the source of the first readings beyond bounds that `clipped` names."""
        return [self._first[position] for position in self._clipped_positions()]

    def clipped(
        self, names: Mapping[int, str] | None = None, texts: Mapping[str, str] | None = None
    ) -> list[Clipped]:
        """The features where the share of readings beyond the bounds is above `CLIPPED_SHARE`.

        `names`: number in the source -> its place for people; `texts`: client -> what the source
        calls it.
        """
        found = []
        for position in self._clipped_positions():
            by_client = {name: int(outside[position]) for name, outside in self._outside.items()}
            total = sum(by_client.values())
            # Names break ties, so that two runs name the same client.
            client = min(by_client, key=lambda name: (-by_client[name], name))
            found.append(
                Clipped(
                    self._features[position],
                    total / self._readings,
                    (texts or {}).get(client, client),
                    by_client[client] / total,
                    place_text(self._first[position], names or {}),
                )
            )
        return found


def clipping_text(clipped: Sequence[Clipped]) -> str:
    """The warning about readings beyond the bounds of these features, with the remedy."""
    features = ", ".join(map(Clipped.text, clipped))
    return f"{CLIPPING.format(features=features)}. Remedy: {CLIPPING_REMEDY}"


def beyond_bounds(rows: Floats, bounds: Bounds) -> Bools:
    """rows (n, d) -> (n, d) which values lie beyond the bounds of their feature.

    A circular feature has no values that can be.
    """
    beyond: Bools = (rows < bounds.low) | (rows > bounds.high)
    if len(bounds.circular):
        beyond[:, list(bounds.circular)] = False
    return beyond


def first_rows(marks: Bools) -> dict[int, int]:
    """marks (n, d) -> column: the first row that is marked, of columns where one is."""
    rows = marks.argmax(axis=0)
    return {column: int(rows[column]) for column in np.flatnonzero(marks.any(axis=0)).tolist()}
