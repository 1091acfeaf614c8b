"""The audit of whole windows: a real client passes it, and one with a fault is refuted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client_nodes import intake
from shoal.client_nodes.count_windows import CountWindows
from shoal.client_nodes.intake import Batch
from shoal.client_nodes.publisher import EncodedUpdate
from shoal.client_nodes.user_readings import UserReadings
from shoal.kernels.arrays import Bools
from shoal.onebox.audit.statistics import LossFinding
from shoal.onebox.audit.windows import audit_rejected, audit_times, audit_windows
from shoal.privacy.count_noise import CountMechanism, CountNoise, count_noise
from tests.privacy import audited
from tests.privacy.audited import audited_config, model_of

TRIALS = (300, 1000)
"""of an attack, and of the one that follows where the first decides nothing. The last are enough to
refute each fault of a reading: in twelve runs the bounds lay 0.44 to 2.57 above the declared
epsilon"""
TRIALS_OF_USERS = (800, 2000)
"""all readings of a user move the counts less clearly than their price allows: more trials bring
the bound near. With 1000 the lowest of twelve bounds of a faulty client lay 0.06 above the declared
epsilon, with 2000 it lies 0.48 above"""
EPSILON = 2.0


@pytest.fixture(autouse=True)
def same_noise_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    audited.fix_noise(monkeypatch)


def attacked(folder: Path, trials: int, users: bool = False, **more: Any) -> LossFinding:
    config = audited_config(folder, EPSILON, users=users)
    return audit_windows(
        config,
        model_of(config, "density_tree"),
        folder / f"{trials} trials",
        trials,
        np.random.default_rng(0),
        **more,
    )


def attacked_until(
    decided: Callable[[LossFinding], bool],
    folder: Path,
    trials: Sequence[int] = TRIALS,
    **more: Any,
) -> LossFinding:
    """The first finding that decides: trials are added where few of them leave it open."""
    for number in trials:
        finding = attacked(folder, number, **more)
        if decided(finding):
            break
    return finding


def is_refuted(finding: LossFinding) -> bool:
    return finding.refuted


def is_near(share: float) -> Callable[[LossFinding], bool]:
    """Whether an attack proves this share of the declared epsilon; a refuted claim is always so
    near."""
    return lambda finding: finding.loss.low > share * EPSILON


def test_what_a_client_publishes_of_a_window_is_not_refuted(memory_folder: Path) -> None:
    finding = attacked_until(is_near(0.5), memory_folder)
    assert not finding.refuted, finding.line()
    assert finding.loss.low > 0.5 * EPSILON, (
        "the attack must come near, or it would notice no fault"
    )


def test_a_rejected_reading_in_place_of_a_valid_one_is_not_told_apart_better(
    memory_folder: Path,
) -> None:
    """It adds nothing to any cell, so that only one count differs, and the loss is half the
    declared one."""
    finding = attacked(memory_folder, 400, second="rejected")
    assert not finding.refuted, finding.line()
    assert finding.loss.low < EPSILON / 2 < finding.loss.high


def test_a_reading_that_lacks_values_in_place_of_a_whole_one_is_not_told_apart_better(
    memory_folder: Path,
) -> None:
    finding = attacked_until(is_near(0.3), memory_folder, second="incomplete")
    assert not finding.refuted, finding.line()
    assert finding.loss.low > 0.3 * EPSILON, (
        "the attack must come near, or it would notice no fault"
    )


def test_windows_that_differ_in_all_readings_of_a_user_are_not_told_apart_better_than_declared(
    memory_folder: Path,
) -> None:
    finding = attacked_until(is_near(0.5), memory_folder, TRIALS_OF_USERS, users=True)
    assert not finding.refuted, finding.line()
    assert finding.loss.low > 0.5 * EPSILON, (
        "the attack must come near, or it would notice no fault"
    )


def draw_noise_for_one_reading_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CountMechanism.__init__

    def weak(self: CountMechanism, noise: CountNoise, *more: Any) -> None:
        real(self, count_noise(EPSILON), *more)

    monkeypatch.setattr(CountMechanism, "__init__", weak)


def count_every_reading_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UserReadings, "admit", lambda _, valid, users, times: valid)


@pytest.mark.integration
@pytest.mark.parametrize(
    "fault", [draw_noise_for_one_reading_of_a_user, count_every_reading_of_a_user]
)
def test_too_little_noise_for_the_readings_of_a_user_is_refuted(
    fault: Callable[[pytest.MonkeyPatch], None],
    memory_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    finding = attacked_until(is_refuted, memory_folder, TRIALS_OF_USERS, users=True)
    assert finding.refuted, finding.line()


def test_the_times_of_a_user_decide_nothing_about_readings_of_others(memory_folder: Path) -> None:
    finding = attacked(memory_folder, 100, users=True, second="other times")
    assert not finding.refuted, finding.line()


def drop_repeats_by_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all readings of one time were from one user."""
    real = UserReadings.admit

    def admit(
        self: UserReadings, valid: Bools, users: Sequence[bytes], times: Sequence[float | None]
    ) -> Bools:
        first = np.array([time not in times[:place] for place, time in enumerate(times)])
        return real(self, valid & first, users, times)

    monkeypatch.setattr(UserReadings, "admit", admit)


