"""Privacy in words: what the page tells people must be what the contract promises."""

from __future__ import annotations

import math

import pytest

from server_node.web.privacy_text import EPSILON_HARDLY_ANY, privacy_text
from shoal.config.contract import contract_of
from shoal.privacy.statement import strength
from tests.server_node.web_statuses import FEATURES, a_contract


def test_a_formal_promise_names_its_epsilon_and_what_it_leaves_open() -> None:
    promise = privacy_text(a_contract(5, {"mode": "formal", "epsilon_per_reading": 4.0}))
    assert (promise["title"], promise["tone"]) == ("Formal guarantee for every reading", "good")
    assert promise["formal"]
    assert not promise["nominal"]
    assert math.isclose(promise["epsilon_per_reading"], 4.0)
    assert [part["epsilon"] for part in promise["epsilon_per_feature"]] == pytest.approx([0.8] * 5)
    assert "at most 54.6 times likelier" in promise["words"][1]
    assert any("add up" in sentence for sentence in promise["not_covered"])


def test_shares_divide_the_budget() -> None:
    features = [FEATURES[0], {**FEATURES[1], "share": 3.0}]
    contract = contract_of(
        {
            "federation": {"name": "greenhouse"},
            "features": features,
            "privacy": {"mode": "formal", "epsilon_per_reading": 2.0},
            "models": [{"name": "fcac", "algorithm": "fcac"}],
        }
    )
    assert [part["epsilon"] for part in privacy_text(contract)["epsilon_per_feature"]] == pytest.approx([0.5, 1.5])


@pytest.mark.parametrize(
    ("epsilon", "times"), [(0.5, "1.65 times"), (8.0, "2,981 times"), (400.0, "10¹⁷⁴ times"), (20.0, "10⁹ times")]
)
def test_a_factor_is_said_as_far_as_anybody_can_grasp_it(epsilon: float, times: str) -> None:
    promise = privacy_text(a_contract(2, {"mode": "formal", "epsilon_per_reading": epsilon}))
    assert f"at most {times} likelier" in promise["words"][1]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, EPSILON_HARDLY_ANY, EPSILON_HARDLY_ANY + 0.1, 400.0])
def test_the_page_looks_pleased_only_with_a_budget_that_protects(epsilon: float) -> None:
    promise = privacy_text(a_contract(2, {"mode": "formal", "epsilon_per_reading": epsilon}))
    hardly_any = "HARDLY ANY" in strength(epsilon)
    assert (promise["tone"] == "warn") == hardly_any
    assert ("hardly any protection" in promise["title"]) == hardly_any
    assert promise["words"][1].endswith(strength(epsilon))


def test_the_noise_of_the_paper_is_said_to_guarantee_nothing() -> None:
    promise = privacy_text(a_contract(2, {"mode": "paper", "epsilon_nominal_per_feature": 15.0}))
    assert (promise["title"], promise["tone"]) == ("Noise without a formal guarantee", "warn")
    assert promise["nominal"]
    assert not promise["formal"]
    assert promise["epsilon_per_reading"] == 30.0
    assert "guarantees nothing" in promise["words"][1]


def test_without_privacy_the_page_says_so_and_shows_no_epsilon() -> None:
    promise = privacy_text(a_contract(2, {"mode": "off"}))
    assert (promise["title"], promise["tone"]) == ("No privacy", "bad")
    assert promise["epsilon_per_reading"] is None
    assert promise["epsilon_per_feature"] == []
    assert promise["not_covered"] == ["Everything: nothing is hidden in this mode."]
