"""FCAC as a library: one object with the faces of scikit-learn and of river, and a whole federation inside.

Rows go to the client half at once, and the server half absorbs what that changed; several virtual clients
show what a federation of them would have found. Neither scikit-learn nor river is needed to use it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.fcac import FcacOptions
from shoal.algorithms.rows import check_rows
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State
from shoal.errors import InvalidData
from shoal.estimators.in_memory import LocalFederation, Table

try:
    from sklearn.base import BaseEstimator, ClusterMixin
except ImportError:

    class BaseEstimator:  # type: ignore[no-redef]  # stands in for the missing one
        """As much of scikit-learn's as is needed without it: parameters that can be read and set by name."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {name: getattr(self, name) for name in sorted(inspect.signature(type(self)).parameters)}

        def set_params(self, **params: Any) -> Self:
            for name, value in params.items():
                if name not in self.get_params():
                    raise ValueError(f"{type(self).__name__} has no parameter {name!r}")
                setattr(self, name, value)
            return self

    class ClusterMixin:  # type: ignore[no-redef]  # stands in for the missing one
        """As much of scikit-learn's as is needed without it: labels in one go."""

        def fit_predict(self, X: ArrayLike, y: None = None, **kwargs: Any) -> NDArray[np.int64]:
            labels: NDArray[np.int64] = self.fit(X, **kwargs).labels_  # type: ignore[attr-defined]  # a mixin
            return labels


__all__ = ["FCAC", "BaseEstimator", "ClusterMixin", "table_of"]

STATE_VERSION = 1
UNKNOWN = -1
"""the cluster of every row while nothing has been learnt"""


class FCAC(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Federated clustering via adaptive resonance theory (Masuyama et al., 2023); finds the number of clusters.

    `fit` learns a whole table and begins anew; `partial_fit`, `learn_one` and `learn_many` go on for ever.
    Before `initial_rows` rows (or a `fit`) every row is predicted as -1, even before the first row: a model
    that knows nothing yet is a normal thing in a stream, so it is no error as it is for most of scikit-learn.

    clients: virtual clients; row i of the stream is learnt by client i mod `clients`.
    random_state: a whole number; the order in which the server is fed is a function of it and nothing else.
    The other parameters are those of `FcacOptions`, which has their meaning.
    Raises `InvalidData` (a ValueError) for rows and `SettingsError` for parameters, when first learning.
    """

    _supervised = False
    """river's pipelines ask every step for this"""

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        *,
        clients: int = 1,
        random_state: int = 0,
        edge_factor: float = FcacOptions.edge_factor,
        initial_rows: int = FcacOptions.initial_rows,
        diversity_cut: float = FcacOptions.diversity_cut,
        diversity_nodes_min: int = FcacOptions.diversity_nodes_min,
        second_winner_factor: float = FcacOptions.second_winner_factor,
        neighbour_factor: float = FcacOptions.neighbour_factor,
        similarity: str = FcacOptions.similarity,
        nodes_max: int | None = FcacOptions.nodes_max,
        contribute: str = FcacOptions.contribute,
    ) -> None:
        self.clients = clients
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

    # scikit-learn's face.

    def fit(self, X: ArrayLike, y: None = None, clients: ArrayLike | None = None) -> Self:
        """X (n, d), n >= 2: begin anew and learn them. `clients` (n,): whose row each one is, under any name."""
        rows, names = table_of(X), _columns(X)
        if len(rows) < 2:
            raise InvalidData(f"n_samples = {len(rows)}; at least 2 rows are needed, for a spread to learn from")
        federation = self._new_federation()
        federation.learn(rows, clients, ended=True)
        self._federation, self._names = federation, names
        self.labels_ = self._predicted(rows)
        return self

    def partial_fit(self, X: ArrayLike, y: None = None, clients: ArrayLike | None = None) -> Self:
        """X (n, d): learn them on top of all before; `labels_` are those of these rows."""
        self.labels_ = self._predicted(self._learn(X, _columns(X), clients))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """X (n, d) -> (n,) cluster of the nearest node, -1 while nothing has been learnt."""
        return self._predicted(self._rows(X, _columns(X)))

    @property
    def n_features_in_(self) -> int:
        """d, from the first row on."""
        self._require("n_features_in_")
        return self._federation.width

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """(d,) names in the order of the features, if the first rows had names."""
        self._require("feature_names_in_")
        if self._names is None:
            raise AttributeError("feature_names_in_ is not there: the first rows had no names")
        return np.array(self._names, dtype=object)

    @property
    def cluster_centers_(self) -> NDArray[np.float64]:
        """(c, d) mean of the nodes of each cluster, weighted by winning count, from the first row on."""
        self._require("cluster_centers_")
        centres: NDArray[np.float64] = self._federation.server.snapshot()["centre"]
        return centres.reshape(-1, self.n_features_in_)

    @property
    def n_clusters_(self) -> int:
        """Clusters found so far, from the first row on."""
        self._require("n_clusters_")
        return len(self._federation.server.snapshot()["centre"])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    # river's face.

    def learn_one(self, x: Mapping[str, Any]) -> None:
        """Learn one row, its features by name. The first row fixes the names; their order is the sorted one.

        If the rows before came without names, the sorted order is taken to be theirs.
        """
        names = (self._names if self._begun() else None) or sorted(map(str, x))
        self._learn([_values(x, names)], names, None)

    def learn_many(self, X: ArrayLike) -> None:
        """Learn the rows of a DataFrame, its names as in `learn_one`, or of an array (n, d)."""
        names = _columns(X)
        if names is not None and not self._begun():
            X, names = X[sorted(names)], sorted(names)  # type: ignore[call-overload,index]  # a DataFrame
        self._learn(X, names, None)

    def predict_one(self, x: Mapping[str, Any]) -> int:
        """The cluster of one row, -1 while nothing has been learnt."""
        if not self._begun():
            return UNKNOWN
        return int(self.predict([_values(x, self._names or sorted(map(str, x)))])[0])

    def predict_many(self, X: ArrayLike) -> NDArray[np.int64]:
        """As `predict`."""
        return self.predict(X)

    # Saving, without pickle.

    def state(self) -> State:
        """Everything that later learning depends on, for `shoal.protocol.codec.pack`; without `labels_`."""
        begun = self._begun()
        return {
            "version": STATE_VERSION,
            "estimator": type(self).__name__,
            "parameters": self._plain_parameters(),
            "names": self._names if begun else None,
            "federation": self._federation.state() if begun else None,
        }

    def restore(self, state: State) -> Self:
        """Become the saved one, of the same parameters. Raises `InvalidState`; then nothing has changed."""
        saved = StateReader(state, STATE_VERSION, estimator=type(self).__name__, parameters=self._plain_parameters())
        names, inside = state.get("names"), state.get("federation")
        saved.check(names is None or _are_names(names), "names must be a list of strings")
        saved.check(names is None or inside is not None, "there are names and no rows")
        fresh: dict[str, Any] = {}
        if inside is not None:
            federation = self._new_federation()
            federation.restore(inside)
            saved.check(names is None or len(names) == federation.width, "not as many names as features")
            fresh = {"_federation": federation, "_names": names}
        for left_over in ("_federation", "_names", "labels_"):
            self.__dict__.pop(left_over, None)
        self.__dict__.update(fresh)
        return self

    # Inside. `_federation` and `_names` are there from the first rows on.

    def _begun(self) -> bool:
        return hasattr(self, "_federation")

    def _require(self, attribute: str) -> None:
        if not self._begun():
            raise AttributeError(f"{attribute} is not there before the first row; call fit, partial_fit or learn_one")

    def _new_federation(self) -> LocalFederation:
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(FcacOptions)}
        return LocalFederation(options, self.clients, self.random_state)

    def _learn(self, X: ArrayLike, names: list[str] | None, clients: ArrayLike | None) -> Table:
        rows = self._rows(X, names)
        federation = self._federation if self._begun() else self._new_federation()
        federation.learn(rows, clients)
        if not self._begun() and len(rows):
            self._federation, self._names = federation, names
        return rows

    def _predicted(self, rows: Table) -> NDArray[np.int64]:
        if not self._begun():
            return np.full(len(rows), UNKNOWN, dtype=np.int64)
        return self._federation.server.predict(rows)

    def _rows(self, X: ArrayLike, names: list[str] | None) -> Table:
        """X as a table of the width, and in the order of features, that were learnt."""
        rows = table_of(X)
        if not self._begun():
            return rows
        width = self.n_features_in_
        if len(rows) and rows.shape[1] != width:
            raise InvalidData(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is expecting {width} features as input"
            )
        if names is None or self._names is None or names == self._names:
            return rows
        if sorted(names) != sorted(self._names):
            raise InvalidData(f"features {_shown(names)} were given, {_shown(self._names)} were learnt")
        return np.ascontiguousarray(rows[:, [names.index(name) for name in self._names]])

    def _plain_parameters(self) -> dict[str, Any]:
        params = self.get_params(deep=False)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}


