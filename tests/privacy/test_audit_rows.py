"""Audits of noisy rows: precision, features that never vary, and other clients; each also with a
fault."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.onebox.audit.attacks import (
    Reachable,
    Release,
    attack_precision,
    audit_constant_features,
    audit_row_mechanism,
    audit_row_precision,
    reachable_on_grid,
)
from shoal.onebox.audit.statistics import LossFinding
from shoal.privacy import Released
from shoal.privacy.formal import FormalNoise
from shoal.privacy.keyed import KeyedRandomness, Places
from shoal.privacy.laplace import discrete_laplace
from tests.privacy.audited import audited_config
from tests.privacy.modes import formal_mode

TRIALS = 1500


def found(folder: Path, trials: int = TRIALS) -> list[LossFinding]:
    contract = audited_config(folder).resolved
    findings = audit_row_mechanism(contract, trials, 1000, np.random.default_rng(3))
    return [finding for finding in findings if isinstance(finding, LossFinding)]


def named(findings: list[LossFinding], audit: str) -> LossFinding:
    return next(finding for finding in findings if finding.audit == audit)


def test_the_mechanism_of_rows_is_not_refuted(tmp_path: Path) -> None:
    findings = found(tmp_path)
    assert [finding.audit for finding in findings] == [
        "a feature that is missing",
        "two values",
        "two values",
        "features that never vary",
        "noise of another client",
        "precision",
    ]
    assert not any(finding.refuted for finding in findings)
    for finding in findings[:4]:
        assert finding.loss.low > 0.6, "the attack must come near the declared loss of 1"


# Precision.

UNIFORM_BITS = 53
"""numpy draws its uniform numbers in steps of 2^-53"""

_log = np.frompyfunc(math.log, 1, 1)
"""the logarithm of the C library, which numpy's generator uses; `np.log` may round otherwise in the
last bit"""


def reachable_by_numpy(scale: float) -> Reachable:
    """What `numpy.random.Generator.laplace` of this scale, added to a reading, can give.

    It returns ± scale * ln V with V a multiple of 2^-53 in (0, 1]; the V near the one that fits
    best are tried.
    """
    width = math.ceil(8.0 / scale) + 8
    unit = 2.0**-UNIFORM_BITS

    def reachable(rows: NDArray[np.float64], reading: float) -> NDArray[np.bool_]:
        noise = rows - reading
        best = np.rint(np.exp(-np.abs(noise) / scale) / unit)
        found = np.zeros(len(rows), dtype=np.bool_)
        for step in range(-width, width + 1):
            number = np.clip(best + step, 1.0, 1.0 / unit)
            size = scale * _log(number * unit).astype(np.float64)
            found |= reading + np.where(noise < 0, size, -size) == rows
        return found

    return reachable


def test_none_of_a_million_rows_tells_with_certainty_which_reading_gave_it(tmp_path: Path) -> None:
    finding = audit_row_precision(
        audited_config(tmp_path).resolved, 10**6, np.random.default_rng(0)
    )
    assert (finding.loss.trials, finding.loss.guesses) == (10**6, 0)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 15.0])
def test_the_same_attack_succeeds_on_the_laplace_noise_of_numpy(epsilon: float) -> None:
    generator = np.random.default_rng(0)
    scale = 1 / epsilon
    readings = (0.123456789, 0.123456789 + min(0.5, scale))
    loss = attack_precision(
        lambda values: values + generator.laplace(0.0, scale, len(values)),
        reachable_by_numpy(scale),
        readings,
        3000,
        generator,
    )
    assert loss.guesses > 0.15 * loss.trials, "outputs that only one of the readings can give"
    assert loss.low > 4


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 15.0])
def test_the_attack_on_numpy_never_calls_an_output_of_a_reading_impossible(epsilon: float) -> None:
    generator = np.random.default_rng(1)
    rows = 0.3 + generator.laplace(0.0, 1 / epsilon, 3000)
    assert reachable_by_numpy(1 / epsilon)(rows, 0.3).all()


def test_rows_that_are_not_on_the_public_grid_are_noticed() -> None:
    """A mechanism that adds the right noise to a reading that it has not rounded."""
    noise = discrete_laplace(1.0)
    generator = np.random.default_rng(0)

    def release(values: NDArray[np.float64]) -> NDArray[np.float64]:
        words = generator.integers(0, 2**64, size=(len(values), noise.words), dtype=np.uint64)
        return values + noise.noise(words) / (2 * noise.steps)

    loss = attack_precision(release, reachable_on_grid(noise), (0.123456789, 0.6), 1000, generator)
    assert loss.guesses == 1000


# Features that never vary, and other clients.


def test_noise_that_follows_the_range_of_the_data_is_refuted() -> None:
    mode = formal_mode(2, 2.0)

    def release_of(trial: int) -> Release:
        generator = np.random.default_rng(trial)
        return lambda readings: (
            mode.bounds.to_unit(readings)
            + generator.laplace(size=readings.shape) * np.ptp(readings, axis=0)
        )

    loss = audit_constant_features(
        release_of, mode.bounds, mode.epsilon_per_feature(), 200, np.random.default_rng(0)
    )
    assert loss.low > 1


def test_noise_without_key_and_client_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = KeyedRandomness.__init__

    def shared(
        self: KeyedRandomness, key: bytes, client: str, source: bytes, context: bytes, d: int
    ) -> None:
        real(self, bytes(len(key)), "any client", bytes(len(source)), context, d)

    monkeypatch.setattr(KeyedRandomness, "__init__", shared)
    assert named(found(tmp_path), "noise of another client").refuted


def test_half_the_noise_of_rows_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FormalNoise.privatise

    def halved(self: FormalNoise, readings: NDArray[np.float64], places: Places) -> Released:
        released = real(self, readings, places)
        unit = self._bounds.to_unit(readings)
        return dataclasses.replace(released, rows=unit + (released.rows - unit) / 2)

    monkeypatch.setattr(FormalNoise, "privatise", halved)
    assert named(found(tmp_path), "two values").refuted
