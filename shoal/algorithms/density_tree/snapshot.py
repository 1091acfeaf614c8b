"""The snapshot of density_tree: the plan under which clients count, and the clusters of the leaves.

`predict` and `view` need a snapshot alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shoal.algorithms.density_tree.axes import NO_AXES, Axes
from shoal.algorithms.density_tree.extents import Extents
from shoal.algorithms.density_tree.gaps import LeafFacts, possible_leaves
from shoal.algorithms.density_tree.identities import Identities, Shown
from shoal.algorithms.density_tree.leaf import Leaf
from shoal.algorithms.density_tree.plan_check import check_plan
from shoal.algorithms.density_tree.tree import Node, cuts_of, leaf_of, leaves_of, positions_of
from shoal.algorithms.streaming import Arrays, Rows
from shoal.algorithms.view import ClusteringView, Cuts
from shoal.kernels.arrays import AnyArray, Bools, Floats, Ints

NO_CLUSTER: Final = -1


def plan_arrays(root: Node, shares: Sequence[Ints]) -> dict[str, AnyArray]:
    """The arrays from which clients count: cuts, leaves, and the axes of all leaves with their
    shares, leaf by leaf."""
    leaves = leaves_of(root)
    cuts = list(cuts_of(root))
    position = positions_of(cuts, leaves)
    cut_axes = NO_AXES
    axes = NO_AXES
    for cut in cuts:
        cut_axes = cut_axes.with_more(cut.leaf.axes.take([cut.axis]))
    for leaf in leaves:
        axes = axes.with_more(leaf.axes)
    parts = [[position[id(part)] for part in cut.parts] for cut in cuts]
    return {
        **cut_axes.arrays("cut"),
        "cut_at": np.array([cut.at for cut in cuts], dtype=np.float64),
        "cut_parts": np.array(parts, dtype=np.int64).reshape(-1, 2),
        "leaf_id": np.array([leaf.leaf_id for leaf in leaves], dtype=np.int64),
        "axis_leaf": np.repeat(np.arange(len(leaves)), [len(leaf.axes) for leaf in leaves]),
        **axes.arrays("axis"),
        "axis_start": np.concatenate([leaf.start for leaf in leaves]),
        "axis_end": np.concatenate([leaf.end for leaf in leaves]),
        "axis_zoom": np.concatenate([leaf.zoom for leaf in leaves]),
        "axis_span": np.concatenate([leaf.span for leaf in leaves]),
        "axis_epoch": np.concatenate([leaf.epoch for leaf in leaves]),
        "axis_share": np.concatenate(shares),
    }


def cluster_arrays(
    root: Node,
    mass: Floats,
    extent: Extents,
    shown: Shown,
    identities: Identities,
    readings: int,
    circular: Sequence[int] = (),
) -> dict[str, AnyArray]:
    """The arrays that describe the leaves (l,) with their shares and extents, and the clusters
    (c,) as they are shown."""
    leaves = leaves_of(root)
    cluster, identity = shown
    low = np.array([leaf.low for leaf in leaves])
    high = np.array([leaf.high for leaf in leaves])
    clusters = [identities.clusters[number] for number in identity.tolist()]
    recent = np.bincount(cluster, weights=[leaf.recent for leaf in leaves])
    return {
        "low": low,
        "high": high,
        "mass": mass * readings,
        "counted": counted_in(leaves),
        "leaf_centre": extent.mean,
        # What a leaf has not counted itself may lie anywhere in its box.
        "leaf_low": np.where(extent.own, extent.low, low),
        "leaf_high": np.where(extent.own, extent.high, high),
        "cluster": cluster,
        "identity": identity,
        "centre": _cluster_means(extent.mean, mass, cluster, circular),
        "centre_mass": np.bincount(cluster, weights=mass) * readings,
        # The noise of private counts may put their sum below 0.
        "recent": np.maximum(recent, 0.0),
        "active": np.array([known.active for known in clusters], dtype=np.bool_),
        "parent": np.array([known.parent for known in clusters], dtype=np.int64),
        "since": np.array([known.since for known in clusters], dtype=np.int64),
    }


def counted_in(leaves: Sequence[Leaf]) -> Floats:
    """(l,) readings that fell into each leaf since the stream began."""
    return np.array([leaf.counted for leaf in leaves], dtype=np.float64)


def known_in(snapshot: Arrays) -> Bools:
    """(l, d) whether a leaf's own counts show where its readings lie on a feature: their middle is
    less than its box then."""
    is_whole = snapshot["leaf_low"] <= snapshot["low"]
    is_whole &= snapshot["leaf_high"] >= snapshot["high"]
    return np.asarray(~is_whole)


def predict(snapshot: Arrays, rows: Rows) -> Ints:
    """rows (n, d) in unit coordinates -> (n,) cluster of the leaf that each falls into, exact on
    the leaves' boxes.

    -1 as long as nothing is found. A row that lacks features (NaN) falls into the likeliest leaf of
    those that the others allow.
    """
    if not snapshot["found"][0]:
        return np.full(len(rows), NO_CLUSTER)
    cuts = Axes.from_arrays(snapshot, "cut"), snapshot["cut_at"], snapshot["cut_parts"]
    x = np.clip(rows, 0.0, 1.0)
    leaf = leaf_of(x, *cuts)
    lacking = np.flatnonzero(np.isnan(x).any(axis=1))
    if len(lacking):
        facts = LeafFacts.of(snapshot, rows.shape[1])
        pairs = possible_leaves(x[lacking], *cuts)
        # The likeliest leaf and not a drawn one: a label must be the same whenever it is asked for.
        leaf[lacking] = facts.likeliest(x[lacking], *pairs)
    return np.asarray(snapshot["cluster"][leaf])


def predictor(snapshot: Arrays) -> Cuts:
    """`predict` as plain data."""
    cluster = snapshot["cluster"]
    if not snapshot["found"][0]:
        cluster = np.full_like(cluster, NO_CLUSTER)
    axes = Axes.from_arrays(snapshot, "cut")
    parts = snapshot["cut_parts"].reshape(-1, 2)
    return Cuts(*axes.parts(), snapshot["cut_at"], parts, cluster)


def counted_points(update: Arrays, snapshot: Arrays) -> tuple[Rows, Floats]:
    """The centres (l, d) of a snapshot's leaves, and the readings (l,) that an update has counted
    in each.

    What it has counted in leaves that are gone is left out.
    """
    leaf = np.repeat(update["leaf"], update["cells"])
    numbers = snapshot["leaf_id"].tolist()
    counted = [float(update["count"][leaf == number].sum()) for number in numbers]
    return snapshot["leaf_centre"], np.maximum(counted, 0.0)


def view(snapshot: Arrays) -> ClusteringView:
    """View of the leaves as nodes without edges; the mass of a leaf is an estimate from noisy
    counts.

    It is empty until something is found.

    Raises `InvalidData` for a plan under which nothing can be counted.
    """
    check_plan(snapshot, snapshot["low"].shape[1])
    if not snapshot["found"][0]:
        return nothing_found(snapshot["low"].shape[1])
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
        counted=np.bincount(
            snapshot["cluster"],
            weights=np.maximum(snapshot["counted"], 0.0),
            minlength=len(snapshot["identity"]),
        ),
        accumulates=False,
        node_low=snapshot["leaf_low"],
        node_high=snapshot["leaf_high"],
        node_known=known_in(snapshot),
    )


def nothing_found(dimensions: int, identities: bool = True) -> ClusteringView:
    """A view without nodes and clusters; `identities`: of an algorithm that gives clusters lasting
    identities."""
    none: Floats = np.empty((0, dimensions))
    names: list[int] | None = [] if identities else None
    return ClusteringView.from_nodes(
        none,
        [],
        [],
        centres=none,
        centre_mass=[],
        identity=names,
        parent=names,
        recent=names,
        accumulates=False,
    )


def _cluster_means(
    centre: Floats, mass: Floats, cluster: Ints, circular: Sequence[int] = ()
) -> Floats:
    """(c, d) the means of the leaves' centres by mass; plain means where a cluster has none."""
    total = np.bincount(cluster, weights=mass)
    count = np.bincount(cluster)
    own = total[cluster]
    weight = np.where(own > 0.0, mass / np.where(own > 0.0, own, 1.0), 1.0 / count[cluster])
    means = np.zeros((len(total), centre.shape[1]))
    np.add.at(means, cluster, centre * weight[:, None])
    for feature in circular:
        # A cluster that lies across the ends has its mean on a circle: that of the directions.
        direction = np.zeros(len(total), dtype=np.complex128)
        np.add.at(direction, cluster, np.exp(2j * np.pi * centre[:, feature]) * weight)
        means[:, feature] = np.angle(direction) / (2.0 * np.pi) % 1.0
    return means
