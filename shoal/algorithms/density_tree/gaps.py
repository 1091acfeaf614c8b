"""Readings that lack values in the tree: the leaves into which one may fall, and how likely each of them is.

All of it follows from a snapshot, which is public, and from the reading alone. So a reading with gaps is in one leaf,
as every other one, and what protects the counts is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from shoal.algorithms.density_tree.leaf import Axes
from shoal.algorithms.streaming import Arrays
from shoal.kernels.arrays import Floats, Ints

MIDDLE_80: Final = 2.563
"""standard deviations of a normal distribution between the ends of its middle 80 %"""
LEAST_EXTENT: Final = 1.0 / 256.0
"""least distance of these ends of a leaf, in unit coordinates: finer than that nothing is counted"""


@dataclass(frozen=True)
class LeafFacts:
    """What a snapshot says of its l leaves: the readings in each, their means, and how wide they spread."""

    mass: Floats
    centre: Floats
    spread: Floats
    """(l, d) standard deviations"""

    @classmethod
    def of(cls, snapshot: Arrays, d: int) -> Self:
        """Those of a snapshot of d features. One with the plan alone has none: then all leaves are alike."""
        if "leaf_centre" not in snapshot:
            leaves = len(snapshot["leaf_id"])
            return cls(np.ones(leaves), np.full((leaves, d), 0.5), np.ones((leaves, d)))
        width = np.maximum(snapshot["leaf_high"] - snapshot["leaf_low"], LEAST_EXTENT)
        return cls(np.maximum(snapshot["mass"], 1.0), snapshot["leaf_centre"], width / MIDDLE_80)

    def likeliest(self, rows: Floats, which: Ints, leaf: Ints) -> Ints:
        """rows (n, d), pairs (m,) of a row and a leaf that it may fall into -> (n,) the likeliest leaf of each row."""
        weight = self._weights(rows, which, leaf)
        order = np.lexsort((leaf, -weight, which))
        return np.asarray(leaf[order[np.searchsorted(which[order], np.arange(len(rows)))]])

    def drawn(self, rows: Floats, which: Ints, leaf: Ints, share: Floats) -> Ints:
        """Leaves as `likeliest` chooses them, but each as often as it is likely: `share` (n,) from 0 to 1 decides.

        A leaf that is less likely everywhere would else lose all of these readings, and with them its mass.
        """
        weight = self._weights(rows, which, leaf)
        order = np.lexsort((leaf, which))
        first = np.searchsorted(which[order], np.arange(len(rows)))
        upto = np.cumsum(weight[order])
        before = upto[first] - weight[order][first]
        last = np.append(first[1:], len(order)) - 1
        wanted = before + share * (upto[last] - before)
        return np.asarray(leaf[order[np.clip(np.searchsorted(upto, wanted, side="right"), first, last)]])

    def _weights(self, rows: Floats, which: Ints, leaf: Ints) -> Floats:
        """(m,) how likely each pair is, as a part of the likeliest pair of its row.

        The mass of the leaf times Student's density (3 degrees of freedom) of each value that is there. Sums, products
        and quotients alone: they have the same bits on every machine, where logarithms may not.
        """
        part, power = np.frexp(self.mass[leaf])
        power = power.astype(np.int64)
        for j in range(rows.shape[1]):
            spread = self.spread[leaf, j]
            apart = (rows[which, j] - self.centre[leaf, j]) / spread
            density = 1.0 / (spread * np.square(1.0 + apart * apart / 3.0))
            part, more = np.frexp(part * np.where(np.isnan(apart), 1.0, density))
            power += more
        most = np.full(len(rows), np.iinfo(np.int64).min)
        np.maximum.at(most, which, power)
        return np.asarray(np.ldexp(part, np.maximum(power - most[which], -1000).astype(np.int32)))


def possible_leaves(rows: Floats, axes: Axes, at: Floats, parts: Ints) -> tuple[Ints, Ints]:
    """All leaves, where `leaf_of` gives one, that a row (n, d) may fall into: -> (m,) rows and (m,) leaves, n at least.

    NaN is a value that a row lacks. At a cut that is about such a value it may be on both sides.
    """
    row = np.arange(len(rows))
    node = np.full(len(rows), 0 if len(at) else -1, dtype=np.int64)
    while (is_open := node >= 0).any():
        place = axes.positions(rows, row[is_open], node[is_open])
        below = parts[node[is_open]]
        is_above, lacks = place >= at[node[is_open]], np.isnan(place)
        first = np.where(is_above, below[:, 1], below[:, 0])
        row = np.concatenate([row[~is_open], row[is_open], row[is_open][lacks]])
        node = np.concatenate([node[~is_open], first, below[lacks, 1]])
    return row, -1 - node
