"""Identities carried over by place: for a model that was rebuilt, so that the numbers of its nodes mean other nodes."""

from __future__ import annotations

from dataclasses import replace

from server_node.lineage.state import Lineage
from shoal.algorithms.view import ClusteringView
from shoal.kernels.distance import nearest


def carried_by_place(lineage: Lineage, before: ClusteringView, after: ClusteringView, readings: int) -> Lineage:
    """The lineage with each node of `after` given the identity of the nearest node of `before`.

    `readings` is how many the rebuilt model has learnt. Fewer than before: counts of readings in the lineage move down
    with it, so that what is confirmed stays so, and what has vanished is gone as soon as it would have been.
    """
    less = lineage.readings - readings
    clusters = {
        identity: replace(
            cluster,
            since_reading=max(0, cluster.since_reading - less),
            present_reading=max(0, cluster.present_reading - less),
        )
        for identity, cluster in lineage.clusters.items()
    }
    of_node: dict[int, int] = {}
    if len(before.nodes) and len(after.nodes):
        places, _ = nearest(after.nodes, before.nodes)
        known = [lineage.of_node.get(number) for number in before.node_id.tolist()]
        named = zip(after.node_id.tolist(), (known[place] for place in places.tolist()), strict=True)
        of_node = {number: identity for number, identity in named if identity is not None}
    mass = dict(zip(after.node_id.tolist(), after.mass.tolist(), strict=True))
    return replace(lineage, readings=readings, clusters=clusters, of_node=of_node, node_mass=mass)
