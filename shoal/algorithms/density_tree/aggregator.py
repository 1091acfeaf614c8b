"""What a region of density_tree contributes: the private counts of its clients' windows, added up cell by cell."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.density_tree.arrays import REGION_UPDATE, blocks_of
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, ArraySpec, State
from shoal.errors import InvalidData, InvalidState

STATE_VERSION: Final = 1
_COLUMNS: Final = ("leaf", "axis", "epoch", "cells")
_SAVED: Final = {**REGION_UPDATE, "places": ArraySpec("<i8", ("p",))}
"""as `REGION_UPDATE`, with no number of readings before there are any"""

Key = tuple[int, int, int, int]
"""leaf, axis, epoch and number of cells of a block"""


class _Sum(NamedTuple):
    """The sum of the blocks of one key."""

    counts: NDArray[np.int64]
    """(cells,) whole numbers, so that they are the same in any order"""
    windows: int
    exposure: float


class DensityTreeAggregator:
    """Adds up blocks of counts that were counted under the same cells. The counts of the sum are exact.

    Whether a block still fits the tree is decided where the tree is, in the federation at the top.
    """

    def __init__(self) -> None:
        self._sums: dict[Key, _Sum] = {}
        self._places = 0

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Always: a sum is as large as its largest part."""
        return True

    def add(self, arrays: Arrays, readings: int) -> None:
        """Add the blocks of one update. Raises `InvalidData`."""
        for block in blocks_of(arrays, "the region"):
            key = (block.leaf, block.axis, block.epoch, len(block.counts))
            counts, windows, exposure = self._sums.get(key, _Sum(np.zeros(key[3], dtype=np.int64), 0, 0.0))
            self._sums[key] = _Sum(
                counts + block.counts.astype(np.int64), windows + block.windows, exposure + block.exposure
            )
        self._places += int(arrays["places"][0])

    def contribute(self) -> Arrays:
        """The `REGION_UPDATE` arrays of the sums since the last call, in the order of their keys."""
        arrays = self._arrays()
        self._sums, self._places = {}, 0
        return arrays

    def _arrays(self) -> Arrays:
        keys = sorted(self._sums)
        sums = [self._sums[key] for key in keys]
        table = np.array(keys, dtype=np.int32).reshape(-1, len(_COLUMNS))
        return {
            "places": np.array([self._places] if self._places else [], dtype=np.int64),
            **{name: table[:, column].copy() for column, name in enumerate(_COLUMNS)},
            "count": np.concatenate([np.empty(0, dtype=np.int64), *(one.counts for one in sums)]),
            "windows": np.array([one.windows for one in sums], dtype=np.int64),
            "exposure": np.array([one.exposure for one in sums], dtype=np.float64),
        }

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        return {"version": STATE_VERSION, "half": "density_tree aggregator", **self._arrays()}

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        saved = StateReader(state, STATE_VERSION, half="density_tree aggregator")
        sums = {"version": STATE_VERSION, "sums": {name: state.get(name) for name in _SAVED}}
        arrays = StateReader(sums, STATE_VERSION).read_arrays("sums", _SAVED, 0)
        saved.check(len(arrays["places"]) <= 1, "places must be one number or none")
        saved.check(len(arrays["places"]) == 1 or not len(arrays["leaf"]), "there are sums of no readings")
        fresh = DensityTreeAggregator()
        try:
            if len(arrays["places"]):
                fresh.add(arrays, 0)
        except InvalidData as damaged:
            raise InvalidState(f"saved sums: {damaged}") from None
        vars(self).update(vars(fresh))
