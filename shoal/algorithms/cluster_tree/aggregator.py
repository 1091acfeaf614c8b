"""What a region of cluster_tree contributes: the weighted points of its clients, of which near ones are merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shoal.algorithms.cluster_tree.client import restored_sketch, sketch_state, sketched
from shoal.algorithms.cluster_tree.options import ClusterTreeOptions
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, State
from shoal.kernels.sketching import Sketch, empty_sketch

STATE_VERSION: Final = 1
HALF: Final = "cluster_tree aggregator"
POINTS_FACTOR: Final = 2
"""points of a region's update, as a multiple of `points_max`: as many as the largest update of a client"""


class ClusterTreeAggregator:
    """Pools weighted points. Every reading stays counted once, and a merged point is the mean of its readings."""

    def __init__(self, options: Mapping[str, Any], dimensions: int) -> None:
        """Raises `SettingsError` for options that the algorithm does not take."""
        self._points_max = POINTS_FACTOR * ClusterTreeOptions.from_mapping(options).points_max
        self._width = dimensions
        self._sketch = empty_sketch(dimensions)
        self._readings = 0

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Whether at most one of the updates stands for more readings than it is from.

        An update to a server that has lost the earlier ones stands for earlier readings too. The receiver accepts as
        many of those as one client can have.
        """
        return bool(self._sketch.mass.sum() <= self._readings or arrays["count"].sum() <= readings)

    def add(self, arrays: Arrays, readings: int) -> None:
        """Add the points of one update."""
        more = Sketch(np.asarray(arrays["point"], dtype=np.float64), arrays["count"].astype(np.float64))
        self._sketch = sketched(self._sketch.with_more(more), self._points_max)
        self._readings += readings

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays of the points since the last call."""
        published = self._sketch
        self._sketch, self._readings = empty_sketch(self._width), 0
        return {"point": published.points, "count": published.mass.astype(np.int64)}

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        return {
            "version": STATE_VERSION,
            "half": HALF,
            "readings": self._readings,
            **sketch_state("sketch", self._sketch),
        }

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        saved = StateReader(state, STATE_VERSION, half=HALF)
        sketch, readings = restored_sketch(saved, "sketch", self._width), saved.read_int("readings")
        self._sketch, self._readings = sketch, readings
