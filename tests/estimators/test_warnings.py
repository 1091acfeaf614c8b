"""What estimators say of rows that they cannot cluster as they are: clipped values, features of
other scales, names."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import shoal
from shoal.errors import InvalidData

RNG = np.random.default_rng(7)
ROWS = RNG.uniform(100, 900, (400, 2))


def test_values_beyond_the_bounds_are_warned_of_once_by_name_and_share() -> None:
    table = pd.DataFrame(ROWS, columns=["lux", "ppm"])
    model = shoal.DensityTree(low=[0.0, 100.0], high=[1.0, 900.0], epsilon=None)
    with pytest.warns(
        UserWarning, match=r"clipped to them, and look alike: lux \(100%\)\. Give wider bounds"
    ) as found:
        model.fit(table)
    assert len(found) == 1
    assert not any(f"{value:.1f}" in str(found[0].message) for value in ROWS[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(table)
        shoal.DensityTree(low=0.0, high=1000.0, epsilon=None).fit(table)


@pytest.mark.parametrize("share", [0.005, 0.05])
def test_a_few_clipped_values_are_usual(share: float) -> None:
    rows = ROWS.copy()
    rows[: int(share * len(rows)), 1] = 1e6
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        shoal.DensityTree(low=0.0, high=1000.0, epsilon=None).fit(rows)
    assert bool(found) == (share > 0.01)


@pytest.mark.parametrize(
    "estimator",
    [shoal.ClusterTree(), shoal.FCAC(), shoal.FederatedKMeans(2), shoal.FederatedGMM(2)],
    ids=lambda one: type(one).__name__,
)
def test_features_of_very_different_scales_are_warned_of(estimator: shoal.ClusterTree) -> None:
    with pytest.warns(
        UserWarning, match="feature 1 spreads [0-9]+ times as wide as feature 0: distances decide"
    ):
        estimator.fit(ROWS * [0.001, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator.fit(ROWS * [0.1, 1.0])
        # a constant decides nothing
        estimator.fit(np.column_stack([ROWS[:, 0], np.full(len(ROWS), 3.0)]))


def test_more_clusters_than_the_memory_is_for_are_warned_of_with_what_it_takes() -> None:
    places = np.stack(np.meshgrid(np.arange(8.0), np.arange(5.0)), axis=-1).reshape(-1, 2)
    rows = places[RNG.integers(40, size=1500)] + RNG.normal(0.0, 0.07, (1500, 2))
    small = shoal.ClusterTree(growth_max=1.0, mass_max=400.0, cluster_mass_max=400.0, cells_max=400)
    with pytest.warns(
        UserWarning, match="tells [0-9]+ clusters apart: give growth_max=[23] or more"
    ):
        small.fit(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shoal.ClusterTree().fit(rows)


@pytest.mark.parametrize(
    "estimator",
    [shoal.FederatedKMeans(2), shoal.FederatedDBSCAN(), shoal.FederatedSpectral(2), shoal.KFED(2)],
    ids=lambda one: type(one).__name__,
)
def test_estimators_in_rounds_take_columns_in_any_order(
    estimator: shoal.FederatedKMeans,
) -> None:
    table = pd.DataFrame(ROWS, columns=["a", "b"])
    estimator.fit([table[:200], table[200:]])
    assert estimator.feature_names_in_.tolist() == ["a", "b"]
    labels = estimator.predict(table)
    np.testing.assert_array_equal(estimator.predict(ROWS), labels)
    np.testing.assert_array_equal(estimator.predict(table[["b", "a"]]), labels)
    with pytest.raises(InvalidData, match="features a, c were given, a, b were learnt"):
        estimator.predict(table.rename(columns={"b": "c"}))
    estimator.fit([table[:200], table[200:][["b", "a"]]])
    np.testing.assert_array_equal(estimator.predict(table), labels)
    estimator.fit(ROWS)
    assert not hasattr(estimator, "feature_names_in_")
