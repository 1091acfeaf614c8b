"""A model in rounds of a region: it hands the upstream server's requests on to its clients, and adds their answers up.

The upstream server alone decides the parameters. A sum of the answers of a region's clients is what one client with
all their rows would answer (`RoundsAlgorithm.additive`), so the next parameters are those of a flat federation.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final, Literal

from server_node.hierarchy.followed import NOTHING_FOLLOWED, Followed
from server_node.hierarchy.region_updates import RegionContribution
from server_node.models.events import ModelEvent, RoundClosed, RoundFailed, RoundOpened
from server_node.models.participation import ReceivedAnswer
from server_node.models.round_state import Phase
from server_node.models.round_transitions import Moment, expected_clients, has_quorum, make_request
from server_node.models.rounds import RoundsModel
from shoal.algorithms.rounds.arrays import Params, sum_answers
from shoal.errors import InvalidData, InvalidState
from shoal.protocol.messages import RoundRequest, Snapshot
from shoal.telemetry.events import log_event

TIME_SHARE: Final = 0.75
"""of the time left to the upstream deadline in which clients may answer; in the rest the sum gets there"""


class FollowingRounds(RoundsModel):
    """Asks the clients of a region what the upstream server asks the region.

    It starts from what the upstream model has started from: the clusters of other models in the region do not matter.
    """

    _followed = NOTHING_FOLLOWED
    _answer: RegionContribution | None = None
    _opened: tuple[RoundOpened, ...] = ()
    """the round opened since `on_timer` was called last"""

    def follow(self, snapshot: Snapshot, request: RoundRequest | None, now: float) -> None:
        """Adopt a newer upstream snapshot, and open the round that its `request` asks for.

        `request` None: it asks nothing of this region. Answers to earlier requests do not count any more.
        """
        if not self._followed.is_before(snapshot):
            return
        assert snapshot.round is not None, "the bridge lets no snapshot of a model in rounds pass without its round"
        self._join_arrived()
        self._followed = Followed(snapshot.version, snapshot.made_at)
        adopted = replace(
            self._state,
            phase=Phase.SLEEPING,
            request=None,
            params=snapshot.arrays,
            round=snapshot.round,
            first_round=snapshot.round,
            shift=self._shift_to(snapshot),
            participation=self._state.participation.without_answers(),
        )
        if request is not None and now < request.deadline:
            own = make_request(self._rules, adopted, snapshot.round, self._moment(now))
            deadline = min(own.deadline, now + TIME_SHARE * (request.deadline - now))
            own = replace(own, deadline=deadline, rows_min=max(own.rows_min, request.rows_min))
            adopted = replace(adopted, phase=Phase.COLLECTING, request=own, opened_at=now)
            self._opened = (RoundOpened(self.name, own.round, own.version),)
        self._state, self._snapshot_due = adopted, True

    def wake(self) -> None:
        """Nothing: it wakes when the upstream model does."""

    def on_timer(self, now: float) -> Sequence[ModelEvent]:
        """Close the open round by its quorum or at its deadline, and answer the upstream request."""
        self._join_arrived()
        events: Sequence[ModelEvent] = self._opened
        self._opened = ()
        request, moment = self._state.request, self._moment(now)
        if request is None:
            return events
        if has_quorum(self._rules, self._state, moment):
            return [*events, self._close("quorum", moment)]
        return [*events, self._close("deadline", moment)] if now >= request.deadline else events

    def take_answer(self) -> RegionContribution | None:
        """The region's answer to the round that was closed since the last call; None if there is none."""
        answer, self._answer = self._answer, None
        return answer

    def state(self) -> dict[str, Any]:
        return {**super().state(), "followed": list(self._followed)}

    def restore(self, state: dict[str, Any]) -> None:
        if "followed" not in state:
            raise InvalidState(
                f"model {self.name} was no region's model when the checkpoint was stored; put [upstream] as it was "
                "before, or start the federation in a new folder"
            )
        super().restore(state)
        self._followed = Followed(*state["followed"])

    def _shift_to(self, snapshot: Snapshot) -> float:
        """How far the upstream model has moved since the snapshot followed so far."""
        state = self._state
        if state.params is None or snapshot.round == state.round:
            return state.shift
        return float(self._rules.algorithm.shift(state.params, snapshot.arrays))

    def _close(self, by: Literal["quorum", "deadline"], moment: Moment) -> ModelEvent:
        state, received = self._state, self._counted()
        expected = expected_clients(self._rules, state, moment)
        participation = state.participation.closed(expected, state.participation.answered(state.round))
        self._state = replace(
            state,
            phase=Phase.SLEEPING,
            request=None,
            initial=False,
            participation=participation.without_answers(),
            combined_answers=len(received),
            combined_readings=sum(one.readings for one in received),
        )
        self._publisher.readings = self._state.combined_readings
        try:
            sums = sum_answers(self._params, self._rules.algorithm.update, [one.answer.stats for one in received])
        except InvalidData as refused:
            return RoundFailed(self.name, state.round, str(refused))
        if sums is None:
            return RoundFailed(self.name, state.round, "no client has answered in time")
        readings, newest = self._state.combined_readings, self._publisher.newest_reading_at
        self._answer = RegionContribution(self.name, sums, readings, moment.now, newest, state.round)
        duration_s = max(0.0, moment.now - state.opened_at)
        return RoundClosed(self.name, state.round, len(received), len(expected), by, state.shift, duration_s=duration_s)

    def _counted(self) -> list[ReceivedAnswer]:
        """The answers to add up, by the names of clients, from no more readings than one update may be from."""
        received = [one for _, one in sorted(self._state.participation.received.items())]
        totals = accumulate(one.readings for one in received)
        counted = [one for one, total in zip(received, totals, strict=True) if total <= self._model.readings_max]
        if len(counted) < len(received):
            left_out = len(received) - len(counted)
            log_event("answers_left_out", logging.WARNING, model=self.name, answers=left_out, kept=len(counted))
        return counted

    @property
    def _params(self) -> Params:
        assert self._state.params is not None, "a round is opened with parameters"
        return self._state.params

    @property
    def _can_start(self) -> bool:
        return False

    def _waiting_for(self) -> str:
        return "" if self._state.params is not None else "The upstream federation has published no parameters yet."
