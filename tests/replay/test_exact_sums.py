"""Sums of floats that no order of the additions changes."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import InitHint
from shoal.onebox.replay.exact_sums import ExactSum, ExactSums

FINITE = st.floats(allow_nan=False, allow_infinity=False, max_value=1e300, min_value=-1e300)


def sum_of(values: list[float]) -> ExactSum:
    total = ExactSum((1,))
    for value in values:
        total.add(np.array([value]))
    return total


@given(st.lists(FINITE, max_size=30))
def test_a_sum_is_the_float_nearest_to_the_true_sum(values: list[float]) -> None:
    assert sum_of(values).value()[0] == math.fsum(values)


@given(st.lists(FINITE, min_size=1, max_size=30), st.data())
def test_a_tree_of_sums_is_the_flat_sum_in_any_order(
    values: list[float], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(values))
    cut = data.draw(st.integers(0, len(values)))
    left = sum_of(order[:cut])
    right = sum_of(order[cut:])
    left.merge(right)
    assert left.value()[0] == math.fsum(values)
    assert right.value()[0] == math.fsum(order[cut:]), "what is merged stays as it is"


def test_the_smallest_and_the_largest_floats_are_added_without_loss() -> None:
    extremes = [5e-324, 1.7e308, -1.7e308, -0.0, 2.0**-1022, 5e-324]
    assert sum_of(extremes).value()[0] == math.fsum(extremes)


def test_plain_addition_would_depend_on_the_order() -> None:
    values = [1e16, 1.0, -1e16, 1.0]
    assert sum(values) != math.fsum(values) == sum_of(values).value()[0]


@pytest.mark.parametrize("name", ["kmeans", "fcm", "gmm"])
@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_answers_add_up_to_the_flat_sums_over_any_partitions(name: str, partitions: int) -> None:
    algorithm = rounds_algorithm(name)
    rng = np.random.default_rng(3)
    params = algorithm.start({"clusters": 4}, 3, InitHint(np.zeros(3), np.ones(3)))
    answers = [algorithm.answer(params, rng.random((rng.integers(1, 60), 3))) for _ in range(40)]
    leaves = []
    for part in np.array_split(rng.permutation(40), partitions):
        leaves.append(ExactSums())
        for number in part:
            leaves[-1].add(answers[number])
    total = ExactSums().merge(pickle.loads(pickle.dumps(leaves)))
    assert total.answers == 40
    for array, sums in total.value().items():
        flat = [
            math.fsum(entries)
            for entries in np.array([answer[array].ravel() for answer in answers]).T
        ]
        assert sums.ravel().tolist() == flat, array
    tree = algorithm.combine(params, [total.value()])
    in_order = algorithm.combine(params, answers)
    np.testing.assert_allclose(tree["centre"], in_order["centre"], rtol=1e-12)


def test_no_answers_have_no_sums() -> None:
    assert ExactSums().merge([]).value() == {}
