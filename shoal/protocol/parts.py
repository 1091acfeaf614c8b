"""Parts of the only cluster of a model, as a snapshot has them.

They are cells for orientation, and no clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shoal.config.contract import Feature
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import nearest_over_present
from shoal.protocol.checks import TEXT_CHARACTERS_MAX, is_count, is_number, is_text

NO_PART = 0


class Part(NamedTuple):
    """One part."""

    number: int
    """lasting number, 1 or more"""
    label: str
    """what sets it apart from the other parts, such as "Temperature high\""""
    text: str
    """the same in a sentence, in units"""
    share: float
    """share of the readings, 0 to 1"""
    features: list[int]
    """positions of the features that the label tells"""
    centre: list[float]
    """place in unit coordinates, within the bounds; a reading is in the part with the nearest one
    over the features that are numbers"""

    @property
    def title(self) -> str:
        """Number and label in one line, as a label of a reading has them."""
        return f"{self.number} {self.label}"[:TEXT_CHARACTERS_MAX]


def are_parts(value: object) -> bool:
    """Whether this can be a list of `Part`s of one model, each as a list."""
    if not (isinstance(value, list) and all(map(_is_part, value))):
        return False
    numbers = set()
    widths = set()
    for entry in value:
        part = Part(*entry)
        numbers.add(part.number)
        widths.add(len(part.centre))
    return len(widths) <= 1 and len(numbers) == len(value)


def _is_part(value: object) -> bool:
    if not isinstance(value, list) or len(value) != len(Part._fields):
        return False
    number, label, text, share, features, centre = value
    if not isinstance(features, list) or not isinstance(centre, list):
        return False
    for coordinate in (share, *centre):
        if not is_number(coordinate) or not 0 <= coordinate <= 1:
            return False
    texts = is_text(label) and is_text(text)
    return texts and is_count(number, 1) and all(map(is_count, features))


def number_features(features: Sequence[Feature]) -> Ints:
    """Positions of the features that are numbers, which decide parts.

    The mean of a category, or across the cut of a circle, is no value of it.
    """
    positions = [j for j, feature in enumerate(features) if feature.kind == "number"]
    # With the type: without any, NumPy would make floats.
    return np.array(positions, dtype=np.int64)


def part_numbers(parts: Sequence[Part], rows: Floats, features: Sequence[Feature]) -> Ints:
    """Rows (n, d) in unit coordinates -> (n,) the number of the part of each.

    NaN stands for a missing value. `NO_PART` without parts, and for a row that lacks all numbers.
    """
    numbers_of_rows = np.full(len(rows), NO_PART, dtype=np.int64)
    columns = number_features(features)
    if not parts or not len(columns) or len(parts[0].centre) != rows.shape[1]:
        return numbers_of_rows
    usable = np.flatnonzero(~np.isnan(rows[:, columns]).all(axis=1))
    centres = np.array([part.centre for part in parts])[:, columns]
    nearest, _ = nearest_over_present(np.clip(rows[usable][:, columns], 0.0, 1.0), centres)
    numbers_of_rows[usable] = np.array([part.number for part in parts])[nearest]
    return numbers_of_rows
