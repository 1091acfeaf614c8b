"""The transitions of a model in rounds: pure functions, each with its next state and its events."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.rounds.base import InitHint
from shoal.config.resolved import resolve
from shoal.errors import MessageRejected
from shoal.protocol.codec import StoredPart, pack, unpack
from shoal.protocol.validation import Validator
from shoal.server_node.models.base import (
    DriftDetected,
    ModelEvent,
    ModelRestarted,
    ModelSleeping,
    RoundClosed,
    RoundFailed,
    RoundOpened,
)
from shoal.server_node.models.round_state import (
    Participation,
    Phase,
    ReceivedAnswer,
    RoundState,
    restore_participation,
    restore_round_state,
)
from shoal.server_node.models.round_transitions import (
    Moment,
    RoundRules,
    Transition,
    close_round,
    due_transition,
    open_round,
    sleep,
    start,
    time_out,
    wake,
    with_clock,
)
from tests.server_node.rounds_harness import RoundsHarness, contract_with, rows_of

HINT = InitHint(np.zeros(2), np.ones(2), 7)
WAITING = RoundState()


def rules_for(first_clients: int = 1, **rounds: Any) -> RoundRules:
    contract = contract_with(**rounds)
    (model,) = resolve(contract).models.values()
    assert model.rounds is not None

    def check_params(params: Any) -> None:
        Validator(resolve(contract)).check_params(model.name, params)

    return RoundRules(contract, model.declared, model.rounds, first_clients, check_params)


def at(now: float = 0.0, *known: str, hint: InitHint | None = HINT, version: int = 0) -> Moment:
    return Moment(now, known, version, lambda: hint)


def started(rules: RoundRules, moment: Moment | None = None) -> RoundState:
    transition = start(rules, WAITING, moment or at())
    assert transition is not None
    return transition.state


def answered(rules: RoundRules, state: RoundState, *clients: str) -> RoundState:
    """With an answer of each client to the open round."""
    harness = RoundsHarness(rules.contract)
    first = harness.tick(0.0)
    assert first is not None
    assert state.params is not None
    participation = state.participation
    for n, client in enumerate(clients):
        stats = rules.terms.algorithm.answer(state.params, rows_of(n))
        update = harness.make_answer(client, rows_of(n), round=state.round, arrays=stats)
        participation = participation.with_answers({client: ReceivedAnswer.of(update)})
    return replace(state, participation=participation)


def test_an_answer_that_waits_is_the_same_part_of_all_checkpoints() -> None:
    rules = rules_for()
    participation = answered(rules, started(rules), "attic", "cellar").participation
    before = participation.state()
    after = participation.state()
    assert after["received"]["clients"] == ["attic", "cellar"]
    parts = zip(before["received"]["stats"], after["received"]["stats"], strict=True)
    assert all(part is again and isinstance(part, StoredPart) for part, again in parts)
    restored = restore_participation(unpack(pack(after)))
    assert restored.received_bytes == participation.received_bytes
    assert pack(restored.state()) == pack(after)
    with pytest.raises(ValueError, match="shorter"):
        restore_participation({**after, "received": {**after["received"], "rounds": [1]}})


def kinds(transition: Transition | None) -> list[type[ModelEvent]]:
    assert transition is not None
    return [type(event) for event in transition.events]


def test_a_model_waits_for_clusters_until_there_is_a_hint() -> None:
    rules = rules_for()
    assert due_transition(rules, WAITING, at(hint=None)) is None
    transition = due_transition(rules, WAITING, at(5.0))
    assert kinds(transition) == [RoundOpened]
    assert transition is not None
    assert (transition.state.phase, transition.state.round, transition.state.opened_at) == (
        Phase.COLLECTING,
        1,
        5.0,
    )


def test_a_quorum_closes_the_round_and_opens_the_next() -> None:
    rules = rules_for(quorum=0.5, tolerance=0)
    state = answered(rules, started(rules), "attic")
    assert due_transition(rules, state, at(1.0, "attic", "cellar", "garden")) is None
    transition = due_transition(rules, state, at(1.0, "attic", "cellar"))
    assert kinds(transition) == [RoundClosed, RoundOpened]
    assert transition is not None
    after = transition.state
    assert (after.round, after.closed_rounds, after.initial, after.combined_answers) == (
        2,
        1,
        False,
        1,
    )
    assert after.combined_readings == 60
    assert after.participation == Participation(missed_rounds={"cellar": 1})


def test_the_deadline_closes_a_round_with_answers_and_reopens_one_without() -> None:
    rules = rules_for(quorum=1, tolerance=0, deadline_s=10)
    state = started(rules)
    assert due_transition(rules, state, at(9.9, "attic")) is None
    again = due_transition(rules, replace(state, initial=False), at(10.0, "attic", version=4))
    assert kinds(again) == [RoundOpened]
    assert again is not None
    assert again.state.request is not None
    assert (again.state.round, again.state.request.version) == (1, 5)
    closed = due_transition(rules, answered(rules, state, "attic"), at(10.0, "attic", "cellar"))
    assert kinds(closed) == [RoundClosed, RoundOpened]
    assert closed is not None
    event, _ = closed.events
    assert isinstance(event, RoundClosed)
    assert (event.by, event.answers, event.expected, event.duration_s) == ("deadline", 1, 2, 10.0)


def test_a_first_round_without_answers_restarts_with_another_number_or_is_reopened() -> None:
    rules = rules_for(deadline_s=10)
    state = started(rules)
    assert time_out(rules, state, at(10.0)).state.round == 2
    without_hint = time_out(rules, state, at(10.0, hint=None))
    assert without_hint.state.round == 1
    assert kinds(without_hint) == [RoundOpened]


def test_a_model_sleeps_once_it_has_converged_and_wakes_when_it_is_time() -> None:
    rules = rules_for(tolerance=1e9, wake_s=60)
    state = answered(rules, started(rules), "attic")
    slept = close_round(rules, state, "quorum", at(3.0, "attic"))
    assert kinds(slept) == [RoundClosed, ModelSleeping]
    assert (slept.state.phase, slept.state.request, slept.state.wake_at) == (
        Phase.SLEEPING,
        None,
        63.0,
    )
    assert due_transition(rules, slept.state, at(62.9)) is None
    woken = due_transition(rules, slept.state, at(63.0))
    assert kinds(woken) == [RoundOpened]
    assert woken is not None
    assert (woken.state.round, woken.state.closed_rounds) == (2, 0)


def test_drift_is_a_first_round_after_a_sleep_that_moves_the_model() -> None:
    rules = rules_for(tolerance=0)
    slept = sleep(rules, replace(started(rules), initial=False, shift=0.0), at())
    woken = wake(rules, slept.state, at(60.0))
    moved = close_round(rules, answered(rules, woken.state, "attic"), "quorum", at(61.0, "attic"))
    assert kinds(moved) == [RoundClosed, DriftDetected, RoundOpened]
    next_round = close_round(
        rules, answered(rules, moved.state, "attic"), "quorum", at(62.0, "attic")
    )
    assert DriftDetected not in kinds(next_round), "it is known by now"


def test_a_model_that_takes_over_clusters_restarts_when_their_number_has_changed() -> None:
    rules = rules_for()
    auto = rules.model.model_copy(update={"options": {"clusters": "auto"}})
    rules = replace(rules, model=auto, terms=replace(rules.terms, clusters="auto"))
    two, three = (
        replace(HINT, points=np.full((n, 2), 0.5) + 0.01 * np.arange(n)[:, None]) for n in (2, 3)
    )
    slept = sleep(rules, started(rules, at(hint=two)), at()).state
    assert kinds(wake(rules, slept, at(60.0, hint=two))) == [RoundOpened]
    restarted = wake(rules, slept, at(60.0, hint=three))
    assert kinds(restarted) == [ModelRestarted, RoundOpened]
    assert restarted.state.first_round == restarted.state.round == 2
    assert restarted.state.initial


def test_answers_that_cannot_be_combined_fail_the_round_and_are_dropped() -> None:
    def reject(_: Any) -> None:
        raise MessageRejected("bounds", "too far out")

    rules = replace(rules_for(), check_params=reject)
    state = answered(rules, started(rules), "attic")
    failed = close_round(rules, state, "quorum", at(1.0, "attic", version=1))
    assert kinds(failed) == [RoundFailed, RoundOpened]
    assert failed.state.participation.received == {}
    assert failed.state.round == state.round
    assert failed.state.params is state.params


def test_a_transition_changes_neither_its_state_nor_anything_in_it() -> None:
    rules = rules_for(quorum=1, tolerance=0)
    state = answered(rules, started(rules), "attic", "cellar")
    before = pack(state.saved())
    for moment in (at(1.0, "attic", "cellar"), at(1e6, "attic", "cellar", "garden")):
        due_transition(rules, state, moment)
        open_round(rules, state, 9, moment)
        sleep(rules, state, moment)
    assert pack(state.saved()) == before
    with pytest.raises(FrozenInstanceError):
        state.round = 5  # type: ignore[misc]  # this is what is tested


def test_a_clock_set_back_leaves_no_time_too_far_ahead() -> None:
    rules = rules_for(wake_s=60)
    state = replace(started(rules, at(1000.0)), wake_at=1060.0)
    assert (with_clock(rules, state, 10.0).opened_at, with_clock(rules, state, 10.0).wake_at) == (
        10.0,
        70.0,
    )
    assert with_clock(rules, state, 1000.0) is state


def test_every_phase_is_restored_as_it_was_saved() -> None:
    rules = rules_for()
    collecting = answered(rules, started(rules), "attic")
    sleeping = sleep(rules, collecting, at()).state
    for state in (WAITING, collecting, sleeping):
        restored = restore_round_state(unpack(pack(state.saved())))
        assert restored.phase is state.phase
        assert pack(restored.saved()) == pack(state.saved())


@pytest.mark.parametrize(
    "change",
    [
        {"phase": Phase.SLEEPING},
        {"request": None},
        {"params": None},
        {"phase": Phase.WAITING_FOR_CLUSTERS},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_phase_that_contradicts_the_rest_of_the_state_cannot_be_built(
    change: dict[str, Any],
) -> None:
    state = started(rules_for())
    with pytest.raises(ValueError, match="a model that is"):
        replace(state, **change)
