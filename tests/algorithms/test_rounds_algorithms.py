"""What is particular to each algorithm in rounds: known pitfalls, and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm, rounds_names
from shoal.algorithms.rounds.base import InitHint, Params, RoundsAlgorithm
from shoal.algorithms.rounds.fcm import FCM
from shoal.algorithms.rounds.ffcm import FFCM
from shoal.algorithms.rounds.gmm import GMM, mixing_weights
from shoal.algorithms.rounds.gmm_local import GMM_LOCAL
from shoal.algorithms.rounds.kfed import KFED, STARTS, starts_for
from shoal.algorithms.rounds.kmeans import KMEANS
from shoal.algorithms.rounds.kmeans_local import KMEANS_LOCAL
from shoal.algorithms.rounds.mufc import MUFC
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.gaussian import COVARIANCE_TYPES, matrices
from shoal.kernels.lloyd import assign, kmeans_plusplus, lloyd
from shoal.kernels.matching import matched_distance
from shoal.protocol.codec import pack
from shoal.simulation.rounds import bounding_box, kfed_hint, run_rounds

CORNERS = np.array([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0], [9.0, 9.0]])


def blobs(seed: int, n: int = 60, sd: float = 0.5) -> list[Floats]:
    """One block of rows for each corner."""
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(n, 2)) * sd + corner for corner in CORNERS]


def started(
    algorithm: RoundsAlgorithm, clients: Sequence[Floats], at: Floats | None = None, **options: Any
) -> Params:
    known = bounding_box(clients)
    if at is not None:
        known = InitHint(known.low, known.high, points=at)
    return algorithm.start(
        {"clusters": "auto" if at is not None else 4, **options}, len(known.low), known
    )


def test_every_algorithm_publishes_centres_with_their_mass() -> None:
    for algorithm in map(rounds_algorithm, rounds_names()):
        assert {"centre", "weight"} <= set(algorithm.snapshot), algorithm.name
        assert algorithm.snapshot["centre"].rowlike
        for name, option in algorithm.options.model_fields.items():
            assert algorithm.options.accepts(name, option.default), algorithm.name
            assert option.description
            assert algorithm.options.expected(name)


def test_starting_centres_lie_in_the_box_or_are_given_points_reduced_by_kmeans() -> None:
    box = InitHint(np.array([-1.0, 5.0]), np.array([1.0, 6.0]), seed=3)
    centres = KMEANS.start({"clusters": 50}, 2, box)["centre"]
    assert ((centres >= box.low) & (centres <= box.high)).all()
    assert np.ptp(centres[:, 0]) > 1.0
    many = np.concatenate(blobs(0))
    grouped = KMEANS.start(
        {"clusters": 4}, 2, InitHint(many.min(axis=0), many.max(axis=0), points=many)
    )["centre"]
    assert matched_distance(CORNERS, grouped) < 0.5
    few = KMEANS.start(
        {"clusters": 4}, 2, InitHint(np.zeros(2), np.full(2, 9.0), points=CORNERS[:2])
    )["centre"]
    np.testing.assert_array_equal(few[:2], CORNERS[:2])
    assert len(few) == 4
    for wrong in (
        InitHint(np.zeros(3), np.ones(3)),
        InitHint(np.zeros(2), np.ones(2), points=np.ones((4, 3))),
    ):
        with pytest.raises(SettingsError):
            KMEANS.start({"clusters": 2}, 2, wrong)


READ_BY_CLIENTS = {
    "kmeans_local": ["steps"],
    "kfed": ["local_clusters", "seed"],
    "mufc": ["local_clusters", "seed", "local", "cells", "step"],
    "fcm": ["fuzzifier"],
    "ffcm": ["fuzzifier", "tolerance", "local", "support"],
    "gmm": ["spread", "form", "weight"],
    "gmm_local": ["spread", "form", "weight", "steps"],
}


@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, setting) for name, read in READ_BY_CLIENTS.items() for setting in read],
)
def test_clients_refuse_impossible_parameters(name: str, setting: str) -> None:
    algorithm = rounds_algorithm(name)
    rows = np.concatenate(blobs(0))
    params = started(algorithm, [rows])
    for lie in (params[setting][:0], np.full_like(params[setting], -1)):
        if setting != "weight" or len(lie):
            with pytest.raises(InvalidData, match="damaged"):
                algorithm.answer({**params, setting: lie}, rows)


# k-means.


def test_a_centre_without_rows_keeps_its_position() -> None:
    clients = blobs(1)[:2]
    at = np.array([[0.0, 1], [0, 8], [500, 500]])
    params = run_rounds(KMEANS, started(KMEANS, clients, at), clients).params
    np.testing.assert_array_equal(params["centre"][2], at[2])
    assert params["weight"].tolist() == [60, 60, 0]
    assert KMEANS.summary(params).clusters == 2


def test_the_plain_mean_drags_centres_towards_clients_that_have_no_rows_of_them() -> None:
    clients = blobs(2)
    at = CORNERS + 2.0
    exact = run_rounds(KMEANS, started(KMEANS, clients, at), clients, rounds_max=1).params["centre"]
    assert matched_distance(CORNERS, exact) < 0.5
    weighted = started(KMEANS_LOCAL, clients, at, average="weighted")
    assert (
        matched_distance(
            exact, run_rounds(KMEANS_LOCAL, weighted, clients, rounds_max=1).params["centre"]
        )
        < 1e-9
    )
    plain = started(KMEANS_LOCAL, clients, at, average="unweighted")
    dragged = run_rounds(KMEANS_LOCAL, plain, clients, rounds_max=1).params["centre"]
    # Three of four clients repeat the centre they were sent.
    np.testing.assert_allclose(dragged, 0.25 * exact + 0.75 * at)


def test_one_local_step_weighted_is_the_exact_algorithm() -> None:
    clients = blobs(3)
    at = np.array([[1.0, 1], [4, 4], [5, 3], [8, 2]])
    exact = run_rounds(KMEANS, started(KMEANS, clients, at), clients, rounds_max=7).params["centre"]
    local = run_rounds(
        KMEANS_LOCAL, started(KMEANS_LOCAL, clients, at, steps=1), clients, rounds_max=7
    )
    np.testing.assert_allclose(local.params["centre"], exact, atol=1e-12)


# k-FED.


def test_kfed_finds_clusters_that_no_client_has_all_of() -> None:
    north, east, south, west = blobs(4)
    clients = [
        np.concatenate(pair)
        for pair in ((north, east), (east, south), (south, west), (west, north))
    ]
    params = run_rounds(KFED, started(KFED, clients, local_clusters=2), clients).params
    assert matched_distance(CORNERS, params["centre"]) < 0.5
    assert params["weight"].sum() == 480


@pytest.mark.parametrize(
    ("average", "expected"), [("unweighted", [0.5, 10.5]), ("weighted", [0.1, 10.5])]
)
def test_kfed_weights_centres_by_their_rows_if_asked_to(
    average: str, expected: list[float]
) -> None:
    params = KFED.start(
        {"clusters": 2, "average": average}, 1, InitHint(np.zeros(1), np.full(1, 12.0))
    )
    answers = [
        {"prototype": np.array([[0.0], [10.0]]), "count": np.array([90.0, 50.0])},
        {"prototype": np.array([[1.0], [11.0]]), "count": np.array([10.0, 50.0])},
    ]
    found = KFED.combine(params, answers)
    np.testing.assert_allclose(found["centre"][:, 0], expected)
    assert found["weight"].tolist() == [100.0, 100.0]


def test_kfed_seeds_on_the_main_directions_so_that_noise_in_the_others_cannot_hide_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In fifty features rows are hardly nearer to their own seed than to another; on the plane of
    two they are."""
    monkeypatch.setattr(
        "shoal.algorithms.rounds.one_shot.CLIENT_STEPS", 0
    )  # Lloyd's algorithm would correct a bad start
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(300, 50))
    rows[:150, 0] += 20.0
    rows -= rows.mean(axis=0)
    found = KFED.answer(started(KFED, [rows], clusters=2), rows)["prototype"]
    expected = np.stack([rows[:150].mean(axis=0), rows[150:].mean(axis=0)])
    assert matched_distance(expected, found) < 3.0


