"""Attacks on private counts: which of two neighbouring windows was counted?

The attacker knows every reading but one, the public plan, and all that is published of the window. The noise of a cell
is whole and P(k) falls by e^(epsilon / 2) with every step from 0, so that a cell whose true count is one larger in the
first window than in the second shifts the log-likelihood ratio by epsilon / 2 up or down. Where N readings of one user
are protected together, windows differ in N readings, and every step is epsilon / (2 N). Summed over all cells and
over all different answers to a window it is the best score that there is for the declared noise. It also notices noise
that is not as declared, because guesses then are right too often, and counts that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from shoal.privacy.audit.statistics import Loss, loss_from_guesses, loss_from_scores
from shoal.privacy.count_noise import Counts

CELLS = 8
"""cells of the windows of the audit of two cells"""
FULL = 10
"""readings in each of the other cells"""

EXACT = 1e6
"""the score of counts without noise: above all scores that noise gives"""

CountRelease = Callable[[Counts, int], Counts]
"""true counts (cells,) and the number of the window -> private counts, as the client publishes them"""


def counts_score(published: Counts, first: Counts, second: Counts, epsilon: float) -> float:
    """ln P(published | first) - ln P(published | second) for the declared noise; true counts (cells,) of each.

    `epsilon` is that of one reading. Counts that are exactly those of one window score `EXACT`, as they do where noise
    is missing.
    """
    is_first, is_second = np.array_equal(published, first), np.array_equal(published, second)
    if is_first != is_second:
        return EXACT if is_first else -EXACT
    return epsilon / 2.0 * float((np.abs(published - second) - np.abs(published - first)).sum())


def different(answers: Iterable[Counts]) -> list[Counts]:
    """The answers without those that repeat an earlier one: a repetition adds no evidence."""
    return list({answer.tobytes(): answer for answer in answers}.values())


def audit_two_cells(
    release: CountRelease,
    epsilon: float,
    trials: int,
    generator: np.random.Generator,
    *,
    repeats: int = 1,
    readings: int = 1,
) -> Loss:
    """All `readings` of a privacy unit lie in the first or in the second of two cells that are empty otherwise; which?

    With `repeats` above 1 each window is released so often, as a client does that is killed and starts again.
    """
    first = generator.integers(0, 2, size=trials).astype(np.bool_)
    windows = _two_windows(readings)
    scores = np.empty(trials)
    for number in range(trials):
        true = windows[0 if first[number] else 1]
        answers = different(release(true.copy(), number) for _ in range(repeats))
        scores[number] = sum(counts_score(answer, *windows, epsilon / readings) for answer in answers)
    return loss_from_scores(scores, first)


def audit_independent_counts(
    release: CountRelease, own: CountRelease, trials: int, generator: np.random.Generator, readings: int = 1
) -> Loss:
    """Whether a client of the attacker's `own` can reproduce the noise of another one.

    It counts either window itself, under the same number, and guesses the one for which both publish the same.
    """
    first = generator.integers(0, 2, size=trials).astype(np.bool_)
    windows = _two_windows(readings)
    guesses = hits = 0
    for number in range(trials):
        published = release(windows[0 if first[number] else 1].copy(), number)
        same = [np.array_equal(published, own(window.copy(), number)) for window in windows]
        if same[0] != same[1]:
            guesses, hits = guesses + 1, hits + (same[0] == first[number])
    return loss_from_guesses(trials, guesses, hits)


def _two_windows(readings: int) -> tuple[Counts, Counts]:
    """The true counts (cells,) of two windows that differ in so many readings."""
    base: NDArray[np.int64] = np.full(CELLS, FULL, dtype=np.int64)
    base[:2] = 0
    cell = np.arange(CELLS)
    return base + readings * (cell == 0), base + readings * (cell == 1)
