"""density_tree and readings that lack values: one cell at most, the likeliest leaf, and clusters as
without gaps."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.gaps import LeafFacts, possible_leaves
from tests.algorithms.test_density_tree import CORNERS, blobs, learnt

NAN = np.nan
CUTS = Axes.features(2).take([0, 1]), np.array([0.5, 0.3]), np.array([[-1, 1], [-2, -3]])
"""x below 0.5 is leaf 0; above, y below 0.3 is leaf 1, and the rest leaf 2"""


def pairs(*rows: list[float]) -> list[tuple[int, int]]:
    which, leaf = possible_leaves(np.array(rows), *CUTS)
    return sorted(zip(which.tolist(), leaf.tolist(), strict=True))


def test_a_row_may_fall_into_every_leaf_that_its_values_allow() -> None:
    assert pairs([0.1, NAN], [NAN, 0.1], [0.9, NAN], [NAN, NAN], [0.9, 0.9]) == [
        (0, 0),
        (1, 0),
        (1, 1),
        (2, 1),
        (2, 2),
        (3, 0),
        (3, 1),
        (3, 2),
        (4, 2),
    ]


FACTS = LeafFacts(
    np.array([100.0, 100.0, 900.0]),
    np.array([[0.2, 0.5], [0.8, 0.1], [0.8, 0.8]]),
    np.full((3, 2), 0.05),
)


def test_the_likeliest_leaf_is_near_and_of_equally_near_ones_the_heavier() -> None:
    rows = np.array([[NAN, 0.12], [NAN, 0.52], [0.8, NAN]])
    which, leaf = possible_leaves(rows, *CUTS)
    assert FACTS.likeliest(rows, which, leaf).tolist() == [1, 0, 2]


def test_leaves_are_drawn_as_often_as_they_are_likely() -> None:
    words = ((np.arange(1000) + 0.5) / 1000 * 2**32).astype(np.uint32)
    rows = np.tile([0.8, NAN], (1000, 1))
    drawn = FACTS.drawn(rows, *possible_leaves(rows, *CUTS), words)
    assert np.bincount(drawn, minlength=3).tolist() == [0, 100, 900]


def test_far_from_every_leaf_and_in_many_features_one_is_still_likelier() -> None:
    d = 300
    facts = LeafFacts(
        np.ones(2), np.array([np.zeros(d), np.full(d, 0.01)]), np.full((2, d), 1 / 256)
    )
    rows = np.ones((1, d))
    rows[0, 0] = NAN
    assert facts.likeliest(rows, np.zeros(2, dtype=np.int64), np.arange(2)).tolist() == [1]


def lacking(rows: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    return np.where(np.random.default_rng(3).random(rows.shape) < share, NAN, rows)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, None])
def test_clusters_are_found_where_a_fifth_of_the_values_is_missing(epsilon: float | None) -> None:
    rows, truth = blobs(20_000, CORNERS, 1)
    server = learnt(lacking(rows, 0.2), epsilon)
    assert adjusted_rand_score(truth, server.predict(rows)) > 0.97
    one_is_there = np.where([[False, False, True]], NAN, rows)
    known = truth < 3
    assert adjusted_rand_score(truth[known], server.predict(one_is_there[known])) > 0.97


def test_a_reading_is_in_one_cell_at_most_whatever_it_lacks() -> None:
    plan = learnt(blobs(20_000, CORNERS, 1)[0], None).plan
    assert len(plan.leaf_ids) > 3
    rows = lacking(np.random.default_rng(1).random((300, 3)), 0.4)
    valid = np.ones(300, dtype=np.bool_)
    whole = plan.count(rows, valid, b"client", 3).counts
    for place in range(40):
        without = valid.copy()
        without[place] = False
        moved = whole - plan.count(rows, without, b"client", 3).counts
        assert moved.sum() == np.abs(moved).sum() <= 1
    assert (
        plan.count(np.full((9, 3), NAN), np.ones(9, dtype=np.bool_), b"client", 3).counts.sum() == 0
    )
