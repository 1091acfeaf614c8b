"""FCAC as an estimator: CA+ on virtual clients, and CAEFC on the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shoal.algorithms.fcac import CAEFC, CAPlus, FcacOptions
from shoal.algorithms.streaming import Arrays, ClientHalf
from shoal.algorithms.view import NO_CLUSTER
from shoal.estimators.streaming import StreamingEstimator
from shoal.kernels.arrays import Floats
from shoal.simulation.streaming import StreamingFederation

DEFAULTS: Final = FcacOptions()


class FcacFederation(StreamingFederation):
    """CA+ clients and a CAEFC server, which learn their buffered rows at the end of a stream.

    As in the paper, the share of one client has no bound.
    """

    def __init__(
        self, algorithm: str, options: Mapping[str, Any], *arguments: Any, **named: Any
    ) -> None:
        super().__init__(algorithm, {"client_share_max": 1.0, **options}, *arguments, **named)

    def _last_contribution(self, half: ClientHalf, rows: Floats) -> Arrays:
        assert isinstance(half, CAPlus)
        if half.n_buffered == 1:
            # CA+ cannot compute a bandwidth from a single row; the node that it would become is the
            # row itself.
            counts = np.ones(1, dtype=np.int32)
            return {"weight": rows, "count": counts, "won": counts}
        half.flush()
        return half.contribute()

    def _finish_server(self) -> None:
        assert isinstance(self.server, CAEFC)
        self.server.flush()


class FCAC(StreamingEstimator):
    """Federated clustering via adaptive resonance theory (Masuyama et al., 2023); finds the number
    of clusters.

    `fit` learns a whole table from the beginning; `partial_fit`, `learn_one` and `learn_many`
    continue to learn. Until `initial_rows` rows have been learnt (or `fit` was called), every row
    is predicted as -1: in a stream a model without clusters is a normal state. Before the first row
    `predict` raises `NotFittedError`, and `predict_one` gives -1.

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
        The order in which the server absorbs nodes is a function of it alone.
    edge_factor : float, default=0.1
        An edge is too old above the upper quartile of ages plus this times the interquartile range
        (in the paper 1.0).
    initial_rows : int, default=10
        Rows that are buffered before the first is learnt; the first bandwidth is computed from
        them. Where they hardly differ, as those of a sensor at rest, nearly every later row becomes
        a node: give more, or shuffle the rows.
    diversity_cut : float, default=1e-6
        The initial nodes are enough when the determinant of their similarities is below this.
    diversity_nodes_min : int, default=10
        Smallest number of initial nodes.
    second_winner_factor : float, default=0.01
        Learning rate of the second winner in CA+ (eq. 31).
    neighbour_factor : float, default=0.1
        Learning rate of the winner's neighbours in CAEFC (eq. 27).
    similarity : {"caefc", "cae"}, default="caefc"
        Similarity of the initial nodes: eq. 30, or eq. 13, which makes more nodes.
    nodes_max : int or None, default=None
        Largest number of nodes of a client and of the server; None sets no limit.
    contribute : {"changed", "all"}, default="changed"
        Whether a client contributes its changed nodes or all nodes at each call.
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the rows learnt by then and warns with `StoppedEarly`.
        It looks at the clock every 500 rows.

    Attributes
    ----------
    labels_ : ndarray of shape (n,)
        Clusters of the rows learnt last, by `fit` or `partial_fit`; -1 where there is none.
    n_clusters_ : int
        Connected components of the nodes. Each node that no edge joins to another is one by itself,
        as in the paper.
    n_groups_ : int
        Components of at least two nodes, which the service shows as clusters. Single nodes are
        outliers or too new.
    cluster_centers_ : ndarray of shape (c, d)
        Mean of the nodes of each cluster, weighted by winning count.
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
    >>> model = shoal.FCAC(clients=3).fit(rng.permutation(rows))
    >>> here, there = model.predict([[0.2, 0.2], [0.8, 0.7]])
    >>> bool(here != there)
    True
    >>> model.learn_one({"humidity": 0.7, "temperature": 0.8})
    """

    ALGORITHM = "fcac"
    ROWS_MIN = 2
    FEDERATION = FcacFederation

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        *,
        clients: int = 1,
        scale: str | None = None,
        bounds: Any = None,
        random_state: int = 0,
        edge_factor: float = DEFAULTS.edge_factor,
        initial_rows: int = DEFAULTS.initial_rows,
        diversity_cut: float = DEFAULTS.diversity_cut,
        diversity_nodes_min: int = DEFAULTS.diversity_nodes_min,
        second_winner_factor: float = DEFAULTS.second_winner_factor,
        neighbour_factor: float = DEFAULTS.neighbour_factor,
        similarity: str = DEFAULTS.similarity,
        nodes_max: int | None = DEFAULTS.nodes_max,
        contribute: str = DEFAULTS.contribute,
        verbose: bool = False,
        max_seconds: float | None = None,
    ) -> None:
        self.clients = clients
        self.scale = scale
        self.bounds = bounds
        self.random_state = random_state
        self.edge_factor = edge_factor
        self.initial_rows = initial_rows
        self.diversity_cut = diversity_cut
        self.diversity_nodes_min = diversity_nodes_min
        self.second_winner_factor = second_winner_factor
        self.neighbour_factor = neighbour_factor
        self.similarity = similarity
        self.nodes_max = nodes_max
        self.contribute = contribute
        self.verbose = verbose
        self.max_seconds = max_seconds

    @property
    def n_groups_(self) -> int:
        """Number of clusters of at least two nodes, once a row has been learnt."""
        self._require_rows("n_groups_")
        view = self._view()
        return int((np.bincount(view.cluster[view.cluster != NO_CLUSTER]) >= view.nodes_min).sum())
