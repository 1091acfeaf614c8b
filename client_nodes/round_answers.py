"""The fourth stage of a step: answers round requests from a window of the newest rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from shoal.client_nodes.intake import NO_SPAN
from shoal.client_nodes.privacy import PrivateBatch
from shoal.client_nodes.publisher import Content, EncodedUpdate, Publisher
from shoal.client_nodes.row_window import RowWindow
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.changes import Standing
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidData, MessageRejected
from shoal.protocol.lease import VERSIONS_AHEAD_MAX
from shoal.protocol.messages import RoundRequest, Snapshot, round_request_of
from shoal.saved_state import SavedState, state_type


class RejectedRequest(NamedTuple):
    """A round request that this client cannot answer, and why."""

    model: str
    round: int
    detail: str


class Answers(NamedTuple):
    """Results of the round requests that were open."""

    updates: list[EncodedUpdate]
    rejected: list[RejectedRequest]


@state_type
class ModelAnswersState(SavedState):
    """The version of the request that one model answered last, and its number."""

    answered: int
    sequence: int


@state_type
class RoundAnswersState(SavedState):
    """The answers of all models, and the rejected readings that they reported."""

    models: dict[str, ModelAnswersState]
    reported: int


class RoundAnswers:
    """Answers the newest round request of each model in rounds, all from one window of rows.

    An answer depends on the request and the window alone. The version of the answered request is
    stored together with the answer, so no request is answered twice, whenever the client is killed.
    """

    def __init__(
        self,
        contract: ResolvedContract,
        client: str,
        publisher: Publisher,
        snapshots: Snapshots,
        settings: ClientSettings,
        rejected: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`rejected`: readings that the client has rejected; None where nothing may tell."""
        self._rejected = rejected
        self._contract = contract
        self._client = client
        self._publisher = publisher
        self._snapshots = snapshots
        self._models = contract.in_rounds
        self.window = RowWindow(contract.width, settings.window_rows, settings.window_s)
        self._answered = {model.name: 0 for model in self._models}
        """version of the newest request answered"""
        self._sequence = {model.name: 0 for model in self._models}
        learns = any(model.family.client_learns for model in contract.models.values())
        self._is_followed = False
        """whether snapshots were read since the newest answers"""
        self._reports = bool(self._models) and not learns
        """whether no update of a streaming model has the number of rejected readings"""
        self._reported = 0
        """rejected readings, as the newest report has them"""
        self._reported_at = -math.inf
        self._report_s = settings.publish_s

    @property
    def expects_requests(self) -> bool:
        """Whether a round of any model is open: its next request may arrive at any moment."""
        for model in self._models:
            snapshot = self._snapshots.newest(model.name)
            if snapshot is not None and snapshot.round_request is not None:
                return True
        return False

    def keep(self, batch: PrivateBatch, now: float) -> None:
        """Add the rows of the batch to the window, if any model needs them."""
        if self._models:
            self.window.add(batch.rows, batch.times, now)

    def is_due(self, now: float) -> bool:
        """Whether there is a request to answer. Raises as the log does."""
        if self._models:
            self._snapshots.follow()
            self._is_followed = True
        return any(self._open_request(model, now) is not None for model in self._models)

    def make_answers(self, now: float) -> Answers:
        """Answer every open request that asks this client. Raises as the log does."""
        answers = Answers([], [])
        # A step that looked for a request while it waited has just read all snapshots.
        if self._models and not self._is_followed:
            self._snapshots.follow()
        self._is_followed = False
        for model in self._models:
            request = self._open_request(model, now)
            if request is None:
                continue
            # A request that cannot be answered is not tried again: its parameters do not change.
            self._answered[model.name] = request.version
            try:
                answers.updates.append(self._answer(model, request, now))
            except (InvalidData, MessageRejected) as wrong:
                answers.rejected.append(RejectedRequest(model.name, request.round, str(wrong)))
        if self._reports and not len(self.window):
            answers.updates.extend(self._make_report(now))
        return answers

    def _make_report(self, now: float) -> Iterator[EncodedUpdate]:
        """One update at most, with the number of rejected readings and nothing else.

        A client all of whose readings are rejected has no row to answer with, and would be taken
        for one that has no sensor.
        """
        rejected = self._rejected() or 0
        # A clock that was set back must not lengthen the interval.
        self._reported_at = min(self._reported_at, now)
        if rejected <= self._reported or now < self._reported_at + self._report_s:
            return
        model = self._models[0]
        self._sequence[model.name] += 1
        self._reported = rejected
        self._reported_at = now
        sequence = self._sequence[model.name]
        yield self._publisher.make_update(
            model, Content(sequence, 0, {}, now, NO_SPAN, rejected=rejected)
        )

    def reset_published(self, _: float) -> None:
        """The federation's log was created anew: versions of requests begin at 1 again."""
        self._answered = dict.fromkeys(self._answered, 0)

    def state(self) -> dict[str, Any]:
        models = {
            name: ModelAnswersState(answered=answered, sequence=self._sequence[name])
            for name, answered in self._answered.items()
        }
        state = RoundAnswersState(models=models, reported=self._reported).saved()
        # Beside them: a checkpoint stores this part only when rows were added.
        state["window"] = self.window.state() if models else None
        return state

    def moved(
        self, state: dict[str, Any], standing: Mapping[str, Standing], keeps_rows: bool
    ) -> dict[str, Any]:
        """A state of an earlier contract; `keeps_rows`: whether rows of the two are the same."""
        models = {
            name: model
            for name, model in state["models"].items()
            if standing.get(name, "gone") != "gone"
        }
        window = state["window"] if keeps_rows else None
        return {**state, "models": models, "window": window}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        if not self._models:
            return
        saved = RoundAnswersState.read(state)
        if state["window"] is not None:
            self.window.restore(state["window"])
        self._reported = saved.reported
        # A model that is not in both is new in the contract, or gone from it.
        for name in self._answered.keys() & saved.models:
            self._answered[name] = saved.models[name].answered
            self._sequence[name] = saved.models[name].sequence

    def _open_request(self, model: ResolvedModel, now: float) -> RoundRequest | None:
        snapshot = self._snapshots.newest(model.name)
        if snapshot is None:
            return None
        request = round_request_of(snapshot)
        if request is None:
            return None
        # Versions far below are of a server that was restored; the one that was answered may have
        # been forged. So a large version, answered once, does not stop this client for ever.
        answered = self._answered[model.name]
        if answered - VERSIONS_AHEAD_MAX < request.version <= answered:
            return None
        rows_min = max(request.rows_min, model.declared.rounds.rows_min)
        if now >= request.deadline or len(self.window) < rows_min:
            return None
        if not request.selects(self._contract.federation, self._client):
            return None
        return request

    def _answer(self, model: ResolvedModel, request: RoundRequest, now: float) -> EncodedUpdate:
        snapshot = self._snapshots.newest(model.name)
        assert isinstance(snapshot, Snapshot)
        assert model.rounds is not None
        rows = self.window.rows[-model.declared.readings_max :]
        span = self.window.span
        arrays = model.rounds.algorithm.answer(snapshot.arrays, rows)
        sequence = self._sequence[model.name] + 1
        content = Content(sequence, len(rows), arrays, now, span, request.round, self._rejected())
        update = self._publisher.make_update(model, content, snapshot.arrays)
        # Only now: an answer that the publisher refuses must leave no gap in the sequence.
        self._sequence[model.name] = sequence
        return update
