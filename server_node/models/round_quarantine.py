"""What becomes of a model in rounds when a client is put into quarantine, or unlearned: pure functions of its state."""

from __future__ import annotations

import math
from dataclasses import replace

from server_node.models.round_state import Phase, RoundState
from server_node.models.round_transitions import RoundRules
from shoal.algorithms.rounds.policies import PolicyState
from shoal.config.models import starts_from_another


def quarantined(state: RoundState, client: str) -> RoundState:
    """No round waits for the client any more, and nothing that it has answered counts in the next one.

    A model that sleeps wakes at once, to move to where the other clients' answers lead.
    """
    answered = state.newest_answer_of(client) > 0
    return replace(
        state,
        quarantined=state.quarantined | {client},
        participation=state.participation.without_client(client),
        policy_state=state.policy_state.without(client),
        wake_at=-math.inf if answered and state.phase is Phase.SLEEPING else state.wake_at,
    )


def unlearned(rules: RoundRules, state: RoundState, client: str) -> RoundState:
    """The state without anything that the client has ever answered.

    Where answers depend on nothing that earlier answers have changed (`RoundsAlgorithm.forget`), the answers of the
    others are combined anew, as they are kept. Elsewhere every answer since the client's first one is to parameters
    that the client had a part in, so the model starts again and asks the others.
    """
    without = quarantined(state, client)
    kept = [answer.stats for _, answer in sorted(without.policy_state.cached.items())]
    forget = rules.algorithm.forget
    if forget is not None and kept and without.params is not None and not starts_from_another(rules.model):
        params = rules.algorithm.combine(forget(without.params), kept)
        return replace(
            without,
            phase=Phase.SLEEPING,
            request=None,
            params=params,
            wake_at=-math.inf,
            shift=math.inf,
            combined_answers=len(kept),
        )
    return replace(
        without,
        phase=Phase.WAITING_FOR_CLUSTERS,
        request=None,
        params=None,
        initial=True,
        first_round=without.round + 1,
        closed_rounds=0,
        participation=without.participation.without_answers(),
        policy_state=PolicyState(),
        shift=math.inf,
        combined_answers=0,
        combined_readings=0,
    )
