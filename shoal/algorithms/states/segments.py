"""Segments and what joins them: a stream cut too finely, the weakest boundaries undone, and
segments that do not differ joined."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.states.tiles import OVERLAP
from shoal.kernels.arrays import Floats, Ints

Span = tuple[int, int]
"""the first tile of a segment, and the one after its last"""
SEGMENT_TILES_MIN: Final = 3
"""disjoint tiles of a segment, at least"""
SHORTEST: Final = SEGMENT_TILES_MIN * OVERLAP
SEGMENTS_MAX: Final = 40
"""segments of the first cutting"""
POINTS_MAX: Final = 512
"""places at which the first cutting may have boundaries: its cost grows with their square"""
QUARTERS: Final = 4
JUMPS_POOLED: Final = 6.0
"""weight of the jumps within all segments beside those of the two at a boundary"""
SAME_SEPARATION: Final = 3.0
"""the separation below which two segments are one state"""
QUANTILE: Final = 0.4
"""quantile of the absolute changes along the stream that tells their size: changes of states are
above it"""
DEVIATIONS_AT_QUANTILE: Final = 0.524
"""the same quantile of a Gaussian's absolute value"""
FOLD_TILES: Final = 4
"""successive tiles of one fold, before as many of the other one; the last of them is in neither, as
it shares a half-tile with the next"""
WALK_STEP: Final = 1.5
"""squared step of a random walk within a tile, in units of that of its means over two tiles which
follow each other: the means themselves smooth it"""
FEW_BOUNDARIES: Final = 3
"""boundaries up to which each must reach the whole of `held_out`"""


class Thresholds(NamedTuple):
    """What a boundary must have to be kept."""

    # No test is without use: in a first version none of 45 streams that have no states had some,
    # .29 without significance, .11 without `separation` and .20 without `abrupt`.
    significance: float
    """squared difference of the means of both sides, in units of its sampling error"""
    separation: float
    """squared difference of the means in units of the spread of quarters of a side, which is small
    where each side dwells at its mean"""
    jump: float
    """squared step from the last quarter of a side to the first of the other one, in units of those
    within segments: a ramp has 1, a sine 2.9, a random walk 1 to 4"""
    held_out: float
    """squared difference of the means of one half of the tiles of both sides, along the direction
    in which those of the other half differ, in units of its sampling error; 0: not asked"""
    abrupt: float
    """change within two tiles in units of its usual size; 0: not asked"""
    clear: float
    """`jump` from which on a change need not be abrupt, as that of a valve which takes longer than
    two tiles to turn; of 100 streams that are or hold a random walk 1 had more than 20, 5 had more
    than 14"""
    wander: float
    """`Tiles.wandering` up to which a change need not be abrupt either, as its sides stay where
    they are and a random walk does not"""
    settled_jump: float
    """`jump` that such a change must have"""


@dataclass(frozen=True, eq=False)
class Segment:
    """A stretch of tiles, and what tests need of it."""

    span: Span
    mean: Floats
    """(q,)"""
    quarters: Floats
    """(4, q) means"""
    spread: float
    """mean squared distance of quarters from the mean, over all axes"""
    scatter: Floats
    """(q, q) of means of three disjoint tiles, in units of one tile"""
    degrees: int
    """degrees of freedom of `scatter`"""
    folds: Floats
    """(2, q) means of the tiles of each of two folds"""

    @property
    def n_tiles(self) -> int:
        """Overlapping tiles of the segment."""
        return self.span[1] - self.span[0]


