"""Federated clustering as a library, with the face of scikit-learn: rows of several clients in, one clustering out.

`FederatedKMeans(n_clusters=3).fit([rows_of_one, rows_of_another])` runs in memory what the service runs between
machines: the same functions, so the same numbers. A single table stands for a single client; `clients` says whose row
each of its rows is. Scikit-learn is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import InitHint, Params, RoundsAlgorithm
from shoal.algorithms.rounds.policies import Policy
from shoal.algorithms.rounds.simulation import bounding_box, kfed_hint, run_rounds
from shoal.algorithms.rows import check_rows
from shoal.errors import InvalidData, SettingsError
from shoal.estimators.streaming import BaseEstimator, ClusterMixin, table_of
from shoal.kernels.gaussian import matrices

try:
    from sklearn.exceptions import NotFittedError as _NotFitted
except ImportError:
    _NotFitted = AttributeError

Floats = NDArray[np.float64]


class NotFittedError(SettingsError, _NotFitted):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator was asked before it was fitted; one of ours and, where it is installed, of scikit-learn's."""


class Rounds(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What the estimators have in common. After `fit`:

    cluster_centers_ (c, d); labels_ (n,) of all rows, clients one after the other; labels_by_client_, one array each;
    n_rounds_; shifts_, how far each round moved the model; params_, what the service would have published.
    """

    ALGORITHM: ClassVar[str]

    def fit(self, X: ArrayLike | Sequence[ArrayLike], y: None = None, clients: ArrayLike | None = None) -> Self:
        """X: a table (n, d), or a list of tables (n_i, d), one for each client, some perhaps without rows.

        `clients` (n,) says whose row each row of a single table is; `labels_` then are in the order of the table.
        Raises `InvalidData` (a ValueError) for rows and `SettingsError` for parameters.
        """
        tables, order = _tables(X, clients)
        algorithm = self._algorithm()
        box = self._box(tables)
        params = algorithm.start(self._options(), len(box.low), self._begin(tables, box))
        found = run_rounds(
            algorithm,
            params,
            tables,
            rounds_max=getattr(self, "max_rounds", 1),
            tolerance=getattr(self, "tol", 0.0),
            fraction=getattr(self, "fraction", 1.0),
            policy=getattr(self, "policy", None),
            seed=int(self.random_state),
        )
        self.params_: Params = found.params
        self.shifts_, self.n_rounds_ = found.shifts, len(found.shifts)
        self.cluster_centers_: Floats = found.params["centre"]
        self.n_features_in_ = len(box.low)
        self.labels_by_client_ = [algorithm.predict(found.params, rows) for rows in tables]
        labels = np.concatenate(self.labels_by_client_)
        self.labels_ = labels if order is None else labels[order]
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """X (n, d) -> (n,) clusters. Raises `InvalidData`."""
        if not hasattr(self, "params_"):
            raise NotFittedError(f"this {type(self).__name__} has learnt nothing yet; call fit first")
        rows, width = table_of(X), self.n_features_in_
        if len(rows) and rows.shape[1] != width:
            name = type(self).__name__
            raise InvalidData(f"X has {rows.shape[1]} features, but {name} is expecting {width} features as input")
        return self._algorithm().predict(self.params_, rows.reshape(-1, width))

    def _algorithm(self) -> RoundsAlgorithm:
        return rounds_algorithm(self.ALGORITHM)

    def _options(self) -> dict[str, Any]:
        return {"clusters": self.n_clusters}

    def _box(self, tables: list[Floats]) -> InitHint:
        """Where rows can lie: the rows' own box, or the `bounds` that all clients have agreed on."""
        box = bounding_box(tables, int(self.random_state))
        if (bounds := getattr(self, "bounds", None)) is None:
            return box
        try:
            low, high = (np.broadcast_to(np.asarray(bound, dtype=np.float64), box.low.shape) for bound in bounds)
        except (TypeError, ValueError):
            raise SettingsError("bounds must be two numbers, or two rows of one number per feature") from None
        if not ((low <= box.low) & (box.high <= high)).all() or not np.isfinite([low, high]).all():
            raise SettingsError("bounds must be finite and hold every row")
        return InitHint(low.copy(), high.copy(), box.seed)

    def _begin(self, tables: list[Floats], box: InitHint) -> InitHint:
        """By `init`: "kfed", one round of k-FED; "box", anywhere in the rows' box; or centres (h, d)."""
        init = getattr(self, "init", "box")
        if isinstance(init, str):
            if init not in ("kfed", "box"):
                raise SettingsError(f'init = {init!r}, must be "kfed", "box" or a table of centres')
            return kfed_hint(rounds_algorithm("kfed"), self.n_clusters, tables, box) if init == "kfed" else box
        return InitHint(box.low, box.high, box.seed, check_rows(init, len(box.low)))


class FederatedKMeans(Rounds):
    """k-means. `average`: "sums", exact; or the means of `local_steps` of Lloyd's steps alone, "weighted" by rows or
    "unweighted"."""

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        n_clusters: int = 8,
        *,
        average: str = "sums",
        local_steps: int = 5,
        init: Any = "kfed",
        bounds: Any = None,
        max_rounds: int = 100,
        tol: float = 1e-9,
        fraction: float = 1.0,
        policy: Policy | None = None,
        random_state: int = 0,
    ) -> None:
        self.n_clusters, self.average, self.local_steps = n_clusters, average, local_steps
        self.init, self.bounds = init, bounds
        self.max_rounds, self.tol, self.fraction, self.policy = max_rounds, tol, fraction, policy
        self.random_state = random_state

    def _algorithm(self) -> RoundsAlgorithm:
        return rounds_algorithm("kmeans" if self.average == "sums" else "kmeans_local")

    def _options(self) -> dict[str, Any]:
        if self.average == "sums":
            return super()._options()
        return {**super()._options(), "average": self.average, "steps": self.local_steps}


