"""The number of clusters by a criterion on landmarks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.metrics import silhouette_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from shoal.algorithms.options import CRITERIA
from shoal.algorithms.rounds.choice import (
    LANDMARKS_MAX,
    PER_CLUSTER,
    Landmarks,
    Partitions,
    _silhouette,
    bic,
    choose_clusters,
)
from shoal.errors import InvalidData
from shoal.kernels.gaussian import COVARIANCE_TYPES
from shoal.kernels.lloyd import assign, kmeans_plusplus, lloyd

CENTRES = np.array([[0.2, 0.2], [0.8, 0.2], [0.2, 0.8], [0.8, 0.8]])


def heaps(centres: np.ndarray, n: int = 160, seed: int = 0) -> Landmarks:
    """Rows, each a landmark of its own."""
    generator = np.random.default_rng(seed)
    points = centres[np.arange(n) % len(centres)] + generator.normal(size=(n, 2)) * 0.05
    return Landmarks(points, np.ones(n))


def cells(centres: np.ndarray, seed: int = 0) -> Landmarks:
    """Landmarks that stand for ten rows each on average."""
    rows = heaps(centres, 2000, seed).points
    found, _ = lloyd(rows, rows[kmeans_plusplus(rows, 200, seed)], 10)
    return Landmarks(found, assign(rows, found)[0])


def test_without_landmarks_there_is_nothing_to_choose_from() -> None:
    for nothing in (
        Landmarks(np.empty((0, 2)), np.empty(0)),
        Landmarks(np.ones((3, 2)), np.zeros(3)),
    ):
        with pytest.raises(InvalidData, match="no landmark"):
            choose_clusters("gap", nothing, 5)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(
    "points", [np.full((1, 2), 0.5), np.full((50, 2), 0.5), np.array([[0.1, 0.1], [0.9, 0.9]])]
)
def test_few_or_equal_landmarks_are_at_most_two_clusters(
    criterion: str, points: np.ndarray
) -> None:
    chosen = choose_clusters(criterion, Landmarks(points, np.ones(len(points))), 20)
    assert 1 <= len(chosen.centres) <= 2
    assert np.isfinite(chosen.centres).all()
    assert chosen.mass.sum() == pytest.approx(len(points))


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [2, 3, 4])
def test_clusters_that_are_far_apart_are_counted(criterion: str, seed: int, k: int) -> None:
    chosen = choose_clusters(criterion, heaps(CENTRES[:k], seed=seed), 20)
    assert len(chosen.centres) == k
    apart = np.linalg.norm(chosen.centres[:, None] - CENTRES[None, :k], axis=2)
    assert (apart.min(axis=0) < 0.05).all()


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("k", [2, 3, 4])
def test_landmarks_of_many_rows_give_the_same_number(criterion: str, k: int) -> None:
    for seed in range(3):
        assert len(choose_clusters(criterion, cells(CENTRES[:k], seed), 20).centres) == k


@pytest.mark.parametrize("criterion", ["gap", "bic"])
@pytest.mark.parametrize("seed", range(3))
def test_one_cluster_is_one(criterion: str, seed: int) -> None:
    assert len(choose_clusters(criterion, heaps(CENTRES[:1], seed=seed), 20).centres) == 1


@pytest.mark.parametrize("seed", range(3))
def test_long_clusters_are_many_round_ones_and_few_components_of_a_mixture(seed: int) -> None:
    generator = np.random.default_rng(seed)
    points = np.concatenate(
        [generator.normal(size=(100, 2)) * [0.3, 0.02] + [0.0, high] for high in (0.0, 0.3)]
    )
    landmarks = Landmarks(points, np.ones(len(points)))
    assert 2 <= len(choose_clusters("bic", landmarks, 20).centres) <= 3
    assert len(choose_clusters("gap", landmarks, 20).centres) > 2


@pytest.mark.parametrize("seed", range(3))
def test_clusters_five_times_as_long_as_wide_are_counted_by_the_bend_of_the_gap(seed: int) -> None:
    """The gap itself rises on, as each of them is better cut."""
    generator = np.random.default_rng(seed)
    rows = [generator.normal(size=(100, 2)) * [0.25, 0.05] + [0.0, high] for high in (0, 2, 4)]
    landmarks = Landmarks(np.concatenate(rows), np.ones(300))
    assert len(choose_clusters("gap", landmarks, 20).centres) == 3


def test_a_gap_that_rises_without_an_end_bends_where_the_clusters_are() -> None:
    rows = StandardScaler().fit_transform(load_iris().data)
    risen = choose_clusters("gap", Landmarks(rows, np.ones(len(rows))), 20)
    assert len(risen.centres) in (2, 3), "two of the three kinds overlap"
    assert not risen.is_most
    assert choose_clusters("gap", heaps(CENTRES), len(CENTRES)).is_most, "there may be more"


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_same_landmarks_give_the_same_choice(criterion: str) -> None:
    first, again = (choose_clusters(criterion, heaps(CENTRES), 20, seed=3) for _ in range(2))
    assert first.centres.tobytes() == again.centres.tobytes()


@pytest.mark.parametrize("criterion", CRITERIA)
def test_no_more_clusters_than_allowed_are_chosen(criterion: str) -> None:
    assert len(choose_clusters(criterion, heaps(CENTRES), 3).centres) <= 3
    few = heaps(CENTRES, n=2 * PER_CLUSTER)
    assert len(choose_clusters(criterion, few, 20).centres) <= 2


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_present_number_is_kept_where_no_other_is_clearly_better(criterion: str) -> None:
    landmarks = heaps(CENTRES)
    # Two clusters that have grown together: about as good as one.
    near = heaps(np.array([[0.2, 0.2], [0.3, 0.2], [0.8, 0.8]]), seed=2)
    assert len(choose_clusters(criterion, landmarks, 20, present=2).centres) == 4, (
        "two are clearly worse"
    )
    assert len(choose_clusters(criterion, landmarks, 20, present=4).centres) == 4
    free = len(choose_clusters(criterion, near, 20).centres)
    assert len(choose_clusters(criterion, near, 20, present=free).centres) == free


def test_a_number_that_lacks_little_is_kept() -> None:
    """The margin is what keeps a number from changing with every few rows."""
    near = heaps(np.array([[0.2, 0.2], [0.33, 0.2], [0.8, 0.8]]), seed=2)
    chosen = {
        len(choose_clusters("silhouette", near, 20, present=present).centres) for present in (2, 3)
    }
    widths = [_silhouette(Partitions(near), k) for k in (2, 3)]
    assert (chosen == {2, 3}) == (abs(widths[0] - widths[1]) < 0.02)


def test_more_clusters_never_have_a_larger_inertia() -> None:
    partitions = Partitions(heaps(CENTRES))
    inertias = [partitions.inertia(k) for k in range(1, 21)]
    assert all(later <= earlier + 1e-15 for earlier, later in itertools.pairwise(inertias))


def test_many_landmarks_are_merged_before_the_choice() -> None:
    many = heaps(CENTRES, n=5 * LANDMARKS_MAX)
    chosen = choose_clusters("silhouette", many, 10)
    assert len(chosen.centres) == 4
    assert chosen.mass.sum() == pytest.approx(len(many.points))


@pytest.mark.parametrize("k", [2, 3, 5])
def test_the_silhouette_of_equal_masses_is_that_of_scikit_learn(k: int) -> None:
    points = heaps(CENTRES).points
    partitions = Partitions(Landmarks(points, np.ones(len(points))))
    assert _silhouette(partitions, k) == pytest.approx(
        silhouette_score(points, partitions.labels(k)), abs=1e-9
    )


def test_a_landmark_of_mass_two_counts_as_two_rows() -> None:
    points = heaps(CENTRES, n=40).points
    mass = np.where(np.arange(40) % 3 == 0, 2.0, 1.0)
    doubled = np.repeat(points, mass.astype(int), axis=0)
    heavy = Partitions(Landmarks(points, mass))
    repeated = Partitions(Landmarks(doubled, np.ones(len(doubled))))
    assert heavy.inertia(4) == pytest.approx(repeated.inertia(4))
    np.testing.assert_allclose(heavy.centres(4), repeated.centres(4), atol=1e-12)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_the_bic_is_that_of_scikit_learn(covariance_type: str) -> None:
    rows = heaps(CENTRES).points
    mixture = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(rows)
    ours = bic(mixture.score(rows) * len(rows), len(rows), 3, 2, covariance_type)
    assert ours == pytest.approx(mixture.bic(rows))


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_every_form_of_covariance_counts_round_clusters(covariance_type: str) -> None:
    assert (
        len(choose_clusters("bic", heaps(CENTRES), 10, covariance_type=covariance_type).centres)
        == 4
    )