class Tiles:
    """Tiles on axes, with segments and changes of them computed once."""

    def __init__(self, tiles: Floats) -> None:
        """`tiles` (n, q)."""
        self.tiles = tiles
        self._sums = _sums_before(tiles)
        # A segment has at least six tiles, so that some of each fold are in it.
        place = np.arange(len(tiles)) % (2 * FOLD_TILES)
        in_first = place < FOLD_TILES - 1
        in_second = (place >= FOLD_TILES) & (place < 2 * FOLD_TILES - 1)
        masks = [in_first[:, None], in_second[:, None]]
        self._folds = [_sums_before(np.where(mask, tiles, 0.0)) for mask in masks]
        self._fold_counts = [_sums_before(mask.astype(np.float64)) for mask in masks]
        self._segments: dict[Span, Segment] = {}
        self._abruptness: dict[tuple[int, int, int], float] = {}
        self._wandering: dict[tuple[int, int, int], float] = {}
        n = len(tiles)
        reach = min(2 * OVERLAP, n // 6)
        self._places = np.arange(reach, n - reach + 1)
        after = self._sums[self._places + reach] - self._sums[self._places]
        before = self._sums[self._places] - self._sums[self._places - reach]
        self._changes = (after - before) / max(1, reach)

    def segment(self, span: Span) -> Segment:
        """The stretch of these tiles."""
        if span not in self._segments:
            self._segments[span] = self._describe(span)
        return self._segments[span]

    def _describe(self, span: Span) -> Segment:
        first, end = span
        mean = (self._sums[end] - self._sums[first]) / (end - first)
        quarters, weights = self._means_of_parts(span, QUARTERS)
        distances = ((quarters - mean) ** 2).sum(axis=1)
        # Without bias, as the mean is that of the same quarters.
        spread = float(weights @ distances / weights.sum()) * QUARTERS / (QUARTERS - 1)
        q = self.tiles.shape[1]
        parts = (end - first) // SHORTEST
        scatter = np.zeros((q, q))
        if parts > 1:
            means, lengths = self._means_of_parts(span, parts)
            gaps = means - lengths @ means / lengths.sum()
            scatter = (gaps * lengths[:, None]).T @ gaps
        folds = np.array(
            [
                (sums[end] - sums[first]) / (counts[end] - counts[first])
                for sums, counts in zip(self._folds, self._fold_counts, strict=True)
            ]
        )
        return Segment(span, mean, quarters, spread, scatter, max(0, parts - 1), folds)

    def _means_of_parts(self, span: Span, parts: int) -> tuple[Floats, Floats]:
        """Means of equal parts of a stretch, and their numbers of tiles."""
        first, end = span
        edges = np.rint(first + np.arange(parts + 1) * ((end - first) / parts)).astype(np.int64)
        lengths = np.diff(edges).astype(np.float64)
        return (self._sums[edges[1:]] - self._sums[edges[:-1]]) / lengths[:, None], lengths

    def abruptness(self, before: Segment, after: Segment) -> float:
        """Change within two tiles at a boundary, along the difference of its sides, in units of its
        usual size along the stream; negative where it goes the other way."""
        # When a boundary is undone most others are as they were, so their values are kept.
        key = (*before.span, after.span[1])
        if key not in self._abruptness:
            way = after.mean - before.mean
            changes = self._changes @ (way / np.sqrt(way @ way + 1e-12))
            near = np.abs(self._places - after.span[0]) <= OVERLAP
            largest = changes[near].max(initial=-np.inf) if near.any() else 0.0
            rank = int(QUANTILE * (len(changes) - 1))
            usual = np.partition(np.abs(changes), rank)[rank] / DEVIATIONS_AT_QUANTILE
            self._abruptness[key] = float(largest / (usual + 1e-9))
        return self._abruptness[key]

    def wandering(self, before: Segment, after: Segment) -> float:
        """Squared distance of tiles from the mean of their side of a boundary, along the difference
        of its sides, in units of their squared steps and of the side's length.

        One side in a random walk has 1/6 on average, and less than .0366 in 1 of 20 cases, as the
        statistic of Cramér and von Mises; where readings go back to their mean it falls with the
        length of the sides (Sargan and Bhargava, "Testing residuals from least squares regression
        for being generated by the Gaussian random walk", Econometrica 51, 1983).
        """
        key = (*before.span, after.span[1])
        if key not in self._wandering:
            way = after.mean - before.mean
            along = way / np.sqrt(way @ way + 1e-12)
            squares = 0.0
            steps = 0.0
            n_steps = 0
            walked = 0.0
            for segment in (before, after):
                # Tiles beside a change may hold a part of it, or more where it takes longer.
                margin = min(OVERLAP, (segment.n_tiles - 2 * OVERLAP) // 2)
                first, end = segment.span
                places = self.tiles[first + margin : end - margin] @ along
                squares += float(((places - places.mean()) ** 2).sum())
                moves = places[OVERLAP:] - places[:-OVERLAP]
                steps += float(moves @ moves)
                n_steps += len(moves)
                walked += float(len(places)) ** 2
            usual = WALK_STEP * steps / (OVERLAP * n_steps)
            self._wandering[key] = squares / (usual * walked + 1e-9)
        return self._wandering[key]


def _sums_before(values: Floats) -> Floats:
    """values (n, q) -> (n + 1, q) sums of those before each place."""
    return np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])