class FederatedFCM(Rounds):
    """Fuzzy c-means. `average`: "sums", exact; or FFCM's "avg1" and "avg2" of what clients reach alone, by a `local`
    "fit" or "step", with the `support` of centres from "memberships" or their "powers"."""

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        n_clusters: int = 8,
        *,
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
    ) -> None:
        self.n_clusters, self.fuzzifier, self.average = n_clusters, fuzzifier, average
        self.local, self.support, self.init, self.bounds = local, support, init, bounds
        self.max_rounds, self.tol, self.fraction, self.policy = max_rounds, tol, fraction, policy
        self.random_state = random_state

    def _algorithm(self) -> RoundsAlgorithm:
        return rounds_algorithm("fcm" if self.average == "sums" else "ffcm")

    def _options(self) -> dict[str, Any]:
        options = {**super()._options(), "fuzzifier": self.fuzzifier}
        if self.average == "sums":
            return options
        return {**options, "average": self.average, "local": self.local, "support": self.support}


class FederatedGMM(Rounds):
    """Gaussian mixture. `average`: "sums", exact; or the means of at most `local_steps` of EM alone, "weighted" by rows
    or "unweighted", of components that overlap most or stand in the same place (`match`: "overlap", "place").

    After `fit` also weights_ (k,) and covariances_ (k, d, d).
    """

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        n_clusters: int = 8,
        *,
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
    ) -> None:
        self.n_clusters, self.covariance, self.ridge, self.average = n_clusters, covariance, ridge, average
        self.match, self.local_steps, self.init, self.bounds = match, local_steps, init, bounds
        self.max_rounds, self.tol, self.fraction, self.policy = max_rounds, tol, fraction, policy
        self.random_state = random_state

    def _algorithm(self) -> RoundsAlgorithm:
        return rounds_algorithm("gmm" if self.average == "sums" else "gmm_local")

    def _options(self) -> dict[str, Any]:
        options = {**super()._options(), "covariance": self.covariance, "ridge": self.ridge}
        if self.average == "sums":
            return options
        return {**options, "average": self.average, "match": self.match, "steps": self.local_steps}

    @property
    def weights_(self) -> Floats:
        """(k,) share of the rows in each component."""
        return np.asarray(self.params_["weight"] / self.params_["weight"].sum())

    @property
    def covariances_(self) -> Floats:
        """(k, d, d), whatever the form."""
        return matrices(self.covariance, self.params_["spread"], *self.cluster_centers_.shape).copy()


class KFED(Rounds):
    """k-FED: one round. `local_clusters`: how many each client looks for; 0: as many as there are to be."""

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


class MUFC(Rounds):
    """MUFC: one round of counts in cells of a grid. `cells`: the grid's steps along each feature."""

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


def _tables(
    X: ArrayLike | Sequence[ArrayLike], clients: ArrayLike | None
) -> tuple[list[Floats], NDArray[np.int64] | None]:
    """-> one table per client, and where each row of a single table went, if it was dealt out."""
    if not isinstance(X, list | tuple) or (len(X) and np.ndim(X[0]) == 1):
        rows = table_of(X)  # type: ignore[arg-type]  # refused there if it is no table
        if not len(rows):
            raise InvalidData("0 sample(s) (rows): there is nothing to learn from")
        if clients is None:
            return [rows], None
        names = np.asarray(clients)
        if names.shape != (len(rows),):
            raise InvalidData(f"clients has shape {names.shape}; it must name one for each of the {len(rows)} rows")
        _, number = np.unique(names, return_inverse=True)
        order = np.argsort(number, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        cuts = np.cumsum(np.bincount(number))[:-1]
        return np.split(rows[order], cuts), place
    if clients is not None:
        raise InvalidData("clients names the owners of the rows of one table; a list of tables has its clients already")
    tables = [table_of(each) for each in X]
    width = next((table.shape[1] for table in tables if len(table)), None)
    if width is None:
        raise InvalidData("no client has a row; there is nothing to learn from")
    return [check_rows(table, width) for table in tables], None
