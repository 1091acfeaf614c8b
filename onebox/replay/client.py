"""A replayed client: the stages of a client node, on readings that are there already, by the clock of the readings."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_nodes.intake import Batch
from client_nodes.learner import Learner
from client_nodes.privacy import PrivateBatch, privatise
from client_nodes.publisher import EncodedUpdate, Publisher
from client_nodes.round_answers import RowWindow
from onebox.replay.plan import ReplayPlan
from shoal.config.privacy import privacy_mode
from shoal.errors import InvalidData
from shoal.protocol.validation import Validator


class DatedUpdate(NamedTuple):
    """An update, and when the client made it, by its clock: seconds since 1970."""

    at: float
    update: EncodedUpdate


@dataclass
class Counts:
    """What a replay has counted. The last three are made from raw readings and stay where those are."""

    clients: int = 0
    readings: int = 0
    rejected: int = 0
    """with a value that is no finite number, or that repeat one, if the settings tell to drop those"""
    clipped: int = 0


@dataclass
class Stages:
    """What the clients of one worker share."""

    plan: ReplayPlan
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.mode = privacy_mode(self.plan.contract)
        self.validator = Validator(self.plan.contract)


class ReplayedClient:
    """One client: learns its readings in the order (t, sequence) and makes its updates.

    Its clock is the time of the reading at hand. So it makes the updates, bit for bit, that a client node makes which
    reads every reading at the time of that reading. The place of a reading is partition 0 and its number in that order.
    """

    def __init__(self, name: str, stages: Stages, started_at: float) -> None:
        """`started_at`: the time of its first reading."""
        plan = stages.plan
        self.name = name
        self._contract, self._settings, self._counts = plan.contract, plan.settings, stages.counts
        self._mechanism = stages.mode.mechanism(plan.client_key(name), name, plan.source)
        publisher = Publisher(plan.contract, stages.validator, plan.update_bytes_max)
        self._learner = Learner(plan.contract, name, publisher, plan.settings, started_at)
        self.window = RowWindow(plan.contract.width, plan.settings.window_rows, plan.settings.window_s)
        """its newest noisy rows, from which it answers rounds; empty without models in rounds"""
        self._keeps_window = bool(plan.models_in_rounds)
        self._readings = 0
        self._newest = -np.inf
        stages.counts.clients += 1

    def learn(self, values: NDArray[np.float64], times: NDArray[np.float64]) -> list[DatedUpdate]:
        """values (n, d) in the units of the contract, times (n,) ascending -> the updates that became due.

        Raises `InvalidData` for readings out of order.
        """
        if not len(times):
            return []
        if times[0] < self._newest or (np.diff(times) < 0).any():
            raise InvalidData(f"the readings of client {self.name} are not in the order of their times")
        private = privatise(self._mechanism, self._batch(values, times), self._contract)
        self._count(private)
        if self._keeps_window:
            self.window.add(private.rows, private.times, float(times[-1]))
        self._readings += len(times)
        self._newest = float(times[-1])
        updates: list[DatedUpdate] = []
        start = 0
        while start < len(times):
            places, due_at = self._learner.due
            stop = min(len(times), start + places, start + int(np.searchsorted(times[start:], due_at)) + 1)
            now = float(times[stop - 1])
            updates += [DatedUpdate(now, update) for update in self._learner.learn(_cut(private, start, stop), now)]
            start = stop
        return updates

    def finish(self) -> list[DatedUpdate]:
        """The updates that a client node makes when no reading comes any more: when `publish_s` have passed."""
        if not self._learner.has_unpublished:
            return []
        _, due_at = self._learner.due
        nothing = PrivateBatch(np.empty((0, self._contract.width)), [], np.empty(0, dtype=np.int64), [])
        return [DatedUpdate(due_at, update) for update in self._learner.learn(nothing, due_at)]

    def _batch(self, values: NDArray[np.float64], times: NDArray[np.float64]) -> Batch:
        """The batch that the intake of a client node makes of these readings."""
        accepted = np.isfinite(values).all(axis=1)
        if self._settings.drop_repeats:
            # Times ascend, so an earlier reading with this time is the one before.
            accepted &= np.diff(times, prepend=self._newest) > 0
        numbers = np.flatnonzero(accepted)
        places = list(zip(repeat(0), (numbers + self._readings).tolist(), strict=False))
        return Batch(values[numbers], places, times[numbers].tolist(), [], numbers.tolist(), times.tolist())

    def _count(self, private: PrivateBatch) -> None:
        places = len(private.place_times)
        self._counts.readings += places
        self._counts.rejected += places - len(private.rows) - private.withheld
        self._counts.clipped += private.clipped


def _cut(batch: PrivateBatch, start: int, stop: int) -> PrivateBatch:
    """The places from `start` to `stop` of a batch."""
    first, end = np.searchsorted(batch.numbers, [start, stop])
    return PrivateBatch(
        batch.rows[first:end],
        batch.times[first:end],
        batch.numbers[first:end] - start,
        batch.place_times[start:stop],
    )
