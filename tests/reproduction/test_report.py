"""`shoal reproduce all`: one report of every installed experiment; and the file of finished trials
behind it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reproduction.datasets import FCAC_DATASETS, Split, fcac_name
from reproduction.experiment import Experiment, Figure, Setting, python_format
from reproduction.experiment import Result as Row
from reproduction.experiments import (
    PAPERS,
    experiment_names,
    load_experiment,
    ranks,
    ranks_command,
    trials_experiment,
)
from reproduction.experiments import tsk as tsk_study
from reproduction.report import NOT_KEYS, Chapter, ReportOptions, Table
from reproduction.report_pages import (
    as_json,
    index,
    opening,
    page,
    pages_of,
    record_of,
    verdicts,
    write_pages,
)
from reproduction.reproduce_command import planned, reproduce
from reproduction.trials_command import TrialStore
from shoal.errors import SettingsError

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "reproduction" / "report"
SETTING = Setting("kfed", "phoneme", "iid", 10, (("average", "weighted"),))
FORMATS = {"ari": python_format(".2f")}


def all_of(*words: object) -> Result:
    return CliRunner().invoke(reproduce, ["all", "--jobs", "1", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    labels = np.arange(600) % 3
    rows = generator.normal(size=(600, 2)) + 9 * np.array([[0, 0], [1, 0], [0, 1]])[labels]
    for name in ("phoneme", "xclara", "hill_valley", "pendigits"):
        table = np.column_stack([rows, labels])
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header="a,b,label", comments="")
    return tmp_path


def chapter(*rows: Row) -> Chapter:
    return Chapter(
        "toy", "A toy.", "Some *text* with `code`.\n\n- one\n- two\n", [Table(rows, FORMATS)]
    )


AGREES = Row({"dataset": "a"}, 2, {"ari": Figure(0.5, 0.1)}, {"ari": Figure(0.5)}, {"ari": True})
DIFFERS = Row({"dataset": "b"}, 2, {"ari": Figure(0.5, 0.1)}, {"ari": Figure(0.9)}, {"ari": False})
NO_BAND = Row({"dataset": "c"}, 2, {"ari": Figure(0.5, 0.1)}, {"ari": Figure(0.9)}, {})


def test_the_verdicts_are_counted() -> None:
    counts = verdicts(record_of(chapter(AGREES, DIFFERS, NO_BAND, NO_BAND)))
    assert (counts.published, counts.agree, counts.differ, counts.without_band) == (4, 1, 1, 2)
    assert verdicts(record_of(chapter())).published == 0


def test_the_pages_have_published_beside_obtained_in_markdown_and_html(tmp_path: Path) -> None:
    options = ReportOptions(None, tmp_path, 1, None, quick=False, store=tmp_path / "trials")
    written = write_pages([chapter(AGREES, DIFFERS)], options)
    assert [path.name for path in written] == ["index.md", "toy.md", "report.html", "results.json"]
    first = (tmp_path / "index.md").read_text()
    assert re.search(
        r"\| \[toy\]\(toy\.md#toy\) +\| A toy\. +\| 2 +\| 2 +\| 1 +\| 1 +\| 0 +\|", first
    )
    assert re.search(r"\| b +\| ARI +\| 0\.90 +\| 0\.50 \(0\.10\) \| 0 of 1 \|", first)
    toy = (tmp_path / "toy.md").read_text()
    assert "Figures that differ:" in toy
    assert re.search(r"\| b +\| ARI +\| 0\.90 +\| 0\.50 \(0\.10\) \|", toy)
    assert "| a " not in toy
    html = (tmp_path / "report.html").read_text()
    assert '<td class="differs">differs</td>' in html
    assert "<li>one</li><li>two</li>" in html
    assert "<code>code</code>" in html
    assert '<a href="#toy">toy</a>' in html
    assert '<section id="toy">' in html
    (table,) = json.loads((tmp_path / "results.json").read_text())["toy"]["tables"]
    assert [row["metrics"]["ari"]["published"] for row in table["rows"]] == [0.5, 0.9]
    assert [row["written"]["ari"] for row in table["rows"]] == [
        ["0.50", "0.50 (0.10)", "agrees"],
        ["0.90", "0.50 (0.10)", "differs"],
    ]


def test_a_chapter_without_results_and_text_with_signs_is_a_page() -> None:
    empty = Chapter("toy", "A toy.", "Not run: a < b & c\n", [])
    records = {"toy": record_of(empty)}
    assert "Not run: a < b & c" in page("Toys", records)
    options = ReportOptions(None, Path(), 1, 3, quick=False, store=Path("x"))
    assert "3 trials of each setting" in index(records, opening(options))


@pytest.mark.integration
def test_the_quick_report_has_a_chapter_for_some_experiments_and_is_resumed(folder: Path) -> None:
    words = ("--quick", "--data", folder, "--out", folder / "made" / "here")
    chosen = ("--experiment", "kfed", "--experiment", "fcm", "--experiment", "gmm")
    made = all_of(*words, *chosen)
    assert made.exit_code == 0, made.output
    out = folder / "made" / "here"
    assert {path.name for path in out.iterdir()} == {
        "fcac.md",
        "fcm.md",
        "thesis.md",
        "index.md",
        "report.html",
        "results.json",
        "trials.jsonl",
    }
    trials = (out / "trials.jsonl").read_text()
    assert all_of(*words, *chosen).exit_code == 0
    assert (out / "trials.jsonl").read_text() == trials, "nothing was run twice"


def test_what_cannot_be_run_is_named_and_the_rest_is_reported(tmp_path: Path, folder: Path) -> None:
    (folder / "xclara.csv").unlink()
    (folder / "pendigits.csv").unlink()
    made = all_of(
        "--quick",
        "--data",
        folder,
        "--out",
        tmp_path / "out",
        "--experiment",
        "fcm",
        "--experiment",
        "kfed",
    )
    assert isinstance(made.exception, SettingsError)
    assert "Not run: " in (tmp_path / "out" / "fcm.md").read_text()
    assert "## kfed" in (tmp_path / "out" / "index.md").read_text()


def test_the_whole_report_has_what_a_command_alone_leaves_out_for_its_time(folder: Path) -> None:
    ffcm = load_experiment("ffcm")
    assert isinstance(ffcm, Experiment)
    assert not ffcm.synthetic["case4"].by_default
    options = ReportOptions(folder, folder, 1, None, quick=False, store=folder / "trials")
    whole = {setting.dataset for setting in planned(ffcm, options).settings}
    quick = {setting.dataset for setting in planned(ffcm, replace(options, quick=True)).settings}
    assert whole == {*ffcm.synthetic, "phoneme", "pendigits"}
    assert len(quick) == 1


def test_without_data_or_folder_the_error_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    assert "SHOAL_DATA" in str(all_of("--out", tmp_path).exception)
    assert all_of("--data", tmp_path).exit_code == 2
    assert isinstance(
        all_of("--data", tmp_path, "--out", tmp_path, "--experiment", "none").exception,
        SettingsError,
    )


# reproduction/report is a report of all experiments with the papers' numbers of trials.


ELSEWHERE = {
    "continual": "docs/explanation/continual.md",
    "pictures": "reproduction/gallery/README.md",
}
"""experiments whose figures another page of the documentation has"""
TEXTS = {"ranks": f"{ranks.TEXT}\n{ranks_command.REPORTED}", "tsk": tsk_study.TEXT}
"""of experiments that write their chapters themselves"""
RECORDS = json.loads((REPORT / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_figures_of_other_experiments_are_on_their_pages(name: str) -> None:
    assert f"shoal reproduce {name}" in (ROOT / ELSEWHERE[name]).read_text(encoding="utf-8")


def test_the_documentation_has_every_experiment_on_one_page() -> None:
    assert list(RECORDS) == sorted(set(experiment_names()) - set(ELSEWHERE))
    assert sorted(member for _, members in PAPERS.values() for member in members) == list(RECORDS)


def test_the_pages_of_the_documentation_are_those_of_its_results() -> None:
    options = ReportOptions(REPORT, REPORT, 1, None, quick=False, store=REPORT / "trials")
    pages = pages_of(RECORDS, opening(options))
    assert {path.name: path.read_text(encoding="utf-8") for path in REPORT.glob("*.md")} == pages
    assert as_json(RECORDS) == (REPORT / "results.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RECORDS)
def test_the_results_have_the_text_and_the_measures_of_the_experiment(name: str) -> None:
    found = load_experiment(name)
    record = RECORDS[name]
    assert record["title"] == found.title
    experiment = trials_experiment(name)
    assert record["text"] == TEXTS.get(name, experiment.text).strip()
    rows = [row for table in record["tables"] for row in table["rows"]]
    assert rows
    for row in rows:
        assert list(row["metrics"]) == list(row["written"])
        if name != "ranks":
            assert list(row)[:2] == ["dataset", "split"]
            assert set(row["metrics"]) <= set(experiment.formats)
            assert row["trials"] == experiment.trials


@pytest.mark.parametrize("name", sorted(set(RECORDS) - {"ranks"}))
def test_the_published_figures_of_the_results_are_those_of_the_experiment(name: str) -> None:
    experiment = trials_experiment(name)
    compared = [
        row for table in RECORDS[name]["tables"] for row in table["rows"] if row_published(row)
    ]
    assert bool(compared) == (name != "clusters")
    for row in compared:
        keys = {
            key: value for key, value in row.items() if key not in {"dataset", "split", *NOT_KEYS}
        }
        split = next(kind for kind in get_args(Split) if kind == row["split"])
        synthetic = experiment.synthetic.get(row["dataset"])
        clients = (
            synthetic.clients if synthetic else plan_clients(row["dataset"], split, experiment)
        )
        path = None if synthetic else Path(f"{row['dataset']}.csv.gz")
        setting = Setting(name, row["dataset"], split, clients, tuple(keys.items()), path)
        published = experiment.published(setting)
        for measure, (written, _, verdict) in row["written"].items():
            form = experiment.formats[measure]
            assert written == (published[measure].written(form) if measure in published else "-"), (
                row,
                measure,
            )
            figure = Figure(*(row["metrics"][measure][part] or 0.0 for part in ("mean", "sd")))
            if verdict == "agrees":
                assert experiment.agrees(setting, measure, figure, published[measure]), (
                    row,
                    measure,
                )


def plan_clients(dataset: str, split: Split, experiment: Experiment) -> int:
    """The paper's number of clients for a file; 0 where none has figures."""
    known = FCAC_DATASETS.get(fcac_name(dataset) or "")
    return (
        experiment.iid_clients
        if split == "iid" and experiment.iid_clients
        else known.clients
        if known
        else 0
    )


