"""Clusters of any shape, from the rows of several clients, as scikit-learn estimators."""

from __future__ import annotations

from typing import Any

from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.rounds.policies import Policy
from shoal.estimators.rounds import RoundsEstimator
from shoal.kernels.arrays import Floats

__all__ = ["FederatedDBSCAN", "FederatedSpectral"]


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

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> rng = np.random.default_rng(0)
    >>> clients = [rng.normal(mean, 0.03, (500, 2)) for mean in (0.2, 0.8)]
    >>> model = shoal.FederatedDBSCAN(bounds=(0.0, 1.0)).fit(clients)
    >>> len(model.cluster_centers_)
    2
    >>> model.predict([[0.5, 0.5]])
    array([-1])
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


class FederatedSpectral(RoundsEstimator):
    """Landmark spectral clustering by sums of Gram matrices: clusters of any shape, in any number of features.

    Parameters
    ----------
    n_clusters : int or "eigengap", default="eigengap"
        "eigengap": as many as the largest gap between eigenvalues of the graph of landmarks shows, 1 to 20.
    landmarks : int, default=100
        Number of landmarks; fewer even out noise, more follow finer shapes.
    prototypes : int, default=60
        Number of prototypes of its rows that each client sends when landmarks are chosen.
    near : int, default=3
        Number of nearest landmarks that each row ties together.
    max_rounds : int, default=100
    tol : float, default=1e-3
        Rounds end when a smaller share of the rows than this changes its cluster.
    fraction : float, default=1.0
        Share of the clients that answer in each round.
    policy : Policy, optional
        How answers of earlier rounds count; by default not at all.
    random_state : int, default=0
    scale : {"bounds", "robust"} or None, default=None
        None: rows as they are, so that the feature with the widest spread decides distances. "bounds": each feature
        from 0 to 1 between its smallest and largest value. "robust": each less its median, in standard deviations as
        its quartiles show them.
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the round that is under way, and warns with `StoppedEarly`.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> angle = np.linspace(0.0, 2.0 * np.pi, 400, endpoint=False)
    >>> ring = np.column_stack([np.cos(angle), np.sin(angle)])
    >>> model = shoal.FederatedSpectral(n_clusters=2).fit([ring, 0.3 * ring])
    >>> outer, inner = model.labels_by_client_
    >>> len(set(outer.tolist())), len(set(inner.tolist())), bool(outer[0] != inner[0])
    (1, 1, True)
    """

    ALGORITHM = "spectral"

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        n_clusters: int | str = "eigengap",
        *,
        landmarks: int = 100,
        prototypes: int = 60,
        near: int = 3,
        max_rounds: int = 100,
        tol: float = 1e-3,
        fraction: float = 1.0,
        policy: Policy | None = None,
        random_state: int = 0,
        scale: str | None = None,
        verbose: bool = False,
        max_seconds: float | None = None,
    ) -> None:
        self.n_clusters, self.landmarks, self.prototypes, self.near = n_clusters, landmarks, prototypes, near
        self.max_rounds, self.tol, self.fraction, self.policy = max_rounds, tol, fraction, policy
        self.random_state = random_state
        self.scale, self.verbose, self.max_seconds = scale, verbose, max_seconds

    def _options(self) -> dict[str, Any]:
        own = {"landmarks": self.landmarks, "prototypes": self.prototypes, "near": self.near}
        return {"clusters": self.n_clusters, **own}

    def _choose(self, tables: list[Floats], box: InitHint) -> None:
        """Nothing: the rounds themselves find the number of clusters."""
