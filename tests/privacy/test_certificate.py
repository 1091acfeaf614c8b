"""The exact epsilon of the tables: against the declared one, against brute force, and against spoilt tables."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from noise_terms import build, formal_terms

from shoal.errors import SettingsError
from shoal.privacy import mechanisms
from shoal.privacy.certificate import certified_epsilon
from shoal.privacy.laplace import ESCAPE, TABLE_BITS, DiscreteLaplace, discrete_laplace, geometric_digit


@pytest.mark.parametrize(
    "epsilon", [1e-4, 0.01, 0.0625, 0.3, 0.5, 1.0, 1 / 3 + 1, 4.0, 15.0, 25.0, 50.0, 120.0, 1000.0]
)
def test_the_tables_keep_what_is_declared_and_hardly_less(epsilon: float) -> None:
    certified = certified_epsilon(discrete_laplace(epsilon))
    assert certified <= epsilon * (1 + 1e-9)
    assert certified > epsilon * 0.999


def magnitudes(law: DiscreteLaplace) -> list[Fraction]:
    """P(k) for k = 0, 1, ... by going through every way the words can fall."""
    whole = 2**TABLE_BITS
    fine = [Fraction(1)]
    for digit in law.inner:
        fine = [Fraction(int(w), whole) * p for w in digit.weights for p in fine]
    level = [Fraction(int(w), whole) for w in law.scales.weights]
    scales: list[Fraction] = []
    for passed in range(law.levels):
        scales += [level[ESCAPE] ** passed * p for p in level[:ESCAPE]]
    scales.append(level[ESCAPE] ** law.levels)
    return [a * p for a in scales for p in fine]


def brute_force(law: DiscreteLaplace) -> float:
    """max |ln P(y|g) - ln P(y|g')| over all y, g, g' with the full table of probabilities."""
    of_k = magnitudes(law)
    assert sum(of_k) == 1
    edge = 2 * law.margin + 1
    top = 2 * law.steps + edge
    table: list[dict[int, Fraction]] = []
    for g in range(law.steps + 1):
        row: dict[int, Fraction] = {}
        for k, p in enumerate(of_k):
            for odd in (2 * k + 1, -2 * k - 1):
                y = min(max(2 * g + odd, -edge), top)
                row[y] = row.get(y, Fraction(0)) + p / 2
        table.append(row)
    worst = 0.0
    for y in range(-edge, top + 1, 2):
        column = [row.get(y, Fraction(0)) for row in table]
        assert min(column) > 0, "a result that some reading cannot give would identify"
        ratio = max(column) / min(column)
        worst = max(worst, math.log(ratio.numerator) - math.log(ratio.denominator))
    return worst


@pytest.mark.parametrize(("epsilon", "fine"), [(1.0, 4), (0.5, 4), (2.6, 4), (0.7, 8), (20.0, 2)])
def test_the_certificate_is_what_brute_force_finds(epsilon: float, fine: int) -> None:
    law = discrete_laplace(epsilon, fine)
    assert certified_epsilon(law) == pytest.approx(brute_force(law), abs=1e-11)


def test_the_certificate_sees_a_spoilt_fine_table() -> None:
    law = discrete_laplace(1.0)
    weights = law.inner[0].weights.copy()
    weights[100] += weights[4000]
    weights[4000] -= weights[4000] - np.uint64(1)
    spoilt = dataclasses.replace(law, inner=(dataclasses.replace(law.inner[0], weights=weights),))
    with pytest.raises(SettingsError, match="fall with distance"):
        certified_epsilon(spoilt)


def test_the_certificate_sees_a_spoilt_table_of_whole_scales() -> None:
    law = discrete_laplace(4.0)
    weights = law.scales.weights.copy()
    weights[0] += weights[3] - weights[3] // np.uint64(2)
    weights[3] //= np.uint64(2)
    spoilt = dataclasses.replace(law, scales=dataclasses.replace(law.scales, weights=weights))
    with pytest.raises(SettingsError, match="fall with distance"):
        certified_epsilon(spoilt)


def test_the_certificate_sees_a_tail_that_was_not_folded() -> None:
    law = discrete_laplace(1.0)
    cut = geometric_digit(ESCAPE + 1, law.scale, law.scale)
    assert certified_epsilon(dataclasses.replace(law, scales=cut)) > 1.4


def test_the_certificate_sees_levels_that_end_too_early() -> None:
    law = discrete_laplace(15.0)
    with pytest.raises(SettingsError, match="margin"):
        certified_epsilon(dataclasses.replace(law, levels=law.levels - 1))


def test_a_client_whose_tables_give_more_than_declared_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "discrete_laplace", lambda epsilon: discrete_laplace(epsilon * 1.01))
    with pytest.raises(SettingsError, match="must not be used"):
        build(formal_terms(3, 3.0))
