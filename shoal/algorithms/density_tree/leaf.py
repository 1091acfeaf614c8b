"""A leaf of the tree: a box, and for each of its axes the histograms of what was counted in it.

Each axis has B coarse bins over its whole range in the leaf, and, once its support is known, B fine bins over the
`span` coarse bins from `zoom` on. An axis is counted only in windows that ask it, so each has its own `exposure`: the
readings that its counts would hold if they all fell into this leaf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.density_tree.axes import Axes, Ints
from shoal.kernels.distance import Floats
from shoal.kernels.valleys import Valleys, find_valleys

BINS: Final = 16
SPANS: Final = (1, 2, 4, 8)
"""coarse bins over which fine bins may lie: each holds a whole number of fine bins"""
NO_ZOOM: Final = -1
MASS_MIN: Final = 60.0
"""readings on an axis below which its support is not judged"""
OUTSIDE_SHARE: Final = 0.003
"""share of the readings that may lie outside of the support"""
SUPPORT_SIGNIFICANCE: Final = 2.5
FINE_EXPOSURE: Final = 0.2
"""fine bins are believed once they have this share of their axis's exposure"""


class AxisValleys(NamedTuple):
    """The best valley of each of A axes, in the coordinates of the axis."""

    significance: Floats
    """(A,) as in `find_valleys`"""
    position: Floats
    """(A,)"""
    bin_width: Floats
    """(A,) of the bins in which it was found"""
    hint: Floats
    """(A,)"""


