"""What a region of FCAC contributes: the nodes that its clients have contributed, update by update, as one update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, State
from shoal.kernels.distance import Floats

STATE_VERSION: Final = 2
HALF: Final = "FCAC aggregator"


class FcacAggregator:
    """Keeps the nodes of clients' updates in the order in which they came, and where each update ends.

    The nodes of the region's own CAEFC would be fewer by far. But CAEFC at the top would then see each part of space so
    seldom that clusters fall apart or are missed (docs/explanation/hierarchy.md), so clients' nodes go up as they are.
    Which of them have high winning counts is decided within each update (Algorithm 3), so updates stay apart.
    """

    def __init__(self, options: Mapping[str, Any], dimensions: int) -> None:
        """`options` with `nodes_max`, None for no limit."""
        self._nodes_max: int | None = options["nodes_max"]
        self._width = dimensions
        self._reset()

    def _reset(self) -> None:
        self._weights: Floats = np.empty((0, self._width))
        self._counts: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._parts: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Whether these nodes and those kept are no more than an update may have."""
        return self._nodes_max is None or len(self._counts) + len(arrays["count"]) <= self._nodes_max

    def add(self, arrays: Arrays, readings: int) -> None:
        """Add the nodes of one update; those of a lower region's are of several."""
        n = len(arrays["count"])
        parts = arrays.get("part", np.array([n] if n else [], dtype=np.int64))
        self._weights = np.concatenate([self._weights, arrays["weight"]])
        self._counts = np.concatenate([self._counts, arrays["count"]])
        self._parts = np.concatenate([self._parts, parts])

    def contribute(self) -> Arrays:
        """The `REGION_UPDATE` arrays of what was added since the last call."""
        arrays = {"weight": self._weights, "count": self._counts, "part": self._parts}
        self._reset()
        return arrays

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        return {
            "version": STATE_VERSION,
            "half": HALF,
            "weight": self._weights.copy(),
            "count": self._counts.copy(),
            "part": self._parts.copy(),
        }

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        saved = StateReader(state, STATE_VERSION, half=HALF)
        weights = saved.read_floats("weight", (None, self._width))
        counts, parts = saved.read_ints("count", (len(weights),), least=1), saved.read_ints("part", (None,), least=1)
        # As floats, since a sum of whole numbers could overflow.
        saved.check(
            float(parts.sum(dtype=np.float64)) == len(weights), "the nodes of its updates are not as many as its nodes"
        )
        self._weights, self._counts, self._parts = weights, counts, parts
