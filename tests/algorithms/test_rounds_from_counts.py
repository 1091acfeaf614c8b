"""Algorithms in rounds on rows that the server draws from private counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.privacy.counting import learn
from benchmarks.privacy.families import Stream, families
from reproduction.experiment import scores
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.density_tree import DensityTreeOptions
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.from_counts.rounds import DRAWN_ROWS
from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.rounds.kmeans import KMEANS
from shoal.algorithms.streaming import Contribution
from shoal.errors import SettingsError
from shoal.estimators.density_tree import DensityTree

NAMES = ("kmeans_from_counts", "fcm_from_counts", "gmm_from_counts")
READINGS = 12_000


def algorithm(name: str) -> CountingAlgorithm:
    found = load_algorithm(name)
    assert isinstance(found, CountingAlgorithm)
    return found


def stream(name: str) -> Stream:
    return families(READINGS, READINGS)[name](77)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clusters", [6, "auto"])
def test_six_blobs_of_eight_features_are_found_at_an_epsilon_of_two(
    name: str, clusters: int | str
) -> None:
    blobs = stream("blobs d=8")
    learnt = learn(algorithm(name), blobs, 2.0, seed=1, clusters=clusters)
    found = algorithm(name).predict(learnt.snapshot, blobs.rows)
    assert float(scores(blobs.truth, found)["ari"]) > 0.95
    assert len(learnt.snapshot["centre"]) == 6


def test_rows_are_drawn_where_readings_are() -> None:
    blobs = stream("blobs d=2")
    model = DensityTree(epsilon=4.0, random_state=3).fit(blobs.rows, clients=blobs.owner)
    server = model._federation.server
    assert isinstance(server, DensityTreeServer)
    drawn = server.draw_rows(DRAWN_ROWS)
    assert abs(len(drawn) - DRAWN_ROWS) < 100
    away = np.sqrt(((drawn[:, None] - blobs.rows[None, ::20]) ** 2).sum(axis=2)).min(axis=1)
    assert np.quantile(away, 0.95) < 0.03
    np.testing.assert_allclose(drawn.mean(axis=0), blobs.rows.mean(axis=0), atol=0.02)


def test_before_any_reading_rows_fill_the_box() -> None:
    drawn = DensityTreeServer(3).draw_rows(1000)
    assert drawn.shape == (1000, 3)
    np.testing.assert_allclose(drawn.mean(axis=0), 0.5, atol=0.01)
    np.testing.assert_allclose(np.ptp(drawn, axis=0), 1.0, atol=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_rounds_run_when_the_tree_changes_and_clients_count_under_its_plan(name: str) -> None:
    declared = algorithm(name)
    options: dict[str, Any] = {
        "clusters": 3,
        "grow_readings": 500,
        "noise_variance": 0.0,
        "window_readings": 100,
    }
    server = declared.server(options, 2)
    counter = declared.counter(options, 2)
    rows = np.random.default_rng(5).normal([0.2, 0.7], 0.03, size=(1000, 2))
    changed = []
    for number in range(10):
        before = server.snapshot()
        counter.adopt(before)
        window = rows[100 * number : 100 * number + 100]
        counted = counter.count(window, np.ones(100, dtype=np.bool_), b"client", number)
        server.absorb([Contribution("client", number, counted.update(counted.counts))], b"")
        changed.append(not np.array_equal(before["centre"], server.snapshot()["centre"]))
    assert [number for number, is_other in enumerate(changed) if is_other] == [4, 9], (
        "after 500 readings each"
    )
    assert abs(server.snapshot()["centre"].mean(axis=0) - [0.2, 0.7]).max() < 0.1


def test_options_of_the_algorithm_and_of_its_tree_are_taken_and_others_refused() -> None:
    declared = algorithm("kmeans_from_counts")
    declared.server({"clusters": 4, "decay": 0.98}, 2)
    for options, why in (
        ({"clusters": "gap"}, "give a number"),
        ({"clusters": 0}, "clusters = 0"),
        ({"leafs": 3}, "no option 'leafs'"),
        ({"decay": 2.0}, "decay = 2.0"),
    ):
        with pytest.raises(SettingsError, match=why):
            declared.server(options, 2)
    tree_options = set(DensityTreeOptions.model_fields)
    assert not tree_options & set(KMEANS.options.model_fields), "one name, one meaning"
