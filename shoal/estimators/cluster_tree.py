"""cluster_tree as an estimator: a steady number of clusters, and identities that last."""

from __future__ import annotations

import math
from typing import Any, Final, cast

from shoal.algorithms.cluster_tree import ClusterTreeOptions, ClusterTreeServer
from shoal.algorithms.cluster_tree.server import FEW_CLUSTERS
from shoal.estimators.streaming import IdentityEstimator
from shoal.kernels.arrays import Floats
from shoal.user_warnings import warn_user

DEFAULTS: Final = ClusterTreeOptions()


class ClusterTree(IdentityEstimator):
    """Streaming clustering whose number of clusters is steady and whose clusters keep their
    identities.

    It finds the number of clusters. `fit` learns a whole table from the beginning; `partial_fit`,
    `learn_one` and `learn_many` continue to learn. Labels are identities: whole numbers that keep
    their meaning while the stream goes on and are never given again. A client contributes from its
    second row on, and until then rows are predicted as -1. Before the first row `predict` raises
    `NotFittedError`, and `predict_one` gives -1.

    Parameters
    ----------
    clients : int, default=1
        Number of virtual clients; row i of the stream is learnt by client i mod `clients`.
    scale : {"bounds", "robust"} or None, default=None
        None: rows as they are; the feature with the widest spread decides distances. "bounds": each
        feature from 0 to 1 between its bounds. "robust": each less its median, in standard
        deviations as its quartiles show them. The table of `fit` decides, once; otherwise the first
        500 rows, which are held until then (predicted as -1). A feature that is constant in them
        keeps its unit.
    bounds : pair of numbers or of array-likes of shape (d,), optional
        Lower and upper bounds for "bounds"; by default those of the rows that decide. Rows may lie
        beyond.
    random_state : int, default=0
        Nothing in this algorithm is random; here because all streaming estimators have it.
    update_readings : int, default=500
        Rows after which a client publishes within a call, as it would in a federation, or 8 times
        `points_max` if that is fewer; it also does so at the end.
    points_max : int, default=128
        Largest number of weighted points that a client publishes at once.
    cells_max : int, default=1000
        Largest number of weighted points that the server keeps while clusters are few.
    rebuild_readings : int, default=500
        Readings absorbed between two rebuilds of the tree.
    cluster_mass_max : float, default=4000.0
        Independent readings of a cluster that count; newer ones displace older ones of the same
        cluster.
    mass_max : float, default=4000.0
        Independent readings of all clusters that count, each cluster having an equal part at most,
        or its share of the recent readings.
    growth_max : float, default=4.0
        How many times these three are allowed at most, in proportion to the clusters where there
        are more than 20; a warning says where more are needed, up to about 100 clusters.
    split_significance : float, default=4.5
        Standard deviations by which both sides of a join must be denser than the join, to be two
        clusters.
    keep_significance : float, default=2.0
        The same, to remain two clusters.
    confirm_readings : float, default=1000.0
        Readings for which a split, or its end, must last before it is shown.
    noise : bool, default=False
        Whether rows that belong to no cluster are labelled -1, instead of as the nearest one.
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the rows learnt by then and warns with `StoppedEarly`.
        It looks at the clock every 500 rows.

    Attributes
    ----------
    labels_ : ndarray of shape (n,)
        Identities of the clusters of the rows learnt last, by `fit` or `partial_fit`; -1 where
        there is none.
    n_clusters_ : int
        Number of clusters shown, active or not.
    identities_ : ndarray of shape (c,)
        Identities of these clusters, ascending.
    active_ : ndarray
        Those of them to which readings fall at present, ascending.
    cluster_centers_ : ndarray of shape (c, d)
        Mean of the readings of each cluster that still count, in the order of `identities_`.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (d,)
        Only if the first rows had names.

    Methods raise `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters when
    learning begins.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> rng = np.random.default_rng(0)
    >>> rows = np.repeat([[0.2, 0.2], [0.8, 0.7]], 300, axis=0) + rng.normal(0.0, 0.03, (600, 2))
    >>> model = shoal.ClusterTree(clients=3).fit(rng.permutation(rows))
    >>> model.identities_
    array([0, 1])
    >>> sorted(model.predict([[0.2, 0.2], [0.8, 0.7]]).tolist())
    [0, 1]
    """

    ALGORITHM = "cluster_tree"
    WHY_NO_WEIGHTS = (
        "it measures how many successive rows count as one, which a weight would decide "
        "beforehand; give a row as often as it came"
    )
    # A single row has no neighbour, and so no density.
    ROWS_MIN = 2

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        *,
        clients: int = 1,
        scale: str | None = None,
        bounds: Any = None,
        random_state: int = 0,
        update_readings: int = 500,
        points_max: int = DEFAULTS.points_max,
        cells_max: int = DEFAULTS.cells_max,
        rebuild_readings: int = DEFAULTS.rebuild_readings,
        cluster_mass_max: float = DEFAULTS.cluster_mass_max,
        mass_max: float = DEFAULTS.mass_max,
        growth_max: float = DEFAULTS.growth_max,
        split_significance: float = DEFAULTS.split_significance,
        keep_significance: float = DEFAULTS.keep_significance,
        confirm_readings: float = DEFAULTS.confirm_readings,
        noise: bool = DEFAULTS.noise,
        verbose: bool = False,
        max_seconds: float | None = None,
    ) -> None:
        self.clients = clients
        self.scale = scale
        self.bounds = bounds
        self.random_state = random_state
        self.update_readings = update_readings
        self.points_max = points_max
        self.cells_max = cells_max
        self.rebuild_readings = rebuild_readings
        self.cluster_mass_max = cluster_mass_max
        self.mass_max = mass_max
        self.growth_max = growth_max
        self.split_significance = split_significance
        self.keep_significance = keep_significance
        self.confirm_readings = confirm_readings
        self.noise = noise
        self.verbose = verbose
        self.max_seconds = max_seconds

    def _warn(self, rows: Floats) -> None:
        """Warn once of rows that can hardly be clustered as they are, and of more clusters than the
        memory is for."""
        super()._warn(rows)
        places = 0
        if self._has_rows():
            places = cast("ClusterTreeServer", self._federation.server).unresolved
        if places and not self._warned:
            self._warned = True
            warn_user(
                f"rows lie in about {places} places with gaps between them, and the memory at its "
                f"limit tells {self.n_clusters_} clusters apart: give "
                f"growth_max={math.ceil(places / FEW_CLUSTERS)} or more",
            )
