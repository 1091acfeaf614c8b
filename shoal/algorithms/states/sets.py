"""Sets of cells between which changes are rare: states that return, in blocks of one length."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from shoal.algorithms.states.plan import make_codewords, nearest
from shoal.kernels.arrays import Bools, Floats, Ints

GROUPS = 12
"""groups of cells from which merging starts"""
VALLEY = 0.5
"""two groups are one where the mass midway between them exceeds this part of the lesser mass at
their centres; it is 1.4 for one Gaussian, 1.0 for a uniform distribution, and 0.77 for a sine
without noise"""
JUMPS_MIN = 5.0
"""changes each way, from core to core within two blocks, that a set must have; a random walk has
none"""
DWELL_MIN = 4.0
"""blocks that a dwell lasts at least; a sine whose period is a few blocks stays less"""
# Cells stand for their mass by copies, as the clusterer takes points without weights.
POINTS_OF_MASS = 2_000
CUT_VALLEY = 0.7
"""`VALLEY` for a cut in two, which must pass three more tests"""
CROSSINGS_MAX = 0.63
"""changes across a cut, as a part of those of a Gaussian process of the same autocorrelation: such
a process has 1.0 whatever monotone function it is seen through, states of two deviations that last
a hundred readings about 0.5"""
DIRECT_MIN = 0.75
"""part of the changes across a cut that go from core to core within two blocks; a slow cycle, which
crosses a cut as seldom as states, passes between the cores for longer"""
CUT_JUMPS_MIN = 10.0
"""`JUMPS_MIN` for a cut"""
CUT_STARTS = (0.2, 0.35, 0.5, 0.65, 0.8)
"""quantiles from which the place of a cut is sought"""
ANGLES = 64
"""steps of a numerical integral"""


@dataclass(frozen=True, eq=False)
class CellSets:
    """The set of each cell, and what was counted between sets."""

    of_cell: Ints
    """(c,) set of each cell, from 0"""
    changes: Floats
    """(k, k) pairs of successive blocks, by their sets"""
    changes_2: Floats
    """(k, k) pairs of blocks two apart"""


def mutual_information(pairs: Floats | Ints) -> float:
    """Nats that the set of a block tells of the next one's, less what chance seems to tell; pairs
    (k, k) by set.

    Sets that do not occur do not count. 0 without pairs.
    """
    n = float(pairs.sum())
    if n == 0:
        return 0.0
    share = pairs / n
    independent = np.outer(share.sum(axis=1), share.sum(axis=0))
    # A pair that never occurs tells nothing: x log x goes to 0, where a float has NaN.
    seen = share > 0
    information = float((share[seen] * np.log(share[seen] / independent[seen])).sum())
    # A table of counts without any dependence seems to tell about (k - 1)^2 / 2n nats (Miller
    # 1955).
    occurring = int((pairs.sum(axis=0) + pairs.sum(axis=1) > 0).sum())
    return information - (occurring - 1) ** 2 / (2 * n)


def find_sets(cells: Floats, pairs: Floats, pairs_2: Floats) -> CellSets | None:
    """The sets of cells (c, q) by their counts of pairs (c, c) at lags of one and two blocks; None
    where all are one.

    Groups that no valley of mass parts are merged, those with the fullest valley first; then the
    set with the fewest changes each way is merged with the one it changes to most, until each has
    enough changes and lasting dwells.
    """
    # Each block is in two pairs, as the earlier and as the later one; the floor is for cells that
    # no block was in.
    mass = np.maximum(pairs.sum(axis=0) + pairs.sum(axis=1), 1e-9) / 2
    of_cell = _first_groups(cells, mass)
    valleys = _Valleys(cells, mass, of_cell)
    # Ends: each turn merges two of the groups, or returns.
    while (k := int(of_cell.max()) + 1) > 1:
        first, second = valleys.fullest()
        if valleys.table[first, second] <= VALLEY:
            member = np.eye(k)[of_cell]
            changes = member.T @ pairs @ member
            weak = _weakest(cells, mass, of_cell, changes, pairs_2)
            if weak is None:
                return CellSets(of_cell, changes, member.T @ pairs_2 @ member)
            first = weak
            second = _partner(weak, changes, valleys.table)
        of_cell = valleys.merge(first, second)
    return None


def find_cut(cells: Floats, pairs: Floats, pairs_2: Floats) -> CellSets | None:
    """Two sets, parted by a cut of the slowest coordinate that the stream crosses seldom; None
    where there is no such.

    For states that overlap or are short, whose valley is shallow. The arguments are those of
    `find_sets`. A valley alone is then no evidence. A stationary Gaussian process determines how
    often a cut is crossed from its autocorrelation (the arcsine law for a cut at the median), and
    so does every monotone function of one; states cross it seldom for the autocorrelation that
    they have.
    """
    mass = np.maximum(pairs.sum(axis=0) + pairs.sum(axis=1), 1e-9) / 2
    cuts = [(_valley_of(along, mass), along) for along in cuts_midway(cells[:, 0], mass)]
    valley, along = min(cuts, key=lambda cut: cut[0], default=(np.inf, mass))
    if valley > CUT_VALLEY:
        return None
    of_cell = (along > 0.5).astype(np.int64)
    member = np.eye(2)[of_cell]
    changes = member.T @ pairs @ member
    crossed = changes[0, 1] + changes[1, 0]
    core = np.stack([along < 1 / 3, along > 2 / 3], axis=1).astype(np.float64)
    jumps = core.T @ pairs_2 @ core
    both_ways = min(jumps[0, 1], jumps[1, 0])
    # Half of the crossings leave one side and half the other one; the floor divides by no zero.
    dwell = changes.sum(axis=1) / np.maximum(crossed / 2, 0.5)
    if both_ways < CUT_JUMPS_MIN or 2 * both_ways < DIRECT_MIN * crossed or dwell.min() < DWELL_MIN:
        return None
    # Last, as it takes longest.
    if _crossings(along, of_cell, pairs) > CROSSINGS_MAX:
        return None
    return CellSets(of_cell, changes, member.T @ pairs_2 @ member)


def cuts_midway(values: Floats, mass: Floats) -> list[Floats]:
    """Cuts of values (c,) midway between the means of both sides: the values with 0 and 1 at these
    means, of each."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(mass[order]) / mass.sum()
    cuts = []
    # This is k-means with two centres: where it ends depends on where it starts.
    for start in CUT_STARTS:
        above = values > values[order][min(int(np.searchsorted(share, start)), len(values) - 1)]
        for _ in range(len(values)):  # each step that changes something lowers the sum of squares
            if not above.any():
                break
            low, high = (mass[side] @ values[side] / mass[side].sum() for side in (~above, above))
            moved = values > (low + high) / 2
            if np.array_equal(moved, above):
                break
            above = moved
        if not above.any() or above.all():
            continue
        cuts.append((values - low) / (high - low))
    return cuts


