"""The second way to be sure: sets of states that return, however short their dwells are."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.states.blocks import SCALES, BlockMemory
from shoal.algorithms.states.jumps import jump_plans
from shoal.algorithms.states.sets import DWELL_MIN, find_cut, find_sets, mutual_information
from shoal.algorithms.states.statistics import BlockStatistics, CellStates, Columns
from shoal.algorithms.states.switching import Switching, find_switching
from shoal.algorithms.states.views import agreement
from shoal.kernels.arrays import Floats, Ints

CYCLE_MIN: Final = 0.35
"""autocorrelation of what states are like, at a later lag, from which on they are parts of a cycle:
states that follow each other by chance, with dwells that differ by half, had .15 over 186 changes,
.25 over 38, and more than .3 in a stream with fewer"""
CYCLE_WINDOWS: Final = 8
"""windows that a period has at most to count as one: what takes longer, as day and night do in
readings of every minute, are states that last"""
BLINK_READINGS: Final = 12
"""readings of a run, between two of one state, from which on it is told: shorter dwells are not
found reliably"""
CHANGES_MIN: Final = 10
"""changes that states must have; single noisy blocks are none"""
SAME_STATES: Final = 0.5
"""mutual information of two labellings of the same readings, as a share of their mean entropy, from
which on they are of the same states"""
WINDOWS_OF_DWELL: Final = 8
"""windows by which readings are labelled that a dwell has, where two levels alone show the states:
few of them lie across a change"""
RETURNS_REGULAR: Final = 10
"""times from one beginning of a state to the next, at least, that tell whether it comes again
regularly"""
REGULAR_SHARE: Final = 0.7
"""share of those times that are whole multiples of their median, from which on states are parts of
a cycle: beats that come late or are missed leave .77 to .94, states whose dwells differ by half .2
to .64"""
REGULAR_WITHIN: Final = 0.15
"""part of the median by which a time may differ from a multiple"""
EXPLAINED_MIN: Final = 0.2
"""share of the variance of a feature of blocks that states explain, for it to tell whether they are
a cycle"""


class Returning(NamedTuple):
    """States that return, and the blocks of readings in which they were found."""

    state: Ints
    """(blocks,) of the remembered blocks, from 0; -1 where a block is unknown"""
    first: int
    """the reading with which the first of these blocks begins, or, if there are earlier ones, the
    first of those"""
    scale: int
    """readings of a block"""
    classifier: CellStates | Switching
    """what tells the states of further blocks: cells of blocks, or two levels"""
    columns: Columns
    """level and spread by which readings are standardized"""
    level: Floats
    """(d,) of the stream in these columns; the means of blocks are relative to it"""
    has_sets: bool = True
    """whether sets of cells show these states; otherwise two levels alone do"""
    label_scale: int = 0
    """readings of the windows by which a single one is best labelled; 0: those of a block"""
    earlier: Ints = np.empty(0, dtype=np.int64)
    """(m,) the state of each reading from `first` on that lies before the blocks"""

    def of_readings(self) -> Ints:
        """(n,) the state of each reading from `first` on; that of the block before where
        unknown."""
        known = np.flatnonzero(self.state >= 0)
        place = np.searchsorted(known, np.arange(len(self.state)), side="right") - 1
        state = without_blinks(self.state[known[np.maximum(place, 0)]], self.scale)
        return np.concatenate([self.earlier, np.repeat(state, self.scale)])

    def n_changes(self) -> int:
        """Changes of the state of readings."""
        return int((np.diff(self.of_readings()) != 0).sum())


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

    Found by sets of cells (`_by_sets`), and by two levels (`switching`): of single readings, which
    tells states that are short or overlap. Where both find two, and the same ones, those of single
    readings are taken, as they have changes at the reading; otherwise sets come first, as they may
    be more than two, and differ in more than level.
    """
    if not memory.n_readings:
        return None
    statistics = BlockStatistics(memory)
    by_sets = _by_sets(statistics)
    if by_sets is not None:
        blocks = statistics.blocks(by_sets.scale)
        if _is_cycle_of(blocks, by_sets, window):
            return None
        if by_sets.n_changes() < CHANGES_MIN:
            by_sets = None
    if by_sets is not None and by_sets.state.max() > 1:
        return by_sets
    by_levels = _by_levels(statistics, window)
    if by_levels is None:
        return by_sets
    if by_sets is None:
        dwell = len(by_levels.state) / (by_levels.n_changes() + 1)
        fitting = [w for w in SCALES if w <= max(1.0, dwell / WINDOWS_OF_DWELL)]
        return by_levels._replace(has_sets=False, label_scale=fitting[-1])
    return _at_readings(by_sets, by_levels)