def test_repeats_dropped_by_their_time_alone_are_refuted(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_repeats_by_time_alone(monkeypatch)
    finding = attacked(memory_folder, 100, users=True, second="other times")
    assert finding.refuted, finding.line()


def answer_every_window_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second answer has the next number, hence other noise."""
    real = CountWindows._close

    def close(self: CountWindows, now: float) -> list[EncodedUpdate]:
        rows = self._rows
        valid = self._valid
        updates = real(self, now)
        self._rows = rows
        self._valid = valid
        return updates + real(self, now)

    monkeypatch.setattr(CountWindows, "_close", close)


def drop_rejected_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected reading keeps no place: valid readings decide when a window is full."""
    real = CountWindows.add

    def add(
        self: CountWindows, batch: Batch, now: float, *more: Callable[[], bool]
    ) -> list[EncodedUpdate]:
        return real(self, batch._replace(rejected=[]), now, *more)

    monkeypatch.setattr(CountWindows, "add", add)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Sequence[int]]] = {
    "half the noise": (lambda patch: audited.halve_the_noise(patch, EPSILON), TRIALS),
    # Many guesses are certain: the lowest of 200 bounds lay 0.78 above the declared epsilon.
    "empty cells without noise": (audited.leave_empty_cells_without_noise, [200]),
    "a window answered twice": (answer_every_window_twice, TRIALS),
}
"""name -> the fault, and trials that refute it"""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refuted(
    fault: str, memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, trials = FAULTS[fault]
    make(monkeypatch)
    finding = attacked_until(is_refuted, memory_folder, trials)
    assert finding.refuted, finding.line()


def test_windows_with_a_rejected_reading_that_get_no_noise_are_refuted(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited.leave_windows_with_a_rejected_reading_without_noise(monkeypatch)
    # With 300 trials the lowest of 200 bounds lay 0.70 above the declared epsilon.
    finding = attacked(memory_folder, 300, second="rejected")
    assert finding.refuted, finding.line()


def test_nothing_but_counts_depends_on_whether_readings_are_rejected(memory_folder: Path) -> None:
    finding = audit_rejected(
        audited_config(memory_folder), memory_folder / "run", 20, np.random.default_rng(0)
    )
    assert (finding.trials, finding.occurred) == (20, 0), finding.line()


def test_rejected_readings_that_keep_no_place_are_noticed(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_rejected_readings(monkeypatch)
    finding = audit_rejected(
        audited_config(memory_folder), memory_folder / "run", 20, np.random.default_rng(0)
    )
    assert finding.refuted, finding.line()


def test_no_value_decides_on_the_times_and_the_headers_of_updates(memory_folder: Path) -> None:
    finding = audit_times(
        audited_config(memory_folder), memory_folder / "run", 3, np.random.default_rng(0)
    )
    assert finding.trials >= 6, "of both kinds of times"
    assert not finding.refuted, finding.line()


def test_times_that_are_decoded_from_the_content_of_readings_are_noticed(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "public_times", lambda _, batch, *more: batch.record_times)
    finding = audit_times(
        audited_config(memory_folder), memory_folder / "run", 3, np.random.default_rng(0)
    )
    assert finding.refuted, finding.line()
