"""The bases of streaming estimators, as scikit-learn and river have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import State
from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.errors import InvalidData
from shoal.estimators.base import (
    BaseEstimator,
    ClusterMixin,
    Features,
    Progress,
    RiverClusterer,
    as_table,
    column_names,
    draw_view,
    learnt_table,
    names_of_row,
    not_fitted,
    refuse_weights,
    row_values,
    warn_of_scales,
)
from shoal.estimators.distances import CentreDistances, distances_between
from shoal.estimators.scaling import ScaledFederation
from shoal.kernels.arrays import Floats, Ints, Objects
from shoal.saved_state import Opaque, SavedState, Whole, require, state_type
from shoal.simulation.counting import WindowFederation
from shoal.simulation.streaming import StreamingFederation

if TYPE_CHECKING:  # an extra
    from matplotlib.axes import Axes

# The standard deviation of 50 rows is known to about a tenth of itself.
WARNED_ROWS_MIN = 50
"""fewest rows of a call that say how wide a feature spreads"""
OF_THE_ESTIMATOR: Final = ("verbose", "max_seconds")
"""parameters that change nothing that is learnt"""


def _plain(value: Any) -> Any:
    """A parameter as a saved state has it: arrays and tuples as lists."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


@state_type
class EstimatorState(SavedState):
    """What an estimator has learnt, and the names of the features."""

    version: ClassVar[int] = 2

    width: Annotated[int | None, Whole(least=1)]
    """number of features; None: no row has been learnt"""
    names: list[str] | None
    federation: Annotated[State | None, Opaque()]

    def check(self) -> None:
        require(
            (self.federation is None) == (self.width is None),
            "there is a federation once rows were learnt, and only then",
        )
        require(
            self.names is None or len(self.names) == self.width, "not as many names as features"
        )


LearntFederation = StreamingFederation | WindowFederation | ScaledFederation


