"""What a region passes on: the states of its clients, pooled into those of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from shoal.algorithms.states.messages import STATES_MAX, Header, check_update, empty_update
from shoal.algorithms.states.server_half import StatesServer
from shoal.algorithms.streaming import Arrays, Contribution, State
from shoal.kernels.arrays import AnyArray, Floats, Ints
from shoal.saved_state import Opaque, SavedState, state_type

HALF: Final = "states aggregator"
NO_TOKEN: Final = 0
"""the number in the header of an update whose states no client looks for in snapshots"""


@state_type
class AggregatorState(SavedState):
    """The clients' states, and the readings since the region's last update."""

    version: ClassVar[int] = 1

    server: Annotated[State, Opaque()]
    readings: int
    new: int
    has_news: bool


class StatesAggregator:
    """Matches the states of a region's clients as their server does, and contributes the sums of
    each: to the upstream federation a region is a client of that many readings.

    An update has all that is known of each state, and takes the place of the one before, as a
    client's does. Levels in which clients differ are taken out before sums are added, so that
    spreads are those within clients.
    """

    def __init__(self, options: Mapping[str, Any], dimensions: int) -> None:
        """Raises `SettingsError` for options that the algorithm does not take."""
        self._width = dimensions
        self._server = StatesServer(dimensions, **options)
        self._readings = 0
        """readings of the updates since the last contribution"""
        self._new = 0
        """those that the updates count"""
        self._has_news = False

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Yes: an update takes the place of the client's one before."""
        return True

    def add(self, arrays: Arrays, readings: int, client: str = "") -> None:
        """Take in one update of a client or of a lower region. Raises `InvalidData`."""
        header = check_update(arrays)
        if header is None:
            return
        self._server.absorb([Contribution(client, 0, arrays)], b"")
        self._readings += readings
        self._new += header.new
        self._has_news = True

    @property
    def is_due(self) -> bool:
        """False: nothing was asked for."""
        return False

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays of all that is known of the clients' states; empty where nothing is
        new."""
        if not self._has_news:
            return empty_update(self._width)
        # A client may count readings that it had before its first update. An update of which more
        # are claimed than it is from would be refused.
        new = min(self._new, self._readings)
        self._readings = 0
        self._new = 0
        self._has_news = False
        return self._pooled(new)

    def _pooled(self, new: int) -> dict[str, AnyArray]:
        pooled = self._server.pooled()
        evaluated = self._server.evaluated
        most_read = np.argsort(-pooled.mass, kind="stable")[:STATES_MAX]
        kept = np.sort(most_read)
        # Whole readings, at least one. Rounded up here and down below, so that no state has more
        # changes or longer dwells than readings.
        count: Ints = np.maximum(np.ceil(pooled.mass[kept]), 1.0).astype(np.int64)
        weight = count[:, None].astype(np.float64)
        mean: Floats = pooled.mean[kept]
        # Moved to the level that all clients have together, a state may seem to vary more than rows
        # between 0 and 1 can, and would be refused. Noise alone may take a mean out of these.
        inside = (mean >= 0.0) & (mean <= 1.0)
        most = np.where(inside, mean * (1.0 - mean), np.inf)
        variance = np.minimum(pooled.variance[kept], most)
        header = Header(
            NO_TOKEN, self._width, new, self._server.window if len(kept) > 1 else 0, evaluated
        )
        return {
            "header": header.packed(),
            "state": pooled.number[kept],
            "count": count,
            "total": mean * weight,
            "square": (variance + mean**2) * weight,
            "step": pooled.step[kept] * weight,
            "change": np.floor(pooled.changes[np.ix_(kept, kept)]).astype(np.int64),
            "dwells": np.floor(pooled.dwells[kept]).astype(np.int64),
        }

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        now = AggregatorState(
            server=self._server.state(),
            readings=self._readings,
            new=self._new,
            has_news=self._has_news,
        )
        return now.saved(half=HALF)

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        saved = AggregatorState.read(state, {"d": self._width}, half=HALF)
        self._server.restore(saved.server)
        self._readings = saved.readings
        self._new = saved.new
        self._has_news = saved.has_news
