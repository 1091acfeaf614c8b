"""Identities as they travel in snapshots, from which a lineage is made after a lost checkpoint."""

from __future__ import annotations

from shoal.algorithms.view import ClusteringView
from shoal.protocol.messages import ClusterIdentity, Snapshot
from shoal.server_node.report.lineage.clusters import Cluster, Lineage
from shoal.server_node.report.lineage.matching import groups_of
from shoal.server_node.report.lineage.policy import DEFAULT_POLICY

# A snapshot carries them all; without a limit a server of noise alone would outgrow its record.
IDENTITIES_MAX = 1000


def published_identities(lineage: Lineage) -> list[ClusterIdentity]:
    """The known clusters that have a number in the newest snapshot, in the order of these numbers.

    Of too many the heaviest. Two numbers may have the same identity: a part that is not confirmed
    yet is shown as the cluster it parts from.
    """
    shown = []
    heaviest = sorted(
        lineage.of_number.items(), key=lambda pair: (-lineage.clusters[pair[1]].mass, pair)
    )
    for number, identity in sorted(heaviest[:IDENTITIES_MAX]):
        cluster = lineage.clusters[identity]
        slot = 0 if cluster.slot is None else cluster.slot
        since = (cluster.since_reading, cluster.since)
        shown.append(
            ClusterIdentity(
                number,
                identity,
                cluster.name,
                cluster.active,
                slot,
                *since,
                cluster.recent_share,
                cluster.confirmed,
                cluster.muted_until,
                cluster.time,
            )
        )
    return shown


def lineage_of(snapshot: Snapshot, view: ClusteringView) -> Lineage:
    """A lineage to go on from when all that is left of the one before is its newest snapshot."""
    groups = groups_of(view)
    identity_of = {
        published.number: published.identity
        for published in snapshot.cluster_identities
        if published.number in groups.mass
    }
    clusters: dict[int, Cluster] = {}
    for published in snapshot.cluster_identities:
        if published.number in groups.mass and published.identity not in clusters:
            clusters[published.identity] = Cluster(
                published.identity,
                slot=published.slot,
                name=published.name,
                since_reading=published.since_reading,
                since=published.since,
                present_reading=snapshot.readings,
                mass=groups.mass[published.number],
                # The share is taken to have been the same for long; a quiet cluster has had no
                # recent readings.
                recent=published.recent_share * DEFAULT_POLICY.recent_readings
                if published.active
                else 0.0,
                recent_slow=published.recent_share * DEFAULT_POLICY.share_readings,
                recent_share=published.recent_share,
                active=published.active,
                reported_share=published.recent_share,
                confirmed=published.confirmed,
                muted_until=published.muted_until,
                time=published.time,
            )
    return Lineage(
        # Above all that were ever given: an identity that has ended must not be given to another
        # cluster, as people may have named it.
        next_identity=max(snapshot.next_identity, *(identity + 1 for identity in clusters), 0),
        readings=snapshot.readings,
        clusters=dict(sorted(clusters.items())),
        of_node={
            node: identity_of[number]
            for node, number in groups.of_node.items()
            if number in identity_of
        },
        node_mass=groups.node_mass,
        of_number=identity_of,
    )
