"""What returning states are found in: a stream's blocks about its own level, and the cells that
they are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.algorithms.states.blocks import FLOOR, READING_MAX, BlockMemory
from shoal.algorithms.states.plan import ScalePlan
from shoal.kernels.arrays import Floats, Ints

LEVEL_QUANTILES: Final = (0.05, 0.95)
"""quantiles whose mean is a stream's level: unlike a mean or median, it does not depend on how long
each of its states lasted"""
SPREAD_QUANTILES: Final = (0.05, 0.5, 0.95)
SPREADS_APART: Final = 3.29
"""standard deviations of a Gaussian between the outer two of these quantiles"""


@dataclass(frozen=True, eq=False)
class Columns:
    """Level and spread (d,) of the columns of a stream."""

    level: Floats
    spread: Floats

    @classmethod
    def of(cls, memory: BlockMemory) -> Columns:
        """Median, and a deviation by outer quantiles, of each column over all that is remembered.

        By the means of the shortest blocks of which none is forgotten, and the spread within them:
        the first readings alone may be of a night in which nothing changes.
        """
        d = memory.width
        whole = (w for w in memory.scales if memory.n_blocks[w] <= memory.blocks_max)
        w = next(whole, memory.scales[-1])
        blocks = memory.blocks(w)
        blocks = blocks[~np.isnan(blocks).any(axis=1)]
        if not len(blocks):
            return cls(np.zeros(d), np.ones(d))
        low, level, high = np.quantile(blocks[:, :d], SPREAD_QUANTILES, axis=0)
        deviation = blocks[:, :d].std(axis=0)
        spread = np.where(high > low, (high - low) / SPREADS_APART, deviation)
        if w > 1:
            # Means of blocks vary less than readings do: the variance within blocks is added to
            # theirs.
            spread = np.hypot(spread, np.sqrt(np.exp(2 * blocks[:, d : 2 * d]).mean(axis=0)))
        return cls(level, np.where(spread > 1e-9, spread, 1.0))

    def standardize(self, rows: Floats) -> Floats:
        """(n, d) -> (n, d)."""
        return (rows - self.level) / self.spread


@dataclass(frozen=True, eq=False)
class CellStates:
    """The states of blocks by the cell that each is in."""

    plan: ScalePlan
    of_cell: Ints
    """(c,) state of each cell, from 0"""

    @property
    def w(self) -> int:
        """Readings of a block."""
        return self.plan.scaling.w

    def of_block(self, blocks: Floats) -> Ints:
        """(n, m) features of blocks -> (n,) their states; -1 for one that is NaN."""
        cells = self.plan.cells(blocks)
        return np.where(cells >= 0, self.of_cell[cells], -1)


class BlockStatistics:
    """The blocks that a stream's memory has, standardized and about the stream's own level."""

    def __init__(self, memory: BlockMemory) -> None:
        self.memory = memory
        self.columns = Columns.of(memory)
        self.level = np.zeros(memory.width)
        """(d,) of the stream, standardized"""
        smallest = self._standard(memory.scales[0])
        smallest = smallest[~np.isnan(smallest).any(axis=1)]
        if len(smallest):
            self.level = np.quantile(smallest, LEVEL_QUANTILES, axis=0).mean(axis=0)

    def blocks(self, w: int) -> Floats:
        """(n, m) features of the remembered blocks of scale w, means less the level."""
        features = self._standard(w)
        features[:, : len(self.level)] -= self.level
        return features

    def pairs(self, plan: ScalePlan, lag: int) -> Floats:
        """(c, c) counts of pairs of cells of remembered blocks, `lag` blocks apart."""
        n_cells = len(plan.codewords)
        cells = plan.cells(self.blocks(plan.scaling.w))
        before = cells[:-lag]
        after = cells[lag:]
        known = (before >= 0) & (after >= 0)
        code = before[known] * n_cells + after[known]
        return np.bincount(code, minlength=n_cells**2).reshape(n_cells, n_cells).astype(np.float64)

    def _standard(self, w: int) -> Floats:
        """(n, m) standardized features of the remembered blocks of scale w."""
        return standardized(self.memory.blocks(w), self.columns, w)


def standardized(features: Floats, columns: Columns, w: int) -> Floats:
    """(n, m) features of blocks of w raw rows, logarithms without a floor -> those of the same rows
    standardized."""
    d = len(columns.level)
    mean = np.clip((features[:, :d] - columns.level) / columns.spread, -READING_MAX, READING_MAX)
    if w == 1:
        return mean
    deviation = features[:, d : 2 * d]
    # Roughness is kept relative to the deviation: the sum of both logarithms is its own.
    rough = np.log(np.exp(deviation + features[:, 2 * d : 3 * d]) / columns.spread + FLOOR)
    deviation = np.log(np.exp(deviation) / columns.spread + FLOOR)
    slope = np.clip(features[:, 3 * d :] / columns.spread, -2 * READING_MAX, 2 * READING_MAX)
    return np.concatenate([mean, deviation, rough - deviation, slope], axis=1)
