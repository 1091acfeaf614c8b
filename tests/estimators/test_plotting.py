"""Pictures of what an estimator has learnt."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from numpy.typing import NDArray

import shoal
from shoal import FCAC, ClusterTree, DensityTree
from shoal.errors import SettingsError

mpl.use("agg")


def three_blobs(rows: int = 4500, d: int = 3) -> NDArray[np.float64]:
    """Three clusters apart in the last two features; the first is noise."""
    rng = np.random.default_rng(5)
    centres = np.array([[0.2, 0.2], [0.8, 0.3], [0.5, 0.8]])
    apart = rng.normal(centres[np.arange(rows) % 3], 0.03)
    return np.column_stack([rng.uniform(0.0, 1.0, (rows, d - 2)), apart])


@pytest.fixture(
    scope="module", params=[FCAC(), ClusterTree(), DensityTree(epsilon=None, window_readings=100)]
)
def model(request: pytest.FixtureRequest) -> Any:
    return request.param.fit(three_blobs())


def test_each_cluster_is_drawn_over_the_features_that_separate_them(model: Any) -> None:
    ax = model.plot()
    assert {ax.get_xlabel(), ax.get_ylabel()} == {"feature 1", "feature 2"}
    drawn = sum(len(marks.get_offsets()) for marks in ax.collections)
    assert drawn >= model.n_clusters_ > 0
    assert len(ax.get_legend().get_texts()) == min(10, len(model.cluster_centers_))


def test_it_draws_chosen_features_on_given_axes(model: Any) -> None:
    given = mpl.figure.Figure().subplots()
    assert model.plot(features=(0, -1), ax=given) is given
    assert (given.get_xlabel(), given.get_ylabel()) == ("feature 0", "feature 2")


@pytest.mark.parametrize("features", [(0,), (0, 9), ("warm", "damp"), 3])
def test_features_that_are_not_there_are_refused_by_name(model: Any, features: Any) -> None:
    with pytest.raises(SettingsError, match="feature 0, feature 1, feature 2"):
        model.plot(features=features)


def test_density_tree_is_drawn_in_the_units_of_the_rows() -> None:
    rows = 100 + 50 * three_blobs()
    model = DensityTree(epsilon=None, window_readings=100, low=100, high=150).fit(rows)
    ax = model.plot()
    points = np.concatenate(
        [np.asarray(marks.get_offsets()) for marks in ax.collections if len(marks.get_offsets())]
    )
    assert points.min() >= 100
    assert points.max() <= 150
    assert points.max() > 101


def test_a_tree_that_has_counted_too_little_is_drawn_too() -> None:
    ax = DensityTree(epsilon=None, window_readings=100).fit(three_blobs(200)).plot()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("feature 0", "feature 1")


def test_one_feature_is_a_line_and_nothing_learnt_is_an_error() -> None:
    ax = ClusterTree().fit(three_blobs(d=3)[:, 1:2]).plot()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("feature 0", "")
    with pytest.raises(AttributeError, match="has learnt nothing yet"):
        ClusterTree().plot()


@pytest.mark.parametrize(
    "model",
    [
        shoal.FederatedKMeans(3, scale="bounds"),
        shoal.FederatedFCM(3),
        shoal.FederatedGMM(3),
        shoal.FederatedSpectral(3, landmarks=20),
        shoal.FederatedDBSCAN(),
        shoal.KFED(3),
        shoal.MUFC(3),
    ],
    ids=lambda one: type(one).__name__,
)
def test_estimators_in_rounds_are_drawn_in_the_units_of_the_rows(model: Any) -> None:
    with pytest.raises(shoal.errors.ShoalError, match="call fit before plot"):
        model.plot()
    rows = 100 + 50 * three_blobs(900)
    ax = model.fit(rows).plot(features=(1, 2))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("feature 1", "feature 2")
    points = np.concatenate(
        [np.asarray(marks.get_offsets()) for marks in ax.collections if len(marks.get_offsets())]
    )
    assert len(points) >= 3
    assert 100 < points.min() < points.max() < 150


def test_rules_are_drawn_over_their_inputs_and_the_target() -> None:
    rows = three_blobs(300)
    ax = shoal.FederatedTSK(3).fit(rows[:, :2], rows[:, 2]).plot(features=("feature 1", "target"))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("feature 1", "target")
