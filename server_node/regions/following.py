"""Models of a region that follow the upstream ones: by the upstream plan or request, adding up what
clients answer.

The upstream server alone decides the parameters. A sum of the answers of a region's clients is what
one client with all their rows would answer (`RoundsAlgorithm.additive`), so the next parameters are
those of a flat federation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

from shoal.algorithms.rounds.arrays import Params, sum_answers
from shoal.algorithms.streaming import Arrays, State
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.sections import ServerSettings
from shoal.errors import InvalidData, InvalidState
from shoal.protocol.messages import RoundRequest, Snapshot
from shoal.runtime.checkpoint import SavedPart, SavedValue
from shoal.saved_state import SavedState, Table, state_type
from shoal.server_node.history.sources import NOTHING_PUBLISHED, PublishedHistory
from shoal.server_node.models.base import ModelEvent, RoundClosed, RoundFailed, RoundOpened
from shoal.server_node.models.round_state import Phase, ReceivedAnswer, RoundState
from shoal.server_node.models.round_transitions import (
    Moment,
    expected_clients,
    has_quorum,
    make_request,
)
from shoal.server_node.models.rounds import RoundsModel
from shoal.server_node.models.streaming import StreamingBase
from shoal.server_node.regions.contributions import RegionContribution
from shoal.telemetry.events import log_event


class Followed(NamedTuple):
    """The upstream snapshot that was adopted last."""

    version: int
    """0 before the first"""
    made_at: float
    """seconds since 1970, by the clock of the upstream server"""

    def is_before(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is to be adopted in its place.

        After a start the bridge reads older snapshots first. In a log that was made anew, versions
        begin again.
        """
        return snapshot.version > self.version or snapshot.made_at > self.made_at


NO_SNAPSHOT: Final = Followed(0, 0.0)


@state_type
class FollowedState(SavedState):
    """The upstream snapshot that was adopted last, as it is saved."""

    snapshot: int
    """its version"""
    made_at: float

    @classmethod
    def of(cls, followed: Followed) -> Self:
        return cls(snapshot=followed.version, made_at=followed.made_at)

    @property
    def followed(self) -> Followed:
        return Followed(self.snapshot, self.made_at)


@state_type
class FollowedSnapshotState(SavedState):
    """Saved state of `FollowedSnapshot`, beside its arrays."""

    version: ClassVar[int] = 4

    followed: FollowedState
    readings: int


class FollowedSnapshot:
    """The newest snapshot of the upstream federation, from which a model that follows it makes its
    own."""

    def __init__(self, contract: ResolvedContract, model: ResolvedModel) -> None:
        """Begin with the snapshot of a model that has learnt nothing, the same as upstream."""
        self._algorithm = model.streaming
        half = self._algorithm.server(model.options, contract.width)
        self._arrays: Arrays = half.snapshot()
        self._width = contract.width
        self.followed = NO_SNAPSHOT
        self.readings = 0
        """behind the upstream snapshot"""

    def adopt(self, snapshot: Snapshot) -> None:
        """Follow a snapshot of the upstream federation, which has been checked."""
        self._arrays = snapshot.arrays
        self.followed = Followed(snapshot.version, snapshot.made_at)
        self.readings = snapshot.readings

    def snapshot(self) -> Arrays:
        """The arrays of the upstream snapshot, as copies."""
        return {name: array.copy() for name, array in self._arrays.items()}

    def state(self) -> State:
        """The upstream snapshot."""
        saved = FollowedSnapshotState(
            followed=FollowedState.of(self.followed), readings=self.readings
        )
        return {**saved.saved(), "arrays": dict(self._arrays)}

    def restore(self, state: State) -> None:
        """Become the saved one. Raises `InvalidState`."""
        if "arrays" not in state:
            raise InvalidState(
                "the model was no region's model when the checkpoint was stored; put [upstream] as "
                "it was before, or start the federation in a new folder"
            )
        saved = FollowedSnapshotState.read(state)
        # Which arrays there are depends on the algorithm, and on no field of a type.
        rule = Table(self._algorithm.snapshot)
        arrays = rule.read("arrays", state["arrays"], {"d": self._width})
        try:
            self._algorithm.view(arrays)
        except InvalidData as damaged:
            raise InvalidState(f"saved upstream snapshot: {damaged}") from None
        self._arrays = arrays
        self.followed = saved.followed.followed
        self.readings = saved.readings