class StreamingEstimator(
    CentreDistances,
    ClusterMixin,  # type: ignore[misc]  # scikit-learn has no types
    BaseEstimator,  # type: ignore[misc]  # scikit-learn has no types
):
    """A streaming algorithm as an estimator.

    Distances decide, so bring features to one scale first. NaN is a missing value: a row is learnt,
    and labelled, by the values that it has; one without any has the label -1. A subclass names its
    algorithm, and its `__init__` has the parameters `clients` and `random_state`, one for each
    option of the algorithm, and those of `scale`, `bounds`, `verbose`, `max_seconds` and
    `update_readings` (a client contributes more than once in a long call) that it takes.
    `_federation` and `_names` exist once a row has been given.
    """

    ALGORITHM: ClassVar[str]
    ROWS_MIN: ClassVar[int] = 1
    """fewest rows that `fit` takes"""
    FEDERATION: ClassVar[type[StreamingFederation]] = StreamingFederation
    WHY_NO_WEIGHTS: ClassVar[str] = (
        "rows are learnt one by one, and each changes what the next one finds; give a row as often "
        "as it counts"
    )

    _warned = False
    """whether a warning of these rows has been given"""
    _supervised = False
    """attribute that river's pipelines read of every step"""

    # scikit-learn's interface.

    def fit(
        self, X: ArrayLike, y: None = None, clients: ArrayLike | None = None, **refused: Any
    ) -> Self:
        """Discard what was learnt, and learn a whole table.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : ignored
        clients : array-like of shape (n,), optional
            The name of the client that has each row; by default rows go to `self.clients` clients
            in turn.

        Raises `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters.
        """
        refuse_weights("fit", refused, self.WHY_NO_WEIGHTS)
        rows = as_table(X, gaps=True)
        names = column_names(X)
        if len(rows) < self.ROWS_MIN:
            raise InvalidData(f"n_samples = {len(rows)}; at least {self.ROWS_MIN} rows are needed")
        progress = Progress(
            len(rows), getattr(self, "verbose", False), getattr(self, "max_seconds", None)
        )
        federation = self._new_federation(rows.shape[1])
        federation.learn(self._to_learnt(rows), clients, is_last=True, advance=progress.advance)
        # Only now: rows and parameters that are refused leave what was learnt before.
        self._federation = federation
        self._names = names
        self._warned = False
        progress.finish(len(rows), self)
        self._warn(rows)
        self.labels_ = self._predict(rows)
        return self

    def partial_fit(
        self, X: ArrayLike, y: None = None, clients: ArrayLike | None = None, **refused: Any
    ) -> Self:
        """Learn the rows X (n, d) in addition to all before; `labels_` are then the clusters of
        these rows."""
        refuse_weights("partial_fit", refused, self.WHY_NO_WEIGHTS)
        self.labels_ = self._predict(self._learn(X, column_names(X), clients))
        return self

    def predict(self, X: ArrayLike) -> Ints:
        """X (n, d) -> (n,) cluster of each row, -1 as long as there is no cluster.

        Columns with names may come in any order. Raises `NotFittedError` before the first row, and
        `InvalidData`.
        """
        self._require_rows("predict")
        return self._predict(self._as_learnt(X))

    @property
    def n_features_in_(self) -> int:
        """Number of features, d, once a row has been learnt."""
        self._require_rows("n_features_in_")
        return self._federation.width

    @property
    def feature_names_in_(self) -> Objects:
        """(d,) names of the features, if the first rows had names."""
        self._require_rows("feature_names_in_")
        if self._names is None:
            raise AttributeError("feature_names_in_ does not exist: the first rows had no names")
        return np.array(self._names, dtype=object)

    @property
    def cluster_centers_(self) -> Floats:
        """(c, d) centre of each cluster, once a row has been learnt."""
        self._require_rows("cluster_centers_")
        return self._from_learnt(self._view().centres.reshape(-1, self.n_features_in_))

    @property
    def n_clusters_(self) -> int:
        """Number of clusters, once a row has been learnt."""
        self._require_rows("n_clusters_")
        return self._view().summary().clusters

    def plot(self, features: Features | None = None, ax: Axes | None = None) -> Axes:
        """Draw the nodes that have been learnt, coloured by cluster, as large as the rows that each
        stands for.

        Parameters
        ----------
        features : sequence of two positions or names, optional
            The features to draw, across and up; by default the two over which clusters differ most,
            compared with the spread within them.
        ax : matplotlib Axes, optional
            Where to draw; by default in a new figure of pyplot.

        Returns
        -------
        matplotlib Axes

        Raises `MissingExtra` without matplotlib, and `SettingsError` for other features.
        """
        self._require_rows("plot")
        names = self._feature_labels()
        view = self._view()
        nodes = self._from_learnt(view.nodes.reshape(-1, self.n_features_in_))
        return draw_view(view, nodes, names, features, ax)

    @property
    def centers(self) -> dict[int, dict[str, float]] | None:
        """The centre of each cluster by feature name, by its label; None as long as there is none.
        For river."""
        if not self._has_rows() or not len(self._labels()):
            return None
        names = self._feature_labels()
        centres = {}
        for label, centre in zip(self._labels(), self.cluster_centers_, strict=True):
            centres[int(label)] = dict(zip(names, centre.tolist(), strict=True))
        return centres

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # NaN is a missing value here: scikit-learn takes it for granted that estimators refuse it.
        tags.input_tags.allow_nan = True
        return tags

    # river's interface.

    def learn_one(self, x: Mapping[str, Any]) -> None:
        """Learn one row, given by feature name. The first row fixes the names and their order,
        which is alphabetical.

        If rows without names were learnt before, their features are taken to be in alphabetical
        order.
        """
        names = self._names_of_row(x)
        self._learn([row_values(x, names)], names, None)

    def learn_many(self, X: ArrayLike) -> None:
        """Learn the rows of a DataFrame, with names as in `learn_one`, or of an array (n, d)."""
        names = column_names(X)
        if names is not None and not self._has_rows():
            names = sorted(names)
            X = X[names]  # type: ignore[call-overload,index]  # a DataFrame
        self._learn(X, names, None)

    def predict_one(self, x: Mapping[str, Any]) -> int:
        """The cluster of one row, -1 as long as there is no cluster."""
        if not self._has_rows():
            return NO_CLUSTER
        return int(self.predict([row_values(x, self._names_of_row(x))])[0])

    def predict_many(self, X: ArrayLike) -> Ints:
        """See `predict`; -1 for all before the first row, as of `predict_one`."""
        if not self._has_rows():
            return np.full(len(as_table(X, gaps=True)), NO_CLUSTER, dtype=np.int64)
        return self.predict(X)

    @property
    def _raw_memory_usage(self) -> int:
        """Bytes, as river counts them for `show_memory`."""
        from river.base import Base  # noqa: PLC0415 - only river asks

        usage: int = Base._raw_memory_usage.fget(self)  # type: ignore[attr-defined]  # a property
        return usage

    # Saving, without pickle.

    def state(self) -> State:
        """Everything that further learning depends on, for `shoal.protocol.codec.pack`; without
        `labels_`."""
        saved = EstimatorState(width=None, names=None, federation=None)
        if self._has_rows():
            saved = EstimatorState(
                width=self._federation.width,
                names=self._names,
                federation=self._federation.state(),
            )
        return saved.saved(**self._identity())

    def restore(self, state: State) -> Self:
        """Become the saved estimator, which must have the same parameters.

        Raises `InvalidState`; then nothing has changed.
        """
        saved = EstimatorState.read(state, **self._identity())
        restored: dict[str, Any] = {}
        if saved.width is not None and saved.federation is not None:
            federation = self._new_federation(saved.width)
            federation.restore(saved.federation)
            restored = {"_federation": federation, "_names": saved.names, "_warned": False}
        # Only now: a state that is refused leaves the estimator as it was.
        for attribute in ("_federation", "_names", "_warned", "labels_"):
            self.__dict__.pop(attribute, None)
        self.__dict__.update(restored)
        return self

    def _identity(self) -> dict[str, Any]:
        """What a state must agree on with the estimator that restores it."""
        return {"estimator": type(self).__name__, "parameters": self._plain_parameters()}

    def _has_rows(self) -> bool:
        return hasattr(self, "_federation")

    def _names_of_row(self, x: Mapping[str, Any]) -> list[str]:
        """The names that were learnt, or else those of a row in alphabetical order."""
        known = self._names if self._has_rows() else None
        return known or names_of_row(x)

    def _require_rows(self, attribute: str) -> None:
        if not self._has_rows():
            raise not_fitted(self, attribute, "fit, partial_fit or learn_one")

    def _new_federation(self, width: int) -> LearntFederation:
        options = self.get_params(deep=False)
        clients = options.pop("clients")
        seed = options.pop("random_state")
        update_readings = options.pop("update_readings", None)
        scale = options.pop("scale", None)
        bounds = options.pop("bounds", None)
        for name in OF_THE_ESTIMATOR:
            options.pop(name, None)
        federation = self.FEDERATION(self.ALGORITHM, options, width, clients, seed, update_readings)
        if scale is None:
            return federation
        return ScaledFederation(federation, scale, bounds)

    def _learn(self, X: ArrayLike, names: list[str] | None, clients: ArrayLike | None) -> Floats:
        rows = self._as_learnt(X)
        if self._has_rows():
            self._federation.learn(self._to_learnt(rows), clients)
        else:
            # Kept only once it has learnt: rows that are refused leave the estimator as it was.
            # An empty table may have no columns, and a federation has one feature at least.
            federation = self._new_federation(max(1, rows.shape[1]))
            federation.learn(self._to_learnt(rows), clients)
            if len(rows):
                self._federation = federation
                self._names = names
                self._warned = False
        self._warn(rows)
        return rows

    def _warn(self, rows: Floats) -> None:
        """Warn once of rows (n, d) that can hardly be clustered as they are."""
        if self._warned or len(rows) < WARNED_ROWS_MIN:
            return
        if getattr(self, "scale", None) is None:
            self._warned = warn_of_scales(rows, self._names)

    def _predict(self, rows: Floats) -> Ints:
        labels = np.full(len(rows), NO_CLUSTER, dtype=np.int64)
        if not self._has_rows():
            return labels
        if not np.isnan(rows).any():
            return self._federation.predict(self._to_learnt(rows))
        there = ~np.isnan(rows).all(axis=1)
        labels[there] = self._federation.predict(self._to_learnt(rows[there]))
        return labels

    def _view(self) -> ClusteringView:
        return streaming_algorithm(self.ALGORITHM).view(self._federation.server.snapshot())

    def _labels(self) -> Ints:
        """(c,) what `predict` calls each cluster, in the order of `cluster_centers_`."""
        return np.arange(len(self._view().centres))

    def _feature_labels(self) -> list[str]:
        return self._names or [f"feature {position}" for position in range(self.n_features_in_)]

    def _to_learnt(self, rows: Floats) -> Floats:
        """Rows as given -> in the coordinates in which the algorithm learns."""
        return rows

    def _from_learnt(self, points: Floats) -> Floats:
        """Points in the coordinates in which the algorithm learns -> as rows are given."""
        return self._federation.in_units(points)

    def _as_learnt(self, X: ArrayLike) -> Floats:
        """X as a table with the number and the order of the features that were learnt."""
        if not self._has_rows():
            return as_table(X, gaps=True)
        return learnt_table(X, self._names, self.n_features_in_, self, gaps=True)

    def _distances(self, X: ArrayLike) -> Floats:
        self._require_rows("transform")
        rows = self._federation.on_scale(self._to_learnt(self._as_learnt(X)))
        return distances_between(rows, self._view().centres, self._circular())

    def _cluster_labels(self) -> Ints:
        self._require_rows("get_feature_names_out")
        return self._labels()

    def _circular(self) -> tuple[int, ...]:
        """Positions of the features that are circular, with a period of 1 in the coordinates in
        which the algorithm learns."""
        return ()

    def _plain_parameters(self) -> dict[str, Any]:
        parameters = {}
        for name, value in self.get_params(deep=False).items():
            if name not in OF_THE_ESTIMATOR:
                parameters[name] = _plain(value)
        return parameters