def _by_sets(statistics: BlockStatistics) -> Returning | None:
    """Sets of cells that valleys or seldom crossed cuts part, on axes along which the stream jumps
    (`jumps`); of each length of blocks.

    The sets count that tell most of the next block; of those that tell as much, those of the
    shortest blocks on the fewest axes.
    """
    memory = statistics.memory
    best: CellStates | None = None
    most = 0.0
    for w in memory.scales:
        for plan in jump_plans(statistics.blocks(w), w):
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
                best = CellStates(plan, sets.of_cell)
    if best is None:
        return None
    return _returning(statistics, best, best.w)


def _by_levels(statistics: BlockStatistics, window: int) -> Returning | None:
    readings = statistics.blocks(1)
    model = find_switching(readings)
    if model is None:
        return None
    returning = _returning(statistics, model, 1)
    along = (readings @ model.axis)[:, None]
    if _is_cycle_of(along, returning, window) or returning.n_changes() < CHANGES_MIN:
        return None
    return returning


def _returning(
    statistics: BlockStatistics, classifier: CellStates | Switching, w: int
) -> Returning:
    state = classifier.of_block(statistics.blocks(w))
    first = (statistics.memory.n_blocks[w] - len(state)) * w
    return Returning(state, first, w, classifier, statistics.columns, statistics.level)


def _is_cycle_of(blocks: Floats, returning: Returning, window: int) -> bool:
    """Whether states are the parts of a cycle of at most `CYCLE_WINDOWS` windows."""
    known = returning.state >= 0
    longest = CYCLE_WINDOWS * window // returning.scale
    if is_cycle(blocks[known], returning.state[known], longest):
        return True
    return comes_regularly(returning.of_readings(), CYCLE_WINDOWS * window)


def comes_regularly(state: Ints, longest: int) -> bool:
    """Whether a state, of those (n,) of readings, begins again and again after about the same time
    of at most `longest` readings, or after a multiple of it.

    Short peaks at times that vary a little, as heartbeats, do not repeat reading by reading, and so
    show no autocorrelation at their period.
    """
    begins = np.flatnonzero(np.diff(state) != 0) + 1
    for number in np.unique(state):
        times = np.diff(begins[state[begins] == number])
        if len(times) < RETURNS_REGULAR:
            continue
        median = float(np.median(times))
        # What is nearer to none than to once the median is no multiple.
        multiple = np.maximum(1.0, np.rint(times / median))
        is_regular = np.abs(times / median - multiple) <= REGULAR_WITHIN
        if median <= longest and is_regular.mean() >= REGULAR_SHARE:
            return True
    return False


def _at_readings(by_sets: Returning, by_levels: Returning) -> Returning:
    """The two levels where they are the same states as the sets, which remember more of the past;
    the sets otherwise."""
    # As many blocks of each length are remembered, so that those of one reading begin last.
    before = by_levels.first - by_sets.first
    sets = by_sets.of_readings()
    levels = by_levels.of_readings()
    shared = sets[before:]
    n = min(len(shared), len(levels))
    if not n or agreement(shared[:n], levels[:n]) < SAME_STATES:
        return by_sets
    pairs = np.zeros((2, 2))
    np.add.at(pairs, (shared[:n], levels[:n]), 1.0)
    level_of = pairs.argmax(axis=1)
    earlier = level_of[sets[:before]].astype(np.int64)
    # The level of one reading tells less than that of a block.
    return by_levels._replace(first=by_sets.first, earlier=earlier, label_scale=by_sets.scale)


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
