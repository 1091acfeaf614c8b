"""Laws that hold for every installed algorithm in rounds; the last test checks that all of them
ran."""

from __future__ import annotations

import inspect
import sys
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds.base import InitHint, Params, RoundsAlgorithm, Stats
from shoal.algorithms.rounds.policies import Answer, Policy, PolicyState, select_answers
from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.kernels.arrays import Floats
from shoal.protocol.codec import pack, unpack
from tests.examples import examples
from tests.laws.streams import KINDS, cut, stream, streams
from tests.laws.views import assert_view_is_sound

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "kmeans": [{}],
    "kmeans_local": [{"average": "weighted"}, {"average": "unweighted", "steps": 3}],
    "kfed": [{}, {"average": "unweighted", "pick": "farthest"}],
    "mufc": [{}, {"local": "kmeans", "cells": 150}],
    "spectral": [{}, {"clusters": "eigengap", "landmarks": 9, "near": 2, "prototypes": 5}],
    "dbscan": [
        {},
        {"cells": 5, "border": 0, "min_share": 0},
        {"cells": 1000, "min_points": 1e-9, "min_share": 0},
    ],
    "ffcm": [{}, {"average": "avg2", "local": "step"}, {"average": "avg2", "support": "powers"}],
    "fcm": [{}, {"fuzzifier": 1.05}, {"fuzzifier": 7}],
    "gmm": [{"covariance": form} for form in ("full", "tied", "diag", "spherical")],
    "gmm_local": [
        {"covariance": "full"},
        {"covariance": "full", "average": "weighted", "match": "place", "steps": 1},
        {"covariance": "tied", "average": "weighted"},
        {"covariance": "diag", "average": "weighted"},
        {"covariance": "spherical", "average": "weighted"},
    ],
    # After three rounds the first is still looking for its conditions, the others fit consequents.
    "tsk": [
        {},
        {"condition_rounds": 0, "ridge": 0.01},
        {"condition_rounds": 1, "consequents": "gradient"},
    ],
}
"""options under which each law holds as well; an algorithm that is not here runs with its own
defaults"""
DEGREE = {"count": 0, "mass": 0, "rows": 0, "likelihood": 0, "sum": 1, "inertia": 2, "second": 2}
DEGREE |= dict.fromkeys(("total", "square", "gram", "cross", "energy"), 0)  # of standardised rows
"""of each array of an additive answer: by which power of the rows it grows"""
RAN: set[tuple[str, str]] = set()
laws = settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
CASES = [
    (name, number) for name in rounds_names() for number in range(len(VARIANTS.get(name, [{}])))
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request: pytest.FixtureRequest) -> Iterator[tuple[RoundsAlgorithm, dict[str, Any]]]:
    name, number = request.param
    yield rounds_algorithm(name), VARIANTS.get(name, [{}])[number]
    RAN.add((request.function.__name__, name))


Case = tuple[RoundsAlgorithm, dict[str, Any]]


def box(rows: Floats, seed: int = 0) -> InitHint:
    if not len(rows):
        return InitHint(np.zeros(rows.shape[1]), np.ones(rows.shape[1]), seed)
    return InitHint(rows.min(axis=0), rows.max(axis=0), seed)


def started(case: Case, rows: Floats, clusters: int = 3, seed: int = 0) -> Params:
    algorithm, options = case
    asked = {"clusters": clusters} if algorithm.takes("clusters") else {}
    return algorithm.start({**asked, **options}, rows.shape[1], box(rows, seed))


def one_round(algorithm: RoundsAlgorithm, params: Params, parts: Sequence[Floats]) -> Params:
    return algorithm.combine(params, [algorithm.answer(params, part) for part in parts])


def after_rounds(case: Case, rows: Floats, clusters: int = 3) -> Params:
    """Parameters as they are after some rounds."""
    params = started(case, rows, clusters)
    for _ in range(3):
        params = one_round(case[0], params, [rows])
    return params


def bits(arrays: Arrays) -> bytes:
    return pack(dict(arrays))


