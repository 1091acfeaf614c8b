"""When a model in rounds sleeps and wakes, and how it goes on after a restart."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.protocol.messages import round_request_of
from tests.server_node.rounds_harness import (
    HEAPS,
    SITES,
    RoundsHarness,
    answer_all,
    contract_with,
    rows_of,
    run_rounds,
)

SHIFTED = HEAPS + 0.15


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
    assert all(
        np.array_equal(end.arrays["centre"], two.arrays["centre"])
        for end, two in zip(*ends, strict=True)
    )


def test_a_model_without_its_checkpoint_continues_with_its_newest_snapshot() -> None:
    before = RoundsHarness(contract_with(between="decay", tolerance=0), pool_clients=3)
    before.tick(1000.0)
    for _ in range(3):
        answer_all(before, list(SITES))
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
    answer_all(harness, list(SITES))
    value = harness.metrics.registry.get_sample_value
    assert value("shoal_round_number", {"model": "heaps"}) == 1
    assert value("shoal_round_counted_answers", {"model": "heaps"}) == 3
    assert (value("shoal_round_shift", {"model": "heaps"}) or 0) > 0
    assert value("shoal_round_duration_seconds_sum", {"algorithm": "kmeans"}) == 2.0
