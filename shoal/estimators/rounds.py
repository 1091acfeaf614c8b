"""The base of the estimators of algorithms in rounds, with the interface of scikit-learn.

`fit` runs in memory the functions that the service runs on clients and server, so it gives the same numbers.
Scikit-learn does not need to be installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.options import CRITERIA
from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import InitHint, Params, RoundsAlgorithm
from shoal.algorithms.rounds.choice import choose_clusters
from shoal.algorithms.rounds.simulation import bounding_box, kfed_hint, kfed_landmarks, run_rounds
from shoal.algorithms.streaming import check_rows
from shoal.errors import InvalidData, SettingsError
from shoal.estimators.base import (
    BaseEstimator,
    ClusterMixin,
    NotFittedError,
    as_table,
    check_n_features,
    column_names,
    shortened,
    warn_of_scales,
)
from shoal.kernels.arrays import Floats, Ints

PER_CLIENT = 2
"""local centres of a client for each cluster that a criterion may choose"""


class RoundsEstimatorBase(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Runs an algorithm in rounds over tables in memory. A subclass names its algorithm and gives its options."""

    ALGORITHM: ClassVar[str]

    def _run_rounds(self, tables: list[Floats]) -> RoundsAlgorithm:
        """Run the rounds over one table for each client; sets what all subclasses have. Returns the algorithm."""
        algorithm = self._algorithm()
        box = self._box(tables)
        self._choose(tables, box)
        params = algorithm.start(self._options(), len(box.low), self._init_hint(tables, box))
        result = run_rounds(
            algorithm,
            params,
            tables,
            rounds_max=getattr(self, "max_rounds", 1),
            tolerance=getattr(self, "tol", 0.0),
            fraction=getattr(self, "fraction", 1.0),
            policy=getattr(self, "policy", None),
            seed=int(getattr(self, "random_state", 0)),
        )
        self.params_: Params = result.params
        self.shifts_, self.n_rounds_ = result.shifts, len(result.shifts)
        return algorithm

    def _algorithm(self) -> RoundsAlgorithm:
        return rounds_algorithm(self.ALGORITHM)

    def _options(self) -> dict[str, Any]:
        return {"clusters": self._n_clusters()}

    def _n_clusters(self) -> int:
        """The parameter `n_clusters`, or the number that its criterion has chosen."""
        chosen: int = self.n_clusters_ if isinstance(self.n_clusters, str) else self.n_clusters
        return chosen

    def _choose(self, tables: list[Floats], box: InitHint) -> None:
        """Set `n_clusters_`: the parameter `n_clusters`, or the choice of its criterion. Raises `SettingsError`."""
        wanted = getattr(self, "n_clusters", None)
        if wanted is None:
            return  # an algorithm that needs no number
        if not isinstance(wanted, str):
            self.n_clusters_ = wanted
            return
        algorithm, most = self._algorithm(), getattr(self, "max_clusters", 1)
        options = algorithm.options
        if self.n_clusters not in CRITERIA or not options.accepts("clusters", self.n_clusters):
            names = [name for name in CRITERIA if options.accepts("clusters", name)]
            raise SettingsError(f"n_clusters = {self.n_clusters!r}, must be {' or '.join(['a number', *names])}")
        if algorithm.takes("clusters_max") and not options.accepts("clusters_max", most):
            raise SettingsError(f"max_clusters = {most!r}, must be {options.expected('clusters_max')}")
        self.n_clusters_ = self._chosen(self.n_clusters, tables, box, most)

    def _chosen(self, criterion: str, tables: list[Floats], box: InitHint, most: int) -> int:
        """The number that a criterion chooses on the local centres of one round of k-FED."""
        landmarks = kfed_landmarks(PER_CLIENT * most, tables, box)
        return len(choose_clusters(criterion, landmarks, most, box.seed).centres)

    def _box(self, tables: list[Floats]) -> InitHint:
        """The box in which rows can lie: the parameter `bounds`, or the smallest box of all rows."""
        box = bounding_box(tables, int(getattr(self, "random_state", 0)))
        if (bounds := getattr(self, "bounds", None)) is None:
            return box
        try:
            low, high = (np.broadcast_to(np.asarray(bound, dtype=np.float64), box.low.shape) for bound in bounds)
        except (TypeError, ValueError):
            raise SettingsError("bounds must be two numbers, or two rows of one number per feature") from None
        if not ((low <= box.low) & (box.high <= high)).all() or not np.isfinite([low, high]).all():
            raise SettingsError("bounds must be finite and hold every row")
        return InitHint(low.copy(), high.copy(), box.seed)

    def _init_hint(self, tables: list[Floats], box: InitHint) -> InitHint:
        """Hint for the first parameters: one round of k-FED ("kfed"), random points in the box ("box"), or `init`."""
        init = getattr(self, "init", "box")
        if isinstance(init, str):
            if init not in ("kfed", "box"):
                raise SettingsError(f'init = {init!r}, must be "kfed", "box" or a table of centres')
            return kfed_hint(self._n_clusters(), tables, box) if init == "kfed" else box
        return InitHint(box.low, box.high, box.seed, check_rows(init, len(box.low)))


