"""Parts of the only cluster of a model, as a snapshot has them: cells for orientation, which are no
clusters."""

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
    return len({len(one[-1]) for one in value}) <= 1 and len({one[0] for one in value}) == len(
        value
    )


def _is_part(value: object) -> bool:
    if not isinstance(value, list) or len(value) != len(Part._fields):
        return False
    number, label, text, share, features, centre = value
    listed = (
        isinstance(features, list) and isinstance(centre, list) and all(map(is_count, features))
    )
    inside = listed and all(is_number(each) and 0 <= each <= 1 for each in [share, *centre])
    return inside and is_count(number, 1) and is_text(label) and is_text(text)


def number_features(features: Sequence[Feature]) -> Ints:
    """Positions of the features that are numbers, which decide parts.

    The mean of a category, or across the cut of a circle, is no value of it.
    """
    return np.array(
        [j for j, feature in enumerate(features) if feature.kind == "number"], dtype=np.int64
    )


def part_numbers(parts: Sequence[Part], rows: Floats, features: Sequence[Feature]) -> Ints:
    """Rows (n, d) in unit coordinates, NaN for what is missing -> (n,) the number of the part of
    each.

    `NO_PART` without parts, and for a row that lacks all numbers.
    """
    found = np.full(len(rows), NO_PART, dtype=np.int64)
    numbers = number_features(features)
    if parts and len(numbers) and len(parts[0].centre) == rows.shape[1]:
        held = np.flatnonzero(~np.isnan(rows[:, numbers]).all(axis=1))
        centres = np.array([one.centre for one in parts])[:, numbers]
        nearest, _ = nearest_over_present(np.clip(rows[held][:, numbers], 0.0, 1.0), centres)
        found[held] = np.array([one.number for one in parts])[nearest]
    return found
