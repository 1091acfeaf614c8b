"""A model of a region that follows the upstream one: its clusters are known, named and gone as they
are upstream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.algorithms.density_tree import DensityTreeServer
from shoal.algorithms.streaming import Contribution
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.errors import InvalidState
from shoal.protocol.messages import Snapshot
from shoal.server_node.models.base import PublishedSnapshot
from shoal.server_node.regions.following import FollowingModel
from tests.algorithms.test_density_tree import WINDOW, blobs
from tests.counted_contract import COUNTED, agreed

CONTRACT = agreed(COUNTED, counts_epsilon=4.0)
RESOLVED = resolve(CONTRACT)
LEFT = [0.2, 0.2]
RIGHT = [0.8, 0.2]


def following() -> FollowingModel:
    return FollowingModel(RESOLVED, RESOLVED.models["counted"], ServerSettings())


def tree(*centres: list[float]) -> DensityTreeServer:
    """The upstream model after 8,000 readings, which lie around these centres."""
    rows, _ = blobs(8_000, list(centres), seed=1)
    server = DensityTreeServer(2, window_readings=WINDOW)
    for number, first in enumerate(range(0, len(rows), WINDOW)):
        window = rows[first : first + WINDOW]
        counted = server.plan.count(window, np.ones(len(window), dtype=bool), b"client", number)
        server.absorb([Contribution("client", number, counted.update(counted.counts))], b"")
    return server


def upstream_snapshot(
    half: DensityTreeServer, version: int, readings: int, **other: Any
) -> Snapshot:
    arrays = half.snapshot()
    return Snapshot(
        federation=CONTRACT.federation,
        contract=CONTRACT.digest,
        model="counted",
        algorithm="density_tree",
        version=version,
        positions=[[0, 1]],
        updates=1,
        readings=readings,
        clients=1,
        clusters=len(arrays["identity"]),
        nodes=len(arrays["leaf_id"]),
        pooled=1,
        privacy={},
        arrays=arrays,
        made_at=float(version),
        **other,
    )


def published(model: FollowingModel, snapshot: Snapshot) -> PublishedSnapshot:
    """What the region publishes once it follows this snapshot."""
    model.follow(snapshot)
    assert model.snapshot_due(snapshot.made_at)
    return model.take_snapshot({0: 1}, {}, snapshot.made_at)


def kinds(one: PublishedSnapshot) -> list[tuple[str, int]]:
    """What became of clusters, without their shares."""
    return [(event.kind, event.cluster) for event in one.events if event.kind != "share_moved"]


@pytest.fixture(scope="module")
def both() -> DensityTreeServer:
    """Cluster 0 is on the right."""
    return tree(LEFT, RIGHT)


@pytest.fixture(scope="module")
def right() -> DensityTreeServer:
    return tree(RIGHT)


def test_a_cluster_that_the_upstream_model_lost_is_gone_though_it_learnt_fewer_readings(
    both: DensityTreeServer, right: DensityTreeServer
) -> None:
    """It has unlearned a client, or its log was made anew."""
    model = following()
    before = published(model, upstream_snapshot(both, 1, 1_000_000))
    assert kinds(before) == [("birth", 0), ("birth", 1)]
    after = published(model, upstream_snapshot(right, 2, 600_000))
    assert kinds(after) == [("gone", 1)]
    assert [cluster.identity for cluster in after.lineage.known] == [0]
    assert all(cluster.since_reading <= 600_000 for cluster in after.lineage.known)


def test_a_region_keeps_its_clusters_while_the_upstream_server_reads_its_log_again_from_the_start(
    both: DensityTreeServer, right: DensityTreeServer
) -> None:
    """Its snapshots name the clusters of before, though not all of them have been found again."""
    model = following()
    identities = [
        [number, number, "", True, number, 0, 0.0, 0.5, False, 0.0, ""] for number in range(2)
    ]
    published(model, upstream_snapshot(both, 1, 1_000_000, identities=identities))
    model.follow(upstream_snapshot(right, 2, 600_000, identities=identities))
    assert not model.snapshot_due(2.0)
    found_again = published(model, upstream_snapshot(both, 3, 1_000_000, identities=identities))
    assert kinds(found_again) == []


def test_a_checkpoint_that_followed_no_other_and_one_of_another_version_differ() -> None:
    own = tree(RIGHT).state()
    region = following().state()["half"]
    model = following()
    with pytest.raises(InvalidState, match=r"no region's model when .* put \[upstream\] as it was"):
        model.restore(following().state() | {"half": own})
    with pytest.raises(InvalidState, match="saved by version 3 of this state, this is version 4"):
        model.restore(following().state() | {"half": region | {"version": region["version"] - 1}})
    model.restore(following().state() | {"half": region})