def assert_fits(arrays: Arrays, table: Mapping[str, ArraySpec], d: int) -> None:
    assert list(arrays) == list(table)
    sizes: dict[str, int] = {"d": d}
    for name, spec in table.items():
        array = arrays[name]
        assert isinstance(array, np.ndarray), name
        assert array.dtype == np.dtype(spec.dtype), name
        assert array.ndim == len(spec.shape), name
        for size, wanted in zip(array.shape, spec.shape, strict=True):
            assert size == (
                wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size)
            ), name
        assert np.isfinite(array).all(), name


def assert_close(ours: Stats, theirs: Stats, n: int, scale: float) -> None:
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        if name == "likelihood":
            np.testing.assert_allclose(array, theirs[name], rtol=1e-9, atol=1e-9 * n)
        else:
            assert name in DEGREE, f"give by which power of the rows {name} grows"
            size = max(n, 1) * max(scale, np.finfo(float).tiny ** 0.4) ** DEGREE[name]
            np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-9 * size, err_msg=name)


def reach(*rows: Floats) -> float:
    return max((float(np.abs(row).max()) for row in rows if row.size), default=0.0)


# Without rows.


def test_a_client_without_rows_answers_with_zeros_that_change_no_parameters(case: Case) -> None:
    algorithm, _ = case
    for rows in (np.empty((0, 2)), stream("blobs", 1, 100, 2)):
        params = after_rounds(case, rows)
        assert_fits(params, algorithm.snapshot, 2)
        empty_answer = algorithm.answer(params, np.empty((0, 2)))
        assert_fits(empty_answer, algorithm.update, 2)
        assert not any(array.any() for array in empty_answer.values())
        for answers in ([], [empty_answer], [empty_answer, empty_answer]):
            assert bits(algorithm.combine(params, answers)) == bits(params)
        assert algorithm.predict(params, np.empty((0, 2))).shape == (0,)


def test_clients_without_rows_change_nothing(case: Case) -> None:
    algorithm, _ = case
    rows = stream("blobs", 2, 90, 2)
    params = after_rounds(case, rows)
    answers = [algorithm.answer(params, part) for part in np.split(rows, [30, 40])]
    empty_answer = algorithm.answer(params, rows[:0])
    assert bits(
        algorithm.combine(params, [empty_answer, answers[0], empty_answer, *answers[1:]])
    ) == bits(algorithm.combine(params, answers))


# Additive answers.


@laws
@given(
    rows=streams(n_max=120),
    places=st.lists(st.integers(0, 10**4), max_size=6),
    seed=st.integers(0, 99),
)
def test_answers_of_parts_add_up_to_the_answer_of_the_whole(
    case: Case, rows: Floats, places: list[int], seed: int
) -> None:
    algorithm, _ = case
    if not algorithm.additive:
        return
    for params in (started(case, rows, seed=seed), after_rounds(case, rows)):
        whole = algorithm.answer(params, rows)
        parts = [algorithm.answer(params, part) for part in cut(rows, places)]
        summed = {
            name: sum((part[name] for part in parts), np.zeros_like(whole[name])) for name in whole
        }
        assert_close(summed, whole, len(rows), reach(rows, params["centre"]))


@laws
@given(
    rows=streams(n_min=5, n_max=120),
    places=st.lists(st.integers(0, 10**4), max_size=5),
    alone=st.integers(0, 10**4),
)
def test_one_round_of_any_split_is_one_pooled_round(
    case: Case, rows: Floats, places: list[int], alone: int
) -> None:
    """A client with one row, one without any, and one whose rows are all equal are among them."""
    algorithm, _ = case
    if not algorithm.additive:
        return
    equal = np.repeat(rows[:1], 4, axis=0)
    parts = [rows[:0], rows[alone % len(rows) :][:1], equal, *cut(rows, places)]
    pooled = np.concatenate(parts)
    params = after_rounds(case, rows)
    federated = one_round(algorithm, params, parts)
    central = one_round(algorithm, params, [pooled])
    # A mean of rows whose masses in a centre are all tiny is as imprecise as they are.
    held = central["weight"] > 1e-6
    np.testing.assert_allclose(
        federated["centre"][held],
        central["centre"][held],
        rtol=0,
        atol=1e-9 * (reach(pooled, params["centre"]) or 1),
    )
    np.testing.assert_allclose(
        federated["weight"], central["weight"], rtol=1e-9, atol=1e-9 * len(pooled)
    )


