"""Attacks on mechanisms from outside: which of two windows was counted, which reading a noisy row came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from onebox.audit.statistics import ALPHA, Loss, LossFinding, loss_from_guesses, loss_from_scores
from shoal.errors import InvalidData
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.privacy.base import Bounds
from shoal.privacy.laplace import DiscreteLaplace

CELLS = 8
"""cells of the windows of the audit of two cells"""
FULL = 10
"""readings in each of the other cells"""

EXACT = 1e6
"""the score of counts without noise: above all scores that noise gives"""

CountRelease = Callable[[Ints, int], Ints]
"""true counts (cells,) and the number of the window -> private counts, as the client publishes them"""


def counts_score(published: Ints, first: Ints, second: Ints, epsilon: float) -> float:
    """ln P(published | first) - ln P(published | second) for the declared noise; true counts (cells,) of each.

    `epsilon` is that of one reading. Counts that are exactly those of one window score `EXACT`, as they do where noise
    is missing.
    """
    is_first, is_second = np.array_equal(published, first), np.array_equal(published, second)
    if is_first != is_second:
        return EXACT if is_first else -EXACT
    return epsilon / 2.0 * float((np.abs(published - second) - np.abs(published - first)).sum())


def different(answers: Iterable[Ints]) -> list[Ints]:
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

    With `repeats` above 1 each window is released as many times, as by a client that is killed and starts again.
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


def _two_windows(readings: int) -> tuple[Ints, Ints]:
    """The true counts (cells,) of two windows that differ in this many readings."""
    base: Ints = np.full(CELLS, FULL, dtype=np.int64)
    base[:2] = 0
    cell = np.arange(CELLS)
    return base + readings * (cell == 0), base + readings * (cell == 1)


Release = Callable[[Floats], Floats]
"""readings (n, d) in their units -> rows (n, d) in unit coordinates, made by the mechanism"""


def audit_features(
    release: Release,
    bounds: Bounds,
    epsilon_per_feature: Sequence[float],
    trials: int,
    generator: np.random.Generator,
    alpha: float = ALPHA,
) -> list[LossFinding]:
    """One audit per feature from `trials` readings; each bound fails with probability at most `alpha`.

    Raises `InvalidData` if the mechanism withholds rows, which none with a guarantee does.
    """
    epsilons = np.asarray(epsilon_per_feature, dtype=np.float64)
    upper = np.minimum(1.0, 1.0 / epsilons)
    was_upper = generator.integers(0, 2, size=(trials, bounds.d)).astype(np.bool_)
    rows = release(bounds.from_unit(np.where(was_upper, upper, 0.0)))
    if rows.shape != was_upper.shape:
        raise InvalidData(f"an audit of {trials} readings got rows of shape {rows.shape}")
    guess_upper, guess_lower = rows >= upper, rows <= 0.0
    right = (guess_upper & was_upper).sum(axis=0) + (guess_lower & ~was_upper).sum(axis=0)
    guesses = (guess_upper | guess_lower).sum(axis=0)
    return [
        LossFinding(
            "two values", f"feature {j + 1}", float(loss), loss_from_guesses(trials, int(guessed), int(hits), alpha)
        )
        for j, (hits, guessed, loss) in enumerate(zip(right, guesses, epsilons * upper, strict=True))
    ]


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


NoiseValues = Callable[[Floats], Floats]
"""one feature of n readings, in unit coordinates -> the same feature of their rows"""
Reachable = Callable[[Floats, float], Bools]
"""rows (n,) and a reading -> (n,) whether the reading can give each row"""

UNIFORM_BITS = 53
"""numpy draws its uniform numbers in steps of 2^-53"""
BATCH = 100_000
"""outputs that are attacked at once"""

_log = np.frompyfunc(math.log, 1, 1)
"""the logarithm of the C library, which numpy's generator uses; `np.log` may round otherwise in the last bit"""


def attack_precision(
    release: NoiseValues,
    reachable: Reachable,
    readings: tuple[float, float],
    trials: int,
    generator: np.random.Generator,
) -> Loss:
    """Count the outputs that only one of two readings can give, and that so prove which of them it was.

    An output that neither can give counts as well: it is not of the public set that all readings share.
    """
    certain = 0
    for start in range(0, trials, BATCH):
        first = generator.integers(0, 2, size=min(BATCH, trials - start)).astype(np.bool_)
        rows = release(np.where(first, readings[0], readings[1]))
        certain += int((~(reachable(rows, readings[0]) & reachable(rows, readings[1]))).sum())
    return loss_from_guesses(trials, certain, certain)


def reachable_on_grid(noise: DiscreteLaplace) -> Reachable:
    """What the mechanism of `formal` can give from any reading: odd numbers of half steps, up to its margin."""

    def reachable(rows: Floats, reading: float) -> Bools:
        half_steps = np.rint(rows * 2 * noise.steps)
        low, high = noise.reach()
        on_grid = (half_steps % 2 == 1) & (half_steps / (2 * noise.steps) == rows)
        return np.asarray(on_grid & (rows >= low) & (rows <= high))

    return reachable


def reachable_by_numpy(scale: float) -> Reachable:
    """What `numpy.random.Generator.laplace` of this scale, added to a reading, can give.

    It returns ± scale * ln V with V a multiple of 2^-53 in (0, 1]; the V near the one that fits best are tried.
    """
    width = math.ceil(8.0 / scale) + 8
    unit = 2.0**-UNIFORM_BITS

    def reachable(rows: Floats, reading: float) -> Bools:
        noise = rows - reading
        best = np.rint(np.exp(-np.abs(noise) / scale) / unit)
        found = np.zeros(len(rows), dtype=np.bool_)
        for step in range(-width, width + 1):
            number = np.clip(best + step, 1.0, 1.0 / unit)
            size = scale * _log(number * unit).astype(np.float64)
            found |= reading + np.where(noise < 0, size, -size) == rows
        return found

    return reachable
