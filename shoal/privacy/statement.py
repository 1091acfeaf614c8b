"""What is promised, said three ways: as values that travel, as a digest the noise is bound to, and in words."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from shoal.privacy.laplace import discrete_laplace
from shoal.privacy.terms import PrivacyTerms

MECHANISMS = {"formal": "discrete-laplace", "paper": "laplace-running-range", "off": "none"}
_NOT_COVERED = (
    "Not covered: that a reading was taken, when, and how many there are. Many readings of one person, or readings "
    "that follow from one another in time, are each protected but not together: their epsilons add up."
)


def expected_statement(terms: PrivacyTerms) -> dict[str, Any]:
    """The statement every honest client of these terms sends; the server compares. Plain values only.

    `nominal` marks epsilons that are the paper's name for a noise level and promise nothing.
    """
    return {
        "mode": terms.mode,
        "mechanism": MECHANISMS[terms.mode],
        "formal": terms.mode == "formal",
        "unit": "reading",
        "epsilon_per_reading": float(terms.epsilon_per_reading) if terms.epsilon_per_reading is not None else None,
        "epsilon_per_feature": list(terms.epsilon_per_feature()),
        "nominal": terms.mode == "paper",
    }


def context_digest(terms: PrivacyTerms) -> bytes:
    """32 bytes over all that decides what the noise words are used for: mechanism, bounds, epsilons, grids, tables."""
    digest = hashlib.sha256(f"shoal noise 1;{MECHANISMS[terms.mode]};{terms.bounds.d};".encode())
    for array in (terms.bounds.low, terms.bounds.high, np.array(terms.epsilon_per_feature())):
        digest.update(array.astype("<f8").tobytes())
    if terms.mode == "formal":
        for epsilon in terms.epsilon_per_feature():
            digest.update(discrete_laplace(epsilon).digest())
    return digest.digest()


def announce(terms: PrivacyTerms) -> str:
    """What a person is told when a process starts."""
    if terms.mode == "off":
        return (
            "Privacy: OFF. No noise is added: rows are the readings themselves, moved into their bounds. "
            "For public readings only."
        )
    if terms.mode == "paper":
        return (
            f"Privacy: PAPER, NO FORMAL GUARANTEE. Laplace noise as in Masuyama et al. 2023 with a nominal epsilon of "
            f"{terms.epsilon_nominal_per_feature:g} for each of {terms.bounds.d} features. Its size depends on the "
            "readings, which gives away the extreme ones and protects none; use it to reproduce and compare, never "
            "for readings that must stay private."
        )
    assert terms.epsilon_per_reading is not None
    parts = terms.epsilon_per_feature()
    each = f"{parts[0]:g} each" if len(set(parts)) == 1 else f"{min(parts):g} to {max(parts):g}"
    return (
        "Privacy: FORMAL. Every reading gets discrete Laplace noise on this client before anything learns from it. "
        f"Epsilon is {terms.epsilon_per_reading:g} per reading, the sum over {len(parts)} features ({each}); the noise "
        f"moves a feature by {_spread(parts)} of its declared range on average. Whatever else an observer of all that "
        "is published knows, for one reading its odds between two values it might have had move by a factor of "
        f"{_factor(terms.epsilon_per_reading)} at most. {strength(terms.epsilon_per_reading)} {_NOT_COVERED}"
    )


def _factor(epsilon: float) -> str:
    if epsilon < 14:
        return f"e^{epsilon:g} = {math.exp(epsilon):.4g}"
    return f"e^{epsilon:g}, about 10^{epsilon / math.log(10):.0f},"


def _spread(epsilons: tuple[float, ...]) -> str:
    least, most = 1 / max(epsilons), 1 / min(epsilons)
    return f"{least:.2g}" if least == most else f"{least:.2g} to {most:.2g}"


def strength(epsilon: float) -> str:
    """How strong the protection of such an epsilon per reading is, in one honest sentence."""
    if epsilon <= 1:
        return "This is strong protection."
    if epsilon <= 4:
        return "This is fair protection."
    if epsilon <= 10:
        return "This is weak protection: an observer with a good guess can become nearly certain."
    return (
        "This is HARDLY ANY protection against an observer who knows what to look for: between clearly different "
        "values it can become certain. It blurs readings, no more."
    )
