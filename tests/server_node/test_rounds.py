"""Rounds: which clients are asked, how long a round waits, which answers count, and when a model sleeps."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds import simulation as federations
from shoal.algorithms.rounds.policies import Policy
from shoal.errors import MessageRejected
from shoal.protocol.round_request import round_request_of
from tests.server_node.rounds_harness import HEAPS, RoundsHarness, contract_with, rows_of

SITES = {"attic": rows_of(1), "cellar": rows_of(2), "garden": rows_of(3)}
SHIFTED = HEAPS + 0.15


def run_rounds(harness: RoundsHarness, sites: dict[str, NDArray[np.float64]], most: int = 100) -> int:
    """Every client asked answers until the model sleeps; how many rounds that took."""
    for number in range(most):
        if harness.model.sleeping:
            return number
        for client, rows in sites.items():
            if harness.is_asked(client):
                harness.answer(client, rows)
        harness.tick()
    raise AssertionError("it never came to rest")


# Without clients, without answers.


def test_a_federation_without_clients_reopens_its_round_at_each_deadline() -> None:
    harness = RoundsHarness(contract_with(deadline_s=10))
    assert harness.tick(0.0) is not None
    assert harness.tick(9.9) is None
    for n in range(1, 4):
        again = harness.tick(10.0 * n)
        assert again is not None
        assert again.round_request is not None
        assert again.round_request["deadline"] == 10.0 * n + 10
    versions = [snapshot.version for snapshot in harness.published]
    assert versions == [1, 2, 3, 4]
    assert not harness.model.pending
    assert (
        harness.model.status().waiting_for == "Clients have been asked for answers; the first round has not closed yet."
    )
    assert harness.model.status().rounds is not None


def test_a_round_without_answers_is_reopened_with_the_same_parameters() -> None:
    harness = RoundsHarness(contract_with())
    harness.tick(0.0)
    harness.answer("attic", SITES["attic"])
    opened = harness.tick(1.0)
    assert opened is not None
    again = harness.tick(11.0)
    assert again is not None
    assert (again.round, again.version) == (opened.round, opened.version + 1)
    assert np.array_equal(again.arrays["centre"], opened.arrays["centre"])


def test_an_answer_from_too_few_rows_is_rejected() -> None:
    harness = RoundsHarness(contract_with(rows_min=5))
    harness.tick(0.0)
    with pytest.raises(MessageRejected, match="fewer than 5 rows"):
        harness.answer("attic", SITES["attic"][:4])


# Closing.


def test_a_round_closes_with_its_quorum_and_not_before() -> None:
    harness = RoundsHarness(contract_with(quorum=0.6))
    harness.tick(0.0)
    run_rounds_once(harness, list(SITES))
    harness.answer("attic", SITES["attic"])
    assert harness.tick(1.0) is None
    harness.answer("garden", SITES["garden"])
    closed = harness.tick(1.0)
    assert closed is not None
    assert closed.round == 3


def run_rounds_once(harness: RoundsHarness, clients: list[str]) -> None:
    for client in clients:
        harness.answer(client, SITES[client])
    harness.tick()


def test_a_round_closes_at_the_deadline_with_the_answers_received() -> None:
    harness = RoundsHarness(contract_with(deadline_s=10))
    harness.tick(0.0)
    run_rounds_once(harness, list(SITES))
    harness.answer("attic", SITES["attic"])
    assert harness.tick(9.0) is None
    closed = harness.tick(10.0)
    assert closed is not None
    assert closed.round == 3
    alone = rounds_algorithm("kmeans").answer(harness.published[1].arrays, SITES["attic"])
    wanted = rounds_algorithm("kmeans").combine(harness.published[1].arrays, [alone])
    assert np.array_equal(closed.arrays["centre"], wanted["centre"])


def test_the_first_round_waits_for_the_configured_number_of_clients() -> None:
    harness = RoundsHarness(contract_with(), pool_clients=2)
    harness.tick(0.0)
    harness.answer("attic", SITES["attic"])
    assert harness.tick(1.0) is None
    harness.answer("cellar", SITES["cellar"])
    assert harness.tick(1.0) is not None


def test_a_clock_set_back_does_not_lengthen_a_round() -> None:
    harness = RoundsHarness(contract_with(deadline_s=10))
    harness.tick(1000.0)
    run_rounds_once(harness, list(SITES))
    harness.answer("attic", SITES["attic"])
    assert harness.tick(0.0) is None
    assert harness.tick(10.0) is not None


def test_a_clock_set_back_does_not_lengthen_a_sleep() -> None:
    harness = RoundsHarness(contract_with(wake_s=60), pool_clients=3)
    harness.tick(1000.0)
    run_rounds(harness, SITES)
    assert harness.tick(0.0) is None
    assert harness.tick(60.0) is not None


def test_a_quorum_asks_for_no_more_than_its_share() -> None:
    # 0.55 times 20 is a little more than 11 to a computer.
    harness = RoundsHarness(contract_with(quorum=0.55, tolerance=0), pool_clients=20)
    harness.tick(0.0)
    clients = [f"client-{n}" for n in range(20)]
    for answering in (20, 11):
        for n, client in enumerate(clients[:answering]):
            harness.answer(client, rows_of(n))
        assert harness.tick() is not None


def test_the_order_in_which_answers_come_changes_nothing() -> None:
    ends = []
    for order in (list(SITES), list(SITES)[::-1]):
        harness = RoundsHarness(contract_with("fcm"), pool_clients=3)
        harness.tick(0.0)
        run_rounds(harness, {client: SITES[client] for client in order})
        ends.append(harness.newest)
    assert ends[0].version == ends[1].version
    assert all(np.array_equal(ends[0].arrays[name], ends[1].arrays[name]) for name in ends[0].arrays)


@pytest.mark.parametrize("between", ["fresh", "decay", "cache"])
@pytest.mark.parametrize("algorithm", rounds_names())
def test_a_served_model_has_the_numbers_of_the_same_rounds_in_memory(algorithm: str, between: str) -> None:
    if between == "decay" and not rounds_algorithm(algorithm).additive:
        between = "cache"
    options = {"clusters": 3} if "clusters" in rounds_algorithm(algorithm).options else {}
    contract = contract_with(algorithm, options, between=between, rounds_max=12, tolerance=1e-6)
    harness = RoundsHarness(contract, pool_clients=3)
    first = harness.tick(0.0)
    assert first is not None
    closed = run_rounds(harness, SITES)
    policy = Policy(between, 0.5, 8, 3)
    offline = federations.run_rounds(
        rounds_algorithm(algorithm), first.arrays, list(SITES.values()), rounds_max=12, tolerance=1e-6, policy=policy
    )
    assert len(offline.shifts) == closed
    assert all(np.array_equal(offline.params[name], harness.newest.arrays[name]) for name in offline.params)
    rounds = harness.model.status().rounds
    assert rounds is not None
    assert (rounds.phase, rounds.counted, rounds.shift) == ("sleeping", 3, offline.shifts[-1])


# Answers that are late, repeated, missing, new, or not to be believed.


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


def test_late_answers_count_for_late_rounds() -> None:
    harness = RoundsHarness(contract_with(between="decay", quorum=0.5, late_rounds=2, tolerance=0))
    first = harness.tick(0.0)
    run_rounds_once(harness, list(SITES))
    assert harness.newest.round == 2
    opened, rounds = harness.newest, harness.model.status().rounds
    assert rounds is not None
    assert rounds.expected == len(SITES)
    for _ in range(2):
        run_rounds_once(harness, ["attic", "cellar"])
    assert harness.newest.round == 4
    assert harness.answer("garden", SITES["garden"], to=opened)
    assert first is not None
    assert not harness.answer("shed", rows_of(9), to=first)
    assert not harness.answer("garden", SITES["garden"], to=opened)
    counted = {
        name: harness.metrics.registry.get_sample_value("shoal_round_answers_total", {"model": "heaps", "result": name})
        for name in ("in_time", "late", "too_late", "repeated")
    }
    assert counted == {"in_time": len(SITES) + 4, "late": 1, "too_late": 1, "repeated": 1}
    assert harness.model.status().rounds is not None
    run_rounds_once(harness, ["attic", "cellar"])
    rounds = harness.model.status().rounds
    assert rounds is not None
    assert (rounds.counted, rounds.expected) == (3, 3), "a client that missed three rounds is not waited for"


def test_an_answer_to_a_round_that_was_never_opened_is_rejected() -> None:
    harness = RoundsHarness(contract_with())
    with pytest.raises(AssertionError):
        harness.model.take_snapshot([], {}, 0.0)
    harness.tick(0.0)
    with pytest.raises(MessageRejected, match="never opened"):
        harness.answer("attic", SITES["attic"], round=2)


def test_an_invalid_answer_is_rejected_and_the_round_continues() -> None:
    harness = RoundsHarness(contract_with(), pool_clients=2)
    harness.tick(0.0)
    honest = harness.make_answer("attic", SITES["attic"]).arrays
    invalid = {
        "arrays": {**honest, "count": -honest["count"]},
        "bounds": {**honest, "sum": honest["sum"] * 1e6},
    }
    for reason, arrays in invalid.items():
        with pytest.raises(MessageRejected) as rejected:
            harness.answer("faulty", SITES["attic"], arrays=arrays)
        assert rejected.value.reason == reason
    short = {**honest, "count": honest["count"][:2], "sum": honest["sum"][:2]}
    with pytest.raises(MessageRejected, match="number of centres"):
        harness.answer("faulty", SITES["attic"], arrays=short)
    run_rounds_once(harness, ["attic", "garden"])
    assert harness.newest.round == 2
    assert harness.newest.clients == 2


@pytest.mark.parametrize("algorithm", ["kmeans", "kfed"])
def test_answers_that_cannot_be_combined_fail_the_round_and_not_the_server(
    algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness = RoundsHarness(contract_with(algorithm), pool_clients=2)
    first = harness.tick(0.0)
    assert first is not None
    arrays = dict(harness.make_answer("attic", SITES["attic"]).arrays)
    # The sum of two such masses overflows; each centre alone is within the bounds.
    mass = np.full(3, 1.7e308)
    huge = {**arrays, "count": mass} | ({"sum": np.full((3, 2), 0.5) * mass[:, None]} if "sum" in arrays else {})
    with caplog.at_level(logging.WARNING, "shoal"), np.errstate(over="ignore", invalid="ignore"):
        for client in ("attic", "cellar"):
            assert harness.answer(client, SITES["attic"], arrays=huge)
        again = harness.tick(1.0)
    assert again is not None
    assert "round_failed" in caplog.text
    assert (again.round, again.version) == (first.round, first.version + 1)
    assert np.array_equal(again.arrays["centre"], first.arrays["centre"])
    assert not harness.model.pending, "they are not tried again"


def test_an_absent_client_is_not_waited_for_after_three_rounds_and_may_come_back() -> None:
    harness = RoundsHarness(contract_with(deadline_s=10, tolerance=0))
    harness.tick(0.0)
    run_rounds_once(harness, list(SITES))
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
    run_rounds_once(harness, list(SITES))
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
    run_rounds_once(harness, list(SITES))
    harness.answer("shed", rows_of(7))
    assert harness.tick() is None, "the others are still waited for"
    run_rounds_once(harness, list(SITES))
    assert harness.newest.clients == 4


# Which clients a request asks.


def test_each_request_asks_another_sample_of_about_the_fraction() -> None:
    harness = RoundsHarness(contract_with(fraction=0.3))
    clients = [f"client-{n}" for n in range(400)]
    asked_clients = []
    for n in range(5):
        harness.tick(10.0 * n)
        asked_clients.append({client for client in clients if harness.is_asked(client)})
    assert all(0.2 < len(some) / 400 < 0.4 for some in asked_clients)
    assert len(set(map(frozenset, asked_clients))) == 5


def test_an_empty_sample_of_known_clients_is_drawn_again() -> None:
    harness = RoundsHarness(contract_with(fraction=0.05, tolerance=0, deadline_s=10))
    harness.tick(0.0)
    harness.answer("attic", SITES["attic"])
    for n in range(1, 20):
        harness.tick(10.0 * n)
        assert harness.is_asked("attic"), "it is the only known client"
        harness.answer("attic", rows_of(50 + n))


def test_rounds_with_a_sample_of_clients_find_the_clusters_of_all() -> None:
    sites = {f"client-{n}": rows_of(n, 40) for n in range(20)}
    harness = RoundsHarness(contract_with(fraction=0.3, between="decay", rounds_max=40, tolerance=0))
    harness.tick(0.0)
    run_rounds(harness, sites)
    found = harness.newest.arrays["centre"]
    apart = np.abs(found[:, None] - HEAPS[None]).sum(axis=2).min(axis=0)
    assert (apart < 0.05).all()


# Sleeping and waking.


def test_a_converged_model_sleeps_and_wakes_for_one_round() -> None:
    harness = RoundsHarness(contract_with(wake_s=60), pool_clients=3)
    harness.tick(0.0)
    run_rounds(harness, SITES)
    sleeping = harness.newest
    assert sleeping.round_request is None
    assert harness.tick(59.0) is None
    probe = harness.tick(60.0)
    assert probe is not None
    assert probe.round_request is not None
    assert probe.round == (sleeping.round or 0) + 1
    assert run_rounds(harness, SITES) == 1
    assert harness.tick(119.0) is None


def test_a_model_stays_awake_when_its_rows_have_moved(caplog: pytest.LogCaptureFixture) -> None:
    harness = RoundsHarness(contract_with(wake_s=60), pool_clients=3)
    harness.tick(0.0)
    run_rounds(harness, SITES)
    with caplog.at_level(logging.INFO, "shoal"):
        harness.tick(60.0)
        moved = {client: rows_of(seed, heaps=SHIFTED) for seed, client in enumerate(SITES)}
        assert run_rounds(harness, moved) > 1
    assert [record.getMessage() for record in caplog.records].count("drift_detected") == 1
    together = np.concatenate(list(moved.values()))
    nearest = rounds_algorithm("kmeans").predict(harness.newest.arrays, together)
    for k in range(3):
        assert np.allclose(harness.newest.arrays["centre"][k], together[nearest == k].mean(axis=0))


def test_a_model_is_woken_on_demand_and_not_before_it_sleeps() -> None:
    harness = RoundsHarness(contract_with(wake_s=3600), pool_clients=3)
    harness.model.wake()
    harness.tick(0.0)
    run_rounds(harness, SITES)
    assert harness.tick(1.0) is None
    harness.model.wake()
    harness.restart()
    woken = harness.tick(2.0)
    assert woken is not None
    assert woken.round_request is not None


def test_a_shift_of_zero_is_convergence_whatever_the_tolerance() -> None:
    harness = RoundsHarness(contract_with(rounds_max=50, tolerance=0), pool_clients=3)
    harness.tick(0.0)
    assert run_rounds(harness, SITES) < 50
    rounds = harness.model.status().rounds
    assert rounds is not None
    assert rounds.shift == 0.0


def test_a_model_that_never_converges_sleeps_after_rounds_max() -> None:
    harness = RoundsHarness(contract_with(rounds_max=4, tolerance=0), pool_clients=3)
    harness.tick(0.0)
    for number in range(4):
        assert not harness.model.sleeping
        for client in SITES:
            harness.answer(client, rows_of(number * 10 + len(client)))
        harness.tick()
    assert harness.model.sleeping


def test_a_one_shot_algorithm_sleeps_after_one_round() -> None:
    harness = RoundsHarness(contract_with("kfed", {"clusters": 3}), pool_clients=3)
    harness.tick(0.0)
    assert run_rounds(harness, SITES) == 1


# Restarts and recovery.


def test_a_restart_at_any_moment_changes_nothing() -> None:
    ends = []
    for restarts in (False, True):
        harness = RoundsHarness(contract_with("fcm", between="decay", wake_s=60), pool_clients=3)
        harness.tick(0.0)
        for now in (0.0, 60.0):
            harness.tick(now)
            for _ in range(50):
                for client, rows in SITES.items():
                    if harness.is_asked(client):
                        harness.answer(client, rows)
                    if restarts:
                        harness.restart()
                harness.tick()
                if restarts:
                    harness.restart()
        ends.append(harness.published)
    assert [(s.version, s.round, s.round_request) for s in ends[0]] == [
        (s.version, s.round, s.round_request) for s in ends[1]
    ]
    assert all(np.array_equal(one.arrays["centre"], two.arrays["centre"]) for one, two in zip(*ends, strict=True))


def test_a_model_without_its_checkpoint_continues_with_its_newest_snapshot() -> None:
    before = RoundsHarness(contract_with(between="decay", tolerance=0), pool_clients=3)
    before.tick(1000.0)
    for _ in range(3):
        run_rounds_once(before, list(SITES))
    published = before.newest
    after = RoundsHarness(before.contract, pool_clients=3)
    after.model.rebuild(published)
    assert after.model.snapshot is published
    assert after.tick(1005.0) is None, "the request is in the log already"
    after.published.append(published)
    assert after.answer("attic", SITES["attic"], to=published)
    closed = after.tick(1005.0)
    assert closed is not None
    assert closed.round == (published.round or 0) + 1
    assert closed.version == published.version + 1
    assert np.allclose(closed.arrays["centre"], published.arrays["centre"], atol=0.05)


def test_a_sleeping_model_that_lost_its_checkpoint_wakes() -> None:
    before = RoundsHarness(contract_with(), pool_clients=3)
    before.tick(0.0)
    run_rounds(before, SITES)
    after = RoundsHarness(before.contract)
    after.model.rebuild(before.newest)
    woken = after.tick(1.0)
    assert woken is not None
    assert woken.round_request is not None
    assert np.array_equal(woken.arrays["centre"], before.newest.arrays["centre"])


def test_the_status_has_the_progress_of_the_rounds() -> None:
    harness = RoundsHarness(contract_with(), pool_clients=3)
    assert harness.model.status().snapshot is None
    harness.tick(0.0)
    rounds = harness.model.status().rounds
    assert rounds is not None
    assert (rounds.round, rounds.phase, rounds.counted, rounds.received) == (1, "collecting", 0, 0)
    assert math.isinf(rounds.shift)
    harness.answer("attic", SITES["attic"])
    rounds = harness.model.status().rounds
    assert rounds is not None
    assert rounds.received == 1
    assert round_request_of(harness.newest) is not None


def test_a_closed_round_sets_its_metrics() -> None:
    harness = RoundsHarness(contract_with(), pool_clients=3)
    harness.tick(0.0)
    harness.now = 2.0
    run_rounds_once(harness, list(SITES))
    value = harness.metrics.registry.get_sample_value
    assert value("shoal_round_number", {"model": "heaps"}) == 1
    assert value("shoal_round_counted_answers", {"model": "heaps"}) == 3
    assert (value("shoal_round_shift", {"model": "heaps"}) or 0) > 0
    assert value("shoal_round_duration_seconds_sum", {"algorithm": "kmeans"}) == 2.0
