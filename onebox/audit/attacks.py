"""Attacks on mechanisms from outside: which of two windows was counted, which reading a noisy row
came from.

The mechanisms are made from the contract as a client makes them, and attacked alone: fast enough
for many trials.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.errors import InvalidData
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.onebox.audit.statistics import (
    ALPHA,
    Finding,
    Loss,
    LossFinding,
    loss_from_guesses,
    loss_from_scores,
)
from shoal.privacy.base import Bounds
from shoal.privacy.count_noise import CountMechanism
from shoal.privacy.formal import Formal
from shoal.privacy.imperfect import EarlierRows, row_mechanism
from shoal.privacy.keyed import KEY_BYTES, SOURCE_BYTES
from shoal.privacy.laplace import DiscreteLaplace

CELLS = 8
"""cells of the windows of the audit of two cells"""
FULL = 10
"""readings in each of the other cells"""

EXACT = 1e6
"""the score of counts without noise: above all scores that noise gives"""

CountRelease = Callable[[Ints, int], Ints]
"""true counts (cells,) and the number of the window -> private counts, as the client publishes them
"""


def counts_score(published: Ints, first: Ints, second: Ints, epsilon: float) -> float:
    """ln P(published | first) - ln P(published | second) for the declared noise; true counts
    (cells,) of each.

    `epsilon` is that of one reading. Counts that are exactly those of one window score `EXACT`, as
    they do where noise is missing.
    """
    is_first = np.array_equal(published, first)
    is_second = np.array_equal(published, second)
    if is_first != is_second:
        if is_first:
            return EXACT
        return -EXACT
    # Half of epsilon: a reading that is elsewhere changes two counts by one, and the noise is made
    # for both together.
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
    """All `readings` of a privacy unit lie in the first or in the second of two cells that are
    empty otherwise; which?

    With `repeats` above 1 each window is released as many times, as by a client that is killed and
    starts again.
    """
    first = generator.integers(0, 2, size=trials).astype(np.bool_)
    windows = _two_windows(readings)
    scores = np.empty(trials)
    for number in range(trials):
        true = windows[0 if first[number] else 1]
        # A copy, as a mechanism may write into what it is given.
        answers = different(release(true.copy(), number) for _ in range(repeats))
        scores[number] = sum(
            counts_score(answer, *windows, epsilon / readings) for answer in answers
        )
    return loss_from_scores(scores, first)


def audit_independent_counts(
    release: CountRelease,
    own: CountRelease,
    trials: int,
    generator: np.random.Generator,
    readings: int = 1,
) -> Loss:
    """Whether a client of the attacker's `own` can reproduce the noise of another one.

    It counts either window itself, under the same number, and guesses the one for which both
    publish the same.
    """
    first = generator.integers(0, 2, size=trials).astype(np.bool_)
    windows = _two_windows(readings)
    guesses = hits = 0
    for number in range(trials):
        published = release(windows[0 if first[number] else 1].copy(), number)
        same = [np.array_equal(published, own(window.copy(), number)) for window in windows]
        if same[0] != same[1]:
            guesses = guesses + 1
            hits = hits + (same[0] == first[number])
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
    """One audit per feature from `trials` readings; each bound fails with probability at most
    `alpha`.

    Raises `InvalidData` if the mechanism withholds rows, which none with a guarantee does.
    """
    epsilons = np.asarray(epsilon_per_feature, dtype=np.float64)
    # At a larger loss nearly all guesses are right, and trials bound it badly.
    upper = np.minimum(1.0, 1.0 / epsilons)
    was_upper = generator.integers(0, 2, size=(trials, bounds.d)).astype(np.bool_)
    rows = release(bounds.from_unit(np.where(was_upper, upper, 0.0)))
    if rows.shape != was_upper.shape:
        raise InvalidData(f"an audit of {trials} readings got rows of shape {rows.shape}")
    # Only rows beyond both values are guessed, where the ratio of chances is the whole declared
    # loss.
    guess_upper = rows >= upper
    guess_lower = rows <= 0.0
    right = (guess_upper & was_upper).sum(axis=0) + (guess_lower & ~was_upper).sum(axis=0)
    guesses = (guess_upper | guess_lower).sum(axis=0)
    return [
        LossFinding(
            "two values",
            f"feature {j + 1}",
            float(loss),
            loss_from_guesses(trials, int(guessed), int(hits), alpha),
        )
        for j, (hits, guessed, loss) in enumerate(
            zip(right, guesses, epsilons * upper, strict=True)
        )
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
    """Whether a feature that never varies gets its noise: streams of one value, guessed from their
    last row.

    `release_of` makes the mechanism of the client of a trial. All features have one of two values
    at which the declared loss of each is at most 1; the loss is that of the first feature.
    """
    upper = np.minimum(1.0, 1.0 / np.asarray(epsilon_per_feature, dtype=np.float64))
    guesses = hits = 0
    for trial in range(trials):
        was_upper = bool(generator.integers(0, 2))
        stream = np.tile(bounds.from_unit(upper if was_upper else np.zeros(bounds.d)), (STREAM, 1))
        row = release_of(trial)(stream)[-1]
        guess_upper = bool(row[0] >= upper[0])
        guess_lower = bool(row[0] <= 0.0)
        guesses += guess_upper or guess_lower
        hits += (guess_upper and was_upper) or (guess_lower and not was_upper)
    return loss_from_guesses(trials, guesses, hits)


def audit_independent_rows(
    release: Release,
    own: Callable[[], Release],
    bounds: Bounds,
    trials: int,
    generator: np.random.Generator,
) -> Loss:
    """Whether clients of the attacker's own can reproduce the noise of another one's rows.

    `own` makes such a client, whose log begins at the place where that of the other one begins.
    Each gives one of two readings at every place; guessed is the one for which both rows are the
    same.
    """
    first = generator.integers(0, 2, size=trials).astype(np.bool_)
    readings = [np.tile(bounds.from_unit(np.full(bounds.d, at)), (trials, 1)) for at in (0.0, 1.0)]
    rows = release(np.where(first[:, None], readings[0], readings[1]))
    same = [(rows == own()(reading)).all(axis=1) for reading in readings]
    guessed = same[0] != same[1]
    return loss_from_guesses(trials, int(guessed.sum()), int((same[0] == first)[guessed].sum()))


NoiseValues = Callable[[Floats], Floats]
"""one feature of n readings, in unit coordinates -> the same feature of their rows"""
Reachable = Callable[[Floats, float], Bools]
"""rows (n,) and a reading -> (n,) whether the reading can give each row"""

BATCH = 100_000
"""outputs that are attacked at once"""


def attack_precision(
    release: NoiseValues,
    reachable: Reachable,
    readings: tuple[float, float],
    trials: int,
    generator: np.random.Generator,
) -> Loss:
    """Count the outputs that only one of two readings can give, and that so prove which of them it
    was.

    An output that neither can give counts as well: it is not of the public set that all readings
    share.
    """
    certain = 0
    for start in range(0, trials, BATCH):
        first = generator.integers(0, 2, size=min(BATCH, trials - start)).astype(np.bool_)
        rows = release(np.where(first, readings[0], readings[1]))
        certain += int((~(reachable(rows, readings[0]) & reachable(rows, readings[1]))).sum())
    return loss_from_guesses(trials, certain, certain)


def reachable_on_grid(noise: DiscreteLaplace) -> Reachable:
    """What the mechanism of `formal` can give from any reading: odd numbers of half steps, up to
    its margin."""

    def reachable(rows: Floats, reading: float) -> Bools:
        half_steps = np.rint(rows * 2 * noise.steps)
        low, high = noise.reach()
        on_grid = (half_steps % 2 == 1) & (half_steps / (2 * noise.steps) == rows)
        return np.asarray(on_grid & (rows >= low) & (rows <= high))

    return reachable


ROWS = "rows"
"""the subject of findings on noisy rows, which all models that learn from rows share"""
PLAN = hashlib.sha256(b"the plan of an audit").digest()


def audit_count_mechanism(
    contract: ResolvedContract, model: ResolvedModel, trials: int, generator: np.random.Generator
) -> list[Finding]:
    """Two cells, a window released again, and a client that would have another one's noise."""
    epsilon = model.epsilon or 0.0
    audited = _count_release(contract, model, "audited", generator)
    attacker = _count_release(contract, model, "attacker", generator)
    readings = contract.mode.unit.readings_max
    losses = {
        "two cells": audit_two_cells(audited, epsilon, trials, generator, readings=readings),
        "two cells, released twice": audit_two_cells(
            audited, epsilon, trials, generator, repeats=2, readings=readings
        ),
        "noise of another client": audit_independent_counts(
            audited, attacker, trials, generator, readings
        ),
    }
    return [LossFinding(audit, model.name, epsilon, loss) for audit, loss in losses.items()]


