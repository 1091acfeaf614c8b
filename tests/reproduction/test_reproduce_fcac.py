"""`shoal reproduce fcac` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reproduction import published
from reproduction.datasets import FCAC_SPLITS
from reproduction.experiment import Figure, Setting
from reproduction.experiments.fcac import FORMATS, same_digits
from reproduction.published import MEASURES
from reproduction.reproduce_command import reproduce
from shoal.errors import InvalidData, SettingsError

Shoal = Callable[..., Result]


@pytest.fixture
def shoal(monkeypatch: pytest.MonkeyPatch) -> Shoal:
    monkeypatch.delenv("SHOAL_DATA", raising=False)

    def run(*words: object) -> Result:
        return CliRunner().invoke(reproduce, ["fcac", *map(str, words)])

    return run


def blobs(folder: Path, name: str, n: int = 200, classes: int = 2, seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    rows = generator.normal(size=(n, 3)) + 8 * labels[:, None]
    path = folder / f"{name}.csv"
    np.savetxt(
        path, np.column_stack([rows, labels]), delimiter=",", header="a,b,c,label", comments=""
    )
    return path


def test_without_a_folder_the_error_says_what_to_give(shoal: Shoal, tmp_path: Path) -> None:
    assert isinstance(shoal().exception, SettingsError)
    assert "SHOAL_DATA" in str(shoal().exception)
    assert isinstance(shoal("--data", tmp_path).exception, SettingsError)
    assert isinstance(
        shoal("--data", tmp_path / "nowhere", "--dataset", "a").exception, SettingsError
    )


def test_the_json_has_the_form_that_programs_rely_on(shoal: Shoal, tmp_path: Path) -> None:
    blobs(tmp_path, "mine")
    blobs(tmp_path, "hill_valley")
    result = shoal(
        "--data", tmp_path, "--dataset", "mine", "--dataset", "hill-valley", "--trials", 2, "--json"
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [(row["dataset"], row["split"], row["trials"]) for row in rows] == [
        ("mine", "iid", 2),
        ("mine", "niid", 2),
        ("hill_valley", "iid", 2),
        # 200 rows leave no draw that gives 5 clients 40 rows each: fewer clients, and no published
        # figure for that.
        ("hill_valley", "niid", 2),
    ]
    for row in rows:
        assert list(row) == ["dataset", "split", "trials", "metrics"]
        assert list(row["metrics"]) == list(MEASURES)
        assert all(
            list(figures) == ["mean", "sd", "published"] for figures in row["metrics"].values()
        )
    assert [row["metrics"]["nodes"]["published"] for row in rows] == [None, None, 19.9, None]


def test_one_process_and_two_give_the_same(shoal: Shoal, tmp_path: Path) -> None:
    blobs(tmp_path, "mine")
    options = ("--data", tmp_path, "--dataset", "mine", "--trials", 3, "--json", "--jobs")
    alone = shoal(*options, 1)
    two = shoal(*options, 2)
    assert alone.exit_code == two.exit_code == 0
    assert alone.stdout == two.stdout


def test_figures_are_the_mean_and_the_population_deviation_of_the_trials(
    shoal: Shoal, tmp_path: Path
) -> None:
    blobs(tmp_path, "mine", n=300, classes=4)
    options = ("--data", tmp_path, "--dataset", "mine", "--split", "iid", "--json", "--jobs", 1)
    one = json.loads(shoal(*options, "--trials", 1).stdout)["rows"][0]["metrics"]["nodes"]
    two = json.loads(shoal(*options, "--trials", 2).stdout)["rows"][0]["metrics"]["nodes"]
    second = 2 * two["mean"] - one["mean"]
    assert one["sd"] == 0
    assert second != one["mean"]
    assert two["sd"] == pytest.approx(abs(one["mean"] - second) / 2)


def test_the_table_shows_published_beside_obtained(shoal: Shoal, tmp_path: Path) -> None:
    blobs(tmp_path, "phoneme", n=800)
    result = shoal("--data", tmp_path, "--trials", 1, "--split", "iid")
    assert result.exit_code == 0, result.output
    assert "0.0659 (0.0312)" in result.stdout
    assert "phoneme iid: 1 trials done" in result.stderr
    assert "differs" not in result.stdout


def test_figures_with_noise_are_not_compared(shoal: Shoal, tmp_path: Path) -> None:
    blobs(tmp_path, "phoneme", n=800)
    result = shoal("--data", tmp_path, "--trials", 1, "--split", "iid", "--epsilon", 25, "--json")
    assert json.loads(result.stdout)["rows"][0]["metrics"]["ari"]["published"] is None
    assert shoal("--data", tmp_path, "--epsilon", 0).exit_code == 2


def test_a_check_fails_when_a_figure_differs_from_the_published_one(
    shoal: Shoal, tmp_path: Path
) -> None:
    blobs(tmp_path, "phoneme", n=400)
    result = shoal("--data", tmp_path, "--split", "iid", "--check")
    assert result.exit_code == 1
    assert "differs" in result.stdout
    assert isinstance(shoal("--data", tmp_path, "--check", "--trials", 3).exception, SettingsError)


def test_other_files_run_when_one_is_invalid(shoal: Shoal, tmp_path: Path) -> None:
    blobs(tmp_path, "good")
    (tmp_path / "gaps.csv").write_text("a,label\n,1\n2,0\n")
    both = (
        "--data",
        tmp_path,
        "--dataset",
        "gaps",
        "--dataset",
        "good",
        "--trials",
        1,
        "--split",
        "iid",
    )
    result = shoal(*both, "--json")
    assert isinstance(result.exception, InvalidData)
    assert [row["dataset"] for row in json.loads(result.stdout)["rows"]] == ["good"]
    assert shoal(*both, "--fill", "mean").exit_code == 0


def test_data_too_small_for_the_non_iid_split_are_an_error(shoal: Shoal, tmp_path: Path) -> None:
    blobs(tmp_path, "small", n=30)
    assert isinstance(shoal("--data", tmp_path, "--dataset", "small").exception, InvalidData)
    assert isinstance(
        shoal("--data", tmp_path, "--dataset", "small", "--clients", 9).exception, InvalidData
    )
    assert (
        shoal("--data", tmp_path, "--dataset", "small", "--split", "iid", "--trials", 1).exit_code
        == 0
    )


def test_an_interrupt_ends_the_command_and_its_workers(tmp_path: Path) -> None:
    blobs(tmp_path, "first", n=50)
    blobs(tmp_path, "second", n=60_000)
    words = [
        "reproduce",
        "fcac",
        "--data",
        tmp_path,
        "--dataset",
        "first",
        "--dataset",
        "second",
        "--split",
        "iid",
    ]
    # A shell's background jobs ignore SIGINT, and so does what these tests start if they run in
    # one.
    program = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from shoal.cli.main import main
main()
"""
    started = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words), "--jobs", "2", "--trials", "40"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with started:
        assert started.stderr is not None
        assert any("first iid" in line for line in started.stderr)
        # As a terminal does it: the workers get the signal too.
        os.killpg(started.pid, signal.SIGINT)
        output, errors = started.communicate(timeout=900)
    assert started.returncode == 130
    assert output == ""
    assert "Traceback" not in errors


def test_every_published_row_has_its_five_figures() -> None:
    assert sorted(published.FCAC) == sorted(FCAC_SPLITS)
    for rows in published.FCAC.values():
        assert len(rows) == 10
        assert all(tuple(row) == MEASURES for row in rows.values())


def test_figures_are_printed_as_the_papers_print_them() -> None:
    assert Figure(69.25, 22.75).written(FORMATS["nodes"]) == "69.3 (22.8)"
    assert Figure(-0.02455, 0.0).written(FORMATS["ari"]) == "-0.0246 (0.0000)"
    setting = Setting("fcac", "optdigits", "iid", 50)
    printed = Figure(0.4425, 0.0625)
    assert same_digits(setting, "ari", Figure(0.44251, 0.0625), printed)
    assert not same_digits(setting, "ari", Figure(0.44256, 0.0625), printed)
    assert not same_digits(setting, "ari", Figure(0.4425, 0.0626), printed)
