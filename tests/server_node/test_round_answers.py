"""Answers that are late, repeated, missing, invalid, or of new clients."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import Params, Stats
from shoal.config import resolved
from shoal.errors import InvalidData, MessageRejected
from shoal.protocol.validation import Validator
from tests.server_node.rounds_harness import (
    SITES,
    RoundsHarness,
    answer_all,
    contract_with,
    rows_of,
)


def test_a_repeated_answer_counts_once() -> None:
    ends = []
    for repeats in (1, 3):
        harness = RoundsHarness(contract_with(between="decay"), pool_clients=3)
        harness.tick(0.0)
        for _ in range(2):
            for client, rows in SITES.items():
                answer = harness.make_answer(client, rows)
                news = [harness.model.process(answer, 0.0).new for _ in range(repeats)]
                assert news == [True] + [False] * (repeats - 1)
            harness.tick()
        ends.append(harness.newest.arrays["centre"])
    assert np.array_equal(ends[0], ends[1])


def test_a_second_answer_to_the_same_round_does_not_count() -> None:
    harness = RoundsHarness(contract_with(between="decay"), pool_clients=3)
    harness.tick(0.0)
    assert harness.answer("attic", SITES["attic"])
    assert not harness.answer("attic", SITES["garden"])


def test_who_looks_at_a_model_sees_the_answers_that_have_arrived_and_changes_nothing() -> None:
    harness = RoundsHarness(contract_with(), pool_clients=3)
    harness.tick(0.0)
    assert not harness.model.pending
    for place, client in enumerate(("attic", "cellar"), start=1):
        harness.answer(client, SITES[client])
        before = {name: id(value) for name, value in vars(harness.model).items()}
        shown = harness.model.status().rounds
        assert shown is not None
        assert shown.received == place
        assert harness.model.pending
        assert (harness.model.sleeping, harness.model.idle) == (False, False)
        assert harness.model.params is not None
        assert {name: id(value) for name, value in vars(harness.model).items()} == before


def test_late_answers_count_for_late_rounds() -> None:
    harness = RoundsHarness(contract_with(between="decay", quorum=0.5, late_rounds=2, tolerance=0))
    first = harness.tick(0.0)
    answer_all(harness, list(SITES))
    assert harness.newest.round == 2
    opened = harness.newest
    rounds = harness.model.status().rounds
    assert rounds is not None
    assert rounds.expected == len(SITES)
    for _ in range(2):
        answer_all(harness, ["attic", "cellar"])
    assert harness.newest.round == 4
    assert harness.answer("garden", SITES["garden"], to=opened)
    assert first is not None
    assert not harness.answer("shed", rows_of(9), to=first)
    assert not harness.answer("garden", SITES["garden"], to=opened)
    counted = {
        name: harness.metrics.registry.get_sample_value(
            "shoal_round_answers_total", {"model": "heaps", "result": name}
        )
        for name in ("in_time", "late", "too_late", "repeated")
    }
    assert counted == {"in_time": len(SITES) + 4, "late": 1, "too_late": 1, "repeated": 1}
    assert harness.model.status().rounds is not None
    answer_all(harness, ["attic", "cellar"])
    rounds = harness.model.status().rounds
    assert rounds is not None
    assert (rounds.counted, rounds.expected) == (3, 3), (
        "a client that missed three rounds is not waited for"
    )


def test_an_answer_to_a_round_that_was_never_opened_is_rejected() -> None:
    harness = RoundsHarness(contract_with())
    with pytest.raises(AssertionError):
        harness.model.take_snapshot({}, {}, 0.0)
    harness.tick(0.0)
    with pytest.raises(MessageRejected, match="never opened"):
        harness.answer("attic", SITES["attic"], round=2)


def test_an_invalid_answer_is_rejected_and_the_round_continues() -> None:
    harness = RoundsHarness(contract_with(), pool_clients=2)
    harness.tick(0.0)
    honest = harness.make_answer("attic", SITES["attic"]).arrays
    for arrays in ({**honest, "count": -honest["count"]}, {**honest, "sum": honest["sum"] * 1e6}):
        with pytest.raises(MessageRejected) as rejected:
            harness.answer("faulty", SITES["attic"], arrays=arrays)
        assert rejected.value.reason == "claims"
    short = {**honest, "count": honest["count"][:2], "sum": honest["sum"][:2]}
    with pytest.raises(MessageRejected, match="number of centres"):
        harness.answer("faulty", SITES["attic"], arrays=short)
    answer_all(harness, ["attic", "garden"])
    assert harness.newest.round == 2
    assert harness.newest.clients == 2


@pytest.mark.parametrize("algorithm", ["kmeans", "kfed"])
def test_answers_that_cannot_be_combined_fail_the_round_and_not_the_server(
    algorithm: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(params: Params, answers: Sequence[Stats]) -> Params:
        raise InvalidData("they do not fit together")

    # As with an algorithm that finds nothing wrong with each answer, and then something with all of
    # them.
    monkeypatch.setattr(Validator, "check_answer_combines", lambda self, update, params: params)
    monkeypatch.setattr(
        resolved, "load_algorithm", lambda name: replace(rounds_algorithm(name), combine=fail)
    )
    harness = RoundsHarness(contract_with(algorithm), pool_clients=2)
    first = harness.tick(0.0)
    assert first is not None
    with caplog.at_level(logging.WARNING, "shoal"):
        for client in ("attic", "cellar"):
            assert harness.answer(client, SITES[client])
        again = harness.tick(1.0)
    assert again is not None
    assert "round_failed" in caplog.text
    assert (again.round, again.version) == (first.round, first.version + 1)
    assert np.array_equal(again.arrays["centre"], first.arrays["centre"])
    assert not harness.model.pending, "they are not tried again"


def test_an_absent_client_is_not_waited_for_after_three_rounds_and_may_come_back() -> None:
    harness = RoundsHarness(contract_with(deadline_s=10, tolerance=0))
    harness.tick(0.0)
    answer_all(harness, list(SITES))
    waits = []
    for n in range(5):
        stay(harness, n)
        waits.append(harness.model.pending)
        harness.tick(harness.now + 10)
    assert waits == [True, True, True, False, False]
    harness.answer("garden", SITES["garden"])
    stay(harness, 6)
    stay(harness, 7)
    assert harness.model.pending, "it is waited for again"


def test_a_round_without_answers_is_missed_by_all() -> None:
    harness = RoundsHarness(contract_with(tolerance=0))
    harness.tick(0.0)
    answer_all(harness, list(SITES))
    for n in range(1, 4):
        harness.tick(10.0 * n)
    harness.answer("shed", rows_of(9))
    assert harness.tick() is not None, "the other clients are not waited for any more"


def test_the_readings_of_a_client_are_those_of_its_newest_answer() -> None:
    harness = RoundsHarness(contract_with(tolerance=0), pool_clients=3)
    harness.tick(0.0)
    for n in (60, 50):
        for client in SITES:
            harness.answer(client, rows_of(len(client) + n, n))
        harness.tick()
    assert [readings for _, _, readings, _ in harness.model.clients.totals()] == [50] * 3
    assert (harness.newest.readings, harness.newest.updates) == (150, 6)


def stay(harness: RoundsHarness, n: int) -> None:
    """All but the garden answer, of other rows each time."""
    harness.answer("attic", rows_of(10 + n))
    harness.answer("cellar", rows_of(20 + n))
    harness.tick()


def test_a_newcomer_counts_from_its_first_answer_on() -> None:
    harness = RoundsHarness(contract_with(tolerance=0))
    harness.tick(0.0)
    answer_all(harness, list(SITES))
    harness.answer("shed", rows_of(7))
    assert harness.tick() is None, "the others are still waited for"
    answer_all(harness, list(SITES))
    assert harness.newest.clients == 4
