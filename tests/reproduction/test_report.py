"""`shoal reproduce all`: one report of every installed experiment; and the file of finished trials behind it."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reproduction.command import planned, reproduce
from reproduction.experiment import Experiment, Figure, Setting, python_format
from reproduction.experiment import Result as Row
from reproduction.experiments import experiment_names, load_experiment
from reproduction.report import Chapter, ReportOptions, Table
from reproduction.report_pages import HEADINGS, MADE, index, page, verdicts, write_pages
from reproduction.trials import TrialStore
from shoal.errors import SettingsError

DOCS = Path(__file__).parents[2] / "docs" / "reproduction"
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
    return Chapter("toy", "A toy.", "Some *text* with `code`.\n\n- one\n- two\n", [Table(rows, FORMATS)])


AGREES = Row({"dataset": "a"}, 2, {"ari": Figure(0.5, 0.1)}, {"ari": Figure(0.5)}, {"ari": True})
DIFFERS = Row({"dataset": "b"}, 2, {"ari": Figure(0.5, 0.1)}, {"ari": Figure(0.9)}, {"ari": False})
NO_BAND = Row({"dataset": "c"}, 2, {"ari": Figure(0.5, 0.1)}, {"ari": Figure(0.9)}, {})


def test_the_verdicts_are_counted() -> None:
    counts = verdicts(chapter(AGREES, DIFFERS, NO_BAND, NO_BAND))
    assert (counts.published, counts.agree, counts.differ, counts.without_band) == (4, 1, 1, 2)
    assert verdicts(chapter()).published == 0


def test_the_pages_have_published_beside_obtained_in_markdown_and_html(tmp_path: Path) -> None:
    options = ReportOptions(None, tmp_path, 1, None, quick=False, store=tmp_path / "trials")
    written = write_pages([chapter(AGREES, DIFFERS)], options)
    assert [path.name for path in written] == ["toy.md", "index.md", "report.html", "results.json"]
    assert "| 0.90      | 0.50 (0.10) | differs |" in (tmp_path / "toy.md").read_text()
    assert "| [toy](toy.md) | A toy. | 2 | 2 | 1 | 1 | 0 |" in (tmp_path / "index.md").read_text()
    html = (tmp_path / "report.html").read_text()
    assert '<td class="differs">differs</td>' in html
    assert "<li>one</li><li>two</li>" in html
    assert "<code>code</code>" in html
    assert '<a href="#toy">toy</a>' in html
    assert '<section id="toy">' in html
    assert json.loads((tmp_path / "results.json").read_text())["toy"][1]["metrics"]["ari"]["published"] == 0.9


def test_a_chapter_without_results_and_text_with_signs_is_a_page() -> None:
    empty = Chapter("toy", "A toy.", "Not run: a < b & c\n", [])
    assert "Not run: a < b & c" in page(empty)
    options = ReportOptions(None, Path(), 1, 3, quick=False, store=Path("x"))
    assert "3 trials of each setting" in index([empty], options)


def test_the_quick_report_has_a_chapter_for_some_experiments_and_is_resumed(folder: Path) -> None:
    words = ("--quick", "--data", folder, "--out", folder / "made" / "here")
    chosen = ("--experiment", "kfed", "--experiment", "fcm", "--experiment", "gmm")
    made = all_of(*words, *chosen)
    assert made.exit_code == 0, made.output
    out = folder / "made" / "here"
    assert {path.name for path in out.iterdir()} == {
        *("kfed.md", "fcm.md", "gmm.md"),
        *("index.md", "report.html", "results.json", "trials.jsonl"),
    }
    trials = (out / "trials.jsonl").read_text()
    assert all_of(*words, *chosen).exit_code == 0
    assert (out / "trials.jsonl").read_text() == trials, "nothing was run twice"


def test_what_cannot_be_run_is_named_and_the_rest_is_reported(tmp_path: Path, folder: Path) -> None:
    (folder / "xclara.csv").unlink()
    (folder / "pendigits.csv").unlink()
    made = all_of("--quick", "--data", folder, "--out", tmp_path / "out", "--experiment", "fcm", "--experiment", "kfed")
    assert isinstance(made.exception, SettingsError)
    assert "Not run: " in (tmp_path / "out" / "fcm.md").read_text()
    assert (
        "measure" in (tmp_path / "out" / "kfed.md").read_text() or "ARI" in (tmp_path / "out" / "kfed.md").read_text()
    )


def test_the_whole_report_has_what_a_command_alone_leaves_out_for_its_time(folder: Path) -> None:
    ffcm = load_experiment("ffcm")
    assert isinstance(ffcm, Experiment)
    assert not ffcm.synthetic["case4"].by_default
    options = ReportOptions(folder, folder, 1, None, quick=False, store=folder / "trials")
    whole = {setting.dataset for setting in planned(ffcm, options).settings}
    quick = {setting.dataset for setting in planned(ffcm, replace(options, quick=True)).settings}
    assert whole == {*ffcm.synthetic, "phoneme", "pendigits"}
    assert len(quick) == 1


def test_without_data_or_folder_the_error_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    assert "SHOAL_DATA" in str(all_of("--out", tmp_path).exception)
    assert all_of("--data", tmp_path).exit_code == 2
    assert isinstance(all_of("--data", tmp_path, "--out", tmp_path, "--experiment", "none").exception, SettingsError)


# The pages in docs/reproduction are a report of all experiments with the papers' numbers of trials.


PAGES = ("clusters", "dbscan", "fcac", "fcm", "ffcm", "gmm", "kfed", "kmeans", "mufc", "spectral")
ELSEWHERE = {
    "continual": "explanation/continual.md",
    "pictures": "explanation/gallery.md",
}
"""experiments whose figures another page of the documentation has"""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_figures_of_other_experiments_are_on_their_pages(name: str) -> None:
    assert f"shoal reproduce {name}" in (DOCS.parent / ELSEWHERE[name]).read_text(encoding="utf-8")


def test_the_documentation_has_a_page_for_every_experiment() -> None:
    first = (DOCS / "index.md").read_text(encoding="utf-8")
    assert "| " + " | ".join(HEADINGS) + " |" in first
    for name in set(experiment_names()) - set(ELSEWHERE):
        title = load_experiment(name).title
        assert f"| [{name}]({name}.md) | {title} |" in first, name
        lines = (DOCS / f"{name}.md").read_text(encoding="utf-8").splitlines()
        assert lines[:5] == [f"# {name}", "", title, "", f"    shoal reproduce {name}"]
        assert lines[-1] == MADE


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_documentation_has_the_text_and_the_measures_of_its_experiment(name: str) -> None:
    experiment = load_experiment(name)
    assert isinstance(experiment, Experiment)
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert experiment.text.strip() in text
    assert "Trials: " in text
    lines = text.splitlines()
    heads = [line for line, rule in itertools.pairwise(lines) if set(rule) == {"|", "-"}]
    assert heads
    for head in heads:
        cells = [cell.strip() for cell in head.strip("|").split("|")]
        assert cells[:2] == ["data set", "split"]
        assert cells[-4:] == ["measure", "published", "obtained", ""] or cells[-1] in {
            *("ARI", "AMI", "NMI", "nodes", "clusters", "difference", *experiment.formats)
        }


def test_the_pictures_of_the_documentation_are_there() -> None:
    for path in DOCS.glob("*.md"):
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (DOCS / picture).is_file(), f"{path.name} shows {picture}"


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
