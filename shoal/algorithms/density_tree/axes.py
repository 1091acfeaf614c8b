"""Axes on which readings are counted: the features, and oblique axes that combine two of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.distance import Floats

Ints = NDArray[np.int64]

ANGLES = (30.0, 45.0, 60.0)
"""degrees between an oblique axis and the first of its two features, to either side"""
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""steps of this part of a list go through it evenly"""


@dataclass(frozen=True)
class Axes:
    """A axes; the position of a row on one is first_weight * row[first] + second_weight * row[second].

    The weights of an axis have absolute values that sum to 1. A feature is the axis with second weight 0.
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

    @property
    def oblique(self) -> NDArray[np.bool_]:
        """(A,) whether an axis combines two features."""
        return np.asarray(self.second_weight != 0.0)

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_] | list[int]) -> Axes:
        """Some of the axes, by positions or by a mask."""
        return Axes(self.first[which], self.second[which], self.first_weight[which], self.second_weight[which])

    def with_more(self, other: Axes) -> Axes:
        """These axes followed by others."""
        return Axes(*(np.concatenate(pair) for pair in zip(self.parts(), other.parts(), strict=True)))

    def parts(self) -> tuple[Ints, Ints, Floats, Floats]:
        """The four arrays, in the order of the fields."""
        return self.first, self.second, self.first_weight, self.second_weight

    @cached_property
    def _any_oblique(self) -> bool:
        return bool(self.oblique.any())

    def positions(self, rows: Floats, which: Ints, axis: Ints) -> Floats:
        """rows (n, d), of which m (m,) have an axis each (m,) -> (m,) their positions on it."""
        values, start = rows.reshape(-1), which * rows.shape[1]
        found = values.take(start + self.first.take(axis))
        if self._any_oblique:
            found *= self.first_weight.take(axis)
            found += values.take(start + self.second.take(axis)) * self.second_weight.take(axis)
        return np.asarray(found)

    def dense(self, d: int) -> Floats:
        """(A, d) the weights of all features."""
        weights, axis = np.zeros((len(self), d)), np.arange(len(self))
        weights[axis, self.first] += self.first_weight
        weights[axis, self.second] += self.second_weight
        return weights

    def box_range(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Corners (d,), (d,) of a box -> (A,), (A,) the least and the greatest position in it."""
        ends = []
        for feature, weight in ((self.first, self.first_weight), (self.second, self.second_weight)):
            ends.append((weight * low[feature], weight * high[feature]))
        (a, b), (c, e) = ends
        return np.minimum(a, b) + np.minimum(c, e), np.maximum(a, b) + np.maximum(c, e)

    def same_as(self, other: Axes, position: int) -> NDArray[np.bool_]:
        """(A,) which of these are the axis at `position` of `other`."""
        found = np.ones(len(self), dtype=np.bool_)
        for mine, theirs in zip(self.parts(), other.parts(), strict=True):
            found &= mine == theirs[position]
        return found


NO_AXES = Axes.features(0)


def oblique_axes(first: int, count: int, width: Floats, start: int) -> Axes:
    """The public oblique axes number first .. first + count - 1: two features at an angle, in units of `width` (d,).

    Every pair of features at every angle comes once before any comes again. `start` says where the order begins.
    """
    d, found = len(width), NO_AXES
    total = d * (d - 1) // 2 * 2 * len(ANGLES)
    stride = next(step for step in range(int(total * GOLDEN), 2 * total + 2) if math.gcd(step, total) == 1)
    for number in range(first, first + count):
        place, mirrored = divmod((start + number * stride) % total, 2)
        place, angle = divmod(place, len(ANGLES))
        p, q = _pair(place, d)
        found = found.with_more(_at_angle(p, q, math.radians(ANGLES[angle]), bool(mirrored), width))
    return found


def _pair(place: int, d: int) -> tuple[int, int]:
    """The pair p < q of d features at a place of their list, which is ordered by p."""
    p = 0
    while place >= d - 1 - p:
        place, p = place - (d - 1 - p), p + 1
    return p, p + 1 + place


def _at_angle(p: int, q: int, angle: float, mirrored: bool, width: Floats) -> Axes:
    weights = np.array([math.cos(angle) / width[p], math.sin(angle) / width[q] * (-1.0 if mirrored else 1.0)])
    weights /= np.abs(weights).sum()
    return Axes(np.array([p]), np.array([q]), weights[:1], weights[1:])
