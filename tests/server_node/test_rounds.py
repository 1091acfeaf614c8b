"""Rounds: who is called, how long is waited, which answers count, and when a model sleeps."""

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
from tests.server_node.rounds_driving import HEAPS, Driven, contract_with, rows_of

SITES = {"attic": rows_of(1), "cellar": rows_of(2), "garden": rows_of(3)}
SHIFTED = HEAPS + 0.15


def run_rounds(driven: Driven, sites: dict[str, NDArray[np.float64]], most: int = 100) -> int:
    """Everybody answers every call until the model sleeps; how many rounds that took."""
    for number in range(most):
        if driven.model.sleeping:
            return number
        for client, rows in sites.items():
            if driven.asks(client):
                driven.hear(client, rows)
        driven.look()
    raise AssertionError("it never came to rest")


# Nobody, nothing.


def test_a_federation_of_nobody_is_called_again_and_again_and_nothing_breaks() -> None:
    driven = Driven(contract_with(deadline_s=10))
    assert driven.look(0.0) is not None
    assert driven.look(9.9) is None
    for n in range(1, 4):
        again = driven.look(10.0 * n)
        assert again is not None
        assert again.round_request is not None
        assert again.round_request["deadline"] == 10.0 * n + 10
    versions = [snapshot.version for snapshot in driven.said]
    assert versions == [1, 2, 3, 4]
    assert not driven.model.changed
    assert driven.model.status().waiting_for == "Clients have been called; their first answers have not come yet."
    assert driven.model.status().rounds is not None


def test_a_round_that_was_answered_by_some_and_then_by_nobody_is_called_again_with_the_same_parameters() -> None:
    driven = Driven(contract_with())
    driven.look(0.0)
    driven.hear("attic", SITES["attic"])
    called = driven.look(1.0)
    assert called is not None
    again = driven.look(11.0)
    assert again is not None
    assert (again.round, again.version) == (called.round, called.version + 1)
    assert np.array_equal(again.arrays["centre"], called.arrays["centre"])


def test_an_answer_of_no_rows_cannot_be_given() -> None:
    driven = Driven(contract_with(rows_min=5))
    driven.look(0.0)
    with pytest.raises(MessageRejected, match="fewer than 5 rows"):
        driven.hear("attic", SITES["attic"][:4])


# Closing.


def test_a_round_closes_with_its_quorum_and_not_before() -> None:
    driven = Driven(contract_with(quorum=0.6))
    driven.look(0.0)
    run_rounds_once(driven, list(SITES))
    driven.hear("attic", SITES["attic"])
    assert driven.look(1.0) is None
    driven.hear("garden", SITES["garden"])
    closed = driven.look(1.0)
    assert closed is not None
    assert closed.round == 3


def run_rounds_once(driven: Driven, clients: list[str]) -> None:
    for client in clients:
        driven.hear(client, SITES[client])
    driven.look()


def test_a_round_closes_at_the_deadline_with_those_who_answered() -> None:
    driven = Driven(contract_with(deadline_s=10))
    driven.look(0.0)
    run_rounds_once(driven, list(SITES))
    driven.hear("attic", SITES["attic"])
    assert driven.look(9.0) is None
    closed = driven.look(10.0)
    assert closed is not None
    assert closed.round == 3
    alone = rounds_algorithm("kmeans").answer(driven.said[1].arrays, SITES["attic"])
    wanted = rounds_algorithm("kmeans").combine(driven.said[1].arrays, [alone])
    assert np.array_equal(closed.arrays["centre"], wanted["centre"])


def test_the_first_round_waits_for_as_many_clients_as_a_first_clustering_wants() -> None:
    driven = Driven(contract_with(), pool_clients=2)
    driven.look(0.0)
    driven.hear("attic", SITES["attic"])
    assert driven.look(1.0) is None
    driven.hear("cellar", SITES["cellar"])
    assert driven.look(1.0) is not None


def test_a_clock_that_was_set_back_makes_nobody_wait_longer() -> None:
    driven = Driven(contract_with(deadline_s=10))
    driven.look(1000.0)
    run_rounds_once(driven, list(SITES))
    driven.hear("attic", SITES["attic"])
    assert driven.look(0.0) is None
    assert driven.look(10.0) is not None


