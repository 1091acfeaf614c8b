"""Estimators whose labels are identities: clusters that keep their number while the stream goes on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.view import NO_CLUSTER
from shoal.estimators.base import Table
from shoal.estimators.streaming import StreamingEstimator


class IdentityEstimator(StreamingEstimator):
    """A streaming estimator of an algorithm whose snapshot gives each cluster an identity."""

    @property
    def n_clusters_(self) -> int:
        """Number of clusters shown, active or not, once a row has been learnt."""
        self._require_rows("n_clusters_")
        return len(self._identities())

    @property
    def identities_(self) -> NDArray[np.int64]:
        """(c,) identities of the clusters shown, in the order of `cluster_centers_`, once a row has been learnt."""
        self._require_rows("identities_")
        return self._identities()

    @property
    def active_(self) -> NDArray[np.int64]:
        """Identities of the clusters to which readings fall at present, once a row has been learnt."""
        self._require_rows("active_")
        return self._identities()[self._view().active]

    def _predict(self, rows: Table) -> NDArray[np.int64]:
        """The cluster of each row as its identity instead of its place in the snapshot."""
        number = super()._predict(rows)
        if not self._has_rows():
            return number
        return np.append(self._identities(), NO_CLUSTER)[number]  # number -1 is the last entry

    def _identities(self) -> NDArray[np.int64]:
        identity = self._view().identity
        assert identity is not None
        return identity
