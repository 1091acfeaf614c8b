"""Transitions of a model in rounds: pure functions from its state to the next state and the events
on the way.

A round is opened by a request to clients, and closed by a quorum of answers or by its deadline.
Closing it combines the answers to the next parameters; another round follows until the model has
converged. Then it sleeps, and wakes for one round now and then, to see whether the rows of its
clients have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from shoal.algorithms.rounds.base import InitHint, Params
from shoal.algorithms.rounds.policies import PolicyState, epoch_changed, select_answers
from shoal.config.contract import Contract, Model
from shoal.config.resolved import RoundTerms
from shoal.errors import ShoalError
from shoal.protocol.messages import RoundRequest
from shoal.server_node.models.base import (
    COMPUTING_ERRORS,
    DriftDetected,
    IncompatibleClient,
    ModelEvent,
    ModelRestarted,
    ModelSleeping,
    RoundClosed,
    RoundFailed,
    RoundOpened,
    incompatible_clients,
)
from shoal.server_node.models.round_state import Phase, RoundState


@dataclass(frozen=True)
class RoundRules:
    """Rules that stay the same for all rounds of a model."""

    contract: Contract
    model: Model
    terms: RoundTerms
    first_clients: int
    """clients that must have answered before a first round closes by quorum"""
    check_params: Callable[[Params], None]
    """raises `MessageRejected` for parameters that cannot be published"""


@dataclass(frozen=True)
class Moment:
    """Conditions that a transition depends on beside the state."""

    now: float
    """seconds since 1970"""
    known: Sequence[str]
    """clients that have ever answered, sorted by name"""
    version: int
    """version of the newest snapshot"""
    init_hint: Callable[[], InitHint | None]
    """clusters that it could start from now; None while it waits for clusters that no other model
    has found yet"""


class Transition(NamedTuple):
    """The next state, and the events in order. Each transition ends with an open round or with a
    sleep."""

    state: RoundState
    events: tuple[ModelEvent, ...]


def due_transition(rules: RoundRules, state: RoundState, moment: Moment) -> Transition | None:
    """The transition that is due now, None for none. Every answer that is in the log must have been
    read before."""
    if state.phase is Phase.WAITING_FOR_CLUSTERS:
        return start(rules, state, moment)
    if state.phase is Phase.SLEEPING:
        if moment.now >= state.wake_at:
            return wake(rules, state, moment)
        return None
    # Before the deadline is looked at: at a moment with both, the round was complete.
    if has_quorum(rules, state, moment):
        return close_round(rules, state, "quorum", moment)
    if moment.now >= state.opened_at + _open_s(rules, state):
        return time_out(rules, state, moment)
    return None


UNANSWERED_S = 3600.0
"""how long a request that no client answers stays open, where all are asked: each is written with
all parameters, some 100 KB, and a federation without clients should let the disk rest"""


def _open_s(rules: RoundRules, state: RoundState) -> float:
    """Seconds for which the open request stays open."""
    assert state.request is not None, "an open round has a request"
    agreed = rules.model.rounds
    open_s = state.request.deadline - state.opened_at
    return min(max(open_s, agreed.deadline_s), _open_s_max(rules))


def _open_s_max(rules: RoundRules) -> float:
    agreed = rules.model.rounds
    # Where a sample is asked, another one must be drawn now and then.
    open_s = UNANSWERED_S if agreed.fraction == 1.0 else 0.0
    return max(open_s, agreed.deadline_s, agreed.wake_s)


def with_answer(rules: RoundRules, state: RoundState, now: float) -> RoundState:
    """The state once a client has answered: a request that was open for longer is so no more.

    The others have as long as ever to answer as well.
    """
    if state.request is None or _open_s(rules, state) <= rules.model.rounds.deadline_s:
        return state
    if not state.participation.answered(state.round):
        return state
    deadline = now + rules.model.rounds.deadline_s
    return replace(state, opened_at=now, request=replace(state.request, deadline=deadline))


def with_clock(rules: RoundRules, state: RoundState, now: float) -> RoundState:
    """The state with no time further ahead than it can be: a clock that was set back must not
    lengthen a wait."""
    opened_at = min(state.opened_at, now)
    wake_at = min(state.wake_at, now + rules.model.rounds.wake_s)
    if (opened_at, wake_at) == (state.opened_at, state.wake_at):
        return state
    request = state.request
    if request is not None:
        request = replace(request, deadline=request.deadline - (state.opened_at - opened_at))
    return replace(state, opened_at=opened_at, wake_at=wake_at, request=request)


def start(rules: RoundRules, state: RoundState, moment: Moment) -> Transition | None:
    """Open a first round with initial parameters; None while there is nothing to start from.

    Answers on their way are to other parameters, so the round has a new number.
    """
    hint = moment.init_hint()
    if hint is None:
        return None
    params = rules.terms.algorithm.start(rules.model.options, rules.contract.width, hint)
    request = make_request(rules, state, state.round + 1, moment)
    started = replace(
        state,
        phase=Phase.COLLECTING,
        params=params,
        request=request,
        round=request.round,
        first_round=request.round,
        opened_at=moment.now,
        closed_rounds=0,
        initial=True,
        policy_state=PolicyState(),
        participation=state.participation.without_answers(),
    )
    return Transition(started, (_opened(request),))


def open_round(rules: RoundRules, state: RoundState, number: int, moment: Moment) -> Transition:
    """Open round `number`: ask clients for answers to the newest parameters."""
    request = make_request(rules, state, number, moment)
    # The same number may be opened again, with a later version. Its parameters have not changed,
    # so an answer that is on its way to the earlier request counts.
    opened = replace(
        state, phase=Phase.COLLECTING, request=request, round=number, opened_at=moment.now
    )
    return Transition(opened, (_opened(request),))


def time_out(rules: RoundRules, state: RoundState, moment: Moment) -> Transition:
    """Close the round at the deadline with the answers that are here, or open it again if there are
    none."""
    if state.participation.answered(state.round):
        return close_round(rules, state, "deadline", moment)
    # Every client that was expected has missed this round. Otherwise clients that are gone for good
    # would be expected for ever, and each round of the others would last until its deadline.
    missed = replace(
        state, participation=state.participation.closed(expected_clients(rules, state, moment), ())
    )
    # Before any client has answered, nothing is lost by starting from what has been found
    # meanwhile.
    restarted = start(rules, missed, moment) if state.initial else None
    opened = restarted or open_round(rules, missed, state.round, moment)
    # Clients that come later find the newest request and answer it: there is no need to ask again
    # and again where no client is expected, and each request is written with all parameters.
    if missed.participation.participating(moment.known):
        return opened
    request = opened.state.request
    assert request is not None, "the round was opened"
    open_s = _open_s_max(rules)
    # Only another sample, or clusters that its source finds meanwhile, make a later request
    # another one.
    has_source = state.initial and rules.model.source is not None
    if has_source or rules.model.rounds.fraction < 1.0:
        open_s = min(2 * _open_s(rules, state), open_s)
    longer = replace(request, deadline=moment.now + open_s)
    return opened._replace(state=replace(opened.state, request=longer))


def close_round(
    rules: RoundRules, state: RoundState, by: Literal["quorum", "deadline"], moment: Moment
) -> Transition:
    """Combine the answers to the next parameters, and open the next round or sleep.

    Where answers that are valid one by one cannot be combined, the incompatible ones are left out.
    If none is found, all are dropped, and the round is opened again.
    """
    assert state.params is not None, "an open round has parameters"
    participation = state.participation
    try:
        policy_state, params = _combined(rules, state)
    # A retry ends: each one has fewer answers than the one before.
    except COMPUTING_ERRORS as refused:
        return _without_incompatible_answers(rules, state, by, moment, refused)
    expected = expected_clients(rules, state, moment)
    shift = float(rules.terms.algorithm.shift(state.params, params))
    first_round = state.first_round
    if epoch_changed(rules.terms.algorithm, state.params, params):
        # What is summed or cached was computed from other places, as the landmarks of spectral
        # clustering: added to new answers it would be a sum of unlike things.
        policy_state = policy_state.without_earlier_answers()
        first_round = state.round + 1
    closed = replace(
        state,
        params=params,
        first_round=first_round,
        initial=False,
        closed_rounds=state.closed_rounds + 1,
        policy_state=policy_state,
        participation=participation.closed(
            expected, participation.answered(state.round)
        ).without_answers(),
        shift=shift,
        combined_answers=len(participation.received),
        combined_readings=participation.readings,
    )
    # A clock that was set back must not make a duration negative.
    duration_s = max(0.0, moment.now - state.opened_at)
    event = RoundClosed(
        rules.model.name,
        state.round,
        closed.combined_answers,
        len(expected),
        by,
        shift,
        duration_s=duration_s,
    )
    return _after(event, _go_on(rules, closed, moment))


def _combined(rules: RoundRules, state: RoundState) -> tuple[PolicyState, Params]:
    """The state of the policy, and the next parameters. Raises any of `COMPUTING_ERRORS`."""
    assert state.params is not None, "an open round has parameters"
    answers = state.participation.answers
    policy_state, counted = select_answers(
        rules.terms.policy, state.policy_state, answers, state.round, rules.terms.algorithm.robust
    )
    params = rules.terms.algorithm.combine(state.params, counted)
    # Answers that are valid one by one may combine to parameters that are not finite or out of
    # bounds. Clients refuse such a snapshot, so it would stop the model for all.
    rules.check_params(params)
    return policy_state, params


def _without_incompatible_answers(
    rules: RoundRules,
    state: RoundState,
    by: Literal["quorum", "deadline"],
    moment: Moment,
    refused: Exception,
) -> Transition:
    """Close the round without the answers that keep the others from being combined, or open it
    again."""
    detail = _detail_of(refused)
    failed = RoundFailed(rules.model.name, state.round, detail)
    kept = {answer.client: answer.stats for answer in state.policy_state.cached.values()}
    new = {answer.client: answer.stats for answer in state.participation.answers}
    # Cached answers of earlier rounds are combined too, so one of those can be the one that does
    # not fit.
    left_out = incompatible_clients(
        {**kept, **new}, lambda clients: _combines(_of_clients(state, clients), rules)
    )
    rest = _of_clients(state, ({**kept, **new}).keys() - set(left_out))
    # Cached and late answers alone do not close a round: none of them is to the parameters that it
    # asks about.
    if not left_out or not rest.participation.answered(state.round):
        rest = replace(rest, participation=state.participation.without_answers())
        after = open_round(rules, rest, state.round, moment)
    else:
        after = close_round(rules, rest, by, moment)
    named = (IncompatibleClient(rules.model.name, client, detail) for client in left_out)
    return Transition(after.state, (failed, *named, *after.events))


def _detail_of(refused: Exception) -> str:
    """Why answers were not combined. The text of a foreign error could quote what is in them."""
    match refused:
        case ShoalError():
            return str(refused)
        case _:
            return f"combining raised {type(refused).__name__}"


def _of_clients(state: RoundState, clients: Collection[str]) -> RoundState:
    """The state with the answers of these clients alone."""
    received = {
        client: answer
        for client, answer in state.participation.received.items()
        if client in clients
    }
    cached = {
        client: answer for client, answer in state.policy_state.cached.items() if client in clients
    }
    return replace(
        state,
        participation=replace(state.participation.without_answers(), received=received),
        policy_state=replace(state.policy_state, cached=cached),
    )


def _combines(state: RoundState, rules: RoundRules) -> bool:
    try:
        _combined(rules, state)
    except COMPUTING_ERRORS:
        return False
    return True


def sleep(rules: RoundRules, state: RoundState, moment: Moment) -> Transition:
    """Ask for nothing until it is time to wake."""
    sleeping = replace(
        state, phase=Phase.SLEEPING, request=None, wake_at=moment.now + rules.model.rounds.wake_s
    )
    event = ModelSleeping(rules.model.name, state.round, state.closed_rounds, state.shift)
    return Transition(sleeping, (event,))


def wake(rules: RoundRules, state: RoundState, moment: Moment) -> Transition:
    """Open one round to see whether the rows have moved; if they have, more follow.

    A model that takes over the clusters of another one, or chooses their number from its nodes,
    restarts when the number has changed.
    """
    assert state.params is not None, "a model that sleeps has parameters"
    # From 0, as `rounds_max` bounds the rounds in a row, and the first one after a sleep is the one
    # that shows drift.
    woken = replace(state, closed_rounds=0)
    hint = moment.init_hint() if rules.terms.starts_from_another else None
    if hint is not None and hint.points is not None:
        clusters = len(hint.points)
        # Parameters for another number of clusters cannot be compared with the newest ones: only a
        # start makes them.
        if clusters != len(rules.terms.algorithm.view(state.params).centres):
            # With the hint that was just compared: choosing clusters by a criterion clusters the
            # nodes of the source once for each number, and must not be done twice.
            restarted = start(rules, woken, replace(moment, init_hint=lambda: hint))
            assert restarted is not None, "there is a hint"
            return _after(ModelRestarted(rules.model.name, clusters), restarted)
    return open_round(rules, woken, state.round + 1, moment)


def _go_on(rules: RoundRules, closed: RoundState, moment: Moment) -> Transition:
    """Sleep if the round just closed was the last one, or open the next."""
    agreed = rules.model.rounds
    # With a tolerance of 0 nothing is below it, and a shift of exactly 0 can never become smaller.
    converged = closed.shift < agreed.tolerance or closed.shift == 0.0
    last = converged or rules.terms.algorithm.one_shot or closed.closed_rounds >= agreed.rounds_max
    if last:
        going_on = sleep(rules, closed, moment)
    else:
        going_on = open_round(rules, closed, closed.round + 1, moment)
    # The first round after a sleep: the very first of a model has moved for another reason.
    if closed.closed_rounds == 1 and closed.round > closed.first_round and not converged:
        return _after(DriftDetected(rules.model.name, closed.round, closed.shift), going_on)
    return going_on


def has_quorum(rules: RoundRules, state: RoundState, moment: Moment) -> bool:
    """Whether enough of the clients that the open round waits for have answered."""
    assert state.request is not None, "an open round has a request"
    # A quorum is a share of the clients that are known. Of the first client alone it is reached at
    # once, and that one would decide where all others begin.
    if state.initial and len(moment.known) < rules.first_clients:
        return False
    return state.participation.has_quorum(
        rules.contract, state.request, moment.known, rules.model.rounds.quorum
    )


def expected_clients(rules: RoundRules, state: RoundState, moment: Moment) -> list[str]:
    """The clients that the open round asks and waits for."""
    assert state.request is not None, "an open round has a request"
    return state.participation.expected(rules.contract, state.request, moment.known)


def make_request(rules: RoundRules, state: RoundState, number: int, moment: Moment) -> RoundRequest:
    """The request of round `number` at this moment."""
    return state.participation.request(
        rules.contract, rules.model, number, moment.version, moment.now, moment.known
    )


def _opened(request: RoundRequest) -> RoundOpened:
    return RoundOpened(request.model, request.round, request.version)


def _after(event: ModelEvent, transition: Transition) -> Transition:
    return Transition(transition.state, (event, *transition.events))