def cut(tiles: Floats) -> list[Span]:
    """tiles (n, q) -> the cutting into at most `SEGMENTS_MAX` segments of least squared error.

    A dynamic programme (Bellman, "On the approximation of curves by line segments using dynamic
    programming", Communications of the ACM 4, 1961). Of more than `POINTS_MAX` tiles only every
    second one can begin a segment.
    """
    n, q = tiles.shape
    step = -(-n // POINTS_MAX)
    edges = np.append(np.arange(0, n - step // 2, step), n)
    sums = np.concatenate([np.zeros((1, q)), np.cumsum(tiles, axis=0)])[edges]
    squares = np.concatenate([[0.0], np.cumsum((tiles**2).sum(axis=1))])[edges]
    length = edges[None] - edges[:, None]
    inner = (sums**2).sum(axis=1)
    # Squared lengths of the sums over each stretch, by the sums up to its ends.
    between = inner[None] + inner[:, None] - 2 * sums @ sums.T
    cost = squares[None] - squares[:, None] - between / np.maximum(length, 1)
    cost[length < SHORTEST] = np.inf
    # Column by column in memory, as the least of each column is sought.
    by_end = np.ascontiguousarray(cost.T)
    value = by_end[:, 0].copy()
    backward: list[Ints] = []
    for _ in range(min(SEGMENTS_MAX, max(2, n // (2 * SHORTEST))) - 1):
        total = by_end + value
        best = total.argmin(axis=1)
        following = total[np.arange(len(edges)), best]
        if not np.isfinite(following[-1]):
            break
        value = following
        backward.append(best)
    place = len(edges) - 1
    ends = [place]
    for best in reversed(backward):
        place = int(best[place])
        ends.append(place)
    bounds = [0, *edges[ends[::-1]].tolist()]
    return list(pairwise(bounds))


def noise_of(segments: list[Segment]) -> Floats:
    """(q, q) long-run covariance of a tile about the mean of its segment.

    Means of three disjoint tiles within segments, pooled. Where no segment is long enough for two
    of them, that of single tiles, which is the identity on whitened axes.
    """
    q = len(segments[0].mean)
    degrees = sum(segment.degrees for segment in segments)
    noise = np.eye(q)
    if degrees:
        noise = np.sum([segment.scatter for segment in segments], axis=0) / degrees
    # A part of its mean is added: along few directions it may be 0.
    return np.asarray(noise + np.eye(q) * (0.1 * np.trace(noise) / q + 1e-9))


def weakest_boundary(
    tiles: Tiles, segments: list[Segment], thresholds: Thresholds
) -> tuple[int, float]:
    """The boundary, by the number of the segment before it, whose least test is the least; and that
    test in units of its threshold."""
    means = np.array([segment.mean for segment in segments])
    lengths = np.array([float(segment.n_tiles) for segment in segments])
    spreads = np.array([segment.spread for segment in segments])
    quarters = np.array([segment.quarters for segment in segments])
    ways = np.diff(means, axis=0)
    squared = (ways**2).sum(axis=1)
    q = means.shape[1]
    noise = noise_of(segments)
    error = np.linalg.solve(noise, ways.T).T
    # The variance of the difference of two means is the noise over this.
    weight = lengths[:-1] * lengths[1:] / (lengths[:-1] + lengths[1:])
    significance = (ways * error).sum(axis=1) * weight / q
    separation = QUARTERS * squared / (spreads[:-1] + spreads[1:] + 1e-9)
    along = ways / np.sqrt(squared + 1e-12)[:, None]
    # Steps from quarter to quarter within each segment, along each boundary's difference.
    steps = ((quarters[:, 1:] - quarters[:, :-1]) @ along.T) ** 2
    pooled = steps.mean(axis=(0, 1))
    within = steps.sum(axis=1)
    places = np.arange(len(ways))
    near = within[places, places] + within[places + 1, places]
    count = 2 * (QUARTERS - 1)
    usual = (near + JUMPS_POOLED * pooled) / (count + JUMPS_POOLED)
    step = ((quarters[1:, 0] - quarters[:-1, -1]) * along).sum(axis=1)
    # With its sign: a step against the difference of the sides is no boundary between them.
    jump = np.sign(step) * step**2 / (usual + 1e-9)
    tests = [
        significance / thresholds.significance,
        separation / thresholds.separation,
        jump / thresholds.jump,
    ]
    if thresholds.held_out:
        # Each of many boundaries is less sure, being of short segments, but all of them together
        # are as sure as a few: by the sum of their deviations over the root of their number.
        required = thresholds.held_out * min(1.0, np.sqrt(FEW_BOUNDARIES / len(ways)))
        tests.append(_held_out(segments, noise, weight) / required)
    if thresholds.abrupt:
        tests.append(_not_a_walk(tiles, segments, jump, thresholds))
    least = np.min(tests, axis=0)
    weakest = int(least.argmin())
    return weakest, float(least[weakest])


def _not_a_walk(
    tiles: Tiles, segments: list[Segment], jump: Floats, thresholds: Thresholds
) -> Floats:
    """(s - 1,) the best of three tests of each boundary, in units of its threshold: the change is
    abrupt, it is clear, or its sides do not wander."""
    pairs = list(pairwise(segments))
    abrupt = np.array([tiles.abruptness(before, after) for before, after in pairs])
    is_abrupt = np.sign(abrupt) * (abrupt / thresholds.abrupt) ** 2
    wandering = np.array([tiles.wandering(before, after) for before, after in pairs])
    steadiness = thresholds.wander / (wandering + 1e-9)
    is_settled = np.minimum(steadiness, jump / thresholds.settled_jump)
    return np.asarray(np.max([is_abrupt, jump / thresholds.clear, is_settled], axis=0))


def _held_out(segments: list[Segment], noise: Floats, weight: Floats) -> Floats:
    """(s - 1,) of each boundary the squared difference of its sides in tiles that had no part in
    the choice of the direction, in units of its sampling error; negative where they differ the
    other way.

    Along the direction in which the means of all tiles differ they differ by chance alone: the more
    axes, the more. The direction is that of one fold, the difference that of the other, and the
    mean of both ways counts (cross-validated distance: Walther et al., "Reliability of
    dissimilarity measures for multi-voxel pattern analysis", NeuroImage 137, 2016).
    """
    folds = np.array([segment.folds for segment in segments])
    first, second = np.diff(folds, axis=0).transpose(1, 0, 2)
    product = (first * second).sum(axis=1)
    difference = np.zeros(len(product))
    for way in (first, second):
        difference += product / np.sqrt(((way @ noise) * way).sum(axis=1) + 1e-12) / 2
    return np.asarray(np.sign(difference) * difference**2 * weight)


def find_segments(tiles: Tiles, thresholds: Thresholds) -> list[Segment]:
    """Segments whose every boundary passes all tests."""
    segments = [tiles.segment(span) for span in cut(tiles.tiles)]
    while len(segments) > 1:
        # One at a time: noise and usual steps are those within the segments that are left.
        place, least = weakest_boundary(tiles, segments, thresholds)
        if least >= 1:
            break
        joined = (segments[place].span[0], segments[place + 1].span[1])
        segments[place : place + 2] = [tiles.segment(joined)]
    return segments


def join_segments(segments: list[Segment], significance: float) -> Ints:
    """(s,) the state of each segment: those that do not differ are joined, the most alike first."""
    noise = noise_of(segments)
    groups = [[place] for place in range(len(segments))]
    while len(groups) > 1:
        parts = [_pooled([segments[place] for place in group]) for group in groups]
        least, first, second = min(
            (_difference(parts[one_group], parts[other], noise, significance), one_group, other)
            for other in range(len(groups))
            for one_group in range(other)
        )
        if least >= 1:
            break
        groups[first] += groups.pop(second)
    state = np.zeros(len(segments), dtype=np.int64)
    order = sorted(groups, key=min)
    for number, group in enumerate(order):
        state[group] = number
    return state


class _Group(NamedTuple):
    mean: Floats
    n_tiles: float
    spread: float


def _pooled(segments: list[Segment]) -> _Group:
    lengths = np.array([float(segment.n_tiles) for segment in segments])
    n = float(lengths.sum())
    mean = lengths @ np.array([segment.mean for segment in segments]) / n
    # Quarters about the common mean: those about their own, and the segments' distance from it.
    own = np.array([segment.spread for segment in segments]) * (QUARTERS - 1) / QUARTERS
    apart = np.array([((segment.mean - mean) ** 2).sum() for segment in segments])
    count = QUARTERS * len(segments)
    return _Group(mean, n, float(lengths @ (own + apart)) / n * count / (count - 1))


def _difference(first: _Group, second: _Group, noise: Floats, significance: float) -> float:
    way = second.mean - first.mean
    weight = first.n_tiles * second.n_tiles / (first.n_tiles + second.n_tiles)
    test = way @ np.linalg.solve(noise, way) * weight / len(way)
    separation = QUARTERS * (way @ way) / (first.spread + second.spread + 1e-9)
    return float(min(test / significance, separation / SAME_SEPARATION))


def states_of_tiles(tiles: Floats, thresholds: Thresholds) -> Ints:
    """tiles (n, q) -> (n,) states, numbered as they first appear."""
    n = len(tiles)
    state = np.zeros(n, dtype=np.int64)
    # Of a stream that never varies there are no axes.
    if n < 2 * SHORTEST or not tiles.shape[1]:
        return state
    along = Tiles(tiles)
    segments = find_segments(along, thresholds)
    if len(segments) > 1:
        numbers = join_segments(segments, thresholds.significance)
        for segment, number in zip(segments, numbers.tolist(), strict=True):
            state[slice(*segment.span)] = number
    return state