def test_thirty_rounds_of_a_skewed_federation_are_thirty_pooled_ones(case: Case) -> None:
    algorithm, _ = case
    if not algorithm.additive:
        return
    rows = stream("blobs", 5, 600, 3)
    rows = rows[np.argsort(rows[:, 0])]
    parts = np.split(rows, [0, 1, 2, 100, 350, 599])
    federated = pooled = started(case, rows, 5)
    for _ in range(30):
        federated = one_round(algorithm, federated, parts)
        pooled = one_round(algorithm, pooled, [rows])
    np.testing.assert_allclose(federated["centre"], pooled["centre"], rtol=0, atol=1e-9)


# Order, purity, determinism.


@laws
@given(
    rows=streams(n_min=10, n_max=80),
    order=st.permutations(range(5)),
    kind=st.sampled_from(["fresh", "cache", "decay"]),
)
def test_the_order_in_which_answers_arrive_does_not_change_a_bit(
    case: Case, rows: Floats, order: list[int], kind: str
) -> None:
    algorithm, _ = case
    assume(algorithm.additive or kind != "decay")
    params = started(case, rows)
    answers = [
        Answer(f"client{i}", 0, algorithm.answer(params, part))
        for i, part in enumerate(np.array_split(rows, 5))
    ]
    state, counted = select_answers(Policy(kind), PolicyState(), answers, 0)
    shuffled, recounted = select_answers(
        Policy(kind), PolicyState(), [answers[place] for place in order], 0
    )
    assert bits(algorithm.combine(params, counted)) == bits(algorithm.combine(params, recounted))
    assert pack(state.saved()) == pack(shuffled.saved())


@laws
@given(rows=streams(n_min=1, n_max=80))
def test_arguments_are_not_changed_and_not_kept_by_reference(case: Case, rows: Floats) -> None:
    algorithm, _ = case
    params = after_rounds(case, rows)
    before_rows = rows.copy()
    before = bits(params)
    answer = algorithm.answer(params, rows)
    answer_before = bits(answer)
    after = algorithm.combine(params, [answer, answer])
    expected = bits(after)
    algorithm.predict(after, rows)
    algorithm.shift(params, after)
    np.testing.assert_array_equal(rows, before_rows)
    assert bits(params) == before
    assert bits(answer) == answer_before
    for array in answer.values():
        array[...] = 77
    assert bits(after) == expected


@laws
@given(rows=streams(n_max=80), seed=st.integers(0, 10**6))
def test_the_same_input_gives_the_same_result(case: Case, rows: Floats, seed: int) -> None:
    algorithm, _ = case
    first = started(case, rows, seed=seed)
    second = started(case, rows.copy(), seed=seed)
    assert bits(first) == bits(second)
    assert bits(algorithm.answer(first, rows)) == bits(algorithm.answer(second, rows.copy()))
    assert bits(one_round(algorithm, first, [rows])) == bits(
        one_round(algorithm, second, [rows.copy()])
    )


@laws
@given(rows=streams(n_min=1, n_max=80))
def test_arrays_that_were_encoded_and_decoded_give_the_same_bits(case: Case, rows: Floats) -> None:
    algorithm, _ = case
    params = after_rounds(case, rows)
    assert_fits(params, algorithm.snapshot, rows.shape[1])
    travelled = unpack(bits(params))
    answer = algorithm.answer(travelled, rows)
    assert_fits(answer, algorithm.update, rows.shape[1])
    assert bits(answer) == bits(algorithm.answer(params, rows))
    assert bits(algorithm.combine(travelled, [unpack(bits(answer))])) == bits(
        algorithm.combine(params, [answer])
    )


@laws
@given(rows=streams(n_max=60))
def test_rows_of_another_numeric_type_give_the_same_result(case: Case, rows: Floats) -> None:
    algorithm, _ = case
    with np.errstate(over="ignore"):
        single = np.nan_to_num(rows.astype(np.float32), posinf=1, neginf=-1)
    params = started(case, single.astype(float))
    kinds: list[Any] = [single, np.asfortranarray(single), (single % 100).astype(np.int16)]
    for given_rows in kinds:
        assert bits(algorithm.answer(params, given_rows)) == bits(
            algorithm.answer(params, given_rows.astype(float))
        )
        np.testing.assert_array_equal(
            algorithm.predict(params, given_rows),
            algorithm.predict(params, given_rows.astype(float)),
        )


# Edge cases.


