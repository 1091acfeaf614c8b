"""`shoal reproduce fcm` and the other experiments over trials as a user runs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reproduction.experiment import Experiment, Figure
from reproduction.experiments import experiment_names, load_experiment, trials_experiment
from reproduction.reproduce_command import reproduce
from shoal.errors import MissingExtra, SettingsError
from shoal.runtime import workers

Shoal = Callable[..., Result]
TRIALS_NAMES = [
    name for name in experiment_names() if isinstance(load_experiment(name), Experiment)
]
"""the experiments over trials"""
MEASURES = {
    "fcac": ["ari", "ami", "nmi", "nodes", "clusters"],
    "fcm": ["ari", "difference"],
    "ffcm": ["ari", "ami", "nmi"],
    "kmeans": ["ari", "ami", "nmi", "difference"],
    "kfed": ["ari", "ami", "nmi"],
    "mufc": ["ari", "ami", "nmi"],
    "dbscan": ["ari", "ami", "nmi", "clusters", "noise", "difference"],
    "spectral": ["ari", "ami", "nmi", "clusters", "difference"],
    "gmm": ["ari", "ami", "nmi", "difference"],
    "clusters": ["right", "found"],
}


@pytest.fixture
def shoal(monkeypatch: pytest.MonkeyPatch) -> Shoal:
    monkeypatch.delenv("SHOAL_DATA", raising=False)

    def run(*words: object) -> Result:
        return CliRunner().invoke(reproduce, [*map(str, words)])

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    labels = np.arange(240) % 3
    rows = generator.normal(size=(240, 2)) + 9 * np.array([[0, 0], [1, 0], [0, 1]])[labels]
    np.savetxt(
        tmp_path / "mine.csv",
        np.column_stack([rows, labels]),
        delimiter=",",
        header="a,b,label",
        comments="",
    )
    return tmp_path


@pytest.mark.parametrize("name", TRIALS_NAMES)
def test_without_data_the_error_says_what_to_give(shoal: Shoal, name: str, tmp_path: Path) -> None:
    nowhere = shoal(name, "--data", tmp_path, "--dataset", "mine", "--trials", 1)
    assert isinstance(nowhere.exception, SettingsError)
    if not trials_experiment(name).synthetic:
        assert "SHOAL_DATA" in str(shoal(name).exception)
        assert isinstance(shoal(name, "--data", tmp_path).exception, SettingsError)


@pytest.mark.parametrize("name", TRIALS_NAMES)
def test_the_json_has_the_form_that_programs_rely_on(shoal: Shoal, name: str, folder: Path) -> None:
    options = (
        name,
        "--data",
        folder,
        "--dataset",
        "mine",
        "--trials",
        2,
        "--split",
        "iid",
        "--clients",
        4,
        "--jobs",
        1,
    )
    result = shoal(*options, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    keys = [key for key in rows[0] if key not in ("dataset", "split", "trials", "metrics")]
    assert keys or name == "fcac"
    for row in rows:
        assert list(row) == ["dataset", "split", *keys, "trials", "metrics"]
        assert (row["dataset"], row["split"], row["trials"]) == ("mine", "iid", 2)
        assert list(row["metrics"]) == MEASURES[name]
        assert all(
            list(figures) == ["mean", "sd", "published"] for figures in row["metrics"].values()
        )
    table = shoal(*options)
    assert table.exit_code == 0
    lines = table.stdout.splitlines()
    assert len(lines) == 2 + len(rows) * (len(MEASURES[name]) if "obtained" in lines[0] else 1)


def test_one_process_and_two_give_the_same(shoal: Shoal, folder: Path) -> None:
    options = ("kfed", "--data", folder, "--dataset", "mine", "--trials", 2, "--json", "--jobs")
    alone = shoal(*options, 1)
    two = shoal(*options, 2)
    assert alone.exit_code == two.exit_code == 0
    assert alone.stdout == two.stdout
    assert {row["split"] for row in json.loads(alone.stdout)["rows"]} == {"iid", "niid"}


def test_synthetic_data_need_no_folder(shoal: Shoal) -> None:
    result = shoal("ffcm", "--dataset", "case1", "--trials", 1, "--json", "--jobs", 1)
    rows = json.loads(result.stdout)["rows"]
    assert [(row["average"], row["local"]) for row in rows][:2] == [
        ("central", "-"),
        ("avg1", "fit"),
    ]
    assert rows[1]["metrics"]["within"]["published"] == 0.3588
    assert rows[2]["metrics"]["within"]["published"] is None
    assert rows[1]["metrics"]["gap"]["published"] is None


def test_noise_changes_the_figures(shoal: Shoal, folder: Path) -> None:
    options = (
        "mufc",
        "--data",
        folder,
        "--dataset",
        "mine",
        "--trials",
        1,
        "--split",
        "iid",
        "--json",
        "--jobs",
        1,
    )
    plain, noised = (
        json.loads(shoal(*options, *more).stdout)["rows"] for more in ((), ("--epsilon", 3))
    )
    assert plain != noised


def test_check_needs_all_trials_and_ends_with_1_when_a_figure_differs(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_few = shoal("gmm", "--check", "--trials", 1, "--dataset", "blobs")
    assert isinstance(with_few.exception, SettingsError)
    experiment = trials_experiment("gmm")
    monkeypatch.setitem(vars(experiment), "trials", 1)
    options = ("gmm", "--check", "--dataset", "blobs", "--split", "iid", "--jobs", 1)
    assert shoal(*options).exit_code == 0
    monkeypatch.setitem(
        vars(experiment), "published", lambda setting: {"difference": Figure(1.0, 0.0)}
    )
    off = shoal(*options)
    assert off.exit_code == 1
    assert "differs" in off.output


@pytest.mark.parametrize("more", [("--epsilon", 3), ("--clients", 4), ()])
def test_check_is_an_error_where_nothing_was_published(
    shoal: Shoal, folder: Path, more: tuple[object, ...]
) -> None:
    known = "phoneme" if more else "mine"
    (folder / "mine.csv").rename(folder / f"{known}.csv")
    for name in ("fcac", "kfed", "mufc", "kmeans", "ffcm"):
        rejected = shoal(name, "--data", folder, "--dataset", known, *more, "--check")
        assert isinstance(rejected.exception, SettingsError)
        assert "no figure was published" in str(rejected.exception)


# it scores predictions
@pytest.mark.parametrize("name", [name for name in experiment_names() if name != "tsk"])
def test_without_scikit_learn_the_error_comes_before_any_trial(
    shoal: Shoal, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setattr(workers, "spread", pytest.fail)
    options = ("--data", folder, "--dataset", "mine", "--jobs", 2) if name in TRIALS_NAMES else ()
    result = shoal(name, *options)
    assert isinstance(result.exception, MissingExtra)
    assert result.exception.exit_code == 2
    assert "pip install '.[evaluate]'" in str(result.exception)


def test_a_data_set_with_its_own_clients_takes_no_option_for_them(shoal: Shoal) -> None:
    for more in (("--clients", 4), ("--epsilon", 3)):
        assert "leave --clients and --epsilon out" in str(
            shoal("ffcm", "--dataset", "case1", *more).exception
        )