class RoundsEstimator(ClusterMixin, RoundsEstimatorBase):  # type: ignore[misc]  # scikit-learn has no types
    """An algorithm in rounds that clusters, as an estimator.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (c, d)
    labels_ : ndarray of shape (n,)
        Clusters of all rows of `fit`, one client after the other, or in the order of a single table.
    labels_by_client_ : list of ndarray
    n_clusters_ : int
        The parameter `n_clusters`, or the number that its criterion has chosen.
    n_rounds_ : int
    shifts_ : list of float
        How far each round moved the model.
    params_ : mapping of str to ndarray
        The parameters that the service would publish.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (d,)
        Only if the tables had names; `predict` then refuses other names, and the same in another order.
    """

    def fit(self, X: ArrayLike | Sequence[ArrayLike], y: None = None, clients: ArrayLike | None = None) -> Self:
        """Run the rounds.

        Parameters
        ----------
        X : list of array-like of shape (n_i, d), or array-like of shape (n, d)
            One table for each client, some perhaps empty; or a single table.
        y : ignored
        clients : array-like of shape (n,), optional
            For a single table, the name of the client that has each row; by default one client has all.

        Raises `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters.
        """
        tables, position = split_by_client(X, clients)
        names = names_of_tables(X)
        warn_of_scales(np.concatenate([table for table in tables if len(table)]), names)
        algorithm = self._run_rounds(tables)
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        self.cluster_centers_: Floats = algorithm.view(self.params_).centres
        self.n_features_in_ = self.cluster_centers_.shape[1]
        self.labels_by_client_ = [algorithm.predict(self.params_, rows) for rows in tables]
        labels = np.concatenate(self.labels_by_client_)
        self.labels_ = labels if position is None else labels[position]
        return self

    def predict(self, X: ArrayLike) -> Ints:
        """X (n, d) -> (n,) cluster of each row. Raises `InvalidData` for rows and `NotFittedError` before `fit`."""
        if not hasattr(self, "params_"):
            raise NotFittedError(f"this {type(self).__name__} has learnt nothing yet; call fit first")
        rows = as_table(X)
        check_n_features(rows, self.n_features_in_, self)
        known = getattr(self, "feature_names_in_", None)
        if known is not None:
            check_names(column_names(X), known.tolist())
        return self._algorithm().predict(self.params_, rows.reshape(-1, self.n_features_in_))


def names_of_tables(X: ArrayLike | Sequence[ArrayLike]) -> list[str] | None:
    """The names of the columns of one table, or of all in a list; None without. Raises `InvalidData` (they differ)."""
    names = [column_names(table) for table in X] if isinstance(X, list | tuple) else [column_names(X)]
    known = [one for one in names if one is not None]
    for one in known:
        check_names(one, known[0])
    return known[0] if known else None


def check_names(names: list[str] | None, known: list[str]) -> None:
    """Raise `InvalidData` for other names than the known ones, or another order; tables without names pass."""
    if names is None or names == known:
        return
    if sorted(names) == sorted(known):
        raise InvalidData(f"features in another order: {shortened(names)}, where {shortened(known)} were learnt")
    raise InvalidData(f"features {shortened(names)} were given, {shortened(known)} were learnt")


def split_by_client(X: ArrayLike | Sequence[ArrayLike], clients: ArrayLike | None) -> tuple[list[Floats], Ints | None]:
    """One table per client; and (n,) the positions of a single table's rows in all tables, or None if unchanged."""
    if not isinstance(X, list | tuple) or (len(X) and np.ndim(X[0]) == 1):
        rows = as_table(X)  # type: ignore[arg-type]  # refused there if it is no table
        if not len(rows):
            raise InvalidData("0 sample(s) (rows): there is nothing to learn from")
        if clients is None:
            return [rows], None
        names = np.asarray(clients)
        if names.shape != (len(rows),):
            raise InvalidData(f"clients has shape {names.shape}; it must name one for each of the {len(rows)} rows")
        _, number = np.unique(names, return_inverse=True)
        # Stable: the rows of a client keep their order.
        order = np.argsort(number, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        cuts = np.cumsum(np.bincount(number))[:-1]
        return np.split(rows[order], cuts), position
    if clients is not None:
        raise InvalidData("clients is for the rows of a single table; a list has one table for each client already")
    tables = [as_table(each) for each in X]
    width = next((table.shape[1] for table in tables if len(table)), None)
    if width is None:
        raise InvalidData("no client has a row; there is nothing to learn from")
    return [check_rows(table, width) for table in tables], None