class FollowingModel(StreamingBase):
    """Publishes the upstream snapshots to the clients of the region, under the region's own
    versions.

    A `ServedModel`. It learns nothing from updates: they are added up for the upstream federation,
    which does. Recent shares are shares of the upstream federation's readings, because its clusters
    were learnt from those.
    """

    _half: FollowedSnapshot

    def __init__(
        self,
        contract: ResolvedContract,
        model: ResolvedModel,
        settings: ServerSettings,
        history: PublishedHistory = NOTHING_PUBLISHED,
        newest: Callable[[], Snapshot | None] = lambda: None,
    ) -> None:
        """`newest` gives the newest upstream snapshot of the model; None before the first."""
        super().__init__(contract, model, settings, history, paced=True)
        self._half = self._empty_half()
        self._newest_upstream = newest

    def on_timer(self, now: float) -> Sequence[ModelEvent]:
        """Follow the newest upstream snapshot; no event beside the snapshot that it leads to."""
        snapshot = self._newest_upstream()
        if snapshot is not None:
            self.follow(snapshot)
        return ()

    def is_behind(self, snapshot: Snapshot) -> bool:
        """Whether an upstream snapshot is newer than the one that is followed."""
        return self._half.followed.is_before(snapshot)

    def follow(self, snapshot: Snapshot) -> None:
        """Adopt an upstream snapshot, unless it is no newer than the one that is followed.

        Nor while the upstream server is rebuilt from its log: clients count by the plan that it
        will come to again.
        """
        if not self._half.followed.is_before(snapshot):
            return
        if snapshot.readings < self._half.readings:
            if self._is_being_rebuilt(snapshot):
                return
            # The upstream model has unlearned a client, or its log was made anew: nodes have other
            # numbers.
            self._publisher.counts.rebuilt = True
        self._half.adopt(snapshot)
        self._news.other = True

    def _is_being_rebuilt(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot still names clusters of before that it has not found again."""
        identities = self._algorithm.view(snapshot.arrays).identity
        named = {entry.identity for entry in snapshot.cluster_identities}
        return identities is not None and not named.issubset(identities.tolist())

    @property
    def _clustered_readings(self) -> int:
        return self._half.readings

    def _empty_half(self) -> FollowedSnapshot:
        return FollowedSnapshot(self._contract, self._model)


TIME_SHARE: Final = 0.75
"""share of the time to the upstream deadline in which clients may answer; the rest is for the way
of their sum"""


class FollowingRounds(RoundsModel):
    """Asks the clients of a region what the upstream server asks the region.

    It starts from what the upstream model has started from: the clusters of other models in the
    region do not matter.
    """

    _followed = NO_SNAPSHOT
    _answer: RegionContribution | None = None
    _opened: tuple[RoundOpened, ...] = ()
    """the round opened since `on_timer` was called last"""

    def follow(self, snapshot: Snapshot, request: RoundRequest | None, now: float) -> None:
        """Adopt a newer upstream snapshot, and open the round that its `request` asks for.

        `request` None: it asks nothing of this region. Answers to earlier requests no longer count.
        """
        if not self._followed.is_before(snapshot):
            return
        assert snapshot.round is not None, (
            "the bridge lets no snapshot of a model in rounds pass without its round"
        )
        # Those that have arrived answer the request before, and must not count for the next one.
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
            adopted = self._open(adopted, snapshot.round, request, now)
        self._state = adopted
        self._snapshot_due = True

    def _open(
        self, adopted: RoundState, round_: int, request: RoundRequest, now: float
    ) -> RoundState:
        """The state with a round that is open for the region's own clients."""
        own = make_request(self._rules, adopted, round_, self._moment(now))
        deadline = min(own.deadline, now + TIME_SHARE * (request.deadline - now))
        # The stricter of both: what the upstream contract asks for is a promise to its users, and
        # what the region asks for one to its own.
        own = replace(own, deadline=deadline, rows_min=max(own.rows_min, request.rows_min))
        self._opened = (RoundOpened(self.name, own.round, own.version),)
        return replace(adopted, phase=Phase.COLLECTING, request=own, opened_at=now)

    def on_timer(self, now: float) -> Sequence[ModelEvent]:
        """Close the open round by its quorum or at its deadline; that answers the upstream one."""
        self._join_arrived()
        events: list[ModelEvent] = list(self._opened)
        self._opened = ()
        request = self._state.request
        moment = self._moment(now)
        if request is None:
            return events
        if has_quorum(self._rules, self._state, moment):
            events.append(self._close("quorum", moment))
        elif now >= request.deadline:
            events.append(self._close("deadline", moment))
        return events

    def take_answer(self) -> RegionContribution | None:
        """The region's answer to the round that was closed since the last call; None if there is
        none."""
        answer = self._answer
        self._answer = None
        return answer

    def _parts(self) -> dict[str, SavedPart]:
        return super()._parts() | {
            "followed": SavedValue(
                lambda: FollowedState.of(self._followed).saved(), self._restore_followed
            )
        }

    def _restore_followed(self, state: Any) -> None:
        self._followed = FollowedState.read(state).followed

    def restore(self, state: dict[str, Any]) -> None:
        if "followed" not in state:
            raise InvalidState(
                f"model {self.name} was no region's model when the checkpoint was stored; put "
                "[upstream] as it was before, or start the federation in a new folder"
            )
        super().restore(state)

    def _shift_to(self, snapshot: Snapshot) -> float:
        """Distance that the upstream model has moved since the snapshot followed so far."""
        state = self._state
        if state.params is None or snapshot.round == state.round:
            return state.shift
        return float(self._terms.algorithm.shift(state.params, snapshot.arrays))

    def _close(self, by: Literal["quorum", "deadline"], moment: Moment) -> ModelEvent:
        state = self._state
        received = self._counted()
        expected = expected_clients(self._rules, state, moment)
        participation = state.participation.closed(
            expected, state.participation.answered(state.round)
        )
        self._state = replace(
            state,
            phase=Phase.SLEEPING,
            request=None,
            initial=False,
            participation=participation.without_answers(),
            combined_answers=len(received),
            combined_readings=sum(answer.readings for answer in received),
        )
        self._publisher.counts.readings = self._state.combined_readings
        try:
            sums = sum_answers(
                self._params,
                self._terms.algorithm.update,
                [answer.answer.stats for answer in received],
            )
        # The round is over all the same: the upstream server goes on without this region.
        except InvalidData as invalid:
            return RoundFailed(self.name, state.round, str(invalid))
        if sums is None:
            return RoundFailed(self.name, state.round, "no client has answered in time")
        self._answer = RegionContribution(
            self.name,
            sums,
            self._state.combined_readings,
            moment.now,
            self._publisher.counts.newest_reading_at,
            round=state.round,
        )
        return RoundClosed(
            self.name,
            state.round,
            len(received),
            len(expected),
            by,
            state.shift,
            duration_s=max(0.0, moment.now - state.opened_at),
        )

    def _counted(self) -> list[ReceivedAnswer]:
        """The answers to add up, by the names of clients, from no more readings than one update may
        be from."""
        # Sorted: sums of floats depend on their order, and a replay must give the same bytes.
        received = [answer for _, answer in sorted(self._state.participation.received.items())]
        counted: list[ReceivedAnswer] = []
        readings = 0
        for answer in received:
            readings += answer.readings
            if readings > self._model.readings_max:
                break
            counted.append(answer)
        left_out = len(received) - len(counted)
        if left_out:
            log_event(
                "answers_left_out",
                logging.WARNING,
                model=self.name,
                answers=left_out,
                kept=len(counted),
            )
        return counted

    @property
    def _params(self) -> Params:
        assert self._state.params is not None, "a round is opened with parameters"
        return self._state.params

    @property
    def _can_start(self) -> bool:
        return False

    def _waiting_for(self) -> str:
        if self._state.params is not None:
            return ""
        return "The upstream federation has published no parameters yet."