if RiverClusterer is not None:
    # river's metrics ask for its own class; its methods are those of this one.
    RiverClusterer.register(StreamingEstimator)


class IdentityEstimator(StreamingEstimator):
    """A streaming estimator of an algorithm whose snapshot gives each cluster an identity."""

    @property
    def n_clusters_(self) -> int:
        """Number of clusters shown, active or not, once a row has been learnt."""
        self._require_rows("n_clusters_")
        return len(self._identities())

    @property
    def identities_(self) -> Ints:
        """(c,) identities of the clusters shown, in the order of `cluster_centers_`, once a row has
        been learnt."""
        self._require_rows("identities_")
        return self._identities()

    @property
    def active_(self) -> Ints:
        """Identities of the clusters to which readings fall now, once a row has been learnt."""
        self._require_rows("active_")
        return self._identities()[self._view().active]

    def _predict(self, rows: Floats) -> Ints:
        """The cluster of each row as its identity instead of its place in the snapshot."""
        number = super()._predict(rows)
        if not self._has_rows():
            return number
        # Number -1, no cluster, takes the last entry.
        return np.append(self._identities(), NO_CLUSTER)[number]

    def _labels(self) -> Ints:
        return self._identities()

    def _identities(self) -> Ints:
        identity = self._view().identity
        assert identity is not None
        return identity
