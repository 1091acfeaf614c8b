"""What is said about privacy: in messages, and to people."""

from __future__ import annotations

import math

import pytest

from shoal.privacy import PrivacyTerms, announce, expected_statement
from shoal.privacy.statement import context_digest
from tests.privacy.noise_terms import formal_terms, paper_terms, wide_bounds


def test_formal_states_its_whole_budget_and_its_parts() -> None:
    assert expected_statement(formal_terms(2, 6.0, (1.0, 2.0))) == {
        "mode": "formal",
        "mechanism": "discrete-laplace",
        "formal": True,
        "unit": "reading",
        "epsilon_per_reading": 6.0,
        "epsilon_per_feature": [2.0, 4.0],
        "nominal": False,
    }


def test_paper_states_that_nothing_is_promised() -> None:
    statement = expected_statement(paper_terms(2, 15.0))
    assert statement["formal"] is False
    assert statement["nominal"] is True
    assert statement["epsilon_per_reading"] is None
    assert statement["epsilon_per_feature"] == [15.0, 15.0]


def test_off_states_that_nothing_is_done() -> None:
    statement = expected_statement(PrivacyTerms("off", wide_bounds(2)))
    assert statement["mechanism"] == "none"
    assert statement["formal"] is False
    assert statement["epsilon_per_feature"] == []


@pytest.mark.parametrize(
    ("epsilon", "word"), [(0.5, "strong"), (1.0, "strong"), (4.0, "fair"), (8.0, "weak"), (240.0, "HARDLY ANY")]
)
def test_people_are_told_how_much_an_epsilon_protects(epsilon: float, word: str) -> None:
    words = announce(formal_terms(16, epsilon))
    assert f"{word} protection" in words
    assert f"Epsilon is {epsilon:g} per reading" in words
    assert f"{epsilon / 16:g} each" in words


def test_the_odds_are_the_exponential_of_the_whole_budget() -> None:
    assert f"e^2 = {math.exp(2):.4g}" in announce(formal_terms(4, 2.0))
    assert "e^240, about 10^104" in announce(formal_terms(16, 240.0))


def test_people_are_told_what_is_not_covered() -> None:
    words = announce(formal_terms(2, 1.0))
    for gap in ("that a reading was taken", "when", "how many", "one person", "in time", "add up"):
        assert gap in words.split("Not covered")[1]


def test_unequal_shares_are_told_as_a_span() -> None:
    assert "(1 to 5)" in announce(formal_terms(2, 6.0, (1.0, 5.0)))


def test_the_paper_and_off_are_announced_as_what_they_are() -> None:
    assert "NO FORMAL GUARANTEE" in announce(paper_terms(2))
    assert "15" in announce(paper_terms(2, 15.0))
    assert "OFF" in announce(PrivacyTerms("off", wide_bounds(2)))


def test_every_term_is_in_the_digest_that_noise_is_bound_to() -> None:
    bounds = wide_bounds(2)
    variants = [
        formal_terms(2, 6.0),
        formal_terms(2, 6.5),
        formal_terms(2, 6.0, (1.0, 2.0)),
        formal_terms(3, 6.0),
        paper_terms(2, 3.0),
        paper_terms(2, 4.0),
        PrivacyTerms("off", bounds),
    ]
    digests = {context_digest(terms) for terms in variants}
    assert len(digests) == len(variants)
    assert {len(digest) for digest in digests} == {32}
