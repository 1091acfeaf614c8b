"""The arrays that travel between the clients of density_tree and its server, and how a region adds
them up.

No option depends on the stream: they are limits, significance levels and spans.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic import field_validator

from shoal.algorithms.counting import without_far_noise
from shoal.algorithms.options import AlgorithmOptions, option
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, ArraySpec, State
from shoal.errors import InvalidData, InvalidState
from shoal.kernels.arrays import Floats, Ints

FINEST_DEFAULT = 1 / 128
WINDOW_READINGS_DEFAULT = 400


class DensityTreeOptions(AlgorithmOptions):
    """Options of both halves.

    A federation takes `noise_variance`, `window_readings` and `axes_per_window` from [privacy] of
    its contract, and `circular` from its features.
    """

    ALGORITHM = "density_tree"

    noise_variance: float = option(0.0, "variance of the noise of one published count", least=0.0)
    window_readings: int = option(WINDOW_READINGS_DEFAULT, "readings of a full window", least=1)
    axes_per_window: int = option(
        0, "axes of each leaf that a window samples; 0: as many as the noise allows", least=0
    )
    leaves_max: int = option(64, "leaves that the tree has at most", least=1)
    grow_readings: int = option(2000, "readings absorbed between two changes of the tree", least=1)
    cut_significance: float = option(
        4.0,
        "standard deviations by which a valley must lie below the peaks beside it, to be cut",
        least=1.0,
        most=100.0,
    )
    depth: float = option(
        0.4,
        "height of a valley at most, as a share of the lower of the peaks beside it",
        least=0.01,
        most=0.99,
    )
    filled: float = option(
        0.7,
        "share of the lower peak from which on, on both sides of a cut, the valley counts as filled",
        least=0.01,
        most=1.0,
    )
    finest: float = option(
        FINEST_DEFAULT,
        "smallest fine bin, as a share of the range of a feature",
        least=1e-6,
        most=1.0,
    )
    decay: float = option(
        1.0,
        "factor by which counts fade with every 400 readings; below 1 for clusters that move",
        least=0.5,
        most=1.0,
    )
    oblique_axes: int = option(
        0,
        "axes of each leaf that combine two features, to find what no single feature shows",
        least=0,
    )

    circular: str = option(
        "",
        "positions of the features whose ends meet, such as 0,3",
        expected="whole numbers and commas",
    )

    @field_validator("circular")
    @classmethod
    def _are_positions(cls, written: str) -> str:
        if not re.fullmatch(r"(\d+(,\d+)*)?", written):
            raise ValueError("no positions")
        return written

    @property
    def circular_features(self) -> tuple[int, ...]:
        """Positions of the features whose ends meet."""
        return tuple(int(each) for each in self.circular.split(",") if each)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; without what is not so for most features, as states saved before it
        existed."""
        return {
            name: value for name, value in super().as_dict().items() if name != "circular" or value
        }

    def model_post_init(self, context: Any) -> None:
        """Raises `SettingsError` for a valley that would count as filled when it is cut."""
        self.require("depth", self.depth < self.filled, "below filled")


SHARE_BITS: Final = 16
SHARE_ONE: Final = 1 << SHARE_BITS
"""the share of an axis that every window samples; shares are whole numbers, so that all find the
same axes"""

UPDATE = {
    "places": ArraySpec("<i8", (1,), at_least_one=True),
    "leaf": ArraySpec("<i4", ("b",)),
    "axis": ArraySpec("<i4", ("b",)),
    "epoch": ArraySpec("<i4", ("b",)),
    "cells": ArraySpec("<i4", ("b",), at_least_one=True),
    "count": ArraySpec("<i4", ("n",)),
}
"""one window of a client: how many readings it has, rejected ones included; and block by block the
private counts of the cells of one axis of one leaf, in the epoch in which the axis had these cells.
Private counts may be negative"""

REGION_UPDATE = {
    **UPDATE,
    "count": ArraySpec("<i8", ("n",)),
    "windows": ArraySpec("<i8", ("b",), at_least_one=True),
    "exposure": ArraySpec("<f8", ("b",), positive=True),
}
"""windows of the clients of a region, added up: the readings of all windows; and block by block the
sums of the private counts, over how many windows, and the readings that the axis would have counted
if all of theirs were in its leaf"""

