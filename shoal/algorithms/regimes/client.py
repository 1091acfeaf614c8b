"""The statistics of a client: sums over the blocks of its own stream, which alone leave it."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.regimes.blocks import FLOOR, READING_MAX, SCALES, BlockMemory
from shoal.algorithms.regimes.exchange import (
    SAMPLE,
    Candidate,
    Codebook,
    Columns,
    Phase,
    Query,
    Sums,
)
from shoal.algorithms.regimes.plan import FEATURE_MAX, ScalePlan, Scaling
from shoal.algorithms.regimes.sets import mutual_information
from shoal.kernels.arrays import Floats, Ints

SAMPLE_MAX = 256
"""blocks of each scale that a client sends for the codebook, evenly spaced in time"""
SAMPLE_STEPS = 31
"""steps of a standardized feature within a deviation, to which those blocks are rounded: each takes
a byte then"""
LEVEL_QUANTILES = (0.05, 0.95)
"""quantiles whose mean is a client's own level: unlike a mean or median, it does not depend on how
long each of its regimes lasted"""
CHANGING = 0.01
"""nats a block from which on a client counts as one that changes"""


class BlockStatistics:
    """Statistics of the blocks that one client remembers, with which it answers queries.

    `width`: columns.

    Rows are standardized, or the memory has the raw ones (`floor`) and each query gives the columns
    to standardize by.
    """

    def __init__(
        self, width: int, scales: tuple[int, ...] = SCALES, memory: BlockMemory | None = None
    ) -> None:
        self.memory = BlockMemory(width, scales) if memory is None else memory
        self.columns: Columns | None = None
        """None: what is remembered is standardized"""
        self.level = np.zeros(width)
        """(d,) its own level, as of the last evaluation"""
        self.evaluation = 0
        """number of that evaluation"""

    def answer(self, query: Query) -> Sums:
        """The whole answer to a query of any phase but that of columns."""
        self.begin(query)
        answer: Sums = {}
        for place in query.places():
            if query.phase is Phase.SCALING:
                answer |= self.scaling_sums(place, *query.keys[place])
            elif query.phase is Phase.PRODUCTS:
                answer |= self.products(place, query.scalings[place])
            elif query.phase is Phase.PAIRS:
                answer[f"{place}/pairs"] = np.stack(
                    [self.pairs(query.plans[place], lag) for lag in (1, 2)]
                )
        return answer | self.names(query) if query.phase is Phase.NAMES else answer

    def begin(self, query: Query) -> None:
        """Find the own level in what is remembered, once in each evaluation."""
        self.columns = query.columns
        if query.evaluation == self.evaluation:
            return
        self.evaluation = query.evaluation
        self.find_level()

    def find_level(self) -> None:
        """Find the own level in what is remembered."""
        smallest = self._standard(self.memory.scales[0])
        smallest = smallest[~np.isnan(smallest).any(axis=1)]
        if len(smallest):
            self.level = np.quantile(smallest, LEVEL_QUANTILES, axis=0).mean(axis=0)

    def blocks(self, w: int, centred: bool) -> Floats:
        """(n, m) features of the remembered blocks of scale w."""
        return self.levelled(self._standard(w), centred)

    def levelled(self, features: Floats, centred: bool) -> Floats:
        """(n, m) features of blocks or windows; if `centred`, the own level is taken from their
        means, in place."""
        if centred:
            features[:, : len(self.level)] -= self.level
        return features

    def scaling_sums(self, place: int, w: int, centred: bool) -> Sums:
        """Number, sum and sum of squares of the features of all remembered blocks that are not
        NaN."""
        blocks = self.blocks(w, centred)
        blocks = blocks[~np.isnan(blocks).any(axis=1)]
        n = np.array([float(len(blocks))])
        total = blocks.sum(axis=0)
        squares = (blocks**2).sum(axis=0)
        return {f"{place}/n": n, f"{place}/total": total, f"{place}/squares": squares}

    def products(self, place: int, scaling: Scaling) -> Sums:
        """Sums over all remembered pairs of successive blocks of standardized features, and some of
        the blocks."""
        standard = scaling.standardize(self.blocks(scaling.w, scaling.centred))
        # A sum is NaN where any feature is: faster than to test each.
        known = np.isfinite(standard.sum(axis=1))
        both = known[1:] & known[:-1]
        first = standard[:-1][both]
        second = standard[1:][both]
        sample = standard[known]
        if len(sample) > SAMPLE_MAX:
            sample = sample[np.linspace(0, len(sample) - 1, SAMPLE_MAX).astype(np.int64)]
        return {
            f"{place}/n": np.array([float(len(first))]),
            f"{place}/total": first.sum(axis=0) + second.sum(axis=0),
            f"{place}/same": first.T @ first + second.T @ second,
            # Symmetric, or the slow coordinates could have complex eigenvalues.
            f"{place}/lagged": first.T @ second + second.T @ first,
            f"{place}/{SAMPLE}": np.rint(sample * SAMPLE_STEPS) / SAMPLE_STEPS,
        }

    def pairs(self, plan: ScalePlan, lag: int) -> Floats:
        """(c, c) counts of pairs of cells of remembered blocks, `lag` blocks apart."""
        n_cells = len(plan.codewords)
        cells = plan.cells(self.blocks(plan.scaling.w, plan.scaling.centred))
        before = cells[:-lag]
        after = cells[lag:]
        known = (before >= 0) & (after >= 0)
        code = before[known] * n_cells + after[known]
        return np.bincount(code, minlength=n_cells**2).reshape(n_cells, n_cells).astype(np.float64)

    def names(self, query: Query) -> Sums:
        """What the candidates share with the regimes before, tell of the next block, and are
        like."""
        answer: Sums = {"0/level": self.level.copy(), "0/levels": np.ones(1)}
        if not self.memory.n_readings:
            answer = {"0/level": np.zeros_like(self.level), "0/levels": np.zeros(1)}
        for place, candidate in enumerate(query.candidates):
            information = max(0.0, self._information(candidate))
            changes = information > CHANGING
            answer[f"{place}/overlap"] = self._overlap(query.last, candidate)
            answer[f"{place}/information"] = np.array(
                [information, information * changes, float(changes)]
            )
            answer |= self.profile(place, candidate)
        return answer

    def profile(self, place: int, candidate: Candidate) -> Sums:
        """Sums over the remembered blocks of each set: their number, and of d columns mean, square
        and the others."""
        d = self.memory.width
        blocks = self.blocks(candidate.w, candidate.centred)
        of_block = candidate.of_block(blocks)
        blocks = blocks[of_block >= 0]
        member = np.eye(candidate.n_sets)[of_block[of_block >= 0]]
        mean = blocks[:, :d]
        has_parts = candidate.w > 1
        inside = np.exp(2 * blocks[:, d : 2 * d]) if has_parts else np.zeros_like(mean)
        rough, slope = (
            (blocks[:, 2 * d : 3 * d], blocks[:, 3 * d :]) if has_parts else (inside, inside)
        )
        parts = {"mean": mean, "square": mean**2 + inside, "rough": rough, "slope": slope}
        sums = {f"{place}/{name}": member.T @ part for name, part in parts.items()}
        return {f"{place}/count": member.sum(axis=0), **sums}

    def _standard(self, w: int) -> Floats:
        """(n, m) standardized features of the remembered blocks of scale w."""
        features = self.memory.blocks(w)
        return features if self.columns is None else standardized(features, self.columns, w)

    def _information(self, candidate: Candidate) -> float:
        """Nats that the set of one of its own blocks tells of the next one's."""
        sets = candidate.of_block(self.blocks(candidate.w, candidate.centred))
        k = candidate.n_sets
        both = (sets[1:] >= 0) & (sets[:-1] >= 0)
        code = sets[:-1][both] * k + sets[1:][both]
        return mutual_information(np.bincount(code, minlength=k * k).reshape(k, k))

    def _overlap(self, last: Codebook | None, candidate: Candidate) -> Floats:
        """(k, l) remembered readings by their set in the old codebook and in the candidate."""
        if last is None:
            return np.zeros((0, candidate.n_sets))
        k = len(last.identity)
        m = candidate.n_sets
        old = Candidate(last.w, last.plan.scaling.centred, last.plan, last.sets.of_cell)
        (before, first) = self._over_time(old)
        (now, start) = self._over_time(candidate)
        begin = max(first, start)
        end = min(first + len(before), start + len(now))
        if end <= begin:
            return np.zeros((k, m))
        before = before[begin - first : end - first]
        now = now[begin - start : end - start]
        known = (before >= 0) & (now >= 0)
        code = before[known] * m + now[known]
        return np.bincount(code, minlength=k * m).reshape(k, m).astype(np.float64)

    def _over_time(self, candidate: Candidate) -> tuple[Ints, int]:
        """(n,) the set of each remembered reading that lies in a block, -1 unknown, and the number
        of the first one."""
        sets = candidate.of_block(self.blocks(candidate.w, candidate.centred))
        return np.repeat(sets, candidate.w), (
            self.memory.n_blocks[candidate.w] - len(sets)
        ) * candidate.w


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


def sample_bytes(sample: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(s, m) blocks as an answer has them -> the same as bytes."""
    return np.rint((sample + FEATURE_MAX) * SAMPLE_STEPS).astype(np.uint8)


def sample_of(packed: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Floats:
    """The blocks (s, m) that bytes were made of."""
    return (packed.astype(np.float64) - FEATURE_MAX * SAMPLE_STEPS) / SAMPLE_STEPS
