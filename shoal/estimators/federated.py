"""k-means, fuzzy c-means, mixtures and clusters of any shape of several clients, as scikit-learn
estimators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.choice import PATIENCE, bic
from shoal.algorithms.rounds.fcm import FCM
from shoal.algorithms.rounds.ffcm import FFCM
from shoal.algorithms.rounds.gmm import GMM
from shoal.algorithms.rounds.gmm_local import GMM_LOCAL
from shoal.algorithms.rounds.kmeans import KMEANS
from shoal.algorithms.rounds.kmeans_local import KMEANS_LOCAL
from shoal.algorithms.rounds.policies import Policy
from shoal.errors import SettingsError
from shoal.estimators.rounds import RoundsEstimator, WeightedEstimator
from shoal.kernels.arrays import Floats
from shoal.kernels.gaussian import matrices
from shoal.simulation.rounds import kfed_hint, run_rounds
from shoal.user_warnings import warn_user

__all__ = [
    "FederatedDBSCAN",
    "FederatedFCM",
    "FederatedGMM",
    "FederatedKMeans",
    "FederatedSpectral",
]

MATRICES_PER_COMPONENT: Final = 8
"""matrices (d, d) that EM holds at a time for each component of full covariance, besides the sums
of the clients"""


LANDMARK_ROWS_MIN: Final = 5
"""rows for each landmark from which a cluster of fewer is worth a warning"""


class FederatedKMeans(WeightedEstimator):
    """Federated k-means.

    Parameters
    ----------
    n_clusters : int or {"gap", "silhouette"}, default=8
        Number of clusters, or the criterion that chooses it: gap statistic or mean silhouette of
        the local centres of one round of k-FED.
    max_clusters : int, default=20
        Most clusters that a criterion may choose.
    average : {"sums", "weighted", "unweighted"}, default="sums"
        "sums" is exactly k-means on all rows together. The others average the centres that each
        client reaches in `local_steps` steps of Lloyd's algorithm, weighted by its rows or not.
    local_steps : int, default=5
    init : {"kfed", "box"} or array-like of shape (h, d), default="kfed"
        First centres: from one round of k-FED, random in the box of all rows, or given.
    bounds : pair of numbers or of array-likes of shape (d,), optional
        Lower and upper bounds that hold every row; by default the smallest box of all rows.
    max_rounds : int, default=100
    tol : float, default=1e-9
        Rounds end when one moves the model less.
    fraction : float, default=1.0
        Share of the clients that answer in each round.
    policy : Policy, optional
        How answers of earlier rounds count; by default not at all.
    random_state : int, default=0
    scale : {"bounds", "robust"} or None, default=None
        None: rows as they are, so that the feature with the widest spread decides distances.
        "bounds": each feature from 0 to 1 between its bounds. "robust": each less its median, in
        standard deviations as its quartiles show them.
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the round that is under way, and warns with
        `StoppedEarly`.

    Examples
    --------
    >>> import shoal
    >>> one_client, another = [[0.0, 0.1], [0.1, 0.0], [0.9, 1.0]], [[1.0, 0.9], [0.05, 0.05]]
    >>> model = shoal.FederatedKMeans(n_clusters=2).fit([one_client, another])
    >>> sorted(model.cluster_centers_.round(2).tolist())
    [[0.05, 0.05], [0.95, 0.95]]
    >>> here, there = model.predict([[0.0, 0.0], [1.0, 1.0]])
    >>> bool(here != there)
    True
    """

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        n_clusters: int | str = 8,
        *,
        max_clusters: int = 20,
        average: str = "sums",
        local_steps: int = 5,
        init: Any = "kfed",
        bounds: Any = None,
        max_rounds: int = 100,
        tol: float = 1e-9,
        fraction: float = 1.0,
        policy: Policy | None = None,
        random_state: int = 0,
        scale: str | None = None,
        verbose: bool = False,
        max_seconds: float | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_clusters = max_clusters
        self.average = average
        self.local_steps = local_steps
        self.init = init
        self.bounds = bounds
        self.max_rounds = max_rounds
        self.tol = tol
        self.fraction = fraction
        self.policy = policy
        self.random_state = random_state
        self.scale = scale
        self.verbose = verbose
        self.max_seconds = max_seconds

    def _algorithm(self) -> RoundsAlgorithm:
        if self.average == "sums":
            return KMEANS
        return KMEANS_LOCAL

    def _options(self) -> dict[str, Any]:
        if self.average == "sums":
            return super()._options()
        return {**super()._options(), "average": self.average, "steps": self.local_steps}


class FederatedFCM(WeightedEstimator):
    """Federated fuzzy c-means.

    Parameters
    ----------
    n_clusters : int or {"gap", "silhouette"}, default=8
        Number of clusters, or the criterion that chooses it: gap statistic or mean silhouette of
        the local centres of one round of k-FED.
    max_clusters : int, default=20
        Most clusters that a criterion may choose.
    fuzzifier : float, default=2.0
        How fuzzy clusters are; near 1 is k-means.
    average : {"sums", "avg1", "avg2"}, default="sums"
        "sums" is exactly fuzzy c-means on all rows together. The others are the averages of FFCM:
        of centres in the same position, or by k-means on all centres.
    local : {"fit", "step"}, default="fit"
        For FFCM: clients run fuzzy c-means to convergence, or one step.
    support : {"memberships", "powers"}, default="memberships"
        For FFCM: the weight of a centre is the sum of its memberships, or of their powers.
    init : {"kfed", "box"} or array-like of shape (h, d), default="kfed"
        First centres: from one round of k-FED, random in the box of all rows, or given.
    bounds : pair of numbers or of array-likes of shape (d,), optional
        Lower and upper bounds that hold every row; by default the smallest box of all rows.
    max_rounds : int, default=100
    tol : float, default=1e-6
        Rounds end when one moves the model less.
    fraction : float, default=1.0
        Share of the clients that answer in each round.
    policy : Policy, optional
        How answers of earlier rounds count; by default not at all.
    random_state : int, default=0
    scale : {"bounds", "robust"} or None, default=None
        None: rows as they are, so that the feature with the widest spread decides distances.
        "bounds": each feature from 0 to 1 between its bounds. "robust": each less its median, in
        standard deviations as its quartiles show them.
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the round that is under way, and warns with
        `StoppedEarly`.

    Examples
    --------
    >>> import shoal
    >>> one_client, another = [[0.0, 0.1], [0.1, 0.0], [0.9, 1.0]], [[1.0, 0.9], [0.05, 0.05]]
    >>> model = shoal.FederatedFCM(n_clusters=2, fuzzifier=2.0).fit([one_client, another])
    >>> sorted(model.cluster_centers_.round(1).tolist())
    [[0.1, 0.1], [0.9, 0.9]]
    """

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        n_clusters: int | str = 8,
        *,
        max_clusters: int = 20,
        fuzzifier: float = 2.0,
        average: str = "sums",
        local: str = "fit",
        support: str = "memberships",
        init: Any = "kfed",
        bounds: Any = None,
        max_rounds: int = 100,
        tol: float = 1e-6,
        fraction: float = 1.0,
        policy: Policy | None = None,
        random_state: int = 0,
        scale: str | None = None,
        verbose: bool = False,
        max_seconds: float | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_clusters = max_clusters
        self.fuzzifier = fuzzifier
        self.average = average
        self.local = local
        self.support = support
        self.init = init
        self.bounds = bounds
        self.max_rounds = max_rounds
        self.tol = tol
        self.fraction = fraction
        self.policy = policy
        self.random_state = random_state
        self.scale = scale
        self.verbose = verbose
        self.max_seconds = max_seconds

    def _algorithm(self) -> RoundsAlgorithm:
        return FCM if self.average == "sums" else FFCM

    def _options(self) -> dict[str, Any]:
        options = {**super()._options(), "fuzzifier": self.fuzzifier}
        if self.average == "sums":
            return options
        return {**options, "average": self.average, "local": self.local, "support": self.support}


class FederatedGMM(WeightedEstimator):
    """Federated Gaussian mixture, with the additional attributes `weights_` and `covariances_`.

    Parameters
    ----------
    n_clusters : int or {"gap", "silhouette", "bic"}, default=8
        Number of clusters, or the criterion that chooses it: gap statistic or mean silhouette of
        the local centres of one round of k-FED; BIC of mixtures fitted by sums, one number of
        components after the other.
    max_clusters : int, default=20
        Most clusters that a criterion may choose.
    covariance : {"full", "tied", "diag", "spherical"}, default="full"
        "full" takes about 8 k d² (8 + clients / 2) bytes; `fit` refuses what this machine's memory
        does not hold.
    ridge : float, default=1e-6
        Added to every variance.
    average : {"sums", "weighted", "unweighted"}, default="sums"
        "sums" is exactly EM on all rows together. The others average the components that each
        client reaches in at most `local_steps` steps of EM, weighted by their mass or not.
    match : {"overlap", "place"}, default="overlap"
        Which components are averaged: those that overlap most, or those in the same position.
    local_steps : int, default=100
    init : {"kfed", "box"} or array-like of shape (h, d), default="kfed"
        First centres: from one round of k-FED, random in the box of all rows, or given.
    bounds : pair of numbers or of array-likes of shape (d,), optional
        Lower and upper bounds that hold every row; by default the smallest box of all rows.
    max_rounds : int, default=100
    tol : float, default=1e-3
        Rounds end when one moves the model less.
    fraction : float, default=1.0
        Share of the clients that answer in each round.
    policy : Policy, optional
        How answers of earlier rounds count; by default not at all.
    random_state : int, default=0
    scale : {"bounds", "robust"} or None, default=None
        None: rows as they are, so that the feature with the widest spread decides distances.
        "bounds": each feature from 0 to 1 between its bounds. "robust": each less its median, in
        standard deviations as its quartiles show them.
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the round that is under way, and warns with
        `StoppedEarly`.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> rng = np.random.default_rng(0)
    >>> clients = [rng.normal(mean, 0.05, (200, 2)) for mean in (0.2, 0.2, 0.8)]
    >>> model = shoal.FederatedGMM(n_clusters=2, covariance="diag").fit(clients)
    >>> sorted(model.weights_.round(2).tolist())
    [0.33, 0.67]
    >>> model.covariances_.shape
    (2, 2, 2)
    """

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        n_clusters: int | str = 8,
        *,
        max_clusters: int = 20,
        covariance: str = "full",
        ridge: float = 1e-6,
        average: str = "sums",
        match: str = "overlap",
        local_steps: int = 100,
        init: Any = "kfed",
        bounds: Any = None,
        max_rounds: int = 100,
        tol: float = 1e-3,
        fraction: float = 1.0,
        policy: Policy | None = None,
        random_state: int = 0,
        scale: str | None = None,
        verbose: bool = False,
        max_seconds: float | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_clusters = max_clusters
        self.covariance = covariance
        self.ridge = ridge
        self.average = average
        self.match = match
        self.local_steps = local_steps
        self.init = init
        self.bounds = bounds
        self.max_rounds = max_rounds
        self.tol = tol
        self.fraction = fraction
        self.policy = policy
        self.random_state = random_state
        self.scale = scale
        self.verbose = verbose
        self.max_seconds = max_seconds

    def _algorithm(self) -> RoundsAlgorithm:
        return GMM if self.average == "sums" else GMM_LOCAL

    def _options(self) -> dict[str, Any]:
        options = {**super()._options(), "covariance": self.covariance, "ridge": self.ridge}
        if self.average == "sums":
            return options
        return {**options, "average": self.average, "match": self.match, "steps": self.local_steps}

    def _choose(self, tables: list[Floats], box: InitHint) -> None:
        super()._choose(tables, box)
        self._check_memory(self.n_clusters_, tables)

    def _check_memory(self, components: Any, tables: list[Floats]) -> None:
        # Anything but a number is refused where the rounds start.
        if self.covariance == "full" and isinstance(components, int | np.integer):
            check_memory(int(components), max(table.shape[1] for table in tables), len(tables))

    def _chosen(self, criterion: str, tables: list[Floats], box: InitHint, most: int) -> int:
        """BIC needs no landmarks: the clients' sums have the likelihood of every mixture that is
        tried."""
        if criterion != "bic":
            return super()._chosen(criterion, tables, box, most)
        self._check_memory(most, tables)
        n_rows = sum(map(len, tables))
        criteria: dict[int, float] = {}
        for k in range(1, min(most, n_rows) + 1):
            options = {"clusters": k, "covariance": self.covariance, "ridge": self.ridge}
            hint = kfed_hint(k, tables, box)
            params = GMM.start(options, len(box.low), hint)
            params = run_rounds(
                GMM, params, tables, rounds_max=self.max_rounds, tolerance=self.tol
            ).params
            # The parameters have the mean over rows, and the criterion takes the sum.
            likelihood = float(params["likelihood"][0]) * n_rows
            criteria[k] = bic(likelihood, n_rows, k, len(box.low), self.covariance)
            # As the service: the BIC has small local minima, so some further numbers are tried.
            if k - min(criteria, key=criteria.__getitem__) >= PATIENCE:
                break
        return min(criteria, key=criteria.__getitem__)

    @property
    def weights_(self) -> Floats:
        """(k,) share of the rows in each component."""
        return np.asarray(self.params_["weight"] / self.params_["weight"].sum())

    @property
    def covariances_(self) -> Floats:
        """(k, d, d), whatever the form."""
        shape = self.cluster_centers_.shape
        covariances = matrices(self.covariance, self.params_["spread"], *shape).copy()
        if self._scale is None:
            return covariances
        return np.asarray(covariances * np.outer(self._scale.unit, self._scale.unit))


def check_memory(components: int, d: int, n_clients: int) -> None:
    """Raises `SettingsError` if EM with full covariances of d features needs more memory than this
    machine has."""
    if not hasattr(os, "sysconf"):
        return  # Windows does not say
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # 8 bytes a number. A client's sums are upper halves of matrices, so each counts half.
    needed = 8 * components * d**2 * (MATRICES_PER_COMPONENT + n_clients / 2)
    if needed > there:
        raise SettingsError(
            f"{components} full covariances of {d} features, and the sums of {n_clients} clients "
            f"for them, take about {needed / 2**30:.1f} GiB of memory; this machine has "
            f"{there / 2**30:.1f}. Give "
            'covariance="diag", or bring the rows to fewer features first'
        )


class FederatedDBSCAN(RoundsEstimator):
    """Grid DBSCAN by sums of counts: finds the number of clusters, and leaves noise (label -1).

    Parameters
    ----------
    cells : int, default=0
        Cells of the grid along each feature; 0: as many as make about 4096 cells in all, at most
        32.
    min_points : float, default=1.2
        Rows that make a cell dense, as a multiple of those that it would have if all rows were
        spread evenly over the grid.
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
    WHY_NO_WEIGHTS = (
        "clients publish which cells of a grid hold enough rows, and an option says how many; give "
        "a row as often as it counts"
    )

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
        self.cells = cells
        self.min_points = min_points
        self.border = border
        self.min_share = min_share
        self.count_min = count_min
        self.bounds = bounds

    def _options(self) -> dict[str, Any]:
        names = ("cells", "min_points", "border", "min_share", "count_min")
        return {name: getattr(self, name) for name in names}


