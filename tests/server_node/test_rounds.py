"""Rounds: which clients are asked, how long a round waits, and what closes it."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds.policies import Policy
from shoal.errors import MessageRejected
from shoal.server_node.models.round_transitions import UNANSWERED_S
from shoal.simulation import rounds as federations
from tests.server_node.rounds_harness import (
    HEAPS,
    SITES,
    RoundsHarness,
    answer_all,
    contract_with,
    rows_of,
    run_rounds,
)

# Without clients, without answers.


def test_a_federation_without_clients_reopens_its_round_once_an_hour() -> None:
    harness = RoundsHarness(contract_with(deadline_s=10))
    assert harness.tick(0.0) is not None
    opened_at = 10.0
    for open_s in (UNANSWERED_S, UNANSWERED_S):
        assert harness.tick(opened_at - 0.1) is None
        again = harness.tick(opened_at)
        assert again is not None
        assert again.round_request is not None
        assert again.round_request["deadline"] == opened_at + open_s
        opened_at += open_s
    versions = [snapshot.version for snapshot in harness.published]
    assert versions == [1, 2, 3]
    assert not harness.model.pending
    assert "first round has not closed" in harness.model.status().waiting_for
    assert harness.model.status().rounds is not None


@pytest.mark.parametrize(("fraction", "most"), [(1.0, 4), (0.5, 125)])
def test_requests_that_no_client_answers_are_few(fraction: float, most: int) -> None:
    """In two hours; at the deadline of 10 s there would be 720, each with all parameters."""
    harness = RoundsHarness(contract_with(deadline_s=10, wake_s=60, fraction=fraction))
    for second in range(0, 7200, 10):
        harness.tick(float(second))
    few = len(harness.published)
    assert most / 2 < few < most
    harness.restart()
    harness.tick(7200.0)
    assert len(harness.published) <= few + 1, "nor after a restart"


def test_a_client_that_comes_late_answers_at_once_and_is_waited_for_again() -> None:
    harness = RoundsHarness(contract_with(deadline_s=10, tolerance=0), pool_clients=2)
    harness.tick(0.0)
    for second in range(10, 1000, 10):
        harness.tick(float(second))
    opened = harness.newest
    assert opened.round_request is not None
    assert opened.round_request["deadline"] > 1100, "the request of before is open"
    harness.answer("attic", SITES["attic"])
    assert harness.tick(1000.0) is None, "it waits for the second client"
    assert harness.tick(1009.0) is None
    assert harness.tick(1010.0) is not None, "as long as ever, and no longer"
    assert harness.newest.round == opened.round + 1
    assert harness.newest.round_request is not None
    assert harness.newest.round_request["deadline"] == 1020


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
    answer_all(harness, list(SITES))
    harness.answer("attic", SITES["attic"])
    assert harness.tick(1.0) is None
    harness.answer("garden", SITES["garden"])
    closed = harness.tick(1.0)
    assert closed is not None
    assert closed.round == 3


def test_a_round_closes_at_the_deadline_with_the_answers_received() -> None:
    harness = RoundsHarness(contract_with(deadline_s=10))
    harness.tick(0.0)
    answer_all(harness, list(SITES))
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
    answer_all(harness, list(SITES))
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
    assert all(
        np.array_equal(ends[0].arrays[name], ends[1].arrays[name]) for name in ends[0].arrays
    )


@pytest.mark.parametrize("between", ["fresh", "decay", "cache"])
@pytest.mark.parametrize("algorithm", rounds_names())
def test_a_served_model_has_the_numbers_of_the_same_rounds_in_memory(
    algorithm: str, between: str
) -> None:
    if between == "decay" and not rounds_algorithm(algorithm).additive:
        between = "cache"
    options = {"clusters": 3} if rounds_algorithm(algorithm).takes("clusters") else {}
    contract = contract_with(algorithm, options, between=between, rounds_max=12, tolerance=1e-6)
    harness = RoundsHarness(contract, pool_clients=3)
    first = harness.tick(0.0)
    assert first is not None
    closed = run_rounds(harness, SITES)
    policy = Policy(between, 0.5, 8, 3)
    offline = federations.run_rounds(
        rounds_algorithm(algorithm),
        first.arrays,
        list(SITES.values()),
        rounds_max=12,
        tolerance=1e-6,
        policy=policy,
    )
    assert len(offline.shifts) == closed
    assert all(
        np.array_equal(offline.params[name], harness.newest.arrays[name]) for name in offline.params
    )
    rounds = harness.model.status().rounds
    assert rounds is not None
    assert (rounds.phase, rounds.counted, rounds.shift) == ("sleeping", 3, offline.shifts[-1])


# Which clients a request asks.


def test_each_request_asks_another_sample_of_about_the_fraction() -> None:
    harness = RoundsHarness(contract_with(fraction=0.3))
    clients = [f"client-{n}" for n in range(400)]
    asked_clients = []
    for opened_at in (0.0, 10.0, 30.0, 70.0, 130.0):
        harness.tick(opened_at)
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
    harness = RoundsHarness(
        contract_with(fraction=0.3, between="decay", rounds_max=40, tolerance=0)
    )
    harness.tick(0.0)
    run_rounds(harness, sites)
    found = harness.newest.arrays["centre"]
    apart = np.abs(found[:, None] - HEAPS[None]).sum(axis=2).min(axis=0)
    assert (apart < 0.05).all()
