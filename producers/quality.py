"""Quality of values: a column or field that says how good a value is. A bad value is no value."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from shoal.config.contract import Contract
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.producers.files.parsing import number_of
from shoal.protocol.readings import RowsOfValues

# Not uncertain, suspect or questionable: OPC and the flags of oceanography keep such values apart
# from bad ones.
BAD_WORDS: Final = (
    "bad*",
    "invalid*",
    "fail*",
    "error*",
    "fault*",
    "missing*",
    "fehler*",
    "störung*",
    "gestört*",
    "ungültig*",
    "schlecht*",
    "erreur*",
    "mauvais*",
)
"""what means bad where nothing else is set: words that systems write, in lower case"""
QUALITY_MEANS: Final = (
    "feature = the {column} that says how good its values are; a value of bad quality is missing"
)
BAD_QUALITY_MEANS: Final = (
    "what means bad there: words, beginnings of words as `bad*`, numbers and ranges of them as"
    f" `0..63`; none: {', '.join(f'`{word}`' for word in BAD_WORDS)}. Nothing there means good"
)
# A column named by mistake, such as one of times, has a new cell in every row.
CELLS_KNOWN_MAX: Final = 4096
"""different cells whose meaning is kept"""
_RANGE = re.compile(r"\s*(-?\d+)\s*\.\.\s*(-?\d+)\s*")


class BadQuality:
    """Finds the cells of quality that mean bad."""

    def __init__(self, written: Sequence[str]) -> None:
        """`written`: as `bad_quality` of the settings has them. Raises `SettingsError`."""
        self._words: set[str] = set()
        self._beginnings: tuple[str, ...] = ()
        self._ranges: list[tuple[float, float]] = []
        self._known: dict[str, bool] = {}
        for text in written or BAD_WORDS:
            bare = text.strip().lower()
            limits = _RANGE.fullmatch(text)
            number = _code_of(bare)
            if limits is not None:
                self._ranges.append((float(limits[1]), float(limits[2])))
            elif number is not None:
                self._ranges.append((number, number))
            elif bare.rstrip("*"):
                if bare.endswith("*"):
                    self._beginnings += (bare.rstrip("*"),)
                else:
                    self._words.add(bare)
            else:
                raise SettingsError(
                    f"bad_quality: {text!r} would be any cell; write words, numbers or ranges, as"
                    " 0..63"
                )

    def is_bad(self, cell: Any) -> bool:
        """Whether a cell of a file, or a field of JSON, means bad; an empty one does not."""
        if cell is None:
            return False
        # JSON and the values of categories write true, Python writes True.
        text = str(cell)
        found = self._known.get(text)
        if found is None:
            if len(self._known) >= CELLS_KNOWN_MAX:
                self._known.clear()
            found = self._means_bad(text.strip().lower())
            self._known[text] = found
        return found

    def _means_bad(self, text: str) -> bool:
        number = _code_of(text)
        if number is not None:
            return any(low <= number <= high for low, high in self._ranges)
        return text in self._words or text.startswith(self._beginnings)


def _code_of(text: str) -> float | None:
    """A code of quality: a number, also in base 16 as 0x80340000; None for a word."""
    if re.fullmatch(r"0x[0-9a-f]{1,8}", text):
        return float(int(text, 16))
    number = number_of(text)
    if isinstance(number, float) and math.isfinite(number):
        return number
    return None


@cache
def bad_quality_of(written: tuple[str, ...]) -> BadQuality:
    """The cells that mean bad, by a setting. Raises `SettingsError`."""
    return BadQuality(written)


class QualityColumns:
    """Takes values of bad quality out of the rows of files."""

    def __init__(self, columns: Mapping[int, str] | None = None, bad: tuple[str, ...] = ()) -> None:
        """`columns`: position of a feature -> the column of its quality; `bad`: see `BadQuality`.

        Raises `SettingsError`.
        """
        columns = columns or {}
        self.names = tuple(dict.fromkeys(columns.values()))
        """the columns that are read for it"""
        self._places = {feature: self.names.index(column) for feature, column in columns.items()}
        self._bad = bad_quality_of(bad)

    def treat(
        self, values: RowsOfValues, cells: Sequence[Sequence[Any] | None], faults: Counter[str]
    ) -> RowsOfValues:
        """n rows, with None in place of each value of bad quality.

        `cells`: those of `names` of each row, None for a broken one; `faults` counts such values.
        """
        if not self.names:
            return values
        rows: list[Floats | list[Any]] = []
        is_changed = False
        for row, own in zip(values, cells, strict=True):
            bad = self._bad_features(own) if own is not None and len(row) else []
            if not bad:
                rows.append(row)
                continue
            changed = row.tolist() if isinstance(row, np.ndarray) else list(row)
            for feature in bad:
                # What is missing anyway is no loss to quality.
                faults["bad_quality"] += changed[feature] is not None
                changed[feature] = None
            rows.append(changed)
            is_changed = True
        return rows if is_changed else values

    def _bad_features(self, cells: Sequence[Any]) -> list[int]:
        are_bad = [self._bad.is_bad(cell) for cell in cells]
        if not any(are_bad):
            return []
        return [feature for feature, place in self._places.items() if are_bad[place]]


def quality_by_position(
    quality: Mapping[str, str], contract: Contract, section: str
) -> dict[int, str]:
    """position of a feature -> the column or field of its quality.

    Raises `SettingsError` for one of no feature.
    """
    positions = {feature.name: place for place, feature in enumerate(contract.features)}
    for name in quality:
        if name not in positions:
            raise SettingsError(
                f"[{section}.quality]: {name!r} is no feature of this federation:"
                f" {', '.join(positions)}"
            )
    return {positions[name]: column for name, column in quality.items()}