def test_kfed_by_default_weights_by_rows_and_takes_the_best_of_several_starts() -> None:
    generator = np.random.default_rng(0)
    answers = [
        {"prototype": generator.uniform(size=(9, 2)), "count": generator.integers(1, 90, 9) * 1.0}
        for _ in range(8)
    ]
    points = np.concatenate([stats["prototype"] for stats in answers])
    rows = np.concatenate([stats["count"] for stats in answers])
    hint = InitHint(np.zeros(2), np.ones(2))

    def cost(**options: Any) -> float:
        centre = KFED.combine(KFED.start({"clusters": 9, **options}, 2, hint), answers)["centre"]
        return float(assign(points, centre, rows)[2])

    single = lloyd(points, points[kmeans_plusplus(points, 9, 0, rows)], 300, 0.0, rows)[1]
    assert cost() < 0.99 * single, "one start does as well here, so that more are not tested"
    assert cost() < 0.9 * cost(pick="farthest", average="unweighted")
    assert cost() < 0.99 * cost(average="unweighted")


def test_one_outlier_among_the_prototypes_does_not_break_kmeans_plusplus() -> None:
    clients = [np.concatenate(blobs(seed)) for seed in range(6)]
    clients[3] = np.concatenate([clients[3], [[400.0, 400.0]]])
    found = {
        pick: run_rounds(
            KFED, started(KFED, clients, average="weighted", pick=pick), clients
        ).params["centre"]
        for pick in ("farthest", "seeded")
    }
    assert all(len(centres) == 4 for centres in found.values())