def _valley_of(along: Floats, mass: Floats) -> float:
    at_start, midway, at_end = (
        mass[np.abs(along - place) < 1 / 6].sum() for place in (0.0, 0.5, 1.0)
    )
    # The deviation of a count is its root: few readings must not make a valley seem empty.
    return float((midway + np.sqrt(midway) + 1) / max(min(at_start, at_end), 1e-9))


def _crossings(along: Floats, of_cell: Ints, pairs: Floats) -> float:
    """Pairs on both sides of a cut, as a part of what a Gaussian process of the same
    autocorrelation has."""
    both = pairs + pairs.T
    mass = both.sum(axis=1)
    n = mass.sum()
    score = normal_scores(along, mass)
    correlation = float(score @ both @ score / max(mass @ score**2, 1e-12))
    above = of_cell == 1
    share = float(mass[above].sum() / n)
    apart = float(2 * both[np.ix_(above, ~above)].sum() / n)
    expected = 2 * share * (1 - share) * (1 - correlation_of_sides(correlation, share))
    # A cut that a process of this correlation never crosses expects 0.
    return apart / max(expected, 1e-12)


def normal_scores(values: Floats, mass: Floats) -> Floats:
    """Scores of values (c,) that make them Gaussian, so that only how they follow each other
    counts."""
    n = mass.sum()
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values))
    # Each value at the middle of its mass: at its end the largest would have a score without bound.
    rank[order] = (np.cumsum(mass[order]) - mass[order] / 2) / n
    score = np.array(
        [NormalDist().inv_cdf(share) for share in np.clip(rank, 1e-6, 1 - 1e-6).tolist()]
    )
    return np.asarray(score - mass @ score / n)


def correlation_of_sides(correlation: float, share: float) -> float:
    """Correlation of whether two Gaussian numbers of this correlation exceed the value that this
    share of them exceeds.

    It is the integral of their density at that value over correlations from 0 on; 2 / pi arcsin of
    it at the median.
    """
    if correlation <= 0:
        return 0.0
    value = NormalDist().inv_cdf(1 - share)
    step = float(np.arcsin(min(correlation, 1.0))) / ANGLES
    sines = np.sin(step * (np.arange(ANGLES) + 0.5))
    return float(step * np.exp(-(value**2) / (1 + sines)).sum() / (2 * np.pi * share * (1 - share)))


def _first_groups(cells: Floats, mass: Floats) -> Ints:
    copies = np.maximum(1, np.round(mass * POINTS_OF_MASS / mass.sum()).astype(np.int64))
    centres = make_codewords(np.repeat(cells, copies, axis=0), GROUPS)
    return np.unique(nearest(cells, centres), return_inverse=True)[1].astype(np.int64)


