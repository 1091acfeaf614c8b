"""CA+ against the authors' program: every input, and the state it ends in."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.fcac import CAPlus
from tests.golden.golden_files import (
    Recorder,
    assert_close,
    assert_same_state,
    assert_same_trace,
    edge_case,
    golden,
    parts,
    plain_similarities,
)


@pytest.mark.parametrize("name", ["caplus_blobs2d", "caplus_optdigits_client0"])
def test_one_stream_ends_where_the_published_program_ends(name: str) -> None:
    expected = golden(name)
    network = CAPlus()
    recorder = Recorder(network)
    network.learn(expected["X"])
    assert_same_trace(recorder, expected)
    assert_same_state(network, expected)


def test_three_rounds_of_one_blob_after_the_other_end_where_the_published_program_ends() -> None:
    expected = golden("caplus_blobs2d_rounds")
    network = CAPlus()
    recorder = Recorder(network)
    for rows in parts(expected["X"], expected["round_end"]):
        network.learn(rows)
    assert_same_trace(recorder, expected, counter=False)
    assert_same_state(network, expected, counter=False)


def test_one_feature_is_enough() -> None:
    expected = edge_case("caplus_d1")
    network = CAPlus()
    recorder = Recorder(network)
    network.learn(expected["X"])
    assert_same_trace(recorder, expected)
    assert_same_state(network, expected)


@pytest.mark.parametrize(
    "name", ["caplus_blobs2d", "caplus_optdigits_client0", "caefc_blobs2d", "fcac_optdigits_iid"]
)
def test_the_similarities_of_the_initial_nodes_are_those_of_the_published_program(
    name: str,
) -> None:
    expected = golden(name)
    matrix = expected["diversity_matrix"]
    if name == "fcac_optdigits_iid":
        rows = expected["client_node_weight"][expected["server_feed_order"]]
    else:
        rows = expected["X"].astype(float)
    sigma = expected["trace_last_sigma_after"][0]
    assert_close(plain_similarities(rows[: len(matrix)], sigma), matrix)


def test_the_vectors_of_one_client_are_the_first_of_the_federation() -> None:
    client = golden("caplus_optdigits_client0")
    federation = golden("fcac_optdigits_iid")
    digits = golden("optdigits")
    np.testing.assert_array_equal(client["X"], digits["X"][client["row_index"]])
    np.testing.assert_array_equal(
        client["final_count"],
        parts(federation["client_node_count"], federation["client_node_end"])[0],
    )
