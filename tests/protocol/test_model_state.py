"""The state of a model in a sentence, from its newest snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.config.contract import parse_contract
from shoal.config.resolved import ResolvedModel, resolve
from shoal.protocol.messages import Snapshot
from shoal.protocol.model_state import model_state, readings_needed
from shoal.server_node.report.lineage.published import published_identities
from tests.server_node.web_statuses import FEATURES, a_lineage, a_snapshot, some_nodes

TABLES = {"federation": {"name": "greenhouse"}, "features": FEATURES[:2]}


def a_model(algorithm: str = "fcac", **privacy: Any) -> ResolvedModel:
    models = [{"name": "clusters", "algorithm": algorithm}]
    return resolve(
        parse_contract({**TABLES, "models": models, "privacy": privacy or {"mode": "off"}})
    ).models["clusters"]


def test_nothing_significant_in_private_counts_may_be_rejected_readings() -> None:
    contract = parse_contract(
        {
            **TABLES,
            "models": [{"name": "clusters", "algorithm": "fcac"}],
            "privacy": {"mode": "off"},
        }
    )
    empty = replace(a_snapshot(contract, some_nodes(2, 1, 20)), known=0, identities=[])
    private = a_model("density_tree", mode="formal", counts_epsilon=4.0)
    counted = model_state(private, replace(empty, readings=2000))
    assert counted.startswith(
        "Nothing is significant after 2,000 readings, though about 2,000 accepted ones may show a"
        " cluster. Private counts hide how many were rejected."
    )
    early = model_state(private, replace(empty, readings=1687))
    assert early.startswith(
        "Too early for clusters after 1,687 readings: it takes about 2,000 accepted ones. Private"
    )
    assert "rejected" not in model_state(a_model(), empty)


def a_state(known: int, masses: list[float] | None = None) -> str:
    contract = parse_contract(
        {
            **TABLES,
            "models": [{"name": "clusters", "algorithm": "fcac"}],
            "privacy": {"mode": "off"},
        }
    )
    plain = a_snapshot(contract, some_nodes(2, max(known, 1), 20 * max(known, 1)))
    identities = (
        [list(cluster) for cluster in published_identities(a_lineage(plain))] if known else []
    )
    snapshot = Snapshot(**{**vars(plain), "known": known, "identities": identities})
    if masses is not None:
        snapshot = replace(snapshot, arrays={**snapshot.arrays, "centre_weight": np.array(masses)})
    return model_state(a_model(), snapshot)


def test_each_state_is_named_and_leads_to_the_page() -> None:
    assert model_state(a_model(), None).startswith("There is no snapshot yet")
    assert a_state(0).startswith("Nothing is significant after ")
    assert a_state(1).startswith("Edges connect all nodes to one cluster after ")
    assert a_state(3) == ""
    assert all(
        "See docs/how-to/believe.md." in text
        for text in (model_state(a_model(), None), a_state(0), a_state(1))
    )


@pytest.mark.parametrize(
    ("masses", "told"), [([1000.0, 1000.0, 1.0], False), ([1000.0, 1.0, 1.0], True)]
)
def test_specks_are_told_of_where_more_than_a_third_of_the_clusters_are_some(
    masses: list[float], told: bool
) -> None:
    assert ("2 of 3 clusters are specks" in a_state(3, masses)) is told


def test_the_readings_that_counts_need_follow_from_their_noise_and_windows() -> None:
    assert readings_needed(a_model()) is None
    weak = readings_needed(a_model("density_tree", mode="formal", counts_epsilon=0.02))
    strong = readings_needed(a_model("density_tree", mode="formal", counts_epsilon=4.0))
    assert weak is not None
    assert strong == 2000, "the tree is looked at for the first time"
    assert weak > strong
