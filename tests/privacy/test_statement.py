"""The statement that travels in messages, and the description for people."""

from __future__ import annotations

import math
import re

import pytest

from shoal.privacy.formal import protection
from shoal.privacy.off import Off
from tests.privacy.modes import formal_mode, paper_mode, wide_bounds


def test_formal_states_its_whole_budget_and_its_parts() -> None:
    assert formal_mode(2, 6.0, (1.0, 2.0)).statement() == {
        "mode": "formal",
        "mechanism": "discrete-laplace",
        "formal": True,
        "unit": "reading",
        "epsilon": 6.0,
        "epsilon_per_feature": [2.0, 4.0],
        "nominal": False,
    }


def test_paper_states_that_nothing_is_guaranteed() -> None:
    statement = paper_mode(2, 15.0).statement()
    assert statement["formal"] is False
    assert statement["nominal"] is True
    assert statement["epsilon"] is None
    assert statement["epsilon_per_feature"] == [15.0, 15.0]


def test_off_states_that_nothing_is_done() -> None:
    statement = Off(wide_bounds(2)).statement()
    assert statement["mechanism"] == "none"
    assert statement["formal"] is False
    assert statement["epsilon_per_feature"] == []


@pytest.mark.parametrize(
    ("epsilon", "word"),
    [(0.5, "strong"), (1.0, "strong"), (4.0, "fair"), (8.0, "weak"), (240.0, "HARDLY ANY")],
)
def test_how_much_an_epsilon_protects(epsilon: float, word: str) -> None:
    assert f"{word} protection" in protection(epsilon)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 240.0])
def test_the_description_says_what_a_reading_costs_and_praises_no_reading_alone(
    epsilon: float,
) -> None:
    words = formal_mode(16, epsilon).describe().text()
    assert not re.search("(strong|fair|weak) protection", words)
    assert ("HARDLY ANY protection" in words) == (epsilon == 240.0)
    assert "how well a device is protected depends on how many it has" in words
    assert f"Epsilon is {epsilon:g} per reading" in words
    assert f"{epsilon / 16:g} each" in words


def test_the_odds_are_the_exponential_of_the_whole_budget() -> None:
    assert f"e^2 = {math.exp(2):.3g} times likelier" in formal_mode(4, 2.0).describe().text()
    assert "10¹⁰⁵ times likelier" in formal_mode(16, 240.0).describe().text()


def test_the_description_says_what_is_not_covered() -> None:
    words = formal_mode(2, 1.0).describe().text()
    for gap in ("that a reading was taken", "when", "how many", "one person", "in time", "add up"):
        assert gap in words.split("Not covered")[1].lower()


def test_unequal_shares_are_described_as_a_range() -> None:
    assert "(1 to 5)" in formal_mode(2, 6.0, (1.0, 5.0)).describe().text()


def test_paper_and_off_are_described_without_a_guarantee() -> None:
    assert "NO FORMAL GUARANTEE" in paper_mode(2).describe().text()
    assert "15" in paper_mode(2, 15.0).describe().text()
    assert "OFF" in Off(wide_bounds(2)).describe().text()


def test_the_context_of_the_noise_differs_for_every_difference_in_the_terms() -> None:
    bounds = wide_bounds(2)
    variants = [
        formal_mode(2, 6.0),
        formal_mode(2, 6.5),
        formal_mode(2, 6.0, (1.0, 2.0)),
        formal_mode(3, 6.0),
        paper_mode(2, 3.0),
        paper_mode(2, 4.0),
        Off(bounds),
    ]
    digests = {mode.context() for mode in variants}
    assert len(digests) == len(variants)
    assert {len(digest) for digest in digests} == {32}
