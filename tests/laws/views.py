"""What holds of the clustering view of every algorithm."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.view import NO_CLUSTER, ClusteringView


def assert_view_is_sound(view: ClusteringView, d: int) -> None:
    n = len(view.nodes)
    m = len(view.edges)
    c = len(view.centres)
    assert (view.nodes.shape, view.centres.shape) == ((n, d), (c, d))
    assert view.edges.shape == (m, 2)
    assert [len(view.node_id), len(view.mass), len(view.cluster)] == [n, n, n]
    assert [len(view.centre_mass), len(view.active)] == [c, c]
    assert len(np.unique(view.node_id)) == n
    assert ((view.cluster >= NO_CLUSTER) & (view.cluster < c)).all()
    assert ((view.edges >= 0) & (view.edges < n)).all()
    assert (view.edges[:, 0] != view.edges[:, 1]).all()
    assert (view.mass >= 0).all()
    for array in (view.nodes, view.mass, view.centres, view.centre_mass):
        assert array.dtype == np.float64
        assert np.isfinite(array).all()
    for array in (view.node_id, view.cluster, view.edges):
        assert array.dtype == np.int64
    assert view.active.dtype == np.bool_
    assert set(np.flatnonzero(view.active)) <= set(view.cluster.tolist()), (
        "an active cluster has a node"
    )
    assert view.bandwidth is None or (view.bandwidth.shape == (n,) and (view.bandwidth > 0).all())
    assert view.identity is None or len(np.unique(view.identity)) == c
    assert view.summary() == (view.active.sum(), n, m)
