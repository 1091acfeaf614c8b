"""Laws of all estimators: before `fit`, columns by name, distances to centres."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import exceptions
from sklearn.metrics.pairwise import nan_euclidean_distances
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import shoal
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats

WITH_CENTRES: list[Any] = [
    shoal.FCAC(),
    shoal.FCAC(scale="robust"),
    shoal.ClusterTree(),
    shoal.DensityTree(low=-5.0, high=20.0, epsilon=None),
    shoal.FederatedKMeans(3),
    shoal.FederatedKMeans(3, scale="robust"),
    shoal.FederatedFCM(3),
    shoal.FederatedGMM(3),
    shoal.FederatedDBSCAN(),
    shoal.FederatedSpectral(3, landmarks=20),
    shoal.KFED(3),
    shoal.MUFC(3),
]
WITHOUT: list[Any] = [
    shoal.States(),
    shoal.FederatedTSK(3),
]
PLACES = np.array([[0.0, 0.0, 1.0], [8.0, 0.0, 9.0], [0.0, 8.0, 5.0]])
NAMES = ["warm", "dry", "windy"]


def _table(n: int = 1_200) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    rows = np.repeat(PLACES, n // len(PLACES), axis=0)
    rows = generator.permutation(rows + generator.normal(0.0, 0.5, rows.shape))
    return pd.DataFrame(rows, columns=NAMES)


def _fitted(estimator: Any) -> Any:
    table = _table()
    copy = type(estimator)(**estimator.get_params())
    if isinstance(copy, shoal.FederatedTSK):
        return copy.fit(table, table.sum(axis=1))
    return copy.fit(table)


def test_every_estimator_is_here() -> None:
    estimators = {
        getattr(shoal, name) for name in shoal.__all__ if hasattr(getattr(shoal, name), "fit")
    }
    assert estimators == {type(estimator) for estimator in [*WITH_CENTRES, *WITHOUT]}


@pytest.mark.parametrize("estimator", [*WITH_CENTRES, *WITHOUT], ids=repr)
def test_methods_before_fit_raise_and_say_what_to_call(estimator: Any) -> None:
    copy = type(estimator)(**estimator.get_params())
    for method in ("predict", "transform", "get_feature_names_out", "plot"):
        if not hasattr(type(copy), method):
            continue
        arguments = [_table(30)] if method in ("predict", "transform") else []
        with pytest.raises(exceptions.NotFittedError, match=f"call fit.* before {method}"):
            getattr(copy, method)(*arguments)


@pytest.mark.parametrize("estimator", [*WITH_CENTRES, *WITHOUT], ids=repr)
def test_columns_are_put_in_order_by_name(estimator: Any) -> None:
    table = _table()
    model = _fitted(estimator)
    assert model.feature_names_in_.tolist() == NAMES
    expected = model.predict(table)
    # A rotation and not a swap: applied the wrong way round, it is another order.
    for order in (["dry", "windy", "warm"], ["windy", "warm", "dry"]):
        np.testing.assert_array_equal(model.predict(table[order]), expected)
    np.testing.assert_array_equal(model.predict(table.to_numpy()), expected)
    for frame, fault in (
        (table[["dry", "warm"]], "windy missing"),
        (table.assign(wet=1.0), "wet not learnt"),
        (table.rename(columns={"dry": "wet"}), "dry missing, wet not learnt"),
        (table[["warm", "dry", "windy", "dry"]], "a name stands twice"),
    ):
        with pytest.raises(InvalidData, match=f"warm, dry, windy were learnt: {fault}$"):
            model.predict(frame)


@pytest.mark.parametrize("estimator", WITH_CENTRES, ids=repr)
def test_transform_gives_distances_to_the_centres(estimator: Any) -> None:
    table = _table()
    model = _fitted(estimator)
    distances = model.transform(table)
    assert distances.shape == (len(table), len(model.cluster_centers_))
    names = model.get_feature_names_out().tolist()
    prefix = type(model).__name__.lower()
    labels = np.array([int(name.removeprefix(prefix)) for name in names])
    if estimator.get_params().get("scale") is None and not isinstance(model, shoal.DensityTree):
        expected = nan_euclidean_distances(table, model.cluster_centers_)
        np.testing.assert_allclose(distances, expected, rtol=1e-6, atol=1e-6)
    # Three blobs far apart: the nearest centre is that of the cluster, whatever the scale; but FCAC
    # gives a row to its nearest node, and has clusters of a single node beside those of many.
    labelled = model.predict(table)
    inside = labelled >= 0
    nearest = labels[distances.argmin(axis=1)]
    assert (nearest == labelled)[inside].mean() > 0.85
    np.testing.assert_array_equal(model.transform(table[["dry", "windy", "warm"]]), distances)
    framed = model.set_output(transform="pandas").transform(table)
    assert framed.columns.tolist() == names


def test_transform_leaves_missing_values_out() -> None:
    model = shoal.FCAC().fit(_table())
    rows: Floats = _table().to_numpy()[:4].copy()
    rows[0, 1] = np.nan
    rows[1] = np.nan
    distances = model.transform(rows)
    np.testing.assert_allclose(distances, nan_euclidean_distances(rows, model.cluster_centers_))
    assert np.isnan(distances[1]).all()


def test_distances_of_a_circular_feature_go_the_short_way_round() -> None:
    generator = np.random.default_rng(0)
    rows = np.column_stack([generator.normal(10.0, 5.0, 6_000), generator.normal(0.5, 0.02, 6_000)])
    model = shoal.DensityTree(low=[0.0, 0.0], high=[360.0, 1.0], period=[360.0, 0.0], epsilon=None)
    model.fit(rows)
    centre = model.cluster_centers_[0]
    before, after = model.transform(
        [[(centre[0] - 30.0) % 360.0, centre[1]], [(centre[0] + 30.0) % 360.0, centre[1]]]
    )
    assert before[0] == pytest.approx(30.0 / 360.0, abs=1e-3)
    assert after[0] == pytest.approx(30.0 / 360.0, abs=1e-3)


def test_distances_are_a_step_of_a_pipeline() -> None:
    pipeline = make_pipeline(StandardScaler(), shoal.FederatedKMeans(3), shoal.FederatedKMeans(2))
    assert len(pipeline.fit(_table()).predict(_table())) == len(_table())
    assert pipeline[:-1].get_feature_names_out().tolist() == [
        "federatedkmeans0",
        "federatedkmeans1",
        "federatedkmeans2",
    ]


def test_without_scikit_learn_the_error_has_the_same_bases() -> None:
    program = """
import sys
sys.modules["sklearn"] = None  # as if it were not installed
import shoal
assert not any(name.startswith("sklearn.") for name in sys.modules)
assert issubclass(shoal.NotFittedError, ValueError)
assert issubclass(shoal.NotFittedError, AttributeError)
model = shoal.KFED(1)
try:
    model.predict([[0.0]])
except shoal.NotFittedError as error:
    print(error)
print(model.fit_transform([[0.0], [2.0]]).tolist(), model.get_feature_names_out().tolist())
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == [
        "this KFED has learnt nothing yet; call fit before predict",
        "[[1.0], [1.0]] ['kfed0']",
    ]
