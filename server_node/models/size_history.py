"""The history of a model's sizes in a server's memory and checkpoint: readings, nodes and clusters at moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_node.status import HistoryPoint

HISTORY_MAX = 600
"""points that are kept at most"""


def as_columns(history: Sequence[HistoryPoint]) -> list[NDArray[Any]]:
    """times (n,) and sizes (n, 3): a list for each point would cost more than all else in a checkpoint."""
    times = np.array([point.time for point in history], dtype=np.float64)
    sizes = np.array([point[1:] for point in history], dtype=np.int64).reshape(-1, 3)
    return [times, sizes]


def from_columns(times: NDArray[np.float64], sizes: NDArray[np.int64]) -> list[HistoryPoint]:
    """The history of times (n,) and sizes (n, 3), as `as_columns` made them."""
    return [HistoryPoint(time, *row) for time, row in zip(times.tolist(), sizes.tolist(), strict=True)]


def thinned(history: list[HistoryPoint]) -> list[HistoryPoint]:
    """At most `HISTORY_MAX` points: of too many every second one is left out; the first and the newest stay.

    Recent history is kept finely and the distant past coarsely, and the page can still show the first day.
    """
    while len(history) > HISTORY_MAX:
        history = history[:-1:2] + history[-1:]
    return history