def test_a_clock_that_was_set_back_lets_no_model_sleep_longer() -> None:
    driven = Driven(contract_with(wake_s=60), pool_clients=3)
    driven.look(1000.0)
    run_rounds(driven, SITES)
    assert driven.look(0.0) is None
    assert driven.look(60.0) is not None


def test_a_quorum_asks_for_no_more_than_its_share() -> None:
    # 0.55 times 20 is a little more than 11 to a computer.
    driven = Driven(contract_with(quorum=0.55, tolerance=0), pool_clients=20)
    driven.look(0.0)
    clients = [f"client-{n}" for n in range(20)]
    for answering in (20, 11):
        for n, client in enumerate(clients[:answering]):
            driven.hear(client, rows_of(n))
        assert driven.look() is not None


def test_the_order_in_which_answers_come_changes_nothing() -> None:
    ends = []
    for order in (list(SITES), list(SITES)[::-1]):
        driven = Driven(contract_with("fcm"), pool_clients=3)
        driven.look(0.0)
        run_rounds(driven, {client: SITES[client] for client in order})
        ends.append(driven.newest)
    assert ends[0].version == ends[1].version
    assert all(np.array_equal(ends[0].arrays[name], ends[1].arrays[name]) for name in ends[0].arrays)


@pytest.mark.parametrize("between", ["fresh", "decay", "cache"])
@pytest.mark.parametrize("algorithm", rounds_names())
def test_the_service_gives_the_numbers_of_the_same_functions_in_memory(algorithm: str, between: str) -> None:
    if between == "decay" and not rounds_algorithm(algorithm).additive:
        between = "cache"
    options = {"clusters": 3} if "clusters" in rounds_algorithm(algorithm).options else {}
    contract = contract_with(algorithm, options, between=between, rounds_max=12, tolerance=1e-6)
    driven = Driven(contract, pool_clients=3)
    first = driven.look(0.0)
    assert first is not None
    rounds = run_rounds(driven, SITES)
    policy = Policy(between, 0.5, 8, 3)
    offline = federations.run_rounds(
        rounds_algorithm(algorithm), first.arrays, list(SITES.values()), rounds_max=12, tolerance=1e-6, policy=policy
    )
    assert len(offline.shifts) == rounds
    assert all(np.array_equal(offline.params[name], driven.newest.arrays[name]) for name in offline.params)
    seen = driven.model.status().rounds
    assert seen is not None
    assert (seen.phase, seen.counted, seen.shift) == ("sleeping", 3, offline.shifts[-1])


# Answers that are late, repeated, missing, new, or not to be believed.


def test_an_answer_heard_twice_counts_once() -> None:
    ends = []
    for repeats in (1, 3):
        driven = Driven(contract_with(between="decay"), pool_clients=3)
        driven.look(0.0)
        for _ in range(2):
            for client, rows in SITES.items():
                answer = driven.reply(client, rows)
                news = [driven.model.hear(answer, 0.0) for _ in range(repeats)]
                assert news == [True] + [False] * (repeats - 1)
            driven.look()
        ends.append(driven.newest.arrays["centre"])
    assert np.array_equal(ends[0], ends[1])


def test_an_answer_given_anew_to_the_same_round_counts_once() -> None:
    driven = Driven(contract_with(between="decay"), pool_clients=3)
    driven.look(0.0)
    assert driven.hear("attic", SITES["attic"])
    assert not driven.hear("attic", SITES["garden"])


def test_late_answers_count_while_they_are_not_too_late() -> None:
    driven = Driven(contract_with(between="decay", quorum=0.5, late_rounds=2, tolerance=0))
    first = driven.look(0.0)
    run_rounds_once(driven, list(SITES))
    assert driven.newest.round == 2
    called, asked = driven.newest, driven.model.status().rounds
    assert asked is not None
    assert asked.expected == len(SITES)
    for _ in range(2):
        run_rounds_once(driven, ["attic", "cellar"])
    assert driven.newest.round == 4
    assert driven.hear("garden", SITES["garden"], to=called)
    assert first is not None
    assert not driven.hear("shed", rows_of(9), to=first)
    assert not driven.hear("garden", SITES["garden"], to=called)
    became = {
        name: driven.metrics.registry.get_sample_value("shoal_round_answers_total", {"model": "heaps", "result": name})
        for name in ("in_time", "late", "too_late", "repeated")
    }
    assert became == {"in_time": len(SITES) + 4, "late": 1, "too_late": 1, "repeated": 1}
    assert driven.model.status().rounds is not None
    run_rounds_once(driven, ["attic", "cellar"])
    seen = driven.model.status().rounds
    assert seen is not None
    assert (seen.counted, seen.expected) == (3, 3), "nobody waits any more for who missed three calls"


