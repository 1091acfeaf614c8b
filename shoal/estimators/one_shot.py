"""Federated clustering in one round as scikit-learn estimators: k-FED and MUFC."""

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
    ) -> None:
        self.n_clusters, self.local_clusters, self.average, self.pick = n_clusters, local_clusters, average, pick
        self.random_state = random_state

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
    ) -> None:
        self.n_clusters, self.local_clusters, self.local, self.cells = n_clusters, local_clusters, local, cells
        self.bounds, self.random_state = bounds, random_state

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "local_clusters": self.local_clusters, "local": self.local, "cells": self.cells}
