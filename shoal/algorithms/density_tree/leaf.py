"""A leaf of the tree: a box, and for each of its axes the histograms of what was counted in it.

The axes of a leaf are the features, and oblique axes that combine two of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, Self

import numpy as np

from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.kernels.density_tree import Valleys, find_valleys

ANGLES = (30.0, 45.0, 60.0)
"""degrees between an oblique axis and the first of its two features, to either side"""
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""steps of this part of a list go through it evenly"""


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

    @property
    def oblique(self) -> Bools:
        """(A,) whether an axis combines two features."""
        return np.asarray(self.second_weight != 0.0)

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
            *(np.concatenate(pair) for pair in zip(self.parts(), other.parts(), strict=True))
        )

    def parts(self) -> tuple[Ints, Ints, Floats, Floats]:
        """The four arrays, in the order of the fields."""
        return self.first, self.second, self.first_weight, self.second_weight

    @cached_property
    def _any_oblique(self) -> bool:
        return bool(self.oblique.any())

    def positions(self, rows: Floats, which: Ints, axis: Ints) -> Floats:
        """rows (n, d), positions of m of them (m,), an axis for each of these (m,) -> (m,) their
        positions on it."""
        values = rows.reshape(-1)
        start = which * rows.shape[1]
        found = values.take(start + self.first.take(axis))
        if self._any_oblique:
            found *= self.first_weight.take(axis)
            found += values.take(start + self.second.take(axis)) * self.second_weight.take(axis)
        return np.asarray(found)

    def dense(self, d: int) -> Floats:
        """(A, d) the weights of all features."""
        weights = np.zeros((len(self), d))
        axis = np.arange(len(self))
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

    def same_as(self, other: Axes, position: int) -> Bools:
        """(A,) which of these are the axis at `position` of `other`."""
        found = np.ones(len(self), dtype=np.bool_)
        for mine, theirs in zip(self.parts(), other.parts(), strict=True):
            found &= mine == theirs[position]
        return found


NO_AXES = Axes.features(0)


def oblique_axes(first: int, count: int, width: Floats, start: int) -> Axes:
    """The public oblique axes number first .. first + count - 1: two features at an angle, in units
    of `width` (d,).

    Every pair of features at every angle comes once before any comes again. `start` says where the
    order begins.
    """
    d = len(width)
    found = NO_AXES
    total = d * (d - 1) // 2 * 2 * len(ANGLES)
    # Without a common divisor, so that its multiples come to every place of the list once.
    stride = next(
        step for step in range(int(total * GOLDEN), 2 * total + 2) if math.gcd(step, total) == 1
    )
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
        place = place - (d - 1 - p)
        p = p + 1
    return p, p + 1 + place