def test_an_answer_to_a_round_that_was_never_called_is_refused() -> None:
    driven = Driven(contract_with())
    with pytest.raises(AssertionError):
        driven.model.take_snapshot([], {}, 0.0)
    driven.look(0.0)
    with pytest.raises(MessageRejected, match="never called"):
        driven.hear("attic", SITES["attic"], round=2)


def test_an_answer_that_cannot_be_true_is_set_aside_and_the_round_goes_on() -> None:
    driven = Driven(contract_with(), pool_clients=2)
    driven.look(0.0)
    honest = driven.reply("attic", SITES["attic"]).arrays
    lies = {
        "arrays": {**honest, "count": -honest["count"]},
        "bounds": {**honest, "sum": honest["sum"] * 1e6},
    }
    for reason, arrays in lies.items():
        with pytest.raises(MessageRejected) as rejected:
            driven.hear("liar", SITES["attic"], arrays=arrays)
        assert rejected.value.reason == reason
    short = {**honest, "count": honest["count"][:2], "sum": honest["sum"][:2]}
    with pytest.raises(MessageRejected, match="number of centres"):
        driven.hear("liar", SITES["attic"], arrays=short)
    run_rounds_once(driven, ["attic", "garden"])
    assert driven.newest.round == 2
    assert driven.newest.clients == 2


