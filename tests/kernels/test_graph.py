"""Components against reachability by paths, and the age above which an edge is too old."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernels.graph import age_threshold, components


def joined(n: int, *pairs: tuple[int, int]) -> list[int]:
    labels: list[int] = components(n, np.array(pairs, dtype=np.int64).reshape(-1, 2)).tolist()
    return labels


def test_no_nodes_have_no_components() -> None:
    assert joined(0) == []


def test_nodes_without_edges_are_components_of_their_own() -> None:
    assert joined(3) == [0, 1, 2]


def test_components_are_numbered_by_their_first_node() -> None:
    assert joined(6, (4, 5), (0, 3), (3, 1)) == [0, 0, 1, 0, 2, 2]
    assert joined(5, (3, 4), (1, 2), (2, 4)) == [0, 1, 1, 1, 1]


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))
    )
)
def test_two_nodes_share_a_component_when_a_path_joins_them(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    n, pairs = graph
    reach = np.eye(n, dtype=bool)
    for a, b in pairs:
        reach[a, b] = reach[b, a] = True
    for _ in range(n):
        reach = (reach.astype(int) @ reach.astype(int)) > 0
    labels = np.array(joined(n, *pairs))
    np.testing.assert_array_equal(labels[:, None] == labels[None], reach)
    firsts = [labels.tolist().index(label) for label in range(labels.max() + 1)]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("ages", [[], [7], [3, 3, 3], [1, 1, 2], [1, 2, 2]])
def test_there_is_no_threshold_when_one_half_is_empty(ages: list[int]) -> None:
    assert age_threshold(ages, 0.1) is None


@pytest.mark.parametrize(
    ("ages", "q1", "q3"),
    [([9, 1], 1, 9), ([1, 2, 3], 1, 3), ([4, 1, 3, 2], 1.5, 3.5), ([1, 2, 2, 2, 10, 20], 1, 15)],
)
def test_the_quartiles_are_the_medians_of_the_strict_halves(
    ages: list[int], q1: float, q3: float
) -> None:
    assert age_threshold(ages, 0.1) == pytest.approx(q3 + 0.1 * (q3 - q1))
    assert age_threshold(ages, 1.0) == pytest.approx(2 * q3 - q1)
