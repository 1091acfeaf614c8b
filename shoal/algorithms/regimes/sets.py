"""Sets of cells between which changes are rare: the regimes at one scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.algorithms.regimes.plan import make_codebook, nearest
from shoal.kernels.arrays import Bools, Floats, Ints

GROUPS = 12
"""groups of cells from which merging starts"""
VALLEY = 0.5
"""two groups are one where the mass midway between them exceeds this part of the lesser mass at their centres; it is
1.4 for one Gaussian, 1.0 for a uniform distribution, and 0.77 for a sine without noise"""
JUMPS_MIN = 5.0
"""changes each way, from core to core within two blocks, that a set must have; a random walk has none"""
STAY_MIN = 4.0
"""blocks that a stay lasts at least; a sine whose period is a few blocks stays less"""
# Cells stand for their mass by copies, as the clusterer takes points without weights.
POINTS_OF_MASS = 2_000


@dataclass(frozen=True, eq=False)
class CellSets:
    """The set of each cell, and what was counted between sets."""

    of_cell: Ints
    """(c,) set of each cell, from 0"""
    changes: Floats
    """(k, k) pairs of successive blocks, by their sets"""
    changes_2: Floats
    """(k, k) pairs of blocks two apart"""


def told_of_next(pairs: Floats | Ints) -> float:
    """Nats that the set of a block tells of the next one's, less what chance seems to tell; pairs (k, k) by set.

    Sets that do not occur do not count. 0 without pairs.
    """
    n = float(pairs.sum())
    if n == 0:
        return 0.0
    share = pairs / n
    independent = np.outer(share.sum(axis=1), share.sum(axis=0))
    seen = share > 0
    told = float((share[seen] * np.log(share[seen] / independent[seen])).sum())
    occurring = int((pairs.sum(axis=0) + pairs.sum(axis=1) > 0).sum())
    return told - (occurring - 1) ** 2 / (2 * n)


def find_sets(cells: Floats, pairs: Floats, pairs_2: Floats) -> CellSets | None:
    """The sets of cells (c, q) by their counts of pairs (c, c) at lags of one and two blocks; None where all are one.

    Groups that no valley of mass parts are merged, those with the fullest valley first; then the set with the fewest
    changes each way is merged with the one it changes to most, until each has enough changes and lasting stays.
    """
    # Each block is in two pairs, as the earlier and as the later one; the floor is for cells that no block was in.
    mass = np.maximum(pairs.sum(axis=0) + pairs.sum(axis=1), 1e-9) / 2
    of_cell = _first_groups(cells, mass)
    valleys = _Valleys(cells, mass, of_cell)
    while (k := int(of_cell.max()) + 1) > 1:
        first, second = valleys.fullest()
        if valleys.table[first, second] <= VALLEY:
            member = np.eye(k)[of_cell]
            changes = member.T @ pairs @ member
            weak = _weakest(cells, mass, of_cell, changes, pairs_2)
            if weak is None:
                return CellSets(of_cell, changes, member.T @ pairs_2 @ member)
            first, second = weak, _partner(weak, changes, valleys.table)
        of_cell = valleys.merge(first, second)
    return None


def _first_groups(cells: Floats, mass: Floats) -> Ints:
    copies = np.maximum(1, np.round(mass * POINTS_OF_MASS / mass.sum()).astype(np.int64))
    centres = make_codebook(np.repeat(cells, copies, axis=0), GROUPS)
    return np.unique(nearest(cells, centres), return_inverse=True)[1].astype(np.int64)


class _Valleys:
    """The valley between every two groups, kept while groups are merged."""

    def __init__(self, cells: Floats, mass: Floats, of_cell: Ints) -> None:
        self._cells, self._mass, self._of_cell = cells, mass, of_cell
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
        self._of_cell = of_cell - (of_cell > group)
        self.table = np.delete(np.delete(self.table, group, axis=0), group, axis=1)
        self._renew(into - (into > group))
        return self._of_cell

    def _renew(self, group: int) -> None:
        ratios = _valleys(self._cells, self._mass, self._of_cell, group, len(self.table))
        self.table[group] = self.table[:, group] = ratios


def _valleys(cells: Floats, mass: Floats, of_cell: Ints, group: int, k: int) -> Floats:
    """(k,) mass midway between a group of cells and each other one, relative to the lesser mass at their centres.

    Measured along Fisher's direction, in which groups of any shape are told apart best. The standard error of a count
    and 1 are added to the mass midway, so that a valley is not found in a few blocks. 0 for the group itself.
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
    at_start, midway, at_end = ((inside * (np.abs(along - place) < 1 / 6)).sum(axis=1) for place in (0.0, 0.5, 1.0))
    ratios: Floats = (midway + np.sqrt(midway) + 1) / np.maximum(np.minimum(at_start, at_end), 1e-9)
    ratios[group] = 0.0
    return ratios


def _weakest(cells: Floats, mass: Floats, of_cell: Ints, changes: Floats, pairs_2: Floats) -> int | None:
    """The set with the fewest changes of those with too few changes or too short stays; None if each has enough."""
    k = len(changes)
    core = np.eye(k)[of_cell] * _cores(cells, mass, of_cell, k)[:, None]
    jumps = core.T @ pairs_2 @ core
    np.fill_diagonal(jumps, 0.0)
    both_ways = np.minimum(jumps.sum(axis=0), jumps.sum(axis=1))
    stay = changes.sum(axis=1) / np.maximum(changes.sum(axis=1) - np.diag(changes), 0.5)
    weak = np.flatnonzero((both_ways < JUMPS_MIN) | (stay < STAY_MIN))
    return int(weak[np.argmin(both_ways[weak])]) if len(weak) else None


def _cores(cells: Floats, mass: Floats, of_cell: Ints, k: int) -> Bools:
    """(c,) cells that lie within a third of the way from their set's centre to every other set's."""
    centres = np.stack([mass[of_cell == one] @ cells[of_cell == one] / mass[of_cell == one].sum() for one in range(k)])
    way = centres[None] - centres[:, None]
    gone = np.einsum("cq,ckq->ck", cells - centres[of_cell], way[of_cell])
    third = (way**2).sum(axis=2)[of_cell] / 3
    inside: Bools = ((gone <= third) | (np.arange(k) == of_cell[:, None])).all(axis=1)
    return inside


def _partner(weak: int, changes: Floats, valleys: Floats) -> int:
    """The set with which a weak one is merged: that it changes to most, or else that with the fullest valley."""
    others = np.arange(len(changes)) != weak
    flow = np.where(others, changes[weak] + changes[:, weak], -1.0)
    return int(np.argmax(flow if flow.max() > 0 else np.where(others, valleys[weak], -1.0)))
