"""Robust combination: what one client can do is bounded, and honest answers combine to about what
their sums do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.robustness.federation import Federation, attacks, displacement, honest, split, start
from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds.policies import Policy
from shoal.algorithms.rounds.robust import (
    METHODS,
    SHARE_MAX,
    RobustForm,
    bounded_shares,
    combine_robustly,
    geometric_median,
)
from shoal.errors import SettingsError
from shoal.protocol.codec import pack
from tests.examples import examples

ROBUST = [method for method in METHODS if method != "none"]
FORMS = {
    name: rounds_algorithm(name).robust
    for name in rounds_names()
    if isinstance(rounds_algorithm(name).robust, RobustForm)
}


def form_of(name: str) -> RobustForm:
    form = FORMS[name]
    assert isinstance(form, RobustForm)
    return form


def answers_of(
    name: str, clients: list[NDArray[np.float64]], **options: Any
) -> tuple[Any, list[Any]]:
    algorithm, params = start(name, options)
    return params, [algorithm.answer(params, rows) for rows in clients]


def test_the_algorithms_that_can_be_combined_robustly_are_those_of_the_documentation() -> None:
    assert set(FORMS) == {"kmeans", "kmeans_local", "fcm", "ffcm"}


@pytest.mark.parametrize("name", rounds_names())
def test_an_algorithm_that_refuses_says_why(name: str) -> None:
    algorithm = rounds_algorithm(name)
    if name in FORMS:
        Policy(robust="median").check(algorithm)
        return
    with pytest.raises(
        SettingsError, match=f'robust = "median" does not go with {name}: .{{20,}}; leave it out'
    ):
        Policy(robust="median").check(algorithm)
    Policy().check(algorithm)


def test_options_that_cannot_be_combined_robustly_are_refused() -> None:
    ffcm = rounds_algorithm("ffcm")
    options = {"average": "avg2"}
    with pytest.raises(SettingsError, match="does not go with"):
        Policy(robust="clip").check(ffcm, options)
    Policy(robust="clip").check(ffcm, {"average": "avg1"})
    Policy().check(ffcm, options)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(SettingsError, match="must be one of none, median, trimmed, clip"):
        Policy(robust="mean")


@pytest.mark.parametrize("name", sorted(FORMS))
def test_none_is_the_answers_themselves_to_the_bit(name: str) -> None:
    _, answers = answers_of(name, split("dirichlet", 0))
    combined = combine_robustly(form_of(name), "none", answers)
    assert [pack(dict(stats)) for stats in combined] == [pack(dict(answer)) for answer in answers]


@pytest.mark.parametrize("method", ROBUST)
@pytest.mark.parametrize("name", sorted(FORMS))
def test_no_answers_and_answers_without_rows_combine_to_nothing(name: str, method: str) -> None:
    empty = [np.empty((0, 2))] * 3
    assert combine_robustly(form_of(name), method, []) == []
    _, answers = answers_of(name, empty)
    assert combine_robustly(form_of(name), method, answers) == []


@pytest.mark.parametrize("method", ROBUST)
@pytest.mark.parametrize("name", sorted(FORMS))
def test_one_client_alone_is_believed(name: str, method: str) -> None:
    algorithm = rounds_algorithm(name)
    params, answers = answers_of(name, [split("alike", 0)[0]])
    robust = algorithm.combine(params, combine_robustly(form_of(name), method, answers))
    np.testing.assert_allclose(
        robust["centre"], algorithm.combine(params, answers)["centre"], atol=1e-9
    )


@pytest.mark.parametrize("method", ROBUST)
@pytest.mark.parametrize("name", sorted(FORMS))
def test_equal_answers_combine_to_what_each_says_and_all_rows_count(name: str, method: str) -> None:
    algorithm = rounds_algorithm(name)
    rows = split("alike", 0)[0]
    params, answers = answers_of(name, [rows] * 5)
    exact = algorithm.combine(params, answers)
    robust = algorithm.combine(params, combine_robustly(form_of(name), method, answers))
    for array in exact:
        np.testing.assert_allclose(robust[array], exact[array], rtol=1e-6, atol=1e-7, err_msg=array)


@pytest.mark.parametrize("method", ROBUST)
@pytest.mark.parametrize("name", ["kmeans", "fcm"])
def test_one_of_ten_clients_moves_no_centre_by_a_tenth_of_the_box(name: str, method: str) -> None:
    clients = split("dirichlet", 0)
    wanted = honest(name, {}, clients[1:], Policy(), 10)
    alone = honest(name, {}, clients[1:], Policy(robust=method), 10)
    algorithm, params = start(name, {})
    for attack, act in attacks(algorithm, clients[0]).items():
        federation = Federation(algorithm, params, clients, Policy(robust=method), {0: act})
        federation.run(10)
        assert displacement(federation.centres, wanted) <= 0.1, attack
        federation.quarantine()
        federation.run(3)
        assert displacement(federation.centres, alone) <= 0.05, (
            f"{attack}, three rounds after its quarantine"
        )


def test_without_it_one_client_moves_a_centre_across_the_box() -> None:
    """The test above can fail."""
    clients = split("dirichlet", 0)
    algorithm, params = start("kmeans", {})
    bad = {0: attacks(algorithm, clients[0])["every centre to a corner"]}
    federation = Federation(algorithm, params, clients, Policy(), bad)
    federation.run(10)
    assert displacement(federation.centres, honest("kmeans", {}, clients[1:], Policy(), 10)) > 0.5


@pytest.mark.parametrize("kind", ["fresh", "decay", "cache"])
def test_it_holds_whatever_counts_between_rounds(kind: str) -> None:
    clients = split("alike", 0)
    wanted = honest("kmeans", {}, clients[1:], Policy(), 10)
    algorithm, params = start("kmeans", {})
    bad = {0: attacks(algorithm, clients[0])["every centre to a corner"]}
    federation = Federation(algorithm, params, clients, Policy(kind, robust="median"), bad)
    federation.run(10)
    assert displacement(federation.centres, wanted) <= 0.1
    federation.quarantine()
    federation.run(3)
    assert displacement(federation.centres, wanted) <= 0.02


NUMBERS = st.floats(1e-12, 1e12)


@given(st.lists(NUMBERS, min_size=1, max_size=40))
@settings(deadline=None)
def test_shares_add_up_to_one_and_none_is_above_its_bound(mass: list[float]) -> None:
    shares = bounded_shares(np.array(mass))
    assert shares.sum() == pytest.approx(1)
    assert (shares >= 0).all()
    assert shares.max() <= max(SHARE_MAX, 1 / len(mass)) * (1 + 1e-9)


@given(st.integers(0, 10**6), st.floats(1.0, 1e90))
@settings(deadline=None)
def test_a_minority_moves_a_median_no_farther_than_the_others_are_apart(
    seed: int, far: float
) -> None:
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, 1, (7, 2))
    shares = np.full(10, 0.1)
    strangers = rng.normal(0, far, (3, 2))
    found = geometric_median(np.concatenate([points, strangers]), shares)
    # A geometric median with a share a < 1/2 of arbitrary points is within 2 (1 - a) / (1 - 2 a) of
    # the others' radius.
    middle = points.mean(axis=0)
    radius = np.linalg.norm(points - middle, axis=1).max()
    assert np.linalg.norm(found - middle) <= 2 * 0.7 / 0.4 * radius + 1e-6


@given(st.integers(0, 10**6), st.sampled_from(ROBUST), st.sampled_from(sorted(FORMS)))
@settings(deadline=None, max_examples=examples(60))
def test_any_finite_answer_combines_to_finite_parameters_without_a_warning(
    seed: int, method: str, name: str
) -> None:
    rng = np.random.default_rng(seed)
    algorithm = rounds_algorithm(name)
    params, answers = answers_of(name, [rows[:50] for rows in split("alike", seed % 5)][:4])
    scale = 10.0 ** rng.integers(-300, 300, len(answers[0]))
    parts = zip(answers[0].items(), scale, strict=True)
    wild = {key: np.abs(rng.normal(0, size, value.shape)) for (key, value), size in parts}
    combined = combine_robustly(form_of(name), method, [wild, *answers[1:]])
    assert all(np.isfinite(array).all() for stats in combined for array in stats.values())
    assert np.isfinite(algorithm.combine(params, combined)["centre"]).all()
