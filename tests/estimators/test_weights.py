"""Weights of rows: what a weight of k gives, and why some estimators take none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import InvalidData, SettingsError

GENERATOR = np.random.default_rng(8)
ROWS = GENERATOR.random((3, 4))[GENERATOR.integers(3, size=90)] + GENERATOR.normal(0, 0.1, (90, 4))
TIMES = GENERATOR.integers(0, 4, size=90)
START = ROWS[[0, 30, 60]]
WEIGHTED = [
    shoal.FederatedKMeans(3, init=START),
    shoal.FederatedFCM(3, init=START),
    shoal.FederatedFCM(3, init=START, fuzzifier=1.7),
    *(
        shoal.FederatedGMM(3, init=START, covariance=kind)
        for kind in ("full", "tied", "diag", "spherical")
    ),
]


@pytest.mark.parametrize("model", WEIGHTED, ids=repr)
@pytest.mark.parametrize("features", [2, 4])
def test_a_weight_of_k_gives_what_k_equal_rows_give(model: Any, features: int) -> None:
    rows = ROWS[:, :features]
    # Some rounds: that either ends a round earlier makes no difference.
    model.set_params(init=START[:, :features], max_rounds=6, tol=0.0, scale=None)
    repeated = model.fit(np.repeat(rows, TIMES, axis=0)).params_
    weighted = model.fit(rows, sample_weight=TIMES).params_
    for name, values in repeated.items():
        assert weighted[name] == pytest.approx(values, rel=1e-6, abs=1e-9), name
    assert model.labels_.shape == (90,)

    names = np.where(np.arange(90) % 3, "north", "south")
    by_client = model.fit(rows, clients=names, sample_weight=TIMES).params_
    tables = [rows[names == name] for name in ("north", "south")]
    weights = [TIMES[names == name] for name in ("north", "south")]
    listed = model.fit(tables, sample_weight=weights).params_
    for name, values in weighted.items():
        assert by_client[name] == pytest.approx(values, rel=1e-6, abs=1e-9), name
        assert listed[name] == pytest.approx(values, rel=1e-6, abs=1e-9), name


def test_a_weight_between_whole_numbers_moves_a_centre_by_its_share() -> None:
    model = shoal.FederatedKMeans(1, init=[[0.0]]).fit([[0.0], [1.0]], sample_weight=[0.5, 1.5])
    assert model.cluster_centers_.tolist() == [[0.75]]
    assert model.params_["weight"].tolist() == [2.0]


def test_a_row_that_counts_0_times_decides_no_scale_and_no_start_but_has_a_label() -> None:
    rows = np.append(ROWS, [[50.0] * 4], axis=0)
    model = shoal.FederatedKMeans(3, scale="bounds")
    without = model.fit(ROWS).cluster_centers_
    with_it = model.fit(rows, sample_weight=np.append(np.ones(90), 0.0))
    assert with_it.cluster_centers_ == pytest.approx(without)
    assert len(with_it.labels_) == 91


@pytest.mark.parametrize(
    ("weights", "fault"),
    [
        (np.ones(89), "must be"),
        (np.ones((90, 1)), "must be"),
        (np.append(np.ones(89), -1.0), "from 0"),
        (np.append(np.ones(89), np.nan), "from 0"),
        (np.zeros(90), "nothing to learn"),
    ],
)
def test_weights_that_are_none_are_refused(weights: Any, fault: str) -> None:
    with pytest.raises(InvalidData, match=fault):
        shoal.FederatedKMeans(3).fit(ROWS, sample_weight=weights)
    with pytest.raises(InvalidData, match="a client"):
        shoal.FederatedKMeans(3).fit([ROWS, ROWS[:5]], sample_weight=[np.ones(90), np.ones(4)])


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (shoal.ClusterTree(), "successive rows"),
        (shoal.FCAC(), "one by one"),
        (shoal.DensityTree(), "its noise hides"),
        (shoal.KFED(3), "seeds"),
        (shoal.MUFC(3), "seeds"),
        (shoal.FederatedDBSCAN(), "cells of a grid"),
        (shoal.FederatedSpectral(3), "landmarks"),
        (shoal.FederatedKMeans(3, average="weighted"), "average"),
        (shoal.FederatedTSK(3), "target"),
        (shoal.States(), "time"),
    ],
    ids=repr,
)
def test_where_there_are_none_the_reason_is_given(model: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=f"sample_weight is not taken.*{why}"):
        model.fit(ROWS, np.ones(90), sample_weight=np.ones(90))
    if hasattr(model, "partial_fit"):
        with pytest.raises(SettingsError, match="sample_weight is not taken"):
            model.partial_fit(ROWS, sample_weight=np.ones(90))
    with pytest.raises(TypeError, match="weighs"):
        model.fit(ROWS, np.ones(90), weighs=np.ones(90))
