"""The table of experiments: each line leads to one, and a line more is a subcommand and a chapter
of the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from reproduction import experiments
from reproduction.experiments import experiment_names, load_experiment
from reproduction.reproduce_command import all_experiments
from reproduction.trials_command import command_of
from shoal.errors import SettingsError
from tests.reproduction.chance import CHANCE

ROOT = Path(__file__).parents[2]
WHEEL = """
import sys
sys.path[:] = [sys.argv[1], *(place for place in sys.path if place not in ("", sys.argv[2]))]
sys.argv[1:] = sys.argv[3:]
from shoal.cli.main import main
main()
"""


@pytest.mark.parametrize("name", experiment_names())
def test_a_line_leads_to_the_experiment_of_its_name(name: str) -> None:
    assert load_experiment(name).name == name


def test_an_unknown_name_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(
        SettingsError, match="unknown experiment 'nothing'; there are: clusters, continual"
    ):
        load_experiment("nothing")


def test_an_experiment_is_run_checked_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(experiments.EXPERIMENTS, "chance", "chance:CHANCE")
    monkeypatch.setitem(
        sys.modules, "reproduction.experiments.chance", sys.modules[CHANCE.run.__module__]
    )
    ran = CliRunner().invoke(command_of(CHANCE), ["--check", "--jobs", "1", "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert [(row["clusters"], row["trials"]) for row in found["rows"]] == [(2, 20), (10, 20)]
    assert all(abs(row["metrics"]["ari"]["mean"]) < 0.02 for row in found["rows"])
    words = [
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "report"),
        "--experiment",
        "chance",
        "--jobs",
        "1",
    ]
    reported = CliRunner().invoke(all_experiments, words)
    assert reported.exit_code == 0, reported.output
    assert "Hubert" in (tmp_path / "report" / "chance.md").read_text(encoding="utf-8")
    first = (tmp_path / "report" / "index.md").read_text(encoding="utf-8")
    assert first.count("| 1 of 1 |") == 2


@pytest.mark.parametrize("words", [["ranks", "--check"], ["all"], ["fcac", "--json"]])
def test_an_installed_shoal_without_the_experiments_names_a_clone(
    tmp_path: Path, words: list[str]
) -> None:
    """A folder with the package shoal alone is what a wheel installs of it."""
    (tmp_path / "shoal").symlink_to(ROOT / "shoal")
    ran = subprocess.run(
        [sys.executable, "-c", WHEEL, tmp_path, ROOT, "reproduce", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "run this in a clone" in ran.stderr
    assert ran.stderr.count("\n") == 1
