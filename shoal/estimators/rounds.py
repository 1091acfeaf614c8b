"""The base of the estimators of algorithms in rounds, with the interface of scikit-learn.

`fit` runs in memory the functions that the service runs on clients and server, so it gives the same
numbers. Scikit-learn does not need to be installed.

k-FED and MUFC, which need a single round, are here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.options import CRITERIA
from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import InitHint, Params, RoundsAlgorithm
from shoal.algorithms.rounds.choice import choose_clusters
from shoal.algorithms.rounds.iteration import converged
from shoal.algorithms.streaming import check_rows
from shoal.errors import InvalidData, SettingsError
from shoal.estimators.base import (
    BaseEstimator,
    ClusterMixin,
    Features,
    Progress,
    as_table,
    column_names,
    columns_in_order,
    draw_view,
    is_number,
    learnt_table,
    not_fitted,
    refuse_weights,
    warn_of_scales,
    weights_of,
)
from shoal.estimators.distances import CentreDistances, distances_between
from shoal.estimators.scaling import Scale, check_scale, given_bounds, scale_of
from shoal.kernels.arrays import Floats, Ints
from shoal.simulation.federation import deal_by_name
from shoal.simulation.rounds import bounding_box, kfed_hint, kfed_landmarks, run_rounds
from shoal.user_warnings import warn_user

if TYPE_CHECKING:  # an extra
    from matplotlib.axes import Axes

EMPTY_MASS: Final = 0.5
"""rows from which on a centre has some: memberships of fuzzy clusters and mixtures are never 0"""
PARAMETERS: Final = {"clusters": "n_clusters", "steps": "local_steps"}
"""option of an algorithm -> the parameter that gives it, where it has another name"""
PER_CLIENT = 2
"""local centres of a client for each cluster that a criterion may choose"""


class RoundsEstimatorBase(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Runs an algorithm in rounds over tables in memory. A subclass names its algorithm and gives
    its options."""

    ALGORITHM: ClassVar[str]
    _scale: Scale | None = None
    """the scale of the rows of `fit`; None: as they are"""

    def plot(self, features: Features | None = None, ax: Axes | None = None) -> Axes:
        """Draw the centres that were found, coloured by cluster, as large as the rows that each
        stands for.

        Parameters
        ----------
        features : sequence of two positions or names, optional
            The features to draw, across and up; by default the two over which centres differ most.
        ax : matplotlib Axes, optional
            Where to draw; by default in a new figure of pyplot.

        Returns
        -------
        matplotlib Axes

        Raises `NotFittedError` before `fit`, `MissingExtra` without matplotlib, and `SettingsError`
        for other features.
        """
        self._require_fit("plot")
        view = self._algorithm().view(self.params_)
        width = view.nodes.shape[1]
        nodes = self._in_units(view.nodes)
        given: Any = getattr(
            self, "feature_names_in_", [f"feature {place}" for place in range(self.n_features_in_)]
        )
        names = list(given)
        if width > self.n_features_in_:
            # The rows of an algorithm that predicts have the target as their last feature.
            names.append("target")
        return draw_view(view, nodes, names, features, ax)

    def _require_fit(self, wanted: str) -> None:
        """Raise `NotFittedError` before `fit`."""
        if not hasattr(self, "params_"):
            raise not_fitted(self, wanted, "fit")

    def _as_learnt(self, X: ArrayLike) -> Floats:
        """X as a table with the number and the order of the features that were learnt. Raises
        `InvalidData`."""
        known = getattr(self, "feature_names_in_", None)
        names = None if known is None else known.tolist()
        return learnt_table(X, names, self.n_features_in_, self).reshape(-1, self.n_features_in_)

    def _run_rounds(
        self, tables: list[Floats], weights: list[Floats] | None = None
    ) -> RoundsAlgorithm:
        """Run the rounds over one table for each client; sets what all subclasses have. Returns the
        algorithm.

        `weights`: how often each row counts. Raises `SettingsError` where the algorithm has none.
        """
        algorithm = self._algorithm()
        if weights is not None and algorithm.weigh is None:
            raise SettingsError(
                f"sample_weight is not taken with average = {getattr(self, 'average', None)!r}: "
                'take "sums", in which every row has a part of its own'
            )
        rounds_max = 1
        if not algorithm.one_shot:
            rounds_max = getattr(self, "max_rounds", 1)
        tolerance = getattr(self, "tol", 0.0)
        self._check_rounds(rounds_max, tolerance)
        progress = Progress(
            rounds_max,
            getattr(self, "verbose", False),
            getattr(self, "max_seconds", None),
            "rounds",
            at_most=True,
        )
        box = self._box(tables)
        self._choose(tables, box)
        self._check_options(algorithm)
        params = algorithm.start(self._options(), len(box.low), self._init_hint(tables, box))
        result = run_rounds(
            algorithm,
            params,
            tables,
            rounds_max=rounds_max,
            tolerance=tolerance,
            fraction=getattr(self, "fraction", 1.0),
            policy=getattr(self, "policy", None),
            seed=int(getattr(self, "random_state", 0)),
            is_over=lambda shift: progress.advance(1, f", the last moved the model by {shift:.3g}"),
            weights=weights,
        )
        # 0: it ended because the model stands still; else it may have been cut off.
        rounds_cut_off = 0 if converged(result.shifts, tolerance) else rounds_max
        progress.finish(rounds_cut_off, self)
        self.params_: Params = result.params
        self.shifts_ = result.shifts
        self.n_rounds_ = len(result.shifts)
        return algorithm

    def _check_rounds(self, rounds_max: object, tolerance: object) -> None:
        """Raises `SettingsError` for what is no number of rounds, no tolerance or no fraction."""
        if not isinstance(rounds_max, Integral) or isinstance(rounds_max, bool) or rounds_max < 0:
            raise SettingsError(f"max_rounds = {rounds_max!r}, must be a whole number from 0")
        if not is_number(tolerance):
            raise SettingsError(f"tol = {tolerance!r}, must be a number")
        fraction = getattr(self, "fraction", 1.0)
        if not is_number(fraction):
            raise SettingsError(f"fraction = {fraction!r}, must be above 0, at most 1")

    def _check_options(self, algorithm: RoundsAlgorithm) -> None:
        """Raises `SettingsError` for an option that the algorithm does not take, by the name of the
        parameter."""
        for name, value in self._options().items():
            if not algorithm.options.accepts(name, value):
                parameter = PARAMETERS.get(name, name)
                wanted = algorithm.options.expected(name)
                raise SettingsError(f"{parameter} = {value!r}, must be {wanted}")

    def _algorithm(self) -> RoundsAlgorithm:
        return rounds_algorithm(self.ALGORITHM)

    def _options(self) -> dict[str, Any]:
        return {"clusters": self._n_clusters()}

    def _n_clusters(self) -> int:
        """The parameter `n_clusters`, or the number that its criterion has chosen."""
        number: int = self.n_clusters_
        return number

    def _choose(self, tables: list[Floats], box: InitHint) -> None:
        """Set `n_clusters_`: the parameter `n_clusters`, or the choice of its criterion. Raises
        `SettingsError`."""
        if not hasattr(self, "n_clusters"):
            return  # an algorithm that needs no number
        wanted = self.n_clusters
        if not isinstance(wanted, str):
            # Here, as the options of the algorithms have other names.
            if not isinstance(wanted, Integral) or wanted < 1:
                raise SettingsError(f"n_clusters = {wanted!r}, must be a whole number from 1")
            self.n_clusters_ = int(wanted)
            return
        algorithm = self._algorithm()
        most = getattr(self, "max_clusters", 1)
        options = algorithm.options
        if self.n_clusters not in CRITERIA or not options.accepts("clusters", self.n_clusters):
            names = [name for name in CRITERIA if options.accepts("clusters", name)]
            raise SettingsError(
                f"n_clusters = {self.n_clusters!r}, must be {' or '.join(['a number', *names])}"
            )
        if algorithm.takes("clusters_max") and not options.accepts("clusters_max", most):
            raise SettingsError(
                f"max_clusters = {most!r}, must be {options.expected('clusters_max')}"
            )
        self.n_clusters_ = self._chosen(self.n_clusters, tables, box, most)

    def _chosen(self, criterion: str, tables: list[Floats], box: InitHint, most: int) -> int:
        """The number that a criterion chooses on the local centres of one round of k-FED."""
        landmarks = kfed_landmarks(PER_CLIENT * most, tables, box)
        choice = choose_clusters(criterion, landmarks, most, box.seed)
        number = len(choice.centres)
        if choice.is_most:
            warn_user(
                f'n_clusters = "{criterion}": at least {number} clusters; the criterion is best at '
                "the largest number that was tried. Raise max_clusters; where it still is, the "
                "clusters are not round enough to be counted by this criterion: take another one, "
                "or ClusterTree",
            )
        return number

    def _box(self, tables: list[Floats]) -> InitHint:
        """The box in which rows can lie: the parameter `bounds`, or the smallest box of all
        rows."""
        box = bounding_box(tables, int(getattr(self, "random_state", 0)))
        if (bounds := getattr(self, "bounds", None)) is None:
            return box
        low, high = given_bounds(bounds, len(box.low))
        if self._scale is not None:
            low, high = self._scale.apply(np.array([low, high]))
        if not ((low <= box.low) & (box.high <= high)).all():
            raise SettingsError("bounds must hold every row")
        return InitHint(low, high, box.seed)

    def _init_hint(self, tables: list[Floats], box: InitHint) -> InitHint:
        """Hint for the first parameters: one round of k-FED ("kfed"), random points in the box
        ("box"), or `init`."""
        init = getattr(self, "init", "box")
        if isinstance(init, str):
            if init not in ("kfed", "box"):
                raise SettingsError(f'init = {init!r}, must be "kfed", "box" or a table of centres')
            if init == "kfed":
                return kfed_hint(self._n_clusters(), tables, box)
            return box
        centres = self._on_scale(check_rows(init, len(box.low)))
        return InitHint(box.low, box.high, box.seed, centres)

    def _on_scale(self, rows: Floats) -> Floats:
        """rows (n, d) in the user's units -> on the scale that the algorithm works on."""
        if self._scale is None:
            return rows
        return self._scale.apply(rows)

    def _in_units(self, points: Floats) -> Floats:
        """points (n, d) of the algorithm -> in the user's units."""
        if self._scale is None:
            return points
        return self._scale.undo(points)


