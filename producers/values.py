"""Values as sources have them: places of the values of categories, and what becomes of gaps.

Missing values are left as gaps, filled with a client's last values, or the whole reading is left
out, as the contract or the settings of the source say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import numpy as np

from shoal.config.contract import Contract
from shoal.errors import InvalidState, SettingsError
from shoal.kernels.arrays import Floats
from shoal.privacy.base import Missing
from shoal.producers.files.parsing import number_of, values_of
from shoal.protocol.reading_faults import is_missing
from shoal.protocol.readings import Codes, RowsOfValues


class Categories:
    """Replaces the values of categories in rows of a source by their places."""

    def __init__(self, codes: Mapping[int, Codes], faults: Counter[str]) -> None:
        """`faults` counts values that are not declared; they count as missing."""
        self._codes = codes
        self._faults = faults

    def treat(self, values: RowsOfValues) -> RowsOfValues:
        """Readings with numbers in place of the values of categories."""
        if not self._codes:
            return values
        rows = [self._treated(row) for row in values]
        return np.array(rows) if rows and all(isinstance(row, np.ndarray) for row in rows) else rows

    def _treated(self, row: Floats | list[Any]) -> Floats | list[Any]:
        cells = row.tolist() if isinstance(row, np.ndarray) else list(row)
        for j, codes in self._codes.items():
            # A row that could not be read has no cells.
            if j < len(cells):
                place = codes.place(cells[j])
                self._faults.update(["undeclared"] * (place is None and not is_missing(cells[j])))
                cells[j] = place
        return np.array(cells) if cells and all(type(cell) is float for cell in cells) else cells


class NoValues:
    """Replaces cells that stand for "no value" by None: words, and numbers however they are
    written."""

    def __init__(self, written: Sequence[str]) -> None:
        """`written`: the texts and numbers, as `na_values` of the settings has them."""
        self._words = frozenset(written)
        numbers = [
            number
            for text in written
            if isinstance(number := number_of(text), float) and math.isfinite(number)
        ]
        self._numbers = np.array(numbers, dtype=np.float64)

    def treat(self, values: RowsOfValues) -> RowsOfValues:
        """The rows; those with such a cell as lists."""
        if not self._words or (
            isinstance(values, np.ndarray) and not np.isin(values, self._numbers).any()
        ):
            return values
        return [self._treated(row) for row in values]

    def _treated(self, row: Floats | list[Any]) -> Floats | list[Any]:
        cells = [None if self._is_none(cell) else cell for cell in row]
        return cells if None in cells else row

    def _is_none(self, cell: Any) -> bool:
        return cell.strip() in self._words if isinstance(cell, str) else cell in self._numbers


HELD_MAX: Final = 10
"""most readings in a row that a client's last values fill: a sensor that has failed must not look
like a steady one"""
MissingOfSource = Literal["", "drop", "hold", "learn"]
"""what a source is told of missing values; "": what the contract says"""
MISSING_MEANS: Final = (
    "a reading without a value of some feature is rejected by the client (`drop`), filled up with the client's last "
    "values (`hold`), or learnt for the values that it has (`learn`, which [privacy] must say too); none: as [privacy] "
    "says"
)


def missing_of(told: str | None, contract: Contract) -> Missing:
    """What becomes of missing values. Raises `SettingsError` for a source that gives gaps which no
    client may learn."""
    if told == "learn" and not contract.learns_gaps:
        raise SettingsError(
            'missing = "learn" of a source needs missing = "learn" in [privacy]: all members agree on it'
        )
    return cast("Missing", told or contract.privacy.missing)


class Gaps:
    """Treatment of the readings of one source that lack values."""

    def __init__(self, missing: Missing, learns: bool, faults: Counter[str]) -> None:
        """`learns`: whether clients learn readings with gaps; `faults` counts readings that were
        filled."""
        self.learns = learns and missing != "drop"
        """whether a reading may leave with gaps"""
        self.treats = self.learns or missing == "hold"
        """whether a reading that lacks values may be of use"""
        self._is_dropped = learns and missing == "drop"
        self._held = HeldValues(faults) if missing == "hold" else None

    def treat(self, clients: Sequence[str], values: RowsOfValues) -> RowsOfValues:
        """The readings of these clients, in order, as they are to be stored."""
        if self._held is not None:
            values = self._held.fill(clients, values)
        if not (self.learns or self._is_dropped):
            return values
        if isinstance(values, np.ndarray):
            if not self._is_dropped:
                return values
            lacks = np.isnan(values).any(axis=1, keepdims=True)
            return np.where(lacks, np.nan, values)
        treated = [self._treated(row) for row in values]
        return (
            np.array(treated)
            if all(isinstance(row, np.ndarray) for row in treated) and treated
            else treated
        )

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        return [] if self._held is None else self._held.state()

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`."""
        if self._held is not None:
            self._held.restore(state)

    def _treated(self, row: Floats | list[Any]) -> Floats | list[Any]:
        cells = row.tolist() if isinstance(row, np.ndarray) else row
        if not any(map(is_missing, cells)) or not all(
            cell is None or isinstance(cell, float) for cell in cells
        ):
            return row
        # A reading without any value is what clients reject.
        return np.array([math.nan if cell is None or self._is_dropped else cell for cell in cells])


class HeldValues:
    """The last value that each client had of each feature, which replaces a missing one (`missing =
    "hold"`)."""

    def __init__(self, faults: Counter[str]) -> None:
        self._faults = faults
        self._last: dict[str, list[float]] = {}
        self._age: Counter[str] = Counter()

    def fill(self, clients: Sequence[str], values: RowsOfValues) -> RowsOfValues:
        """The readings of these clients, in order, missing values filled in."""
        filled: list[Floats | list[Any]] = []
        for client, given in zip(clients, values, strict=True):
            cells = given.tolist() if isinstance(given, np.ndarray) else list(given)
            missing = [place for place, cell in enumerate(cells) if is_missing(cell)]
            last = self._last.get(client)
            if missing and last is not None and self._age[client] < HELD_MAX:
                for place in missing:
                    cells[place] = last[place]
                self._age[client] += 1
                self._faults["filled"] += 1
            # What the client will reject must not be held: readings filled with it would be
            # rejected too.
            elif cells and all(isinstance(cell, float) and math.isfinite(cell) for cell in cells):
                self._last[client] = cells
                self._age[client] = 0
            filled.append(values_of(cells) if missing else given)
        return filled

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        return [[client, list(last), self._age[client]] for client, last in self._last.items()]

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`."""
        try:
            self._last = {
                str(client): [float(value) for value in last] for client, last, _ in state
            }
            self._age = Counter({str(client): int(age) for client, _, age in state})
        except (TypeError, ValueError):
            raise InvalidState("the held values of the checkpoint are damaged") from None
