"""Attacks on noisy rows: a feature that never varies, and a client that would have another one's noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shoal.privacy.audit.features import Release
from shoal.privacy.audit.statistics import Loss, loss_from_guesses
from shoal.privacy.base import Bounds

STREAM = 3
"""readings of a stream whose features never vary"""


def audit_constant_features(
    release_of: Callable[[int], Release],
    bounds: Bounds,
    epsilon_per_feature: Sequence[float],
    trials: int,
    generator: np.random.Generator,
) -> Loss:
    """Whether a feature that never varies gets its noise: streams of one value, guessed from their last row.

    `release_of` makes the mechanism of the client of a trial. All features have one of two values at which the declared
    loss of each is at most 1; the loss is that of the first feature.
    """
    upper = np.minimum(1.0, 1.0 / np.asarray(epsilon_per_feature, dtype=np.float64))
    guesses = hits = 0
    for trial in range(trials):
        was_upper = bool(generator.integers(0, 2))
        stream = np.tile(bounds.from_unit(upper if was_upper else np.zeros(bounds.d)), (STREAM, 1))
        row = release_of(trial)(stream)[-1]
        guess_upper, guess_lower = bool(row[0] >= upper[0]), bool(row[0] <= 0.0)
        guesses += guess_upper or guess_lower
        hits += (guess_upper and was_upper) or (guess_lower and not was_upper)
    return loss_from_guesses(trials, guesses, hits)


def audit_independent_rows(
    release: Release, own: Callable[[], Release], bounds: Bounds, trials: int, generator: np.random.Generator
) -> Loss:
    """Whether clients of the attacker's own can reproduce the noise of another one's rows.

    `own` makes such a client, whose log begins at the place where that of the other one begins. Each gives one of two
    readings at every place; guessed is the one for which both rows are the same.
    """
    first = generator.integers(0, 2, size=trials).astype(np.bool_)
    readings = [np.tile(bounds.from_unit(np.full(bounds.d, at)), (trials, 1)) for at in (0.0, 1.0)]
    rows = release(np.where(first[:, None], readings[0], readings[1]))
    same = [(rows == own()(each)).all(axis=1) for each in readings]
    guessed = same[0] != same[1]
    return loss_from_guesses(trials, int(guessed.sum()), int((same[0] == first)[guessed].sum()))
