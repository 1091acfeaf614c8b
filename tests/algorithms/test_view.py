"""The one form in which every algorithm shows its clustering."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.view import ClusteringView
from tests.laws.views import assert_view_is_sound


def test_clusters_of_nodes_get_their_mean_by_mass() -> None:
    view = ClusteringView.from_nodes(
        [[0.0, 0.0], [1.0, 1.0], [0.5, 0.5], [9.0, 9.0]], [1, 3, 2, 7], [0, 0, 1, -1]
    )
    assert_view_is_sound(view, 2)
    np.testing.assert_allclose(view.centres, [[0.75, 0.75], [0.5, 0.5]])
    assert view.centre_mass.tolist() == [4.0, 2.0]
    assert view.node_id.tolist() == [0, 1, 2, 3]
    assert view.summary() == (2, 4, 0)


def test_a_view_of_nothing_is_sound() -> None:
    for view in (
        ClusteringView.from_nodes(np.empty((0, 3)), [], []),
        ClusteringView.from_centres(np.empty((0, 3)), []),
    ):
        assert_view_is_sound(view, 3)
        assert view.summary() == (0, 0, 0)


def test_nodes_without_a_cluster_make_no_centre() -> None:
    view = ClusteringView.from_nodes([[0.0], [1.0]], [1, 1], [-1, -1])
    assert_view_is_sound(view, 1)
    assert view.centres.shape == (0, 1)


def test_a_centre_without_rows_is_a_node_and_no_cluster() -> None:
    view = ClusteringView.from_centres([[0.0], [1.0], [2.0]], [5.0, 0.0, 1.0])
    assert_view_is_sound(view, 1)
    assert view.cluster.tolist() == [0, -1, 2]
    assert view.active.tolist() == [True, False, True]
    assert view.summary() == (2, 3, 0)


def test_an_algorithm_may_give_identities_and_inactive_clusters() -> None:
    view = ClusteringView.from_nodes(
        [[0.0], [1.0]], [4, 4], [0, 1], identity=[7, 3], active=[True, False]
    )
    assert view.identity is not None
    assert view.identity.tolist() == [7, 3]
    assert view.summary().clusters == 1


def test_a_view_cannot_be_changed() -> None:
    view = ClusteringView.from_centres([[0.0]], [1.0])
    with pytest.raises(AttributeError):
        view.nodes = np.ones((1, 1))  # type: ignore[misc]  # that is the point
