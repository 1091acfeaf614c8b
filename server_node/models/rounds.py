"""One model in rounds on the server: it calls, hears answers, closes, combines, and sleeps when nothing moves.

The same for every algorithm of the family: who is called, how long is waited, which answers count. What closes a
round is decided once: the new parameters and the next call are in one checkpoint before anybody hears of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from server_node.lineage import Turnover
from server_node.models.initialization import init_hint_for
from server_node.models.monitoring import RoundMonitoring
from server_node.models.participation import Participation
from server_node.models.publisher import ModelPublisher
from server_node.models.streaming import StreamingModel
from server_node.status import ModelStatus, RoundStatus
from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import InitHint, Params
from shoal.algorithms.rounds.policies import PolicyState, select_answers
from shoal.config.contract import Contract, Model
from shoal.config.models import clusters_wanted, policy_of
from shoal.config.settings import ServerSettings
from shoal.errors import InvalidData, InvalidState, MessageRejected
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.round_request import RoundRequest, round_request_of
from shoal.protocol.validation import Validator
from shoal.telemetry.metrics import ServerMetrics

STATE_VERSION = 2


class RoundsModel:
    """Calls clients for one model. Everything it decides by the clock is kept in its state."""

    def __init__(
        self,
        contract: Contract,
        model: Model,
        settings: ServerSettings,
        border: Validator,
        metrics: ServerMetrics,
        finders: Sequence[StreamingModel] = (),
    ) -> None:
        """`finders` are the models that it may start from."""
        self._contract, self._model, self._settings, self._border = contract, model, settings, border
        self._finders = finders
        self._telling = RoundMonitoring(model, metrics)
        self._agreed = model.rounds
        self._algorithm = rounds_algorithm(model.algorithm)
        self._policy = policy_of(model)
        self._standing = ModelPublisher(contract, model)
        self._params: Params | None = None
        self._round = 0
        self._first_round = 1
        """the first one since it last started anew; answers to earlier ones are to other parameters"""
        self._in_a_row = 0
        self._call: RoundRequest | None = None
        self._called_at = self._wake_at = 0.0
        self._attendance = Participation(contract)
        self._memory = PolicyState()
        self._untouched = True
        """whether no round has closed since it last started"""
        self._shift = math.inf
        self._counted = 0
        self._unsaid = False
        self.clients = self._standing.clients

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest one published."""
        return self._standing.snapshot

    @property
    def said(self) -> bytes | None:
        """The newest one published, as it travels."""
        return self._standing.said

    @property
    def turnover(self) -> Turnover:
        """What became of clusters when it was published."""
        return self._standing.turnover

    @property
    def changed(self) -> bool:
        """Whether answers wait for their round to close."""
        return self._call is not None and len(self._attendance) > 0

    @property
    def sleeping(self) -> bool:
        """Whether it has moved as far as it could, and looks up only now and then."""
        return self._params is not None and self._call is None

    @property
    def idle(self) -> bool:
        """Whether nobody is called just now, nor is there anything to start from."""
        return self._call is None and (self._params is not None or self._hint() is None)

    @property
    def params(self) -> Params | None:
        """The parameters as they stand; None before it has started."""
        return self._params

    def hear(self, update: Update, now: float) -> bool:
        """Take one checked answer in; False if it was heard before. Raises `MessageRejected`."""
        assert update.round is not None, "the border lets no answer pass without its round"
        if self._params is None or update.round > self._round:
            raise MessageRejected("sequence", f"answers round {update.round}, which was never called")
        usable = update.round >= max(self._first_round, self._round - self._agreed.late_rounds)
        if usable:
            self._border.check_answer_combines(self._model, self._params, update)
        again = not self.clients.take(update.client, update.sequence, 0, now)
        if again or (usable and update.round <= self._heard_of(update.client)):
            self._telling.answered("repeated")
            return False
        if not usable:
            self._telling.answered("too_late")
            return False
        self._telling.answered("in_time" if update.round == self._round and self._call is not None else "late")
        self.clients.stand_behind(update.client, update.readings)
        self._standing.count(update)
        self._attendance.take(update)
        return True

    def wake(self) -> None:
        """Look at the clients' rows at the next opportunity, if it is asleep."""
        self._wake_at = -math.inf

    def on_timer(self, now: float) -> bool:
        """Open, close or call again, or wake: what is due now. True if anything was. Call it when the log is read."""
        # A clock that was set back must not make a wait longer than it ever was.
        self._called_at, self._wake_at = min(self._called_at, now), min(self._wake_at, now + self._agreed.wake_s)
        if self._params is None:
            return self._start(now)
        if self._call is None:
            return now >= self._wake_at and self._wake(now)
        if self._quorum_is_there(self._call):
            return self._close(self._call, "quorum", now)
        return now >= self._called_at + self._agreed.deadline_s and self._time_is_up(self._call, now)

    def snapshot_due(self, now: float) -> bool:
        """Whether there is anything to say."""
        return self._unsaid

    def take_snapshot(self, positions: list[list[int]], statement: dict[str, Any], now: float) -> Snapshot:
        """The parameters as they stand, with the call if there is one."""
        assert self._params is not None
        self._unsaid = False
        params, summary = self._params, self._algorithm.summary(self._params)
        return self._standing.publish(params, summary, positions, statement, now, number=self._round, call=self._call)

    def rebuild(self, published: Snapshot) -> None:
        """Go on with the newest parameters that were published; answers to earlier rounds are not needed."""
        assert published.round is not None
        self._standing.adopt(published)
        self._params, self._round, self._untouched = published.arrays, published.round, False
        self._call = round_request_of(published)
        self._called_at = published.made_at

    def status(self) -> ModelStatus:
        """What people may see of it."""
        phase: Literal["collecting", "sleeping"] = "sleeping" if self.sleeping else "collecting"
        asked = len(self._attendance.expected(self._call, self._known)) if self._call is not None else 0
        seen = RoundStatus(self._round, phase, self._counted, len(self._answered), self._shift, asked)
        return self._standing.status(self._waiting_for(), seen)

    def state(self) -> dict[str, Any]:
        """Everything a restart needs, the open call and its answers included."""
        return {
            "version": STATE_VERSION,
            **self._standing.state(),
            **self._attendance.state(),
            "params": None if self._params is None else dict(self._params),
            "round": self._round,
            "first_round": self._first_round,
            "in_a_row": self._in_a_row,
            "untouched": self._untouched,
            "call": None if self._call is None else asdict(self._call),
            "called_at": self._called_at,
            "wake_at": self._wake_at,
            "memory": self._memory.state(),
            "shift": self._shift,
            "counted": self._counted,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        if state.get("version") != STATE_VERSION:
            raise InvalidState(f"the checkpoint of model {self._model.name} is of another version of shoal")
        try:
            self._standing.restore(state)
            self._attendance.restore(state)
            self._params = state["params"]
            self._round, self._first_round = state["round"], state["first_round"]
            self._in_a_row, self._untouched = state["in_a_row"], state["untouched"]
            self._call = None if state["call"] is None else RoundRequest(**state["call"])
            self._called_at, self._wake_at = state["called_at"], state["wake_at"]
            self._memory = PolicyState.restored(state["memory"])
            self._shift, self._counted = state["shift"], state["counted"]
        except (AttributeError, KeyError, TypeError, ValueError, MessageRejected) as broken:
            raise InvalidState(f"the checkpoint of model {self._model.name} is damaged: {broken}") from None

    def _start(self, now: float) -> bool:
        if (hint := self._hint()) is None:
            return False
        self._params = self._algorithm.start(self._model.options, self._contract.width, hint)
        # Answers on their way are to other parameters, so this is a round of another number.
        self._first_round, self._in_a_row, self._untouched = self._round + 1, 0, True
        self._memory = PolicyState()
        self._attendance.forget()
        return self._open(self._first_round, now)

    def _hint(self) -> InitHint | None:
        return init_hint_for(self._contract, self._model, self._finders)

    def _open(self, number: int, now: float) -> bool:
        """Call for answers to the parameters as they stand."""
        self._round, self._called_at, self._unsaid = number, now, True
        self._call = self._attendance.call(
            self._agreed, self._model.name, number, self._standing.version, now, self._known
        )
        self._telling.opened(number, self._call.version)
        return True

    def _time_is_up(self, call: RoundRequest, now: float) -> bool:
        if self._answered:
            return self._close(call, "deadline", now)
        self._attendance.close(self._attendance.expected(call, self._known), ())
        # Before anybody has answered, nothing is lost by starting from what has been found meanwhile.
        return self._start(now) if self._untouched else self._open(self._round, now)

    def _close(self, call: RoundRequest, by: str, now: float) -> bool:
        assert self._params is not None
        before = self._params
        try:
            memory, counted = select_answers(self._policy, self._memory, self._attendance.answers(), self._round)
            after = self._algorithm.combine(before, counted)
            self._border.check_params(self._model, after)
        except (InvalidData, MessageRejected) as wrong:
            # Each was right on its own, together they are not: without them the round is called again.
            self._telling.rejected(self._round, str(wrong))
            self._attendance.forget()
            return self._open(self._round, now)
        expected = self._attendance.expected(call, self._known)
        self._attendance.close(expected, self._answered)
        self._counted, self._standing.readings = len(self._attendance), self._attendance.rows
        self._attendance.forget()
        self._memory, self._params, self._untouched = memory, after, False
        self._shift = float(self._algorithm.shift(before, after))
        self._telling.closed(self._round, by, self._counted, len(expected), self._shift, now - self._called_at)
        return self._sleep(now) if self._is_done() else self._open(self._round + 1, now)

    def _is_done(self) -> bool:
        still = self._shift < self._agreed.tolerance or self._shift == 0.0
        if self._in_a_row == 0 and self._round > self._first_round and not still:
            self._telling.drifted(self._round, self._shift)
        self._in_a_row += 1
        return still or self._algorithm.one_shot or self._in_a_row >= self._agreed.rounds_max

    def _sleep(self, now: float) -> bool:
        self._call, self._wake_at, self._unsaid = None, now + self._agreed.wake_s, True
        self._telling.sleeping(self._round, self._in_a_row, self._shift)
        return True

    def _wake(self, now: float) -> bool:
        """One round to see whether the rows have moved; if they have, more follow."""
        assert self._params is not None
        self._in_a_row = 0
        hint = self._hint() if clusters_wanted(self._model) == "auto" else None
        if hint is not None and hint.points is not None and len(hint.points) != len(self._params["centre"]):
            self._telling.started_anew(len(hint.points))
            return self._start(now)
        return self._open(self._round + 1, now)

    def _heard_of(self, client: str) -> int:
        """The newest round this client has answered."""
        return self._attendance.newest_of(client) or self._memory.newest_answered.get(client, 0)

    @property
    def _answered(self) -> list[str]:
        """Clients whose answers to the open round are here."""
        return self._attendance.to(self._round)

    @property
    def _known(self) -> list[str]:
        return [client for client, *_ in self.clients.totals()]

    def _quorum_is_there(self, call: RoundRequest) -> bool:
        too_few_yet = self._untouched and len(self.clients) < self._settings.pool_clients
        return not too_few_yet and self._attendance.enough(call, self._known, self._agreed.quorum)

    def _waiting_for(self) -> str:
        if self._params is None:
            return "It takes over the clusters that another model finds, and none has found any yet."
        if self._untouched:
            return "Clients have been called; their first answers have not come yet."
        return ""