def test_kfed_with_fewer_prototypes_than_clusters_returns_the_prototypes() -> None:
    rows = np.array([[0.0, 0.0], [5.0, 5.0]])
    params = run_rounds(KFED, started(KFED, [rows], local_clusters=3), [rows]).params
    assert len(params["centre"]) == 2
    assert KFED.predict(started(KFED, [rows]), rows).tolist() == [-1, -1]
    with pytest.raises(SettingsError):
        started(KFED, [rows], local_clusters=5)


def test_clusters_keep_their_numbers_from_one_round_to_the_next() -> None:
    clients = [np.concatenate(blobs(seed)) for seed in range(3)]
    for algorithm in (KFED, MUFC):
        first = run_rounds(algorithm, started(algorithm, clients), clients).params
        moved = [rows + 0.3 for rows in reversed(clients)]
        second = run_rounds(algorithm, first, moved).params
        np.testing.assert_allclose(second["centre"], first["centre"], atol=2.0)
        assert 0 < algorithm.shift(first, second) < 4
        assert algorithm.shift(started(algorithm, clients), first) == np.inf


# MUFC.


@pytest.mark.parametrize("local", ["seeds", "kmeans"])
def test_unlearning_a_client_gives_the_bits_of_the_model_without_it(local: str) -> None:
    clients = [np.concatenate(blobs(seed)) for seed in range(5)]
    start = started(MUFC, clients, local=local)
    answers = [MUFC.answer(start, rows) for rows in clients]
    forgotten = MUFC.combine(start, answers[:2] + answers[3:])
    never_saw = MUFC.combine(
        start, [MUFC.answer(start, rows) for rows in clients[:2] + clients[3:]]
    )
    assert pack(dict(forgotten)) == pack(dict(never_saw))
    assert pack(dict(forgotten)) != pack(dict(MUFC.combine(start, answers)))


