"""All of a snapshot in the units of the contract, for programs and exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import AnyArray
from shoal.protocol.messages import Snapshot
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.types import Count, FeatureView, NumberOrNone, reported
from shoal.server_node.report.units import feature_view, view_of


@reported
class Node:
    """A node of a snapshot."""

    id: int
    """the same in every snapshot for as long as the node exists"""
    position: Sequence[float]
    """per feature, in units"""
    mass: float | None
    """rows that it stands for, in the measure of the algorithm"""
    bandwidth: float | None
    cluster: NumberOrNone
    """number in this snapshot"""


@reported
class NumberedCluster:
    """A cluster of a snapshot by its number in it."""

    cluster: Count
    identity: int | None
    """identity of the known cluster that it is shown as"""
    centre: Sequence[float]
    """per feature, in units"""
    mass: float | None
    """rows that it stands for, in the measure of the algorithm"""


@reported
class SnapshotView:
    """The newest snapshot of a model."""

    federation: str
    model: str
    algorithm: str
    version: Count
    contract: str
    """digest of the contract"""
    positions: Sequence[Sequence[Count]]
    """[partition, offset] from which the server reads on"""
    privacy: Mapping[str, Any]
    updates: Count
    readings: Count
    made_at: float
    """seconds since 1970"""
    features: Sequence[FeatureView]
    nodes: Sequence[Node]
    edges: Sequence[Sequence[Count]]
    clusters: Sequence[NumberedCluster]


def snapshot_view(snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract) -> SnapshotView:
    """A snapshot with its nodes and clusters. `bandwidth` is None for algorithms that have none."""
    bounds = contract.bounds
    view = view_of(snapshot, contract)
    bandwidths = [None] * len(view.nodes) if view.bandwidth is None else as_lists(view.bandwidth)
    nodes = [
        Node(id=node_id, position=position, mass=mass, bandwidth=bandwidth, cluster=cluster)
        for node_id, position, mass, bandwidth, cluster in zip(
            view.node_id.tolist(),
            as_lists(bounds.shown(view.nodes)),
            as_lists(view.mass),
            bandwidths,
            view.cluster.tolist(),
            strict=True,
        )
    ]
    clusters = []
    centres = as_lists(bounds.shown(view.centres))
    for number, mass in enumerate(as_lists(view.centre_mass)):
        identity = lineage.of_number.get(number)
        clusters.append(
            NumberedCluster(cluster=number, identity=identity, centre=centres[number], mass=mass)
        )
    return SnapshotView(
        federation=snapshot.federation,
        model=snapshot.model,
        algorithm=snapshot.algorithm,
        version=snapshot.version,
        contract=snapshot.contract,
        positions=snapshot.positions,
        privacy=snapshot.privacy,
        updates=snapshot.updates,
        readings=snapshot.readings,
        made_at=snapshot.made_at,
        features=[feature_view(feature) for feature in contract.features],
        nodes=nodes,
        edges=view.edges.tolist(),
        clusters=clusters,
    )


def as_lists(array: AnyArray) -> list[Any]:
    """`array` as nested lists for JSON; numbers that are not finite become None."""
    # JSON has no NaN and no infinity.
    values = array.astype(object)
    if np.issubdtype(array.dtype, np.floating):
        values[~np.isfinite(array)] = None
    nested: list[Any] = values.tolist()
    return nested
