"""A leaf of the tree: a box, and for each of its axes the histograms of what was counted in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.density_tree.axes import Axes
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.density_tree import Valleys, find_valleys

BINS: Final = 16
SPANS: Final = (1, 2, 4, 8)
"""coarse bins over which fine bins may lie: each holds a whole number of fine bins"""
NO_ZOOM: Final = -1
UNKNOWN_ZOOM: Final = -2
"""an epoch in which an axis was another one, or that was not kept"""
EPOCHS_KEPT: Final = 4
"""earlier epochs of an axis of which it is kept where fine bins lay: clients count under plans that
they have read late"""
NO_IDENTITY: Final = -1
MASS_MIN: Final = 60.0
"""readings on an axis below which its support is not judged"""
OUTSIDE_SHARE: Final = 0.003
"""share of the readings that may lie outside of the support"""
SUPPORT_SIGNIFICANCE: Final = 2.5
"""standard deviations of its noise above which what lies outside is more than that share"""
NEWER_SIGNIFICANCE: Final = 4.0
"""standard deviations above zero from which the readings since the tree changed last show where
recent ones lie"""
FINE_EXPOSURE: Final = 0.2
"""fine bins are believed once they have this share of their axis's exposure"""
FINE_SIGNIFICANCE: Final = 4.0
"""standard deviations above zero from which all that fine bins hold shows how readings lie in them
"""


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
    """A leaf with A axes, features first, then oblique axes that were cut, then other oblique axes.

    Each axis has `BINS` coarse bins over its whole range. Where its readings lie in a small part of
    that, `BINS` fine bins lie over the `span` coarse ones from `zoom` on. A client then counts the
    coarse bins outside of them and the fine ones, which are the *cells* of the axis: every reading
    is in one cell, and the coarse bins below fine ones are their sums.
    """

    leaf_id: int
    low: Floats
    """(d,) lower corner of its box"""
    high: Floats
    """(d,)"""
    axes: Axes
    kept: int
    """number of the axes that stay as long as the leaf: features and oblique axes that a cut above
    used"""
    start: Floats = field(default_factory=lambda: np.empty(0))
    """(A,) where the range of each axis begins"""
    end: Floats = field(default_factory=lambda: np.empty(0))
    """(A,)"""

    def __post_init__(self) -> None:
        a = len(self.axes)
        self.start, self.end = self.axes.box_range(self.low, self.high)
        self.coarse = np.zeros((a, BINS))
        self.coarse_noise = np.zeros((a, BINS))
        self.earlier = np.zeros((a, BINS))
        """what the coarse bins held when the tree changed last"""
        self.earlier_noise = np.zeros(a)
        """the variance of the noise in their sum"""
        self.fine = np.zeros((a, BINS))
        self.fine_noise = np.zeros((a, BINS))
        self.zoom: Ints = np.full(a, NO_ZOOM)
        self.span: Ints = np.zeros(a, dtype=np.int64)
        self.exposure = np.zeros(a)
        self.fine_exposure = np.zeros(a)
        self.epoch: Ints = np.zeros(a, dtype=np.int64)
        """changes of the cells of each axis"""
        self.earlier_zoom: Ints = np.full((a, EPOCHS_KEPT), UNKNOWN_ZOOM)
        """`zoom` in the epochs before, the latest one first"""
        self.earlier_span: Ints = np.zeros((a, EPOCHS_KEPT), dtype=np.int64)
        self.oblique_drawn = 0
        """oblique axes that the leaf has had"""
        self.identity = NO_IDENTITY
        """identity of the cluster that it is part of, `NO_IDENTITY` before it is part of one; below
        that, of a candidate (see `Identities`)"""
        self.counted = 0.0
        """readings that fell into its box since the stream began, as far as counts say: what its
        shares of all are made of, so they never fade"""
        self.uncovered = 0.0
        """those of them that came before its axes began to count, unless these took them over"""
        self.recent = 0.0
        """recent readings, which fade"""
        self.recent_noise = 0.0
        """the variance of their noise"""
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
        """The best valley of each axis: in the fine bins where it is significant there, else in the
        coarse ones."""
        a = len(self.axes)
        # Coarse and fine bins of all axes at once: the search takes about as long for few as for
        # many.
        valleys = find_valleys(
            np.concatenate([self.coarse, self.fine]),
            np.concatenate([self.coarse_noise, self.fine_noise]),
            depth,
        )
        coarse = Valleys(*(values[:a] for values in valleys))
        fine = Valleys(*(values[a:] for values in valleys))
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
        """Add the counts of one block: coarse cells outside the zoom, then fine cells. `variance`
        is their noise."""
        coarse, noise = self.in_coarse_bins(axis, counts, variance)
        self.coarse[axis] += coarse
        self.coarse_noise[axis] += noise
        if self.zoom[axis] != NO_ZOOM:
            self.fine[axis] += counts[BINS - int(self.span[axis]) :]
            self.fine_noise[axis] += variance
            self.fine_exposure[axis] += exposure
        self.exposure[axis] += exposure

    def in_coarse_bins(self, axis: int, counts: Floats, variance: float) -> tuple[Floats, Floats]:
        """The counts of one block -> (BINS,) counts of the coarse bins, and the variances of their
        noise."""
        zoom = int(self.zoom[axis])
        span = int(self.span[axis])
        noise = np.full(BINS, variance)
        if zoom == NO_ZOOM:
            return counts, noise
        before = counts[:zoom]
        after = counts[zoom : BINS - span]
        fine = counts[BINS - span :]
        # A coarse bin below fine ones is the sum of that many counts, each with noise of its own.
        noise[zoom : zoom + span] *= BINS // span
        return np.concatenate([before, fine.reshape(span, -1).sum(axis=1), after]), noise

    def is_counted_by(self, axis: int, epoch: int, cells: int) -> bool:
        """Whether counts of an axis, of this epoch and this number of cells, are of the cells that
        the axis has now."""
        if not 0 <= axis < len(self.axes) or self.epoch[axis] != epoch:
            return False
        return cells == number_of_cells(int(self.zoom[axis]), int(self.span[axis]))

    def support(self, axis: int, significance: float) -> tuple[int, int]:
        """[first, last) coarse bins that hold all significant mass."""
        total = float(self.coarse[axis].sum())
        allowed = OUTSIDE_SHARE * total
        mass = np.concatenate([[0.0], np.cumsum(self.coarse[axis])])
        noise = np.concatenate([[0.0], np.cumsum(self.coarse_noise[axis])])
        first = 0
        last = BINS
        while first < BINS - 1:
            error = significance * math.sqrt(noise[first + 1])
            if mass[first + 1] > allowed + error:
                break
            first += 1
        while last > first + 1:
            error = significance * math.sqrt(noise[BINS] - noise[last - 1])
            if total - mass[last - 1] > allowed + error:
                break
            last -= 1
        return first, last

    def zoom_in(self, significance: float, finest: float) -> bool:
        """Lay fine bins over the support of each axis where its mass is significant. Returns
        whether any axis changed.

        `finest` is the smallest fine bin, as a share of the range of a feature.
        """
        changed = False
        total = self.coarse.sum(axis=1)
        error = np.sqrt(np.maximum(total, 0.0) + self.coarse_noise.sum(axis=1))
        is_known = total >= np.maximum(MASS_MIN, 2.0 * significance * error)
        for axis in np.flatnonzero(is_known).tolist():
            changed |= self._zoom_in_on(axis, finest)
        return changed

    def _zoom_in_on(self, axis: int, finest: float) -> bool:
        """Lay fine bins over the support of one axis. Returns whether they changed."""
        first, last = self.support(axis, SUPPORT_SIGNIFICANCE)
        # The least span that covers the support.
        span = next((span for span in SPANS if span >= last - first), 0)
        # Readings all over the axis need no closer look, and below the finest bin there is nothing
        # to see.
        if not span or self.bin_width[axis] * span / BINS < finest:
            return False
        zoom = int(self.zoom[axis])
        own_span = int(self.span[axis])
        # Bins that cover the support already, and not too widely, keep what they have counted.
        if zoom != NO_ZOOM and zoom <= first and last <= zoom + own_span and own_span <= span:
            return False
        # Counts of the bins before, which are still on their way, must not be added to these.
        self._begin_epoch(axis)
        # In the middle of the bins, within the axis.
        self.zoom[axis] = min(max(0, first - (span - (last - first)) // 2), BINS - span)
        self.span[axis] = span
        self.fine[axis] = 0.0
        self.fine_noise[axis] = 0.0
        self.fine_exposure[axis] = 0.0
        return True

    def _begin_epoch(self, axis: int) -> None:
        """Keep where the fine bins of an axis lie, which change now."""
        self.earlier_zoom[axis] = [self.zoom[axis], *self.earlier_zoom[axis, :-1]]
        self.earlier_span[axis] = [self.span[axis], *self.earlier_span[axis, :-1]]
        self.epoch[axis] += 1

    def redraw(self, axis: int, new: Axes) -> None:
        """Put one new axis in the place of another, with nothing counted."""
        order = np.arange(len(self.axes))
        order[axis] = len(self.axes)
        self.axes = self.axes.with_more(new).take(order)
        self.oblique_drawn += 1
        self.clear(axis)
        # What was counted in earlier epochs was counted on the axis that was here before.
        self.earlier_zoom[axis] = UNKNOWN_ZOOM
        start, end = self.axes.box_range(self.low, self.high)
        self.start[axis] = start[axis]
        self.end[axis] = end[axis]

    def density(self, axis: int, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Intervals [low, high) (n,) on an axis -> (n,) readings in each per reading of exposure,
        and its variance."""
        exposure = self.exposure[axis]
        if exposure <= 0.0:
            return np.zeros(len(low)), np.zeros(len(low))
        width = float(self.bin_width[axis])
        start = float(self.start[axis])
        mass, variance = _mass_between(
            self.coarse[axis],
            self.coarse_noise[axis],
            (low - start) / width,
            (high - start) / width,
        )
        mass = mass / exposure
        variance = variance / exposure**2
        if self.zoom[axis] != NO_ZOOM and self.fine_exposure[axis] > FINE_EXPOSURE * exposure:
            scale = self._fine_scale(axis)
            if scale is not None:
                first = start + int(self.zoom[axis]) * width
                last = first + int(self.span[axis]) * width
                # Edges of bins are products of fractions: equal ones may differ in the last bit.
                inside = (low >= first - 1e-12) & (high <= last + 1e-12)
                fine, fine_variance = self._fine_mass(axis, first, width, low, high)
                mass = np.where(inside, scale * fine, mass)
                variance = np.where(inside, scale**2 * fine_variance, variance)
        here = (start < high) & (self.end[axis] > low)
        # Beyond the ends of the axis nothing was counted, and the reading more that makes an empty
        # bin uncertain must not stand there either.
        return here * mass, here * variance

    def _fine_scale(self, axis: int) -> float | None:
        """Readings per reading of exposure that one in the fine bins of an axis stands for; None
        where the fine bins do not show how readings lie in them.

        Fine bins say where in their range readings lie, coarse ones how many: fine bins may have
        been laid while the state that they lie over was absent, and their own density would make
        it a low one for good.
        """
        fine = float(self.fine[axis].sum())
        noise = float(self.fine_noise[axis].sum())
        if fine <= FINE_SIGNIFICANCE * math.sqrt(max(fine, 0.0) + noise + 1.0):
            return None
        zoom = int(self.zoom[axis])
        coarse = float(self.coarse[axis, zoom : zoom + int(self.span[axis])].sum())
        return max(coarse, 0.0) / fine / float(self.exposure[axis])

    def _fine_mass(
        self, axis: int, first: float, width: float, low: Floats, high: Floats
    ) -> tuple[Floats, Floats]:
        """Intervals [low, high) (n,) -> (n,) readings in the fine bins there, and their variance.

        The first fine bin begins at `first`; `width` is that of coarse ones.
        """
        fine_width = int(self.span[axis]) * width / BINS
        return _mass_between(
            self.fine[axis],
            self.fine_noise[axis],
            (low - first) / fine_width,
            (high - first) / fine_width,
        )

    def end_look(self) -> None:
        """The tree changes: what is counted from now on is newer than what the bins hold."""
        self.earlier = self.coarse.copy()
        self.earlier_noise = self.coarse_noise.sum(axis=1)

    def newer_share(self, axis: int, at: float) -> float | None:
        """Share of the readings below a place of an axis among those since the tree changed last;
        None where they do not stand out from their noise."""
        newer = self.coarse[axis] - self.earlier[axis]
        total = float(newer.sum())
        noise = max(float(self.coarse_noise[axis].sum() - self.earlier_noise[axis]), 0.0)
        if total <= NEWER_SIGNIFICANCE * math.sqrt(max(total, 0.0) + noise + 1.0):
            return None
        start = float(self.start[axis])
        below = float(rebinned(newer, start, float(self.end[axis]), start, at).sum())
        return min(1.0, max(0.0, below / total))

    def counted_below(self, axis: int, at: float, share: float) -> tuple[float, float]:
        """The parts of `counted` and of `uncovered` below a place of an axis, where `share` of what
        the axis has counted lies below.

        Readings that the axis has not counted lie as those that it counted first: a state that is
        new has none of them.
        """
        oldest = share
        total = float(self.earlier[axis].sum())
        noise = float(self.earlier_noise[axis])
        if total > NEWER_SIGNIFICANCE * math.sqrt(max(total, 0.0) + noise + 1.0):
            start = float(self.start[axis])
            end = float(self.end[axis])
            below = float(rebinned(self.earlier[axis], start, end, start, at).sum())
            oldest = below / total
        # Noise may move a share beyond 0 or 1; then one part would have fewer readings than none.
        uncovered = self.uncovered * min(1.0, max(0.0, oldest))
        covered = (self.counted - self.uncovered) * min(1.0, max(0.0, share))
        return covered + uncovered, uncovered

    def fade(self, factor: float) -> None:
        """Multiply everything counted by a factor; its variance fades twice as fast."""
        self.coarse = self.coarse * factor
        self.earlier = self.earlier * factor
        self.earlier_noise = self.earlier_noise * factor**2
        self.fine = self.fine * factor
        self.exposure = self.exposure * factor
        self.fine_exposure = self.fine_exposure * factor
        self.coarse_noise = self.coarse_noise * factor**2
        self.fine_noise = self.fine_noise * factor**2

    def clear(self, axis: int) -> None:
        """Forget what one axis has counted."""
        self.coarse[axis] = 0
        self.coarse_noise[axis] = 0
        self.earlier[axis] = 0
        self.earlier_noise[axis] = 0
        self.exposure[axis] = 0
        self.hint[axis] = 0
        self.clear_fine(axis)

    def clear_fine(self, axis: int) -> None:
        """Lay no fine bins over one axis any more. What was counted under them no longer fits."""
        self._begin_epoch(axis)
        self.fine[axis] = 0
        self.fine_noise[axis] = 0
        self.fine_exposure[axis] = 0
        self.span[axis] = 0
        self.zoom[axis] = NO_ZOOM


def number_of_cells(zoom: int, span: int) -> int:
    """Number of the cells of an axis."""
    return BINS if zoom == NO_ZOOM else 2 * BINS - span


def _mass_between(
    counts: Floats, noise: Floats, low: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """Counts of bins, and intervals (n,) in units of bins -> (n,) readings in each and their
    variance."""
    n = len(counts)
    edges = np.arange(n + 1)
    low = np.clip(low, 0, n)
    high = np.clip(high, 0, n)
    mass_before = np.concatenate([[0.0], np.cumsum(counts)])
    noise_before = np.concatenate([[0.0], np.cumsum(noise)])
    mass = np.interp(high, edges, mass_before) - np.interp(low, edges, mass_before)
    variance = np.interp(high, edges, noise_before) - np.interp(low, edges, noise_before)
    # One reading more, so that an empty bin without noise is not certain.
    return mass, np.maximum(mass, 0.0) + variance + 1.0


def rebinned(counts: Floats, start: float, end: float, new_start: float, new_end: float) -> Floats:
    """Counts of equal bins over [start, end] -> counts of the same number of bins over another
    range.

    Within a bin, counts are spread evenly.
    """
    n = len(counts)
    edges = (np.linspace(new_start, new_end, n + 1) - start) / (end - start) * n
    before = np.concatenate([[0.0], np.cumsum(counts)])
    return np.diff(np.interp(np.clip(edges, 0, n), np.arange(n + 1), before))