def _at_angle(p: int, q: int, angle: float, mirrored: bool, width: Floats) -> Axes:
    weights = np.array(
        [math.cos(angle) / width[p], math.sin(angle) / width[q] * (-1.0 if mirrored else 1.0)]
    )
    # Then positions of a unit box span at most 1, as those of a feature do.
    weights /= np.abs(weights).sum()
    return Axes(np.array([p]), np.array([q]), weights[:1], weights[1:])


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
        self.fine = np.zeros((a, BINS))
        self.fine_noise = np.zeros((a, BINS))
        self.zoom: Ints = np.full(a, NO_ZOOM)
        self.span: Ints = np.zeros(a, dtype=np.int64)
        self.exposure = np.zeros(a)
        self.fine_exposure = np.zeros(a)
        self.epoch: Ints = np.zeros(a, dtype=np.int64)
        """changes of the cells of each axis; counts of an earlier epoch do not fit"""
        self.oblique_drawn = 0
        """oblique axes that the leaf has had"""
        self.identity = -1
        """identity of the cluster that it is part of, -1 before it is part of one"""
        self.recent = 0.0
        self.recent_noise = 0.0
        """recent readings, which fade, and the variance of their noise"""
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
        counts = np.concatenate([self.coarse, self.fine])
        noise = np.concatenate([self.coarse_noise, self.fine_noise])
        found = find_valleys(counts, noise, depth)
        a = len(self.axes)
        coarse, fine = (
            Valleys(*(each[half] for each in found)) for half in (slice(a), slice(a, None))
        )
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
        noise[zoom : zoom + span] *= BINS // span
        return np.concatenate([before, fine.reshape(span, -1).sum(axis=1), after]), noise

    def is_counted_by(self, axis: int, epoch: int, cells: int) -> bool:
        """Whether counts of an axis, of this epoch and this number of cells, are of the cells that
        the axis has now."""
        if not 0 <= axis < len(self.axes) or self.epoch[axis] != epoch:
            return False
        return cells == (BINS if self.zoom[axis] == NO_ZOOM else 2 * BINS - int(self.span[axis]))

    def support(self, axis: int, significance: float) -> tuple[int, int]:
        """[first, last) coarse bins that hold all significant mass."""
        total = float(self.coarse[axis].sum())
        allowed = OUTSIDE_SHARE * float(self.coarse[axis].sum())
        held = np.concatenate([[0.0], np.cumsum(self.coarse[axis])])
        noise = np.concatenate([[0.0], np.cumsum(self.coarse_noise[axis])])
        first = 0
        last = BINS
        while first < BINS - 1 and held[first + 1] <= allowed + significance * math.sqrt(
            noise[first + 1]
        ):
            first += 1
        while last > first + 1 and total - held[last - 1] <= allowed + significance * math.sqrt(
            noise[BINS] - noise[last - 1]
        ):
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
        for axis in np.flatnonzero(
            total >= np.maximum(MASS_MIN, 2.0 * significance * error)
        ).tolist():
            first, last = self.support(axis, SUPPORT_SIGNIFICANCE)
            span = next((span for span in SPANS if span >= last - first), 0)
            # Readings all over the axis need no closer look, and below the finest bin there is
            # nothing to see.
            if not span or self.bin_width[axis] * span / BINS < finest:
                continue
            zoom = int(self.zoom[axis])
            own = int(self.span[axis])
            # Bins that cover the support already, and not too widely, keep what they have counted.
            if zoom != NO_ZOOM and zoom <= first and last <= zoom + own and own <= span:
                continue
            # In the middle of the bins, within the axis.
            self.zoom[axis] = min(max(0, first - (span - (last - first)) // 2), BINS - span)
            self.span[axis] = span
            self.fine[axis] = self.fine_noise[axis] = self.fine_exposure[axis] = 0.0
            # Counts of the bins before, which are still on their way, must not be added to these.
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
        """Intervals [low, high) (n,) on an axis -> (n,) readings in each per reading of exposure,
        and its variance."""
        if self.exposure[axis] <= 0.0:
            return np.zeros(len(low)), np.zeros(len(low))
        width = float(self.bin_width[axis])
        start = float(self.start[axis])
        mass, variance = _held(
            self.coarse[axis],
            self.coarse_noise[axis],
            (low - start) / width,
            (high - start) / width,
        )
        mass = mass / self.exposure[axis]
        variance = variance / self.exposure[axis] ** 2
        if (
            self.zoom[axis] != NO_ZOOM
            and self.fine_exposure[axis] > FINE_EXPOSURE * self.exposure[axis]
        ):
            first = start + int(self.zoom[axis]) * width
            last = first + int(self.span[axis]) * width
            fine_width = int(self.span[axis]) * width / BINS
            # Edges of bins are products of fractions: equal ones may differ in the last bit.
            inside = (low >= first - 1e-12) & (high <= last + 1e-12)
            fine, noise = _held(
                self.fine[axis],
                self.fine_noise[axis],
                (low - first) / fine_width,
                (high - first) / fine_width,
            )
            exposure = self.fine_exposure[axis]
            mass = np.where(inside, fine / exposure, mass)
            variance = np.where(inside, noise / exposure**2, variance)
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


COMPARED_SIGNIFICANCE: Final = 4.0
"""standard deviations above zero from which the readings of an axis are compared with those of a
window"""


class Clumping:
    """How much the windows of clients differ in what they hold, from private counts alone.

    It is the variance of the composition: of the shares p (bins,) that the readings of a window
    have in the bins of an axis, around those of all windows, E|p|² - |E p|². 0 where all readings
    are drawn alike; windows that each hold one of two equal clusters have 1/2. Products of counts
    that share neither noise nor readings need no correction; of squares the variance of both is
    taken off.
    """

    def __init__(self, apart: float = 0.0, compared: float = 0.0) -> None:
        self.apart = apart
        self.compared = compared
        """sums over windows: of the square of their readings times the variance, and of that square
        """

    def compare(
        self, earlier: Floats, earlier_noise: Floats, counts: Floats, noise: Floats
    ) -> None:
        """A window's counts on an axis (bins,) with what was counted there before, and the
        variances of both."""
        known = float(earlier.sum())
        held = float(counts.sum())
        # Noise may make it negative.
        if known <= 0.0 or known <= COMPARED_SIGNIFICANCE * math.sqrt(
            known + float(earlier_noise.sum())
        ):
            return
        # A count varies by its noise, and by its own number as those of independent readings do.
        usual = earlier / known
        uncertain = noise + counts
        square = held * held - float(uncertain.sum())
        own = float(counts @ counts) - float(uncertain.sum())
        self.apart += own - (held * float(counts @ usual) - float(uncertain @ usual))
        self.compared += square

    @property
    def variance(self) -> float | None:
        """Variance of the composition, at least 0; None while it is not known."""
        return max(0.0, self.apart / self.compared) if self.compared > 0.0 else None


def _held(counts: Floats, noise: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Counts of bins, and intervals (n,) in units of bins -> (n,) readings in each and their
    variance."""
    edge = np.arange(len(counts) + 1)
    ends = np.clip(low, 0, len(counts)), np.clip(high, 0, len(counts))
    sums = [np.concatenate([[0.0], np.cumsum(values)]) for values in (counts, noise)]
    mass, variance = (
        np.interp(ends[1], edge, held) - np.interp(ends[0], edge, held) for held in sums
    )
    # One reading more, so that an empty bin without noise is not certain.
    return mass, np.maximum(mass, 0.0) + variance + 1.0


def rebinned(counts: Floats, start: float, end: float, new_start: float, new_end: float) -> Floats:
    """Counts of equal bins over [start, end] -> counts of the same number of bins over another
    range.

    Within a bin, counts are spread evenly.
    """
    n = len(counts)
    at = (np.linspace(new_start, new_end, n + 1) - start) / (end - start) * n
    return np.diff(
        np.interp(np.clip(at, 0, n), np.arange(n + 1), np.concatenate([[0.0], np.cumsum(counts)]))
    )
