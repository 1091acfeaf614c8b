"""Ranks of algorithms: the tests of Demšar, the paper's printed ranks, and `shoal reproduce ranks`
on small data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from scipy.stats import rankdata

from reproduction import published
from reproduction.datasets import FCAC_DATASETS, FCAC_SPLITS
from reproduction.experiment import SCORES, Setting
from reproduction.experiments import ranks_command
from reproduction.experiments.contestants import PUBLISHED, Task, contestants
from reproduction.experiments.ranks import (
    BAND,
    EXPERIMENT,
    Comparison,
    chance_deviations,
    complete,
    printed,
    published_mean,
    rank,
    rank_results,
    scopes,
)
from reproduction.experiments.ranks_command import (
    ALL,
    PAPERS,
    QUICK_DATASETS,
    SHARED,
    draw_ranks,
    groups_of,
)
from reproduction.published import COMPARED, FCAC
from reproduction.report import ReportOptions
from reproduction.reproduce_command import reproduce
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.registry import algorithm_names, load_algorithm
from shoal.errors import InvalidData, MissingExtra, SettingsError

# Demšar (2006), table 6: areas under the curve of four forms of C4.5 on 14 data sets.
DEMSAR = """
.763 .768 .771 .798; .599 .591 .590 .569;
.954 .971 .968 .967; .628 .661 .654 .657; .882 .888 .886 .898;
.936 .931 .916 .931; .661 .668 .609 .685;
.583 .583 .563 .625; .775 .838 .866 .875; 1.000 1.000 1.000 1.000;
.940 .962 .965 .962; .619 .666 .614 .669; .972 .981 .9751 .975; .957 .978 .946 .970
"""
PRINTED_AVERAGES = {
    "iid": (2.700, 3.533, 3.633, 2.900, 2.233),
    "niid": (2.833, 3.400, 4.200, 2.333, 2.233),
}
"""the last line of tables 3 and 4"""
NAMES = ("C4.5", "m", "cf", "m+cf")


def demsar() -> list[dict[str, float]]:
    return [dict(zip(NAMES, map(float, line.split()), strict=True)) for line in DEMSAR.split(";")]


def test_the_example_of_demsar_gives_his_ranks_and_his_critical_difference() -> None:
    ranked = rank(demsar(), NAMES)
    np.testing.assert_allclose(ranked.mean, [3.143, 2.000, 2.893, 1.964], atol=5e-4)
    assert ranked.comparisons == 14
    assert ranked.critical_difference == pytest.approx(1.25, abs=5e-3)
    # His 9.28 (p = .0258) is without the correction for ties, which makes it 10.2.
    assert ranked.friedman_p == pytest.approx(0.0167, abs=1e-4)
    assert not ranked.differ("C4.5", "m+cf"), "the Nemenyi test does not find his difference either"
    assert ranked.groups() == [("m+cf", "m", "cf", "C4.5")]


def test_groups_overlap_where_ranks_are_far_apart() -> None:
    scores = [{"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}] * 12
    ranked = rank(scores, "abcd")
    assert ranked.critical_difference == pytest.approx(1.354, abs=2e-3)
    assert ranked.groups() == [("a", "b"), ("b", "c"), ("c", "d")]
    assert ranked.differ("a", "c")
    assert not ranked.differ("a", "b")


def test_equal_scores_share_their_ranks() -> None:
    ranked = rank([{"a": 1.0, "b": 1.0, "c": 0.0}] * 4, "abc")
    assert ranked.mean.tolist() == [1.5, 1.5, 3.0]
    same = rank([{"a": 1.0, "b": 1.0, "c": 1.0}] * 4, "abc")
    assert same.friedman_p == 1.0
    assert same.groups() == [("a", "b", "c")]


def test_nothing_and_one_algorithm_cannot_be_ranked() -> None:
    with pytest.raises(InvalidData, match="cannot be ranked"):
        rank([], "ab")
    with pytest.raises(InvalidData, match="cannot be ranked"):
        rank([{"a": 1.0}], "a")
    assert np.isnan(rank([{"a": 1.0, "b": 0.0}], "ab").friedman_p), (
        "Friedman's test is for three or more"
    )


def test_the_printed_ranks_have_the_printed_averages() -> None:
    for split in FCAC_SPLITS:
        assert set(published.RANKS[split]) == set(FCAC_DATASETS)
        for name, average in zip(published.COLUMNS, PRINTED_AVERAGES[split], strict=True):
            mean = published_mean(name, (split,), tuple(FCAC_DATASETS))
            assert mean == pytest.approx(average, abs=5e-4), (split, name)


def test_the_printed_ranks_are_those_of_the_printed_figures() -> None:
    """Up to figures that are equal as they are printed."""
    columns = {"ffcm": "fedfcm"}
    for split in FCAC_SPLITS:
        for dataset, by_score in published.RANKS[split].items():
            for score, digits in zip(("ari", "ami", "nmi"), by_score, strict=True):
                means = [
                    (
                        FCAC[split][dataset][score].mean
                        if name == "fcac"
                        else COMPARED[columns.get(name, name)][split][dataset][score].mean
                    )
                    for name in published.COLUMNS
                ]
                ordered = [means[digits.index(str(place))] for place in range(1, 6)]
                assert ordered == sorted(ordered, reverse=True), (split, dataset, score)


def comparison(dataset: str, split: str, score: str = "ari", **values: float) -> Comparison:
    # Every string given here is one of the splits.
    return Comparison(dataset, split, None, score, values)  # type: ignore[arg-type]  # a split


def test_a_mean_rank_is_compared_on_the_same_data_sets_and_within_the_band() -> None:
    found = [
        comparison("phoneme", split, score, kmeans=0.5, kfed=0.4, ffcm=0.3, mufc=0.2, fcac=0.1)
        for split in FCAC_SPLITS
        for score in ("ari", "ami", "nmi")
    ]
    results = {
        ranked.keys["algorithm"]: ranked
        for ranked in rank_results("the paper's", found, tuple(PUBLISHED), 5, True)
    }
    # Table 3, phoneme: k-means has the ranks 3, 1, 1; here it is the first throughout.
    assert results["kmeans"].published["IID"].mean == pytest.approx(5 / 3)
    assert results["kmeans"].measured["IID"].mean == 1.0
    deviation = results["kmeans"].published["IID"].sd
    assert results["kmeans"].agrees["IID"] is (abs(5 / 3 - 1.0) <= BAND * deviation)
    assert results["fcac"].agrees["IID"] is True
    assert results["ffcm"].published
    assert results["ffcm"].agrees == {}, "no band is claimed"
    few = {
        ranked.keys["algorithm"]: ranked
        for ranked in rank_results("the paper's", found, tuple(PUBLISHED), 1, True)
    }
    assert few["kmeans"].published["IID"].sd > deviation, (
        "chance moves means over fewer trials farther"
    )


def test_the_deviation_by_chance_is_that_of_figures_drawn_again() -> None:
    """Beside another way to it: scipy's ranks of scores drawn cell by cell."""
    cells = [("iid", dataset) for dataset in ("phoneme", "optdigits", "pendigits")]
    generator = np.random.default_rng(7)
    means = []
    for _ in range(1500):
        scale = np.sqrt(1 / 5 + 1 / 20)
        table = []
        for cell in cells:
            moved = {name: scale * generator.normal() for name in published.COLUMNS}
            for score in ("ari", "ami", "nmi"):
                figures = {}
                for name in moved:
                    # The second part of a cell is a split.
                    figures[name] = printed(name, *cell, score)  # type: ignore[arg-type]  # a split
                table.append(
                    [figure.mean + moved[name] * figure.sd for name, figure in figures.items()]
                )
        means.append(rankdata(-np.array(table), axis=1).mean(axis=0))
    found = chance_deviations(("iid",), [dataset for _, dataset in cells], 5)
    np.testing.assert_allclose(list(found.values()), np.std(means, axis=0), rtol=0.1)


