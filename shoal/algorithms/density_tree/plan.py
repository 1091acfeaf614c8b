"""The plan of counting: all that a client needs to know of the tree, and how it counts a window under it.

Every reading is counted once: in one leaf, on one of the few axes that this window samples of the leaf, in one cell.
Which axes are sampled, and which of them a reading falls to, follows from public hashes; so the only thing that depends
on readings is the counts, and replacing one reading moves two of them by one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.density_tree.arrays import SHARE_BITS, SHARE_ONE
from shoal.algorithms.density_tree.axes import Axes, Ints
from shoal.algorithms.density_tree.leaf import BINS, NO_ZOOM
from shoal.algorithms.density_tree.plan_check import check_plan
from shoal.algorithms.density_tree.tree import leaf_of
from shoal.algorithms.streaming import Arrays, Rows
from shoal.kernels import forms
from shoal.kernels.distance import Floats
from shoal.kernels.golden_ratio import GOLDEN_RATIO

COUNT_MAX: Final = 2**31 - 1
"""counts travel in 32 bits. No noise is ever near that; one that were would become this"""
SHARE_OF_LEARNING: Final = 0.04
"""time to count a reading, relative to that in which CA+ learns one: how soon the compiled form is worth loading"""
_LEAF_STEP: Final = 0xD1B54A32D192ED03
PLAN_ARRAYS: Final = (
    "cut_first", "cut_second", "cut_first_weight", "cut_second_weight", "cut_at", "cut_parts", "leaf_id",
    "axis_leaf", "axis_first", "axis_second", "axis_first_weight", "axis_second_weight", "axis_start", "axis_end",
    "axis_zoom", "axis_span", "axis_epoch", "axis_share",
)  # fmt: skip
"""the arrays of a snapshot that are the plan"""


@dataclass(frozen=True)
class CountedWindow:
    """The true counts of a window, which must not leave the client before noise is added, and what they are of."""

    counts: NDArray[np.int64]
    """(cells,)"""
    leaf: Ints
    """(b,) id of the leaf of each block, which holds the cells of one axis sampled of one leaf"""
    axis: Ints
    """(b,) position of its axis among the leaf's axes"""
    epoch: Ints
    """(b,) epoch of the axis's cells"""
    cells: Ints
    """(b,) cells of each block; they sum to the number of counts"""
    places: int
    """readings of the window, those that are not valid included"""

    def update(self, private: NDArray[np.int64]) -> Arrays:
        """The `UPDATE` arrays with private counts (cells,) in the place of the true ones."""
        return {
            "places": np.array([self.places], dtype=np.int64),
            "leaf": self.leaf.astype(np.int32),
            "axis": self.axis.astype(np.int32),
            "epoch": self.epoch.astype(np.int32),
            "cells": self.cells.astype(np.int32),
            "count": np.clip(private, -COUNT_MAX, COUNT_MAX).astype(np.int32),
        }