class RoundsEstimator(
    CentreDistances,
    ClusterMixin,  # type: ignore[misc]  # scikit-learn has no types
    RoundsEstimatorBase,
):
    """An algorithm in rounds that clusters, as an estimator.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (c, d)
    labels_ : ndarray of shape (n,)
        Clusters of all rows of `fit`, one client after the other, or in the order of a single
        table.
    labels_by_client_ : list of ndarray
    n_clusters_ : int
        The parameter `n_clusters`, or the number that its criterion has chosen.
    n_rounds_ : int
    shifts_ : list of float
        How far each round moved the model.
    params_ : mapping of str to ndarray
        The parameters that the service would publish; with `scale`, of scaled rows.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (d,)
        Only if the tables had names; their columns may then come in any order.
    """

    WHY_NO_WEIGHTS: ClassVar[str] = (
        "each client looks for clusters of its own, from seeds drawn among its rows, and what a "
        "row adds to them is no number that could be multiplied; give a row as often as it counts"
    )

    def fit(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: None = None,
        clients: ArrayLike | None = None,
        **refused: Any,
    ) -> Self:
        """Run the rounds.

        Parameters
        ----------
        X : list of array-like of shape (n_i, d), or array-like of shape (n, d)
            One table for each client, some perhaps empty; or a single table.
        y : ignored
        clients : array-like of shape (n,), optional
            For a single table, the name of the client that has each row; by default one client has
            all.

        Raises `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters.
        """
        refuse_weights("fit", refused, self.WHY_NO_WEIGHTS)
        return self._fit(X, clients, None)

    def _fit(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        clients: ArrayLike | None,
        sample_weight: ArrayLike | Sequence[ArrayLike] | None,
    ) -> Self:
        tables, position = split_by_client(X, clients)
        tables, names = named_tables(X, tables)
        if sample_weight is None:
            tables = self._scaled(tables, names)
            algorithm = self._run_rounds(tables)
        else:
            weights = weights_by_client(sample_weight, tables, position)
            # A row that counts 0 times is as one that is not there: it decides no scale, no box and
            # no start. It has a label.
            learnt = [table[weight > 0] for table, weight in zip(tables, weights, strict=True)]
            learnt = self._scaled(learnt, names)
            algorithm = self._run_rounds(learnt, [weight[weight > 0] for weight in weights])
            tables = [self._on_scale(table) if len(table) else table for table in tables]
        self._warn_of_empty_clusters(algorithm)
        # Of an earlier `fit`: scikit-learn has the attribute only where the last rows had names.
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        self.cluster_centers_: Floats = self._in_units(algorithm.view(self.params_).centres)
        self.n_features_in_ = self.cluster_centers_.shape[1]
        self.labels_by_client_ = [algorithm.predict(self.params_, rows) for rows in tables]
        self.labels_ = np.concatenate(self.labels_by_client_)
        if position is not None:
            # In the order of the user's table, whose rows were dealt out to clients.
            self.labels_ = self.labels_[position]
        return self

    def _warn_of_empty_clusters(self, algorithm: RoundsAlgorithm) -> None:
        """Warn of centres that no row is nearest to: sums move a centre to its rows, and one
        without any stays where it was put."""
        init = getattr(self, "init", "kfed")
        if isinstance(init, str) and init == "kfed":
            # These come from rows, and one that loses all of them is one more than there are.
            return
        mass = algorithm.view(self.params_).centre_mass
        empty = int((mass < EMPTY_MASS).sum())
        if empty:
            warn_user(
                f"{empty} of {len(mass)} centres have no rows, so that the others divide all of "
                'them: they began far from every row. Take init="kfed", or other centres',
            )

    def predict(self, X: ArrayLike) -> Ints:
        """X (n, d) -> (n,) cluster of each row. Raises `InvalidData` for rows and `NotFittedError`
        before `fit`."""
        self._require_fit("predict")
        return self._algorithm().predict(self.params_, self._on_scale(self._as_learnt(X)))

    def _distances(self, X: ArrayLike) -> Floats:
        self._require_fit("transform")
        rows = self._on_scale(self._as_learnt(X))
        return distances_between(rows, self._algorithm().view(self.params_).centres)

    def _cluster_labels(self) -> Ints:
        self._require_fit("get_feature_names_out")
        return np.arange(len(self.cluster_centers_))

    def _scaled(self, tables: list[Floats], names: list[str] | None) -> list[Floats]:
        """The tables of clients on the scale that the parameter `scale` asks for; warns where there
        is none."""
        kind = getattr(self, "scale", None)
        rows = np.concatenate([table for table in tables if len(table)])
        check_scale(kind)
        if kind is None:
            self._scale = None
            warn_of_scales(rows, names)
            return tables
        self._scale = scale_of(rows, kind, getattr(self, "bounds", None))
        return [self._scale.apply(table) if len(table) else table for table in tables]


