"""Federated clustering of clusters of any shape as scikit-learn estimators.

The methods and attributes that all estimators share are those of `RoundsEstimator`.
"""

from __future__ import annotations

from typing import Any

from shoal.estimators.rounds import RoundsEstimator

__all__ = ["FederatedDBSCAN"]


class FederatedDBSCAN(RoundsEstimator):
    """Grid DBSCAN by sums of counts: finds the number of clusters, and leaves noise (label -1).

    Parameters
    ----------
    cells : int, default=0
        Cells of the grid along each feature; 0: as many as make about 4096 cells in all, at most 32.
    min_points : float, default=1.2
        Rows that make a cell dense, as a multiple of those that it would have if all rows were spread evenly over the
        grid.
    border : int, default=2
        Cells by which a row may be away from a cluster's nearest cell and still belong to it.
    min_share : float, default=0.01
        Share of all rows that a group of dense cells must hold to be a cluster.
    count_min : int, default=1
        A client leaves out cells in which it has fewer rows.
    bounds : pair of numbers or of array-likes of shape (d,), optional
        The box of the grid; by default the smallest box of all rows.
    """

    ALGORITHM = "dbscan"

    def __init__(
        self,
        cells: int = 0,
        *,
        min_points: float = 1.2,
        border: int = 2,
        min_share: float = 0.01,
        count_min: int = 1,
        bounds: Any = None,
    ) -> None:
        self.cells, self.min_points, self.border = cells, min_points, border
        self.min_share, self.count_min, self.bounds = min_share, count_min, bounds

    def _options(self) -> dict[str, Any]:
        names = ("cells", "min_points", "border", "min_share", "count_min")
        return {name: getattr(self, name) for name in names}
