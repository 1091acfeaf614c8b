"""The exact epsilon of the tables: against the declared one, against brute force, and for tables
that are wrong."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.errors import SettingsError
from shoal.privacy import formal
from shoal.privacy.laplace import (
    ESCAPE,
    TABLE_BITS,
    Digit,
    DiscreteLaplace,
    certified_epsilon,
    discrete_laplace,
    geometric_digit,
)
from tests.privacy.modes import build, formal_mode


@pytest.mark.parametrize(
    "epsilon", [1e-4, 0.01, 0.0625, 0.3, 0.5, 1.0, 1 / 3 + 1, 4.0, 15.0, 25.0, 50.0, 120.0, 1000.0]
)
def test_the_tables_cost_at_most_the_declared_epsilon_and_hardly_less(epsilon: float) -> None:
    certified = certified_epsilon(discrete_laplace(epsilon))
    assert certified <= epsilon * (1 + 1e-9)
    assert certified > epsilon * 0.999


def magnitudes(distribution: DiscreteLaplace) -> list[Fraction]:
    """P(k) for k = 0, 1, ... by enumerating all values of the digits."""
    whole = 2**TABLE_BITS
    fine = [Fraction(1)]
    for digit in distribution.inner:
        fine = [Fraction(int(w), whole) * p for w in digit.weights for p in fine]
    level = [Fraction(int(w), whole) for w in distribution.scales.weights]
    scales: list[Fraction] = []
    for passed in range(distribution.levels):
        scales += [level[ESCAPE] ** passed * p for p in level[:ESCAPE]]
    scales.append(level[ESCAPE] ** distribution.levels)
    return [a * p for a in scales for p in fine]


def brute_force(distribution: DiscreteLaplace) -> float:
    """max |ln P(y|g) - ln P(y|g')| over all y, g, g' with the full table of probabilities."""
    of_k = magnitudes(distribution)
    assert sum(of_k) == 1
    edge = 2 * distribution.margin + 1
    top = 2 * distribution.steps + edge
    table: list[dict[int, Fraction]] = []
    for g in range(distribution.steps + 1):
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
def test_the_certificate_equals_brute_force(epsilon: float, fine: int) -> None:
    distribution = discrete_laplace(epsilon, fine)
    assert certified_epsilon(distribution) == pytest.approx(brute_force(distribution), abs=1e-11)


def rough_digit(stride: int, drops: NDArray[np.float64]) -> Digit:
    """Weights that fall by `drops` (size - 1,) nats each."""
    parts = np.exp(-np.concatenate([[0.0], np.cumsum(drops)]))
    weights = [int(part) for part in 2.0**TABLE_BITS * parts / parts.sum()]
    return Digit(
        stride,
        np.array(
            [2**TABLE_BITS - sum(weights[i:]) for i in range(1, len(weights))], dtype=np.uint64
        ),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("steps", [4, 5, 6, 7, 8])
def test_the_certificate_equals_brute_force_on_rough_tables(seed: int, steps: int) -> None:
    """In tables as uneven as they may be, carries and the place of the worst pair matter."""
    rng = np.random.default_rng(seed)
    fine = rough_digit(1, rng.dirichlet(np.ones(3)) * 1.1)
    distribution = dataclasses.replace(
        discrete_laplace(steps / 4, 4),
        inner=(fine,),
        scales=rough_digit(4, rng.uniform(1.4, 1.75, ESCAPE)),
    )
    assert distribution.steps == steps
    assert certified_epsilon(distribution) == pytest.approx(brute_force(distribution), abs=1e-11)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [5, 6, 7])
def test_the_certificate_equals_brute_force_on_rough_tables_of_three_digits(
    seed: int, steps: int
) -> None:
    rng = np.random.default_rng(seed)
    distribution = dataclasses.replace(
        discrete_laplace(steps / 8, 4),
        inner=(
            rough_digit(1, rng.dirichlet(np.ones(3)) * 0.5),
            rough_digit(4, rng.uniform(0.6, 0.8, 1)),
        ),
        scales=rough_digit(8, rng.uniform(1.4, 1.75, ESCAPE)),
    )
    assert (distribution.steps, distribution.scale) == (steps, 8)
    assert certified_epsilon(distribution) == pytest.approx(brute_force(distribution), abs=1e-11)


def damage(digit: Digit, value: int, by: int) -> Digit:
    """The same table with the boundary after `value` moved."""
    below = digit.below.copy()
    below[value] = int(below[value]) + by
    return dataclasses.replace(digit, below=below)


def test_the_certificate_detects_a_wrong_fine_table() -> None:
    distribution = discrete_laplace(1.0)
    step = int(distribution.inner[0].weights[100]) - int(distribution.inner[0].weights[101])
    damaged = damage(distribution.inner[0], 100, -step)
    with pytest.raises(SettingsError, match="fall with distance"):
        certified_epsilon(dataclasses.replace(distribution, inner=(damaged,)))


def test_the_certificate_detects_a_wrong_table_of_whole_scales() -> None:
    distribution = discrete_laplace(4.0)
    damaged = damage(distribution.scales, 3, -int(distribution.scales.weights[3]) // 2)
    with pytest.raises(SettingsError, match="fall with distance"):
        certified_epsilon(dataclasses.replace(distribution, scales=damaged))


def test_the_certificate_detects_a_fine_table_of_another_scale() -> None:
    """Each table falls, but at the seam a step farther away is more likely."""
    distribution = discrete_laplace(4.0)
    other = geometric_digit(distribution.scale, 1, distribution.scale // 2)
    with pytest.raises(SettingsError, match="fall with distance"):
        certified_epsilon(dataclasses.replace(distribution, inner=(other,)))


def test_the_certificate_detects_a_tail_that_was_cut() -> None:
    distribution = discrete_laplace(1.0)
    cut = geometric_digit(ESCAPE + 1, distribution.scale, distribution.scale)
    assert certified_epsilon(dataclasses.replace(distribution, scales=cut)) > 1.4


def test_the_certificate_detects_too_few_levels() -> None:
    distribution = discrete_laplace(15.0)
    with pytest.raises(SettingsError, match="margin"):
        certified_epsilon(dataclasses.replace(distribution, levels=distribution.levels - 1))


def test_tables_that_cost_more_than_declared_give_no_mechanism(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        formal, "discrete_laplace", lambda epsilon: discrete_laplace(epsilon * 1.01)
    )
    with pytest.raises(SettingsError, match="do not use this build"):
        build(formal_mode(3, 3.0))
