"""Regimes as an estimator: sets of states in which a stream stays, without being told how many
there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.regimes.server import RegimeSearch
from shoal.errors import InvalidData
from shoal.estimators.base import (
    NO_WEIGHTS_OF_TIME,
    BaseEstimator,
    ClusterMixin,
    as_table,
    check_n_features,
    column_names,
    learnt_table,
    not_fitted,
    refuse_weights,
    row_values,
)
from shoal.kernels.arrays import Floats, Ints, Objects
from shoal.simulation.regimes import NO_REGIME, RegimeFederation


class Regimes(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Regimes of continuous streams: sets of states in which a stream stays, however its values are
    distributed.

    Experimental: parameters and results may change. Sensors that vary continuously often have one
    density cluster; their regimes (dark and lit, idle and running, calm and rough) differ in level,
    spread, roughness or slope, and last. The number of regimes is found, and is one for streams in
    which nothing stays: noise, slow drift, random walks, cycles. Regimes of about 20 readings are
    found at three deviations, of 100 at two and of 500 in part at one; weaker ones are not, nor are
    those of a stream that is itself strongly autocorrelated within its regimes.

    Rows must be in the order of time within each client, and NaN is a missing reading. Clients
    learn from their own rows only; what leaves them are sums over their blocks, here within one
    process.

    Parameters
    ----------
    pool : bool, optional
        Whether the levels of clients are compared. With False each client's own level is taken from
        its rows, since the same regime may lie elsewhere for a sensor at another place; then a
        client that stays in one regime adds nothing. By default that is taken which tells more of
        what each client does next.
    interval : float, optional
        Seconds between two readings of a client, for `times`; by default the median of the first
        times.
    rebuild_readings : int, default=1000
        Rows of all clients between two evaluations for regimes in `partial_fit`, at least. They
        also grow by a quarter.

    Attributes
    ----------
    labels_ : ndarray of shape (n,)
        Regimes of the rows learnt last by `fit` or `partial_fit`; identities that keep their
        meaning.
    n_regimes_ : int
        Number of regimes; 1 where nothing stays, 0 before the first evaluation.
    identities_ : ndarray of shape (k,)
        Identities of the regimes, ascending.
    dwell_ : ndarray of shape (k,)
        Mean dwell in each regime, in readings; infinite where there is one.
    transitions_ : ndarray of shape (k, k)
        Changes from one regime (row) to another (column) that were seen; within the memory of
        clients.
    means_, deviations_ : ndarray of shape (k, d)
        Mean and standard deviation of the readings of each regime in the clients' memories, in the
        units of the rows. Where clients' own levels are taken, as if all clients had the mean of
        their levels.
    scale_ : int
        Readings of a block at the scale that decided; 0 while there is one regime.
    provisional_ : bool
        Whether too little was seen (fewer than 20 changes; of one regime, fewer than 1 000
        readings), or the last two evaluations disagree.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (d,)
        Only if the first rows had names.

    Methods raise `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters when
    learning begins.

    Notes
    -----
    Block features, slow coordinates by time-lagged independent component analysis (Perez-Hernandez
    et al., Journal of Chemical Physics 139, 2013), and metastable sets of cells; see
    `shoal.algorithms.regimes`.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> rng = np.random.default_rng(0)
    >>> truth = np.arange(6000) // 200 % 2
    >>> rows = rng.normal(size=(6000, 2)) * np.where(truth == 0, 0.5, 1.5)[:, None]
    >>> model = shoal.Regimes().fit(rows)
    >>> model.n_regimes_
    2
    >>> bool(150 < model.dwell_.min() <= model.dwell_.max() < 250)
    True
    >>> shoal.Regimes().fit(rng.normal(size=(6000, 2))).n_regimes_
    1
    """

    _supervised = False
    """attribute that river's pipelines read of every step"""

    def __init__(
        self,
        *,
        pool: bool | None = None,
        interval: float | None = None,
        rebuild_readings: int = 1_000,
    ) -> None:
        self.pool = pool
        self.interval = interval
        self.rebuild_readings = rebuild_readings

    # scikit-learn's interface.

    def fit(
        self,
        X: ArrayLike,
        y: None = None,
        clients: ArrayLike | None = None,
        times: ArrayLike | None = None,
        **refused: Any,
    ) -> Self:
        """Discard what was learnt, and learn whole streams.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows of all clients, those of each client in the order of time; NaN is a missing
            reading.
        y : ignored
        clients : array-like of shape (n,), optional
            The name of the client of each row; by default all rows are of one.
        times : array-like of shape (n,), optional
            Seconds, or datetime64: rows are then placed on a grid of `interval`, so that gaps count
            as such.

        Raises `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters.
        """
        refuse_weights("fit", refused, NO_WEIGHTS_OF_TIME)
        rows = as_table(X, gaps=True)
        names = column_names(X)
        if not len(rows):
            raise InvalidData("n_samples = 0; at least 1 row is needed")
        federation = self._new_federation(rows.shape[1])
        federation.learn(rows, clients, is_last=True, times=times)
        self._federation = federation
        self._names = names
        self.labels_ = self.predict(X, clients, times)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: None = None,
        clients: ArrayLike | None = None,
        times: ArrayLike | None = None,
        **refused: Any,
    ) -> Self:
        """Learn rows that follow those before, and look for regimes when `rebuild_readings` rows
        have come.

        What is found does not depend on how rows are divided into calls. The first 1 000 rows are
        collected before any is learnt, to know how wide the columns spread. See `fit` for the
        parameters.
        """
        refuse_weights("partial_fit", refused, NO_WEIGHTS_OF_TIME)
        rows = self._rows(X)
        if not self._is_fitted():
            federation = self._new_federation(rows.shape[1])
            federation.learn(rows, clients, times=times)
            self._federation = federation
            self._names = column_names(X)
        else:
            self._federation.learn(rows, clients, times=times)
        self.labels_ = self.predict(X, clients, times)
        return self

    def predict(
        self,
        X: ArrayLike,
        clients: ArrayLike | None = None,
        times: ArrayLike | None = None,
        live: bool = False,
    ) -> Ints:
        """The regime of each row.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Sequences, one of each client, as in `fit`.
        clients, times : array-like of shape (n,), optional
            As in `fit`. The level of a client that has not been learnt is found in these rows.
        live : bool, default=False
            Judge a row by the rows up to it, as one has to while they come; by default by the rows
            around it.

        Returns
        -------
        ndarray of shape (n,)
            Identities; -1 before anything was found, and where a sequence is shorter than a block.

        Raises `NotFittedError` before the first rows, and `InvalidData`.
        """
        self._server("predict")
        rows = self._rows(X)
        return self._federation.predict(rows, clients, times, live)

    @property
    def n_regimes_(self) -> int:
        """Number of regimes, once rows were learnt."""
        return len(self.identities_)

    @property
    def identities_(self) -> Ints:
        """(k,) identities of the regimes, ascending, once rows were learnt."""
        return np.array(self._server("identities_").identities(), dtype=np.int64)

    @property
    def dwell_(self) -> Floats:
        """(k,) mean dwell in each regime, in readings, once rows were learnt."""
        codebook = self._server("dwell_").codebook
        if codebook is None:
            # The only regime was never left.
            return np.full(self.n_regimes_, np.inf)
        return codebook.dwell()[codebook.order()]

    @property
    def transitions_(self) -> Floats:
        """(k, k) changes from one regime to another that were seen, once rows were learnt."""
        codebook = self._server("transitions_").codebook
        if codebook is None:
            return np.zeros((self.n_regimes_, self.n_regimes_))
        order = codebook.order()
        changes = codebook.sets.changes[np.ix_(order, order)]
        np.fill_diagonal(changes, 0.0)
        return changes

    @property
    def means_(self) -> Floats:
        """(k, d) mean reading of each regime, once rows were learnt."""
        self._server("means_")
        return self._federation.profiles()[0]

    @property
    def deviations_(self) -> Floats:
        """(k, d) standard deviation of the readings of each regime, once rows were learnt."""
        self._server("deviations_")
        return self._federation.profiles()[1]

    @property
    def scale_(self) -> int:
        """Readings of a block at the scale that decided, 0 while there is one regime; once rows
        were learnt."""
        codebook = self._server("scale_").codebook
        if codebook is None:
            return 0
        return codebook.w

    @property
    def provisional_(self) -> bool:
        """Whether too little was seen to rely on it, once rows were learnt."""
        return self._server("provisional_").provisional

    @property
    def n_features_in_(self) -> int:
        """Number of features, d, once rows were learnt."""
        self._server("n_features_in_")
        return self._federation.width

    @property
    def feature_names_in_(self) -> Objects:
        """(d,) names of the features, if the first rows had names."""
        self._server("feature_names_in_")
        if self._names is None:
            raise AttributeError("feature_names_in_ does not exist: the first rows had no names")
        return np.array(self._names, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # river's interface.

    def learn_one(self, x: Mapping[str, Any]) -> None:
        """Learn the next row of the only client, by feature name. The first fixes the names, in
        alphabetical order."""
        names = (self._names if self._is_fitted() else None) or sorted(map(str, x))
        rows = as_table([row_values(x, names)], gaps=True)
        if not self._is_fitted():
            self._federation = self._new_federation(len(names))
            self._names = names
        self._federation.learn(rows, None)

    def predict_one(self, x: Mapping[str, Any]) -> int:
        """The regime of a row that follows the rows learnt, by them and itself."""
        if not self._is_fitted():
            return NO_REGIME
        rows = as_table([row_values(x, self._names or sorted(map(str, x)))], gaps=True)
        check_n_features(rows, self._federation.width, self)
        return self._federation.predict_next(rows)

    def _is_fitted(self) -> bool:
        return hasattr(self, "_federation")

    def _new_federation(self, width: int) -> RegimeFederation:
        return RegimeFederation(width, self.pool, self.interval, self.rebuild_readings)

    def _server(self, attribute: str) -> RegimeSearch:
        if not self._is_fitted():
            raise not_fitted(self, attribute, "fit or partial_fit")
        return self._federation.server

    def _rows(self, X: ArrayLike) -> Floats:
        """X as a table with the number and the order of the features that were learnt."""
        if not self._is_fitted():
            return as_table(X, gaps=True)
        return learnt_table(X, self._names, self._federation.width, self, gaps=True)
