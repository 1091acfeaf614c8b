"""What a region of FCAC contributes: the nodes that its clients have contributed, as one update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, State
from shoal.kernels.distance import Floats

STATE_VERSION: Final = 1
HALF: Final = "FCAC aggregator"


class FcacAggregator:
    """Pools nodes, those with the highest winning counts first.

    The nodes of the region's own CAEFC would be fewer by far. But CAEFC at the top would then see each part of space so
    seldom that clusters fall apart or are missed (`benchmarks/results/hierarchy.md`), so clients' nodes go up as they
    are.
    """

    def __init__(self, options: Mapping[str, Any], dimensions: int) -> None:
        """`options` with `nodes_max`, None for no limit."""
        self._nodes_max: int | None = options["nodes_max"]
        self._width = dimensions
        self._reset()

    def _reset(self) -> None:
        self._weights: Floats = np.empty((0, self._width))
        self._counts: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Whether these nodes and those pooled are no more than an update may have."""
        return self._nodes_max is None or len(self._counts) + len(arrays["count"]) <= self._nodes_max

    def add(self, arrays: Arrays, readings: int) -> None:
        """Add the nodes of one update."""
        self._weights = np.concatenate([self._weights, arrays["weight"]])
        self._counts = np.concatenate([self._counts, arrays["count"]])

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays of the nodes since the last call; of equal counts those that came first are first."""
        order = np.argsort(-self._counts, kind="stable")
        arrays = {"weight": self._weights[order], "count": self._counts[order]}
        self._reset()
        return arrays

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        return {
            "version": STATE_VERSION,
            "half": HALF,
            "weight": self._weights.copy(),
            "count": self._counts.copy(),
        }

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        saved = StateReader(state, STATE_VERSION, half=HALF)
        weights = saved.read_floats("weight", (None, self._width))
        self._counts = saved.read_ints("count", (len(weights),), least=1)
        self._weights = weights
