"""The statement that travels in messages, and the description for people."""

from __future__ import annotations

import math
import re

import pytest

from shoal.privacy.base import GUARANTEE_HEADINGS
from shoal.privacy.formal import belief_after, beliefs, percent
from shoal.privacy.off import Off
from tests.docs_tables import example_descriptions
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
    ("epsilon", "even", "rare"),
    [
        # p e^epsilon / (1 - p + p e^epsilon), worked out by hand for p of 1/2 and 1/100.
        (1.0, "73 %", "2.7 %"),
        (4.0, "98 %", "36 %"),
        (10.0, "99.995 %", "99.6 %"),
    ],
)
def test_an_epsilon_is_told_as_what_somebody_may_believe_afterwards(
    epsilon: float, even: str, rare: str
) -> None:
    text = beliefs(epsilon)
    assert text.index("50 %") < text.index(f"at most {even} ") < text.index("1 %", 20)
    assert text.endswith(f"at most {rare}.")


def test_beyond_what_percents_can_tell_the_attacker_is_certain() -> None:
    assert "can be certain" in beliefs(404.0)
    assert "can be certain" in beliefs(1e6)
    assert "certain" not in beliefs(18.0)


@pytest.mark.parametrize("share", [0.0267, 0.5, 0.989, 0.99, 0.99951, 1.0 - 2e-8])
def test_a_share_below_one_is_never_a_hundred_percent(share: float) -> None:
    shown = float(percent(share).removesuffix(" %"))
    assert shown < 100.0
    assert shown == pytest.approx(100.0 * share, rel=0.02)


def test_a_belief_reaches_its_bound_under_randomised_response() -> None:
    """The least noise that an epsilon allows on one bit (Warner, 1965), and Bayes' rule on it."""
    epsilon = 1.5
    truthful = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    for prior in (0.5, 0.01):
        seen = prior * truthful + (1.0 - prior) * (1.0 - truthful)
        assert prior * truthful / seen == pytest.approx(belief_after(prior, epsilon))


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 240.0])
def test_the_description_says_what_a_reading_costs_and_uses_no_adjective_for_it(
    epsilon: float,
) -> None:
    description = formal_mode(16, epsilon).describe()
    words = description.text()
    assert not re.search("(?i)strong|fair|weak|hardly", words)
    assert beliefs(epsilon) in dict(description.rows())["what an attacker learns"]
    assert "the sum of their epsilons" in dict(description.rows())["who is protected"]
    assert f"Epsilon is {epsilon:g} per reading" in words
    assert f"{epsilon / 16:g} each" in words


def test_every_guarantee_has_its_rows_and_no_adjective_in_place_of_a_number() -> None:
    for name, description in example_descriptions().items():
        rows = dict(description.rows())
        assert list(rows) == list(GUARANTEE_HEADINGS), name
        assert all(rows.values()), name
        assert description.not_covered, name
        assert not re.search(r"(?i)strong|fair|weak|hardly|highly|\bvery\b", description.text()), (
            name
        )
        assert beliefs(4.0) in rows["what an attacker learns"], name


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