def test_chance_is_less_with_more_trials_and_data_sets_and_nothing_for_scores_far_apart() -> None:
    few, many = (
        chance_deviations(("iid",), ("phoneme", "pendigits"), trials) for trials in (2, 200)
    )
    wide = chance_deviations(FCAC_SPLITS, tuple(FCAC_DATASETS), 2)
    for name in published.COLUMNS:
        assert many[name] < few[name]
        assert wide[name] < few[name]
    # On optdigits, FedFCM's scores are the lowest by many deviations.
    assert chance_deviations(("iid",), ("optdigits",), 10**6)["ffcm"] == 0.0


def test_a_mean_rank_that_chance_does_not_explain_differs() -> None:
    datasets = tuple(name for name in FCAC_DATASETS if name != "fashion_mnist")
    order = dict(
        zip(("fcac", "mufc", "kmeans", "kfed", "ffcm"), (0.5, 0.4, 0.3, 0.2, 0.1), strict=True)
    )

    def verdicts(**scores_: float) -> dict[str, bool]:
        found = [
            comparison(dataset, split, score, **scores_)
            for dataset in datasets
            for split in FCAC_SPLITS
            for score in ("ari", "ami", "nmi")
        ]
        results = rank_results("the paper's", found, tuple(PUBLISHED), 5, True)
        return {str(result.keys["algorithm"]): all(result.agrees.values()) for result in results}

    assert not verdicts(**order)["mufc"], (
        "the second throughout; 2.96 and 2.48 are printed, and 3 deviations are 0.85"
    )
    assert not verdicts(**{**order, "fcac": 0.0})["fcac"]