@dataclass(frozen=True)
class CountingPlan:
    """s cuts, l leaves, A axes of all leaves together, leaf by leaf."""

    cut_axes: Axes
    cut_at: Floats
    cut_parts: Ints
    leaf_ids: Ints
    axis_leaf: Ints
    """(A,) the leaf of each axis, as a position in `leaf_ids`"""
    axes: Axes
    start: Floats
    end: Floats
    zoom: Ints
    span: Ints
    epoch: Ints
    share: Ints
    """(A,) chance of each axis to be sampled in a window, in parts of `SHARE_ONE`; those of a leaf sum to a multiple"""
    digest: bytes
    """32 bytes over all of it"""

    @classmethod
    def from_arrays(cls, arrays: Arrays, d: int) -> CountingPlan:
        """From the arrays of a snapshot, for readings of d features. Raises `InvalidData`."""
        check_plan(arrays, d)
        digest = hashlib.sha256()
        for name in PLAN_ARRAYS:
            digest.update(np.ascontiguousarray(arrays[name]).tobytes() + name.encode())
        return cls(
            Axes(*(arrays[f"cut_{part}"] for part in ("first", "second", "first_weight", "second_weight"))),
            arrays["cut_at"],
            arrays["cut_parts"],
            arrays["leaf_id"],
            arrays["axis_leaf"],
            Axes(*(arrays[f"axis_{part}"] for part in ("first", "second", "first_weight", "second_weight"))),
            arrays["axis_start"],
            arrays["axis_end"],
            arrays["axis_zoom"],
            arrays["axis_span"],
            arrays["axis_epoch"],
            arrays["axis_share"],
            digest.digest(),
        )

    @cached_property
    def _sampled_before(self) -> Ints:
        """(l + 1,) axes sampled of the leaves before each leaf."""
        sampled_axes = np.bincount(self.axis_leaf, weights=self.share, minlength=len(self.leaf_ids)).astype(np.int64)
        return np.concatenate([[0], np.cumsum(sampled_axes // SHARE_ONE)])

    @cached_property
    def _leaf_of_sampled(self) -> Ints:
        """(b,) the leaf of each axis that a window samples, whichever of the leaf's axes it is."""
        return np.repeat(np.arange(len(self.leaf_ids)), np.diff(self._sampled_before))

    @cached_property
    def _leaf_words(self) -> NDArray[np.uint64]:
        """(l,) what the sampling starts with in each leaf."""
        return self.leaf_ids.astype(np.uint64) * np.uint64(_LEAF_STEP)

    @cached_property
    def _share_before(self) -> Ints:
        return np.cumsum(self.share)

    @cached_property
    def _cells(self) -> Ints:
        """(A,) cells of each axis."""
        return np.where(self.zoom == NO_ZOOM, BINS, 2 * BINS - self.span)

    @cached_property
    def _cut_arrays(self) -> tuple[Ints | Floats, ...]:
        """As the compiled kernel takes them."""
        return (*_whole_and_real(self.cut_axes), _real(self.cut_at), _whole(self.cut_parts.reshape(-1, 2)))

    @cached_property
    def _axis_arrays(self) -> tuple[Ints | Floats, ...]:
        return (*_whole_and_real(self.axes), _real(self.start), _real(self.end), _whole(self.zoom), _whole(self.span))

    @cached_property
    def _first_axis(self) -> Ints:
        """(l,) position of each leaf's first axis."""
        return np.searchsorted(self.axis_leaf, np.arange(len(self.leaf_ids)))

    def sampled_axes(self, client: bytes, number: int) -> Ints:
        """The axes (b,) that window `number` of a client samples: systematic sampling by share in each leaf.

        Where the sampling starts is public: it differs from client to client and leaf to leaf, and goes on by the
        golden ratio from window to window, so that every client samples every axis in proportion to its share.
        """
        words = np.frombuffer(hashlib.shake_256(b"axes" + client).digest(8), dtype="<u8")
        word = words[0] + self._leaf_words + np.uint64(number * GOLDEN_RATIO % 2**64)
        shift = (word >> np.uint64(64 - SHARE_BITS)).astype(np.int64)
        leaf = self._leaf_of_sampled
        start = np.arange(len(leaf), dtype=np.int64) * SHARE_ONE + shift[leaf]
        return np.asarray(np.searchsorted(self._share_before, start, side="right"), dtype=np.int64)

    def count(self, rows: Rows, valid: NDArray[np.bool_], client: bytes, number: int) -> CountedWindow:
        """Count the readings of a window: rows (n, d) in unit coordinates, of which only the `valid` (n,) are readings.

        A row that is not valid keeps its place and is counted nowhere. `client` is the public name of the client and
        its source; `number` counts its windows.
        """
        sampled_axes = self.sampled_axes(client, number)
        size = self._cells[sampled_axes]
        drawn = hashlib.shake_256(b"draws" + client + number.to_bytes(8, "little")).digest(4 * len(rows))
        words = np.frombuffer(drawn, dtype="<u4")
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(rows))
        if compiled is not None:
            counts = np.zeros(int(size.sum()), dtype=np.int64)
            sampling = sampled_axes, self._sampled_before, np.cumsum(size) - size, BINS
            points, places = np.ascontiguousarray(rows, dtype=np.float64), np.flatnonzero(valid)
            compiled.count_window(points, places, words, self._cut_arrays, self._axis_arrays, sampling, counts)
        else:
            counts = self._counted(rows[valid], words[valid], sampled_axes, size)
        in_leaf = self._leaf_of_sampled
        own_axis = sampled_axes - self._first_axis[in_leaf]
        return CountedWindow(counts, self.leaf_ids[in_leaf], own_axis, self.epoch[sampled_axes], size, len(rows))

    def _counted(self, rows: Rows, words: NDArray[np.uint32], sampled_axes: Ints, size: Ints) -> Ints:
        """readings (m, d), a random word for each, the sampled axes (b,), the cells of each -> counts of all cells."""
        first_cell = np.cumsum(size) - size
        x = np.clip(rows, 0.0, 1.0)
        leaf = leaf_of(x, self.cut_axes, self.cut_at, self.cut_parts)
        of_leaf = np.diff(self._sampled_before)[leaf]
        block = self._sampled_before[leaf] + ((words.astype(np.int64) * of_leaf) >> 32)
        axis = sampled_axes[block]
        cell = self._cell_of(self.axes.positions(x, np.arange(len(x)), axis), axis)
        return np.bincount(first_cell[block] + cell, minlength=int(size.sum())).astype(np.int64)

    def _cell_of(self, position: Floats, axis: Ints) -> Ints:
        """Positions (n,) on axes (n,) -> (n,) cell of the axis: coarse bins outside the zoom, then fine bins."""
        start, zoom, span = self.start[axis], self.zoom[axis], self.span[axis]
        at = np.clip((position - start) / (self.end[axis] - start) * BINS, 0.0, BINS * (1.0 - 1e-12))
        coarse = at.astype(np.int64)
        fine = (zoom != NO_ZOOM) & (coarse >= zoom) & (coarse < zoom + span)
        fine_bin = np.clip(((at - zoom) * BINS / np.maximum(span, 1)).astype(np.int64), 0, BINS - 1)
        outside = np.where((zoom != NO_ZOOM) & (coarse >= zoom + span), coarse - span, coarse)
        return np.where(fine, BINS - span + fine_bin, outside)


def _whole_and_real(axes: Axes) -> tuple[Ints, Ints, Floats, Floats]:
    return _whole(axes.first), _whole(axes.second), _real(axes.first_weight), _real(axes.second_weight)


def _whole(values: Ints) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int64)


def _real(values: Floats) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)
