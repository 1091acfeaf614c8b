"""The newest noisy rows of a client, from which models in rounds answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.intake import TimeSpan
from shoal.client_nodes.reading_times import span_of
from shoal.kernels.arrays import Bools, Floats
from shoal.protocol.codec import StoredPart
from shoal.saved_state import BoolArray, FloatArray, SavedState, state_type


@state_type
class RowWindowState(SavedState):
    """The newest rows with their event times, where these are known."""

    rows: Annotated[Rows, FloatArray("n", "d", gaps=True)]
    times: Annotated[Floats, FloatArray("n")]
    dated: Annotated[Bools, BoolArray("n")]


class RowWindow:
    """The newest rows: `rows_max` at most, none over `age_max_s` seconds older than the newest.

    All models in rounds share it.
    """

    def __init__(self, width: int, rows_max: int, age_max_s: float = 0.0) -> None:
        """`width` is the number of features d; with `age_max_s` 0 there is no limit of age."""
        self._rows_max = rows_max
        self._age_max_s = age_max_s
        self._rows: Rows = np.empty((0, width))
        self._times: Floats = np.empty(0)
        self._dated: Bools = np.empty(0, dtype=bool)
        self._part: StoredPart | None = None
        """the newest result of `state`; None since the rows have changed"""
        self._span: TimeSpan | None = None
        """the same of `span`"""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Rows:
        """(n, d) read-only, in the order they were added."""
        return self._rows

    @property
    def span(self) -> TimeSpan:
        """Times of the rows that have one, without outliers."""
        # Every answer from the same rows needs it.
        if self._span is None:
            self._span = span_of(self._times[self._dated])
        return self._span

    def add(self, rows: Rows, times: Sequence[float | None], now: float) -> None:
        """Add rows (n, d) with their event times. A row without one counts as of `now`."""
        if not len(rows):
            return
        arrived = np.array([now if time is None else time for time in times], dtype=np.float64)
        dated = np.array([time is not None for time in times], dtype=bool)
        self._keep(
            np.concatenate([self._rows, rows]),
            np.concatenate([self._times, arrived]),
            np.concatenate([self._dated, dated]),
        )

    def state(self) -> StoredPart:
        """The same part until rows are added, so that a checkpoint stores them once."""
        if self._part is None:
            state = RowWindowState(rows=self._rows, times=self._times, dated=self._dated)
            self._part = StoredPart(state.saved())
        return self._part

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`. A smaller window than the saved one keeps the newest rows."""
        saved = RowWindowState.read(state, {"d": self._rows.shape[1]})
        self._keep(saved.rows, saved.times, saved.dated)

    def _keep(self, rows: Rows, times: Floats, dated: Bools) -> None:
        rows = rows[-self._rows_max :]
        times = times[-self._rows_max :]
        dated = dated[-self._rows_max :]
        if self._age_max_s and len(times):
            # Age is relative to the rows, not to this machine's clock, so a replay of old readings
            # has a window too.
            young = times >= times.max() - self._age_max_s
            rows = rows[young]
            times = times[young]
            dated = dated[young]
        # A stored part shares them and is known by its digest: a row changed in place would be
        # stored nowhere.
        rows.setflags(write=False)
        self._rows = rows
        self._times = times
        self._dated = dated
        self._part = None
        self._span = None
