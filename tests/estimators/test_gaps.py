"""Estimators take NaN for a missing value, as scikit-learn's do whose tag `allow_nan` is set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import get_tags

from shoal import FCAC, ClusterTree, DensityTree
from shoal.protocol.codec import pack, unpack

CENTRES = np.array([[0.2, 0.2, 0.3], [0.8, 0.3, 0.7], [0.4, 0.8, 0.5]])


def rows_with_gaps(n: int = 6000, share: float = 0.2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whole rows, the same with missing values, and the cluster of each."""
    generator = np.random.default_rng(5)
    of = generator.integers(3, size=n)
    rows = CENTRES[of] + generator.normal(0, 0.02, (n, 3))
    return rows, np.where(generator.random(rows.shape) < share, np.nan, rows), of


MODELS: dict[str, Any] = {
    "density_tree": lambda: DensityTree(epsilon=None, clients=3),
    "cluster_tree": lambda: ClusterTree(clients=3),
    "cluster_tree, scaled": lambda: ClusterTree(clients=3, scale="robust"),
    "fcac": lambda: FCAC(clients=3),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_lack_values_are_learnt_and_labelled_by_those_that_they_have(name: str) -> None:
    # A leaf of density_tree that was cut lately knows little yet of features that it was not cut
    # on.
    whole, lacking, of = rows_with_gaps(12_000)
    model = MODELS[name]().fit(lacking)
    assert get_tags(model).input_tags.allow_nan
    # FCAC has single nodes beside its clusters.
    least = 0.8 if name == "fcac" else 0.97
    assert adjusted_rand_score(of, model.predict(whole)) > least
    one_is_missing = np.isnan(lacking).sum(axis=1) == 1
    assert adjusted_rand_score(of[one_is_missing], model.labels_[one_is_missing]) > least - 0.07
    assert np.isfinite(model.cluster_centers_).all()


@pytest.mark.parametrize("name", MODELS)
def test_rows_without_any_value_have_the_label_minus_one_and_change_nothing_else(name: str) -> None:
    _, lacking, _ = rows_with_gaps(2000)
    lacking[:10] = np.nan
    model = MODELS[name]().fit(lacking)
    assert (model.labels_[:10] == -1).all()
    assert MODELS[name]().partial_fit(np.full((4, 3), np.nan)).labels_.tolist() == [-1] * 4


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_goes_on_as_the_one_that_was_saved(name: str) -> None:
    _, lacking, _ = rows_with_gaps(3000)
    model = MODELS[name]().partial_fit(lacking[:1501])
    other = MODELS[name]().restore(unpack(pack(model.state())))
    for learner in (model, other):
        learner.partial_fit(lacking[1501:])
    assert pack(model.state()) == pack(other.state())


@pytest.mark.parametrize("name", ["density_tree", "cluster_tree", "fcac"])
def test_rows_without_gaps_are_learnt_as_before_whatever_others_lack(name: str) -> None:
    whole, _, _ = rows_with_gaps(1000)
    one = MODELS[name]().partial_fit(whole)
    other = MODELS[name]()
    for part in np.split(whole, 4):
        other.partial_fit(part)
    if name == "density_tree":
        assert pack(one.state()["federation"]["server"]) == pack(
            other.state()["federation"]["server"]
        )
    assert np.isfinite(one.cluster_centers_).all()