def row_published(row: dict[str, Any]) -> bool:
    return any(written != "-" for written, _, _ in row["written"].values())


def test_the_pictures_of_the_documentation_are_there() -> None:
    for path in REPORT.glob("*.md"):
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (REPORT / picture).is_file(), f"{path.name} shows {picture}"


# The file of finished trials.


def test_a_trial_is_found_again_and_no_other_one(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "trials")
    assert store.get(SETTING, 0) is None
    store.add(SETTING, 0, {"ari": 0.1})
    again = TrialStore(tmp_path / "trials")
    assert again.get(SETTING, 0) == {"ari": 0.1}
    assert len(again) == 1
    others = (
        Setting("mufc", "phoneme", "iid", 10, SETTING.keys),
        Setting("kfed", "phoneme", "niid", 10, SETTING.keys),
        Setting("kfed", "phoneme", "iid", 9, SETTING.keys),
        Setting("kfed", "phoneme", "iid", 10),
        Setting("kfed", "phoneme", "iid", 10, SETTING.keys, epsilon=15.0),
    )
    assert again.get(SETTING, 1) is None
    assert [again.get(other, 0) for other in others] == [None] * len(others)


def test_a_line_that_was_cut_is_run_again_and_breaks_no_other(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    store = TrialStore(path)
    for trial in range(3):
        store.add(SETTING, trial, {"ari": trial / 10})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        found = TrialStore(path)
        kept = [trial for trial in range(3) if found.get(SETTING, trial) is not None]
        assert kept == list(range(len(kept)))
        found.add(SETTING, 7, {"ari": 0.7})
        after = TrialStore(path)
        assert after.get(SETTING, 7) == {"ari": 0.7}
        assert len(after) == len(kept) + 1


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials"
    path.write_text('[2, ["a", 1], {"ari": 1}]\n')
    with pytest.raises(SettingsError, match="another version"):
        TrialStore(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="cannot be read"):
        TrialStore(path)
    with pytest.raises(SettingsError, match="no such folder"):
        TrialStore(tmp_path / "nowhere" / "trials")
