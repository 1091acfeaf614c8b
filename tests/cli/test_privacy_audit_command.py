"""`shoal privacy audit`: what it prints, its exit codes, and which audits a federation file
gets."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.onebox.audit import audit_command, audits
from shoal.onebox.audit.audit_command import audit
from tests.federation_text import federation_text
from tests.privacy.audited import audited_config, fix_noise, leave_empty_cells_without_noise

COUNTED = federation_text(
    features=[{"name": "warm", "low": 0, "high": 10}],
    privacy={"mode": "formal", "counts_epsilon": 1, "window_readings": 10},
    models=[{"name": "live", "algorithm": "density_tree"}],
)


@pytest.fixture(autouse=True)
def same_noise_in_every_run(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And scratch folders in memory: clients flush at each window."""
    fix_noise(monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(memory_folder))


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    file = tmp_path / "plant.toml"
    file.write_text(COUNTED, encoding="utf-8")
    return file


def test_every_audit_prints_its_trials_its_bound_and_its_verdict(counted: Path) -> None:
    ran = CliRunner().invoke(
        audit,
        ["--config", str(counted), "--trials", "30", "--kills", "2", "--seed", "1"],
        catch_exceptions=False,
    )
    assert ran.exit_code == 0, ran.output
    *lines, last = ran.output.splitlines()
    assert last == f"{len(lines)} audits, 0 claims refuted"
    assert [line.partition(" (")[0] for line in lines] == [
        "two cells",
        "two cells, released twice",
        "noise of another client",
        "plans made to hurt",
        "whole windows, one reading moved",
        "whole windows, one reading rejected",
        "size of messages",
        "time of messages",
        "rejected readings",
        "times of readings",
        "files lost",
        "copies of a client",
        "right to read",
        "one ledger",
        "hidden presence",
        "names of streams",
        "noise of the library",
        "words",
        "canaries",
        "kills: answers",
        "kills: ledger",
    ]
    plans = lines.pop(3)
    assert "0 under which" in plans
    assert "not refuted" in plans
    for line in lines[:5]:
        assert "(live): 30 trials" in line
        assert "estimated, at least" in line
        assert "declared 1: not refuted" in line


def test_a_refuted_claim_ends_with_1(counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_empty_cells_without_noise(monkeypatch)
    ran = CliRunner().invoke(
        audit,
        ["--config", str(counted), "--trials", "100", "--kills", "0", "--json"],
        catch_exceptions=False,
    )
    assert ran.exit_code == 1
    found = json.loads(ran.output)
    assert found["alpha"] == 1e-3
    assert found["refuted"] > 0
    (two_cells,) = [audit for audit in found["audits"] if audit["audit"] == "two cells"]
    assert two_cells["refuted"]
    assert two_cells["epsilon_low"] > two_cells["epsilon_declared"] == 1


def test_the_federations_that_come_with_shoal_have_counts_rows_rounds_and_users(
    tmp_path: Path,
) -> None:
    readings, users = (config.contract for config in audit_command._configs(None, tmp_path))
    assert [model.algorithm for model in readings.models] == ["density_tree", "fcac", "kmeans"]
    assert [model.algorithm for model in users.models] == ["density_tree"]
    assert (readings.privacy.unit, users.privacy.unit) == ("reading", "user")
    assert readings.privacy.mode == users.privacy.mode == "formal"


def test_the_folder_of_the_federation_file_is_not_touched(
    counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "REJECTED_WINDOWS", 2)
    CliRunner().invoke(
        audit, ["--config", str(counted), "--trials", "10", "--kills", "0"], catch_exceptions=False
    )
    assert list(tmp_path.iterdir()) == [counted]


def test_a_mode_without_a_guarantee_has_no_claim_to_audit(tmp_path: Path) -> None:
    audited_config(tmp_path, off=True)
    file = tmp_path / "audited.toml"
    assert load_config(file).contract.privacy.mode == "off"
    with pytest.raises(SettingsError, match="claims no epsilon"):
        CliRunner().invoke(audit, ["--config", str(file)], catch_exceptions=False)
