"""The fourth stage of a step: answers round requests of the server from a window of the newest rows."""

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
from shoal.errors import InvalidData, InvalidState, MessageRejected
from shoal.protocol.lease import VERSIONS_AHEAD_MAX
from shoal.protocol.messages import RoundRequest, Snapshot, round_request_of


class RejectedRequest(NamedTuple):
    """A round request that this client cannot answer, and why."""

    model: str
    round: int
    detail: str


class Answers(NamedTuple):
    """Results of the round requests that were open."""

    updates: list[EncodedUpdate]
    rejected: list[RejectedRequest]


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
        self._reports = bool(self._models) and not learns
        """whether nothing else tells of readings that were all rejected"""
        self._reported = 0
        self._reported_at = -math.inf
        self._report_s = settings.publish_s

    @property
    def expects_requests(self) -> bool:
        """Whether a round of any model is open, so that the next request may arrive at any moment."""
        newest = (self._snapshots.newest(model.name) for model in self._models)
        return any(
            snapshot is not None and snapshot.round_request is not None for snapshot in newest
        )

    def keep(self, batch: PrivateBatch, now: float) -> None:
        """Add the rows of the batch to the window, if any model needs them."""
        if self._models:
            self.window.add(batch.rows, batch.times, now)

    def is_due(self, now: float) -> bool:
        """Whether there is a request to answer. Raises as the log does."""
        if self._models:
            self._snapshots.follow()
        return any(self._open_request(model, now) is not None for model in self._models)

    def make_answers(self, now: float) -> Answers:
        """Answer every open request that asks this client. Raises as the log does."""
        answers = Answers([], [])
        if self._models:
            self._snapshots.follow()
        for model in self._models:
            if (request := self._open_request(model, now)) is None:
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
        """An update with the number of rejected readings, of a client that has no row to answer
        with."""
        rejected = self._rejected() or 0
        # A clock that was set back must not lengthen the interval.
        self._reported_at = min(self._reported_at, now)
        if rejected > self._reported and now >= self._reported_at + self._report_s:
            model = self._models[0]
            self._sequence[model.name] += 1
            content = Content(self._sequence[model.name], 0, {}, now, NO_SPAN, rejected=rejected)
            self._reported = rejected
            self._reported_at = now
            yield self._publisher.make_update(model, content)

    def reset_published(self, _: float) -> None:
        """The requests answered so far were another server's; the versions of new ones begin at 1
        again."""
        self._answered = dict.fromkeys(self._answered, 0)

    def state(self) -> dict[str, Any]:
        models = {
            name: {"answered": self._answered[name], "sequence": self._sequence[name]}
            for name in self._answered
        }
        return {
            "models": models,
            "window": self.window.state() if models else None,
            "reported": self._reported,
        }

    def moved(
        self, state: dict[str, Any], standing: Mapping[str, Standing], keeps_rows: bool
    ) -> dict[str, Any]:
        """A state of an earlier contract; `keeps_rows`: whether rows of the two are the same."""
        models = {
            name: own
            for name, own in state["models"].items()
            if standing.get(name, "gone") != "gone"
        }
        return {**state, "models": models, "window": state["window"] if keeps_rows else None}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        if not self._models:
            return
        try:
            if state["window"] is not None:
                self.window.restore(state["window"])
            self._reported = int(state["reported"])
            for name in self._answered.keys() & state["models"]:  # others are new in the contract
                saved = state["models"][name]
                self._answered[name], self._sequence[name] = saved["answered"], saved["sequence"]
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(
                f"the checkpoint of the answered round requests is damaged: {broken}"
            ) from None

    def _open_request(self, model: ResolvedModel, now: float) -> RoundRequest | None:
        snapshot = self._snapshots.newest(model.name)
        request = None if snapshot is None else round_request_of(snapshot)
        if request is None:
            return None
        # Versions far below are of a server that was restored; the one that was answered may have
        # been forged.
        answered = self._answered[model.name]
        if answered - VERSIONS_AHEAD_MAX < request.version <= answered:
            return None
        rows_min = max(request.rows_min, model.declared.rounds.rows_min)
        if now >= request.deadline or len(self.window) < rows_min:
            return None
        return request if request.selects(self._contract.federation, self._client) else None

    def _answer(self, model: ResolvedModel, request: RoundRequest, now: float) -> EncodedUpdate:
        snapshot = self._snapshots.newest(model.name)
        assert isinstance(snapshot, Snapshot)
        assert model.rounds is not None
        rows = self.window.rows[-model.declared.readings_max :]
        span = self.window.span
        arrays = model.rounds.algorithm.answer(snapshot.arrays, rows)
        sequence = self._sequence[model.name] + 1
        content = Content(sequence, len(rows), arrays, now, span, request.round, self._rejected())
        records = self._publisher.make_update(model, content, snapshot.arrays)
        self._sequence[model.name] += 1
        return records