def test_unlearning_a_row_that_is_not_a_seed_keeps_the_seeds_and_lowers_one_count() -> None:
    rows = np.concatenate(blobs(5))
    start = started(MUFC, [rows], cells=1000)
    whole = MUFC.answer(start, rows)
    kept = 0
    for place in range(0, len(rows), 7):
        without = MUFC.answer(start, np.delete(rows, place, axis=0))
        if np.array_equal(without["cell"], whole["cell"]):
            kept += 1
            gone = whole["count"] - without["count"]
            assert sorted(gone) == [0.0] * (len(gone) - 1) + [1.0]
    assert kept >= len(range(0, len(rows), 7)) - 4


def test_seeds_in_the_same_cell_are_sent_as_one_cell_with_the_sum_of_their_counts() -> None:
    rows = np.concatenate(blobs(6))
    answer = MUFC.answer(started(MUFC, [rows], clusters=20, cells=2), rows)
    assert len(np.unique(answer["cell"], axis=0)) == len(answer["cell"]) < 10
    assert answer["count"].sum() == len(rows)


def test_the_server_of_mufc_needs_only_the_sum_of_the_answers() -> None:
    clients = [np.concatenate(blobs(seed)) for seed in range(3)]
    start = started(MUFC, clients)
    answers = [MUFC.answer(start, rows) for rows in clients]
    cells = np.concatenate([answer["cell"] for answer in answers])
    counts = np.concatenate([answer["count"] for answer in answers])
    order = np.random.default_rng(0).permutation(len(cells))
    one = MUFC.combine(start, [{"cell": cells[order], "count": counts[order]}])
    assert pack(dict(one)) == pack(dict(MUFC.combine(start, answers)))
    with pytest.raises(InvalidData):
        MUFC.combine(start, [{"cell": cells - 1000, "count": counts}])


# Fuzzy c-means.


def test_a_row_on_a_centre_counts_for_it_alone() -> None:
    at = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    answer = FCM.answer(started(FCM, [at], at), np.array([[1.0, 0.0]]))
    np.testing.assert_array_equal(answer["mass"], [0, 1, 0])
    twice = FCM.answer(started(FCM, [at], at), np.array([[0.0, 0.0]]))
    np.testing.assert_array_equal(twice["mass"], [0.25, 0, 0.25])


def test_near_a_fuzzifier_of_one_it_is_kmeans() -> None:
    rows = np.concatenate(blobs(6))
    at = CORNERS + 1.0
    hard = run_rounds(KMEANS, started(KMEANS, [rows], at), [rows]).params["centre"]
    soft = run_rounds(FCM, started(FCM, [rows], at, fuzzifier=1.0001), [rows]).params["centre"]
    np.testing.assert_allclose(soft, hard, atol=1e-9)


def test_avg1_of_one_step_weighed_by_powers_is_the_exact_algorithm() -> None:
    clients = [*blobs(7), np.concatenate(blobs(8)), np.empty((0, 2))]
    at = np.array([[1.0, 1], [1, 7], [6, 2], [7, 7]])
    exact = run_rounds(FCM, started(FCM, clients[:5], at), clients, rounds_max=20).params["centre"]
    options = {"average": "avg1", "local": "step", "support": "powers"}
    averaged = run_rounds(
        FFCM, started(FFCM, clients[:5], at, **options), clients, rounds_max=20
    ).params["centre"]
    np.testing.assert_allclose(averaged, exact, atol=1e-9)


def test_avg2_finds_clusters_that_are_absent_on_clients_and_avg1_does_not() -> None:
    north, east, south, west = blobs(9)
    clients = [np.concatenate(pair) for pair in ((north, east), (east, west), (west, south))]
    found = {
        average: run_rounds(
            FFCM, started(FFCM, clients, average=average), clients, rounds_max=20, tolerance=1e-4
        ).params
        for average in ("avg1", "avg2")
    }
    gaps = {
        average: matched_distance(CORNERS, params["centre"]) for average, params in found.items()
    }
    assert gaps["avg2"] < 1.0 < gaps["avg1"]