def test_an_algorithm_that_does_not_take_all_data_is_ranked_on_what_all_take() -> None:
    everywhere = [comparison(width, "iid", kmeans=0.1, fcm=0.2) for width in ("narrow", "wide")]
    found = [everywhere[0]._replace(values={**everywhere[0].values, "dbscan": 0.3}), everywhere[1]]
    groups = {group.name: group for group in groups_of(found, ("kmeans", "fcm", "dbscan"))}
    assert {name: list(group.members) for name, group in groups.items()} == {
        ALL: ["kmeans", "fcm"],
        SHARED: ["kmeans", "fcm", "dbscan"],
    }
    assert groups[SHARED].datasets == ["narrow"]
    assert [group.name for group in groups_of(everywhere, ("kmeans", "fcm"))] == [ALL]
    of_paper = comparison("narrow", "iid", **dict.fromkeys(PUBLISHED, 0.1))
    assert [group.name for group in groups_of([of_paper], tuple(PUBLISHED))] == [PAPERS]
    close = of_paper._replace(values={**of_paper.values, "kmeans": 0.10002, "kfed": 0.09998})
    (group,) = groups_of([close], tuple(PUBLISHED))
    assert set(group.found[0].values.values()) == {0.1}, "equal as the paper prints them"
    alone = groups_of(found, ("kmeans", "dbscan"))
    assert [(group.name, len(group.found)) for group in alone] == [(SHARED, 1)], (
        "kmeans alone is not ranked"
    )


def test_data_that_the_paper_does_not_have_are_not_compared() -> None:
    assert published_mean("fcac", ("iid",), ("phoneme", "mine")) is None
    assert published_mean("cluster_tree", ("iid",), ("phoneme",)) is None


def test_an_algorithm_without_a_score_somewhere_is_not_ranked() -> None:
    found = [comparison("a", "iid", x=1.0, y=0.5), comparison("b", "iid", x=1.0)]
    assert complete(found, ("x", "y", "z")) == ["x"]


def test_the_scopes_are_the_two_scenarios_both_each_noise_and_all() -> None:
    assert [scope.name for scope in scopes((None, 15.0))] == [
        "IID",
        "non-IID",
        "both",
        "epsilon 15",
        "all",
    ]
    assert [scope.name for scope in scopes((15.0,))] == ["epsilon 15"]


def test_every_installed_clustering_algorithm_is_a_contestant() -> None:
    left_out = set(algorithm_names()) - set(contestants())
    for name in left_out:
        algorithm = load_algorithm(name)
        made_from_counts = isinstance(algorithm, CountingAlgorithm) and name.endswith(
            "_from_counts"
        )
        assert (
            made_from_counts
            or getattr(algorithm, "paper_only", False)
            or algorithm.regression is not None
            or getattr(algorithm, "labels_sequences", False)
        ), name
    assert {"cae", "cluster_tree", "density_tree", "fcm", "gmm"} <= set(contestants()), (
        "those beyond the paper's"
    )


@pytest.mark.parametrize("name", contestants())
def test_every_contestant_labels_every_row_or_refuses_the_data(name: str) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(400) % 2
    rows = generator.normal(size=(400, 2)) + 9.0 * labels[:, None]
    task = Task([rows[start::4] for start in range(4)], rows, 2, 0)
    try:
        found = contestants()[name](task)
    except SettingsError:
        assert name not in PUBLISHED
        return
    assert found.shape == (400,)
    assert found.dtype.kind == "i"
    assert contestants()[name](task).tobytes() == found.tobytes(), (
        "the same trial gives the same labels"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for name in ("hill_valley", "phoneme", "pendigits"):
        labels = np.arange(300) % 3
        rows = generator.normal(size=(300, 2)) + 9 * np.array([[0, 0], [1, 0], [0, 1]])[labels]
        table = np.column_stack([rows, labels])
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header="a,b,label", comments="")
    return tmp_path


