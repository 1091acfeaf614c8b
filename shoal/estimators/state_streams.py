"""What `States` has learnt: of one stream, or of those of several clients with states in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.algorithms.states import NO_STATE, StateFigures, StateLearner
from shoal.algorithms.states.client_half import update_of
from shoal.algorithms.states.server_half import StatesServer
from shoal.algorithms.streaming import Contribution
from shoal.errors import InvalidState
from shoal.estimators.time_grid import Placed, TimeGrid, seconds_of, usual_step
from shoal.kernels.arrays import Floats, Ints


class StateStream:
    """The learner of one stream, and the steps of time on which its rows are placed."""

    def __init__(self, learner: StateLearner, grid: TimeGrid | None) -> None:
        """`grid`: None where rows come without times."""
        self.learner = learner
        self.grid = grid
        self.bounds = np.full((2, learner.memory.width), np.nan)
        """(2, d) least and most values; NaN of a column that had none"""
        self.published_at = 0
        """rows of the learner at its last update"""

    @classmethod
    def of_whole(
        cls, rows: Floats, seconds: Floats | None, interval: float | None, options: dict[str, Any]
    ) -> tuple[StateStream, Ints]:
        """All rows (n, d) of a stream, at seconds (n,) -> what was learnt, and the state of each
        row. `options`: those of the learner."""
        grid = None
        placed = Placed(rows, np.arange(len(rows)))
        if seconds is not None:
            grid = TimeGrid(interval or usual_step(seconds))
            placed = grid.place(rows, seconds)
        learner = StateLearner(rows.shape[1], length=len(placed.rows), **options)
        stream = cls(learner, grid)
        stream._note(placed.rows)
        learner.learn_whole(placed.rows)
        labels = learner.labels(0, len(placed.rows))
        forgotten = labels == NO_STATE
        forgotten[: learner.first_known] = False
        if forgotten.any():
            # The beginning of a long stream may lie before what is remembered.
            labels = np.where(forgotten, learner.predict(placed.rows), labels)
        return stream, labels[placed.step]

    def add(self, rows: Floats, seconds: Floats | None) -> Ints:
        """Rows (n, d) that follow, at seconds (n,) -> (n,) their steps. Raises `InvalidData`."""
        placed = Placed(rows, self.learner.n_readings + np.arange(len(rows)))
        if self.grid is not None and seconds is not None:
            placed = self.grid.place(rows, seconds)
        self._note(placed.rows)
        self.learner.add(placed.rows)
        return placed.step

    def check_times(self, seconds: Floats | None) -> None:
        """Raises `InvalidData` where the times (n,) of rows that follow go back."""
        if self.grid is not None and seconds is not None:
            self.grid.check(seconds)

    def predict(self, rows: Floats, seconds: Floats | None) -> Ints:
        """rows (n, d) of another stretch, at seconds (n,) -> (n,) their states."""
        if self.grid is None or seconds is None:
            return self.learner.predict(rows)
        placed = TimeGrid(self.grid.interval).place(rows, seconds)
        return self.learner.predict(placed.rows)[placed.step]

    def _note(self, rows: Floats) -> None:
        ends = np.concatenate([self.bounds, rows])
        # Missing values are neither least nor most.
        self.bounds = np.stack([np.fmin.reduce(ends, axis=0), np.fmax.reduce(ends, axis=0)])

    def state(self) -> dict[str, Any]:
        """Everything that further learning depends on."""
        times = None if self.grid is None else self.grid.state()
        return {
            "times": times,
            "bounds": self.bounds.copy(),
            "published_at": self.published_at,
            **self.learner.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the stream that `state` was of. Raises `InvalidState`."""
        times = state.get("times")
        bounds = state.get("bounds")
        published_at = state.get("published_at")
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        try:
            self.learner.restore(arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidState("saved state is not one of States") from error
        if (
            not (times is None or isinstance(times, Mapping))
            or not isinstance(bounds, np.ndarray)
            or bounds.shape != self.bounds.shape
            or not isinstance(published_at, int)
        ):
            raise InvalidState("saved state is not one of States")
        self.grid = None if times is None else TimeGrid.restored(times)
        self.bounds = bounds.astype(np.float64)
        self.published_at = published_at


class SharedStates:
    """The numbers that the states of several clients have in common.

    As in a federation (`shoal.algorithms.states.server_half`): each client finds its states in its
    own rows and publishes sums over them, here within one process.
    """

    def __init__(self, width: int) -> None:
        self.server = StatesServer(width)
        self._n_updates = 0

    def update(self, streams: Mapping[str, StateStream]) -> None:
        """Take in what clients have found since their last updates, in the order of their
        names."""
        contributions = []
        for name, stream in sorted(streams.items()):
            learner = stream.learner
            if learner.evaluated_at <= stream.published_at or not learner.memory.is_started:
                continue
            low, high = np.where(np.isnan(stream.bounds), learner.memory.mean, stream.bounds)
            new = learner.evaluated_at - stream.published_at
            update = update_of(learner, low, high, new)
            if update is None:
                continue
            stream.published_at = learner.evaluated_at
            contributions.append(Contribution(name, self._n_updates, update))
            self._n_updates += 1
        if contributions:
            self.server.absorb(contributions, b"")

    def state(self) -> dict[str, Any]:
        """Everything that further numbers depend on."""
        return {"updates": self._n_updates, "server": dict(self.server.state())}

    def restore(self, state: Any) -> None:
        """Become what `state` was of. Raises `InvalidState`."""
        server = state.get("server") if isinstance(state, Mapping) else None
        if not isinstance(server, Mapping) or not isinstance(state.get("updates"), int):
            raise InvalidState("saved state has no numbers of states")
        self.server.restore(dict(server))
        self._n_updates = state["updates"]

    def numbers(self, client: str, state: Ints) -> Ints:
        """(n,) states of a client, by its own numbers -> (n,) by the numbers in common; `NO_STATE`
        for one that no update had yet."""
        table = self.server.numbers_of(client)
        distinct, place = np.unique(state, return_inverse=True)
        known = [table.get(number, NO_STATE) for number in distinct.tolist()]
        return np.array(known, dtype=np.int64)[place]

    def figures(self, identity: Ints, streams: Mapping[str, StateStream]) -> StateFigures:
        """What is known of states (k,) by their numbers in common.

        Mean and deviation as the server has them: levels of clients and of states are separated,
        and the deviation is within clients. The period is that of the client with the most rows in
        the state.
        """
        snapshot = self.server.snapshot()
        place = {number: at for at, number in enumerate(snapshot["identity"].tolist())}
        width = snapshot["centre"].shape[1]
        mean = np.full((len(identity), width), np.nan)
        deviation = np.full((len(identity), width), np.nan)
        period = np.full(len(identity), np.nan)
        longest = np.zeros(len(identity), dtype=np.int64)
        for at, number in enumerate(identity.tolist()):
            if number in place:
                mean[at] = snapshot["centre"][place[number]]
                deviation[at] = snapshot["spread"][place[number]]
        for name, stream in sorted(streams.items()):
            own = stream.learner.figures()
            runs = stream.learner.runs
            numbers = self.numbers(name, own.identity).tolist()
            for state, number, cycle in zip(own.identity, numbers, own.period, strict=True):
                rows = int((runs[:, 1] - runs[:, 0])[runs[:, 2] == state].sum())
                at = int(np.searchsorted(identity, number))
                if number != NO_STATE and rows > longest[at]:
                    longest[at] = rows
                    period[at] = cycle
        return StateFigures(identity, mean, deviation, period)


def seconds_or_none(times: Any, n: int) -> Floats | None:
    """(n,) seconds of times; None where there are none. Raises `InvalidData`."""
    return None if times is None else seconds_of(times, n)