@pytest.mark.parametrize("kind", KINDS)
def test_one_feature_one_cluster_and_more_clusters_than_rows(case: Case, kind: str) -> None:
    for n, d, clusters in [(150, 1, 3), (150, 3, 1), (2, 2, 5), (1, 1, 1), (40, 1, 12)]:
        check_few(case, kind, n, d, clusters)


def check_few(case: Case, kind: str, n: int, d: int, clusters: int) -> None:
    """Parameters, labels and view are sound after some rounds."""
    algorithm, _ = case
    rows = stream(kind, 3, n, d)
    params = after_rounds(case, rows, clusters)
    assert_fits(params, algorithm.snapshot, d)
    labels = algorithm.predict(params, rows)
    assert labels.dtype == np.int64
    assert labels.shape == (n,)
    assert (
        (labels >= (-1 if algorithm.leaves_noise else 0)) & (labels < len(params["centre"]))
    ).all()
    low = rows.min(axis=0)
    high = rows.max(axis=0)
    slack = 1e-9 * (np.abs(rows).max() or 1)
    assert ((params["centre"] >= low - slack) & (params["centre"] <= high + slack)).all()
    view = algorithm.view(params)
    assert_view_is_sound(view, d)
    assert algorithm.summary(params) == view.summary()
    assert (0 if algorithm.leaves_noise else 1) <= view.summary().clusters <= max(clusters, n)


def test_rows_that_are_not_numbers_or_of_another_width_are_refused(case: Case) -> None:
    algorithm, _ = case
    rows = stream("blobs", 4, 9000, 2)
    params = after_rounds(case, rows)
    for value in (np.nan, np.inf, -np.inf, 1e200):
        poisoned = rows.copy()
        poisoned[8999, 1] = value
        for ask in (algorithm.answer, algorithm.predict):
            with pytest.raises(InvalidData, match="row 8999"):
                ask(params, poisoned)
    for wrong in (np.ones((2, 3)), np.ones((1, 0)), np.ones(2), np.array([["a", "b"]])):
        with pytest.raises(InvalidData):
            algorithm.answer(params, wrong)


def test_an_impossible_answer_is_refused(case: Case) -> None:
    algorithm, _ = case
    rows = stream("blobs", 6, 120, 2)
    params = after_rounds(case, rows)
    good = algorithm.answer(params, rows)
    for name in algorithm.update:
        without = {key: array for key, array in good.items() if key != name}
        lies = [
            without,
            {**good, name: good[name][..., None]},
            {**good, name: good[name].astype(np.float32)},
        ]
        if good[name].dtype.kind != "f":
            lies.append({**good, name: good[name].astype(float)})
        elif good[name].size:
            lies.append({**good, name: good[name] * np.nan})
        for lie in lies:
            with pytest.raises(InvalidData):
                algorithm.combine(params, [good, lie])
    for negative in {"count", "mass", "support"} & {name for name in good if good[name].size}:
        with pytest.raises(InvalidData):
            algorithm.combine(params, [{**good, negative: -good[negative] - 1}])
    larger = algorithm.answer(after_rounds(case, rows, 4), rows)
    if {array.shape for array in larger.values()} != {
        array.shape for array in good.values()
    } and algorithm.additive:
        with pytest.raises(InvalidData):
            algorithm.combine(params, [larger])


def test_an_unknown_option_is_refused(case: Case) -> None:
    algorithm, options = case
    algorithm.check(options)
    hint = InitHint(np.zeros(2), np.ones(2))
    for wrong in (
        {"no such option": 1},
        {"clusters": 0},
        {"clusters": True},
        {"clusters": 2.5},
        {"clusters": "many"},
    ):
        with pytest.raises(SettingsError):
            algorithm.check({**options, **wrong})
        with pytest.raises(SettingsError):
            algorithm.start({**options, **wrong}, 2, hint)