def audit_row_mechanism(
    contract: ResolvedContract, trials: int, outputs: int, generator: np.random.Generator
) -> list[Finding]:
    """Two values, a feature that never varies, another client's noise, and the precision attack on
    `outputs` rows."""
    mode = contract.mode
    bounds = contract.bounds
    epsilons = mode.epsilon_per_feature()
    total = mode.epsilon_per_reading() or 0.0
    release = row_release(contract, "audited", generator)
    constant = audit_constant_features(
        lambda trial: row_release(contract, f"client-{trial}", generator),
        bounds,
        epsilons,
        trials,
        generator,
    )
    other = audit_independent_rows(
        release, lambda: row_release(contract, "attacker", generator), bounds, trials, generator
    )
    features = audit_features(release, bounds, epsilons, trials, generator)
    gaps = []
    # Of a single feature a missing one is the whole reading, which other audits cover.
    if contract.learns_gaps and bounds.d > 1:
        gaps.append(audit_missing_feature(contract, trials, generator))
    return [
        *gaps,
        *(
            LossFinding(feature.audit, f"{ROWS}, {feature.subject}", feature.declared, feature.loss)
            for feature in features
        ),
        LossFinding("features that never vary", ROWS, min(1.0, epsilons[0]), constant),
        LossFinding("noise of another client", ROWS, total, other),
        audit_row_precision(contract, outputs, generator),
    ]


