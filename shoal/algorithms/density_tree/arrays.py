"""The arrays that travel between the clients of density_tree and its server, and their blocks."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats

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
    "counted": ArraySpec("<f8", ("l",)),
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
never given again, its box, the readings in it, all that fell into it since the stream began, which
do not fade (below zero by noise alone), their mean, and between what the middle 80 % of them lie on
each feature (its whole box where its own counts do not show it yet: the mean is then one of the
leaf that was cut); of each axis, leaf by leaf, its two features and their weights, its range, the
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
    leaves = arrays["leaf"].tolist()
    cells = arrays["cells"].tolist()
    counts = np.asarray(arrays["count"], dtype=np.float64)
    if sum(cells) != len(counts) or min(cells, default=1) < 1:
        raise InvalidData(
            f"contribution of {client}: the cells of its blocks do not add up to its counts"
        )
    axes = arrays["axis"].tolist()
    epochs = arrays["epoch"].tolist()
    exposures, windows = _exposures_and_windows(arrays, leaves)
    columns = zip(leaves, axes, epochs, cells, exposures, windows, strict=True)
    blocks = []
    end = 0
    for leaf, axis, epoch, n_cells, exposure, n_windows in columns:
        start = end
        end = start + n_cells
        blocks.append(Block(leaf, axis, epoch, counts[start:end], exposure, n_windows))
    return blocks


def _exposures_and_windows(arrays: Arrays, leaves: list[int]) -> tuple[list[float], list[int]]:
    """Exposure and windows of each block: in a window, the sampled axes of a leaf share its
    readings equally."""
    if "windows" in arrays:
        return arrays["exposure"].tolist(), arrays["windows"].tolist()
    places = int(arrays["places"][0])
    sampled = Counter(leaves)
    return [places / sampled[leaf] for leaf in leaves], [1] * len(leaves)
