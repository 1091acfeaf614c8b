"""Values as sources have them: places of the values of categories, and what becomes of gaps.

Missing values are left as gaps, filled with a client's last values, or the whole reading is left
out, as the contract or the settings of the source say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, cast

import numpy as np

from shoal.config.contract import Contract
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.privacy.base import Missing
from shoal.producers.files.parsing import number_of, values_of
from shoal.protocol.no_value import is_no_value
from shoal.protocol.reading_faults import is_missing
from shoal.protocol.readings import Codes, RowsOfValues
from shoal.saved_state import SavedState, state_type


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
        return _in_one_array([self._treated(row) for row in values])

    def _treated(self, row: Floats | list[Any]) -> Floats | list[Any]:
        cells = row.tolist() if isinstance(row, np.ndarray) else list(row)
        for j, codes in self._codes.items():
            # A row that could not be read has no cells.
            if j < len(cells):
                place = codes.place(cells[j])
                if place is None and not _is_empty(cells[j]):
                    self._faults["undeclared"] += 1
                cells[j] = place
        if cells and all(type(cell) is float for cell in cells):
            return np.array(cells)
        return cells


def _is_empty(cell: Any) -> bool:
    """Whether a cell of a category that holds no declared value means "no value"."""
    return is_missing(cell) or (isinstance(cell, str) and is_no_value(cell))


def _in_one_array(rows: list[Floats | list[Any]]) -> RowsOfValues:
    """The rows as one array, if all of them are arrays."""
    if rows and all(isinstance(row, np.ndarray) for row in rows):
        return np.array(rows)
    return rows


class NoValues:
    """Replaces cells that stand for "no value" by None: words, and numbers in any notation."""

    def __init__(
        self,
        written: Sequence[str],
        categories: Collection[int] = (),
        own: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        """`written`: the texts and numbers, as `na_values` of the settings has them; `own`: those
        of single features, by their positions.

        `categories`: positions of the features that are categories, whose values may be words that
        mean "no value" in place of a number.
        """
        self._categories = frozenset(categories)
        self._words = frozenset(written)
        self._numbers = _numbers_among(written)
        self._own = {position: NoValues(texts) for position, texts in (own or {}).items()}

    def treat(self, values: RowsOfValues) -> RowsOfValues:
        """The rows; those with such a cell as lists."""
        if isinstance(values, np.ndarray) and not self._occur_in(values):
            return values
        return [self._treated(row) for row in values]

    def is_none(self, cell: Any, position: int) -> bool:
        """Whether this cell of the feature at `position` stands for no value; a number is one of
        `number_of`."""
        if position in self._own and self._own[position].is_none(cell, position):
            return True
        if isinstance(cell, str):
            if cell.strip() in self._words:
                return True
            return position not in self._categories and is_no_value(cell)
        return cell is None or (len(self._numbers) > 0 and cell in self._numbers)

    def _treated(self, row: Floats | list[Any]) -> Floats | list[Any]:
        if isinstance(row, np.ndarray) and not self._occur_in(row):
            return row
        cells = []
        for position, cell in enumerate(row):
            cells.append(None if self.is_none(cell, position) else cell)
        if None in cells:
            return cells
        return row

    def _occur_in(self, values: Floats) -> bool:
        """Whether one of the numbers that stand for no value is among these."""
        for position, own in self._own.items():
            if own._occur_in(values[..., position]):
                return True
        return len(self._numbers) > 0 and bool(np.isin(values, self._numbers).any())


def _numbers_among(written: Sequence[str]) -> Floats:
    numbers = []
    for text in written:
        number = number_of(text)
        if isinstance(number, float) and math.isfinite(number):
            numbers.append(number)
    return np.array(numbers, dtype=np.float64)


def na_values_by_position(
    own: Mapping[str, Sequence[str]], contract: Contract, section: str
) -> dict[int, tuple[str, ...]]:
    """position of a feature -> what means "no value" for it alone.

    Raises `SettingsError` for one of no feature.
    """
    positions = {feature.name: place for place, feature in enumerate(contract.features)}
    for name in own:
        if name not in positions:
            raise SettingsError(
                f"[{section}.na_values_of]: {name!r} is no feature of this federation:"
                f" {', '.join(positions)}"
            )
    return {positions[name]: tuple(texts) for name, texts in own.items()}


NA_VALUES_MEANS: Final = (
    'cells that mean "no value", as -200, besides empty ones and the usual words (`nan`, `n/a`,'
    " `unavailable`, ...)"
)
NA_VALUES_OF_MEANS: Final = (
    'feature = cells that mean "no value" for this feature alone, as 999 of a temperature beside a'
    " pressure"
)
HELD_MAX: Final = 10
"""most readings in a row that are filled: a failed sensor must not look like a steady one"""
MissingOfSource = Literal["", "drop", "hold", "learn"]
"""what a source does with missing values; "": what the contract says"""
MISSING_MEANS: Final = (
    "a reading without a value of some feature is rejected by the client (`drop`), filled up with"
    " the client's last values (`hold`), or learnt for the values that it has (`learn`, which"
    " [privacy] must say too); none: as [privacy] says"
)


def missing_of(setting: str | None, contract: Contract) -> Missing:
    """What becomes of missing values.

    Raises `SettingsError` for a source that gives gaps which no client may learn.
    """
    if setting == "learn" and not contract.learns_gaps:
        raise SettingsError(
            'missing = "learn" of a source needs missing = "learn" in [privacy]: all members agree'
            " on it"
        )
    return cast("Missing", setting or contract.privacy.missing)


class Gaps:
    """Treatment of the readings of one source that lack values."""

    def __init__(self, missing: Missing, learns: bool, faults: Counter[str]) -> None:
        """`learns`: whether clients learn readings with gaps; `faults` counts filled readings."""
        self.learns = learns and missing != "drop"
        """whether a reading may leave with gaps"""
        self.treats = self.learns or missing == "hold"
        """whether a reading that lacks values may be of use"""
        self._is_dropped = learns and missing == "drop"
        self._held: HeldValues | None = None
        if missing == "hold":
            self._held = HeldValues(faults)

    def treat(self, clients: Sequence[str], values: RowsOfValues) -> RowsOfValues:
        """The readings of these clients, in order, as they are to be stored."""
        if self._held is not None:
            values = self._held.fill(clients, values)
        if not (self.learns or self._is_dropped):
            return values
        if isinstance(values, np.ndarray):
            if not self._is_dropped:
                return values
            has_gap = np.isnan(values).any(axis=1, keepdims=True)
            return np.where(has_gap, np.nan, values)
        return _in_one_array([self._treated(row) for row in values])

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        if self._held is None:
            return {}
        return self._held.state()

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`."""
        if self._held is not None:
            self._held.restore(state)

    def _treated(self, row: Floats | list[Any]) -> Floats | list[Any]:
        cells = row.tolist() if isinstance(row, np.ndarray) else row
        if not any(map(is_missing, cells)):
            return row
        # A text among them is a fault of another kind: it stays, so that the client counts it as
        # such.
        if not all(cell is None or isinstance(cell, float) for cell in cells):
            return row
        # A reading without any value is what clients reject.
        if self._is_dropped:
            return np.full(len(cells), math.nan)
        # NumPy makes NaN of None.
        return np.array(cells, dtype=np.float64)


