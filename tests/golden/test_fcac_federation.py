"""Whole federations against the authors' program: clients, their contributions, the order of
learning, the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import (
    adjusted_mutual_info_score,
    adjusted_rand_score,
    normalized_mutual_info_score,
)

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac.caefc import feed_order, legacy_permutation
from shoal.algorithms.streaming import Contribution
from tests.golden.golden_files import (
    Recorder,
    Vectors,
    assert_close,
    assert_same_state,
    assert_same_trace,
    golden,
    parts,
)

NAMES = ["fcac_blobs2d", "fcac_blobs2d_eps25", "fcac_optdigits_iid", "fcac_optdigits_niid"]


@dataclass
class Federation:
    """One golden federation with its clients learnt by us."""

    expected: Vectors
    clean: NDArray[Any]
    truth: NDArray[Any]
    clients: list[CAPlus]


@pytest.fixture(scope="module", params=NAMES)
def federation(request: pytest.FixtureRequest) -> Federation:
    expected = golden(request.param)
    if "client_rows" in expected:
        digits = golden("optdigits")
        clean = digits["X"].astype(float)
        truth = digits["y"]
        seen = clean[expected["client_rows"]]
    else:
        clean = expected["X"]
        truth = expected["true_label"]
        seen = expected.get("noised", clean)
    clients = []
    for rows in parts(seen, expected["client_end"]):
        client = CAPlus()
        client.learn(rows)
        clients.append(client)
    return Federation(expected, clean, truth, clients)


def test_every_client_ends_where_the_published_one_ends(federation: Federation) -> None:
    expected = federation.expected
    clients = federation.clients
    np.testing.assert_array_equal(
        np.cumsum([len(c.weights) for c in clients]), expected["client_node_end"]
    )
    np.testing.assert_array_equal(
        np.concatenate([c.counts for c in clients]), expected["client_node_count"]
    )
    np.testing.assert_array_equal([c.n_active or 0 for c in clients], expected["client_n_active"])
    weights = np.concatenate([c.weights for c in clients])
    sigmas = np.concatenate([c.sigmas for c in clients])
    assert_close(weights, expected["client_node_weight"])
    assert_close(sigmas, expected["client_node_sigma"])
    assert_close([c.vigilance for c in clients], expected["client_V_threshold"])


def test_the_nodes_are_fed_in_the_published_order(federation: Federation) -> None:
    expected = federation.expected
    counts = parts(expected["client_node_count"], expected["client_node_end"])
    np.testing.assert_array_equal(
        [np.percentile(count, 75) for count in counts], expected["client_percentile75"]
    )
    high, low = feed_order(counts, legacy_permutation(0))
    assert len(high) == expected["server_n_high"]
    np.testing.assert_array_equal(np.concatenate([high, low]), expected["server_feed_order"])


def test_the_server_ends_where_the_published_one_ends(federation: Federation) -> None:
    expected = federation.expected
    server = CAEFC()
    recorder = Recorder(server)
    # The published order counts on the clients' nodes in order of creation; what a client
    # contributes is sorted.
    contributions = [
        Contribution(f"client{i}", 1, {"weight": client.weights, "count": client.counts})
        for i, client in enumerate(federation.clients)
    ]
    server.absorb_in_order(contributions, legacy_permutation(0))
    assert_same_trace(recorder, expected)
    assert_same_state(server, expected)
    labels = server.predict(federation.clean)
    np.testing.assert_array_equal(labels, expected["labels"])
    scores = [
        score(federation.truth, labels)
        for score in (adjusted_rand_score, adjusted_mutual_info_score, normalized_mutual_info_score)
    ]
    assert_close(scores, expected["metrics_ari_ami_nmi"])


def test_a_client_contributes_the_published_nodes_sorted_by_count(federation: Federation) -> None:
    for client in federation.clients[:5]:
        twin = CAPlus()
        twin.restore(client.state())
        update = twin.contribute()
        order = np.lexsort((client.node_ids, -client.counts))
        np.testing.assert_array_equal(update["weight"], client.weights[order])
        np.testing.assert_array_equal(update["count"], client.counts[order])


def test_the_noise_of_the_noisy_file_has_the_stated_scale() -> None:
    expected = golden("fcac_blobs2d_eps25")
    ends = expected["client_end"]
    for clean, noised, reach in zip(
        parts(expected["X"], ends),
        parts(expected["noised"], ends),
        expected["sensitivity"],
        strict=True,
    ):
        assert_close(np.ptp(clean, axis=0), reach)
        assert_close(noised, clean + expected["unit_noise"] * reach / expected["epsilon"])


def test_the_trials_hold_the_scores_of_the_federations_here() -> None:
    trials = golden("trials")
    for name, niid in (("fcac_optdigits_iid", 0), ("fcac_optdigits_niid", 1)):
        expected = golden(name)
        row = (trials["dataset"] == "optdigits") & (trials["niid"] == niid) & (trials["trial"] == 3)
        row &= trials["eps"] == -1
        assert row.sum() == 1
        scores = [trials[score][row][0] for score in ("ARI", "AMI", "NMI")]
        assert_close(scores, expected["metrics_ari_ami_nmi"])
        assert trials["n_nodes"][row][0] == len(expected["final_node_id"])
        assert trials["n_clusters"][row][0] == expected["final_n_clusters"]
        assert trials["n_server_inputs"][row][0] == len(expected["server_feed_order"])
