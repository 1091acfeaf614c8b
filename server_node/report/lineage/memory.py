"""Places of known clusters, and of those that have ended: what is found again at the place of one
has its identity, its name and its history.

Algorithms that keep identities themselves bring one back themselves; a lineage keeps for them what
people have said of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from shoal.algorithms.former_clusters import FORMER_WIDTHS, Place, places_of, widths_apart
from shoal.algorithms.view import ClusteringView
from shoal.kernels.arrays import Floats
from shoal.kernels.distance import nearest
from shoal.server_node.report.lineage.matching import Groups

MIDDLE_80: Final = 2.563
"""standard deviations of a normal distribution between the ends of its middle 80 %"""


def places_of_groups(view: ClusteringView, groups: Groups) -> dict[int, Place]:
    """Number in the snapshot -> the place of its nodes."""
    if not groups.mass:
        return {}
    numbers = np.array(sorted(groups.mass))
    at = numbers.searchsorted(view.cluster)
    # `clip`: beyond the last number is another one, and no error.
    of_groups = (numbers.take(at, mode="clip") == view.cluster).nonzero()[0]
    # The nodes of a cluster one after the other, in the order of the snapshot.
    clusters = view.cluster[of_groups]
    order = np.argsort(clusters, kind="stable")
    ordered = of_groups[order]
    places = places_of(
        view.nodes[ordered],
        _node_variances(view)[ordered],
        view.mass[ordered],
        clusters[order].searchsorted(numbers),
    )
    return dict(zip(numbers.tolist(), places, strict=True))


def former_at(place: Place, former: Mapping[int, Place]) -> int | None:
    """The identity of the former cluster nearest to a place, if it is within `FORMER_WIDTHS`; else
    None."""
    found = None
    least = FORMER_WIDTHS
    for identity, known in former.items():
        # After a change of the contract a place may have other features.
        if len(known.mean) != len(place.mean):
            continue
        apart = widths_apart(place, known)
        if apart <= least:
            found = identity
            least = apart
    return found


def nearest_identities(points: Floats, places: Mapping[int, Place]) -> list[int]:
    """points (n, d), and places by identity -> the identity nearest to each point; none where
    nothing is known over d features."""
    width = points.shape[1]
    means = {number: place.mean for number, place in places.items() if len(place.mean) == width}
    if not means or not len(points):
        return []
    identities = list(means)
    at, _ = nearest(points, np.array(list(means.values())))
    return [identities[position] for position in at.tolist()]


def _node_variances(view: ClusteringView) -> Floats:
    """(n, d) the variance of the readings of each node, as far as the view shows it."""
    # What the view has measured comes first; a bandwidth is one width for all features; of bare
    # centres only their distances are known.
    if view.node_low is not None and view.node_high is not None:
        return np.asarray(np.square((view.node_high - view.node_low) / MIDDLE_80))
    if view.bandwidth is not None:
        return np.repeat(np.square(view.bandwidth)[:, None], view.nodes.shape[1], axis=1)
    if len(view.nodes) != len(view.centres) or len(view.nodes) < 2:
        return np.zeros_like(view.nodes)
    # Of centres alone: what lies nearer to one than half the way to the next one is at its place.
    squared = np.square(view.nodes[:, None] - view.nodes).sum(axis=-1)
    # A node is nearest to itself.
    np.fill_diagonal(squared, np.inf)
    width = np.sqrt(squared.min(axis=1)) / (2.0 * FORMER_WIDTHS)
    return np.repeat(np.square(width)[:, None], view.nodes.shape[1], axis=1)
