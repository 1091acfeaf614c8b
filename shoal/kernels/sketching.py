"""Weighted points reduced by merging near ones, and all distances between points at once."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.distance import Floats

Singles = NDArray[np.float32]
Positions = NDArray[np.int64]

NEIGHBOURS, NEIGHBOURS_WIDE, WIDE_FEATURES = 3, 5, 32
"""nearest points that each may be merged with before distances are taken again; more for points of so many features,
whose distances cost more than the search for the nearest"""
FEW_FEATURES: Final = 8
"""features up to which sums by feature are faster than sums of whole points"""
BLOCK_ROWS: Final = 128
"""points whose distances from all others are computed at a time"""
TIE: Final = 1e-12
"""squared distance, in the frame, that decides between points that coincide"""


class Frame(NamedTuple):
    """An affine frame in which points lie in [-1, 1], so that no square can overflow."""

    middle: Floats
    """(d,)"""
    scale: float

    def of(self, points: Floats) -> Floats:
        """points (n, d) -> the same in the frame; those it was not made for can lie outside."""
        return np.asarray((points - self.middle) / self.scale)


def frame_of(points: Floats) -> Frame:
    """points (n, d), n > 0 -> the frame around their range."""
    low, high = points.min(axis=0), points.max(axis=0)
    return Frame(low / 2 + high / 2, float((high / 2 - low / 2).max()) or 1.0)


class Sketch(NamedTuple):
    """n weighted points, each the mean of the readings it stands for."""

    points: Floats
    """(n, d)"""
    mass: Floats
    """(n,) readings"""

    def kept(self, which: Positions | NDArray[np.bool_] | slice) -> Sketch:
        """A copy of some of the points."""
        return Sketch(self.points[which].copy(), self.mass[which].copy())

    def with_more(self, other: Sketch) -> Sketch:
        """These points, and then the others."""
        return Sketch(np.concatenate([self.points, other.points]), np.concatenate([self.mass, other.mass]))


def empty_sketch(width: int) -> Sketch:
    """A sketch of no readings, of `width` features."""
    return Sketch(np.empty((0, width)), np.empty(0))


def squared_between(points: Floats, others: Floats) -> Singles:
    """points (n, d), (m, d) in one frame -> (n, m) squared distances.

    By a matrix product: absolute error about 1e-15 d, so that distances below 1e-7 of the range are not resolved.
    """
    d = points.shape[1]
    left, right = np.empty((len(points), d + 2)), np.empty((len(others), d + 2))
    np.multiply(points, -2.0, out=left[:, :d])
    right[:, :d] = others
    left[:, d] = right[:, d + 1] = 1.0
    left[:, d + 1] = np.einsum("ij,ij->i", points, points)
    right[:, d] = np.einsum("ij,ij->i", others, others)
    out = np.empty((len(points), len(others)), dtype=np.float32)
    # By blocks, because a table of doubles of this size would neither fit a core's cache nor be given memory cheaply.
    for first in range(0, len(points), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        np.maximum(left[rows] @ right.T, 0.0, out=out[rows], casting="same_kind")
    return out


def merged(sketch: Sketch, into: Positions) -> Sketch:
    """(n,) position of the point that each becomes part of -> the sketch of those that are left, in the same order."""
    n, stays = len(into), into == np.arange(len(into))
    mass = np.bincount(into, weights=sketch.mass, minlength=n)
    shares = sketch.mass / mass[into]
    if sketch.points.shape[1] <= FEW_FEATURES:
        columns = [np.bincount(into, weights=column * shares, minlength=n) for column in sketch.points.T]
        return Sketch(np.stack(columns, axis=1)[stays], mass[stays])
    order = np.argsort(into, kind="stable")
    starts = np.searchsorted(into[order], np.flatnonzero(stays))
    return Sketch(np.add.reduceat(sketch.points[order] * shares[order, None], starts, axis=0), mass[stays])


def merge_targets(sketch: Sketch, n_left: int, mass_max: float, groups: Positions | None = None) -> Positions:
    """-> (n,) position of the point that each becomes part of: the first of those merged.

    Pairs of near points are merged until `n_left` are left, those first that add least to the squared distances of
    readings from their points (Ward 1963): only points of the same group, and only up to a mass of `mass_max`. More
    may be left than wanted; calling again with the merged points goes on.
    """
    n, mass = len(sketch.mass), sketch.mass
    into = np.arange(n)
    light = np.flatnonzero(mass + mass.min(initial=0.0) <= mass_max)
    if len(light) < 2:
        return into
    near, gap = _neighbours(sketch.points[light], None if groups is None else groups[light])
    own = mass[light]
    gap *= own[:, None] * own[near] / (own[:, None] + own[near])
    order = np.argsort(gap, axis=None, kind="stable")
    order = order[: np.count_nonzero(gap < np.inf)]
    first, second = order // near.shape[1], near.ravel()[order]
    root = _united(first.tolist(), second.tolist(), own.tolist(), n - n_left, mass_max)
    into[light] = light[root]
    return into


def _united(first: list[int], second: list[int], mass: list[float], wanted: int, mass_max: float) -> list[int]:
    """Pairs in the order to be merged, masses -> the lowest position of those that each is merged with."""
    root = list(range(len(mass)))
    for a, b in zip(first, second, strict=True):
        if wanted <= 0:
            break
        while root[a] != a:
            a = root[a]  # noqa: PLW2901 - up to the root
        while root[b] != b:
            b = root[b]  # noqa: PLW2901 - up to the root
        if a != b and mass[a] + mass[b] <= mass_max:
            low, high = (a, b) if a < b else (b, a)
            root[high] = low
            mass[low] += mass[high]
            wanted -= 1
    # A root stands before all its points, so one pass in order finds the root of each.
    for at, above in enumerate(root):
        root[at] = root[above]
    return root


def _neighbours(points: Floats, groups: Positions | None) -> tuple[Positions, Singles]:
    """points (n, d) -> (n, q) nearest others and (n, q) distances²; infinite: not to be merged."""
    n = len(points)
    framed = frame_of(points).of(points)
    apart = squared_between(framed, framed)
    apart += _ties(1 << max(0, n - 1).bit_length())[:n, :n]
    if groups is not None and (groups != groups[0]).any():
        apart[groups[:, None] != groups] = np.inf
    np.fill_diagonal(apart, np.inf)
    row, q = np.arange(n), min(NEIGHBOURS if points.shape[1] < WIDE_FEATURES else NEIGHBOURS_WIDE, n - 1)
    near, gap = np.empty((n, q), dtype=np.int64), np.empty((n, q), dtype=np.float32)
    for place in range(q):
        near[:, place] = apart.argmin(axis=1)
        gap[:, place] = apart[row, near[:, place]]
        apart[row, near[:, place]] = np.inf
    return near, gap


@lru_cache(maxsize=4)
def _ties(n: int) -> Singles:
    """(n, n) tiny distances². Of points that coincide each prefers the position that differs least in its bits, which
    is mutual: they fall into pairs at once, where the lowest position would be the nearest of them all."""
    at = np.arange(n, dtype=np.int32)
    return np.asarray(np.bitwise_xor.outer(at, at) * np.float32(TIE / n))
