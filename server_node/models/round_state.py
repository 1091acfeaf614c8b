"""The state of a model in rounds: one immutable value with an explicit phase, and who has answered
the open round.

`round_transitions` moves it on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from shoal.algorithms.rounds.base import Params, Stats
from shoal.algorithms.rounds.policies import Answer, PolicyState
from shoal.config.contract import Contract, Model
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.codec import StoredPart
from shoal.protocol.messages import RoundRequest, Update, new_round_request

# A version asks each client with probability `fraction`. That none of n clients is asked 10 000
# times in a row has the chance (1 - fraction) ** (10 000 n): of a single client that is asked once
# in a thousand rounds, e ** -10.
DRAWS_MAX = 10_000
"""versions tried to find a request whose sample of clients has at least one that is known"""
MISSED_ROUNDS_MAX = 3
"""rounds in a row that a client may leave unanswered before no round waits for it; its next answer
still counts"""


@dataclass(frozen=True)
class ReceivedAnswer:
    """A client's newest answer, not combined yet."""

    answer: Answer
    readings: int
    """rows behind it"""

    @classmethod
    def of(cls, update: Update) -> Self:
        """The answer in an update."""
        assert update.round is not None, "the validator lets no answer pass without its round"
        return cls(Answer(update.client, update.round, update.arrays), update.readings)

    @cached_property
    def part(self) -> StoredPart:
        """Its arrays as a part of the state: in all checkpoints until its round has closed, and
        stored once."""
        return StoredPart(dict(self.answer.stats))

    @cached_property
    def size(self) -> int:
        """Bytes of its arrays."""
        return bytes_of(self.answer.stats)


@dataclass(frozen=True)
class Participation:
    """The newest answer of each client that no round has combined yet, and the rounds each client
    has missed."""

    received: Mapping[str, ReceivedAnswer] = field(default_factory=dict)
    """client -> answer, to the open round or a late one to an earlier round"""
    missed_rounds: Mapping[str, int] = field(default_factory=dict)
    """client -> rounds in a row that it was asked in and did not answer"""
    received_bytes: int = 0
    """bytes of the arrays of the answers"""

    def with_answers(self, arrived: Mapping[str, ReceivedAnswer]) -> Self:
        """The state with these answers, by client, in place of earlier ones of their clients."""
        # A running sum: it is asked for with every answer that arrives, and adding up all that wait
        # would make a round quadratic in its clients.
        size = self.received_bytes
        for client, answer in arrived.items():
            size += answer.size
            if client in self.received:
                size -= self.received[client].size
        return replace(self, received={**self.received, **arrived}, received_bytes=size)

    def without_answers(self) -> Self:
        """The state with no answers: they have been combined, or cannot be."""
        return replace(self, received={}, received_bytes=0)

    def without_client(self, client: str) -> Self:
        """The state with no answer of this client, and no rounds that it has missed."""
        received = {name: answer for name, answer in self.received.items() if name != client}
        missed = {name: rounds for name, rounds in self.missed_rounds.items() if name != client}
        size = sum(answer.size for answer in received.values())
        return replace(self, received=received, missed_rounds=missed, received_bytes=size)

    def closed(self, expected: Collection[str], answered: Collection[str]) -> Self:
        """The state with one more missed round for each expected client, and none for those that
        answered."""
        missed = dict(self.missed_rounds)
        for client in expected:
            missed[client] = self.missed_rounds.get(client, 0) + 1
        for client in answered:
            # Also of clients that were not expected: one answer in time ends the row of missed
            # rounds, and the next round waits for the client again.
            missed.pop(client, None)
        return replace(self, missed_rounds=missed)

    @property
    def answers(self) -> list[Answer]:
        """All answers that wait, late ones to earlier rounds too."""
        return [received.answer for received in self.received.values()]

    @property
    def readings(self) -> int:
        """Rows behind the answers that wait. Clients claim these numbers: the sum is capped at what
        can be encoded."""
        return min(COUNT_MAX, sum(received.readings for received in self.received.values()))

    def newest_round_of(self, client: str) -> int | None:
        """The round that this client's waiting answer is to."""
        if client not in self.received:
            return None
        return self.received[client].answer.round

    def answered(self, number: int) -> list[str]:
        """Clients whose answers to round `number` are here."""
        return [
            client for client, received in self.received.items() if received.answer.round == number
        ]

    def participating(self, known: Sequence[str]) -> list[str]:
        """Known clients that have not missed too many rounds."""
        return [client for client in known if self.missed_rounds.get(client, 0) < MISSED_ROUNDS_MAX]

    def expected(
        self, contract: Contract, request: RoundRequest, known: Sequence[str]
    ) -> list[str]:
        """Participating clients that a request asks."""
        selected = []
        for client in self.participating(known):
            if request.selects(contract.federation, client):
                selected.append(client)
        return selected

    def has_quorum(
        self, contract: Contract, request: RoundRequest, known: Sequence[str], share: float
    ) -> bool:
        """Whether this share of the expected clients, and one at least, has answered."""
        answered = len(self.answered(request.round))
        if not answered:
            return False
        # The rounding of a product must not ask for one more than the share does.
        return answered >= math.ceil(share * len(self.expected(contract, request, known)) - 1e-9)

    def request(
        self,
        contract: Contract,
        model: Model,
        number: int,
        version: int,
        now: float,
        known: Sequence[str],
    ) -> RoundRequest:
        """The request of round `number`, in a version after `version`, that asks at least one
        participating client."""
        first = new_round_request(model.rounds, model.name, number, version + 1, now)
        if not self.participating(known):
            return first
        request = first
        # In a small federation the sample may be empty: it is drawn again, by leaving a version
        # out.
        for later in range(version + 2, version + 2 + DRAWS_MAX):
            if self.expected(contract, request, known):
                return request
            request = new_round_request(model.rounds, model.name, number, later, now)
        if self.expected(contract, request, known):
            return request
        return first

    def state(self) -> dict[str, Any]:
        """Plain values and parts; `restore_participation` takes them as a checkpoint loads them."""
        answers = self.received.values()
        received = {
            "clients": list(self.received),
            "rounds": [received.answer.round for received in answers],
            "readings": [received.readings for received in answers],
            "stats": [received.part for received in answers],
        }
        return {"received": received, "missed_rounds": dict(self.missed_rounds)}


