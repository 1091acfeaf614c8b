"""Axes on which readings are counted: the features, and oblique axes that combine two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np

from shoal.kernels.arrays import AnyArray, Bools, Floats, Ints

# Measured: with six axes at these angles bars across four features are found at an epsilon of 1, 2
# and 4 (ARI .75, 1 and 1; 0 without), while blobs of 8 and 16 features lose no more than .02 at 2
# and 4.
ANGLES: Final = (30.0, 45.0, 60.0)
"""degrees between an oblique axis and the first of its two features, to either side"""
GOLDEN: Final = (math.sqrt(5.0) - 1.0) / 2.0
"""steps of this part of a list go through it evenly"""
AXIS_PARTS: Final = ("first", "second", "first_weight", "second_weight")
"""names of the four arrays of axes in a snapshot, after what the axes are of"""


@dataclass(frozen=True)
class Axes:
    """A axes; the position of a row on one is first_weight * row[first] + second_weight *
    row[second].

    The weights of an axis have absolute values that sum to 1. A feature is the axis with second
    weight 0.
    """

    first: Ints
    """(A,)"""
    second: Ints
    """(A,)"""
    first_weight: Floats
    """(A,)"""
    second_weight: Floats
    """(A,)"""

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def features(cls, d: int) -> Self:
        """One axis for each of the d features, in their order."""
        return cls(np.arange(d), np.arange(d), np.ones(d), np.zeros(d))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray], name: str) -> Self:
        """The axes of `name` in a snapshot, "cut" or "axis"."""
        return cls(*(arrays[f"{name}_{part}"] for part in AXIS_PARTS))

    def arrays(self, name: str) -> dict[str, AnyArray]:
        """The axes as those of `name` in a snapshot; copies."""
        parts = zip(AXIS_PARTS, self.parts(), strict=True)
        return {f"{name}_{part}": values.copy() for part, values in parts}

    def take(self, which: Ints | Bools | list[int]) -> Axes:
        """Some of the axes, by positions or by a mask."""
        return Axes(
            self.first[which],
            self.second[which],
            self.first_weight[which],
            self.second_weight[which],
        )

    def with_more(self, other: Axes) -> Axes:
        """Append other axes to these."""
        return Axes(
            np.concatenate([self.first, other.first]),
            np.concatenate([self.second, other.second]),
            np.concatenate([self.first_weight, other.first_weight]),
            np.concatenate([self.second_weight, other.second_weight]),
        )

    def parts(self) -> tuple[Ints, Ints, Floats, Floats]:
        """The four arrays, in the order of the fields."""
        return self.first, self.second, self.first_weight, self.second_weight

    @cached_property
    def _any_oblique(self) -> bool:
        return bool((self.second_weight != 0.0).any())

    def positions(self, rows: Floats, which: Ints, axis: Ints) -> Floats:
        """rows (n, d), positions of m of them (m,), an axis for each of these (m,) -> (m,) their
        positions on it."""
        # `take` from the flat table is several times as fast as an index of rows and columns, and
        # most trees have no oblique axis: every reading comes through here at every cut.
        values = rows.reshape(-1)
        start = which * rows.shape[1]
        position = values.take(start + self.first.take(axis))
        if self._any_oblique:
            position *= self.first_weight.take(axis)
            position += values.take(start + self.second.take(axis)) * self.second_weight.take(axis)
        return np.asarray(position)

    def box_range(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Corners (d,), (d,) of a box -> (A,), (A,) the least and the greatest position in it."""
        first_low = self.first_weight * low[self.first]
        first_high = self.first_weight * high[self.first]
        second_low = self.second_weight * low[self.second]
        second_high = self.second_weight * high[self.second]
        # A weight may be negative: then the high corner has the lesser position.
        least = np.minimum(first_low, first_high) + np.minimum(second_low, second_high)
        greatest = np.maximum(first_low, first_high) + np.maximum(second_low, second_high)
        return least, greatest

    def same_as(self, other: Axes, position: int) -> Bools:
        """(A,) which of these are the axis at `position` of `other`."""
        same = np.ones(len(self), dtype=np.bool_)
        for mine, theirs in zip(self.parts(), other.parts(), strict=True):
            same &= mine == theirs[position]
        return same


NO_AXES: Final = Axes.features(0)


def oblique_axes(first: int, count: int, width: Floats, start: int) -> Axes:
    """The public oblique axes number first .. first + count - 1: two features at an angle, in units
    of `width` (d,).

    Every pair of features at every angle comes once before any comes again. `start` says where the
    order begins.
    """
    d = len(width)
    axes = NO_AXES
    total = d * (d - 1) // 2 * 2 * len(ANGLES)
    stride = _stride(total)
    for number in range(first, first + count):
        place, mirrored = divmod((start + number * stride) % total, 2)
        place, angle = divmod(place, len(ANGLES))
        p, q = _pair(place, d)
        axis = _at_angle(p, q, math.radians(ANGLES[angle]), bool(mirrored), width)
        axes = axes.with_more(axis)
    return axes


def _stride(total: int) -> int:
    """The step by which a list of this length is gone through evenly."""
    stride = int(total * GOLDEN)
    # Without a common divisor, so that its multiples come to every place of the list once.
    while math.gcd(stride, total) != 1:
        stride += 1
    return stride


def _pair(place: int, d: int) -> tuple[int, int]:
    """The pair p < q of d features at a place of their list, which is ordered by p."""
    p = 0
    while place >= d - 1 - p:
        place = place - (d - 1 - p)
        p = p + 1
    return p, p + 1 + place


def _at_angle(p: int, q: int, angle: float, mirrored: bool, width: Floats) -> Axes:
    side = -1.0 if mirrored else 1.0
    weights = np.array([math.cos(angle) / width[p], math.sin(angle) / width[q] * side])
    # Then positions of a unit box span at most 1, as those of a feature do.
    weights /= np.abs(weights).sum()
    return Axes(np.array([p]), np.array([q]), weights[:1], weights[1:])
