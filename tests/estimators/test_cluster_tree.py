"""The cluster_tree estimator: labels are identities, and the interfaces are those of all streaming
estimators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from shoal import ClusterTree
from shoal.algorithms.cluster_tree import CLUSTER_TREE
from shoal.algorithms.streaming import Contribution
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.protocol.codec import pack, unpack

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def blobs(
    n: int = 3000, which: tuple[int, ...] = (0, 1, 2, 3), seed: int = 0
) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    return CORNERS[generator.choice(which, size=n)] + 0.04 * generator.normal(size=(n, 2))


def test_nothing_is_there_before_the_first_row() -> None:
    model = ClusterTree(clients=5)
    assert model.predict_many(np.ones((3, 2))).tolist() == [-1] * 3
    for name in ("n_clusters_", "identities_", "active_", "cluster_centers_", "n_features_in_"):
        with pytest.raises(AttributeError, match=name):
            getattr(model, name)


def test_labels_are_identities_and_the_attributes_agree_with_them() -> None:
    model = ClusterTree(clients=5).partial_fit(blobs())
    assert model.n_clusters_ == 4
    assert model.identities_.tolist() == sorted(set(model.labels_.tolist()))
    assert model.active_.tolist() == model.identities_.tolist()
    assert model.cluster_centers_.shape == (4, 2)
    np.testing.assert_array_equal(model.predict(model.cluster_centers_), model.identities_)
    assert model.n_features_in_ == 2


def test_an_identity_outlives_the_numbers_of_snapshots() -> None:
    model = ClusterTree(clients=2).partial_fit(blobs(2000, (1, 2)))
    before = model.predict(CORNERS[1:3])
    model.partial_fit(blobs(6000, (0, 3), seed=1))
    np.testing.assert_array_equal(model.predict(CORNERS[1:3]), before)
    assert model.n_clusters_ == 4
    assert model.active_.tolist() == sorted(set(model.predict(CORNERS[[0, 3]]).tolist()))


def test_it_learns_what_the_halves_learn_from_updates_of_that_size() -> None:
    rows = blobs(2600)
    model = ClusterTree(clients=2, update_readings=400).partial_fit(rows)
    server = CLUSTER_TREE.server({}, 2)
    clients = [CLUSTER_TREE.client({}, 2) for _ in range(2)]
    for number in range(4):
        for at, client in enumerate(clients):
            client.learn(rows[at::2][400 * number : 400 * (number + 1)])
        contributions = [
            Contribution(str(at), number, client.contribute()) for at, client in enumerate(clients)
        ]
        server.absorb(contributions, b"")
    assert pack(model._federation.server.state()) == pack(server.state())


def test_one_distribution_is_one_cluster_whatever_the_size_of_updates() -> None:
    rows = np.random.default_rng(3).normal(size=(12_000, 2))
    assert ClusterTree(update_readings=10_000).fit(rows).n_clusters_ == 1


def test_fit_needs_two_rows_and_forgets() -> None:
    with pytest.raises(InvalidData, match="n_samples = 1"):
        ClusterTree().fit(np.ones((1, 2)))
    model = ClusterTree().fit(blobs() + 100)
    assert pack(model.fit(blobs()).state()) == pack(ClusterTree().fit(blobs()).state())


@pytest.mark.parametrize(
    "wrong", [{"clients": 0}, {"update_readings": 0}, {"cells_max": 3}, {"random_state": -1}]
)
def test_a_parameter_out_of_range_is_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        ClusterTree(**wrong).fit(blobs(50))


@pytest.mark.parametrize("cut", [1, 700, 2999])
def test_a_restored_model_continues_bit_for_bit(cut: int) -> None:
    rows = blobs()
    through = ClusterTree(clients=3).partial_fit(rows[:cut])
    restored = ClusterTree(clients=3).restore(unpack(pack(through.state())))
    np.testing.assert_array_equal(restored.predict(rows), through.predict(rows))
    for model in (through, restored):
        model.partial_fit(rows[cut:])
    assert pack(restored.state()) == pack(through.state())
    with pytest.raises(InvalidState):
        ClusterTree(clients=2).restore(through.state())


# The interface of river.


def test_one_reading_at_a_time_is_learnt_by_feature_name() -> None:
    frame = pd.DataFrame(blobs(1500), columns=["warm", "dry"])
    model = ClusterTree()
    assert model.predict_one({"warm": 0.0, "dry": 0.0}) == -1
    for reading in frame.to_dict("records"):
        model.learn_one(reading)
    assert model.feature_names_in_.tolist() == ["dry", "warm"]
    corners = [{"warm": warm, "dry": dry} for warm, dry in CORNERS.tolist()]
    assert len({model.predict_one(corner) for corner in corners} - {-1}) == 4
    assert model.predict_many(frame.iloc[:5]).tolist() == [
        model.predict_one(reading) for reading in frame.iloc[:5].to_dict("records")
    ]


def test_it_works_at_the_end_of_rivers_pipeline() -> None:
    compose = pytest.importorskip("river.compose")
    preprocessing = pytest.importorskip("river.preprocessing")
    model = compose.Pipeline(preprocessing.StandardScaler(), ClusterTree())
    for reading in pd.DataFrame(blobs(600, (0, 3)), columns=["warm", "dry"]).to_dict("records"):
        model.learn_one(reading)
    low = model.predict_one({"warm": 0.0, "dry": 0.0})
    high = model.predict_one({"warm": 1.0, "dry": 1.0})
    assert min(low, high) >= 0
    assert low != high


def test_rows_of_no_cluster_are_noise_when_asked_and_hardly_any_others() -> None:
    generator = np.random.default_rng(0)
    centres = np.array([[0.2, 0.2], [0.8, 0.2], [0.5, 0.8]])
    rows = centres[generator.integers(3, size=3000)] + generator.normal(0.0, 0.02, (3000, 2))
    far = generator.random(3000) < 0.03
    rows[far] = generator.uniform(size=(int(far.sum()), 2))
    apart = np.sqrt(((rows[:, None] - centres) ** 2).sum(axis=2)).min(axis=1)
    labels = ClusterTree(noise=True).fit(rows).predict(rows)
    assert (labels[apart > 0.15] == -1).mean() > 0.9
    assert (labels[apart < 0.06] == -1).mean() < 0.005
    assert (ClusterTree().fit(rows).predict(rows) >= 0).all()
    assert (ClusterTree(noise=True).fit(rows[~far]).predict(rows[~far]) == -1).mean() < 0.005


def test_a_row_that_has_just_been_learnt_far_from_all_is_noise_until_others_come() -> None:
    generator = np.random.default_rng(0)
    model = ClusterTree(noise=True).partial_fit(generator.normal(0.0, 0.02, (2000, 2)))
    assert model.partial_fit([[1.0, 1.0], [0.0, 0.0]]).labels_.tolist() == [-1, 0]
    model.partial_fit(generator.normal(1.0, 0.02, (100, 2)))
    assert (model.labels_ >= 0).mean() > 0.9
    assert ClusterTree(noise=True).partial_fit([[1.0], [2.0]]).labels_.tolist() == [0, 0]
