"""The cut is passed at the same node as by the full determinant, and a stream that never passes it
stays cheap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms.fcac.nodes import Diversity
from shoal.kernels.arrays import Floats
from tests.examples import examples

CUT = 1e-6


def similarities(points: Floats, sigma: float) -> Floats:
    similarity: Floats = np.exp(
        np.exp(-((points[:, None] - points[None]) ** 2) / (2 * sigma**2)).mean(axis=2)
    )
    return similarity


def plain_verdicts(similarity: Floats, nodes_min: int) -> Iterator[bool]:
    for k in range(1, len(similarity) + 1):
        with np.errstate(over="ignore"):
            det = np.linalg.det(similarity[:k, :k])
        yield bool(k >= nodes_min and det < CUT)


def verdicts(similarity: Floats, nodes_min: int) -> tuple[list[bool], Diversity]:
    diversity = Diversity(CUT, nodes_min)
    below = []
    for k, row in enumerate(similarity):
        diversity.add_node(row[:k])
        below.append(diversity.is_below_cut())
    return below, diversity


def kinds_of_points(kind: str, seed: int, n: int, d: int) -> Floats:
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(n, d))
    if kind == "lattice":
        points = generator.integers(0, 3, size=(n, d)).astype(float)
    elif kind == "copies":
        points = points[generator.integers(0, max(1, n // 3), size=n)]
    elif kind == "near copies":
        points = (
            points[generator.integers(0, max(1, n // 2), size=n)]
            + generator.normal(size=(n, d)) * 1e-5
        )
    elif kind == "equal":
        points = np.ones((n, d))
    return points


@settings(max_examples=examples(150), deadline=None)
@given(
    kind=st.sampled_from(["cloud", "lattice", "copies", "near copies", "equal"]),
    seed=st.integers(0, 10**6),
    d=st.integers(1, 20),
    sigma=st.sampled_from([0.01, 0.2, 0.5, 1.0, 3.0]),
    nodes_min=st.sampled_from([2, 10]),
)
def test_it_falls_below_the_cut_at_the_same_node_as_the_full_determinant(
    kind: str, seed: int, d: int, sigma: float, nodes_min: int
) -> None:
    similarity = similarities(kinds_of_points(kind, seed, 60, d), sigma)
    expected = list(plain_verdicts(similarity, nodes_min))
    below, _ = verdicts(similarity, nodes_min)
    first = expected.index(True) if True in expected else len(expected)
    # The network asks no more after the first True.
    assert below[: first + 1] == expected[: first + 1]


def test_an_exact_copy_is_below_the_cut_as_soon_as_there_are_enough_nodes() -> None:
    far_apart = np.arange(40.0)[:, None] * 100
    for copied_at in (3, 9, 25):
        points = np.insert(far_apart, copied_at, far_apart[copied_at - 1], axis=0)
        below, _ = verdicts(similarities(points, 1.0), 10)
        assert below.index(True) == max(copied_at, 9)


def test_a_negative_determinant_is_below_the_cut() -> None:
    diversity = Diversity(CUT, 2)
    diversity.add_node(np.empty(0))
    diversity.add_node(np.array([4.0]))
    assert diversity.is_below_cut()


def test_a_stream_whose_diversity_never_falls_needs_no_full_determinant() -> None:
    below, diversity = verdicts(similarities(np.arange(400.0)[:, None] * 100, 1.0), 10)
    assert not any(below)
    assert diversity.n_exact == 0


def test_with_too_few_nodes_it_is_never_below_the_cut() -> None:
    below, diversity = verdicts(similarities(np.zeros((9, 2)), 1.0), 10)
    assert not any(below)
    assert diversity.n_exact == 0


@pytest.mark.parametrize("n", [10, 11, 20, 21, 45])
def test_doubling_the_capacity_changes_nothing(n: int) -> None:
    similarity = similarities(np.random.default_rng(n).normal(size=(n, 30)), 0.4)
    roomy = Diversity(CUT, 10)
    tight = Diversity(CUT, 2)
    for k, row in enumerate(similarity):
        roomy.add_node(row[:k])
        tight.add_node(row[:k])
    assert roomy.is_below_cut() == tight.is_below_cut()
    assert roomy._log_det == tight._log_det == pytest.approx(np.linalg.slogdet(similarity)[1])


@pytest.mark.parametrize("ahead", [1, 7, 1000])
def test_looking_ahead_changes_no_verdict_beyond_rounding(ahead: int) -> None:
    """Of more nodes than wait together, and more than a panel of the factor has."""
    points = np.random.default_rng(5).normal(size=(700, 30))
    similarity = similarities(points, 0.2)
    diversity = Diversity(CUT, 10)
    k = 0
    while k < len(similarity):
        block = range(k, min(k + min(ahead, diversity.room_ahead), len(similarity)))
        diversity.look_ahead([similarity[place, :place] for place in block])
        for place in block:
            assert diversity.add_next()
            assert not diversity.is_below_cut()
            k = place + 1
        assert not diversity.add_next()
    assert diversity._log_det == pytest.approx(np.linalg.slogdet(similarity)[1], rel=1e-9)
    assert diversity.n_exact == 0
