"""What guesses prove of epsilon: the bounds are exact, and sound also where the best of several
thresholds is taken."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from shoal.onebox.audit.statistics import clopper_pearson, loss_from_guesses, loss_from_scores


@pytest.mark.parametrize(
    ("hits", "trials"), [(0, 1), (1, 1), (0, 50), (50, 50), (1, 50), (25, 50), (731, 1000)]
)
def test_bounds_are_those_of_clopper_and_pearson(hits: int, trials: int) -> None:
    low, high = clopper_pearson(hits, trials, alpha=1e-3)
    two_sided = binomtest(hits, trials).proportion_ci(confidence_level=1 - 2e-3, method="exact")
    assert low == pytest.approx(two_sided.low, abs=1e-9)
    assert high == pytest.approx(two_sided.high, abs=1e-9)


def test_no_guesses_bound_nothing() -> None:
    assert clopper_pearson(0, 0, alpha=1e-3) == (0.0, 1.0)


def test_attacks_without_a_guess_prove_nothing() -> None:
    for loss in (
        loss_from_guesses(100, 0, 0),
        loss_from_scores(np.zeros(100), np.ones(100, dtype=np.bool_)),
    ):
        assert (loss.trials, loss.guesses, loss.estimate, loss.low, loss.high) == (
            100,
            0,
            0.0,
            0.0,
            math.inf,
        )


def test_guesses_that_are_always_right_prove_the_more_the_more_there_are() -> None:
    lows = [loss_from_guesses(n, n, n).low for n in (10, 100, 1000)]
    assert lows == sorted(lows)
    assert lows[-1] > 4.9


def test_guesses_that_are_no_better_than_chance_prove_nothing() -> None:
    assert loss_from_guesses(1000, 1000, 480).low == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_lower_bound_lies_below_the_true_loss_and_nears_it(epsilon: float) -> None:
    generator = np.random.default_rng(0)
    right = generator.random(20_000) < 1 / (1 + math.exp(-epsilon))
    loss = loss_from_guesses(20_000, 20_000, int(right.sum()))
    assert 0.85 * epsilon < loss.low < epsilon < loss.high
    assert loss.estimate == pytest.approx(epsilon, abs=0.15)


def test_the_best_threshold_is_found_where_only_few_scores_tell() -> None:
    """Nine of ten scores are small and noise; the large ones are always right."""
    generator = np.random.default_rng(0)
    first = generator.integers(0, 2, 2000).astype(np.bool_)
    large = generator.random(2000) < 0.1
    scores = np.where(large, np.where(first, 5.0, -5.0), generator.choice([-1.0, 1.0], 2000))
    loss = loss_from_scores(scores, first)
    assert (loss.guesses, loss.hits) == (large.sum(), large.sum())
    assert loss.low > 2.5


def test_scores_that_tell_nothing_prove_nothing_whichever_threshold_is_best() -> None:
    generator = np.random.default_rng(0)
    lows = [
        loss_from_scores(
            generator.normal(size=300), generator.integers(0, 2, 300).astype(np.bool_)
        ).low
        for _ in range(50)
    ]
    assert max(lows) == 0.0
