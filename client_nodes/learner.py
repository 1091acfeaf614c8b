"""The third stage of a step: streaming models learn noisy rows, and make their updates when due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from shoal.algorithms.streaming import Rows, SequenceHalf
from shoal.client_nodes.intake import TimeSpan
from shoal.client_nodes.privacy import PrivateBatch
from shoal.client_nodes.publisher import Content, EncodedUpdate, Publisher
from shoal.client_nodes.reading_times import ReadingTimes, ReadingTimesState, log_left_out
from shoal.config.changes import Standing
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.sections import ClientSettings
from shoal.saved_state import SavedState, state_type


@state_type
class LearnerState(SavedState):
    """What decides when the next updates are due, and what they count."""

    rejected: int
    places_since_update: int
    republish: bool
    newest_reading_at: float | None
    times: ReadingTimesState


class Learner:
    """Learns each row once, in order, for all streaming models of a client.

    Updates are due after `publish_readings` places of the readings log (or `readings_max` of the
    contract, or as many as an algorithm has room for, if fewer), wherever batches begin and end,
    and `publish_s` seconds after the previous ones if there was any place since. A rejected reading
    has its place: when an update is due does not tell whether a reading was valid.
    """

    def __init__(
        self,
        contract: ResolvedContract,
        publisher: Publisher,
        settings: ClientSettings,
        started_at: float,
    ) -> None:
        """`started_at`: the client's clock now, seconds since 1970."""
        models = [model for model in contract.models.values() if model.family.client_learns]
        self._models = [ModelLearner(model, contract.width, publisher) for model in models]
        self._settings = settings
        self._publish_readings = settings.publish_readings
        for model in models:
            # The contract limits the readings behind one update, and so may the algorithm.
            limit = min(self._publish_readings, model.declared.readings_max)
            self._publish_readings = model.streaming.update_readings(model.options, limit)
        self._hides_validity = contract.mode.formal
        self._rejected = 0
        self._places_since_update = 0
        self._republish = False
        self._updated_at = started_at
        self.newest_reading_at: float | None = None
        """event time of the newest reading learnt, seconds since 1970"""
        self._times = ReadingTimes()
        """times of the places since the previous updates"""

    @property
    def nodes(self) -> dict[str, int]:
        """model -> number of its nodes."""
        return {model.name: model.nodes for model in self._models}

    @property
    def sequence_halves(self) -> dict[str, SequenceHalf]:
        """model -> its client half, of those whose clusters are seen in successive rows."""
        halves = {model.name: model.sequence_half for model in self._models}
        return {name: half for name, half in halves.items() if half is not None}

    @property
    def rejected(self) -> int | None:
        """Readings not learnt since the client was first started.

        None in a mode with a guarantee: there, nothing published may depend on whether a reading
        was valid.
        """
        if self._hides_validity:
            return None
        return self._rejected

    @property
    def has_unpublished(self) -> bool:
        """Whether anything is to be published that no update has yet."""
        return self._places_since_update > 0 or self._republish

    @property
    def updated_at(self) -> float:
        """Time of the newest update, or of the start, seconds since 1970: the next one is due an
        interval later."""
        return self._updated_at

    @updated_at.setter
    def updated_at(self, time: float) -> None:
        self._updated_at = time

    @property
    def due(self) -> tuple[int, float]:
        """The next updates: after how many places they are due, or at which time if that is first.

        The time is in seconds since 1970.
        """
        # None where there are more than enough, as after the setting was lowered.
        places = max(0, self._publish_readings - self._places_since_update)
        return places, self._updated_at + self._settings.publish_s

    def learn(self, batch: PrivateBatch, now: float) -> list[EncodedUpdate]:
        """Learn the rows of the batch; returns the updates that became due.

        They are in the order of the contract's models.
        """
        updates: list[EncodedUpdate] = []
        start = 0
        places = len(batch.place_times)
        while start < places:
            stop = min(places, start + self.due[0])
            # Updates are due by places: rejected and withheld readings have a place, and no row.
            # `numbers` are the places of the rows, ascending.
            first, end = np.searchsorted(batch.numbers, [start, stop])
            for model in self._models:
                model.learn(batch.rows[first:end], stop - start)
            self._rejected += stop - start - int(end - first)
            self._times.add(batch.place_times[start:stop])
            self.newest_reading_at = self._times.span.joined([self.newest_reading_at]).newest
            self._places_since_update += stop - start
            start = stop
            if self._places_since_update >= self._publish_readings:
                updates += self._make_updates(now)
        if self.has_unpublished and self._interval_elapsed(now):
            updates += self._make_updates(now)
        return updates

    def reset_published(self, _: float) -> None:
        """The server has none of the earlier updates: the next ones hold everything.

        They need no new reading.
        """
        for model in self._models:
            model.reset_published()
        self._republish = True

    def state(self) -> dict[str, Any]:
        state = LearnerState(
            rejected=self._rejected,
            places_since_update=self._places_since_update,
            republish=self._republish,
            newest_reading_at=self.newest_reading_at,
            times=self._times.state(),
        )
        models = {model.name: model.state() for model in self._models}
        return {**state.saved(), "models": models}

    def moved(self, state: dict[str, Any], standing: Mapping[str, Standing]) -> dict[str, Any]:
        """A state of an earlier contract without what models cannot go on with.

        Updates keep their numbers, as the server has seen the earlier ones.
        """
        models = {}
        for name, model in state["models"].items():
            how = standing.get(name, "gone")
            if how == "same":
                models[name] = model
            elif how != "gone":
                models[name] = {**model, "half": None, "readings": 0}
        return {**state, "models": models}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = LearnerState.read(state)
        for model in self._models:
            # A model that the state lacks is new in the contract.
            if model.name in state["models"]:
                model.restore(state["models"][model.name])
        self._rejected = saved.rejected
        self._places_since_update = saved.places_since_update
        self._republish = saved.republish
        self.newest_reading_at = saved.newest_reading_at
        self._times.restore(saved.times)

    def _make_updates(self, now: float) -> list[EncodedUpdate]:
        """The updates of the models that have something to publish."""
        updates = []
        span = self._times.span
        for model in self._models:
            update = model.make_update(now, span, self.rejected)
            if update is not None:
                updates.append(update)
        log_left_out(self._times)
        self._places_since_update = 0
        self._republish = False
        self._times.clear()
        self._updated_at = now
        return updates

    def _interval_elapsed(self, now: float) -> bool:
        # A clock that was set back must not lengthen the interval.
        self._updated_at = min(self._updated_at, now)
        return now >= self._updated_at + self._settings.publish_s


