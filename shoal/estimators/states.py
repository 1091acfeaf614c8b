"""States in time as an estimator: the ways in which a stream goes on for a while, without being
told how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

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
from shoal.estimators.state_streams import (
    SharedStates,
    StateStream,
    seconds_or_none,
)
from shoal.estimators.time_grid import TimeGrid
from shoal.kernels.arrays import Bools, Floats, Indices, Ints, Objects
from shoal.simulation.federation import deal_by_name

ONLY: Final = ""
"""the stream of rows without clients' names"""


class States(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """States of one stream in time, by its level, spread, rhythm and form, and correlations.

    Experimental: parameters and results may change. A state is a way in which a stream goes on for
    a while. The stream is cut into segments first, and segments that do not differ are joined;
    states whose dwells are too short for that are found where the stream jumps between them many
    times. The number of states is found, and is one where nothing changes for good: noise, slow
    drift, random walks, cycles. A stream that repeats a pattern is in one state, whose period
    `periods_` has.

    Rows must be in the order of time, at even steps or with their `times`; NaN is a missing value,
    for which the last known one stands. Memory is bounded: old half-tiles are joined, so that of a
    long stream short states of long ago are told no more. Each client finds states in its own
    rows only; what leaves it are sums over them, here within one process, and states that recur at
    several clients have one number where they differ alike in level, spread or roughness.

    Parameters
    ----------
    strict : bool, default=False
        Whether fewer streams without states are taken for several (by default about 4 of 100), at
        the price of some states that are there.
    window : int, optional
        Rows that show what the stream does, at least 6: of a cycle about one period. By default
        found from the first 1 000 rows.
    evaluate_every : int, default=1000
        Rows between two looks for states in `partial_fit`, at least. They also grow with the
        stream, to a sixteenth of it.
    interval : float, optional
        Seconds between two rows, where `times` are given. By default `fit` takes the median of the
        steps between them; `partial_fit` with times needs it.

    Where times are given, "rows" below are steps of this interval: each row stands at the nearest
    one, steps without a row have no value, and a gap of more than 4 096 of them counts as 4 096.

    Attributes
    ----------
    labels_ : ndarray of shape (n,)
        States of the rows learnt last by `fit` or `partial_fit`: identities that keep their
        meaning. Rows since the last look have the state that held then; -1 before the first.
    n_states_ : int
        Number of states; 0 before the first look.
    identities_ : ndarray of shape (k,)
        Identities of the states, ascending.
    clients_ : list of str
        Names of the clients, ascending. Only where clients were named.
    segments_ : ndarray of shape (s, 3)
        When the stream was in which state: first row, row after the last, identity. The latest
        4 096 are kept. Of clients that were named, `segments_of` has those of each.
    segment_seconds_ : ndarray of shape (s, 2)
        First and last moment of each segment, as `times` are (from 1970 on for datetime64). Only
        where times were given.
    interval_ : float
        Seconds of a step. Only where times were given.
    returns_ : ndarray of shape (k,)
        Whether a state was seen in more than one segment; otherwise it is a phase, seen once.
    dwell_ : ndarray of shape (k,)
        Mean rows of a segment of each state, the one that goes on left out unless it is the only
        one of its state.
    transitions_ : ndarray of shape (k, k)
        Changes from one state (row) to another (column) in the segments that are kept.
    means_, deviations_ : ndarray of shape (k, d)
        Mean and standard deviation of the rows of each state, in their units; NaN of a state of
        which no half-tile is remembered. Of several clients the mean is that at a client of usual
        level, and the deviation that within clients.
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
        self,
        *,
        strict: bool = False,
        window: int | None = None,
        evaluate_every: int = 1_000,
        interval: float | None = None,
    ) -> None:
        self.strict = strict
        self.window = window
        self.evaluate_every = evaluate_every
        self.interval = interval

    # scikit-learn's interface.

    def fit(
        self,
        X: ArrayLike,
        y: None = None,
        times: ArrayLike | None = None,
        clients: ArrayLike | None = None,
        **refused: Any,
    ) -> Self:
        """Discard what was learnt, and learn whole streams: rows (n, d) in the order of time.

        `times` (n,): seconds, or datetime64; by default rows are at even steps. `clients` (n,): the
        name of the client of each row; by default all rows are of one stream. The window is at most
        a 48th of a client's steps. Raises `InvalidData` (a ValueError) for rows, times and clients,
        and `SettingsError` for parameters.
        """
        refuse_weights("fit", refused, NO_WEIGHTS_OF_TIME)
        rows = as_table(X, gaps=True)
        if not len(rows):
            raise InvalidData("n_samples = 0; at least 1 row is needed")
        interval = self._interval()
        options = self._learner_options()
        seconds = seconds_or_none(times, len(rows))
        streams: dict[str, StateStream] = {}
        labels = np.full(len(rows), NO_STATE, dtype=np.int64)
        parts = _parts(len(rows), clients)
        for name, own in parts.items():
            own_seconds = None if seconds is None else seconds[own]
            streams[name], labels[own] = StateStream.of_whole(
                rows[own], own_seconds, interval, options
            )
        shared = None
        if clients is not None:
            shared = SharedStates(rows.shape[1])
            shared.update(streams)
        self._become(streams, shared, rows.shape[1], column_names(X))
        for name, own in parts.items():
            labels[own] = self._in_common(name, labels[own])
        self.labels_ = labels
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: None = None,
        times: ArrayLike | None = None,
        clients: ArrayLike | None = None,
        **refused: Any,
    ) -> Self:
        """Learn rows that follow those before, and look for states when `evaluate_every` rows have
        come, of each client.

        What is found does not depend on how rows are divided into calls; but which number a state
        of several clients has may. See `fit`; `times` and `clients` come in every call or in none,
        and with times the parameter `interval` is needed.
        """
        refuse_weights("partial_fit", refused, NO_WEIGHTS_OF_TIME)
        rows = self._rows(X)
        parts = _parts(len(rows), clients)
        seconds = seconds_or_none(times, len(rows))
        interval = self._interval_of_next(times is not None, clients is not None)
        is_first = not self._is_fitted()
        known = {} if is_first else self._streams
        streams = {}
        for name in parts:
            grid = None if interval is None else TimeGrid(interval)
            streams[name] = known.get(name) or StateStream(self._new_learner(rows.shape[1]), grid)
        # Of all clients before any learns, so that a mistake of one changes nothing.
        for name, own in parts.items():
            streams[name].check_times(None if seconds is None else seconds[own])
        steps = {}
        for name, own in parts.items():
            steps[name] = streams[name].add(rows[own], None if seconds is None else seconds[own])
        if is_first:
            shared = None if clients is None else SharedStates(rows.shape[1])
            self._become({}, shared, rows.shape[1], column_names(X))
        self._streams.update(streams)
        if self._shared is not None:
            self._shared.update(self._streams)
        labels = np.full(len(rows), NO_STATE, dtype=np.int64)
        for name, own in parts.items():
            labels[own] = self._in_common(name, streams[name].learner.labels_at(steps[name]))
        self.labels_ = labels
        return self

    def predict(
        self, X: ArrayLike, times: ArrayLike | None = None, clients: ArrayLike | None = None
    ) -> Ints:
        """The state that each row of a stretch (n, d) is most like, by the rows around it.

        `times` (n,) and `clients` (n,): as in `fit`, where the rows that were learnt had some. -1
        before anything was found, for a stretch shorter than a tile and for one without a value.
        Raises `NotFittedError` before the first rows, and `InvalidData`, also for a client that
        has learnt nothing.
        """
        self._learnt("predict")
        rows = self._rows(X)
        if (self._shared is None) != (clients is None):
            raise InvalidData("clients must be named where those of the rows learnt were, and only")
        seconds = seconds_or_none(times, len(rows))
        if seconds is not None and self._interval_learnt() is None:
            raise InvalidData("times were not given with the rows that were learnt")
        labels = np.full(len(rows), NO_STATE, dtype=np.int64)
        for name, own in _parts(len(rows), clients).items():
            if name not in self._streams:
                raise InvalidData(f"client {name} has learnt no rows")
            own_seconds = None if seconds is None else seconds[own]
            state = self._streams[name].predict(rows[own], own_seconds)
            labels[own] = self._in_common(name, state)
        return labels

    def segments_of(self, client: str) -> Ints:
        """(s, 3) `segments_` of one client, with the numbers that clients have in common.

        Raises `InvalidData` for a client that has learnt no rows.
        """
        self._learnt("segments_of")
        if client not in self._streams:
            raise InvalidData(f"client {client} has learnt no rows")
        segments = self._streams[client].learner.runs.copy()
        segments[:, 2] = self._in_common(client, segments[:, 2])
        return segments

    @property
    def n_states_(self) -> int:
        """Number of states, once rows were learnt."""
        return len(self.identities_)

    @property
    def identities_(self) -> Ints:
        """(k,) identities of the states, ascending, once rows were learnt."""
        self._learnt("identities_")
        seen = np.concatenate([segments[:, 2] for segments in self._segments()])
        return np.unique(seen[seen != NO_STATE])

    @property
    def clients_(self) -> list[str]:
        """Names of the clients, ascending, once rows of named ones were learnt."""
        self._learnt("clients_")
        if self._shared is None:
            raise AttributeError("clients_ does not exist: no clients were named")
        return sorted(self._streams)

    @property
    def segments_(self) -> Ints:
        """(s, 3) first row, row after the last, identity of each segment, once rows were learnt;
        of named clients `segments_of` has them."""
        self._only("segments_")
        return self.segments_of(ONLY)

    @property
    def segment_seconds_(self) -> Floats:
        """(s, 2) first and last moment of each segment, once rows were learnt with times."""
        self._only("segment_seconds_")
        grid = self._streams[ONLY].grid
        if grid is None:
            raise AttributeError("segment_seconds_ does not exist: rows were given without times")
        segments = self.segments_
        ends = (segments[:, 0], segments[:, 1] - 1)
        return np.column_stack([grid.seconds_at(end) for end in ends])

    @property
    def interval_(self) -> float:
        """Seconds of a step, once rows were learnt with times."""
        self._learnt("interval_")
        interval = self._interval_learnt()
        if interval is None:
            raise AttributeError("interval_ does not exist: rows were given without times")
        return interval

    @property
    def returns_(self) -> Bools:
        """(k,) whether a state was seen in more than one segment, once rows were learnt."""
        seen = np.concatenate([segments[:, 2] for segments in self._segments()])
        numbers = [int((seen == state).sum()) for state in self.identities_]
        return np.array(numbers, dtype=np.int64) > 1

    @property
    def dwell_(self) -> Floats:
        """(k,) mean rows of a segment of each state, once rows were learnt."""
        parts = self._segments()
        segments = np.concatenate(parts)
        lengths = (segments[:, 1] - segments[:, 0]).astype(np.float64)
        # The last segment of a client goes on, so that its length is no whole dwell yet.
        over = np.concatenate([np.arange(len(part)) < len(part) - 1 for part in parts])
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
        changes = np.zeros((len(identities), len(identities)), dtype=np.int64)
        for segments in self._segments():
            known = segments[segments[:, 2] != NO_STATE, 2]
            place = np.searchsorted(identities, known)
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
        """Rows of a tile, 0 until it is found, the longest of clients; once rows were learnt."""
        self._learnt("window_")
        memories = [stream.learner.memory for stream in self._streams.values()]
        found = [int(memory.window or 0) for memory in memories if memory.is_started]
        return max(found, default=0)

    @property
    def delay_(self) -> float:
        """Rows from a change until it is told, at most; once rows were learnt."""
        self._learnt("delay_")
        delays = [stream.learner.delay for stream in self._streams.values()]
        return max(delays, default=float("inf"))

    @property
    def n_features_in_(self) -> int:
        """Number of features, d, once rows were learnt."""
        self._learnt("n_features_in_")
        return self._width

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
            stream = StateStream(self._new_learner(len(names)), None)
            self._become({ONLY: stream}, None, len(names), names)
        if self._shared is not None or self._interval_learnt() is not None:
            raise InvalidData("the rows before had times or clients; learn_one takes none")
        self._streams[ONLY].add(rows, None)

    def predict_one(self, x: Mapping[str, Any]) -> int:
        """The state that holds, which a single row does not change: -1 before anything was
        found."""
        if not self._is_fitted():
            return NO_STATE
        # For its check alone: the row must have the features that were learnt.
        row_values(x, self._names or names_of_row(x))
        self._only("predict_one")
        learner = self._streams[ONLY].learner
        n = learner.n_readings
        return int(learner.labels(n, n + 1)[0])

    # Saving, without pickle.

    def state(self) -> dict[str, Any]:
        """Everything that further learning depends on, as plain values and arrays, for
        `restore`."""
        if not self._is_fitted():
            return {}
        streams = {name: stream.state() for name, stream in sorted(self._streams.items())}
        shared = None if self._shared is None else self._shared.state()
        return {"width": self._width, "names": self._names, "shared": shared, "streams": streams}

    def restore(self, state: Mapping[str, Any]) -> Self:
        """Become the model that `state` was of, with this one's parameters. Raises
        `InvalidState`."""
        if not state:
            self.__dict__.pop("_streams", None)
            self.__dict__.pop("labels_", None)
            return self
        names = state.get("names")
        width = state.get("width")
        if not isinstance(width, int) or width < 1 or not (names is None or is_name_list(names)):
            raise InvalidState("saved state has no number or no list of names of its features")
        saved = state.get("streams")
        shared_state = state.get("shared")
        if not isinstance(saved, Mapping) or (shared_state is None and set(saved) != {ONLY}):
            raise InvalidState("saved state has no streams")
        if not all(isinstance(own, Mapping) for own in saved.values()):
            raise InvalidState("saved state has streams that are none")
        streams = {}
        for name, own in saved.items():
            streams[str(name)] = StateStream(self._new_learner(width), None)
            streams[str(name)].restore(own)
        shared = None if shared_state is None else SharedStates(width)
        if shared is not None:
            shared.restore(shared_state)
        self._become(streams, shared, width, names)
        # Labels are of rows, and a state has none.
        self.__dict__.pop("labels_", None)
        return self

    def _is_fitted(self) -> bool:
        return hasattr(self, "_streams")

    def _become(
        self,
        streams: dict[str, StateStream],
        shared: SharedStates | None,
        width: int,
        names: list[str] | None,
    ) -> None:
        self._streams = streams
        self._shared = shared
        self._width = width
        self._names = names

    def _learner_options(self) -> dict[str, Any]:
        window = _whole_number("window", self.window, 6) if self.window is not None else None
        every = _whole_number("evaluate_every", self.evaluate_every, 1)
        if not isinstance(self.strict, bool | np.bool_):
            raise SettingsError(f"strict = {self.strict!r} must be True or False")
        return {"window": window, "strict": bool(self.strict), "evaluate_every": every}

    def _interval(self) -> float | None:
        interval = self.interval
        if interval is None:
            return None
        # True is 1 in Python, and means no number here.
        is_number = isinstance(interval, int | float | np.integer | np.floating)
        if isinstance(interval, bool) or not is_number or not 0 < interval < np.inf:
            raise SettingsError(f"interval = {interval!r} must be seconds above 0")
        return float(interval)

    def _interval_of_next(self, has_times: bool, has_clients: bool) -> float | None:
        """Seconds of a step of rows that follow; None where they have no times. Raises
        `InvalidData` where they differ in this from those before."""
        if not self._is_fitted():
            interval = self._interval()
            if has_times and interval is None:
                raise SettingsError(
                    "interval = None; partial_fit with times needs the seconds between two rows, "
                    "as the first rows do not tell those of later ones"
                )
            return interval if has_times else None
        if (self._shared is None) == has_clients:
            raise InvalidData("clients must be named in every call, or in none")
        learnt = self._interval_learnt()
        if (learnt is None) == has_times:
            raise InvalidData("times must be given in every call, or in none")
        return learnt

    def _new_learner(self, width: int) -> StateLearner:
        return StateLearner(width, **self._learner_options())

    def _interval_learnt(self) -> float | None:
        """Seconds of a step, the longest of clients; None where rows came without times."""
        grids = [stream.grid for stream in self._streams.values()]
        return max((grid.interval for grid in grids if grid is not None), default=None)

    def _in_common(self, client: str, state: Ints) -> Ints:
        return state if self._shared is None else self._shared.numbers(client, state)

    def _segments(self) -> list[Ints]:
        parts = [self.segments_of(name) for name in sorted(self._streams)]
        # Of clients without any rows yet there are none.
        return parts or [np.empty((0, 3), dtype=np.int64)]

    def _learnt(self, attribute: str) -> None:
        if not self._is_fitted():
            raise not_fitted(self, attribute, "fit or partial_fit")

    def _only(self, attribute: str) -> None:
        self._learnt(attribute)
        if self._shared is not None:
            raise AttributeError(f"{attribute} is of one stream, and clients were named")

    def _figures(self, attribute: str) -> StateFigures:
        self._learnt(attribute)
        if self._shared is None:
            return self._streams[ONLY].learner.figures()
        return self._shared.figures(self.identities_, self._streams)

    def _rows(self, X: ArrayLike) -> Floats:
        """X as a table with the number and the order of the features that were learnt."""
        if not self._is_fitted():
            return as_table(X, gaps=True)
        return learnt_table(X, self._names, self._width, self, gaps=True)


def _parts(n: int, clients: ArrayLike | None) -> dict[str, Indices]:
    """The places of the rows of each client, by name; all are of one where clients have none."""
    if clients is None:
        return {ONLY: np.arange(n)}
    return dict(deal_by_name(n, clients).rows_of_clients())


def _whole_number(name: str, value: object, least: int) -> int:
    # True is 1 in Python, and means no number here.
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise SettingsError(f"{name} = {value!r} must be a whole number from {least} on")
    return int(value)