class _Valleys:
    """The valley between every two groups, kept while groups are merged."""

    def __init__(self, cells: Floats, mass: Floats, of_cell: Ints) -> None:
        self._cells = cells
        self._mass = mass
        self._of_cell = of_cell
        k = int(of_cell.max()) + 1
        self.table = np.zeros((k, k))
        for group in range(k):
            self._renew(group)

    def fullest(self) -> tuple[int, int]:
        """The two groups with the fullest valley between them."""
        first, second = np.unravel_index(np.argmax(self.table), self.table.shape)
        return int(first), int(second)

    def merge(self, group: int, into: int) -> Ints:
        """Join two groups; returns the new group of each cell, (c,)."""
        of_cell = np.where(self._of_cell == group, into, self._of_cell)
        # Numbers stay without a gap: those above the group that is gone move down.
        self._of_cell = of_cell - (of_cell > group)
        self.table = np.delete(np.delete(self.table, group, axis=0), group, axis=1)
        self._renew(into - (into > group))
        return self._of_cell

    def _renew(self, group: int) -> None:
        ratios = _valleys(self._cells, self._mass, self._of_cell, group, len(self.table))
        self.table[group] = self.table[:, group] = ratios


def _valleys(cells: Floats, mass: Floats, of_cell: Ints, group: int, k: int) -> Floats:
    """(k,) mass midway between a group of cells and each other one, relative to the lesser mass at
    their centres.

    Measured along Fisher's direction, in which groups of any shape are told apart best. The
    standard error of a count and 1 are added to the mass midway, so that a valley is not found in a
    few blocks. 0 for the group itself.
    """
    member = np.eye(k)[of_cell] * mass[:, None]
    total = member.sum(axis=0)
    centres = member.T @ cells / total[:, None]
    gaps = cells - centres[of_cell]
    q = cells.shape[1]
    scatter = (member.T @ (gaps[:, :, None] * gaps[:, None, :]).reshape(-1, q * q)).reshape(k, q, q)
    way = centres - centres[group]
    spread = (scatter + scatter[group]) / (total + total[group])[:, None, None]
    # A twentieth of the way is added to the spread, so that groups of one cell have a direction.
    ridge = 0.05 * (way**2).sum(axis=1) + 1e-9
    direction = np.linalg.solve(spread + ridge[:, None, None] * np.eye(q), way[:, :, None])[:, :, 0]
    length = np.maximum((direction * way).sum(axis=1), 1e-12)
    along = direction @ (cells - centres[group]).T / length[:, None]
    inside = mass * ((of_cell == group) | (of_cell == np.arange(k)[:, None]))
    at_start, midway, at_end = (
        (inside * (np.abs(along - place) < 1 / 6)).sum(axis=1) for place in (0.0, 0.5, 1.0)
    )
    ratios: Floats = (midway + np.sqrt(midway) + 1) / np.maximum(np.minimum(at_start, at_end), 1e-9)
    ratios[group] = 0.0
    return ratios


def _weakest(
    cells: Floats, mass: Floats, of_cell: Ints, changes: Floats, pairs_2: Floats
) -> int | None:
    """The set with the fewest changes of those with too few changes or too short dwells; None if
    each has enough."""
    k = len(changes)
    core = np.eye(k)[of_cell] * _cores(cells, mass, of_cell, k)[:, None]
    jumps = core.T @ pairs_2 @ core
    np.fill_diagonal(jumps, 0.0)
    both_ways = np.minimum(jumps.sum(axis=0), jumps.sum(axis=1))
    dwell = changes.sum(axis=1) / np.maximum(changes.sum(axis=1) - np.diag(changes), 0.5)
    weak = np.flatnonzero((both_ways < JUMPS_MIN) | (dwell < DWELL_MIN))
    return int(weak[np.argmin(both_ways[weak])]) if len(weak) else None


def _cores(cells: Floats, mass: Floats, of_cell: Ints, k: int) -> Bools:
    """(c,) cells that lie within a third of the way from their set's centre to every other
    set's."""
    centres = np.stack(
        [
            mass[of_cell == number] @ cells[of_cell == number] / mass[of_cell == number].sum()
            for number in range(k)
        ]
    )
    way = centres[None] - centres[:, None]
    gone = np.einsum("cq,ckq->ck", cells - centres[of_cell], way[of_cell])
    third = (way**2).sum(axis=2)[of_cell] / 3
    inside: Bools = ((gone <= third) | (np.arange(k) == of_cell[:, None])).all(axis=1)
    return inside


def _partner(weak: int, changes: Floats, valleys: Floats) -> int:
    """The set with which a weak one is merged: that it changes to most, or else that with the
    fullest valley."""
    others = np.arange(len(changes)) != weak
    flow = np.where(others, changes[weak] + changes[:, weak], -1.0)
    return int(np.argmax(flow if flow.max() > 0 else np.where(others, valleys[weak], -1.0)))