@state_type
class HeldState(SavedState):
    """The last values of one client, and how many readings they have been held."""

    client: str
    last: list[float]
    age: int


@state_type
class HeldValuesState(SavedState):
    """The last values of all clients."""

    clients: list[HeldState]


class HeldValues:
    """The last values of each client, which replace missing ones (`missing = "hold"`)."""

    def __init__(self, faults: Counter[str]) -> None:
        self._faults = faults
        self._last: dict[str, list[float]] = {}
        self._age: Counter[str] = Counter()

    def fill(self, clients: Sequence[str], values: RowsOfValues) -> RowsOfValues:
        """The readings of these clients, in order, missing values filled in."""
        filled: list[Floats | list[Any]] = []
        for client, row in zip(clients, values, strict=True):
            cells = row.tolist() if isinstance(row, np.ndarray) else list(row)
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
            if missing:
                filled.append(values_of(cells))
            else:
                filled.append(row)
        return filled

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        clients = []
        for client, last in self._last.items():
            clients.append(HeldState(client=client, last=last, age=self._age[client]))
        return HeldValuesState(clients=clients).saved()

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`."""
        self._last = {}
        self._age = Counter()
        for held in HeldValuesState.read(state).clients:
            self._last[held.client] = held.last
            self._age[held.client] = held.age
