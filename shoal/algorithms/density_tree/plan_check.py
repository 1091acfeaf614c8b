"""The check of a plan of counting, before anything is counted or restored under it.

A server is not trusted: a plan that is not one tree, or that has axes without a range, would count
readings twice or nowhere, and compiled kernels would read beyond the ends of its arrays.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.algorithms.density_tree.arrays import SHARE_ONE
from shoal.algorithms.density_tree.leaf import BINS, NO_ZOOM, SPANS
from shoal.algorithms.streaming import Arrays
from shoal.errors import InvalidData
from shoal.kernels.arrays import Bools

NUMBER_MAX: Final = 2**31 - 1
"""largest number of a leaf, and largest epoch: both travel in 32 bits with the counts"""
SLACK: Final = 1e-9
"""distance by which rounding may move a weight or a position"""


def check_plan(arrays: Arrays, d: int) -> None:
    """Raises `InvalidData` unless readings of d features can be counted under the plan in these
    arrays.

    Their types and shapes must be those of the table of snapshots.
    """
    _check_axes("cut", arrays, d)
    _check_axes("axis", arrays, d)
    _check_tree(arrays)
    _check_cells(arrays)
    _check_shares(arrays)


def _check_axes(name: str, arrays: Arrays, d: int) -> None:
    """Features that exist, and weights under which every row of the unit cube lies in [-1, 1] (see
    `Axes`)."""
    for part in ("first", "second"):
        feature = arrays[f"{name}_{part}"]
        _require(
            (feature >= 0) & (feature < d), f"{name}_{part} holds a feature that does not exist"
        )
    first = arrays[f"{name}_first_weight"]
    second = arrays[f"{name}_second_weight"]
    _require(
        (first > 0.0) & (np.abs(first + np.abs(second) - 1.0) <= SLACK),
        f"weights of {name} do not sum to 1",
    )
    _require((second != 0.0) | (first == 1.0), f"{name}_first_weight is not 1 on a feature")
    # So that whether a reading lacks a feature of the axis is plain.
    is_same = arrays[f"{name}_first"] == arrays[f"{name}_second"]
    _require((second != 0.0) | is_same, f"{name}_second is another feature, of weight 0")


def _check_tree(arrays: Arrays) -> None:
    """Every leaf and cut is part of one cut, which comes before it; but the root, cut 0 or the only
    leaf, of none."""
    parts = arrays["cut_parts"]
    at = arrays["cut_at"]
    leaf = arrays["leaf_id"]
    cuts = np.arange(len(at))
    _require(len(leaf) == len(at) + 1, "there must be one leaf more than cuts")
    below = cuts
    if len(cuts):
        # Leaves are named from -1 down; cut 0, the root, is below none.
        below = np.concatenate([np.arange(-len(leaf), 0), cuts[1:]])
    _require(
        np.array_equal(np.sort(parts, axis=None), below),
        "cut_parts must hold every cut and leaf once",
    )
    _require(
        (parts < 0) | (parts > cuts[:, None]), "cut_parts holds a cut that is not below its own"
    )
    _require(np.abs(at) <= 1.0 + SLACK, "cut_at lies beyond the unit cube")
    _require(
        (leaf >= 0) & (leaf <= NUMBER_MAX),
        f"leaf_id holds a number that is not from 0 to {NUMBER_MAX}",
    )
    # Not `np.unique`, which loads the masked arrays of NumPy: a megabyte, and a twentieth of the
    # time in which `shoal check` starts.
    _require(len(set(leaf.tolist())) == len(leaf), "leaf_id holds a number twice")


def _check_cells(arrays: Arrays) -> None:
    """Every axis has a range, and fine bins over some of its coarse ones or none."""
    start = arrays["axis_start"]
    end = arrays["axis_end"]
    _require(
        (start >= -1.0 - SLACK) & (start < end) & (end <= 1.0 + SLACK),
        "an axis has no range in the unit cube",
    )
    zoom = arrays["axis_zoom"]
    span = arrays["axis_span"]
    epoch = arrays["axis_epoch"]
    over_coarse = np.isin(span, SPANS) & (zoom >= 0) & (zoom <= BINS - span)
    _require(
        np.where(zoom == NO_ZOOM, span == 0, over_coarse),
        "axis_zoom and axis_span are not over coarse bins",
    )
    _require(
        (epoch >= 0) & (epoch <= NUMBER_MAX),
        f"axis_epoch holds a number that is not from 0 to {NUMBER_MAX}",
    )


def _check_shares(arrays: Arrays) -> None:
    """The axes come leaf by leaf, and each window samples a whole number of those of each leaf, at
    least one."""
    leaf = arrays["axis_leaf"]
    share = arrays["axis_share"]
    leaves = len(arrays["leaf_id"])
    _require((leaf >= 0) & (leaf < leaves), "axis_leaf holds a leaf that does not exist")
    _require(np.diff(leaf) >= 0, "axis_leaf does not ascend")
    _require(
        (share >= 0) & (share <= SHARE_ONE),
        f"axis_share holds a number that is not from 0 to {SHARE_ONE}",
    )
    # Below 2^53, so that sums of floats are exact.
    sampled = np.bincount(leaf, share, leaves)
    _require(
        (sampled > 0) & (sampled % SHARE_ONE == 0),
        f"shares of a leaf do not sum to a multiple of {SHARE_ONE}",
    )


def _require(holds: bool | np.bool_ | Bools, problem: str) -> None:
    if not np.all(holds):
        raise InvalidData(f"the plan of counting is damaged: {problem}")
