"""Rows of readings that lack values: whole, the same in any batches, and with noise on what was
filled in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.config.contract import parse_contract
from shoal.config.resolved import ResolvedContract, resolve
from shoal.errors import InvalidState, SettingsError
from shoal.onebox.audit.attacks import audit_missing_feature
from shoal.privacy.imperfect import BLOCK_ROWS, KEPT_MAX, EarlierRows, FilledGaps, row_mechanism
from shoal.privacy.keyed import SOURCE_BYTES
from shoal.protocol.codec import pack

KEY = bytes(range(32))
SOURCE = bytes(SOURCE_BYTES)
EPSILON = 4.0
MODES: dict[str, dict[str, Any]] = {
    "off": {"mode": "off"},
    "formal": {"mode": "formal", "epsilon_per_reading": EPSILON},
}


def agreed(mode: str = "formal", missing: str = "learn", d: int = 3) -> ResolvedContract:
    return resolve(
        parse_contract(
            {
                "federation": {"name": "plant"},
                "features": [{"name": f"f{j}", "low": -5, "high": 15} for j in range(d)],
                "privacy": {**MODES[mode], "missing": missing},
                "models": [{"name": "clusters", "algorithm": "cluster_tree"}],
            }
        )
    )


def mechanism(mode: str = "formal", missing: str = "learn") -> Any:
    return row_mechanism(agreed(mode, missing).mode, KEY, "hall", SOURCE)


def readings(n: int = 400, share: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    kinds = np.array([[0.0, 0.0, 0.0], [10.0, 10.0, 10.0]])
    values = kinds[generator.integers(2, size=n)] + generator.normal(0, 0.5, (n, 3))
    values[generator.random(values.shape) < share] = np.nan
    values[np.isnan(values).all(axis=1), 0] = 0.0
    return values, np.stack([np.zeros(n, dtype=np.int64), np.arange(n)], axis=1)


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_whole_and_those_of_readings_that_lack_nothing_are_as_without_gaps(
    mode: str,
) -> None:
    values, places = readings()
    released = mechanism(mode).privatise(values, places)
    assert np.isfinite(released.rows).all()
    assert released.kept.all()
    whole = ~np.isnan(values).any(axis=1)
    apart = mechanism(mode, "drop").privatise(values[whole], places[whole])
    np.testing.assert_array_equal(released.rows[whole], apart.rows)
    assert released.clipped == 0


def test_a_missing_value_is_that_of_the_nearest_earlier_row_over_what_is_there() -> None:
    values, places = readings(1000)
    rows = mechanism("off").privatise(values, places).rows
    filled = rows[500:][np.isnan(values[500:]).any(axis=1)]
    # Three values of one kind: 0.25 or 0.75 in unit coordinates. The first rows have few to be
    # filled from.
    assert (np.abs(filled - filled.mean(axis=1, keepdims=True)).max(axis=1) < 0.15).all()


@pytest.mark.parametrize("mode", MODES)
def test_any_batching_and_a_restart_give_the_same_rows(mode: str) -> None:
    values, places = readings()
    whole = mechanism(mode).privatise(values, places).rows
    cut = mechanism(mode)
    parts = []
    for first, end in ((0, 1), (1, 3), (3, 90), (90, 90), (90, 400)):
        parts.append(cut.privatise(values[first:end], places[first:end]).rows)
        state = cut.state()
        cut = mechanism(mode)
        pack(state)
        cut.restore(state)
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_what_is_filled_in_depends_on_noisy_rows_alone_and_has_noise_of_its_own() -> None:
    values, places = readings(200)
    lacks = np.isnan(values)
    rows = mechanism().privatise(values, places).rows
    earlier = EarlierRows(3)
    filled: list[np.ndarray] = []

    def keep(some: np.ndarray, part: slice) -> np.ndarray:
        filled.append(some)
        return rows[part]

    earlier.fill(np.where(lacks, np.nan, rows), keep)
    moved = (rows - np.clip(np.concatenate(filled), 0.0, 1.0))[lacks]
    # The noise of a feature has the scale 3 / EPSILON.
    assert 0.8 < np.abs(moved).mean() / (3.0 / EPSILON) < 1.2
    assert np.abs(np.corrcoef(moved, np.concatenate(filled)[lacks])[0, 1]) < 0.3


def test_the_noise_of_a_place_differs_for_a_value_that_is_measured_and_one_that_is_filled_in() -> (
    None
):
    places = np.array([[0, 0]])
    measured = mechanism().privatise(np.array([[5.0, 5.0, 5.0]]), places).rows
    filled = mechanism().privatise(np.array([[5.0, 5.0, np.nan]]), places).rows
    assert filled[0, 2] != measured[0, 2]


def test_the_audit_comes_near_the_declared_epsilon_and_does_not_refute_it() -> None:
    finding = audit_missing_feature(agreed(), 1500, np.random.default_rng(0))
    assert not finding.refuted, finding.line()
    assert finding.loss.low > 0.25 * finding.declared, (
        "the attack must come near, or it would notice no fault"
    )


def leave_out_the_noise(
    self: FilledGaps, filled: np.ndarray, lacks: np.ndarray, places: np.ndarray
) -> np.ndarray:
    return filled


def test_values_that_are_filled_in_without_noise_are_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FilledGaps, "_finish", leave_out_the_noise)
    assert audit_missing_feature(agreed(), 500, np.random.default_rng(0)).refuted


def test_a_state_of_other_rows_or_of_none_is_refused() -> None:
    values, places = readings(50)
    one = mechanism()
    one.privatise(values, places)
    for broken in ({}, {**one.state(), "earlier": None}, {**one.state(), "version": 0}):
        with pytest.raises(InvalidState):
            mechanism().restore(broken)
    state = one.state()["earlier"]
    with pytest.raises(InvalidState):
        EarlierRows(3).restore({**state, "count": 51})


def test_memory_does_not_grow_with_the_readings() -> None:
    earlier = EarlierRows(2)
    for _ in range(40):
        earlier.fill(np.zeros((BLOCK_ROWS + 1, 2)))
    assert len(earlier.state()["earlier"]) == KEPT_MAX


def test_a_mode_that_cannot_fill_gaps_says_so() -> None:
    with pytest.raises(SettingsError, match='missing = "learn" means nothing in mode = "paper"'):
        parse_contract(
            {
                "federation": {"name": "plant"},
                "features": [{"name": "f", "low": 0, "high": 1}],
                "privacy": {"mode": "paper", "epsilon_nominal_per_feature": 4, "missing": "learn"},
                "models": [{"name": "clusters", "algorithm": "fcac"}],
            }
        )
