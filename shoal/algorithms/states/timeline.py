"""Runs of readings, which tell when a stream was in which state, and the numbers that states
keep."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.kernels.arrays import Floats, Ints

NO_STATE: Final = -1
RUNS_MAX: Final = 4_096
"""runs that are kept, the latest ones"""
SAME_OVERLAP: Final = 1 / 3
"""share of the readings of either of two states that both have from which on they can be one"""


def runs_of(state: Ints, edges: Ints) -> Ints:
    """state (n,) between successive edges (n + 1,), in readings -> (r, 3): first reading, reading
    after the last, state of each run."""
    kept = edges[1:] > edges[:-1]
    state = state[kept]
    firsts = edges[:-1][kept]
    if not len(state):
        return np.empty((0, 3), dtype=np.int64)
    begins = np.concatenate([[True], np.diff(state) != 0])
    ends = np.concatenate([firsts[begins][1:], edges[-1:]])
    return np.stack([firsts[begins], ends, state[begins]], axis=1).astype(np.int64)


def state_at(runs: Ints, readings: Ints) -> Ints:
    """The state at each of the readings (m,), by number; `NO_STATE` outside of all runs, which
    follow each other."""
    if not len(runs):
        return np.full(len(readings), NO_STATE, dtype=np.int64)
    place = np.searchsorted(runs[:, 0], readings, side="right") - 1
    state = runs[np.maximum(place, 0), 2]
    inside = (place >= 0) & (readings < runs[-1, 1])
    return np.where(inside, state, NO_STATE)


def overlap_of(before: Ints, after: Ints) -> tuple[Ints, Ints, Floats]:
    """Two tables of runs -> states of the first (k,) and of the second (l,), and (k, l) the
    readings that both give to them."""
    old = np.unique(before[:, 2])
    new = np.unique(after[:, 2])
    table = np.zeros((len(old), len(new)))
    if not len(old) or not len(new):
        return old, new, table
    # Between two of these neither table changes its state.
    edges = np.unique(np.concatenate([before[:, :2], after[:, :2]]))
    rows = state_at(before, edges[:-1])
    columns = state_at(after, edges[:-1])
    both = (rows != NO_STATE) & (columns != NO_STATE)
    places = (np.searchsorted(old, rows[both]), np.searchsorted(new, columns[both]))
    np.add.at(table, places, np.diff(edges)[both].astype(np.float64))
    return old, new, table


def matched(old: Ints, table: Floats) -> Ints:
    """(l,) the number that each new state takes from the old ones (k,) by their overlap (k, l), the
    largest share first; `NO_STATE` where it is new."""
    number = np.full(table.shape[1], NO_STATE, dtype=np.int64)
    if not table.size:
        return number
    either = table.sum(axis=1)[:, None] + table.sum(axis=0) - table
    share = table / np.maximum(either, 1.0)
    # Each turn leaves a row and a column without a share, so that no state is taken twice and it
    # ends.
    while share.max() > SAME_OVERLAP:
        row, column = np.unravel_index(int(share.argmax()), share.shape)
        number[column] = old[row]
        share[row] = 0.0
        share[:, column] = 0.0
    return number


def continued(before: Ints, after: Ints) -> Ints:
    """The runs before, as far as they lie before those after, and those after; at most
    `RUNS_MAX`."""
    start = after[0, 0]
    earlier = before[before[:, 0] < start].copy()
    if len(earlier):
        earlier[-1, 1] = min(earlier[-1, 1], start)
    if len(earlier) and earlier[-1, 1] == start and earlier[-1, 2] == after[0, 2]:
        after = after.copy()
        after[0, 0] = earlier[-1, 0]
        earlier = earlier[:-1]
    return np.concatenate([earlier, after])[-RUNS_MAX:]
