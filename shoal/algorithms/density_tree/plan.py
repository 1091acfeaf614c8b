"""The plan of counting: all that a client needs to know of the tree, its check, and how a window is
counted under it.

The plan has a share for each axis of a leaf, by which it is sampled: axes that begin to show a
valley more often, every axis now and then.

Readings that lack values: the leaves into which one may fall, and how likely each of them is,
follow from a snapshot, which is public, and from the reading alone. So a reading with gaps is in
one leaf, as every other one, and what protects the counts is the same.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np

from shoal.algorithms.density_tree.arrays import SHARE_BITS, SHARE_ONE
from shoal.algorithms.density_tree.leaf import BINS, NO_ZOOM, SPANS, Axes, Leaf
from shoal.algorithms.density_tree.tree import leaf_of
from shoal.algorithms.streaming import Arrays, Rows
from shoal.errors import InvalidData
from shoal.kernels import forms
from shoal.kernels.arrays import Bools, Floats, Ints, Words, Words32
from shoal.kernels.constants import GOLDEN_RATIO

MIDDLE_80: Final = 2.563
"""standard deviations of a normal distribution between the ends of its middle 80 %"""
LEAST_EXTENT: Final = 1.0 / 256.0
"""least distance of these ends of a leaf, in unit coordinates: finer than that nothing is counted
"""


@dataclass(frozen=True)
class LeafFacts:
    """The l leaves in a snapshot: the readings in each, their means, and how wide they spread."""

    mass: Floats
    centre: Floats
    spread: Floats
    """(l, d) standard deviations"""

    @classmethod
    def of(cls, snapshot: Arrays, d: int) -> Self:
        """Those of a snapshot of d features. One with the plan alone has none: then all leaves are
        alike."""
        if "leaf_centre" not in snapshot:
            leaves = len(snapshot["leaf_id"])
            return cls(np.ones(leaves), np.full((leaves, d), 0.5), np.ones((leaves, d)))
        width = np.maximum(snapshot["leaf_high"] - snapshot["leaf_low"], LEAST_EXTENT)
        return cls(np.maximum(snapshot["mass"], 1.0), snapshot["leaf_centre"], width / MIDDLE_80)

    def likeliest(self, rows: Floats, which: Ints, leaf: Ints) -> Ints:
        """rows (n, d), pairs (m,) of a row and a leaf that it may fall into -> (n,) the likeliest
        leaf of each row."""
        weight = self._weights(rows, which, leaf)
        # The last key counts first: by row, then the likeliest leaf, then the lowest number of
        # equally likely ones.
        order = np.lexsort((leaf, -weight, which))
        return np.asarray(leaf[order[np.searchsorted(which[order], np.arange(len(rows)))]])

    def drawn(self, rows: Floats, which: Ints, leaf: Ints, share: Floats) -> Ints:
        """Leaves as `likeliest` chooses them, but each as often as it is likely: `share` (n,) from
        0 to 1 decides.

        A leaf that is less likely everywhere would else lose all of these readings, and with them
        its mass.
        """
        weight = self._weights(rows, which, leaf)
        # By row, so that the running sum of the weights of each is in one piece.
        order = np.lexsort((leaf, which))
        first = np.searchsorted(which[order], np.arange(len(rows)))
        upto = np.cumsum(weight[order])
        before = upto[first] - weight[order][first]
        last = np.append(first[1:], len(order)) - 1
        wanted = before + share * (upto[last] - before)
        # Sums over all rows are rounded: a share near 0 or 1 must not end in the leaf of another
        # row.
        return np.asarray(
            leaf[order[np.clip(np.searchsorted(upto, wanted, side="right"), first, last)]]
        )

    def _weights(self, rows: Floats, which: Ints, leaf: Ints) -> Floats:
        """(m,) how likely each pair is, as a part of the likeliest pair of its row.

        The mass of the leaf times Student's density (3 degrees of freedom) of each value that is
        there. Sums, products and quotients alone: they have the same bits on every machine, where
        logarithms may not.
        """
        # Mantissa and exponent apart: products over hundreds of features leave the range of a
        # float.
        part, power = np.frexp(self.mass[leaf])
        power = power.astype(np.int64)
        for j in range(rows.shape[1]):
            spread = self.spread[leaf, j]
            apart = (rows[which, j] - self.centre[leaf, j]) / spread
            density = 1.0 / (spread * np.square(1.0 + apart * apart / 3.0))
            part, more = np.frexp(part * np.where(np.isnan(apart), 1.0, density))
            power += more
        most = np.full(len(rows), np.iinfo(np.int64).min)
        np.maximum.at(most, which, power)
        return np.asarray(np.ldexp(part, np.maximum(power - most[which], -1000).astype(np.int32)))


def possible_leaves(rows: Floats, axes: Axes, at: Floats, parts: Ints) -> tuple[Ints, Ints]:
    """All leaves, where `leaf_of` gives one, that a row (n, d) may fall into: -> (m,) rows and (m,)
    leaves, n at least.

    NaN is a value that a row lacks. At a cut that is about such a value it may be on both sides.
    """
    row = np.arange(len(rows))
    node = np.full(len(rows), 0 if len(at) else -1, dtype=np.int64)
    while (is_open := node >= 0).any():
        place = axes.positions(rows, row[is_open], node[is_open])
        below = parts[node[is_open]]
        is_above = place >= at[node[is_open]]
        lacks = np.isnan(place)
        first = np.where(is_above, below[:, 1], below[:, 0])
        row = np.concatenate([row[~is_open], row[is_open], row[is_open][lacks]])
        node = np.concatenate([node[~is_open], first, below[lacks, 1]])
    return row, -1 - node


SAMPLED_BY_NOISE: Final = 0.27
"""axes sampled per window are this times sqrt(window / noise variance): more axes add noise in
proportion to their number, fewer make the readings of each come in clumps, in inverse proportion"""
SAMPLED_BY_CLUMPING: Final = 0.5
"""axes sampled, as a part of those at which the variances of noise and of clumps are equal: a
valley lies where counts are low, and noise is as large there as elsewhere"""
NOISE_OF_LITTLE_WEIGHT: Final = 0.1
"""variance of noise, as a part of that of the readings, up to which more axes are sampled"""
HINT_MAX: Final = 5.0
"""significance from which on a better valley does not raise the share of an axis"""
EVEN_SHARE: Final = 0.25
"""part of the sampling that is spread evenly over the axes of a leaf"""
SETTLED_READINGS: Final = 1500.0
"""readings on the features of a leaf before oblique axes get their full share"""
OBLIQUE_FIRST = 0.1
OBLIQUE_SETTLED = 0.6
"""share of the sampling that oblique axes get together, at first and later"""
_ROUNDS = 30


def axes_sampled(axes: int, window_readings: int, noise_variance: float, fixed: int = 0) -> int:
    """Number of a leaf's axes that each window samples: `fixed` if that is not 0; else all without
    noise."""
    if fixed:
        return min(axes, fixed)
    if noise_variance <= 0.0:
        return axes
    return min(axes, max(1, round(SAMPLED_BY_NOISE * math.sqrt(window_readings / noise_variance))))


def axes_of_leaf(most: int, readings: float, noise_variance: float, clumping: float | None) -> int:
    """Number of a leaf's axes that each window samples, from 1 to `most`, where it has `readings`
    in the leaf.

    Noise adds a variance in proportion to the axes sampled, and the differences between windows
    (`Clumping`) one in inverse proportion, with the square of the readings: this balances both.
    Noise of little weight beside the variance of the readings themselves is no reason for fewer.
    """
    if clumping is None or noise_variance <= 0.0:
        return most
    noise = BINS * noise_variance
    balanced = round(SAMPLED_BY_CLUMPING * readings * math.sqrt(clumping / noise))
    return min(most, max(1, balanced, int(NOISE_OF_LITTLE_WEIGHT * readings / noise)))


def axis_shares(leaf: Leaf, hint: Floats, sampled: int) -> Ints:
    """(A,) how often each axis is sampled, in parts of `SHARE_ONE`; they sum to `sampled` times it,
    none is above."""
    a = len(leaf.axes)
    d = leaf.d
    # Of an axis that was not counted yet, what the leaf that was cut had shown counts.
    weight = np.exp(np.clip(np.maximum(hint, leaf.hint), 0.0, HINT_MAX))
    settled = float(leaf.exposure[:d].sum()) / SETTLED_READINGS
    if a > d and settled < 1.0:
        part = OBLIQUE_FIRST + (OBLIQUE_SETTLED - OBLIQUE_FIRST) * settled
        weight[d:] *= weight[:d].sum() / weight[d:].sum() * part / (1.0 - part)
    chance = EVEN_SHARE / a + (1.0 - EVEN_SHARE) * weight / weight.sum()
    chance = np.minimum(1.0, chance * sampled)
    # What is cut off at 1 is left for the others, so the scaling is repeated.
    for _ in range(_ROUNDS):
        chance = np.minimum(1.0, chance * sampled / chance.sum())
    return _whole_shares(chance, sampled)


def _whole_shares(chance: Floats, sampled: int) -> Ints:
    """Chances (A,) that sum to about `sampled` -> whole shares that sum to it exactly."""
    share = np.minimum(SHARE_ONE, np.floor(chance * SHARE_ONE)).astype(np.int64)
    missing = sampled * SHARE_ONE - int(share.sum())
    # What rounding down has left goes to the likeliest axes, of equally likely ones to the first.
    for axis in np.argsort(-chance, kind="stable").tolist():
        more = min(missing, SHARE_ONE - int(share[axis]))
        share[axis] += more
        missing -= more
    return share


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
    one = arrays[f"{name}_first"]
    other = arrays[f"{name}_second"]
    _require((second != 0.0) | (one == other), f"{name}_second is another feature, of weight 0")


def _check_tree(arrays: Arrays) -> None:
    """Every leaf and cut is part of one cut, which comes before it; but the root, cut 0 or the only
    leaf, of none."""
    parts = arrays["cut_parts"]
    at = arrays["cut_at"]
    leaf = arrays["leaf_id"]
    cuts = np.arange(len(at))
    _require(len(leaf) == len(at) + 1, "there must be one leaf more than cuts")
    below = np.concatenate([np.arange(-len(leaf), 0), cuts[1:]]) if len(cuts) else cuts
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
    _require(len(np.unique(leaf)) == len(leaf), "leaf_id holds a number twice")


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


COUNT_MAX: Final = 2**31 - 1
"""counts travel in 32 bits. No noise is ever near that; one that were would become this"""
SHARE_OF_LEARNING: Final = 0.04
"""time to count a reading, relative to that in which CA+ learns one: how soon the compiled form is
worth loading"""
_LEAF_STEP: Final = 0xD1B54A32D192ED03
_LEAF_WORD: Final = np.uint32(0x9E3779B1)
"""odd: a word times it, without its carry, is another word as even"""
PLAN_ARRAYS: Final = (
    "cut_first", "cut_second", "cut_first_weight", "cut_second_weight", "cut_at", "cut_parts", "leaf_id",
    "axis_leaf", "axis_first", "axis_second", "axis_first_weight", "axis_second_weight", "axis_start", "axis_end",
    "axis_zoom", "axis_span", "axis_epoch", "axis_share",
)  # fmt: skip
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
    """(A,) chance of each axis to be sampled in a window, in parts of `SHARE_ONE`; those of a leaf
    sum to a multiple"""
    digest: bytes
    """32 bytes over all of it"""
    facts: LeafFacts
    """what says into which leaf a reading falls that lacks a value"""

    @classmethod
    def from_arrays(cls, arrays: Arrays, d: int) -> CountingPlan:
        """Make a plan from the arrays of a snapshot, for readings of d features. Raises
        `InvalidData`."""
        check_plan(arrays, d)
        digest = hashlib.sha256()
        for name in PLAN_ARRAYS:
            digest.update(np.ascontiguousarray(arrays[name]).tobytes() + name.encode())
        return cls(
            Axes(
                *(
                    arrays[f"cut_{part}"]
                    for part in ("first", "second", "first_weight", "second_weight")
                )
            ),
            arrays["cut_at"],
            arrays["cut_parts"],
            arrays["leaf_id"],
            arrays["axis_leaf"],
            Axes(
                *(
                    arrays[f"axis_{part}"]
                    for part in ("first", "second", "first_weight", "second_weight")
                )
            ),
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
        sampled_axes = np.bincount(
            self.axis_leaf, weights=self.share, minlength=len(self.leaf_ids)
        ).astype(np.int64)
        return np.concatenate([[0], np.cumsum(sampled_axes // SHARE_ONE)])

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
        return np.cumsum(self.share)

    @cached_property
    def _cells(self) -> Ints:
        """(A,) cells of each axis."""
        return np.where(self.zoom == NO_ZOOM, BINS, 2 * BINS - self.span)

    @cached_property
    def _cut_arrays(self) -> tuple[Ints | Floats, ...]:
        """Cuts in the form of the compiled kernel."""
        return (
            *_whole_and_real(self.cut_axes),
            _real(self.cut_at),
            _whole(self.cut_parts.reshape(-1, 2)),
        )

    @cached_property
    def _axis_arrays(self) -> tuple[Ints | Floats, ...]:
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
        drawn = hashlib.shake_256(b"draws" + client + number.to_bytes(8, "little")).digest(
            4 * len(rows)
        )
        words = np.frombuffer(drawn, dtype="<u4")
        whole = valid
        lacks = None
        if np.isnan(rows.sum()):  # faster than a look at each value
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
        if lacks is not None and lacks.any():  # a rejected reading may be NaN too
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
        share = (words * _LEAF_WORD).astype(np.float64) * 2.0**-32
        leaf = self.facts.drawn(x, *pairs, share)
        block, place = self._places_on_axes(x, words, leaf, sampled_axes)
        there = ~np.isnan(place)
        return self._in_cells(block[there], place[there], sampled_axes, size)

    def _places_on_axes(
        self, x: Floats, words: Words32, leaf: Ints, sampled_axes: Ints
    ) -> tuple[Ints, Floats]:
        """Rows (m, d) with their leaves (m,) -> (m,) the block of cells drawn for each, (m,) the
        place on its axis."""
        of_leaf = np.diff(self._sampled_before)[leaf]
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
        at = np.clip(
            (position - start) / (self.end[axis] - start) * BINS, 0.0, BINS * (1.0 - 1e-12)
        )
        coarse = at.astype(np.int64)
        fine = (zoom != NO_ZOOM) & (coarse >= zoom) & (coarse < zoom + span)
        fine_bin = np.clip(((at - zoom) * BINS / np.maximum(span, 1)).astype(np.int64), 0, BINS - 1)
        outside = np.where((zoom != NO_ZOOM) & (coarse >= zoom + span), coarse - span, coarse)
        return np.where(fine, BINS - span + fine_bin, outside)


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