def table_of(X: ArrayLike) -> Table:
    """X (n, d) -> finite float64. Raises `InvalidData`, in words that scikit-learn's users know, without a value."""
    if hasattr(X, "toarray"):
        raise InvalidData("sparse rows are not supported; give X.toarray()")
    try:
        given = np.asarray(X)
        if given.dtype.kind == "O":
            given = given.astype(np.float64)
    except ValueError:
        raise InvalidData("X must be a table (n, d) of numbers; it has text, or rows of unequal lengths") from None
    if given.dtype.kind == "c":
        raise InvalidData("Complex data not supported: give real numbers")
    if given.ndim == 1:
        raise InvalidData("X has 1 dimension, must be a table (n, d). Reshape your data: X[None] is one row")
    if given.ndim == 2 and len(given) and given.shape[1] == 0:
        raise InvalidData(f"0 feature(s) (shape={given.shape}) while a minimum of 1 is required.")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise InvalidData(f"X has {int((~np.isfinite(given)).sum())} cells that are NaN or inf; fill or drop them")
    return check_rows(given, None)


def _columns(X: Any) -> list[str] | None:
    """The names of a DataFrame's columns, if all are strings."""
    columns = getattr(X, "columns", None)
    names = None if columns is None else list(columns)
    return names if names and _are_names(names) else None


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _values(x: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """A row by name in the order of `names`. Raises `InvalidData`."""
    if set(map(str, x)) != set(names):
        raise InvalidData(f"features {_shown(sorted(map(str, x)))} were given, {_shown(names)} were learnt")
    by_name = {str(name): value for name, value in x.items()}
    return [by_name[name] for name in names]


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
