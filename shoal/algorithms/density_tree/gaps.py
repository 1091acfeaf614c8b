"""Readings that lack values: the leaves into which one may fall, and how likely each of them is.

Both follow from a snapshot, which is public, and from the reading alone. So a reading with gaps is
in one leaf, as every other one, and what protects the counts is the same.

The snapshot may be made to hurt: a server that wants to know of one reading lays the masses of the
leaves so that others lie on a boundary between two of them. So where a reading falls is decided by
whole numbers, added up for this reading by itself. A sum over several readings that is rounded
would let one of them move the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.streaming import Arrays
from shoal.kernels.arrays import Floats, Ints, Words32

MIDDLE_80: Final = 2.563
"""standard deviations of a normal distribution between the ends of its middle 80 %"""
LEAST_EXTENT: Final = 1.0 / 256.0
"""least distance of these ends of a leaf, in unit coordinates: finer than that nothing is counted
"""
LEAST_POWER: Final = -(2**62)
"""below the power of 2 of every weight"""
CHANCES: Final = 1 << 31
"""most that the whole-number weights of the leaves of a reading add up to: times a random word of
32 bits it still is a number of 64"""


@dataclass(frozen=True)
class LeafFacts:
    """The l leaves in a snapshot: the readings in each, their means, and how wide they spread."""

    mass: Floats
    centre: Floats
    spread: Floats
    """(l, d) standard deviations"""

    @classmethod
    def of(cls, snapshot: Arrays, d: int) -> Self:
        """Those of a snapshot of d features. One with the plan alone has none: then all leaves are
        alike."""
        if "leaf_centre" not in snapshot:
            leaves = len(snapshot["leaf_id"])
            return cls(np.ones(leaves), np.full((leaves, d), 0.5), np.ones((leaves, d)))
        width = np.maximum(snapshot["leaf_high"] - snapshot["leaf_low"], LEAST_EXTENT)
        return cls(np.maximum(snapshot["mass"], 1.0), snapshot["leaf_centre"], width / MIDDLE_80)

    def likeliest(self, rows: Floats, which: Ints, leaf: Ints) -> Ints:
        """rows (n, d), pairs (m,) of a row and a leaf that it may fall into -> (n,) the likeliest
        leaf of each row."""
        weight = self._weights(rows, which, leaf)
        # The last key counts first: by row, then the likeliest leaf, then the lowest number of
        # equally likely ones.
        order = np.lexsort((leaf, -weight, which))
        first = np.searchsorted(which[order], np.arange(len(rows)))
        return np.asarray(leaf[order[first]])

    def drawn(self, rows: Floats, which: Ints, leaf: Ints, words: Words32) -> Ints:
        """Leaves as `likeliest` chooses them, but each as often as it is likely: a random word (n,)
        for each row decides.

        A leaf that is less likely everywhere would else lose all of these readings, and with them
        its mass.
        """
        # By row, so that the weights of each are in one piece.
        order = np.lexsort((leaf, which))
        weight = self._chances(rows, which, leaf)[order]
        row = which[order]
        first = np.searchsorted(row, np.arange(len(rows)))
        # Sums of whole numbers are exact: the difference of two running sums is the sum of one
        # row's weights alone.
        reached = np.cumsum(weight)
        reached -= (reached[first] - weight[first])[row]
        total = np.maximum.reduceat(reached, first)
        share = (words.astype(np.int64) * total) >> 32
        # The leaf at which the running sum of the row exceeds the share of its word.
        passed = np.add.reduceat((reached <= share[row]).astype(np.int64), first)
        return np.asarray(leaf[order[first + passed]])

    def _chances(self, rows: Floats, which: Ints, leaf: Ints) -> Ints:
        """(m,) `_weights` in whole numbers; those of a row add up to less than `CHANCES`, and to
        more than 0."""
        # A weight is below 1, and there are at most as many of a row as there are leaves.
        weight = np.floor(self._weights(rows, which, leaf) * (CHANCES // len(self.mass)))
        chances = weight.astype(np.int64)
        most = np.zeros(len(rows), dtype=np.int64)
        np.maximum.at(most, which, chances)
        # Facts beyond the range of a float leave no leaf any weight: then all are alike.
        chances[most[which] == 0] = 1
        return chances

    def _weights(self, rows: Floats, which: Ints, leaf: Ints) -> Floats:
        """(m,) how likely each pair is, as a part of the likeliest pair of its row.

        The mass of the leaf times Student's density (3 degrees of freedom) of each value that is
        there. Sums, products and quotients alone: they have the same bits on every machine, where
        logarithms may not.
        """
        # Mantissa and exponent apart: products over hundreds of features leave the range of a
        # float.
        part, power = np.frexp(self.mass[leaf])
        power = power.astype(np.int64)
        for feature in range(rows.shape[1]):
            spread = self.spread[leaf, feature]
            apart = (rows[which, feature] - self.centre[leaf, feature]) / spread
            # Facts that are made to hurt lie so far away that the square overflows: the density is
            # 0 there.
            with np.errstate(over="ignore"):
                density = 1.0 / (spread * np.square(1.0 + apart * apart / 3.0))
            part, more = np.frexp(part * np.where(np.isnan(apart), 1.0, density))
            power += more
        # A weight of 0 has no power; any that it had would hide those of the other leaves.
        power[part == 0.0] = LEAST_POWER
        most = np.full(len(rows), LEAST_POWER)
        np.maximum.at(most, which, power)
        # What is 2^1000 times less likely never counts, and a further exponent would leave 32 bits.
        relative = np.maximum(power - most[which], -1000).astype(np.int32)
        return np.asarray(np.ldexp(part, relative))


def possible_leaves(rows: Floats, axes: Axes, at: Floats, parts: Ints) -> tuple[Ints, Ints]:
    """All leaves, where `leaf_of` gives one, that a row (n, d) may fall into: -> (m,) rows and (m,)
    leaves, n at least.

    NaN is a value that a row lacks. At a cut that is about such a value it may be on both sides.
    """
    row = np.arange(len(rows))
    root = 0 if len(at) else -1
    node = np.full(len(rows), root, dtype=np.int64)
    is_open = node >= 0
    while is_open.any():
        open_rows = row[is_open]
        cut = node[is_open]
        place = axes.positions(rows, open_rows, cut)
        below = parts[cut]
        # NaN is not above: such a row goes on in the first part, and once more in the second one.
        next_node = np.where(place >= at[cut], below[:, 1], below[:, 0])
        lacks = np.isnan(place)
        row = np.concatenate([row[~is_open], open_rows, open_rows[lacks]])
        node = np.concatenate([node[~is_open], next_node, below[lacks, 1]])
        is_open = node >= 0
    return row, -1 - node
