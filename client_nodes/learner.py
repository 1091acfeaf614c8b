"""The third stage of a step: streaming models learn noisy rows, and make their updates when due."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import numpy as np

from shoal.algorithms.streaming import Arrays, FollowingHalf, Rows, SequenceHalf
from shoal.client_nodes.intake import NO_SPAN, TimeSpan
from shoal.client_nodes.privacy import PrivateBatch
from shoal.client_nodes.publisher import Content, EncodedUpdate, Publisher
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.changes import Standing
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidData, InvalidState
from shoal.protocol.messages import Snapshot


class Learner:
    """Learns each row once, in order, for all streaming models of a client.

    Updates are due after `publish_readings` places of the readings log (or `readings_max` of the
    contract, if fewer), wherever batches begin and end, and `publish_s` seconds after the previous
    ones if there was any place since. A rejected reading has its place: when an update is due does
    not tell whether a reading was valid.
    """

    def __init__(
        self,
        contract: ResolvedContract,
        publisher: Publisher,
        settings: ClientSettings,
        started_at: float,
        snapshots: Snapshots | None = None,
    ) -> None:
        """`started_at`: the client's clock now, seconds since 1970. `snapshots` None: no model
        follows any."""
        models = [model for model in contract.models.values() if model.family.client_learns]
        self._models = [ModelLearner(model, contract.width, publisher) for model in models]
        follows = any(model.streaming.follows_snapshots for model in models)
        self._snapshots = snapshots if follows else None
        self._settings = settings
        # The contract limits the readings behind one update.
        self._publish_readings = min(
            [settings.publish_readings, *(model.declared.readings_max for model in models)]
        )
        self._hides_validity = contract.mode.formal
        self._rejected = 0
        self._places_since_update = 0
        self._republish = False
        self._updated_at = started_at
        self.newest_reading_at: float | None = None
        """event time of the newest reading learnt, seconds since 1970"""
        self._span = NO_SPAN
        """event times of the places since the previous updates"""

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
        """Readings not learnt since the client was first started; None where nothing may tell
        whether one was valid."""
        return None if self._hides_validity else self._rejected

    @property
    def has_unpublished(self) -> bool:
        """Whether anything is to be published that no update has yet."""
        return self._places_since_update > 0 or self._republish

    @property
    def due(self) -> tuple[int, float]:
        """Number of places after which the next updates are due; and the moment from which they are
        due before, seconds since 1970."""
        return (
            self._publish_readings - self._places_since_update,
            self._updated_at + self._settings.publish_s,
        )

    def learn(self, batch: PrivateBatch, now: float) -> list[EncodedUpdate]:
        """Learn the rows of the batch; returns the updates that became due, in the order of the
        contract's models.

        What the newest snapshot asks of a model is answered at once. Raises as the log of snapshots
        does.
        """
        updates: list[EncodedUpdate] = []
        self._follow()
        start = 0
        places = len(batch.place_times)
        while start < places:
            stop = min(places, start + self._publish_readings - self._places_since_update)
            # Updates are due by places: rejected and withheld readings have one, and no row.
            first, end = np.searchsorted(batch.numbers, [start, stop])
            for model in self._models:
                model.learn(batch.rows[first:end], stop - start)
            self._rejected += stop - start - int(end - first)
            self._span = self._span.joined(batch.place_times[start:stop])
            self.newest_reading_at = self._span.joined([self.newest_reading_at]).newest
            self._places_since_update += stop - start
            start = stop
            if self._places_since_update >= self._publish_readings:
                updates += self._make_updates(now)
        if self.has_unpublished and self._interval_elapsed(now):
            updates += self._make_updates(now)
        # After the updates that were due, which may have answered already.
        answers = [
            model.make_update(now, self._span, self.rejected)
            for model in self._models
            if model.owes_answer
        ]
        return updates + [answer for answer in answers if answer is not None]

    def _follow(self) -> None:
        if self._snapshots is None:
            return
        self._snapshots.follow()
        for model in self._models:
            model.adopt(self._snapshots.newest(model.name))

    def reset_published(self, _: float) -> None:
        """The server has none of the earlier updates: the next ones hold everything, and need no
        new reading."""
        for model in self._models:
            model.reset_published()
        self._republish = True

    def state(self) -> dict[str, Any]:
        return {
            "models": {model.name: model.state() for model in self._models},
            "rejected": self._rejected,
            "places_since_update": self._places_since_update,
            "republish": self._republish,
            "newest_reading_at": self.newest_reading_at,
            "span": list(self._span),
        }

    def moved(self, state: dict[str, Any], standing: Mapping[str, Standing]) -> dict[str, Any]:
        """A state of an earlier contract without what models cannot go on with; updates keep their
        numbers."""
        anew = {"half": None, "readings": 0}
        models = {
            name: own if standing.get(name) == "same" else own | anew
            for name, own in state["models"].items()
            if standing.get(name, "gone") != "gone"
        }
        return {**state, "models": models}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            for model in self._models:
                # else it is new in the contract
                if (own := state["models"].get(model.name)) is not None:
                    model.restore(own)
            self._rejected = int(state["rejected"])
            self._places_since_update = state["places_since_update"]
            self._republish = state["republish"]
            self.newest_reading_at = state["newest_reading_at"]
            self._span = TimeSpan(*state["span"])
        except (KeyError, TypeError) as broken:
            raise InvalidState(f"the checkpoint of the models is damaged: {broken}") from None

    def _make_updates(self, now: float) -> list[EncodedUpdate]:
        updates = [model.make_update(now, self._span, self.rejected) for model in self._models]
        self._places_since_update = 0
        self._republish = False
        self._span = NO_SPAN
        self._updated_at = now
        return [update for update in updates if update is not None]

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
        if model.family.client_learns and model.streaming.labels_sequences:
            half = cast("SequenceHalf", model.streaming.client(model.options, contract.width))
            if (saved := state["models"].get(model.name, {}).get("half")) is not None:
                half.restore(saved)
            halves[model.name] = half
    return halves


class ModelLearner:
    """The client half of one streaming model, and the number of its newest update."""

    def __init__(self, model: ResolvedModel, width: int, publisher: Publisher) -> None:
        """`width` is the number of features d."""
        self._model = model
        self._publisher = publisher
        self._half = model.streaming.client(model.options, width)
        follows = model.streaming.follows_snapshots
        self._following = cast("FollowingHalf", self._half) if follows else None
        self._adopted = 0
        """version of the snapshot that the half works by"""
        self._sequence = 0
        self._readings = 0
        self._reported = 0
        """rejected readings that the newest update has told of"""

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
        return cast("SequenceHalf", self._half) if self._model.streaming.labels_sequences else None

    @property
    def owes_answer(self) -> bool:
        """Whether the newest snapshot asks for something that no update has had yet."""
        return self._following is not None and self._following.owes_answer

    def adopt(self, newest: Snapshot | None) -> None:
        """Work by the newest snapshot, if the model does. One that is for other options than the
        contract's is not followed."""
        if self._following is None or newest is None or newest.version == self._adopted:
            return
        # Also where it cannot be followed: else every step would try again.
        self._adopted = newest.version
        # A forged or newer snapshot must not stop a client from learning.
        with suppress(InvalidData):
            self.adopt_arrays(newest.arrays)

    def adopt_arrays(self, snapshot: Arrays) -> None:
        """Work by the arrays of a snapshot, if the model does. Raises `InvalidData`."""
        if self._following is not None:
            self._following.adopt(snapshot)

    def learn(self, rows: Rows, places: int) -> None:
        """Learn noisy rows (n, d), each once, in order, from this number of places of the readings
        log.

        Updates count the rows, or the places where the model counts them.
        """
        self._half.learn(rows)
        self._readings += places if self._model.counts_places else len(rows)

    def make_update(self, now: float, span: TimeSpan, rejected: int | None) -> EncodedUpdate | None:
        """An update of what changed since the previous one; None when there is nothing to publish
        yet.

        Where all readings were rejected, only their number is published, for those who look at the
        page.
        """
        arrays = self._half.contribute()
        if not any(len(array) for array in arrays.values()):
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
        counts = {
            "sequence": self._sequence,
            "readings": self._readings,
            "reported": self._reported,
        }
        return {"half": self._half.state(), **counts}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            if state["half"] is not None:  # else the model begins anew under another contract
                self._half.restore(state["half"])
            self._sequence = state["sequence"]
            self._readings = state["readings"]
            self._reported = state["reported"]
        except (KeyError, TypeError) as broken:
            raise InvalidState(
                f"the checkpoint of model {self._model.name} is damaged: {broken}"
            ) from None
