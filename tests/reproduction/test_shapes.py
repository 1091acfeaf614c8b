"""Moons and circles: the bands of `shoal reproduce dbscan` and `shoal reproduce spectral`, with one
trial each."""

from __future__ import annotations

import numpy as np
import pytest

from reproduction.datasets import Split, deal, deal_by_class, deal_sectors
from reproduction.experiment import Figure, Setting, parts_of
from reproduction.experiments import trials_experiment
from reproduction.experiments.shapes import CLIENTS, SHAPES, SPLITS, differing, shape
from shoal.errors import InvalidData, SettingsError


def one_trial(experiment: str, name: str, split: Split, variant: int = 0) -> dict[str, float]:
    found = trials_experiment(experiment)
    setting = Setting(experiment, name, split, CLIENTS, found.variants[variant])
    measured = found.run(setting, 0)
    for measure, required in found.published(setting).items():
        assert found.agrees(setting, measure, Figure(measured[measure]), required), (
            measure,
            measured[measure],
        )
    return measured


@pytest.mark.parametrize("name", SHAPES)
def test_grid_dbscan_is_within_its_bands_on_every_shape(name: str) -> None:
    measured = one_trial("dbscan", name, "sector")
    assert measured["clusters"] == 2
    if name == "circles-0.1":
        assert measured["ari"] > measured["pooled_dbscan"]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("variant", [0, 1], ids=["given", "eigengap"])
@pytest.mark.parametrize("name", ["moons-0.1", "circles-0.05"])
def test_landmark_spectral_clustering_is_within_its_bands_for_every_split(
    name: str, variant: int, split: Split
) -> None:
    assert one_trial("spectral", name, split, variant)["clusters"] == 2


@pytest.mark.parametrize("split", ["iid", "label"])
def test_averages_of_eigenvectors_fail_where_sums_on_landmarks_do_not(split: Split) -> None:
    measured = one_trial("spectral", "circles-0.05", split, 2)
    assert measured["ari"] < 0.05
    assert measured["difference"] > 5000


def test_circles_with_much_noise_are_told_apart_by_dbscan_and_not_by_spectral() -> None:
    assert one_trial("spectral", "circles-0.1", "iid", 0)["ari"] < 0.1
    assert one_trial("dbscan", "circles-0.1", "iid")["ari"] > 0.95


def test_a_figure_outside_its_band_does_not_agree() -> None:
    experiment = trials_experiment("spectral")
    setting = Setting("spectral", "moons-0.1", "iid", CLIENTS, experiment.variants[0])
    required = experiment.published(setting)
    assert not experiment.agrees(setting, "ari", Figure(0.97), required["ari"])
    assert not experiment.agrees(setting, "difference", Figure(1.0), required["difference"])


def test_splits_by_class_and_by_sectors_deal_every_row_once() -> None:
    data = shape("moons-0.1", 0, 1000)
    for split in SPLITS:
        parts = parts_of(Setting("spectral", "moons-0.1", split, 4), data, 0)
        assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    by_class = deal_by_class(data.labels, 4, 0)
    assert [len(np.unique(data.labels[part])) for part in by_class] == [1] * 4
    sectors = deal_sectors(data.rows, 4)
    assert [len(part) for part in sectors] == [250] * 4
    with pytest.raises(InvalidData, match="one feature"):
        deal_sectors(data.rows[:, :1], 4)
    with pytest.raises(SettingsError, match="sectors"):
        deal(data.labels, 4, "sector", 0)


def test_rows_that_differ_are_counted_whatever_the_numbers_of_the_clusters_are() -> None:
    labels = np.array([0, 0, 1, 1, 1])
    assert differing(labels, 1 - labels, 2) == 0
    assert differing(labels, np.array([1, 1, 0, 0, 1]), 2) == 1
