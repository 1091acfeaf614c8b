"""The snapshot of density_tree: the plan under which clients count, and the clusters of the leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.density_tree.axes import NO_AXES, Axes, Ints
from shoal.algorithms.density_tree.extents import extents
from shoal.algorithms.density_tree.identities import Identities
from shoal.algorithms.density_tree.plan_check import check_plan
from shoal.algorithms.density_tree.tree import Node, cuts_of, leaf_of, leaves_of
from shoal.algorithms.streaming import Arrays, Rows
from shoal.algorithms.view import ClusteringView
from shoal.kernels.distance import Floats

_AXES = ("first", "second", "first_weight", "second_weight")


def plan_arrays(root: Node, shares: Sequence[Ints]) -> dict[str, NDArray[Any]]:
    """The arrays from which clients count: cuts, leaves, and the axes of all leaves with their shares, leaf by leaf."""
    leaves, cuts = leaves_of(root), list(cuts_of(root))
    position: dict[int, int] = {id(cut): i for i, cut in enumerate(cuts)}
    position.update({id(leaf): -1 - i for i, leaf in enumerate(leaves)})
    cut_axes, axes = NO_AXES, NO_AXES
    for cut in cuts:
        cut_axes = cut_axes.with_more(cut.leaf.axes.take([cut.axis]))
    for leaf in leaves:
        axes = axes.with_more(leaf.axes)
    parts = [[position[id(part)] for part in cut.parts] for cut in cuts]
    return {
        **_axis_arrays("cut", cut_axes),
        "cut_at": np.array([cut.at for cut in cuts], dtype=np.float64),
        "cut_parts": np.array(parts, dtype=np.int64).reshape(-1, 2),
        "leaf_id": np.array([leaf.leaf_id for leaf in leaves], dtype=np.int64),
        "axis_leaf": np.repeat(np.arange(len(leaves)), [len(leaf.axes) for leaf in leaves]),
        **_axis_arrays("axis", axes),
        "axis_start": np.concatenate([leaf.start for leaf in leaves]),
        "axis_end": np.concatenate([leaf.end for leaf in leaves]),
        "axis_zoom": np.concatenate([leaf.zoom for leaf in leaves]),
        "axis_span": np.concatenate([leaf.span for leaf in leaves]),
        "axis_epoch": np.concatenate([leaf.epoch for leaf in leaves]),
        "axis_share": np.concatenate(shares),
    }


def cluster_arrays(
    root: Node, mass: Floats, cluster: Ints, identity: Ints, identities: Identities, readings: int
) -> dict[str, NDArray[Any]]:
    """The arrays that describe the leaves (l,) with their shares and clusters, and the clusters (c,)."""
    leaves = leaves_of(root)
    extent = extents(root)
    facts = [identities.clusters[one] for one in identity.tolist()]
    recent = np.bincount(cluster, weights=[leaf.recent for leaf in leaves])
    return {
        "low": np.array([leaf.low for leaf in leaves]),
        "high": np.array([leaf.high for leaf in leaves]),
        "mass": mass * readings,
        "leaf_centre": extent.mean,
        "leaf_low": extent.low,
        "leaf_high": extent.high,
        "cluster": cluster,
        "identity": identity,
        "centre": _cluster_means(extent.mean, mass, cluster),
        "centre_mass": np.bincount(cluster, weights=mass) * readings,
        "recent": np.maximum(recent, 0.0),
        "active": np.array([one.active for one in facts], dtype=np.bool_),
        "parent": np.array([one.parent for one in facts], dtype=np.int64),
        "since": np.array([one.since for one in facts], dtype=np.int64),
    }


def predict(snapshot: Arrays, rows: Rows) -> NDArray[np.int64]:
    """rows (n, d) in unit coordinates -> (n,) cluster of the leaf that each falls into, exact on the leaves' boxes."""
    axes = Axes(*(snapshot[f"cut_{part}"] for part in _AXES))
    leaf = leaf_of(np.clip(rows, 0.0, 1.0), axes, snapshot["cut_at"], snapshot["cut_parts"])
    return np.asarray(snapshot["cluster"][leaf])


def counted_points(update: Arrays, snapshot: Arrays) -> tuple[Rows, NDArray[np.float64]]:
    """The centres (l, d) of a snapshot's leaves, and the readings (l,) that an update has counted in each.

    What it has counted in leaves that are gone is left out.
    """
    leaf = np.repeat(update["leaf"], update["cells"])
    counted = [float(update["count"][leaf == number].sum()) for number in snapshot["leaf_id"].tolist()]
    return snapshot["leaf_centre"], np.maximum(counted, 0.0)


def view(snapshot: Arrays) -> ClusteringView:
    """Its leaves as nodes without edges; the mass of a leaf is an estimate from noisy counts.

    Raises `InvalidData` for a plan under which nothing can be counted.
    """
    check_plan(snapshot, snapshot["low"].shape[1])
    return ClusteringView.from_nodes(
        snapshot["leaf_centre"],
        snapshot["mass"],
        snapshot["cluster"],
        node_id=snapshot["leaf_id"],
        centres=snapshot["centre"],
        centre_mass=snapshot["centre_mass"],
        active=snapshot["active"],
        identity=snapshot["identity"],
        parent=snapshot["parent"],
        recent=snapshot["recent"],
        accumulates=False,
        node_low=snapshot["leaf_low"],
        node_high=snapshot["leaf_high"],
    )


def _axis_arrays(name: str, axes: Axes) -> dict[str, NDArray[Any]]:
    return {f"{name}_{part}": values.copy() for part, values in zip(_AXES, axes.parts(), strict=True)}


def _cluster_means(centre: Floats, mass: Floats, cluster: Ints) -> Floats:
    """(c, d) the means of the leaves' centres by mass; plain means where a cluster has none."""
    total, count = np.bincount(cluster, weights=mass), np.bincount(cluster)
    own = total[cluster]
    weight = np.where(own > 0.0, mass / np.where(own > 0.0, own, 1.0), 1.0 / count[cluster])
    means = np.zeros((len(total), centre.shape[1]))
    np.add.at(means, cluster, centre * weight[:, None])
    return means