def audit_missing_feature(
    contract: ResolvedContract, trials: int, generator: np.random.Generator
) -> LossFinding:
    """A reading that lacks its last feature against one that has it, at the upper bound; the others
    are alike.

    The attacker computes what was filled in, as it follows from the rows before and the features
    that are there.
    """
    mode = contract.mode
    bounds = contract.bounds
    release = row_release(contract, "audited", generator)
    public = EarlierRows(bounds.d)
    epsilon = mode.epsilon_per_feature()[-1]
    was_first = generator.integers(0, 2, size=trials).astype(np.bool_)
    scores = np.empty(trials)
    for trial, has_it in enumerate(was_first.tolist()):
        reading = np.full((1, bounds.d), 0.5)
        reading[0, -1] = 1.0 if has_it else np.nan
        row = release(bounds.from_unit(reading))
        filled: list[Floats] = []

        # Values by default: a function that is made in a loop would see those of the last trial.
        def look(
            rows: Floats, _: slice, filled: list[Floats] = filled, row: Floats = row
        ) -> Floats:
            filled.append(rows)
            return row

        public.fill(np.where(np.arange(bounds.d) == bounds.d - 1, np.nan, row), look)
        guess = min(max(float(filled[0][0, -1]), 0.0), 1.0)
        # The logarithm of the ratio of two Laplace densities: one around what was filled in, the
        # other around the value that is there.
        scores[trial] = epsilon * (abs(row[0, -1] - guess) - abs(row[0, -1] - 1.0))
        if row[0, -1] == guess:  # without noise, which has no such value
            scores[trial] = -np.inf
    return LossFinding(
        "a feature that is missing", ROWS, epsilon, loss_from_scores(scores, was_first)
    )


def audit_row_precision(
    contract: ResolvedContract, outputs: int, generator: np.random.Generator
) -> LossFinding:
    """The number of outputs, out of `outputs`, that only one of two readings can give, in the first
    feature."""
    mode = contract.mode
    bounds = contract.bounds
    assert isinstance(mode, Formal)
    release = row_release(contract, "audited", generator)

    def first_feature(values: Floats) -> Floats:
        unit = np.zeros((len(values), bounds.d))
        unit[:, 0] = values
        return release(bounds.from_unit(unit))[:, 0]

    # Readings between the steps of the grid, so that a mechanism that did not round them would
    # show.
    readings = (0.123456789, 0.123456789 + min(0.5, 1.0 / mode.epsilon_per_feature()[0]))
    loss = attack_precision(
        first_feature, reachable_on_grid(mode.noises[0]), readings, outputs, generator
    )
    return LossFinding("precision", ROWS, mode.epsilon_per_feature()[0], loss)


def row_release(contract: ResolvedContract, client: str, generator: np.random.Generator) -> Release:
    """The mechanism of rows of a client with a key and a log of its own; every reading has the next
    place in it."""
    mechanism = row_mechanism(
        contract.mode, generator.bytes(KEY_BYTES), client, generator.bytes(SOURCE_BYTES)
    )
    offsets: Iterator[int] = itertools.count()

    def release(readings: Floats) -> Floats:
        places = np.array([(0, next(offsets)) for _ in range(len(readings))], dtype=np.int64)
        return mechanism.privatise(readings, places).rows

    return release


def _count_release(
    contract: ResolvedContract, model: ResolvedModel, client: str, generator: np.random.Generator
) -> CountRelease:
    assert model.counts is not None
    noise = model.counts.noise
    size = contract.contract.privacy.window_readings
    assert noise is not None
    mechanism = CountMechanism(
        noise, generator.bytes(KEY_BYTES), client, generator.bytes(SOURCE_BYTES), model.name
    )
    return lambda counts, number: mechanism.release(
        counts, (number, number * size, (number + 1) * size - 1), PLAN
    )