SNAPSHOT = {
    "cut_first": ArraySpec("<i8", ("s",), points_into="d"),
    "cut_second": ArraySpec("<i8", ("s",), points_into="d"),
    "cut_first_weight": ArraySpec("<f8", ("s",)),
    "cut_second_weight": ArraySpec("<f8", ("s",)),
    "cut_at": ArraySpec("<f8", ("s",)),
    "cut_parts": ArraySpec("<i8", ("s", 2)),
    "leaf_id": ArraySpec("<i8", ("l",)),
    "low": ArraySpec("<f8", ("l", "d"), rowlike=True),
    "high": ArraySpec("<f8", ("l", "d"), rowlike=True),
    "mass": ArraySpec("<f8", ("l",)),
    "leaf_centre": ArraySpec("<f8", ("l", "d"), rowlike=True),
    "leaf_low": ArraySpec("<f8", ("l", "d"), rowlike=True),
    "leaf_high": ArraySpec("<f8", ("l", "d"), rowlike=True),
    "cluster": ArraySpec("<i8", ("l",), points_into="c"),
    "axis_leaf": ArraySpec("<i8", ("a",), points_into="l"),
    "axis_first": ArraySpec("<i8", ("a",), points_into="d"),
    "axis_second": ArraySpec("<i8", ("a",), points_into="d"),
    "axis_first_weight": ArraySpec("<f8", ("a",)),
    "axis_second_weight": ArraySpec("<f8", ("a",)),
    "axis_start": ArraySpec("<f8", ("a",)),
    "axis_end": ArraySpec("<f8", ("a",)),
    "axis_zoom": ArraySpec("<i8", ("a",)),
    "axis_span": ArraySpec("<i8", ("a",)),
    "axis_epoch": ArraySpec("<i8", ("a",)),
    "axis_share": ArraySpec("<i8", ("a",)),
    "identity": ArraySpec("<i8", ("c",)),
    "centre": ArraySpec("<f8", ("c", "d"), rowlike=True),
    "centre_mass": ArraySpec("<f8", ("c",)),
    "recent": ArraySpec("<f8", ("c",)),
    "active": ArraySpec("|b1", ("c",)),
    "parent": ArraySpec("<i8", ("c",)),
    "since": ArraySpec("<i8", ("c",)),
    "found": ArraySpec("|b1", (1,)),
}
"""the plan under which clients count, and the clusters. Of each cut its axis, its place and its two
parts (i >= 0 is cut i, -1 - i is leaf i; cut 0 is the root); of each leaf its number, which is
never given again, its box, the readings in it, their mean, and between what the middle 80 % of them
lie on each feature; of each axis, leaf by leaf, its two features and their weights, its range, the
coarse bin from which fine bins lie over `span` coarse bins (-1: none), its epoch, and its share in
parts of 65536; of each cluster its identity, centre and readings as estimated from private counts,
its recent readings (they fade to 1/e in 4000 readings of all clusters), whether it is active, the
identity that it parted from (-1: none), and how many readings had been absorbed when it was found;
and whether anything was found at all: noise alone is no cluster"""


class Block(NamedTuple):
    """The private counts of one axis of one leaf."""

    leaf: int
    axis: int
    epoch: int
    counts: Floats
    exposure: float
    """readings that the axis would have counted if all were in its leaf"""
    windows: int = 1
    """over which the counts are added up"""


def blocks_of(arrays: Arrays, client: str) -> list[Block]:
    """The blocks of an update of a client, or of a region. Raises `InvalidData`, which names the
    client."""
    columns = [arrays[name].tolist() for name in ("leaf", "axis", "epoch", "cells")]
    counts = np.asarray(arrays["count"], dtype=np.float64)
    if sum(columns[3]) != len(counts) or min(columns[3], default=1) < 1:
        raise InvalidData(
            f"contribution of {client}: the cells of its blocks do not add up to its counts"
        )
    ends = np.cumsum(columns[3]).tolist()
    return [
        Block(leaf, axis, epoch, counts[end - cells : end], exposure, windows)
        for leaf, axis, epoch, cells, end, exposure, windows in zip(
            *columns, ends, *_exposures_and_windows(arrays, columns[0]), strict=True
        )
    ]


def _exposures_and_windows(arrays: Arrays, leaves: list[int]) -> tuple[list[float], list[int]]:
    """Exposure and windows of each block: in a window, the sampled axes of a leaf share its
    readings equally."""
    if "windows" in arrays:
        return arrays["exposure"].tolist(), arrays["windows"].tolist()
    places = int(arrays["places"][0])
    sampled = Counter(leaves)
    return [places / sampled[leaf] for leaf in leaves], [1] * len(leaves)


PARTIAL_WINDOWS_MAX: Final = 16
"""windows of a region's update that may be of few readings, beside those that are half full"""


def windows_max(readings: int, window_readings: int) -> int:
    """Most windows that a region adds up in one update of this many readings: noise grows with
    their number."""
    return PARTIAL_WINDOWS_MAX + 2 * readings // window_readings


STATE_VERSION: Final = 1
_COLUMNS: Final = ("leaf", "axis", "epoch", "cells")
_SAVED: Final = {**REGION_UPDATE, "places": ArraySpec("<i8", ("p",))}
"""`REGION_UPDATE` with no number of readings before there are any"""

Key = tuple[int, int, int, int]
"""leaf, axis, epoch and number of cells of a block"""


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
        return max((one.windows for one in self._sums.values()), default=0) + windows <= most

    def add(self, arrays: Arrays, readings: int, client: str = "") -> None:
        """Add the blocks of one update. Raises `InvalidData`."""
        for block in blocks_of(arrays, "the region"):
            key = (block.leaf, block.axis, block.epoch, len(block.counts))
            counts, windows, exposure = self._sums.get(
                key, _Sum(np.zeros(key[3], dtype=np.int64), 0, 0.0)
            )
            added = without_far_noise(block.counts, self._noise_variance, block.windows).astype(
                np.int64
            )
            self._sums[key] = _Sum(
                counts + added, windows + block.windows, exposure + block.exposure
            )
        self._places += int(arrays["places"][0])

    @property
    def is_due(self) -> bool:
        """False: nothing was asked for."""
        return False

    def contribute(self) -> Arrays:
        """The `REGION_UPDATE` arrays of the sums since the last call, in the order of their keys."""
        arrays = self._arrays()
        self._sums = {}
        self._places = 0
        return arrays

    def _arrays(self) -> Arrays:
        # Sorted, so that two regions with the same updates in another order contribute the same
        # bytes.
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
        saved.check(
            len(arrays["places"]) == 1 or not len(arrays["leaf"]), "there are sums of no readings"
        )
        fresh = DensityTreeAggregator(self._window_readings, self._noise_variance)
        try:
            if len(arrays["places"]):
                # As an update is added, so that a damaged state meets the same checks.
                fresh.add(arrays, 0)
        except InvalidData as damaged:
            raise InvalidState(f"saved sums: {damaged}") from None
        # Only now: a state that is refused must have changed nothing.
        vars(self).update(vars(fresh))