@dataclass
class Leaf:
    """A leaf with A axes, features first, then oblique axes that were cut, then other oblique axes."""

    leaf_id: int
    low: Floats
    """(d,) lower corner of its box"""
    high: Floats
    """(d,)"""
    axes: Axes
    kept: int
    """how many of the axes stay as long as the leaf: features and oblique axes that a cut above used"""
    start: Floats = field(default_factory=lambda: np.empty(0))
    """(A,) where the range of each axis begins"""
    end: Floats = field(default_factory=lambda: np.empty(0))
    """(A,)"""

    def __post_init__(self) -> None:
        a = len(self.axes)
        self.start, self.end = self.axes.box_range(self.low, self.high)
        self.coarse, self.coarse_noise = np.zeros((a, BINS)), np.zeros((a, BINS))
        self.fine, self.fine_noise = np.zeros((a, BINS)), np.zeros((a, BINS))
        self.zoom: Ints = np.full(a, NO_ZOOM)
        self.span: Ints = np.zeros(a, dtype=np.int64)
        self.exposure, self.fine_exposure = np.zeros(a), np.zeros(a)
        self.epoch: Ints = np.zeros(a, dtype=np.int64)
        """how often the cells of each axis have changed; counts of an earlier epoch do not fit"""
        self.oblique_drawn = 0
        """oblique axes that the leaf has had"""
        self.identity = -1
        """of the cluster that it is part of, -1 before it is part of one"""
        self.recent, self.recent_noise = 0.0, 0.0
        """readings counted lately, which fade, and the variance of their noise"""
        self.hint = np.zeros(a)
        """significance of a valley that the histograms of the parent suggested"""

    @property
    def d(self) -> int:
        """Number of features."""
        return len(self.low)

    @property
    def bin_width(self) -> Floats:
        """(A,) of the coarse bins."""
        return (self.end - self.start) / BINS

    def best_valleys(self, depth: float, significance: float) -> AxisValleys:
        """The best valley of each axis: in the fine bins where it is significant there, else in the coarse ones."""
        counts, noise = np.concatenate([self.coarse, self.fine]), np.concatenate([self.coarse_noise, self.fine_noise])
        found, a = find_valleys(counts, noise, depth), len(self.axes)
        coarse, fine = (Valleys(*(each[half] for each in found)) for half in (slice(a), slice(a, None)))
        use_fine = (self.zoom != NO_ZOOM) & (fine.significance > significance)
        fine_bin = self.span / BINS
        in_bins = np.where(use_fine, self.zoom + fine.position * fine_bin, coarse.position)
        return AxisValleys(
            np.where(use_fine, fine.significance, coarse.significance),
            self.start + in_bins * self.bin_width,
            self.bin_width * np.where(use_fine, fine_bin, 1.0),
            np.maximum(coarse.hint, fine.hint),
        )

    def add(self, axis: int, counts: Floats, exposure: float, variance: float) -> None:
        """Add the counts of one block: coarse cells outside the zoom, then fine cells. `variance` is their noise."""
        zoom, span = int(self.zoom[axis]), int(self.span[axis])
        if zoom == NO_ZOOM:
            self.coarse[axis] += counts
            self.coarse_noise[axis] += variance
        else:
            before, after, fine = counts[:zoom], counts[zoom : BINS - span], counts[BINS - span :]
            self.coarse[axis, :zoom] += before
            self.coarse[axis, zoom + span :] += after
            self.coarse[axis, zoom : zoom + span] += fine.reshape(span, -1).sum(axis=1)
            noise = np.full(BINS, variance)
            noise[zoom : zoom + span] *= BINS // span
            self.coarse_noise[axis] += noise
            self.fine[axis] += fine
            self.fine_noise[axis] += variance
            self.fine_exposure[axis] += exposure
        self.exposure[axis] += exposure

    def is_counted_by(self, axis: int, epoch: int, cells: int) -> bool:
        """Whether counts of an axis in this epoch, in so many cells, are of the cells that the axis has now."""
        if not 0 <= axis < len(self.axes) or self.epoch[axis] != epoch:
            return False
        return cells == (BINS if self.zoom[axis] == NO_ZOOM else 2 * BINS - int(self.span[axis]))

    def support(self, axis: int, significance: float) -> tuple[int, int]:
        """[first, last) coarse bins outside of which no mass is significant."""
        total, allowed = float(self.coarse[axis].sum()), OUTSIDE_SHARE * float(self.coarse[axis].sum())
        held = np.concatenate([[0.0], np.cumsum(self.coarse[axis])])
        noise = np.concatenate([[0.0], np.cumsum(self.coarse_noise[axis])])
        first, last = 0, BINS
        while first < BINS - 1 and held[first + 1] <= allowed + significance * math.sqrt(noise[first + 1]):
            first += 1
        while last > first + 1 and total - held[last - 1] <= allowed + significance * math.sqrt(
            noise[BINS] - noise[last - 1]
        ):
            last -= 1
        return first, last

    def zoom_in(self, significance: float, finest: float) -> bool:
        """Lay fine bins over the support of each axis where its mass is significant. Returns whether any axis changed.

        `finest` is the smallest fine bin, as a share of the range of a feature.
        """
        changed = False
        total = self.coarse.sum(axis=1)
        error = np.sqrt(np.maximum(total, 0.0) + self.coarse_noise.sum(axis=1))
        for axis in np.flatnonzero(total >= np.maximum(MASS_MIN, 2.0 * significance * error)).tolist():
            first, last = self.support(axis, SUPPORT_SIGNIFICANCE)
            span = next((span for span in SPANS if span >= last - first), 0)
            if not span or self.bin_width[axis] * span / BINS < finest:
                continue
            zoom, own = int(self.zoom[axis]), int(self.span[axis])
            if zoom != NO_ZOOM and zoom <= first and last <= zoom + own and own <= span:
                continue
            self.zoom[axis] = min(max(0, first - (span - (last - first)) // 2), BINS - span)
            self.span[axis] = span
            self.fine[axis] = self.fine_noise[axis] = self.fine_exposure[axis] = 0.0
            self.epoch[axis] += 1
            changed = True
        return changed

    def redraw(self, axis: int, new: Axes) -> None:
        """Put one new axis in the place of another, with nothing counted."""
        order = [i if i != axis else len(self.axes) for i in range(len(self.axes))]
        self.axes = self.axes.with_more(new).take(order)
        self.oblique_drawn += 1
        self.clear(axis)
        start, end = self.axes.box_range(self.low, self.high)
        self.start[axis], self.end[axis] = start[axis], end[axis]

    def density(self, axis: int, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Intervals [low, high) (n,) on an axis -> (n,) readings in each per reading of exposure, and its variance."""
        if self.exposure[axis] <= 0.0:
            return np.zeros(len(low)), np.zeros(len(low))
        width, start = float(self.bin_width[axis]), float(self.start[axis])
        mass, variance = _held(
            self.coarse[axis], self.coarse_noise[axis], (low - start) / width, (high - start) / width
        )
        mass, variance = mass / self.exposure[axis], variance / self.exposure[axis] ** 2
        if self.zoom[axis] != NO_ZOOM and self.fine_exposure[axis] > FINE_EXPOSURE * self.exposure[axis]:
            first = start + int(self.zoom[axis]) * width
            last, fine_width = first + int(self.span[axis]) * width, int(self.span[axis]) * width / BINS
            inside = (low >= first - 1e-12) & (high <= last + 1e-12)
            fine, noise = _held(
                self.fine[axis], self.fine_noise[axis], (low - first) / fine_width, (high - first) / fine_width
            )
            exposure = self.fine_exposure[axis]
            mass, variance = np.where(inside, fine / exposure, mass), np.where(inside, noise / exposure**2, variance)
        here = (start < high) & (self.end[axis] > low)
        return here * mass, here * variance

    def fade(self, factor: float) -> None:
        """Multiply everything counted by a factor; its variance fades twice as fast."""
        for name in ("coarse", "fine", "exposure", "fine_exposure"):
            setattr(self, name, getattr(self, name) * factor)
        for name in ("coarse_noise", "fine_noise"):
            setattr(self, name, getattr(self, name) * factor**2)

    def clear(self, axis: int) -> None:
        """Forget what one axis has counted."""
        for values in (
            self.coarse, self.fine, self.coarse_noise, self.fine_noise, self.exposure, self.fine_exposure, self.hint,
            self.span,
        ):  # fmt: skip
            values[axis] = 0
        self.zoom[axis] = NO_ZOOM
        self.epoch[axis] += 1


def _held(counts: Floats, noise: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Counts of bins, and intervals (n,) in units of bins -> (n,) readings in each and their variance."""
    edge = np.arange(len(counts) + 1)
    ends = np.clip(low, 0, len(counts)), np.clip(high, 0, len(counts))
    sums = [np.concatenate([[0.0], np.cumsum(values)]) for values in (counts, noise)]
    mass, variance = (np.interp(ends[1], edge, held) - np.interp(ends[0], edge, held) for held in sums)
    return mass, np.maximum(mass, 0.0) + variance + 1.0


def rebinned(counts: Floats, start: float, end: float, new_start: float, new_end: float) -> Floats:
    """Counts of equal bins over [start, end] -> counts of as many over another range; within a bin they are spread."""
    n = len(counts)
    at = (np.linspace(new_start, new_end, n + 1) - start) / (end - start) * n
    return np.diff(np.interp(np.clip(at, 0, n), np.arange(n + 1), np.concatenate([[0.0], np.cumsum(counts)])))
