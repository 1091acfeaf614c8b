"""Readings that lack values, through a client: counted and learnt for what they have, labelled,
kept and replayed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.registry import predict_rows, streaming_algorithm
from shoal.algorithms.streaming import Contribution
from shoal.client_nodes.intake import decode_batch
from shoal.config.contract import Contract, parse_contract
from shoal.kernels.arrays import Floats
from shoal.protocol.readings import Reading
from shoal.transports.base import Record
from tests.client_nodes.site import Site, readings

NAN = np.nan
WINDOW = 50
PRIVACY: dict[str, dict[str, Any]] = {
    "off": {"mode": "off"},
    "formal": {"mode": "formal", "counts_epsilon": 4, "epsilon_per_reading": 4},
}


def agreed(
    missing: str = "learn", mode: str = "off", algorithm: str = "density_tree", **privacy: Any
) -> Contract:
    return parse_contract(
        {
            "federation": {"name": "plant"},
            "features": [
                {"name": "warm", "unit": "°C", "low": -10, "high": 50},
                {"name": "damp", "unit": "%", "low": 0, "high": 100},
            ],
            "privacy": {**PRIVACY[mode], "window_readings": WINDOW, "missing": missing, **privacy},
            "models": [{"name": "clusters", "algorithm": algorithm}],
        }
    )


def with_gaps(n: int, share: float = 0.3) -> Floats:
    values = readings(n)
    generator = np.random.default_rng(1)
    lacks = generator.integers(2, size=n)
    values[generator.random(n) < share, lacks[0]] = NAN
    values[np.arange(n), lacks] = np.where(
        generator.random(n) < share, NAN, values[np.arange(n), lacks]
    )
    values[np.isnan(values).all(axis=1), 0] = 5.0
    return values


def test_a_reading_may_lack_values_but_not_all_and_one_in_a_list_is_the_same() -> None:
    given: list[Any] = [
        [1.0, None],
        [None, None],
        [None, "wet"],
        *np.array([[1.0, NAN], [NAN, NAN], [3.0, 4.0]]),
    ]
    values = [Reading(1e9, value).encode() for value in given]
    records = [
        Record("readings", 0, n, 10**12, None, value, Reading.headers())
        for n, value in enumerate(values)
    ]
    batch = decode_batch(records, 2, gaps=True)
    assert batch.numbers == [0, 3, 5]
    np.testing.assert_array_equal(batch.values, [[1.0, NAN], [1.0, NAN], [3.0, 4.0]])
    assert [record.fault for record in batch.rejected] == [
        ("missing", None),
        ("not_a_number", 1),
        ("missing", None),
    ]
    assert decode_batch(records, 2).numbers == [5], "without them all others are rejected"


@pytest.mark.parametrize("missing", ["drop", "hold"])
def test_a_client_rejects_readings_with_gaps_unless_the_contract_lets_them_be_learnt(
    missing: str, tmp_path: Path
) -> None:
    values = with_gaps(120)
    site = Site(tmp_path, agreed(missing))
    site.add_readings(values)
    assert site.run()["rejected"] == int(np.isnan(values).any(axis=1).sum())


def test_each_reading_is_in_one_cell_at_most_and_those_that_lack_what_is_asked_in_none(
    tmp_path: Path,
) -> None:
    values = with_gaps(40 * WINDOW)
    site = Site(tmp_path, agreed())
    site.add_readings(values)
    assert site.run()["rejected"] == 0
    counts = [update.arrays["count"] for update in site.updates()]
    assert min(count.min() for count in counts) >= 0
    share = np.isnan(values).mean()
    places = sum(update.readings for update in site.updates())
    assert (
        places * (1 - 1.3 * share)
        < sum(count.sum() for count in counts)
        < places * (1 - 0.7 * share)
    )


@pytest.mark.parametrize("algorithm", ["density_tree", "cluster_tree", "cluster_tree_from_counts"])
def test_any_batches_and_restarts_give_the_same_updates(algorithm: str, tmp_path: Path) -> None:
    values = with_gaps(260)
    published = []
    for name, cuts in (("whole", [0, 260]), ("cut", [0, 1, 77, 130, 260])):
        site = Site(tmp_path / name, agreed(algorithm=algorithm))
        for first, end in itertools.pairwise(cuts):
            site.add_readings(values[first:end], started_at=1e9 + first)
            site.run()
        published.append({update.sequence: update.arrays for update in site.updates()})
    assert len(published[0]) > 3
    np.testing.assert_equal(*published)


def test_what_is_published_of_rows_is_finite_and_of_as_many_readings_as_without_gaps(
    tmp_path: Path,
) -> None:
    found = []
    for name, values in (("whole", readings(120)), ("gaps", with_gaps(120))):
        site = Site(tmp_path / name, agreed(mode="formal", algorithm="cluster_tree"))
        site.add_readings(values)
        site.run()
        updates = site.updates()
        assert all(np.isfinite(update.arrays["point"]).all() for update in updates)
        found.append([(update.sequence, update.readings) for update in updates])
    assert found[0] == found[1]


def test_labels_of_readings_with_gaps_are_those_of_what_they_have(tmp_path: Path) -> None:
    contract = agreed(algorithm="cluster_tree")
    arrays = {"cell": np.array([[0.25, 0.8], [0.7, 0.25]]), "cluster": np.array([0, 1])}
    algorithm = streaming_algorithm(contract.models[0].algorithm)
    server = algorithm.server({}, 2)
    server.absorb(
        [Contribution("a", 1, {"point": arrays["cell"], "count": np.array([500, 500])})], b""
    )
    snapshot = server.snapshot()
    whole = predict_rows(algorithm, snapshot, arrays["cell"])
    lacking = predict_rows(algorithm, snapshot, np.array([[0.2, NAN], [NAN, 0.2], [0.7, 0.3]]))
    assert lacking.tolist() == [whole[0], whole[1], whole[1]]


def test_a_reading_with_a_gap_beyond_its_bounds_is_clipped_once(tmp_path: Path) -> None:
    site = Site(tmp_path, agreed())
    site.add_readings([[200.0, NAN], [NAN, 50.0], [20.0, -1.0]])
    totals = site.run()
    assert (totals["clipped"], totals["rejected"]) == (2, 0)
