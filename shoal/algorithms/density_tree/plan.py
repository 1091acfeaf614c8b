"""The plan of counting: all that a client needs to know of the tree, and how a window is counted
under it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from shoal.algorithms.density_tree.arrays import SHARE_BITS, SHARE_ONE
from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.gaps import LeafFacts, possible_leaves
from shoal.algorithms.density_tree.leaf import BINS, NO_ZOOM
from shoal.algorithms.density_tree.plan_check import check_plan
from shoal.algorithms.density_tree.tree import leaf_of
from shoal.algorithms.streaming import Arrays, Rows
from shoal.kernels import forms
from shoal.kernels.arrays import Bools, Floats, Ints, Words, Words32
from shoal.kernels.constants import GOLDEN_RATIO

PRIVATE_COUNT_MAX: Final = 2**31 - 1
"""counts travel in 32 bits. No noise is ever near that; one that were would become this"""
SHARE_OF_LEARNING: Final = 0.04
"""time to count a reading, relative to that in which CA+ learns one: how soon the compiled form is
worth loading"""
_LEAF_STEP: Final = 0xD1B54A32D192ED03
"""odd, so that no two leaves begin their sampling at the same word"""
LEAF_WORD: Final = np.uint32(0x9E3779B1)
"""odd: a word times it, without its carry, is another word as even"""
PLAN_ARRAYS: Final = (
    "cut_first",
    "cut_second",
    "cut_first_weight",
    "cut_second_weight",
    "cut_at",
    "cut_parts",
    "leaf_id",
    "axis_leaf",
    "axis_first",
    "axis_second",
    "axis_first_weight",
    "axis_second_weight",
    "axis_start",
    "axis_end",
    "axis_zoom",
    "axis_span",
    "axis_epoch",
    "axis_share",
)
"""the arrays of a snapshot that are the plan"""


@dataclass(frozen=True)
class CountedWindow:
    """The true counts of a window, which must not leave the client before noise is added, and what
    they are of."""

    counts: Ints
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

    def update(self, private: Ints) -> Arrays:
        """The `UPDATE` arrays with private counts (cells,) in the place of the true ones."""
        return {
            "places": np.array([self.places], dtype=np.int64),
            "leaf": self.leaf.astype(np.int32),
            "axis": self.axis.astype(np.int32),
            "epoch": self.epoch.astype(np.int32),
            "cells": self.cells.astype(np.int32),
            "count": np.clip(private, -PRIVATE_COUNT_MAX, PRIVATE_COUNT_MAX).astype(np.int32),
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
    """(A,) chance of each axis to be sampled in a window, in parts of `SHARE_ONE`; those of a leaf
    sum to a multiple"""
    digest: bytes
    """32 bytes over all of it but the facts"""
    facts: LeafFacts
    """what says into which leaf a reading falls that lacks a value"""

    @classmethod
    def from_arrays(cls, arrays: Arrays, d: int) -> CountingPlan:
        """Make a plan from the arrays of a snapshot, for readings of d features. Raises
        `InvalidData`."""
        check_plan(arrays, d)
        digest = hashlib.sha256()
        for name in PLAN_ARRAYS:
            # The name ends the bytes of its array: without it a value moved from the end of one
            # array to the start of the next would leave the digest as it is.
            digest.update(np.ascontiguousarray(arrays[name]).tobytes() + name.encode())
        return cls(
            Axes.from_arrays(arrays, "cut"),
            arrays["cut_at"],
            arrays["cut_parts"],
            arrays["leaf_id"],
            arrays["axis_leaf"],
            Axes.from_arrays(arrays, "axis"),
            arrays["axis_start"],
            arrays["axis_end"],
            arrays["axis_zoom"],
            arrays["axis_span"],
            arrays["axis_epoch"],
            arrays["axis_share"],
            digest.digest(),
            LeafFacts.of(arrays, d),
        )

    @cached_property
    def _sampled_before(self) -> Ints:
        """(l + 1,) axes sampled of the leaves before each leaf."""
        leaves = len(self.leaf_ids)
        # Sums of floats, and exact: shares of all axes of a leaf sum to far less than 2^53.
        shares = np.bincount(self.axis_leaf, weights=self.share, minlength=leaves)
        sampled = shares.astype(np.int64) // SHARE_ONE
        return np.concatenate([[0], np.cumsum(sampled)])

    @cached_property
    def _leaf_of_sampled(self) -> Ints:
        """(b,) the leaf of each axis that a window samples, whichever of the leaf's axes it is."""
        return np.repeat(np.arange(len(self.leaf_ids)), np.diff(self._sampled_before))

    @cached_property
    def _leaf_words(self) -> Words:
        """(l,) what the sampling starts with in each leaf."""
        return self.leaf_ids.astype(np.uint64) * np.uint64(_LEAF_STEP)

    @cached_property
    def _share_before(self) -> Ints:
        """(A,) shares of all axes up to and with each."""
        return np.cumsum(self.share)

    @cached_property
    def _cells(self) -> Ints:
        """(A,) cells of each axis."""
        return np.where(self.zoom == NO_ZOOM, BINS, 2 * BINS - self.span)

    @cached_property
    def _cut_arrays(self) -> tuple[Ints | Floats, ...]:
        """Cuts in the form of the compiled kernel."""
        parts = _whole(self.cut_parts.reshape(-1, 2))
        return *_whole_and_real(self.cut_axes), _real(self.cut_at), parts

    @cached_property
    def _axis_arrays(self) -> tuple[Ints | Floats, ...]:
        """Axes in the form of the compiled kernel."""
        return (
            *_whole_and_real(self.axes),
            _real(self.start),
            _real(self.end),
            _whole(self.zoom),
            _whole(self.span),
        )

    @cached_property
    def _first_axis(self) -> Ints:
        """(l,) position of each leaf's first axis."""
        return np.searchsorted(self.axis_leaf, np.arange(len(self.leaf_ids)))

    def sampled_axes(self, client: bytes, number: int) -> Ints:
        """The axes (b,) that window `number` of a client samples: systematic sampling by share in
        each leaf.

        Where the sampling starts is public: it differs from client to client and leaf to leaf, and
        goes on by the golden ratio from window to window, so that every client samples every axis
        in proportion to its share.
        """
        words = np.frombuffer(hashlib.shake_256(b"axes" + client).digest(8), dtype="<u8")
        word = words[0] + self._leaf_words + np.uint64(number * GOLDEN_RATIO % 2**64)
        shift = (word >> np.uint64(64 - SHARE_BITS)).astype(np.int64)
        leaf = self._leaf_of_sampled
        # One step of `SHARE_ONE` for each sampled axis: a leaf's shares sum to a multiple of it, so
        # every start lies within the axes of its own leaf, and no axis is hit twice as no share is
        # above it.
        start = np.arange(len(leaf), dtype=np.int64) * SHARE_ONE + shift[leaf]
        return np.asarray(np.searchsorted(self._share_before, start, side="right"), dtype=np.int64)

    def count(
        self,
        rows: Rows,
        valid: Bools,
        client: bytes,
        number: int,
        cohort: tuple[bytes, int] | None = None,
    ) -> CountedWindow:
        """Count the readings of a window: rows (n, d) in unit coordinates; only the `valid` (n,)
        are readings.

        A row that is not valid keeps its place and is counted nowhere. A reading that lacks values
        (NaN) falls into one of the leaves that the others allow; if it lacks a feature of the axis
        drawn for it, it is counted nowhere. So each reading is in one cell at most, and what
        protects the counts is the same. `client` is the public name of the client and its source;
        `number` counts its windows. With a `cohort`, the name of many clients and the number of a
        round, all of them sample the same axes.
        """
        sampled_axes = self.sampled_axes(*(cohort or (client, number)))
        size = self._cells[sampled_axes]
        words = drawn_words(client, number, len(rows))
        whole = valid
        lacks = None
        # A sum is faster than a look at each value, and most windows lack none.
        if np.isnan(rows.sum()):
            lacks = np.isnan(rows).any(axis=1) & valid
            whole = valid & ~lacks
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(rows))
        if compiled is not None:
            counts = np.zeros(int(size.sum()), dtype=np.int64)
            sampling = sampled_axes, self._sampled_before, np.cumsum(size) - size, BINS
            points = np.ascontiguousarray(rows, dtype=np.float64)
            places = np.flatnonzero(whole)
            compiled.count_window(
                points, places, words, self._cut_arrays, self._axis_arrays, sampling, counts
            )
        else:
            counts = self._counted(rows[whole], words[whole], sampled_axes, size)
        # None may be left: the value that is missing can be that of a rejected reading.
        if lacks is not None and lacks.any():
            counts += self._counted_with_gaps(rows[lacks], words[lacks], sampled_axes, size)
        in_leaf = self._leaf_of_sampled
        own_axis = sampled_axes - self._first_axis[in_leaf]
        return CountedWindow(
            counts, self.leaf_ids[in_leaf], own_axis, self.epoch[sampled_axes], size, len(rows)
        )

    def _counted(self, rows: Rows, words: Words32, sampled_axes: Ints, size: Ints) -> Ints:
        """readings (m, d), a random word for each, the sampled axes (b,), the cells of each ->
        counts of all cells."""
        x = np.clip(rows, 0.0, 1.0)
        leaf = leaf_of(x, self.cut_axes, self.cut_at, self.cut_parts)
        block, place = self._places_on_axes(x, words, leaf, sampled_axes)
        return self._in_cells(block, place, sampled_axes, size)

    def _counted_with_gaps(
        self, rows: Rows, words: Words32, sampled_axes: Ints, size: Ints
    ) -> Ints:
        """The counts of `_counted`, of readings that lack values."""
        x = np.clip(rows, 0.0, 1.0)
        pairs = possible_leaves(x, self.cut_axes, self.cut_at, self.cut_parts)
        # Other bits than those that draw the axis.
        leaf = self.facts.drawn(x, *pairs, words * LEAF_WORD)
        block, place = self._places_on_axes(x, words, leaf, sampled_axes)
        there = ~np.isnan(place)
        return self._in_cells(block[there], place[there], sampled_axes, size)

    def _places_on_axes(
        self, x: Floats, words: Words32, leaf: Ints, sampled_axes: Ints
    ) -> tuple[Ints, Floats]:
        """Rows (m, d) with their leaves (m,) -> (m,) the block of cells drawn for each, (m,) the
        place on its axis."""
        of_leaf = np.diff(self._sampled_before)[leaf]
        # The upper bits of the product choose as evenly as a remainder, without a division.
        block = self._sampled_before[leaf] + ((words.astype(np.int64) * of_leaf) >> 32)
        return block, self.axes.positions(x, np.arange(len(x)), sampled_axes[block])

    def _in_cells(self, block: Ints, place: Floats, sampled_axes: Ints, size: Ints) -> Ints:
        """Counts of all cells."""
        cell = (np.cumsum(size) - size)[block] + self._cell_of(place, sampled_axes[block])
        return np.bincount(cell, minlength=int(size.sum())).astype(np.int64)

    def _cell_of(self, position: Floats, axis: Ints) -> Ints:
        """Positions (n,) on axes (n,) -> (n,) cell of the axis: coarse bins outside the zoom, then
        fine bins."""
        start = self.start[axis]
        zoom = self.zoom[axis]
        span = self.span[axis]
        # Below the end by less than any bin: a reading on the upper bound falls into the last bin.
        last_place = BINS * (1.0 - 1e-12)
        # A plan made to hurt may have a range near 0, in which every place is beyond the last bin.
        with np.errstate(over="ignore"):
            at = np.clip((position - start) / (self.end[axis] - start) * BINS, 0.0, last_place)
        coarse = at.astype(np.int64)
        has_fine = zoom != NO_ZOOM
        is_fine = has_fine & (coarse >= zoom) & (coarse < zoom + span)
        is_after = has_fine & (coarse >= zoom + span)
        fine = ((at - zoom) * BINS / np.maximum(span, 1)).astype(np.int64)
        fine_cell = BINS - span + np.clip(fine, 0, BINS - 1)
        return np.where(is_fine, fine_cell, np.where(is_after, coarse - span, coarse))


def drawn_words(client: bytes, number: int, n: int) -> Words32:
    """A word for each of n readings, which draws its axis: public, and of this window alone."""
    source = b"draws" + client + number.to_bytes(8, "little")
    return np.frombuffer(hashlib.shake_256(source).digest(4 * n), dtype="<u4")


def leaf_words(client: bytes, number: int, n: int) -> Words32:
    """A word for each of n readings, which draws its leaf where it lacks values: as public."""
    return drawn_words(client, number, n) * LEAF_WORD


def _whole_and_real(axes: Axes) -> tuple[Ints, Ints, Floats, Floats]:
    return (
        _whole(axes.first),
        _whole(axes.second),
        _real(axes.first_weight),
        _real(axes.second_weight),
    )


def _whole(values: Ints) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int64)


def _real(values: Floats) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)
