"""What a client publishes of its states: sums over their readings."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from shoal.algorithms.states.blocks import SCALES
from shoal.algorithms.states.learner import StateLearner
from shoal.algorithms.states.messages import STATES_MAX
from shoal.algorithms.states.timeline import NO_STATE
from shoal.kernels.arrays import AnyArray, Floats, Ints


@dataclass(frozen=True, eq=False)
class Summary:
    """Sums over the readings of k states, as of the last evaluation. d columns."""

    state: Ints
    """(k,) identities at the client, ascending"""
    count: Ints
    """(k,) readings"""
    total: Floats
    """(k, d) sums of readings"""
    square: Floats
    """(k, d) of their squares"""
    step: Floats
    """(k, d) of squared differences of successive ones"""
    change: Ints
    """(k, k) changes from each to each other one"""
    dwells: Ints
    """(k, 2) ended dwells, and their readings"""

    def arrays(self) -> dict[str, AnyArray]:
        """The arrays of an update, by their names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def summary_of(learner: StateLearner, low: Floats, high: Floats) -> Summary | None:
    """The states of a learner that has learnt rows, all between `low` and `high` (d,); None where
    no block has all values.

    Before the first evaluation all is one state. Means, squares and differences are those of the
    blocks that are remembered, for all readings of a state.
    """
    runs = learner.runs
    if not len(runs):
        runs = np.array([[learner.first_known, learner.n_readings, 0]], dtype=np.int64)
    mean_of: dict[int, Floats] = _moments(learner, runs)
    readings: dict[int, int] = {}
    for first, end, number in runs.tolist():
        readings[number] = readings.get(number, 0) + end - first
    known = [number for number in readings if number in mean_of]
    if not known:
        return None
    most_read = sorted(known, key=lambda number: (-readings[number], number))[:STATES_MAX]
    state = np.array(sorted(most_read), dtype=np.int64)
    count = np.array([readings[number] for number in state.tolist()], dtype=np.int64)
    moments = np.stack([mean_of[number] for number in state.tolist()])
    # Blocks are kept in 32 bits: a mean of them may lie beyond the readings by rounding.
    mean = np.clip(moments[:, 0], low, high)
    variance = np.minimum(moments[:, 1], (mean - low) * (high - mean))
    weight = count[:, None].astype(np.float64)
    step = np.minimum(moments[:, 2], (high - low) ** 2)
    change = np.zeros((len(state), len(state)), dtype=np.int64)
    dwells = np.zeros((len(state), 2), dtype=np.int64)
    place = {number: at for at, number in enumerate(state.tolist())}
    for (first, end, before), (_, _, after) in zip(
        runs[:-1].tolist(), runs[1:].tolist(), strict=True
    ):
        if before in place:
            dwells[place[before]] += [1, end - first]
        if before in place and after in place:
            change[place[before], place[after]] += 1
    square = (variance + mean**2) * weight
    return Summary(state, count, mean * weight, square, step * weight, change, dwells)


def _moments(learner: StateLearner, runs: Ints) -> dict[int, Floats]:
    """State -> (3, d) mean, variance and mean squared difference of successive readings."""
    if not learner.memory.is_started:
        rows = learner.unscaled
        steps = np.diff(rows, axis=0) ** 2
        step = steps.mean(axis=0) if len(steps) else np.zeros(rows.shape[1])
        mean = np.clip(rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))
        return {int(runs[0, 2]): np.stack([mean, ((rows - mean) ** 2).mean(axis=0), step])}
    d = learner.memory.width
    level = learner.memory.mean
    unit = learner.memory.spread
    scale = block_scale(learner)
    blocks = learner.blocks.blocks(scale)
    numbers = block_states(learner, runs, scale, len(blocks))
    # A block that lacks values has no moments.
    numbers = np.where(np.isnan(blocks).any(axis=1), NO_STATE, numbers)
    moments = {}
    for number in np.unique(numbers[numbers != NO_STATE]).tolist():
        own = blocks[numbers == number]
        means = own[:, :d]
        inner = np.exp(2 * own[:, d : 2 * d]).mean(axis=0)
        step = np.exp(2 * (own[:, d : 2 * d] + own[:, 2 * d : 3 * d])).mean(axis=0)
        variance = means.var(axis=0) + inner
        moments[number] = np.stack(
            [means.mean(axis=0) * unit + level, variance * unit**2, step * unit**2]
        )
    return moments


def block_scale(learner: StateLearner) -> int:
    """Readings of the blocks of which sums are made: two at least, so that there are
    differences."""
    if learner.scale:
        return max(SCALES[1], learner.scale)
    half = (learner.memory.window or 0) // 2
    return max(scale for scale in SCALES if scale <= max(SCALES[1], half))


def block_states(learner: StateLearner, runs: Ints, scale: int, n: int) -> Ints:
    """(n,) the state in the middle of each of the latest n blocks; `NO_STATE` outside of the
    runs."""
    first = learner.blocks.n_blocks[scale] - n
    middles = learner.first_known + (first + np.arange(n)) * scale + scale // 2
    place = np.searchsorted(runs[:, 0], middles, side="right") - 1
    inside = (place >= 0) & (middles < runs[-1, 1])
    return np.where(inside, runs[np.maximum(place, 0), 2], NO_STATE)
