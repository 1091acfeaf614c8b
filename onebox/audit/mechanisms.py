"""The audits of mechanisms alone, made from the contract as a client makes them: fast enough for many trials."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np

from onebox.audit.attacks import (
    CountRelease,
    Release,
    attack_precision,
    audit_constant_features,
    audit_features,
    audit_independent_counts,
    audit_independent_rows,
    audit_two_cells,
    reachable_on_grid,
)
from onebox.audit.statistics import Finding, LossFinding, loss_from_scores
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.kernels.arrays import Floats
from shoal.privacy.count_noise import CountMechanism
from shoal.privacy.formal import Formal
from shoal.privacy.imperfect import EarlierRows, row_mechanism
from shoal.privacy.keyed import KEY_BYTES, SOURCE_BYTES

ROWS = "rows"
"""the subject of findings on noisy rows, which all models that learn from rows share"""
PLAN = hashlib.sha256(b"the plan of an audit").digest()


def audit_count_mechanism(
    contract: ResolvedContract, model: ResolvedModel, trials: int, generator: np.random.Generator
) -> list[Finding]:
    """Two cells, a window released again, and a client that would have another one's noise."""
    epsilon = model.epsilon or 0.0
    one, other = (_count_release(contract, model, client, generator) for client in ("audited", "attacker"))
    readings = contract.mode.unit.readings_max
    losses = {
        "two cells": audit_two_cells(one, epsilon, trials, generator, readings=readings),
        "two cells, released twice": audit_two_cells(one, epsilon, trials, generator, repeats=2, readings=readings),
        "noise of another client": audit_independent_counts(one, other, trials, generator, readings),
    }
    return [LossFinding(audit, model.name, epsilon, loss) for audit, loss in losses.items()]


def audit_row_mechanism(
    contract: ResolvedContract, trials: int, outputs: int, generator: np.random.Generator
) -> list[Finding]:
    """Two values, a feature that never varies, another client's noise, and the precision attack on `outputs` rows."""
    mode, bounds = contract.mode, contract.bounds
    epsilons, total = mode.epsilon_per_feature(), mode.epsilon_per_reading() or 0.0
    release = row_release(contract, "audited", generator)
    constant = audit_constant_features(
        lambda trial: row_release(contract, f"client-{trial}", generator), bounds, epsilons, trials, generator
    )
    other = audit_independent_rows(
        release, lambda: row_release(contract, "attacker", generator), bounds, trials, generator
    )
    features = audit_features(release, bounds, epsilons, trials, generator)
    gaps = [audit_missing_feature(contract, trials, generator)] if contract.learns_gaps and bounds.d > 1 else []
    return [
        *gaps,
        *(LossFinding(one.audit, f"{ROWS}, {one.subject}", one.declared, one.loss) for one in features),
        LossFinding("features that never vary", ROWS, min(1.0, epsilons[0]), constant),
        LossFinding("noise of another client", ROWS, total, other),
        audit_row_precision(contract, outputs, generator),
    ]


def audit_missing_feature(contract: ResolvedContract, trials: int, generator: np.random.Generator) -> LossFinding:
    """A reading that lacks its last feature against one that has it, at the upper bound; the others are alike.

    The attacker computes what was filled in, as it follows from the rows before and the features that are there.
    """
    mode, bounds = contract.mode, contract.bounds
    release, public = row_release(contract, "audited", generator), EarlierRows(bounds.d)
    epsilon, was_first = mode.epsilon_per_feature()[-1], generator.integers(0, 2, size=trials).astype(np.bool_)
    scores = np.empty(trials)
    for trial, has_it in enumerate(was_first.tolist()):
        reading = np.full((1, bounds.d), 0.5)
        reading[0, -1] = 1.0 if has_it else np.nan
        row = release(bounds.from_unit(reading))
        filled: list[Floats] = []

        def look(rows: Floats, _: slice, filled: list[Floats] = filled, row: Floats = row) -> Floats:
            filled.append(rows)
            return row

        public.fill(np.where(np.arange(bounds.d) == bounds.d - 1, np.nan, row), look)
        guess = min(max(float(filled[0][0, -1]), 0.0), 1.0)
        scores[trial] = epsilon * (abs(row[0, -1] - guess) - abs(row[0, -1] - 1.0))
        if row[0, -1] == guess:  # without noise, which has no such value
            scores[trial] = -np.inf
    return LossFinding("a feature that is missing", ROWS, epsilon, loss_from_scores(scores, was_first))


def audit_row_precision(contract: ResolvedContract, outputs: int, generator: np.random.Generator) -> LossFinding:
    """The number of outputs, out of `outputs`, that only one of two readings can give, in the first feature."""
    mode, bounds = contract.mode, contract.bounds
    assert isinstance(mode, Formal)
    release = row_release(contract, "audited", generator)

    def first_feature(values: Floats) -> Floats:
        unit = np.zeros((len(values), bounds.d))
        unit[:, 0] = values
        return release(bounds.from_unit(unit))[:, 0]

    # Readings between the steps of the grid, so that a mechanism that did not round them would show.
    readings = (0.123456789, 0.123456789 + min(0.5, 1.0 / mode.epsilon_per_feature()[0]))
    loss = attack_precision(first_feature, reachable_on_grid(mode.noises[0]), readings, outputs, generator)
    return LossFinding("precision", ROWS, mode.epsilon_per_feature()[0], loss)


def row_release(contract: ResolvedContract, client: str, generator: np.random.Generator) -> Release:
    """The mechanism of rows of a client with a key and a log of its own; every reading has the next place in it."""
    mechanism = row_mechanism(contract.mode, generator.bytes(KEY_BYTES), client, generator.bytes(SOURCE_BYTES))
    offsets: Iterator[int] = itertools.count()

    def release(readings: Floats) -> Floats:
        places = np.array([(0, next(offsets)) for _ in range(len(readings))], dtype=np.int64)
        return mechanism.privatise(readings, places).rows

    return release


def _count_release(
    contract: ResolvedContract, model: ResolvedModel, client: str, generator: np.random.Generator
) -> CountRelease:
    assert model.counts is not None
    noise, size = model.counts.noise, contract.contract.privacy.window_readings
    assert noise is not None
    mechanism = CountMechanism(noise, generator.bytes(KEY_BYTES), client, generator.bytes(SOURCE_BYTES), model.name)
    return lambda counts, number: mechanism.release(counts, (number, number * size, (number + 1) * size - 1), PLAN)