@pytest.mark.parametrize("algorithm", ["kmeans", "kfed"])
def test_answers_that_are_right_alone_and_wrong_together_end_no_server(
    algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    driven = Driven(contract_with(algorithm), pool_clients=2)
    first = driven.look(0.0)
    assert first is not None
    arrays = dict(driven.reply("attic", SITES["attic"]).arrays)
    # A mass of which two are more than a number can hold; each centre alone lies where rows can be.
    mass = np.full(3, 1.7e308)
    huge = {**arrays, "count": mass} | ({"sum": np.full((3, 2), 0.5) * mass[:, None]} if "sum" in arrays else {})
    with caplog.at_level(logging.WARNING, "shoal"), np.errstate(over="ignore", invalid="ignore"):
        for client in ("attic", "cellar"):
            assert driven.hear(client, SITES["attic"], arrays=huge)
        again = driven.look(1.0)
    assert again is not None
    assert "answers_rejected" in caplog.text
    assert (again.round, again.version) == (first.round, first.version + 1)
    assert np.array_equal(again.arrays["centre"], first.arrays["centre"])
    assert not driven.model.changed, "they are not tried again"


def test_who_has_left_is_not_waited_for_for_ever_and_may_come_back() -> None:
    driven = Driven(contract_with(deadline_s=10, tolerance=0))
    driven.look(0.0)
    run_rounds_once(driven, list(SITES))
    waits = []
    for n in range(5):
        stay(driven, n)
        waits.append(driven.model.changed)
        driven.look(driven.now + 10)
    assert waits == [True, True, True, False, False]
    driven.hear("garden", SITES["garden"])
    stay(driven, 6)
    stay(driven, 7)
    assert driven.model.changed, "it is waited for again"


def test_a_call_that_nobody_answers_is_missed_by_all() -> None:
    driven = Driven(contract_with(tolerance=0))
    driven.look(0.0)
    run_rounds_once(driven, list(SITES))
    for n in range(1, 4):
        driven.look(10.0 * n)
    driven.hear("shed", rows_of(9))
    assert driven.look() is not None, "nobody else is waited for any more"


def test_what_stands_behind_a_client_is_its_newest_answer_and_not_the_sum_of_all() -> None:
    driven = Driven(contract_with(tolerance=0), pool_clients=3)
    driven.look(0.0)
    for n in (60, 50):
        for client in SITES:
            driven.hear(client, rows_of(len(client) + n, n))
        driven.look()
    assert [readings for _, _, readings, _ in driven.model.clients.totals()] == [50] * 3
    assert (driven.newest.readings, driven.newest.updates) == (150, 6)


def stay(driven: Driven, n: int) -> None:
    """All but the garden answer, of other rows each time."""
    driven.hear("attic", rows_of(10 + n))
    driven.hear("cellar", rows_of(20 + n))
    driven.look()


def test_a_newcomer_counts_from_its_first_answer_on() -> None:
    driven = Driven(contract_with(tolerance=0))
    driven.look(0.0)
    run_rounds_once(driven, list(SITES))
    driven.hear("shed", rows_of(7))
    assert driven.look() is None, "the others are still waited for"
    run_rounds_once(driven, list(SITES))
    assert driven.newest.clients == 4


# Whom a call asks.


def test_about_the_fraction_is_called_and_each_time_others() -> None:
    driven = Driven(contract_with(fraction=0.3))
    clients = [f"client-{n}" for n in range(400)]
    called = []
    for n in range(5):
        driven.look(10.0 * n)
        called.append({client for client in clients if driven.asks(client)})
    assert all(0.2 < len(some) / 400 < 0.4 for some in called)
    assert len(set(map(frozenset, called))) == 5


def test_the_lot_is_drawn_again_when_it_falls_on_nobody_who_is_known() -> None:
    driven = Driven(contract_with(fraction=0.05, tolerance=0, deadline_s=10))
    driven.look(0.0)
    driven.hear("attic", SITES["attic"])
    for n in range(1, 20):
        driven.look(10.0 * n)
        assert driven.asks("attic"), "of one client known, this one is called"
        driven.hear("attic", rows_of(50 + n))


def test_a_federation_that_is_called_a_part_at_a_time_finds_what_all_together_find() -> None:
    sites = {f"client-{n}": rows_of(n, 40) for n in range(20)}
    driven = Driven(contract_with(fraction=0.3, between="decay", rounds_max=40, tolerance=0))
    driven.look(0.0)
    run_rounds(driven, sites)
    found = driven.newest.arrays["centre"]
    apart = np.abs(found[:, None] - HEAPS[None]).sum(axis=2).min(axis=0)
    assert (apart < 0.05).all()


# Sleeping and waking.


def test_a_model_that_moves_no_more_sleeps_and_looks_up_in_one_round_now_and_then() -> None:
    driven = Driven(contract_with(wake_s=60), pool_clients=3)
    driven.look(0.0)
    run_rounds(driven, SITES)
    sleeping = driven.newest
    assert sleeping.round_request is None
    assert driven.look(59.0) is None
    probe = driven.look(60.0)
    assert probe is not None
    assert probe.round_request is not None
    assert probe.round == (sleeping.round or 0) + 1
    assert run_rounds(driven, SITES) == 1
    assert driven.look(119.0) is None


def test_a_model_wakes_for_good_when_its_rows_have_moved(caplog: pytest.LogCaptureFixture) -> None:
    driven = Driven(contract_with(wake_s=60), pool_clients=3)
    driven.look(0.0)
    run_rounds(driven, SITES)
    with caplog.at_level(logging.INFO, "shoal"):
        driven.look(60.0)
        moved = {client: rows_of(seed, heaps=SHIFTED) for seed, client in enumerate(SITES)}
        assert run_rounds(driven, moved) > 1
    assert [record.getMessage() for record in caplog.records].count("drift_found") == 1
    together = np.concatenate(list(moved.values()))
    nearest = rounds_algorithm("kmeans").predict(driven.newest.arrays, together)
    for k in range(3):
        assert np.allclose(driven.newest.arrays["centre"][k], together[nearest == k].mean(axis=0))


def test_a_model_is_woken_on_demand_and_not_before_it_sleeps() -> None:
    driven = Driven(contract_with(wake_s=3600), pool_clients=3)
    driven.model.wake()
    driven.look(0.0)
    run_rounds(driven, SITES)
    assert driven.look(1.0) is None
    driven.model.wake()
    driven.restart()
    woken = driven.look(2.0)
    assert woken is not None
    assert woken.round_request is not None


def test_a_model_that_does_not_move_at_all_sleeps_whatever_the_tolerance() -> None:
    driven = Driven(contract_with(rounds_max=50, tolerance=0), pool_clients=3)
    driven.look(0.0)
    assert run_rounds(driven, SITES) < 50
    seen = driven.model.status().rounds
    assert seen is not None
    assert seen.shift == 0.0


def test_a_model_that_never_comes_to_rest_sleeps_after_its_most_rounds() -> None:
    driven = Driven(contract_with(rounds_max=4, tolerance=0), pool_clients=3)
    driven.look(0.0)
    for number in range(4):
        assert not driven.model.sleeping
        for client in SITES:
            driven.hear(client, rows_of(number * 10 + len(client)))
        driven.look()
    assert driven.model.sleeping


def test_a_one_shot_algorithm_sleeps_after_one_round() -> None:
    driven = Driven(contract_with("kfed", {"clusters": 3}), pool_clients=3)
    driven.look(0.0)
    assert run_rounds(driven, SITES) == 1


# Memory.


def test_a_restart_at_any_moment_changes_nothing() -> None:
    ends = []
    for restarts in (False, True):
        driven = Driven(contract_with("fcm", between="decay", wake_s=60), pool_clients=3)
        driven.look(0.0)
        for now in (0.0, 60.0):
            driven.look(now)
            for _ in range(50):
                for client, rows in SITES.items():
                    if driven.asks(client):
                        driven.hear(client, rows)
                    if restarts:
                        driven.restart()
                driven.look()
                if restarts:
                    driven.restart()
        ends.append(driven.said)
    assert [(s.version, s.round, s.round_request) for s in ends[0]] == [
        (s.version, s.round, s.round_request) for s in ends[1]
    ]
    assert all(np.array_equal(one.arrays["centre"], two.arrays["centre"]) for one, two in zip(*ends, strict=True))


def test_a_model_whose_memory_is_lost_goes_on_with_what_was_published() -> None:
    before = Driven(contract_with(between="decay", tolerance=0), pool_clients=3)
    before.look(1000.0)
    for _ in range(3):
        run_rounds_once(before, list(SITES))
    published = before.newest
    after = Driven(before.contract, pool_clients=3)
    after.model.rebuild(published)
    assert after.model.snapshot is published
    assert after.look(1005.0) is None, "the call stands in the log; it need not be made again"
    after.said.append(published)
    assert after.hear("attic", SITES["attic"], to=published)
    closed = after.look(1005.0)
    assert closed is not None
    assert closed.round == (published.round or 0) + 1
    assert closed.version == published.version + 1
    assert np.allclose(closed.arrays["centre"], published.arrays["centre"], atol=0.05)


def test_a_model_that_was_asleep_when_its_memory_was_lost_wakes() -> None:
    before = Driven(contract_with(), pool_clients=3)
    before.look(0.0)
    run_rounds(before, SITES)
    after = Driven(before.contract)
    after.model.rebuild(before.newest)
    woken = after.look(1.0)
    assert woken is not None
    assert woken.round_request is not None
    assert np.array_equal(woken.arrays["centre"], before.newest.arrays["centre"])


def test_what_people_may_see_says_how_far_it_is() -> None:
    driven = Driven(contract_with(), pool_clients=3)
    assert driven.model.status().snapshot is None
    driven.look(0.0)
    seen = driven.model.status().rounds
    assert seen is not None
    assert (seen.round, seen.phase, seen.counted, seen.received) == (1, "collecting", 0, 0)
    assert math.isinf(seen.shift)
    driven.hear("attic", SITES["attic"])
    seen = driven.model.status().rounds
    assert seen is not None
    assert seen.received == 1
    assert round_request_of(driven.newest) is not None


def test_what_a_round_was_is_counted() -> None:
    driven = Driven(contract_with(), pool_clients=3)
    driven.look(0.0)
    driven.now = 2.0
    run_rounds_once(driven, list(SITES))
    value = driven.metrics.registry.get_sample_value
    assert value("shoal_round_number", {"model": "heaps"}) == 1
    assert value("shoal_round_counted_answers", {"model": "heaps"}) == 3
    assert (value("shoal_round_shift", {"model": "heaps"}) or 0) > 0
    assert value("shoal_round_duration_seconds_sum", {"algorithm": "kmeans"}) == 2.0
