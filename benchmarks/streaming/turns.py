"""Timing on a shared machine: ours and a peer take turns, and processor time is measured."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.results import spread
from benchmarks.streaming.learners import Learner
from benchmarks.streams import Batch


class Turns(NamedTuple):
    """Rows per second of processor time in each turn, of a peer and of ours on the same rows."""

    peer: list[float]
    ours: list[float]

    def ratio(self) -> dict[str, float]:
        """Ratio of the rows that ours and the peer learn per second, over the turns."""
        return spread([ours / peer for peer, ours in zip(self.peer, self.ours, strict=True)])


def take_turns(peer: Learner, ours: Learner, slices: Sequence[Sequence[Batch]]) -> Turns:
    """Each slice is one turn: the peer learns it, then ours."""
    turns = Turns([], [])
    for batches in slices:
        for learner, rates in ((peer, turns.peer), (ours, turns.ours)):
            rates.append(_rate(learner, batches))
    return turns


def warm(learner: Learner, batches: Sequence[Batch]) -> Learner:
    """Have a learner learn the batches before the first turn, without timing."""
    for batch in batches:
        learner.learn(learner.prepare(batch))
    return learner


def _rate(learner: Learner, batches: Sequence[Batch]) -> float:
    prepared = [learner.prepare(batch) for batch in batches]
    gc.collect()
    seconds = _processor_time(learner.learn, prepared)
    return sum(len(batch.rows) for batch in batches) / seconds


def _processor_time(learn: Callable[[Any], None], prepared: Sequence[Any]) -> float:
    start = time.process_time()
    for batch in prepared:
        learn(batch)
    return time.process_time() - start
