"""Late, repeated and missing answers between rounds, and a stream that needs earlier answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.rounds.iteration import converged
from shoal.algorithms.rounds.policies import Answer, Policy, PolicyState, select_answers
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.matching import matched_distance
from shoal.simulation.rounds import bounding_box, kfed_hint, run_rounds


def answer(client: str, version: int, value: float) -> Answer:
    return Answer(client, version, {"sum": np.array([value])})


def sums(counted: list[Mapping[str, Floats]]) -> list[float]:
    return [float(stats["sum"][0]) for stats in counted]


def test_no_answers_leave_nothing_to_combine() -> None:
    for kind in ("fresh", "decay", "cache"):
        assert select_answers(Policy(kind), PolicyState(), [], 0) == (PolicyState(), [])


def test_decay_halves_earlier_and_late_answers() -> None:
    policy = Policy("decay", decay=0.5, late_rounds=3)
    state, counted = select_answers(policy, PolicyState(), [answer("a", 0, 8.0)], 0)
    assert sums(counted) == [8.0]
    state, counted = select_answers(policy, state, [answer("a", 1, 8.0), answer("b", 0, 4.0)], 1)
    assert sums(counted) == [4.0 + 8.0 + 2.0]
    state, counted = select_answers(policy, state, [], 2)
    assert sums(counted) == [7.0]


def test_a_cache_keeps_the_last_answer_of_each_client_until_it_is_too_old() -> None:
    policy = Policy("cache", cache_rounds=2)
    state, counted = select_answers(
        policy, PolicyState(), [answer("b", 0, 2.0), answer("a", 0, 1.0)], 0
    )
    assert sums(counted) == [1.0, 2.0]
    state, counted = select_answers(policy, state, [answer("a", 1, 3.0)], 1)
    assert sums(counted) == [3.0, 2.0]
    state, counted = select_answers(policy, state, [], 3)
    assert sums(counted) == [3.0]
    assert sums(select_answers(policy, state, [], 4)[1]) == []


@pytest.mark.parametrize("kind", ["fresh", "decay", "cache"])
def test_a_repeated_or_older_answer_does_not_count(kind: str) -> None:
    state, once = select_answers(Policy(kind), PolicyState(), [answer("a", 2, 5.0)], 2)
    _, twice = select_answers(
        Policy(kind),
        PolicyState(),
        [answer("a", 2, 5.0), answer("a", 2, 5.0), answer("a", 1, 9.0)],
        2,
    )
    assert sums(twice) == sums(once) == [5.0]
    again, counted = select_answers(
        Policy(kind), state, [answer("a", 2, 5.0), answer("a", 1, 9.0)], 3
    )
    quiet, expected = select_answers(Policy(kind), state, [], 3)
    assert sums(counted) == sums(expected)
    assert again.newest_answered == quiet.newest_answered


def test_answers_that_are_too_late_or_to_future_rounds_do_not_count() -> None:
    _, counted = select_answers(
        Policy(late_rounds=1),
        PolicyState(),
        [answer("a", 3, 1.0), answer("b", 4, 2.0), answer("c", 6, 4.0)],
        5,
    )
    assert sums(counted) == [2.0]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("kind", "old"),
        ("decay", 0.0),
        ("decay", 1.0),
        ("cache_rounds", -1),
        ("late_rounds", True),
        ("late_rounds", 1.5),
    ],
)
def test_a_policy_with_a_value_out_of_range_is_refused(name: str, wrong: object) -> None:
    with pytest.raises(SettingsError, match=name if name != "kind" else "policy"):
        Policy(**{name: wrong})  # type: ignore[arg-type]  # on purpose


# A federation in memory.


def test_rounds_end_when_the_model_has_converged() -> None:
    rows = np.concatenate(
        [np.random.default_rng(0).normal(size=(60, 2)) + place for place in (0, 20)]
    )
    clients = [rows[::2], rows[1::2]]
    kmeans = rounds_algorithm("kmeans")
    start = kmeans.start({"clusters": 2}, 2, bounding_box(clients, 4))
    ended = run_rounds(kmeans, start, clients, tolerance=1e-6)
    assert converged(ended.shifts, 1e-6)
    assert len(ended.shifts) < 20
    assert not converged([], 1)
    assert len(run_rounds(kmeans, start, clients, rounds_max=1).shifts) == 1
    with pytest.raises(SettingsError):
        run_rounds(kmeans, start, clients, fraction=0.0)
    with pytest.raises(SettingsError):
        run_rounds(rounds_algorithm("kfed"), start, clients, policy=Policy("decay"))
    with pytest.raises(SettingsError):
        bounding_box([rows[:0]])


def test_a_fraction_of_the_clients_is_sampled_in_each_round_by_the_seed() -> None:
    generator = np.random.default_rng(1)
    clients = [generator.normal(size=(30, 2)) + place for place in range(8)]
    fcm = rounds_algorithm("fcm")
    start = fcm.start({"clusters": 3}, 2, bounding_box(clients))
    runs = [
        run_rounds(fcm, start, clients, rounds_max=5, fraction=0.25, seed=seed)
        for seed in (3, 3, 4)
    ]
    assert runs[0].shifts == runs[1].shifts != runs[2].shifts
    # Two of eight clients of 30 rows: memberships of a row add up to 1, their squares to less.
    assert runs[0].params["weight"].sum() < 60
    assert runs[0].params["weight"].sum() > 60 / 3


def test_rounds_started_from_kfed_find_clusters_that_different_clients_hold() -> None:
    generator = np.random.default_rng(2)
    centres = np.array([[0.0, 0], [0, 9], [9, 0], [9, 9]])
    clients = [
        generator.normal(size=(50, 2)) * 0.3 + centres[[i % 4, (i + 1) % 4]][np.arange(50) % 2]
        for i in range(8)
    ]
    begin = kfed_hint(4, clients, bounding_box(clients), local=2)
    kmeans = rounds_algorithm("kmeans")
    found = run_rounds(kmeans, kmeans.start({"clusters": "auto"}, 2, begin), clients).params[
        "centre"
    ]
    assert matched_distance(centres, found) < 0.3


# Streams.

CLIENTS = 10
WINDOW = 200
NEW_ROWS = 50
ROUNDS_RUN = 60
SETTLED = 15
CALLED = 2
LATE_MAX = 3


def _centres(moment: float) -> Floats:
    """Three clusters that go round, near enough to one another that the absent ones' rows would be
    missed."""
    angles = 2 * np.pi * np.arange(3) / 3 + 0.02 * moment
    return 2.5 * np.column_stack([np.cos(angles), np.sin(angles)])


@cache
def _stream_error(name: str, kind: str, seed: int) -> float:
    """The mean distance of the centres from the true ones, on label-skewed clients of whom a fifth
    take part, with answers up to three versions late."""
    algorithm = rounds_algorithm(name)
    generator = np.random.default_rng(seed)
    windows = [np.empty((0, 2)) for _ in range(CLIENTS)]
    params = algorithm.start(
        {"clusters": "auto"}, 2, InitHint(np.full(2, -6.0), np.full(2, 6.0), points=_centres(0))
    )
    policy = Policy(kind, late_rounds=LATE_MAX)
    state = PolicyState()
    under_way = list[tuple[int, Answer]]()
    errors = []
    for version in range(ROUNDS_RUN):
        for client in range(CLIENTS):
            fresh = _centres(version)[client % 3] + generator.normal(size=(NEW_ROWS, 2))
            windows[client] = np.concatenate([windows[client], fresh])[-WINDOW:]
        for client in generator.choice(CLIENTS, CALLED, replace=False):
            answer = Answer(f"client{client}", version, algorithm.answer(params, windows[client]))
            under_way.append((version + int(generator.integers(0, LATE_MAX + 1)), answer))
        arrived = [answer for due, answer in under_way if due == version]
        state, counted = select_answers(policy, state, arrived, version)
        params = algorithm.combine(params, counted)
        if version >= SETTLED:
            errors.append(matched_distance(_centres(version), params["centre"]) / np.sqrt(3))
    return float(np.mean(errors))


@pytest.mark.parametrize("name", ["kmeans", "fcm", "gmm"])
@pytest.mark.parametrize("kind", ["decay", "cache"])
def test_decay_and_cache_halve_the_error_on_skewed_clients_of_which_a_fifth_answer_late(
    name: str, kind: str
) -> None:
    fresh, remembered = (
        np.mean([_stream_error(name, start, seed) for seed in range(3)])
        for start in ("fresh", kind)
    )
    assert remembered <= 0.5 * fresh
