"""What a region passes on of its clients' updates: their counts, added up."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, NamedTuple

import numpy as np

from shoal.algorithms.counting import without_far_noise
from shoal.algorithms.density_tree.arrays import REGION_UPDATE, blocks_of
from shoal.algorithms.density_tree.options import WINDOW_READINGS_DEFAULT
from shoal.algorithms.streaming import Arrays, ArraySpec, State
from shoal.errors import InvalidData, InvalidState
from shoal.kernels.arrays import Ints
from shoal.saved_state import SavedState, Table, require, state_type

PARTIAL_WINDOWS_MAX: Final = 16
"""windows of a region's update that may be of few readings, beside those that are half full"""


def windows_max(readings: int, window_readings: int) -> int:
    """Most windows that a region adds up in one update of this many readings: noise grows with
    their number."""
    return PARTIAL_WINDOWS_MAX + 2 * readings // window_readings


COLUMNS: Final = ("leaf", "axis", "epoch", "cells")
"""arrays of an update whose values together are the key of a block"""
HALF: Final = "density_tree aggregator"
SAVED: Final = {**REGION_UPDATE, "places": ArraySpec("<i8", ("p",))}
"""`REGION_UPDATE` with no number of readings before there are any"""

Key = tuple[int, int, int, int]
"""leaf, axis, epoch and number of cells of a block"""


@state_type
class AggregatorState(SavedState):
    """Sums that were not handed on yet, as the arrays of an update."""

    version: ClassVar[int] = 2

    sums: Annotated[Arrays, Table(SAVED)]

    def check(self) -> None:
        places = self.sums["places"]
        require(len(places) <= 1, "places must be one number or none")
        require(len(places) == 1 or not len(self.sums["leaf"]), "there are sums of no readings")


class _Sum(NamedTuple):
    """The sum of the blocks of one key."""

    counts: Ints
    """(cells,) whole numbers, so that they are the same in any order"""
    windows: int
    exposure: float


class DensityTreeAggregator:
    """Adds up blocks of counts that were counted under the same cells. The counts of the sum are
    exact.

    Whether a block still fits the tree is decided where the tree is, in the federation at the top.
    """

    def __init__(
        self, window_readings: int = WINDOW_READINGS_DEFAULT, noise_variance: float = 0.0
    ) -> None:
        """`noise_variance`: of one published count."""
        self._window_readings = window_readings
        self._noise_variance = noise_variance
        self._sums: dict[Key, _Sum] = {}
        self._places = 0

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Whether an update may be of as many windows as there are with these; a sum is as large as
        its largest part.

        Always after the first one, which is a window, or an update that has passed the same check.
        """
        most = windows_max(self._places + int(arrays["places"].sum()), self._window_readings)
        windows = int(arrays["windows"].max(initial=0)) if "windows" in arrays else 1
        windows_before = max((total.windows for total in self._sums.values()), default=0)
        return windows_before + windows <= most

    def add(self, arrays: Arrays, readings: int, client: str = "") -> None:
        """Add the blocks of one update. Raises `InvalidData`."""
        for block in blocks_of(arrays, "the region"):
            key = (block.leaf, block.axis, block.epoch, len(block.counts))
            nothing = _Sum(np.zeros(len(block.counts), dtype=np.int64), 0, 0.0)
            before = self._sums.get(key, nothing)
            # Here as on the server: in a sum, what one client claims beyond any noise could no
            # longer be told from the counts of the others.
            counts = without_far_noise(block.counts, self._noise_variance, block.windows)
            self._sums[key] = _Sum(
                before.counts + counts.astype(np.int64),
                before.windows + block.windows,
                before.exposure + block.exposure,
            )
        self._places += int(arrays["places"][0])

    @property
    def is_due(self) -> bool:
        """False: nothing was asked for."""
        return False

    def contribute(self) -> Arrays:
        """The `REGION_UPDATE` arrays of the sums since the last call, ordered by their keys."""
        arrays = self._arrays()
        self._sums = {}
        self._places = 0
        return arrays

    def _arrays(self) -> Arrays:
        # Sorted, so that two regions with the same updates in another order contribute the same
        # bytes.
        keys = sorted(self._sums)
        sums = [self._sums[key] for key in keys]
        table = np.array(keys, dtype=np.int32).reshape(-1, len(COLUMNS))
        no_counts: Ints = np.empty(0, dtype=np.int64)
        return {
            "places": np.array([self._places] if self._places else [], dtype=np.int64),
            **{name: table[:, column].copy() for column, name in enumerate(COLUMNS)},
            "count": np.concatenate([no_counts, *(total.counts for total in sums)]),
            "windows": np.array([total.windows for total in sums], dtype=np.int64),
            "exposure": np.array([total.exposure for total in sums], dtype=np.float64),
        }

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        return AggregatorState(sums=self._arrays()).saved(half=HALF)

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        sums = AggregatorState.read(state, half=HALF).sums
        fresh = DensityTreeAggregator(self._window_readings, self._noise_variance)
        try:
            if len(sums["places"]):
                # As an update is added, so that a damaged state meets the same checks.
                fresh.add(sums, 0)
        except InvalidData as damaged:
            raise InvalidState(f"saved sums: {damaged}") from None
        # Only now: a state that is refused must have changed nothing.
        vars(self).update(vars(fresh))