def bytes_of(stats: Stats) -> int:
    """Bytes of the arrays of an answer."""
    return sum(array.nbytes for array in stats.values())


def restore_participation(state: Mapping[str, Any]) -> Participation:
    """The one that `state` was made of.

    Raises `AttributeError`, `KeyError`, `TypeError` or `ValueError` for a damaged state.
    """
    columns = (state["received"][name] for name in ("clients", "rounds", "readings", "stats"))
    received = {
        client: ReceivedAnswer(Answer(client, number, stats), readings)
        for client, number, readings, stats in zip(*columns, strict=True)
    }
    size = sum(answer.size for answer in received.values())
    return Participation(received, dict(state["missed_rounds"]), size)


class Phase(StrEnum):
    """Phases of a model in rounds."""

    WAITING_FOR_CLUSTERS = "waiting_for_clusters"
    """it has no parameters yet: another model must find the clusters that it starts from"""
    COLLECTING = "collecting"
    """a round is open: clients have been asked, and their answers are collected"""
    SLEEPING = "sleeping"
    """it has converged, and asks for nothing until it wakes"""


@dataclass(frozen=True)
class RoundState:
    """Everything a model in rounds must not lose. Raises `ValueError` for a combination that cannot
    be."""

    phase: Phase = Phase.WAITING_FOR_CLUSTERS
    params: Params | None = None
    """the newest parameters"""
    round: int = 0
    """number of the newest round, open or closed"""
    first_round: int = 1
    """the first round since the model last started; answers to earlier ones are to other parameters
    """
    closed_rounds: int = 0
    """rounds closed since the model last started or woke"""
    initial: bool = True
    """whether no round has closed since it last started"""
    request: RoundRequest | None = None
    """request of the open round"""
    opened_at: float = 0.0
    """time at which the open round was opened, seconds since 1970"""
    wake_at: float = 0.0
    """time to wake, seconds since 1970"""
    participation: Participation = field(default_factory=Participation)
    policy_state: PolicyState = field(default_factory=PolicyState)
    """memory of the policy from round to round"""
    shift: float = math.inf
    """distance by which the newest closed round moved the parameters, in the algorithm's own
    measure"""
    combined_answers: int = 0
    """answers combined in the newest closed round"""
    combined_readings: int = 0
    """rows behind them"""
    quarantined: frozenset[str] = frozenset()
    """clients that no round waits for, and whose answers do not count"""

    def __post_init__(self) -> None:
        if (self.phase is Phase.COLLECTING) != (self.request is not None):
            raise ValueError(f"a model that is {self.phase} has {self.request} as its open request")
        if (self.phase is Phase.WAITING_FOR_CLUSTERS) != (self.params is None):
            parameters = "no parameters" if self.params is None else "parameters"
            raise ValueError(f"a model that is {self.phase} has {parameters}")

    def newest_answer_of(self, client: str) -> int:
        """The newest round that this client has answered; 0 for none."""
        waiting = self.participation.newest_round_of(client)
        # An answer replaces only one to an earlier round, so what waits is newer than all that were
        # combined.
        return waiting or self.policy_state.newest_answered.get(client, 0)

    def saved(self) -> dict[str, Any]:
        """Plain values, arrays and parts for `restore_round_state`."""
        return {
            **vars(self),
            "phase": self.phase.value,
            "params": None if self.params is None else dict(self.params),
            "request": None if self.request is None else asdict(self.request),
            "participation": self.participation.state(),
            "policy_state": self.policy_state.saved(),
            "quarantined": sorted(self.quarantined),
        }


def restore_round_state(saved: Mapping[str, Any]) -> RoundState:
    """The state that `saved` was made of.

    Raises `InvalidState`, or `AttributeError`, `MessageRejected`, `KeyError`, `TypeError` or
    `ValueError` for a damaged one.
    """
    made = {
        "phase": Phase(saved["phase"]),
        "request": None if saved["request"] is None else RoundRequest(**saved["request"]),
        "participation": restore_participation(saved["participation"]),
        "policy_state": PolicyState.read(saved["policy_state"]),
        "quarantined": frozenset(saved["quarantined"]),
    }
    return RoundState(**{**saved, **made})
