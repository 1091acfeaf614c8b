"""`transform` of estimators that have centres: distances of rows to the centres of clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from shoal.estimators.base import TransformerMixin
from shoal.kernels.arrays import Floats, Ints, Objects


class CentreDistances(TransformerMixin):  # type: ignore[misc]  # scikit-learn has no types
    """Rows as their distances to the centres of clusters, for the steps of a pipeline that follow.

    A subclass has the two methods below that raise `NotImplementedError`.
    """

    def transform(self, X: ArrayLike) -> Floats:
        """X (n, d) -> (n, c) Euclidean distance of each row to each centre, in the order of
        `cluster_centers_`.

        They are in the units of the rows, and where the estimator brings features to one scale, on
        that scale. A missing value (NaN, where the estimator takes it) is left out, and the other
        squares count for it as in `nan_euclidean_distances` of scikit-learn; a row without any
        value has NaN. Raises `NotFittedError` before anything was learnt, and `InvalidData`.
        """
        return self._distances(X)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Objects:
        """(c,) names of the columns that `transform` returns: the estimator's in lower case and
        what `predict` calls the cluster, such as `fcac0`.

        input_features is ignored. Raises `NotFittedError` before anything was learnt.
        """
        name = type(self).__name__.lower()
        return np.array([f"{name}{label}" for label in self._cluster_labels()], dtype=object)

    def _distances(self, X: ArrayLike) -> Floats:
        raise NotImplementedError

    def _cluster_labels(self) -> Ints:
        """(c,) what `predict` calls each cluster, in the order of `cluster_centers_`."""
        raise NotImplementedError


def distances_between(rows: Floats, centres: Floats, circular: Sequence[int] = ()) -> Floats:
    """rows (n, d), NaN where there is no value, centres (c, d) -> (n, c) Euclidean distances.

    Features at the positions `circular` have a period of 1.
    """
    distances = np.empty((len(rows), len(centres)))
    width = centres.shape[1] if centres.ndim == 2 else 0
    missing = np.isnan(rows)
    there = width - missing.sum(axis=1)
    # The other features stand for those without a value; 0 / 0 is the NaN of a row without any.
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(there > 0, width / there, np.nan)
    for place, centre in enumerate(centres):
        gaps = np.abs(rows - centre)
        for feature in circular:
            gaps[:, feature] = np.minimum(gaps[:, feature], 1.0 - gaps[:, feature])
        gaps[missing] = 0.0
        distances[:, place] = np.sqrt(np.einsum("ij,ij->i", gaps, gaps) * share)
    return distances
