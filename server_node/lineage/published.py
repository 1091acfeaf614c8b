"""The identities of a lineage as they travel in snapshots, and a lineage made of a snapshot after a lost checkpoint."""

from __future__ import annotations

from server_node.lineage.advance import DEFAULT_POLICY
from server_node.lineage.matching import groups_of
from server_node.lineage.state import Cluster, Lineage
from shoal.algorithms.view import ClusteringView
from shoal.protocol.messages import ClusterIdentity, Snapshot

IDENTITIES_MAX = 1000


def published_identities(lineage: Lineage) -> list[ClusterIdentity]:
    """The known clusters that have a number in the newest snapshot, in the order of these numbers.

    Of too many the heaviest. Two numbers may have the same identity: a part that is not confirmed yet is shown as the
    cluster it parts from.
    """
    shown = []
    heaviest = sorted(lineage.of_number.items(), key=lambda pair: (-lineage.clusters[pair[1]].mass, pair))
    for number, identity in sorted(heaviest[:IDENTITIES_MAX]):
        cluster = lineage.clusters[identity]
        slot = 0 if cluster.slot is None else cluster.slot
        since = (cluster.since_reading, cluster.since)
        shown.append(
            ClusterIdentity(number, identity, cluster.name, cluster.active, slot, *since, cluster.recent_share)
        )
    return shown


def lineage_of(snapshot: Snapshot, view: ClusteringView) -> Lineage:
    """A lineage to go on from when all that is left of the one before is its newest snapshot."""
    groups = groups_of(view)
    identity_of = {one.number: one.identity for one in snapshot.cluster_identities if one.number in groups.mass}
    clusters: dict[int, Cluster] = {}
    for one in snapshot.cluster_identities:
        if one.number in groups.mass and one.identity not in clusters:
            clusters[one.identity] = Cluster(
                one.identity,
                slot=one.slot,
                name=one.name,
                since_reading=one.since_reading,
                since=one.since,
                present_reading=snapshot.readings,
                mass=groups.mass[one.number],
                # As if its share had been what it is for long: a quiet cluster has had no readings of late.
                recent=one.recent_share * DEFAULT_POLICY.recent_readings if one.active else 0.0,
                lately=one.recent_share * DEFAULT_POLICY.share_readings,
                recent_share=one.recent_share,
                active=one.active,
                reported_share=one.recent_share,
            )
    return Lineage(
        next_identity=max(snapshot.next_identity, *(identity + 1 for identity in clusters), 0),
        readings=snapshot.readings,
        clusters=dict(sorted(clusters.items())),
        of_node={node: identity_of[number] for node, number in groups.of_node.items() if number in identity_of},
        node_mass=groups.node_mass,
        of_number=identity_of,
    )
