"""Values of features of kind "category", as sources have them -> the place of each among the values of the contract."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shoal.config.contract import Contract
from shoal.kernels.arrays import Floats
from shoal.protocol.reading_faults import is_missing
from shoal.protocol.readings import RowsOfValues


@dataclass(frozen=True)
class Codes:
    """The declared values of one feature: a text is compared as it is written, a number by its value."""

    values: tuple[str, ...]

    @cached_property
    def _texts(self) -> dict[str, float]:
        return {text: float(place) for place, text in enumerate(self.values)}

    @cached_property
    def _numbers(self) -> dict[float, float]:
        return {number: place for text, place in self._texts.items() if (number := _number(text)) is not None}

    def place(self, cell: Any) -> float | None:
        """The place of a value; None for one that is not declared, and for a missing one."""
        if is_missing(cell):
            return None
        text = str(cell).lower() if isinstance(cell, bool) else str(cell).strip()
        if text in self._texts:
            return self._texts[text]
        number = _number(text)
        return None if number is None else self._numbers.get(number)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def codes_of(contract: Contract) -> dict[int, Codes]:
    """position -> the values of each feature of kind "category"."""
    return {j: Codes(feature.values) for j, feature in enumerate(contract.features) if feature.kind == "category"}


class Categories:
    """Replaces the values of categories in rows of a source by their places."""

    def __init__(self, codes: Mapping[int, Codes], faults: Counter[str]) -> None:
        """`faults` counts values that are not declared; they count as missing."""
        self._codes, self._faults = codes, faults

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
