"""Epochs of a served model: what was answered to parameters of an earlier one no longer counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.algorithms.tsk.client import epoch, has_conditions
from shoal.errors import MessageRejected
from shoal.protocol.messages import Snapshot
from tests.server_node.rounds_harness import (
    SITES,
    RoundsHarness,
    answer_all,
    contract_with,
    run_rounds,
)

OPTIONS: dict[str, Any] = {"clusters": 2, "condition_rounds": 1, "target": "damp"}
"""the first round standardises, the second finds the conditions, later ones fit consequents"""


def harness_with(**rounds: Any) -> RoundsHarness:
    harness = RoundsHarness(contract_with("tsk", OPTIONS, **rounds))
    harness.tick(0.0)
    return harness


def epochs(harness: RoundsHarness) -> list[int]:
    return [epoch(snapshot.arrays) for snapshot in harness.published]


def test_a_model_comes_to_rest_in_its_last_epoch() -> None:
    harness = harness_with(between="decay")
    run_rounds(harness, SITES)
    assert sorted(set(epochs(harness))) == [0, 1, 2]
    assert harness.model.params is not None
    assert has_conditions(harness.model.params)


@pytest.mark.parametrize("between", ["decay", "cache"])
def test_earlier_answers_do_not_count_in_a_new_epoch(between: str) -> None:
    """One client answers in each round: with what the others answered before, the sums would be of
    all three."""
    harness = harness_with(between=between, quorum=0.1, fraction=1.0)
    for client, rows in SITES.items():
        harness.answer(client, rows)
    harness.tick()
    begun = epoch(harness.newest.arrays)
    assert begun == 1
    harness.answer("attic", SITES["attic"])
    harness.tick()
    params = harness.model.params
    assert params is not None
    mass = params["weight"].sum()
    assert 0 < mass <= len(SITES["attic"]), "the sums of the first round are not among these"


def test_a_late_answer_to_an_earlier_epoch_is_too_late_and_one_of_the_same_epoch_counts() -> None:
    harness = harness_with(between="decay", quorum=0.5, late_rounds=3)
    first = harness.newest
    answer_all(harness, ["attic", "cellar"])
    answer_all(harness, ["attic", "cellar"])
    answer_all(harness, ["attic", "cellar"])
    assert isinstance(first, Snapshot)
    assert not harness.answer("garden", SITES["garden"], first)
    sample = harness.metrics.registry.get_sample_value
    assert sample("shoal_round_answers_total", {"model": "heaps", "result": "too_late"}) == 1
    before = next(
        snapshot
        for snapshot in reversed(harness.published)
        if snapshot.round == (harness.newest.round or 0) - 1
    )
    if epoch(before.arrays) == epoch(harness.newest.arrays):
        assert harness.answer("garden", SITES["garden"], before)


def test_a_restart_between_epochs_changes_nothing() -> None:
    steady = harness_with(between="decay")
    restarted = harness_with(between="decay")
    for number in range(6):
        for harness in (steady, restarted):
            for client, rows in SITES.items():
                if harness.is_asked(client):
                    harness.answer(client, rows)
            if harness is restarted:
                harness.restart()
            harness.tick(float(number))
    assert steady.model.params is not None
    assert restarted.model.params is not None
    assert all(
        np.array_equal(steady.model.params[name], restarted.model.params[name])
        for name in steady.model.params
    )


def test_the_metric_has_the_error_in_the_unit_of_the_target() -> None:
    harness = harness_with(between="fresh")
    run_rounds(harness, SITES)
    assert harness.model.params is not None
    error = harness.metrics.registry.get_sample_value("shoal_prediction_error", {"model": "heaps"})
    assert error == pytest.approx(
        float(np.sqrt(harness.model.params["error"][0]) * harness.model.params["scale"][1])
    )


def test_an_answer_whose_sums_overlap_and_differ_is_rejected() -> None:
    harness = harness_with()
    for _ in range(2):
        answer_all(harness, list(SITES))
    answer = harness.make_answer("attic", SITES["attic"])
    for name in ("total", "gram", "cross", "mass"):
        forged = {**answer.arrays, name: answer.arrays[name] * 0.9}
        with pytest.raises(MessageRejected) as rejected:
            harness.answer("attic", SITES["attic"], arrays=forged)
        assert rejected.value.reason == "claims", name
    assert harness.answer("attic", SITES["attic"])
