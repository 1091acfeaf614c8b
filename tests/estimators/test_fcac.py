"""The FCAC estimator is CA+ on clients and CAEFC on a server, and continues to learn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.streaming import Contribution
from shoal.errors import InvalidData, SettingsError
from shoal.estimators.fcac import FCAC
from shoal.kernels.arrays import Floats
from shoal.protocol.codec import pack

CENTRES = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])


def blobs(n: int = 300, seed: int = 0) -> tuple[Floats, NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 3, n)
    return CENTRES[truth] + generator.normal(size=(n, 2)), truth


def test_nothing_is_there_before_the_first_row() -> None:
    model = FCAC()
    for attribute in (
        "n_clusters_",
        "n_groups_",
        "cluster_centers_",
        "n_features_in_",
        "feature_names_in_",
        "labels_",
    ):
        assert not hasattr(model, attribute)


def test_before_initial_rows_every_prediction_is_minus_one() -> None:
    rows, _ = blobs(10)
    model = FCAC().partial_fit(rows[:9])
    assert model.labels_.tolist() == [-1] * 9
    assert model.n_clusters_ == 0
    assert model.cluster_centers_.shape == (0, 2)
    # Ten rows make ten nodes of the client, which is the number that the server needs.
    assert (model.partial_fit(rows[9:]).predict(rows) >= 0).all()


def test_no_rows_change_nothing() -> None:
    rows, _ = blobs()
    assert pack(FCAC().partial_fit(np.empty((0, 2))).state()) == pack(FCAC().state())
    model = FCAC().partial_fit(rows)
    before = pack(model.state())
    assert pack(model.partial_fit(np.empty((0, 2))).state()) == before
    assert model.labels_.shape == (0,)


def test_fitting_is_one_pass_of_ca_plus_and_caefc() -> None:
    rows, _ = blobs()
    client = CAPlus()
    server = CAEFC()
    client.learn(rows)
    client.flush()
    server.absorb([Contribution("0", 0, client.contribute())], b"7:0")
    server.flush()
    model = FCAC(random_state=7).fit(rows)
    np.testing.assert_array_equal(model.labels_, server.predict(rows))
    np.testing.assert_array_equal(model.cluster_centers_, server.snapshot()["centre"])
    assert model.n_clusters_ == server.clusters().max() + 1
    assert model.n_features_in_ == 2


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_nodes_are_as_many_as_there_are_clusters_and_single_nodes_are_none(
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    rows = np.concatenate(
        [generator.normal(centre, 0.05, size=(400, 2)) for centre in (0.2, 0.5, 0.8)]
    )
    model = FCAC(clients=50).fit(generator.permutation(rows))
    nodes = np.bincount(model._view().cluster)
    assert model.n_groups_ == (nodes >= 2).sum() == 3
    assert model.n_clusters_ == len(nodes)
    assert seed != 0 or model.n_clusters_ > 3
    assert FCAC().partial_fit(rows[:1]).n_groups_ == 0


def test_each_named_client_learns_its_own_rows() -> None:
    rows, _ = blobs()
    owners = np.array(["north", "south", "east"])[np.arange(300) % 3]
    contributions = []
    for name in ("east", "north", "south"):
        client = CAPlus()
        client.learn(rows[owners == name])
        client.flush()
        contributions.append(Contribution(name, 0, client.contribute()))
    server = CAEFC()
    server.absorb(contributions, b"0:0")
    np.testing.assert_array_equal(FCAC().fit(rows, clients=owners).labels_, server.predict(rows))


def test_virtual_clients_get_the_rows_in_turn_over_all_calls() -> None:
    rows, _ = blobs()
    named = FCAC(clients=3)
    dealt = FCAC(clients=3)
    for start in range(0, 300, 50):
        dealt.partial_fit(rows[start : start + 50])
        named.partial_fit(rows[start : start + 50], clients=np.arange(start, start + 50) % 3)
    assert pack(named.state()) == pack(dealt.state())


def test_a_client_with_a_single_row_contributes_it() -> None:
    rows, _ = blobs(40)
    labels = FCAC().fit(rows, clients=np.arange(40)).labels_
    assert (labels >= 0).all()
    np.testing.assert_array_equal(FCAC().fit(rows[:2], clients=["a", "b"]).labels_, [0, 1])


def test_fit_discards_what_was_learnt_before() -> None:
    rows, _ = blobs()
    model = FCAC().fit(rows + 100)
    assert pack(model.fit(rows).state()) == pack(FCAC().fit(rows).state())


def test_a_stream_keeps_what_it_learnt_first() -> None:
    rows, truth = blobs(3000)
    model = FCAC(clients=2)
    for blob in range(3):
        for batch in np.array_split(rows[truth == blob], 10):
            model.partial_fit(batch)
    counts = np.zeros((model.n_clusters_, 3), dtype=int)
    np.add.at(counts, (model.predict(rows), truth), 1)
    assert counts.max(axis=1).sum() / len(rows) > 0.99
    assert set(counts.argmax(axis=1)) == {0, 1, 2}


def test_the_same_seed_gives_the_same_and_another_one_another() -> None:
    rows, _ = blobs()
    states = [pack(FCAC(random_state=seed).fit(rows)._federation.state()) for seed in (1, 1, 2)]
    assert states[0] == states[1] != states[2]


@pytest.mark.parametrize(
    "wrong",
    [
        [[1.0, float("inf")]] * 3,
        [[1.0, float("-inf")]] * 3,
        [["secret-13.7", "2"]] * 3,
        [[1.0, 2.0], [3.0]],
        [1.0, 2.0],
        np.ones((3, 3, 3)),
        np.ones((3, 2)) + 1j,
        np.ones((3, 0)),
        np.ones((3, 5)),
    ],
)
def test_rows_that_are_refused_change_nothing_and_are_not_in_the_error(wrong: Any) -> None:
    model = FCAC().fit(blobs()[0])
    before = pack(model.state())
    for method in (model.partial_fit, model.predict, model.learn_many):
        with pytest.raises(InvalidData) as rejected:
            method(wrong)
        assert "13.7" not in str(rejected.value)
    assert pack(model.state()) == before


@pytest.mark.parametrize("n", [0, 1])
def test_fitting_needs_two_rows_and_keeps_the_old_model_otherwise(n: int) -> None:
    model = FCAC().fit(blobs()[0])
    before = pack(model.state())
    with pytest.raises(InvalidData, match=f"n_samples = {n}"):
        model.fit(np.ones((n, 2)))
    assert pack(model.state()) == before


def test_each_row_must_have_a_client_name() -> None:
    with pytest.raises(InvalidData, match="name the client of each of the 3 rows"):
        FCAC().fit(np.ones((3, 2)), clients=["a"])


@pytest.mark.parametrize(
    "params",
    [
        {"clients": 0},
        {"clients": 1.5},
        {"random_state": -1},
        {"random_state": None},
        {"edge_factor": -1},
    ],
)
def test_invalid_parameters_are_refused_when_learning_begins(params: dict[str, Any]) -> None:
    model = FCAC(**params)
    with pytest.raises(SettingsError):
        model.fit(blobs()[0])


@pytest.mark.parametrize("learn", [FCAC.fit, FCAC.partial_fit])
def test_all_rows_equal_are_one_cluster_for_prediction(
    learn: Callable[[FCAC, Floats], FCAC],
) -> None:
    labels = learn(FCAC(), np.ones((50, 3))).predict(np.ones((5, 3)))
    assert len(set(labels.tolist())) == 1
    assert labels[0] >= 0


WITHOUT_SKLEARN = """
import sys
sys.modules["sklearn"] = None
import numpy as np
from shoal.estimators.fcac import FCAC
model = FCAC(clients=2).set_params(random_state=3)
rows = np.random.default_rng(0).normal(size=(200, 2))
labels = model.fit_predict(rows)
assert model.get_params()["random_state"] == 3 and model.get_params()["clients"] == 2
assert len(model.get_params()) == 15
try:
    model.set_params(colour="red")
except ValueError as refused:
    assert "colour" in str(refused)
else:
    raise AssertionError
print(labels.tolist())
"""


def test_without_scikit_learn_the_result_is_the_same() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    alone = subprocess.run(
        [sys.executable, "-c", WITHOUT_SKLEARN], capture_output=True, text=True, check=True
    )
    assert alone.stdout.strip() == str(FCAC(clients=2, random_state=3).fit_predict(rows).tolist())
