"""What a region passes on of its clients' updates: their points, pooled and merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from shoal.algorithms.cluster_tree.options import ClusterTreeOptions
from shoal.algorithms.cluster_tree.sketches import READINGS_PER_POINT, SketchState, sketched
from shoal.algorithms.streaming import Arrays, State
from shoal.kernels.sketching import Sketch, empty_sketch
from shoal.saved_state import SavedState, state_type

HALF: Final = "cluster_tree aggregator"
POINTS_FACTOR: Final = 2
"""points of a region's update, as a multiple of `points_max`: those of the largest update of a
client"""


@state_type
class AggregatorState(SavedState):
    """Points that were not handed on yet, and of how many readings they are."""

    version: ClassVar[int] = 2

    readings: int
    sketch: SketchState


class ClusterTreeAggregator:
    """Pools weighted points. Every reading stays counted once, and a merged point is the mean of
    its readings."""

    def __init__(self, options: Mapping[str, Any], dimensions: int) -> None:
        """Raises `SettingsError` for options that the algorithm does not take."""
        self._points_max = POINTS_FACTOR * ClusterTreeOptions.parse(options).points_max
        self._width = dimensions
        self._sketch = empty_sketch(dimensions)
        self._readings = 0

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Whether at most one of the updates stands for more readings than it is from.

        An update to a server that has lost the earlier ones stands for earlier readings too. The
        receiver accepts as many of those as one client can have.
        """
        return bool(self._sketch.mass.sum() <= self._readings or arrays["count"].sum() <= readings)

    def add(self, arrays: Arrays, readings: int, client: str = "") -> None:
        """Add the points of one update."""
        more = Sketch(
            np.asarray(arrays["point"], dtype=np.float64), arrays["count"].astype(np.float64)
        )
        self._sketch = sketched(self._sketch.with_more(more), self._points_max)
        self._readings += readings

    @property
    def is_due(self) -> bool:
        """Whether there are so many readings that more would make the points too coarse."""
        return self._readings >= READINGS_PER_POINT * self._points_max

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays of the points since the last call."""
        published = self._sketch
        self._sketch = empty_sketch(self._width)
        self._readings = 0
        return {"point": published.points, "count": published.mass.astype(np.int64)}

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        now = AggregatorState(readings=self._readings, sketch=SketchState.of(self._sketch))
        return now.saved(half=HALF)

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        saved = AggregatorState.read(state, {"d": self._width}, half=HALF)
        self._sketch = saved.sketch.restored()
        self._readings = saved.readings
