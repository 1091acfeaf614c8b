"""The second way to be sure: sets of states that return, however short their dwells are."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.regimes.blocks import BLOCKS_MAX, SCALES, BlockMemory
from shoal.algorithms.regimes.client import BlockStatistics
from shoal.algorithms.regimes.client_half import (
    FLOOR_OF_RAW,
    RAW_MAX,
    SPREAD_QUANTILES,
    SPREADS_APART,
)
from shoal.algorithms.regimes.exchange import Candidate, Columns
from shoal.algorithms.regimes.sets import (
    DWELL_MIN,
    find_cut,
    find_sets,
    mutual_information,
)
from shoal.algorithms.states.jumps import jump_plans
from shoal.kernels.arrays import Floats, Ints

CYCLE_MIN: Final = 0.35
"""autocorrelation of what states are like, at a later lag, from which on they are parts of a cycle:
states that follow each other by chance, with dwells that differ by half, have about .1"""
CYCLE_WINDOWS: Final = 8
"""windows that a period has at most to count as one: what takes longer, as day and night do in
readings of every minute, are states that last"""
BLINK_READINGS: Final = 12
"""readings of a run, between two of one state, from which on it is told: shorter dwells are not
found reliably"""
CHANGES_MIN: Final = 10
"""changes that states must have; single noisy blocks are none"""
EXPLAINED_MIN: Final = 0.2
"""share of the variance of a feature of blocks that states explain, for it to tell whether they are
a cycle"""


def new_memory(width: int, blocks_max: int = BLOCKS_MAX) -> BlockMemory:
    """A memory of at most so many blocks of each length, without readings."""
    return BlockMemory(
        width, SCALES, floor=FLOOR_OF_RAW, reading_max=RAW_MAX, blocks_max=blocks_max
    )


class Returning(NamedTuple):
    """States that return, and the blocks of readings in which they were found."""

    state: Ints
    """(blocks,) of the remembered blocks, from 0; -1 where a block is unknown"""
    first: int
    """the reading with which the first of these blocks begins"""
    scale: int
    """readings of a block"""
    candidate: Candidate
    """the cells of blocks and their states, for further readings"""
    columns: Columns
    """level and spread by which readings are standardized"""
    level: Floats
    """(d,) of the stream in these columns; the means of blocks are relative to it"""

    def of_readings(self) -> Ints:
        """(n,) the state of each reading in the blocks; that of the block before where unknown."""
        known = np.flatnonzero(self.state >= 0)
        place = np.searchsorted(known, np.arange(len(self.state)), side="right") - 1
        state = without_blinks(self.state[known[np.maximum(place, 0)]], self.scale)
        return np.repeat(state, self.scale)


def without_blinks(state: Ints, scale: int) -> Ints:
    """state (n,) of blocks of `scale` readings, in which a run of fewer than `DWELL_MIN` blocks and
    `BLINK_READINGS` between two of one state is of that state."""
    begins = np.flatnonzero(np.diff(state, prepend=-1) != 0)
    lengths = np.diff(begins, append=len(state))
    runs = state[begins].copy()
    for place in range(1, len(runs) - 1):
        is_short = lengths[place] < DWELL_MIN and lengths[place] * scale < BLINK_READINGS
        if is_short and runs[place + 1] == runs[place - 1]:
            runs[place] = runs[place - 1]
    return np.repeat(runs, lengths)


def find_returning(memory: BlockMemory, window: int) -> Returning | None:
    """The states between which a stream jumps, both ways and many times; None where there are none,
    or where they are the parts of a cycle. `window`: readings that show what the stream does.

    Of each length of blocks: axes along which it jumps (`jumps`), cells on them, and the sets of
    cells that valleys or seldom crossed cuts part, as `shoal.algorithms.regimes` finds them. The
    sets count that tell most of the next block; of those that tell as much, those of the shortest
    blocks on the fewest axes.
    """
    if not memory.n_readings:
        return None
    statistics = BlockStatistics(memory.width, memory.scales, memory)
    statistics.columns = columns_of(memory)
    statistics.find_level()
    best: Candidate | None = None
    most = 0.0
    for w in memory.scales:
        for plan in jump_plans(statistics.blocks(w, True), w):
            pairs = statistics.pairs(plan, 1)
            pairs_2 = statistics.pairs(plan, 2)
            sets = find_sets(plan.codewords, pairs, pairs_2)
            if sets is None:
                sets = find_cut(plan.codewords, pairs, pairs_2)
            if sets is None:
                continue
            information = mutual_information(sets.changes)
            if information > most:
                most = information
                best = Candidate(w, True, plan, sets.of_cell)
    if best is None:
        return None
    blocks = statistics.blocks(best.w, True)
    state = best.of_block(blocks)
    known = state >= 0
    if is_cycle(blocks[known], state[known], CYCLE_WINDOWS * window // best.w):
        return None
    first = (memory.n_blocks[best.w] - len(state)) * best.w
    returning = Returning(state, first, best.w, best, statistics.columns, statistics.level)
    changes = int((np.diff(returning.of_readings()) != 0).sum())
    return returning if changes >= CHANGES_MIN else None


def columns_of(memory: BlockMemory) -> Columns:
    """Median, and a deviation by outer quantiles, of each column over all that is remembered.

    By the means of the shortest blocks of which none is forgotten, and the spread within them: the
    first readings alone may be of a night in which nothing changes.
    """
    d = memory.width
    whole = (w for w in memory.scales if memory.n_blocks[w] <= memory.blocks_max)
    w = next(whole, memory.scales[-1])
    blocks = memory.blocks(w)
    blocks = blocks[~np.isnan(blocks).any(axis=1)]
    if not len(blocks):
        return Columns(np.zeros(d), np.ones(d))
    low, level, high = np.quantile(blocks[:, :d], SPREAD_QUANTILES, axis=0)
    deviation = blocks[:, :d].std(axis=0)
    spread = np.where(high > low, (high - low) / SPREADS_APART, deviation)
    if w > 1:
        # Means of blocks vary less than readings do: the variance within blocks is added to theirs.
        spread = np.hypot(spread, np.sqrt(np.exp(2 * blocks[:, d : 2 * d]).mean(axis=0)))
    return Columns(level, np.where(spread > 1e-9, spread, 1.0))


def is_cycle(blocks: Floats, state: Ints, longest: int) -> bool:
    """Whether states (n,) of blocks, features (n, m), follow each other as the parts of a cycle of
    at most `longest` blocks do: what they are like comes again a period later.

    Each block is taken for the mean of its state, without its own noise. Of each feature that
    states explain the autocorrelation of these means, beyond its first fall below 0, decides.
    """
    n = len(state)
    numbers, number = np.unique(state, return_inverse=True)
    # Of a longer lag fewer than half of the pairs are left, and few pairs agree by chance.
    longest = min(longest, n // 2)
    if len(numbers) < 2 or longest < 2:
        return False
    member = np.eye(len(numbers))[number]
    gaps = (member.T @ blocks / member.sum(axis=0)[:, None])[number] - blocks.mean(axis=0)
    total = blocks.var(axis=0)
    # At least 1e-12: of a feature that never changes only rounding would be explained.
    gaps = gaps[:, (gaps**2).mean(axis=0) > EXPLAINED_MIN * np.maximum(total, 1e-12)]
    # Padded with zeros: the transform is circular, and would relate the end to the beginning.
    size = 1 << (n + longest).bit_length()
    power = np.abs(np.fft.rfft(gaps, size, axis=0)) ** 2
    # By the transform of the power, over the number of pairs that each lag has.
    lagged = (
        np.fft.irfft(power, size, axis=0)[: longest + 1] / (n - np.arange(longest + 1))[:, None]
    )
    is_beyond = np.logical_or.accumulate(lagged < 0, axis=0)
    again = np.where(is_beyond, lagged, 0.0).max(axis=0, initial=0.0)
    return bool((again > CYCLE_MIN * lagged[0]).any())
