"""The client half: blocks of its own stream, and the sums over them that leave it."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.regimes.blocks import SCALES, BlockMemory
from shoal.algorithms.regimes.plan import Products, ScalePlan, Scaling
from shoal.algorithms.regimes.sets import told_of_next
from shoal.kernels.arrays import Floats, Ints

SAMPLE_MAX = 256
"""blocks of each scale that a client sends for the codebook, evenly spaced in time"""
LEVEL_QUANTILES = (0.05, 0.95)
"""quantiles whose mean is a client's own level: unlike a mean or median, it does not depend on how long each of its
regimes lasted"""


class RegimeClient:
    """The memory of one client, and what it says of it. `width`: columns. Rows are standardized."""

    def __init__(self, width: int, scales: tuple[int, ...] = SCALES) -> None:
        self.memory = BlockMemory(width, scales)
        self.level = np.zeros(width)
        """(d,) its own level, as of the last look"""

    def find_level(self) -> None:
        """Find the own level in what is remembered."""
        smallest = self.memory.blocks(self.memory.scales[0])
        smallest = smallest[~np.isnan(smallest).any(axis=1)]
        if len(smallest):
            self.level = np.quantile(smallest, LEVEL_QUANTILES, axis=0).mean(axis=0)

    def blocks(self, w: int, centred: bool) -> Floats:
        """(n, m) features of the remembered blocks of scale w."""
        return self.levelled(self.memory.blocks(w), centred)

    def levelled(self, features: Floats, centred: bool) -> Floats:
        """(n, m) features of blocks or windows; if `centred`, the own level is taken from their means, in place."""
        if centred:
            features[:, : len(self.level)] -= self.level
        return features

    def scaling_sums(self, w: int, centred: bool) -> tuple[int, Floats, Floats]:
        """Number, sum and sum of squares of the features of all remembered blocks that are not NaN."""
        blocks = self.blocks(w, centred)
        blocks = blocks[~np.isnan(blocks).any(axis=1)]
        return len(blocks), blocks.sum(axis=0), (blocks**2).sum(axis=0)

    def products(self, scaling: Scaling) -> Products:
        """Sums over all remembered pairs of successive blocks."""
        standard = scaling.standardize(self.blocks(scaling.w, scaling.centred))
        known = np.isfinite(standard.sum(axis=1))
        both = known[1:] & known[:-1]
        first, second = standard[:-1][both], standard[1:][both]
        sample = standard[known]
        if len(sample) > SAMPLE_MAX:
            sample = sample[np.linspace(0, len(sample) - 1, SAMPLE_MAX).astype(np.int64)]
        return Products(
            n=len(first),
            total=first.sum(axis=0) + second.sum(axis=0),
            same=first.T @ first + second.T @ second,
            lagged=first.T @ second + second.T @ first,
            sample=sample,
        )

    def pairs(self, plan: ScalePlan) -> Floats:
        """(2, c, c) counts of pairs of cells of remembered blocks, one and two blocks apart."""
        n_cells = len(plan.codebook)
        cells = plan.cells(self.blocks(plan.scaling.w, plan.scaling.centred))
        pairs = np.zeros((2, n_cells, n_cells))
        for lag in (1, 2):
            before, after = cells[:-lag], cells[lag:]
            known = (before >= 0) & (after >= 0)
            code = before[known] * n_cells + after[known]
            pairs[lag - 1] = np.bincount(code, minlength=n_cells**2).reshape(n_cells, n_cells)
        return pairs

    def sets_over_time(self, plan: ScalePlan, of_cell: Ints) -> tuple[Ints, int]:
        """(n,) the set of each remembered reading that lies in a block, -1 unknown, and the number of the first one."""
        sets, w = self._sets(plan, of_cell), plan.scaling.w
        return np.repeat(sets, w), (self.memory.n_blocks[w] - len(sets)) * w

    def own_information(self, plan: ScalePlan, of_cell: Ints) -> float:
        """Nats that the set of one of its own blocks tells of the next one's."""
        sets, k = self._sets(plan, of_cell), int(of_cell.max()) + 1
        both = (sets[1:] >= 0) & (sets[:-1] >= 0)
        code = sets[:-1][both] * k + sets[1:][both]
        return max(0.0, told_of_next(np.bincount(code, minlength=k * k).reshape(k, k)))

    def _sets(self, plan: ScalePlan, of_cell: Ints) -> Ints:
        """(n,) the set of each remembered block, -1 for one that is NaN."""
        cells = plan.cells(self.blocks(plan.scaling.w, plan.scaling.centred))
        return np.where(cells >= 0, of_cell[cells], -1)
