"""States in time as an estimator: the ways in which a stream goes on for a while, without being
told how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.states import NO_STATE, StateFigures, StateLearner
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.estimators.base import (
    NO_WEIGHTS_OF_TIME,
    BaseEstimator,
    ClusterMixin,
    as_table,
    column_names,
    is_name_list,
    learnt_table,
    names_of_row,
    not_fitted,
    refuse_weights,
    row_values,
)
from shoal.kernels.arrays import Bools, Floats, Ints, Objects


class States(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """States of one stream in time, by its level, spread, rhythm and form, and correlations.

    Experimental: parameters and results may change. A state is a way in which a stream goes on for
    a while. The stream is cut into segments first, and segments that do not differ are joined;
    states whose dwells are too short for that are found where the stream jumps between them many
    times. The number of states is found, and is one where nothing changes for good: noise, slow
    drift, random walks, cycles. A stream that repeats a pattern is in one state, whose period
    `periods_` has.

    Rows must be in the order of time, at even steps; NaN is a missing value, for which the last
    known one stands. Memory is bounded: old half-tiles are joined, so that of a long stream short
    states of long ago are told no more.

    Parameters
    ----------
    strict : bool, default=False
        Whether fewer streams without states are taken for several (by default about 3 of 100, of
        short streams of several columns more), at the price of some states that are there.
    window : int, optional
        Rows that show what the stream does, at least 6: of a cycle about one period. By default
        found from the first 1 000 rows.
    evaluate_every : int, default=1000
        Rows between two looks for states in `partial_fit`, at least. They also grow with the
        stream, to a sixteenth of it.

    Attributes
    ----------
    labels_ : ndarray of shape (n,)
        States of the rows learnt last by `fit` or `partial_fit`: identities that keep their
        meaning. Rows since the last look have the state that held then; -1 before the first.
    n_states_ : int
        Number of states; 0 before the first look.
    identities_ : ndarray of shape (k,)
        Identities of the states, ascending.
    segments_ : ndarray of shape (s, 3)
        When the stream was in which state: first row, row after the last, identity. The latest
        4 096 are kept.
    returns_ : ndarray of shape (k,)
        Whether a state was seen in more than one segment; otherwise it is a phase, seen once.
    dwell_ : ndarray of shape (k,)
        Mean rows of a segment of each state, the one that goes on left out unless it is the only
        one of its state.
    transitions_ : ndarray of shape (k, k)
        Changes from one state (row) to another (column) in the segments that are kept.
    means_, deviations_ : ndarray of shape (k, d)
        Mean and standard deviation of the rows of each state, in their units; NaN of a state of
        which no half-tile is remembered.
    periods_ : ndarray of shape (k,)
        Rows of the cycle that a state shows; NaN where it shows none.
    window_ : int
        Rows of a tile; 0 until it is found.
    delay_ : float
        Rows from a change until it is told, at most; infinite until the window is found.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (d,)
        Only if the first rows had names.

    Methods raise `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters when
    learning begins.

    Notes
    -----
    `shoal.algorithms.states.StateLearner` has the method, step by step with its sources;
    `benchmarks/results/states.md` has what it finds in public streams.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> rng = np.random.default_rng(0)
    >>> time = np.arange(6000)
    >>> period = np.where(time < 3000, 17, 29)
    >>> rows = np.sin(2 * np.pi * time / period) + 0.2 * rng.normal(size=6000)
    >>> model = shoal.States().fit(rows[:, None])
    >>> model.n_states_, model.periods_.tolist()
    (2, [17.0, 29.0])
    >>> bool(abs(model.segments_[0, 1] - 3000) < 50)
    True
    >>> shoal.States().fit(rng.normal(size=(6000, 1))).n_states_
    1
    """

    _supervised = False
    """attribute that river's pipelines read of every step"""

    def __init__(
        self, *, strict: bool = False, window: int | None = None, evaluate_every: int = 1_000
    ) -> None:
        self.strict = strict
        self.window = window
        self.evaluate_every = evaluate_every

    # scikit-learn's interface.

    def fit(self, X: ArrayLike, y: None = None, **refused: Any) -> Self:
        """Discard what was learnt, and learn a whole stream: rows (n, d) in the order of time.

        The window is at most a 24th of the rows. Raises `InvalidData` (a ValueError) for rows, and
        `SettingsError` for parameters.
        """
        refuse_weights("fit", refused, NO_WEIGHTS_OF_TIME)
        rows = as_table(X, gaps=True)
        if not len(rows):
            raise InvalidData("n_samples = 0; at least 1 row is needed")
        learner = self._new_learner(rows.shape[1], len(rows))
        learner.learn_whole(rows)
        self._learner = learner
        self._names = column_names(X)
        labels = learner.labels(0, len(rows))
        forgotten = labels == NO_STATE
        forgotten[: learner.first_known] = False
        if forgotten.any():
            # The beginning of a long stream may lie before what is remembered.
            labels = np.where(forgotten, learner.predict(rows), labels)
        self.labels_ = labels
        return self

    def partial_fit(self, X: ArrayLike, y: None = None, **refused: Any) -> Self:
        """Learn rows that follow those before, and look for states when `evaluate_every` rows have
        come.

        What is found does not depend on how rows are divided into calls. See `fit`.
        """
        refuse_weights("partial_fit", refused, NO_WEIGHTS_OF_TIME)
        rows = self._rows(X)
        if not self._is_fitted():
            self._learner = self._new_learner(rows.shape[1], None)
            self._names = column_names(X)
        self._learner.add(rows)
        n = self._learner.n_readings
        self.labels_ = self._learner.labels(n - len(rows), n)
        return self

    def predict(self, X: ArrayLike) -> Ints:
        """The state that each row of a stretch (n, d) is most like, by the rows around it.

        -1 before anything was found, for a stretch shorter than a tile and for one without a value.
        Raises `NotFittedError` before the first rows, and `InvalidData`.
        """
        learner = self._learnt("predict")
        return learner.predict(self._rows(X))

    @property
    def n_states_(self) -> int:
        """Number of states, once rows were learnt."""
        return len(self.identities_)

    @property
    def identities_(self) -> Ints:
        """(k,) identities of the states, ascending, once rows were learnt."""
        return self._learnt("identities_").identities()

    @property
    def segments_(self) -> Ints:
        """(s, 3) first row, row after the last, identity of each segment, once rows were learnt."""
        return self._learnt("segments_").runs.copy()

    @property
    def returns_(self) -> Bools:
        """(k,) whether a state was seen in more than one segment, once rows were learnt."""
        segments = self.segments_
        numbers = [int((segments[:, 2] == state).sum()) for state in self.identities_]
        return np.array(numbers, dtype=np.int64) > 1

    @property
    def dwell_(self) -> Floats:
        """(k,) mean rows of a segment of each state, once rows were learnt."""
        segments = self.segments_
        lengths = (segments[:, 1] - segments[:, 0]).astype(np.float64)
        # The last segment goes on, so that its length is no whole dwell yet.
        over = np.arange(len(segments)) < len(segments) - 1
        means = []
        for state in self.identities_.tolist():
            own = segments[:, 2] == state
            whole = own & over
            means.append(lengths[whole if whole.any() else own].mean())
        return np.array(means, dtype=np.float64)

    @property
    def transitions_(self) -> Ints:
        """(k, k) changes from one state to another, once rows were learnt."""
        identities = self.identities_
        place = np.searchsorted(identities, self.segments_[:, 2])
        changes = np.zeros((len(identities), len(identities)), dtype=np.int64)
        # Not `+=`, which counts a pair once however often it occurs.
        np.add.at(changes, (place[:-1], place[1:]), 1)
        return changes

    @property
    def means_(self) -> Floats:
        """(k, d) mean row of each state, once rows were learnt."""
        return self._figures("means_").mean

    @property
    def deviations_(self) -> Floats:
        """(k, d) standard deviation of the rows of each state, once rows were learnt."""
        return self._figures("deviations_").deviation

    @property
    def periods_(self) -> Floats:
        """(k,) rows of the cycle that a state shows, NaN for none, once rows were learnt."""
        return self._figures("periods_").period

    @property
    def window_(self) -> int:
        """Rows of a tile, 0 until it is found; once rows were learnt."""
        memory = self._learnt("window_").memory
        return int(memory.window or 0) if memory.is_started else 0

    @property
    def delay_(self) -> float:
        """Rows from a change until it is told, at most; once rows were learnt."""
        return self._learnt("delay_").delay

    @property
    def n_features_in_(self) -> int:
        """Number of features, d, once rows were learnt."""
        return self._learnt("n_features_in_").memory.width

    @property
    def feature_names_in_(self) -> Objects:
        """(d,) names of the features, if the first rows had names."""
        self._learnt("feature_names_in_")
        if self._names is None:
            raise AttributeError("feature_names_in_ does not exist: the first rows had no names")
        return np.array(self._names, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # river's interface.

    def learn_one(self, x: Mapping[str, Any]) -> None:
        """Learn the next row, by feature name. The first fixes the names, in alphabetical order."""
        names = (self._names if self._is_fitted() else None) or names_of_row(x)
        rows = as_table([row_values(x, names)], gaps=True)
        if not self._is_fitted():
            self._learner = self._new_learner(len(names), None)
            self._names = names
        self._learner.add(rows)

    def predict_one(self, x: Mapping[str, Any]) -> int:
        """The state that holds, which a single row does not change: -1 before anything was
        found."""
        if not self._is_fitted():
            return NO_STATE
        # For its check alone: the row must have the features that were learnt.
        row_values(x, self._names or names_of_row(x))
        n = self._learner.n_readings
        return int(self._learner.labels(n, n + 1)[0])

    # Saving, without pickle.

    def state(self) -> dict[str, Any]:
        """Everything that further learning depends on, as plain values and arrays, for
        `restore`."""
        if not self._is_fitted():
            return {}
        length = self._learner.memory.width
        return {"width": length, "names": self._names, **self._learner.state()}

    def restore(self, state: Mapping[str, Any]) -> Self:
        """Become the model that `state` was of, with this one's parameters. Raises
        `InvalidState`."""
        if not state:
            self.__dict__.pop("_learner", None)
            self.__dict__.pop("labels_", None)
            return self
        names = state.get("names")
        width = state.get("width")
        if not isinstance(width, int) or width < 1 or not (names is None or is_name_list(names)):
            raise InvalidState("saved state has no number or no list of names of its features")
        learner = self._new_learner(width, None)
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        try:
            learner.restore(arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidState("saved state is not one of States") from error
        self._learner = learner
        self._names = names
        # Labels are of rows, and a state has none.
        self.__dict__.pop("labels_", None)
        return self

    def _is_fitted(self) -> bool:
        return hasattr(self, "_learner")

    def _new_learner(self, width: int, length: int | None) -> StateLearner:
        window = _whole_number("window", self.window, 6) if self.window is not None else None
        every = _whole_number("evaluate_every", self.evaluate_every, 1)
        if not isinstance(self.strict, bool | np.bool_):
            raise SettingsError(f"strict = {self.strict!r} must be True or False")
        return StateLearner(
            width, window=window, length=length, strict=bool(self.strict), evaluate_every=every
        )

    def _learnt(self, attribute: str) -> StateLearner:
        if not self._is_fitted():
            raise not_fitted(self, attribute, "fit or partial_fit")
        return self._learner

    def _figures(self, attribute: str) -> StateFigures:
        return self._learnt(attribute).figures()

    def _rows(self, X: ArrayLike) -> Floats:
        """X as a table with the number and the order of the features that were learnt."""
        if not self._is_fitted():
            return as_table(X, gaps=True)
        return learnt_table(X, self._names, self._learner.memory.width, self, gaps=True)


def _whole_number(name: str, value: object, least: int) -> int:
    # True is 1 in Python, and means no number here.
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise SettingsError(f"{name} = {value!r} must be a whole number from {least} on")
    return int(value)