def test_models_start_from_the_clusters_of_another(case: Case) -> None:
    algorithm, options = case
    points = np.array([[0.0, 0.0], [5.0, 5.0], [9.0, 0.0]])
    if not algorithm.options.accepts("clusters", "auto"):
        # It finds their number itself.
        with pytest.raises(SettingsError, match="clusters"):
            algorithm.check({**options, "clusters": "auto"})
        return
    with pytest.raises(SettingsError, match="auto"):
        algorithm.start({**options, "clusters": "auto"}, 2, InitHint(np.zeros(2), np.full(2, 9.0)))
    params = algorithm.start(
        {**options, "clusters": "auto"}, 2, InitHint(np.zeros(2), np.full(2, 9.0), points=points)
    )
    rows = np.concatenate([stream("blobs", 1, 90, 2) * 0.01 + point for point in points])
    for _ in range(5):
        params = one_round(algorithm, params, [rows[first::4] for first in range(4)])
    found = params["centre"][params["weight"] > 0]
    assert len(found) == 3
    assert np.abs(found[:, None] - points).sum(axis=2).min(axis=0).max() < 0.1


def test_an_answer_needs_the_memory_of_a_block_and_not_of_all_rows(case: Case) -> None:
    algorithm, _ = case
    rows = stream("blobs", 7, 200_000, 4)
    # As many clusters as there are blobs: an algorithm that iterates until it converges needs few
    # steps.
    params = after_rounds(case, rows[:500], 6)
    tracemalloc.start()
    try:
        algorithm.answer(params, rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    bytes_per_row = 80 if algorithm.one_shot else 0
    assert peak < 6e6 + bytes_per_row * len(rows)


# Over rounds.


def test_an_answer_counts_once_and_only_while_it_is_not_too_late(case: Case) -> None:
    algorithm, _ = case
    rows = stream("blobs", 8, 60, 2)
    params = started(case, rows)
    early, twin, late = (
        Answer("a", version, algorithm.answer(params, rows)) for version in (5, 5, 1)
    )
    for kind in ("fresh", "cache"):
        state, counted = select_answers(Policy(kind), PolicyState(), [early, twin, late], 5)
        assert [bits(stats) for stats in counted] == [bits(early.stats)]
        state, counted = select_answers(Policy(kind), state, [twin, late], 6)
        assert len(counted) == (1 if kind == "cache" else 0)
        assert len(select_answers(Policy(kind), state, [], 14)[1]) == 0
    assert len(select_answers(Policy(), PolicyState(), [Answer("a", 9, early.stats)], 5)[1]) == 0


@pytest.mark.parametrize("kind", ["fresh", "decay", "cache"])
def test_the_state_of_a_policy_is_saved_and_restored_to_the_bit(case: Case, kind: str) -> None:
    algorithm, _ = case
    if kind == "decay" and not algorithm.additive:
        with pytest.raises(SettingsError):
            Policy(kind).check(algorithm)
        return
    Policy(kind).check(algorithm)
    rows = stream("blobs", 9, 90, 2)
    params = started(case, rows)
    answers = [
        Answer(f"c{i}", i % 2, algorithm.answer(params, part))
        for i, part in enumerate(np.array_split(rows, 4))
    ]
    state, _ = select_answers(Policy(kind), PolicyState(), answers[:3], 1)
    again = PolicyState.read(unpack(pack(state.saved())))
    for version in (2, 3):
        more = [Answer(answer.client, version, answer.stats) for answer in answers[1:]]
        state, counted = select_answers(Policy(kind), state, more, version)
        again, recounted = select_answers(Policy(kind), again, more, version)
        assert [bits(stats) for stats in counted] == [bits(stats) for stats in recounted]
    assert pack(state.saved()) == pack(again.saved())
    for name in ("version", "newest_answered", "sums", "cached"):
        with pytest.raises(InvalidState):
            PolicyState.read({**state.saved(), name: "something else"})


# All laws ran.


def test_every_law_ran_over_every_registered_algorithm(request: pytest.FixtureRequest) -> None:
    assert set(VARIANTS) <= set(rounds_names())
    assert any(algorithm.additive for algorithm in map(rounds_algorithm, rounds_names()))
    module = sys.modules[__name__]
    written = {
        name
        for name, law in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("test_") and "case" in inspect.signature(law).parameters
    }
    collected = {
        item.originalname
        for item in request.session.items
        if getattr(item, "module", None) is module
    }  # type: ignore[attr-defined]  # of functions
    config = request.config
    narrowed = (
        config.option.keyword
        or config.option.markexpr
        or any("::" in place for place in config.args)
    )
    assert narrowed or written <= collected
    assert {(law, name) for law in written & collected for name in rounds_names()} <= RAN
