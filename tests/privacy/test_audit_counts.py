"""The audit of two cells: the mechanism of counts passes, and one with a fault is refuted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.onebox.audit.attacks import audit_count_mechanism
from shoal.onebox.audit.statistics import Finding, LossFinding
from tests.privacy import audited
from tests.privacy.audited import audited_config, model_of

TRIALS = 5000
EPSILONS = pytest.mark.parametrize(
    "epsilon",
    [
        pytest.param(1.0, marks=pytest.mark.integration),
        2.0,
        pytest.param(4.0, marks=pytest.mark.integration),
    ],
)


def findings(folder: Path, epsilon: float) -> dict[str, Finding]:
    config = audited_config(folder, epsilon)
    found = audit_count_mechanism(
        config.resolved,
        model_of(config, "density_tree"),
        TRIALS,
        np.random.default_rng(int(10 * epsilon)),
    )
    return {finding.audit: finding for finding in found}


@EPSILONS
def test_the_mechanism_is_not_refuted_and_the_attack_is_nearly_as_good_as_any(
    epsilon: float, tmp_path: Path
) -> None:
    """An attack that finds far less than the declared loss would notice no fault."""
    found = findings(tmp_path, epsilon)
    assert not any(finding.refuted for finding in found.values())
    for audit in ("two cells", "two cells, released twice"):
        finding = found[audit]
        assert isinstance(finding, LossFinding)
        assert finding.loss.low > 0.75 * epsilon
        assert not finding.too_much_noise


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch, float], None], str]] = {
    "half the noise": (audited.halve_the_noise, "two cells"),
    "empty cells without noise": (
        lambda patch, _: audited.leave_empty_cells_without_noise(patch),
        "two cells",
    ),
    "fresh noise on repeat": (
        lambda patch, _: audited.draw_fresh_noise_for_every_release(patch),
        "two cells, released twice",
    ),
    "noise of another client": (
        lambda patch, _: audited.share_noise_between_clients(patch),
        "noise of another client",
    ),
}


@EPSILONS
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refuted(
    fault: str, epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause, audit = FAULTS[fault]
    cause(monkeypatch, epsilon)
    finding = findings(tmp_path, epsilon)[audit]
    assert finding.refuted, finding.line()
    assert "REFUTED" in finding.line()
