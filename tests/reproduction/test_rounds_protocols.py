"""The papers' figures for algorithms in rounds, with few trials; `shoal reproduce NAME --check`
runs all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reproduction import published
from reproduction.datasets import Split, deal_few_classes, find
from reproduction.experiment import SCORES, Setting, clients_of
from reproduction.experiments import trials_experiment
from reproduction.experiments.ffcm import CASES, errors, g2, g2_gap, gap, run_case
from reproduction.experiments.gmm import blobs, by_scikit_learn
from shoal.algorithms.rounds.gmm import GMM, mixing_weights
from shoal.kernels.gaussian import COVARIANCE_TYPES, matrices
from shoal.kernels.matching import matched_distance
from shoal.simulation.rounds import bounding_box, kfed_hint, run_rounds


def mean(experiment: str, setting: Setting, trials: int) -> dict[str, float]:
    each = [trials_experiment(experiment).run(setting, trial) for trial in range(trials)]
    return {name: float(np.mean([measures[name] for measures in each])) for name in each[0]}


# Federated FCM, table 1.


def table_1(folder: Path, name: str, fraction: float, trials: int) -> dict[str, float]:
    return mean(
        "fcm",
        Setting("fcm", name, "iid", 20, (("fraction", fraction),), find(folder, name)),
        trials,
    )


@pytest.mark.needs("data")
@pytest.mark.parametrize("fraction", published.FRACTIONS)
def test_xclara_gives_the_published_score_and_with_all_clients_the_pooled_centres(
    data_folder: Path, fraction: float
) -> None:
    found = table_1(data_folder, "xclara", fraction, 3)
    place = published.FRACTIONS.index(fraction)
    if fraction == 1.0:
        assert found["ari"] == pytest.approx(0.99289, abs=1e-4)
        assert found["difference"] < 1e-10
    else:
        # Of 3000 rows one more or less is right, which is 1e-3 of the score; 10 trials come nearer.
        assert found["ari"] == pytest.approx(published.FCM_ARI["xclara"][place], abs=1e-3)
        assert 0 < found["difference"] < 3 * published.FCM_DIFFERENCE["xclara"][0]


@pytest.mark.needs("data")
@pytest.mark.parametrize(
    ("name", "band"), [("waveform_v1", 3e-3), ("s_set1", 0.12), ("pendigits", 0.1)]
)
def test_the_other_rows_of_table_1_are_within_their_bands(
    data_folder: Path, name: str, band: float
) -> None:
    """One start each: s-set1 and pendigits vary by .05 from start to start."""
    found = table_1(data_folder, name, 1.0, 1)
    assert found["ari"] == pytest.approx(published.FCM_ARI[name][-1], abs=band)
    assert found["difference"] < 1e-10


# FFCM, tables 2 to 5.


def case(name: str, average: str, local: str, trials: int = 3) -> dict[str, float]:
    each = [run_case(name, average, local, trial) for trial in range(trials)]
    return {measure: float(np.mean([clients[measure] for clients in each])) for measure in each[0]}


def test_case_1_avg1_pulls_a_centre_in_when_clients_fit_alone_and_not_when_they_take_one_step() -> (
    None
):
    central, fit, step = (
        case("case1", *form) for form in (("central", "-"), ("avg1", "fit"), ("avg1", "step"))
    )
    assert central["within"] == pytest.approx(0.314, abs=0.01)
    assert fit["within"] == pytest.approx(0.349, abs=0.01)
    assert case("case1", "avg2", "fit")["within"] == pytest.approx(0.314, abs=0.01)
    assert fit["gap"] == pytest.approx(0.9, abs=0.1)
    assert step == pytest.approx(central, abs=1e-6)
    printed = published.FFCM["case1"]
    assert (central["within"], central["outside"]) == pytest.approx(
        printed["central"][1:], rel=0.02
    )
    assert (fit["within"], fit["outside"]) == pytest.approx(printed["avg1"][1:], rel=0.04)


def test_case_2_has_the_published_errors_and_avg2_is_nearer_to_the_centres_than_avg1() -> None:
    """Of ten starts two or three end in another minimum, 12 away; the paper shows one run, so
    medians are compared."""
    gaps = {}
    for average, local in (("central", "-"), ("avg1", "fit"), ("avg2", "fit")):
        found = [run_case("case2", average, local, trial) for trial in range(10)]
        printed_gap, within, outside = published.FFCM["case2"][average]
        assert np.mean([measures["within"] for measures in found]) == pytest.approx(
            within, abs=0.05
        )
        assert np.mean([measures["outside"] for measures in found]) == pytest.approx(
            outside, abs=0.5
        )
        gaps[average] = float(np.median([measures["gap"] for measures in found]))
        if average != "central":
            assert gaps[average] == pytest.approx(printed_gap, abs=0.4)
    assert gaps["avg2"] < gaps["avg1"] - 1


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("case3")])
def test_case_3_avg2_finds_clusters_that_are_absent_on_clients_and_avg1_does_not(name: str) -> None:
    avg1 = case(name, "avg1", "fit", 2)
    avg2 = case(name, "avg2", "fit", 2)
    assert avg2["within"] == pytest.approx(0.627, abs=0.01)
    assert avg2["outside"] == pytest.approx(17.15, abs=0.1)
    assert avg2["gap"] < 1.0
    assert avg1["gap"] > 10
    assert avg1["within"] > avg2["within"] + 0.2
    assert avg1["outside"] < avg2["outside"] - 3


@pytest.mark.parametrize(
    ("d", "sd", "low", "high"), [(2, 10, 0.7, 1.7), (8, 10, 0.9, 1.5), (16, 100, 85, 102)]
)
def test_case_4_all_forms_agree_on_sets_that_are_dealt_evenly(
    d: int, sd: float, low: float, high: float
) -> None:
    """Table 5's gap is the gap / sqrt(d): near 1 where clusters are apart, near 100 where both
    centres meet."""
    gaps = {
        form: np.mean([g2_gap(d, sd, *form, trial) for trial in range(2)])
        for form in (("central", "-"), ("avg1", "step"), ("avg1", "fit"), ("avg2", "fit"))
    }
    assert all(low < found < high for found in gaps.values())
    assert gaps["avg1", "step"] == pytest.approx(gaps["central", "-"], abs=1e-3)
    if sd == 10:
        assert gaps["avg1", "fit"] == pytest.approx(gaps["central", "-"], rel=0.02)
        assert gaps["avg2", "fit"] == pytest.approx(gaps["central", "-"], rel=0.05)


def test_the_synthetic_data_are_those_of_the_paper() -> None:
    assert [len(rows) for rows in CASES["case1"].draw(0).clients] == [999, 999, 1000]
    assert [len(rows) for rows in CASES["case2"].draw(0).clients] == [1000, 1000]
    assert [len(rows) for rows in CASES["case3-100-1000-100"].draw(0).clients] == [100, 1000, 100]
    assert [rows.shape for rows in g2(8, 20, 0).clients][:2] == [(205, 8), (205, 8)]
    np.testing.assert_array_equal(g2(2, 30, 1).clients[0], g2(2, 30, 1).clients[0])
    within, outside = errors(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0], [3.0, 0.0]]))
    assert (within, outside) == (4 / 4, (3 + 5) / 4)
    assert gap(np.array([[5.0], [0.0]]), np.array([[0.0], [4.0]])) == 1.0


@pytest.mark.needs("data")
def test_ffcm_on_phoneme_gives_the_column_fedfcm_of_the_fcac_paper(data_folder: Path) -> None:
    keys = (("average", "avg1"), ("local", "fit"))
    found = mean(
        "ffcm", Setting("ffcm", "phoneme", "iid", 10, keys, find(data_folder, "phoneme")), 2
    )
    printed = published.COMPARED["fedfcm"]["iid"]["phoneme"]["ari"]
    assert found["ari"] == pytest.approx(printed.mean, abs=3 * printed.sd)


# k-FED, MUFC and k-means beside the FCAC paper's columns.


@pytest.mark.needs("data")
@pytest.mark.parametrize("split", ["iid", "niid"])
@pytest.mark.parametrize("name", ["pendigits", "optdigits"])
@pytest.mark.parametrize(
    ("algorithm", "keys"), [("kfed", (("average", "unweighted"),)), ("mufc", (("local", "seeds"),))]
)
def test_one_shot_algorithms_are_within_three_deviations_of_the_published_scores(
    data_folder: Path, name: str, split: Split, algorithm: str, keys: tuple[tuple[str, str], ...]
) -> None:
    found = mean(algorithm, Setting(algorithm, name, split, 50, keys, find(data_folder, name)), 2)
    printed = published.COMPARED[algorithm][split][name]
    for score in SCORES:
        assert found[score] == pytest.approx(printed[score].mean, abs=3 * printed[score].sd), score


@pytest.mark.needs("data")
@pytest.mark.parametrize("split", ["iid", "niid", "kp"])
def test_kmeans_by_sums_is_lloyds_algorithm_and_the_plain_mean_is_worse(
    data_folder: Path, split: Split
) -> None:
    path = find(data_folder, "s_set1")
    found = {}
    for average in ("sums", "weighted", "unweighted"):
        keys = (("average", average), ("start", "kfed"))
        found[average] = mean("kmeans", Setting("kmeans", "s_set1", split, 20, keys, path), 1)
    # In the unit of the data, which reach 1e6.
    assert found["sums"]["difference"] < 1e-9 * 1e6
    if split == "kp":
        assert found["sums"]["ari"] == pytest.approx(0.995, abs=0.003)
        assert found["unweighted"]["ari"] < found["weighted"]["ari"] - 0.1 < found["sums"]["ari"]


def test_clients_of_few_classes_hold_each_row_once_and_few_classes_each() -> None:
    labels = np.repeat(np.arange(9), 30)
    parts = deal_few_classes(labels, 7, 3)
    assert sorted(np.concatenate(parts)) == list(range(270))
    assert max(len(np.unique(labels[part])) for part in parts) <= 4
    assert len(deal_few_classes(labels, 1, 0)[0]) == 270


# Gaussian mixtures beside scikit-learn's.


@pytest.mark.parametrize("form", COVARIANCE_TYPES)
@pytest.mark.parametrize("split", ["iid", "niid", "kp"])
def test_sums_are_scikit_learns_mixture_from_one_start_whatever_the_split(
    form: str, split: Split
) -> None:
    dataset = blobs(1)
    clients = clients_of(Setting("gmm", "blobs", split, 5), dataset, 1)
    clients.append(dataset.rows[:1])
    start = GMM.start({"clusters": 4, "covariance": form}, 2, bounding_box(clients, 1))
    for rounds_max in (1, 5, 30):
        found = run_rounds(GMM, start, clients, rounds_max=rounds_max).params
        theirs = by_scikit_learn(start, np.concatenate(clients), rounds_max)
        assert np.abs(mixing_weights(found["weight"]) - theirs.weights).max() < 1e-6
        assert np.abs(found["centre"] - theirs.means).max() < 1e-6
        assert np.abs(matrices(form, found["spread"], 4, 2) - theirs.covariances).max() < 1e-6


def test_naive_averages_lose_components_that_clients_lack() -> None:
    found = {}
    for average, local in (("sums", "-"), ("unweighted", "fit"), ("weighted", "fit")):
        keys = (("average", average), ("covariance", "full"), ("local", local))
        found[average] = mean("gmm", Setting("gmm", "blobs", "kp", 5, keys), 2)["ari"]
    assert found["sums"] > 0.98
    assert found["unweighted"] < found["sums"] - 0.05


def test_kfed_prototypes_are_a_start_for_mixtures() -> None:
    dataset = blobs(2)
    clients = clients_of(Setting("gmm", "blobs", "kp", 5), dataset, 2)
    begin = kfed_hint(4, clients, bounding_box(clients), local=3)
    assert begin.points is not None
    assert matched_distance(np.array([[0.0, 0], [5, 0], [0, 5], [5, 5]]), begin.points) < 1.0