class WeightedEstimator(RoundsEstimator):
    """An algorithm in rounds of sums, in which a row counts as often as its weight says."""

    def fit(  # type: ignore[override]  # it has a name for what the others refuse
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: None = None,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> Self:
        """Run the rounds.

        Parameters
        ----------
        X : list of array-like of shape (n_i, d), or array-like of shape (n, d)
            One table for each client, some perhaps empty; or a single table.
        y : ignored
        clients : array-like of shape (n,), optional
            For a single table, the name of the client that has each row; by default one client has
            all.
        sample_weight : array-like of shape (n,), or list of array-like of shape (n_i,), optional
            How often each row counts, from 0 on; by default once. From the same first centres, a
            weight of k gives what k equal rows give, up to rounding, and 0 what no row gives. First
            centres and a number that a criterion chooses come from the rows alone, each once. Only
            with `average="sums"`.

        Raises `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters.
        """
        return self._fit(X, clients, sample_weight)


def weights_by_client(
    sample_weight: Any, tables: list[Floats], position: Ints | None
) -> list[Floats]:
    """The weights of each client's rows, (n_i,), of one array (n,) or of an array for each table.

    `position` (n,): where the rows of a single table are in all tables, None if they were in order.
    Raises `InvalidData`.
    """
    sizes = [len(table) for table in tables]
    is_list = isinstance(sample_weight, list | tuple) and any(map(np.ndim, sample_weight))
    if is_list and len(sample_weight) == len(tables):
        for weight, size in zip(sample_weight, sizes, strict=True):
            if np.shape(weight) != (size,):
                raise InvalidData(
                    f"sample_weight of a client has the shape {np.shape(weight)}, its table has "
                    f"{size} rows"
                )
        sample_weight = np.concatenate(sample_weight)
    weights = weights_of(sample_weight, sum(sizes))
    if position is not None:
        # `position` has where each row stands in the tables: the inverse brings its weight there.
        weights = weights[np.argsort(position)]
    return np.split(weights, np.cumsum(sizes)[:-1])


def named_tables(
    X: ArrayLike | Sequence[ArrayLike], tables: list[Floats]
) -> tuple[list[Floats], list[str] | None]:
    """The tables of clients, made of X, with their columns in the order of the first that has
    names; and these names, None without.

    Raises `InvalidData` where a table has other names.
    """
    if not isinstance(X, list | tuple) or len(X) != len(tables):
        return tables, column_names(X)
    names_of = [column_names(table) for table in X]
    learnt = next((names for names in names_of if names is not None), None)
    if learnt is None:
        return tables, None
    ordered = []
    for table, names in zip(tables, names_of, strict=True):
        ordered.append(table if names is None else columns_in_order(table, names, learnt))
    return ordered, learnt


def split_by_client(
    X: ArrayLike | Sequence[ArrayLike], clients: ArrayLike | None
) -> tuple[list[Floats], Ints | None]:
    """One table per client; and (n,) the positions of a single table's rows in all tables, or None
    if unchanged."""
    # A list of rows is one table; a list of tables has one for each client.
    if not isinstance(X, list | tuple) or (len(X) and np.ndim(X[0]) == 1):
        rows = as_table(X)  # type: ignore[arg-type]  # refused there if it is no table
        if not len(rows):
            raise InvalidData("0 sample(s) (rows): there is nothing to learn from")
        if clients is None:
            return [rows], None
        dealt = deal_by_name(len(rows), clients, numbers_ascend=True)
        own = [places for _, places in dealt.rows_of_clients()]
        order = np.concatenate(own)
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        return [rows[places] for places in own], position
    if clients is not None:
        raise InvalidData(
            "clients is for the rows of a single table; a list has one table for each client "
            "already"
        )
    tables = [as_table(table) for table in X]
    width = next((table.shape[1] for table in tables if len(table)), None)
    if width is None:
        raise InvalidData("no client has a row; there is nothing to learn from")
    return [check_rows(table, width) for table in tables], None


__all__ = ["KFED", "MUFC"]


class KFED(RoundsEstimator):
    """k-FED: clustering in one round.

    Parameters
    ----------
    n_clusters : int, default=8
    local_clusters : int, default=0
        Number of clusters that each client looks for; 0: as many as `n_clusters`.
    average : {"weighted", "unweighted"}, default="weighted"
        Whether the server weights centres by their rows; "unweighted" is the paper's.
    pick : {"seeded", "farthest"}, default="seeded"
        How the server starts: by k-means++, the best of up to ten starts; or, as in the paper, from
        the first client's centres and then the farthest ones.
    random_state : int, default=0
    scale : {"bounds", "robust"} or None, default=None
        None: rows as they are, so that the feature with the widest spread decides distances.
        "bounds": each feature from 0 to 1 between its smallest and largest value. "robust": each
        less its median, in standard deviations as its quartiles show them.

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
        average: str = "weighted",
        pick: str = "seeded",
        random_state: int = 0,
        scale: str | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.local_clusters = local_clusters
        self.average = average
        self.pick = pick
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
        Which points a client's cells contain: k-means++ seeds, or the k-means centres found from
        them.
    cells : int, default=100
        Cells of the grid along each feature.
    bounds : pair of numbers or of array-likes of shape (d,), optional
        The box of the grid; by default the smallest box of all rows.
    random_state : int, default=0
    scale : {"bounds", "robust"} or None, default=None
        None: rows as they are, so that the feature with the widest spread decides distances.
        "bounds": each feature from 0 to 1 between its bounds. "robust": each less its median, in
        standard deviations as its quartiles show them.

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
        self.n_clusters = n_clusters
        self.local_clusters = local_clusters
        self.local = local
        self.cells = cells
        self.bounds = bounds
        self.random_state = random_state
        self.scale = scale

    def _options(self) -> dict[str, Any]:
        return {
            **super()._options(),
            "local_clusters": self.local_clusters,
            "local": self.local,
            "cells": self.cells,
        }
