"""CAEFC against the authors' program: every input, every edge, and the labels."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.fcac import CAEFC
from tests.golden.golden_files import (
    Recorder,
    assert_same_state,
    assert_same_trace,
    edge_case,
    golden,
    parts,
)

CASES = ["short5_d2", "short9_d2_dup", "const_feature_d3", "all_equal_d2", "d1"]


def test_one_long_stream_ends_where_the_published_program_ends() -> None:
    expected = golden("caefc_blobs2d")
    network = CAEFC()
    recorder = Recorder(network)
    network.learn(expected["X"])
    assert_same_trace(recorder, expected)
    assert_same_state(network, expected)
    np.testing.assert_array_equal(network.predict(expected["X"]), expected["labels"])


def test_three_rounds_of_one_blob_after_the_other_end_where_the_published_program_ends() -> None:
    expected = golden("caefc_blobs2d_rounds")
    network = CAEFC()
    recorder = Recorder(network)
    for rows in parts(expected["X"], expected["round_end"]):
        network.learn(rows)
    assert_same_trace(recorder, expected, counter=False)
    assert_same_state(network, expected, counter=False)
    np.testing.assert_array_equal(network.predict(expected["X"]), expected["labels"])


@pytest.mark.parametrize("round_name", ["caplus_blobs2d_rounds", "caefc_blobs2d_rounds"])
def test_the_counter_of_the_published_program_restarts_and_only_that_differs(
    round_name: str,
) -> None:
    expected = golden(round_name)
    theirs = []
    counter = 0
    for rows in parts(expected["X"], expected["round_end"]):
        for _ in rows:
            counter = 1 if counter == len(rows) else counter + 1
            theirs.append(counter)
    np.testing.assert_array_equal(theirs, expected["trace_num_signal_after"])
    assert theirs[-1] == expected["final_num_signal"]
    # Both counters meet the multiples of lambda at the same inputs: that is why the states can
    # agree.
    ours = np.arange(1, len(theirs) + 1)
    np.testing.assert_array_equal(
        np.array(theirs) % expected["final_lambda"], ours % expected["final_lambda"]
    )


@pytest.mark.parametrize("case", CASES)
def test_an_edge_case_ends_where_the_published_program_ends(case: str) -> None:
    expected = edge_case(case)
    network = CAEFC()
    recorder = Recorder(network)
    network.learn(expected["X"])
    network.flush()
    assert_same_trace(recorder, expected)
    assert_same_state(network, expected)
    np.testing.assert_array_equal(network.predict(expected["X"]), expected["labels"])


def test_every_edge_case_of_the_file_is_tested() -> None:
    assert {key.split("__")[0] for key in golden("edge_cases")} == {*CASES, "caplus_d1"}


def test_the_long_stream_has_every_case() -> None:
    assert set(golden("caefc_blobs2d")["trace_case"]) == {0, 1, 2, 3, 4}