def saved_sequence_halves(
    contract: ResolvedContract, state: dict[str, Any]
) -> dict[str, SequenceHalf]:
    """The halves of `Learner.sequence_halves` in a learner's saved state. Raises `InvalidState`."""
    halves = {}
    for model in contract.models.values():
        if not model.family.client_learns or not model.streaming.labels_sequences:
            continue
        half = cast("SequenceHalf", model.streaming.client(model.options, contract.width))
        saved = state["models"].get(model.name, {}).get("half")
        if saved is not None:
            half.restore(saved)
        halves[model.name] = half
    return halves


@state_type
class ModelLearnerState(SavedState):
    """Numbers of one model: of its newest update, and of readings since."""

    sequence: int
    readings: int
    reported: int


class ModelLearner:
    """The client half of one streaming model, and the number of its newest update."""

    def __init__(self, model: ResolvedModel, width: int, publisher: Publisher) -> None:
        """`width` is the number of features d."""
        self._model = model
        self._publisher = publisher
        self._half = model.streaming.client(model.options, width)
        self._sequence = 0
        """number of the newest update"""
        self._readings = 0
        """readings, or places, since that update"""
        self._reported = 0
        """rejected readings, as the newest update has them"""

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def nodes(self) -> int:
        """Number of nodes the model has on this client."""
        return self._half.size

    @property
    def sequence_half(self) -> SequenceHalf | None:
        """Its client half, if its clusters are seen in successive rows."""
        if not self._model.streaming.labels_sequences:
            return None
        return cast("SequenceHalf", self._half)

    def learn(self, rows: Rows, places: int) -> None:
        """Learn noisy rows (n, d), each once, in order; they are of this many places of the log.

        An update says how many rows it has, or how many places where the model counts these.
        """
        self._half.learn(rows)
        self._readings += places if self._model.counts_places else len(rows)

    def make_update(self, now: float, span: TimeSpan, rejected: int | None) -> EncodedUpdate | None:
        """An update of what changed since the previous one; None when there is nothing to publish.

        Where all readings were rejected, only their number is published, for those who look at the
        page.
        """
        arrays = self._half.contribute()
        if not any(len(array) for array in arrays.values()):
            # Readings that were learnt and give no array yet are published with the next update.
            if not rejected or rejected == self._reported or self._readings:
                return None
            arrays = {}
        self._reported = rejected or 0
        self._sequence += 1
        content = Content(self._sequence, self._readings, arrays, now, span, rejected=rejected)
        self._readings = 0
        return self._publisher.make_update(self._model, content)

    def reset_published(self) -> None:
        """The server has none of the earlier updates: the next one holds everything."""
        self._half.reset_published()

    def state(self) -> dict[str, Any]:
        state = ModelLearnerState(
            sequence=self._sequence, readings=self._readings, reported=self._reported
        )
        return {**state.saved(), "half": self._half.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = ModelLearnerState.read(state)
        # Without a half the model begins anew under another contract; see `Learner.moved`.
        if state["half"] is not None:
            self._half.restore(state["half"])
        self._sequence = saved.sequence
        self._readings = saved.readings
        self._reported = saved.reported
