"""Features brought to one scale by the estimators themselves."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shoal
from shoal.errors import InvalidState, SettingsError
from shoal.estimators.scaling import SCALE_ROWS
from shoal.protocol.codec import pack, unpack

UNITS = np.array([0.001, 1000.0])


def blobs(n: int = 1500) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Two clusters that only the first feature separates, which spreads a millionth as wide as the
    other."""
    generator = np.random.default_rng(3)
    blob = generator.integers(0, 2, n)
    return np.column_stack(
        [blob * 8 + generator.normal(size=n), generator.normal(size=n)]
    ) * UNITS, blob


@pytest.mark.parametrize(
    "model",
    [
        shoal.ClusterTree(scale="robust"),
        shoal.ClusterTree(scale="bounds"),
        shoal.FederatedKMeans(2, scale="bounds"),
        shoal.FederatedGMM(2, covariance="diag", scale="bounds"),
        shoal.KFED(2, scale="bounds"),
    ],
    ids=lambda one: f"{type(one).__name__} {one.scale}",
)
def test_a_narrow_feature_counts_as_much_as_a_wide_one(model: Any) -> None:
    rows, blob = blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(rows)
    assert len(np.unique(model.labels_)) == 2
    assert (model.labels_ == model.labels_[0])[blob == blob[0]].mean() > 0.99
    np.testing.assert_allclose(np.sort(model.cluster_centers_[:, 0]), [0.0, 0.008], atol=5e-4)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    if hasattr(model, "covariances_"):
        assert np.sqrt(model.covariances_[:, 0, 0]) == pytest.approx(0.001, rel=0.1)


@pytest.mark.parametrize("sizes", [[1] * 40, [300, 300], [SCALE_ROWS, 3], [1300]], ids=str)
def test_the_first_rows_decide_however_they_come(sizes: list[int]) -> None:
    rows, _ = blobs(1400)
    known = shoal.ClusterTree(scale="robust", clients=2).partial_fit(rows[:SCALE_ROWS])
    model = shoal.ClusterTree(scale="robust", clients=2)
    first = 0
    for size in sizes:
        model.partial_fit(rows[first : first + size])
        first += size
        if first < SCALE_ROWS:
            assert (model.labels_ == -1).all()
            assert model.n_clusters_ == 0
            # Held rows are a part of the state, by pickle and without.
            restored = shoal.ClusterTree(scale="robust", clients=2).restore(
                unpack(pack(model.state()))
            )
            assert (
                pack(restored.state())
                == pack(model.state())
                == pack(pickle.loads(pickle.dumps(model)).state())
            )
    if first < SCALE_ROWS:
        model.partial_fit(rows[first:SCALE_ROWS])
    elif first > SCALE_ROWS:
        known.partial_fit(rows[SCALE_ROWS:first])
    if len(sizes) < 3 or first < SCALE_ROWS:
        assert known._federation.scale.origin.tolist() == model._federation.scale.origin.tolist()
    if sizes[0] >= SCALE_ROWS or first < SCALE_ROWS:
        assert pack(model.state()) == pack(known.state())


def test_bounds_that_are_given_need_no_rows_and_a_constant_feature_keeps_its_unit() -> None:
    rows, _ = blobs()
    model = shoal.FCAC(scale="bounds", bounds=(-0.01 * np.ones(2), [0.02, 5000.0])).partial_fit(
        rows[:100]
    )
    assert (model.labels_ >= 0).all()
    assert pack(
        shoal.FCAC(scale="bounds", bounds=model.bounds).restore(unpack(pack(model.state()))).state()
    ) == pack(model.state())
    still = shoal.FederatedKMeans(2, scale="robust").fit(
        np.column_stack([rows, np.full(len(rows), 7.0)])
    )
    np.testing.assert_array_equal(still.cluster_centers_[:, 2], [7.0, 7.0])


def test_what_is_no_scale_is_refused() -> None:
    rows, _ = blobs(60)
    for wrong in (
        shoal.ClusterTree(scale="unit"),
        shoal.FCAC(scale="bounds", bounds=(1.0, 0.0)),
        shoal.FCAC(scale="bounds", bounds=(0.0, np.inf)),
        shoal.FederatedKMeans(2, scale="max"),
        shoal.FederatedKMeans(2, scale="bounds", bounds=(0.0, 0.0)),
    ):
        with pytest.raises(SettingsError):
            wrong.fit(rows)


def test_a_damaged_scale_is_refused() -> None:
    rows, _ = blobs(600)
    for learnt, key, value in (
        (600, "scale", {"origin": np.zeros(2), "unit": np.zeros(2)}),
        (600, "federation", None),
        (600, "waiting", rows[:2]),
        (20, "waiting_names", ["a"]),
    ):
        state = unpack(pack(shoal.ClusterTree(scale="robust").partial_fit(rows[:learnt]).state()))
        state["federation"][key] = value
        with pytest.raises(InvalidState):
            shoal.ClusterTree(scale="robust").restore(state)
