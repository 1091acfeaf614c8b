"""What an engine is, and the engine `local`: worker processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from onebox.replay import shuffle
from onebox.replay.plan import ReplayPlan
from onebox.replay.results import PartSummary, learn_part
from onebox.replay.updates import in_order
from shoal.evaluation.workers import Workers

J = TypeVar("J")
R = TypeVar("R")


class Engine(Protocol):
    """Runs the work of a replay. No result depends on the engine, or on how many workers it has."""

    def spread(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterable[R]:
        """`work(job)` of each job, in the order in which they finish. Raises what `work` raises."""
        ...

    def learn(self, plan: ReplayPlan, parts: Sequence[int]) -> Iterator[PartSummary]:
        """Learn these parts; each is yielded once its results are on the disk. Raises `InvalidData`."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class LocalEngine:
    """Worker processes on this machine."""

    def __init__(self, workers: int) -> None:
        self._workers = Workers(workers)

    def spread(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """See `Engine.spread`."""
        return (result for _, result in self._workers.spread(work, jobs))

    def learn(self, plan: ReplayPlan, parts: Sequence[int]) -> Iterator[PartSummary]:
        """See `Engine.learn`."""
        return learn_from_files(self, plan, parts)

    def close(self) -> None:
        """See `Engine.close`."""
        self._workers.close()


def learn_from_files(engine: Engine, plan: ReplayPlan, parts: Sequence[int]) -> Iterator[PartSummary]:
    """Learn parts on an engine that has no shuffle of its own: the readings are brought together in files."""
    for _ in engine.spread(partial(shuffle.take_apart, plan), shuffle.pieces_to_take_apart(plan)):
        pass
    yield from engine.spread(partial(learn_gathered, plan), parts)


def learn_gathered(plan: ReplayPlan, part: int) -> PartSummary:
    """Learn a part from the files of the shuffle."""
    return learn_part(plan, part, in_order(shuffle.read_part(plan, part)).to_batches())
