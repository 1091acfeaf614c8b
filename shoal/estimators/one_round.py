"""Clustering in a single round, from the rows of several clients, as scikit-learn estimators."""

from __future__ import annotations

from typing import Any

from shoal.estimators.rounds import RoundsEstimator

__all__ = ["KFED", "MUFC"]


class KFED(RoundsEstimator):
    """k-FED: clustering in one round.

    Parameters
    ----------
    n_clusters : int, default=8
    local_clusters : int, default=0
        Number of clusters that each client looks for; 0: as many as `n_clusters`.
    average : {"unweighted", "weighted"}, default="unweighted"
        Whether the server weights centres by their rows.
    pick : {"farthest", "seeded"}, default="farthest"
        How the server starts: from the first client's centres and then the farthest ones, or by k-means++.
    random_state : int, default=0
    scale : {"bounds", "robust"} or None, default=None
        None: rows as they are, so that the feature with the widest spread decides distances. "bounds": each feature
        from 0 to 1 between its smallest and largest value. "robust": each less its median, in standard deviations as
        its quartiles show them.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> rng = np.random.default_rng(0)
    >>> clients = [rng.normal(mean, 0.05, (100, 2)) for mean in (1.0, 2.0, 3.0)]
    >>> model = shoal.KFED(n_clusters=3, local_clusters=1).fit(clients)
    >>> np.sort(model.cluster_centers_, axis=0).round(1)
    array([[1., 1.],
           [2., 2.],
           [3., 3.]])
    """

    ALGORITHM = "kfed"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        local_clusters: int = 0,
        average: str = "unweighted",
        pick: str = "farthest",
        random_state: int = 0,
        scale: str | None = None,
    ) -> None:
        self.n_clusters, self.local_clusters, self.average, self.pick = n_clusters, local_clusters, average, pick
        self.random_state = random_state
        self.scale = scale

    def _options(self) -> dict[str, Any]:
        own = {"local_clusters": self.local_clusters, "average": self.average, "pick": self.pick}
        return {**super()._options(), **own}


class MUFC(RoundsEstimator):
    """MUFC: clustering in one round of counts in the cells of a grid.

    Parameters
    ----------
    n_clusters : int, default=8
    local_clusters : int, default=0
        Number of clusters that each client looks for; 0: as many as `n_clusters`.
    local : {"seeds", "kmeans"}, default="seeds"
        Which points a client's cells contain: k-means++ seeds, or the k-means centres found from them.
    cells : int, default=100
        Cells of the grid along each feature.
    bounds : pair of numbers or of array-likes of shape (d,), optional
        The box of the grid; by default the smallest box of all rows.
    random_state : int, default=0
    scale : {"bounds", "robust"} or None, default=None
        None: rows as they are, so that the feature with the widest spread decides distances. "bounds": each feature
        from 0 to 1 between its bounds. "robust": each less its median, in standard deviations as its quartiles show
        them.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> rng = np.random.default_rng(0)
    >>> clients = [rng.normal(mean, 0.05, (100, 2)) for mean in (0.0, 1.0, 2.0)]
    >>> model = shoal.MUFC(n_clusters=3, local_clusters=1).fit(clients)
    >>> len(set(model.predict([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]).tolist()))
    3
    """

    ALGORITHM = "mufc"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        local_clusters: int = 0,
        local: str = "seeds",
        cells: int = 100,
        bounds: Any = None,
        random_state: int = 0,
        scale: str | None = None,
    ) -> None:
        self.n_clusters, self.local_clusters, self.local, self.cells = n_clusters, local_clusters, local, cells
        self.bounds, self.random_state = bounds, random_state
        self.scale = scale

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "local_clusters": self.local_clusters, "local": self.local, "cells": self.cells}
