"""The state of a model in rounds: one immutable value with an explicit phase. `round_transitions` moves it on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from server_node.models.participation import Participation, restore_participation
from shoal.algorithms.rounds.base import Params
from shoal.algorithms.rounds.policies import PolicyState
from shoal.protocol.messages import RoundRequest


class Phase(StrEnum):
    """What a model in rounds is doing."""

    WAITING_FOR_CLUSTERS = "waiting_for_clusters"
    """it has no parameters yet: another model must find the clusters that it starts from"""
    COLLECTING = "collecting"
    """a round is open: clients have been asked, and their answers are collected"""
    SLEEPING = "sleeping"
    """it has converged, and asks for nothing until it wakes"""


@dataclass(frozen=True)
class RoundState:
    """Everything a model in rounds must not lose. Raises `ValueError` for a combination that cannot be."""

    phase: Phase = Phase.WAITING_FOR_CLUSTERS
    params: Params | None = None
    """the newest parameters"""
    round: int = 0
    """number of the newest round, open or closed"""
    first_round: int = 1
    """the first round since the model last started; answers to earlier ones are to other parameters"""
    closed_rounds: int = 0
    """rounds closed since the model last started or woke"""
    initial: bool = True
    """whether no round has closed since it last started"""
    request: RoundRequest | None = None
    """of the open round"""
    opened_at: float = 0.0
    """when the open round was opened, seconds since 1970"""
    wake_at: float = 0.0
    """when to wake, seconds since 1970"""
    participation: Participation = field(default_factory=Participation)
    policy_state: PolicyState = field(default_factory=PolicyState)
    """what the policy keeps from round to round"""
    shift: float = math.inf
    """how far the newest closed round moved the parameters, in the algorithm's own measure"""
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
            raise ValueError(f"a model that is {self.phase} has {'no ' if self.params is None else ''}parameters")

    def newest_answer_of(self, client: str) -> int:
        """The newest round that this client has answered; 0 for none."""
        return self.participation.newest_round_of(client) or self.policy_state.newest_answered.get(client, 0)

    def saved(self) -> dict[str, Any]:
        """Plain values, arrays and parts for `restore_round_state`."""
        return {
            "phase": self.phase.value,
            "params": None if self.params is None else dict(self.params),
            "round": self.round,
            "first_round": self.first_round,
            "closed_rounds": self.closed_rounds,
            "initial": self.initial,
            "request": None if self.request is None else asdict(self.request),
            "opened_at": self.opened_at,
            "wake_at": self.wake_at,
            "participation": self.participation.state(),
            "policy_state": self.policy_state.state(),
            "shift": self.shift,
            "combined_answers": self.combined_answers,
            "combined_readings": self.combined_readings,
            "quarantined": sorted(self.quarantined),
        }


def restore_round_state(saved: Mapping[str, Any]) -> RoundState:
    """The state that `saved` was made of.

    Raises `InvalidState`, or `AttributeError`, `MessageRejected`, `KeyError`, `TypeError` or `ValueError` for a damaged
    one.
    """
    made = {
        "phase": Phase(saved["phase"]),
        "request": None if saved["request"] is None else RoundRequest(**saved["request"]),
        "participation": restore_participation(saved["participation"]),
        "policy_state": PolicyState.restored(saved["policy_state"]),
        "quarantined": frozenset(saved["quarantined"]),
    }
    return RoundState(**{**saved, **made})
