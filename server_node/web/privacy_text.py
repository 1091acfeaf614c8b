"""What the federation's privacy means, in words for people who read the page and not the papers."""

from __future__ import annotations

import math
from typing import Any

from shoal.config.contract import Contract
from shoal.config.privacy_terms import privacy_terms_of
from shoal.privacy.statement import strength

FEATURES_MAX = 64
"""features whose epsilon is listed one by one"""
EPSILON_HARDLY_ANY = 10.0
"""per reading: beyond it `strength` says that there is hardly any protection, and the page does not look pleased"""
NEVER_COVERED = (
    "Several readings of the same person or machine: the budget of each is spent anew, so they add up.",
    "When a client speaks, how often, and how many readings are behind what it says.",
)


def privacy_text(contract: Contract) -> dict[str, Any]:
    """Title and its tone (good, warn, bad), words, epsilon (None where there is none), and what is not covered."""
    mode = contract.privacy.mode
    title, tone, words, uncovered = {"formal": _formal, "paper": _paper, "off": _off}[mode](contract)
    each = privacy_terms_of(contract).epsilon_per_feature()
    return {
        "mode": mode,
        "formal": mode == "formal",
        "title": title,
        "tone": tone,
        "words": words,
        "not_covered": uncovered,
        "epsilon_per_reading": math.fsum(each) if each else None,
        "nominal": mode == "paper",
        "features_total": contract.width,
        "epsilon_per_feature": [
            {
                "name": feature.name,
                "epsilon": epsilon,
                "low": feature.low,
                "high": feature.high,
                "unit": feature.unit,
                # Of Laplace noise the mean distance is its scale. What the paper's noise is scaled to is not agreed on.
                "noise": (feature.high - feature.low) / epsilon if mode == "formal" else None,
            }
            for feature, epsilon in zip(contract.features[:FEATURES_MAX], each, strict=False)
        ],
    }


def _formal(contract: Contract) -> tuple[str, str, list[str], list[str]]:
    epsilon = contract.privacy.epsilon_per_reading
    assert epsilon is not None
    words = [
        "Every client moves each reading into the agreed bounds and adds random noise to it before anything is "
        "learnt. The reading itself never leaves the client; what is drawn here was learnt from noisy rows.",
        "The guarantee holds for each reading, over all its features together: whatever is published was at most "
        f"{_times(epsilon)} likelier with this reading than with any other in its place. {strength(epsilon)}",
    ]
    if epsilon > EPSILON_HARDLY_ANY:
        return "Formal guarantee, hardly any protection", "warn", words, list(NEVER_COVERED)
    return "Formal guarantee for every reading", "good", words, list(NEVER_COVERED)


def _times(epsilon: float) -> str:
    """e to the power of epsilon, as far as anybody can grasp it."""
    if epsilon < 9:
        return f"{math.exp(epsilon):.3g} times" if epsilon < 6.9 else f"{math.exp(epsilon):,.0f} times"
    power = str(math.ceil(epsilon / math.log(10))).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{power} times"


def _paper(contract: Contract) -> tuple[str, str, list[str], list[str]]:
    words = [
        "Every client adds noise to each reading before anything is learnt, as in equations 2 to 4 of the FCAC "
        "paper. The reading itself never leaves the client.",
        "The noise is scaled to the range a client has seen and not to agreed bounds, so its epsilon is nominal: "
        "it describes the noise and guarantees nothing.",
    ]
    uncovered = [
        "The range of a client's readings: it shows in how strong the noise is, so an extreme reading can show."
    ]
    return "Noise without a formal guarantee", "warn", words, uncovered + list(NEVER_COVERED)


def _off(contract: Contract) -> tuple[str, str, list[str], list[str]]:
    words = [
        "Privacy is off: clients learn from readings as they are. A node that won once is a reading, shown exactly. "
        "This is for public data only."
    ]
    return "No privacy", "bad", words, ["Everything: nothing is hidden in this mode."]
