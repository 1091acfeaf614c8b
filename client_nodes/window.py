"""A window of the newest noisy rows, from which a client answers the round requests of every model in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.streaming import Rows
from shoal.errors import InvalidState
from shoal.protocol.codec import StoredPart
from shoal.protocol.validation import REACH_SLACK


class Window:
    """At most `rows_max` rows, none over `age_max_s` seconds older than the newest. All models share one window."""

    def __init__(self, width: int, rows_max: int, age_max_s: float = 0.0) -> None:
        """`width` is the number of features d; with `age_max_s` 0 there is no limit of age."""
        self._rows_max, self._age_max_s = rows_max, age_max_s
        self._rows: Rows = np.empty((0, width))
        self._times: NDArray[np.float64] = np.empty(0)
        self._dated: NDArray[np.bool_] = np.empty(0, dtype=bool)
        self._part: StoredPart | None = None
        """what `state` gave; None since the rows have changed"""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Rows:
        """(n, d) read-only, in the order they were added."""
        return self._rows

    @property
    def newest_reading_at(self) -> float | None:
        """Event time of the newest row that has one, seconds since 1970."""
        return float(self._times[self._dated].max()) if self._dated.any() else None

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
        """For `restore`; the same part until rows are added, so that a checkpoint stores them once."""
        if self._part is None:
            self._part = StoredPart({"rows": self._rows, "times": self._times, "dated": self._dated.astype(np.uint8)})
        return self._part

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`. A window with a smaller limit than the saved one keeps the newest rows."""
        try:
            rows, times, dated = state["rows"], state["times"], state["dated"].astype(bool)
            if rows.shape != (len(times), self._rows.shape[1]) or dated.shape != times.shape:
                raise InvalidState("the checkpoint's window of rows is inconsistent")
            self._keep(rows, times, dated)
        except (AttributeError, KeyError, TypeError) as broken:
            raise InvalidState(f"the checkpoint's window of rows is damaged: {broken}") from None

    def _keep(self, rows: Rows, times: NDArray[np.float64], dated: NDArray[np.bool_]) -> None:
        rows, times, dated = rows[-self._rows_max :], times[-self._rows_max :], dated[-self._rows_max :]
        if self._age_max_s and len(times):
            # Age is relative to the rows, not to this machine's clock, so a replay of old readings has a window too.
            young = times >= times.max() - self._age_max_s
            rows, times, dated = rows[young], times[young], dated[young]
        rows.setflags(write=False)
        self._rows, self._times, self._dated, self._part = rows, times, dated, None


def counted_rows(rows: Rows, valid: NDArray[np.bool_], d: int) -> tuple[Rows, NDArray[np.bool_]]:
    """Rows (n, d) of a saved window of counts, and which are valid (n,). Raises `InvalidState`; kernels do not look."""
    fits = rows.dtype == np.float64 and valid.ndim == 1 and rows.shape == (len(valid), d)
    if not fits or not ((rows >= -REACH_SLACK) & (rows <= 1.0 + REACH_SLACK)).all():
        raise InvalidState("the checkpoint's open window of readings is inconsistent")
    return rows, valid
