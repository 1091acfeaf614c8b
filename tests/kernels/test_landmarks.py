"""Landmark spectral clustering: weights on landmarks, Gram matrices, and the eigengap."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.kernels.arrays import pack_symmetric, unpack_symmetric
from shoal.kernels.landmarks import (
    add_gram,
    cut_graph,
    eigengap,
    embedded,
    landmark_bandwidth,
    laplacian_spectrum,
    lightest_cut,
    nearest_weights,
)

GENERATOR = np.random.default_rng(0)


def gram_of(
    rows: np.ndarray, landmarks: np.ndarray, near: int = 3, bandwidth: float = 0.2
) -> np.ndarray:
    gram = np.zeros((len(landmarks),) * 2)
    which, weights, _ = nearest_weights(rows, landmarks, bandwidth, near)
    add_gram(gram, which, weights)
    return unpack_symmetric(pack_symmetric(gram[None]), len(landmarks))[0]


def test_weights_are_gaussian_on_the_nearest_landmarks_and_add_up_to_1() -> None:
    rows = GENERATOR.normal(size=(50, 3))
    landmarks = GENERATOR.normal(size=(12, 3))
    which, weights, square = nearest_weights(rows, landmarks, 0.7, 4)
    far = ((rows[:, None] - landmarks) ** 2).sum(axis=2)
    np.testing.assert_array_equal(which, np.argsort(far, axis=1)[:, :4])
    np.testing.assert_allclose(square, far.min(axis=1))
    wanted = np.exp(-np.sort(far, axis=1)[:, :4] / (2 * 0.49))
    np.testing.assert_allclose(weights, wanted / wanted.sum(axis=1, keepdims=True))


def test_of_equally_near_landmarks_the_first_count() -> None:
    landmarks = np.array([[0.0], [2.0], [2.0], [4.0]])
    which, weights, _ = nearest_weights(np.array([[1.0], [3.0]]), landmarks, 1.0, 2)
    assert which.tolist() == [[0, 1], [1, 2]]
    np.testing.assert_allclose(weights, 0.5)


def test_rows_far_from_all_landmarks_and_fewer_landmarks_than_wanted_have_weights_too() -> None:
    which, weights, _ = nearest_weights(
        np.array([[1e140], [0.0]]), np.array([[0.0], [1.0]]), 1e-150, 5
    )
    assert which.shape == (2, 2)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert np.isfinite(weights).all()


def test_the_gram_matrix_is_that_of_the_dense_weights_and_its_rows_add_up_to_the_mass() -> None:
    rows = GENERATOR.uniform(size=(400, 2))
    landmarks = GENERATOR.uniform(size=(20, 2))
    which, weights, _ = nearest_weights(rows, landmarks, 0.2, 3)
    dense = np.zeros((400, 20))
    np.put_along_axis(dense, which, weights, axis=1)
    gram = gram_of(rows, landmarks)
    np.testing.assert_allclose(gram, dense.T @ dense, atol=1e-12)
    np.testing.assert_allclose(gram.sum(axis=1), dense.sum(axis=0))
    np.testing.assert_allclose(gram.sum(), 400)
    np.testing.assert_allclose(
        gram_of(rows[:150], landmarks) + gram_of(rows[150:], landmarks), gram
    )
    assert not gram_of(rows[:0], landmarks).any()


def test_the_spectrum_is_that_of_the_normalised_laplacian() -> None:
    gram = gram_of(GENERATOR.uniform(size=(500, 2)), GENERATOR.uniform(size=(15, 2)))
    values, vectors = laplacian_spectrum(gram)
    assert values[0] == pytest.approx(0, abs=1e-12)
    assert (np.diff(values) >= -1e-12).all()
    degree = np.diag(gram.sum(axis=1))
    np.testing.assert_allclose((degree - gram) @ vectors, degree @ vectors * values, atol=1e-10)


def chain(n: int) -> np.ndarray:
    """The graph of n landmarks in a line, each tied to itself and its neighbours."""
    return np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1)


def blocks(*parts: np.ndarray) -> np.ndarray:
    whole = np.zeros((sum(map(len, parts)),) * 2)
    first = 0
    for part in parts:
        whole[first : first + len(part), first : first + len(part)] = part
        first += len(part)
    return whole


@pytest.mark.parametrize("n", [1, 2, 3, 10, 50])
def test_one_chain_without_a_gap_is_one_cluster(n: int) -> None:
    assert len(cut_graph(chain(n), 0, 0).direction) == 1


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_chains_that_are_apart_are_as_many_clusters(parts: int) -> None:
    found = cut_graph(blocks(*[chain(12 + part) for part in range(parts)]), 0, 0)
    assert len(found.direction) == parts
    sizes = [12 + part for part in range(parts)]
    assert [len(set(part)) for part in np.split(found.cluster, np.cumsum(sizes)[:-1])] == [
        1
    ] * parts
    assert len(set(found.cluster.tolist())) == parts


def test_a_weak_tie_leaves_a_gap_and_a_strong_one_does_not() -> None:
    weak, strong = (blocks(chain(20), chain(20)) for _ in range(2))
    weak[19, 20] = weak[20, 19] = 1e-3
    strong[19, 20] = strong[20, 19] = 1.0
    assert len(cut_graph(weak, 0, 0).direction) == 2
    assert len(cut_graph(strong, 0, 0).direction) == 1
    # A chain has as large a factor between its eigenvalues; it is the weight of the cuts that tells
    # them apart.
    assert eigengap(laplacian_spectrum(strong)[0], 20) == 2
    assert lightest_cut(weak) == pytest.approx(1e-3)
    assert lightest_cut(strong) == 1.0
    assert lightest_cut(np.full((1, 1), 7.0)) == 7.0


def test_no_more_clusters_than_landmarks_with_mass() -> None:
    gram = blocks(chain(3), np.zeros((2, 2)))
    found = cut_graph(gram, 9, 0)
    assert len(found.direction) == 3
    assert found.cluster[3:].tolist() == [-1, -1]
    assert not found.basis[3:].any()


def test_a_row_has_the_direction_of_its_landmarks() -> None:
    basis = np.array([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    which = np.array([[0, 1], [2, 2]])
    weights = np.array([[0.6, 0.4], [0.5, 0.5]])
    np.testing.assert_allclose(embedded(which, weights, basis), [[2**-0.5, 2**-0.5], [0.0, 0.0]])


def test_the_bandwidth_follows_the_distance_of_the_landmarks() -> None:
    assert landmark_bandwidth(np.array([[0.0], [1.0], [3.0], [7.0]]), 0.5) == 0.75
    assert landmark_bandwidth(np.array([[5.0]]), 0.5) == 1.0
    assert landmark_bandwidth(np.array([[5.0], [5.0]]), 0.5) == 1.0
