"""The clusters of a snapshot as labels need them: by hand for centres, and end to end for a
streaming algorithm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.registry import load_algorithm
from shoal.client_nodes.labelling.snapshot_clusters import NO_IDENTITY, UNIT_MAX, SnapshotClusters
from shoal.protocol.messages import ClusterIdentity
from tests.client_nodes.test_labels_command import CLIENT, READINGS, exported, run_client
from tests.house.small_federation import create_federation, run_to_end
from tests.small_plant import a_snapshot, plant

CENTRES = np.array([[0.1, 0.1], [0.9, 0.9], [0.5, 0.1], [0.1, 0.9]])
MASS = np.array([10.0, 20.0, 0.0, 5.0])


def clusters(identities: dict[int, int], centres: np.ndarray = CENTRES) -> SnapshotClusters:
    listed = [
        list(ClusterIdentity(number, identity, "", True, 0, 0, 1e9, 0.5))
        for number, identity in identities.items()
    ]
    arrays = {"centre": centres, "weight": MASS}
    snapshot = a_snapshot(
        plant(), algorithm="kmeans", arrays=arrays, clusters=3, nodes=4, identities=listed
    )
    return SnapshotClusters(snapshot, load_algorithm("kmeans"))


def test_without_identities_nothing_is_known() -> None:
    assert not clusters({}).known
    assert not clusters({2: 7}).known, "a centre without rows is no cluster"


def test_rows_get_the_identity_of_their_number_and_the_distance_to_its_node() -> None:
    rows = np.array([[0.1, 0.2], [0.9, 0.5]])
    found = clusters({0: 7, 1: 3, 3: 9}).assign(rows, rows)
    assert found.cluster.tolist() == [0, 1]
    assert found.identity.tolist() == [7, 3]
    assert found.reference.tolist() == [7, 3]
    np.testing.assert_allclose(found.distance, [0.1, 0.4])


def test_a_row_of_an_unknown_cluster_is_compared_with_the_nearest_known_one() -> None:
    rows = np.array([[0.1, 0.8]])
    found = clusters({0: 7, 1: 3}).assign(rows, rows)
    assert found.cluster.tolist() == [3]
    assert found.identity.tolist() == [NO_IDENTITY]
    assert found.reference.tolist() == [7]
    np.testing.assert_allclose(found.distance, [0.7])


def test_two_numbers_may_have_one_identity() -> None:
    rows = np.array([[0.1, 0.1], [0.1, 0.85]])
    found = clusters({0: 7, 1: 3, 3: 7}).assign(rows, rows)
    assert found.identity.tolist() == [7, 7]
    np.testing.assert_allclose(found.distance, [0.0, 0.05], atol=1e-12)


def test_no_rows_are_no_trouble() -> None:
    found = clusters({0: 7}).assign(np.empty((0, 2)), np.empty((0, 2)))
    assert all(len(column) == 0 for column in found)


def test_distances_outside_the_bounds_are_finite() -> None:
    found = clusters({0: 7, 1: 3}).assign(np.array([[1.0, 1.0]]), np.array([[np.inf, -np.inf]]))
    assert found.identity.tolist() == [3]
    assert UNIT_MAX < found.distance[0] < 2 * UNIT_MAX


def test_readings_are_labelled_by_an_algorithm_that_keeps_identities_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = create_federation(tmp_path, readings=READINGS)
    file.write_text(
        file.read_text(encoding="utf-8").replace('"fcac"', '"cluster_tree"'), encoding="utf-8"
    )
    run_to_end(file)
    run_client(file)
    found = [row["cluster"] for row in exported(file)]
    assert len(found) == READINGS
    assert all(identity is not None for identity in found), CLIENT