def ranks(*words: object) -> Result:
    return CliRunner().invoke(reproduce, ["ranks", "--jobs", "1", *map(str, words)])


@pytest.mark.integration
def test_the_quick_form_ranks_every_algorithm_and_draws(folder: Path) -> None:
    done = ranks(
        "--quick",
        "--data",
        folder,
        "--json",
        "--out",
        folder / "ranks.svg",
        "--resume",
        folder / "trials",
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    among = [row["among"] for row in told["rows"]]
    assert among == sorted(among, reverse=True), "the paper's first"
    assert not told["left_out"], "all take two features"
    assert {row["algorithm"] for row in told["rows"]} | set(told["left_out"]) == set(contestants())
    for row in told["rows"]:
        assert list(row["metrics"]) == ["IID", "non-IID", "both"]
    assert {test["scope"] for test in told["tests"]} == {"IID", "non-IID", "both"}
    assert (
        "critical difference" in (folder / "ranks.svg").read_text()
        or (folder / "ranks.svg").stat().st_size > 1000
    )
    again = ranks("--quick", "--data", folder, "--resume", folder / "trials")
    assert again.exit_code == 0
    assert "Mean ranks among all" in again.stdout
    lines = (folder / "trials").read_text().splitlines()
    assert len(lines) == 3 * 2 * len(contestants()), "nothing was run twice"


def test_some_algorithms_and_scores_are_ranked_on_their_own(folder: Path) -> None:
    words = (
        "--data",
        folder,
        "--epsilon",
        "none",
        "--epsilon",
        15,
        "--trials",
        1,
        "--noise-trials",
        1,
        "--json",
    )
    done = ranks(*words, "--algorithm", "cluster_tree", "--algorithm", "kmeans", "--score", "ari")
    told = json.loads(done.stdout)
    assert [row["among"] for row in told["rows"]] == ["all", "all"]
    assert list(told["rows"][0]["metrics"]) == ["IID", "non-IID", "both", "epsilon 15", "all"]
    assert [test["comparisons"] for test in told["tests"]] == [3, 3, 6, 6, 12]


def test_check_ends_with_1_where_chance_does_not_explain_a_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On these data, which only have the names of the paper's, first with its ranks and then with
    fcac the best."""
    words = ["--data", folder, "--published", "--trials", 1, "--check"]
    known = {
        **{("hill_valley", name): "34521"[place] for place, name in enumerate(PUBLISHED)},
        **{("phoneme", name): "12345"[place] for place, name in enumerate(PUBLISHED)},
        **{("pendigits", name): "24531"[place] for place, name in enumerate(PUBLISHED)},
    }

    def as_printed(setting: Setting, trial: int) -> dict[str, float]:
        return dict.fromkeys(SCORES, -float(known[setting.dataset, setting["algorithm"]]))

    monkeypatch.setitem(vars(EXPERIMENT), "run", as_printed)
    agreeing = ranks(*words)
    assert agreeing.exit_code == 0, agreeing.output
    assert "the paper's | kmeans" in agreeing.stdout
    known |= {(dataset, "kfed"): "0" for dataset in QUICK_DATASETS}
    differing = ranks(*words)
    assert differing.exit_code == 1
    assert "a mean rank does not agree with the published one" in differing.stderr


def test_what_has_published_ranks_is_what_is_run_once_for_the_whole_and_its_parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, str, float | None]] = []

    def scored(setting: Setting, trial: int) -> dict[str, float]:
        ran.append((setting.dataset, setting["algorithm"], setting.epsilon))
        return dict.fromkeys(SCORES, float(list(PUBLISHED).index(setting["algorithm"])))

    monkeypatch.setitem(vars(EXPERIMENT), "run", scored)
    words = ("--data", folder, "--published", "--trials", 1, "--resume", folder / "trials")
    part = ranks(*words, "--dataset", "phoneme")
    assert part.exit_code == 0, part.output
    assert set(ran) == {("phoneme", name, None) for name in PUBLISHED}
    assert ranks(*words).exit_code == 0
    assert len(ran) == 2 * len(QUICK_DATASETS) * len(PUBLISHED), "nothing was run twice"
    both = ranks(*words, "--algorithm", "kmeans")
    assert "leave --algorithm and --epsilon out" in str(both.exception)
    noisy = ranks(*words, "--epsilon", 15)
    assert isinstance(noisy.exception, SettingsError)


@pytest.mark.integration
def test_dbscan_is_ranked_where_it_takes_the_data(folder: Path) -> None:
    generator = np.random.default_rng(0)
    rows = np.column_stack([generator.normal(size=(200, 7)), np.arange(200) % 2])
    np.savetxt(folder / "ozone.csv", rows, delimiter=",", header="a,b,c,d,e,f,g,label", comments="")
    words = (
        "--data",
        folder,
        "--epsilon",
        "none",
        "--trials",
        1,
        "--score",
        "ari",
        "--out",
        folder / "ranks.svg",
    )
    names = ("--algorithm", "kmeans", "--algorithm", "fcm", "--algorithm", "dbscan")
    told = json.loads(ranks(*words, *names, "--json").stdout)
    assert told["left_out"] == ["dbscan"]
    ranked = {(test["among"], test["scope"]): test["comparisons"] for test in told["tests"]}
    assert ranked == {
        **{(ALL, "IID"): 4, (ALL, "non-IID"): 4, (ALL, "both"): 8},
        **{(SHARED, "IID"): 3, (SHARED, "non-IID"): 3, (SHARED, "both"): 6},
    }
    shown = ranks(*words, *names).stdout
    assert "Not ranked, because they do not take all of the data: dbscan." in shown
    assert (
        "Mean ranks among all, shared data (kmeans, fcm, dbscan) on hill_valley, phoneme, pendigits"
        in shown
    )


def test_the_report_has_the_papers_algorithms_on_all_data_and_all_of_them_on_all_but_the_largest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_command, "LARGE_DATASETS", ("pendigits",))
    monkeypatch.setattr(ranks_command, "NOISE_DATASETS", ("phoneme",))
    chosen = {
        name: contestant
        for name, contestant in contestants().items()
        if name in {*PUBLISHED, "fcm"}
    }
    monkeypatch.setattr(ranks_command, "contestants", lambda: chosen)
    options = ReportOptions(folder, folder, 1, 1, quick=False, store=folder / "trials")
    chapter = ranks_command.STUDY.chapter(options)
    texts = [table.text for table in chapter.tables]
    assert ["hill_valley, phoneme, pendigits;" in text for text in texts] == [
        True,
        False,
        False,
        False,
    ]
    assert [list(table.results[0].measured) for table in chapter.tables[:2]] == [
        ["IID", "non-IID", "both"]
    ] * 2
    assert list(chapter.tables[2].results[0].measured) == [
        "epsilon 15",
        "epsilon 25",
        "epsilon 50",
        "epsilon 75",
        "all",
    ]
    assert [len(table.results) for table in chapter.tables] == [5, 6, 5, 6]
    assert [text.startswith("With noise. ") for text in texts] == [False, False, True, True]
    assert all(picture.path.is_file() for picture in chapter.pictures)


def test_what_cannot_be_ranked_is_an_error(folder: Path) -> None:
    assert "no algorithm 'nonsense'" in str(
        ranks("--data", folder, "--algorithm", "nonsense").exception
    )
    assert isinstance(ranks("--data", folder, "--check", "--quick").exception, SettingsError)
    assert isinstance(ranks("--data", folder, "--check", "--score", "ari").exception, SettingsError)
    assert "--check ranks kmeans, kfed" in str(
        ranks("--data", folder, "--check", "--algorithm", "kmeans").exception
    )
    assert ranks("--data", folder, "--epsilon", 0).exit_code == 2
    assert isinstance(
        ranks("--data", folder, "--out", folder / "nowhere" / "a.png").exception, SettingsError
    )


def test_without_matplotlib_the_error_comes_before_any_trial(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    missing = ranks("--data", folder, "--quick", "--out", folder / "a.png")
    assert isinstance(missing.exception, MissingExtra)
    assert "trials done" not in missing.output


def test_the_diagram_has_every_name(tmp_path: Path) -> None:
    draw_ranks({"all": rank(demsar(), NAMES)}, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().count("<path") > 10


@pytest.mark.integration
@pytest.mark.needs("data")
def test_the_papers_order_is_found_on_three_of_its_data_sets(data_folder: Path) -> None:
    """One trial: FCAC before k-FED, as in figure 10, on the data sets of the quick form."""
    words = [word for name in PUBLISHED for word in ("--algorithm", name)]
    done = ranks("--quick", "--data", data_folder, "--json", *words)
    told = {
        row["algorithm"]: row["metrics"]
        for row in json.loads(done.stdout)["rows"]
        if row["among"] == PAPERS
    }
    assert told["fcac"]["both"]["mean"] < told["kfed"]["both"]["mean"]
    assert told["fcac"]["both"]["published"] == pytest.approx(2.11, abs=0.01)