class FederatedSpectral(RoundsEstimator):
    """Landmark spectral clustering by sums of Gram matrices: clusters of any shape, in any number
    of features.

    Told a number of clusters, `fit` warns of those that have fewer rows than a landmark stands for:
    they are often a few rows far from all others, in place of a group.

    Parameters
    ----------
    n_clusters : int or "eigengap", default="eigengap"
        "eigengap": as many as the largest gap between eigenvalues of the graph of landmarks shows,
        1 to 20.
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
        None: rows as they are, so that the feature with the widest spread decides distances.
        "bounds": each feature from 0 to 1 between its smallest and largest value. "robust": each
        less its median, in standard deviations as its quartiles show them.
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the round that is under way, and warns with
        `StoppedEarly`.

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
    WHY_NO_WEIGHTS = (
        "clients choose landmarks among their rows, each row once; give a row as often as it counts"
    )

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
        self.n_clusters = n_clusters
        self.landmarks = landmarks
        self.prototypes = prototypes
        self.near = near
        self.max_rounds = max_rounds
        self.tol = tol
        self.fraction = fraction
        self.policy = policy
        self.random_state = random_state
        self.scale = scale
        self.verbose = verbose
        self.max_seconds = max_seconds

    def fit(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: None = None,
        clients: ArrayLike | None = None,
        **refused: Any,
    ) -> Self:
        """Run the rounds; see `RoundsEstimator.fit`."""
        super().fit(X, y, clients, **refused)
        rows = np.bincount(self.labels_[self.labels_ >= 0])
        least = len(self.labels_) / max(1, len(self.params_["landmark"]))
        small = rows[rows < least]
        # A number that is found counts parts that are apart, however small they are. In a small
        # table a landmark stands for a row or two, and any cluster of few rows would be named.
        if len(small) and self.n_clusters != "eigengap" and least >= LANDMARK_ROWS_MIN:
            sizes = ", ".join(str(size) for size in small.tolist())
            warn_user(
                f"{len(small)} of {len(rows)} clusters have fewer rows ({sizes}) than the "
                f"{least:.0f} that a landmark stands for: a few rows far from all others may stand "
                "in place of a group. Take fewer clusters or more landmarks, or leave them out",
            )
        return self

    def _options(self) -> dict[str, Any]:
        own = {"landmarks": self.landmarks, "prototypes": self.prototypes, "near": self.near}
        return {"clusters": self.n_clusters, **own}

    def _choose(self, tables: list[Floats], box: InitHint) -> None:
        """Nothing: the rounds themselves find the number of clusters."""