# Gaussian mixtures.


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_a_component_without_rows_is_kept_and_recovers_when_rows_come_near_it(
    covariance_type: str,
) -> None:
    here = blobs(10)[0]
    there = blobs(10)[3]
    at = np.array([[0.0, 0.0], [9.0, 9.0]])
    both = run_rounds(
        GMM,
        started(GMM, [np.concatenate([here, there])], at, covariance=covariance_type),
        [here, there],
    ).params
    params = run_rounds(GMM, both, [here], rounds_max=5).params
    np.testing.assert_allclose(params["centre"][0], here.mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(params["centre"][1], both["centre"][1])
    assert (mixing_weights(params["weight"]) > 0).all()
    assert GMM.summary(params).nodes == 2
    back = run_rounds(GMM, params, [here, there], rounds_max=20).params
    np.testing.assert_allclose(back["centre"], both["centre"], atol=1e-6)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_a_component_on_one_point_has_the_variance_of_the_ridge(covariance_type: str) -> None:
    rows = np.repeat(np.array([[3.0, -2.0]]), 50, axis=0)
    params = run_rounds(
        GMM,
        started(GMM, [rows], rows[:1], covariance=covariance_type, ridge=1e-4),
        [rows],
        rounds_max=4,
    ).params
    np.testing.assert_allclose(
        matrices(covariance_type, params["spread"], 1, 2)[0], 1e-4 * np.eye(2), atol=1e-12
    )
    assert GMM.predict(params, rows).tolist() == [0] * 50


def test_rows_on_a_line_make_a_component() -> None:
    line = np.outer(np.linspace(-1e6, 1e6, 500), [1.0, 2.0])
    params = run_rounds(
        GMM, started(GMM, [line], clusters=3), [line[::2], line[1::2]], rounds_max=20
    ).params
    assert np.isfinite(params["centre"]).all()
    assert len(np.unique(GMM.predict(params, line))) > 1


def test_components_in_another_order_are_matched_before_averaging() -> None:
    clients = [np.concatenate(blobs(seed)) for seed in range(3)]
    start = started(GMM_LOCAL, clients, CORNERS + 0.5)
    answers = [dict(GMM_LOCAL.answer(start, rows)) for rows in clients]
    order = np.array([2, 0, 3, 1])
    swapped = {
        **answers[1],
        **{name: answers[1][name][order] for name in ("mass", "mean", "spread")},
    }
    expected = GMM_LOCAL.combine(start, answers)
    matched = GMM_LOCAL.combine(start, [answers[0], swapped, answers[2]])
    np.testing.assert_allclose(matched["centre"], expected["centre"], atol=1e-12)
    by_place = {**start, "match": np.array([1])}
    assert (
        matched_distance(GMM_LOCAL.combine(by_place, [answers[0], swapped])["centre"], CORNERS) > 3
    )


def test_averaging_loses_components_that_sums_keep_when_clients_lack_them() -> None:
    """The weighted mean with the scatter between clients is in between."""
    clients = [
        np.concatenate(pair) for pair in zip(blobs(11), blobs(12)[1:] + blobs(12)[:1], strict=True)
    ]
    begin = kfed_hint(4, clients, bounding_box(clients), local=2)
    exact = run_rounds(GMM, GMM.start({"clusters": 4}, 2, begin), clients, rounds_max=30).params
    naive = run_rounds(
        GMM_LOCAL, GMM_LOCAL.start({"clusters": 4}, 2, begin), clients, rounds_max=30
    ).params
    assert (
        matched_distance(CORNERS, exact["centre"])
        < 0.3
        < matched_distance(CORNERS, naive["centre"])
    )


def test_kfed_starts_less_often_where_a_start_takes_long() -> None:
    assert starts_for(np.zeros((200, 8)), 20) == STARTS
    assert 1 < starts_for(np.zeros((600, 8)), 300) < STARTS
    assert starts_for(np.zeros((100_000, 8)), 500) == 1
