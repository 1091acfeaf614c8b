"""The base of streaming estimators: one object with the interfaces of scikit-learn and of river.

Inside is a federation in memory: rows are learnt by its clients, and the server absorbs what they contribute. Neither
scikit-learn nor river needs to be installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import ServerHalf, State
from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.errors import InvalidData
from shoal.estimators.base import (
    BaseEstimator,
    ClusterMixin,
    Table,
    as_table,
    check_n_features,
    column_names,
    is_name_list,
    row_values,
    shortened,
)
from shoal.estimators.in_memory import InMemoryFederation
from shoal.estimators.plotting import draw_view

STATE_VERSION = 1


class Federation(Protocol):
    """What an estimator needs of a federation in memory."""

    width: int

    @property
    def server(self) -> ServerHalf:
        """The half that predicts."""
        ...

    def learn(self, rows: Table, client_names: ArrayLike | None, is_last: bool = False) -> None:
        """rows (n, d) of clients (n,), in order; `is_last`: no more will follow. Raises `InvalidData`."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class StreamingEstimator(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A streaming algorithm as an estimator.

    A subclass names its algorithm, and its `__init__` has the parameters `clients` and `random_state`, one for each
    option of the algorithm, and `update_readings` if a client is to contribute more than once in a long call.
    `_federation` and `_names` exist once a row has been learnt.
    """

    ALGORITHM: ClassVar[str]
    ROWS_MIN: ClassVar[int] = 1
    """rows that `fit` needs"""
    FEDERATION: ClassVar[type[InMemoryFederation]] = InMemoryFederation

    _supervised = False
    """river's pipelines ask every step for this"""

    # scikit-learn's interface.

    def fit(self, X: ArrayLike, y: None = None, clients: ArrayLike | None = None) -> Self:
        """Discard what was learnt, and learn a whole table.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : ignored
        clients : array-like of shape (n,), optional
            The name of the client that has each row; by default rows are dealt to `self.clients` clients in turn.

        Raises `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters.
        """
        rows, names = as_table(X), column_names(X)
        if len(rows) < self.ROWS_MIN:
            raise InvalidData(f"n_samples = {len(rows)}; at least {self.ROWS_MIN} rows are needed")
        federation = self._new_federation(rows.shape[1])
        federation.learn(self._to_learnt(rows), clients, is_last=True)
        self._federation, self._names = federation, names
        self.labels_ = self._predict(rows)
        return self

    def partial_fit(self, X: ArrayLike, y: None = None, clients: ArrayLike | None = None) -> Self:
        """Learn the rows X (n, d) in addition to all before; `labels_` are then the clusters of these rows."""
        self.labels_ = self._predict(self._learn(X, column_names(X), clients))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """X (n, d) -> (n,) cluster of each row, -1 as long as there is no cluster. Raises `InvalidData`."""
        return self._predict(self._as_learnt(X, column_names(X)))

    @property
    def n_features_in_(self) -> int:
        """Number of features, d, once a row has been learnt."""
        self._require_rows("n_features_in_")
        return self._federation.width

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """(d,) names of the features, if the first rows had names."""
        self._require_rows("feature_names_in_")
        if self._names is None:
            raise AttributeError("feature_names_in_ does not exist: the first rows had no names")
        return np.array(self._names, dtype=object)

    @property
    def cluster_centers_(self) -> NDArray[np.float64]:
        """(c, d) centre of each cluster, once a row has been learnt."""
        self._require_rows("cluster_centers_")
        return self._from_learnt(self._view().centres.reshape(-1, self.n_features_in_))

    @property
    def n_clusters_(self) -> int:
        """Number of clusters, once a row has been learnt."""
        self._require_rows("n_clusters_")
        return self._view().summary().clusters

    def plot(self, features: Sequence[int | str] | None = None, ax: Any = None) -> Any:
        """Draw the nodes that have been learnt, coloured by cluster, as large as the rows that each stands for.

        Parameters
        ----------
        features : sequence of two positions or names, optional
            The features to draw, across and up; by default the two over which clusters differ most, compared with the
            spread within them.
        ax : matplotlib Axes, optional
            Where to draw; by default in a new figure of pyplot.

        Returns
        -------
        matplotlib Axes

        Raises `MissingExtra` without matplotlib, and `SettingsError` for other features.
        """
        self._require_rows("plot")
        names = self._names or [f"feature {position}" for position in range(self.n_features_in_)]
        view = self._view()
        return draw_view(view, self._from_learnt(view.nodes.reshape(-1, self.n_features_in_)), names, features, ax)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    # river's interface.

    def learn_one(self, x: Mapping[str, Any]) -> None:
        """Learn one row, given by feature name. The first row fixes the names and their order, which is alphabetical.

        If rows without names were learnt before, their features are taken to be in alphabetical order.
        """
        names = (self._names if self._has_rows() else None) or sorted(map(str, x))
        self._learn([row_values(x, names)], names, None)

    def learn_many(self, X: ArrayLike) -> None:
        """Learn the rows of a DataFrame, with names as in `learn_one`, or of an array (n, d)."""
        names = column_names(X)
        if names is not None and not self._has_rows():
            X, names = X[sorted(names)], sorted(names)  # type: ignore[call-overload,index]  # a DataFrame
        self._learn(X, names, None)

    def predict_one(self, x: Mapping[str, Any]) -> int:
        """The cluster of one row, -1 as long as there is no cluster."""
        if not self._has_rows():
            return NO_CLUSTER
        return int(self.predict([row_values(x, self._names or sorted(map(str, x)))])[0])

    def predict_many(self, X: ArrayLike) -> NDArray[np.int64]:
        """The same as `predict`."""
        return self.predict(X)

    # Saving, without pickle.

    def state(self) -> State:
        """Everything that further learning depends on, for `shoal.protocol.codec.pack`; without `labels_`."""
        return {
            "version": STATE_VERSION,
            "estimator": type(self).__name__,
            "parameters": self._plain_parameters(),
            "names": self._names if self._has_rows() else None,
            "federation": self._federation.state() if self._has_rows() else None,
        }

    def restore(self, state: State) -> Self:
        """Become the saved estimator, which must have the same parameters.

        Raises `InvalidState`; then nothing has changed.
        """
        saved = StateReader(state, STATE_VERSION, estimator=type(self).__name__, parameters=self._plain_parameters())
        names, inside = state.get("names"), state.get("federation")
        saved.check(names is None or is_name_list(names), "names must be a list of strings")
        saved.check(names is None or inside is not None, "there are names and no rows")
        restored: dict[str, Any] = {}
        if inside is not None:
            saved.check(isinstance(inside, Mapping), "federation must be a mapping")
            federation = self._new_federation(StateReader(inside, inside.get("version", 0)).read_int("width", least=1))
            federation.restore(inside)
            saved.check(names is None or len(names) == federation.width, "not as many names as features")
            restored = {"_federation": federation, "_names": names}
        for attribute in ("_federation", "_names", "labels_"):
            self.__dict__.pop(attribute, None)
        self.__dict__.update(restored)
        return self

    def _has_rows(self) -> bool:
        return hasattr(self, "_federation")

    def _require_rows(self, attribute: str) -> None:
        if not self._has_rows():
            raise AttributeError(f"{attribute} does not exist before the first row; call fit, partial_fit or learn_one")

    def _new_federation(self, width: int) -> Federation:
        options = self.get_params(deep=False)
        clients, seed = options.pop("clients"), options.pop("random_state")
        update_readings = options.pop("update_readings", None)
        return self.FEDERATION(self.ALGORITHM, options, width, clients, seed, update_readings)

    def _learn(self, X: ArrayLike, names: list[str] | None, clients: ArrayLike | None) -> Table:
        rows = self._as_learnt(X, names)
        federation = self._federation if self._has_rows() else self._new_federation(max(1, rows.shape[1]))
        federation.learn(self._to_learnt(rows), clients, is_last=False)
        if not self._has_rows() and len(rows):
            self._federation, self._names = federation, names
        return rows

    def _predict(self, rows: Table) -> NDArray[np.int64]:
        if not self._has_rows():
            return np.full(len(rows), NO_CLUSTER, dtype=np.int64)
        return self._federation.server.predict(self._to_learnt(rows))

    def _view(self) -> ClusteringView:
        return streaming_algorithm(self.ALGORITHM).view(self._federation.server.snapshot())

    def _to_learnt(self, rows: Table) -> Table:
        """Rows as given -> in the coordinates in which the algorithm learns."""
        return rows

    def _from_learnt(self, points: Table) -> Table:
        """Points in the coordinates in which the algorithm learns -> as rows are given."""
        return points

    def _as_learnt(self, X: ArrayLike, names: list[str] | None) -> Table:
        """X as a table with the number and the order of the features that were learnt."""
        rows = as_table(X)
        if not self._has_rows():
            return rows
        check_n_features(rows, self.n_features_in_, self)
        if names is None or self._names is None or names == self._names:
            return rows
        if sorted(names) != sorted(self._names):
            raise InvalidData(f"features {shortened(names)} were given, {shortened(self._names)} were learnt")
        return np.ascontiguousarray(rows[:, [names.index(name) for name in self._names]])

    def _plain_parameters(self) -> dict[str, Any]:
        params = self.get_params(deep=False)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
