"""Counts of windows that were counted under an earlier plan: where they belong in the tree now.

A client counts under the newest plan that it has read, and the tree may change before its counts
arrive. They are added as though they had arrived before the change:

- Fine bins have moved: the counts are added to the coarse bins, which are the same.
- The leaf was cut: its parts take over what a cut lets them take over, the axis of the cut each on
  its side, and all axes if they are heavy (`cut_leaf`). The leaf itself gets all, for the case that
  the cut is taken back.
- The cut was taken back: the leaf gets the counts of its parts, each with the exposure of its share
  of the readings, so that what arrives of one part alone changes no density.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, Self

import numpy as np

from shoal.algorithms.density_tree.arrays import Block
from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.clusters import masses
from shoal.algorithms.density_tree.cutting import HEAVY_SHARE, share_below
from shoal.algorithms.density_tree.leaf import (
    BINS,
    EPOCHS_KEPT,
    NO_ZOOM,
    SPANS,
    UNKNOWN_ZOOM,
    Leaf,
    number_of_cells,
)
from shoal.algorithms.density_tree.tree import Cut, Node, cuts_of, leaves_of
from shoal.kernels.arrays import Floats, Ints
from shoal.saved_state import FloatArray, IntArray, Number, SavedState, require, state_type

# Measured on office readings whose counts are five windows late: 43 % of them had fitted no leaf
# any more, and were dropped, though their epsilon was spent.
FORMER_MAX: Final = 48
"""leaves that are no more and are remembered, the newest: three of each cut that was taken back"""
_LAYOUT = ("start", "end", "epoch", "zoom", "span", "earlier_zoom", "earlier_span")
"""attributes of a leaf that say which cells its axes have and had"""


@dataclass(frozen=True)
class FormerLeaf:
    """A leaf that is no more since a cut was taken back: one of its parts, or the leaf that was
    cut, which has another number since. The arrays are those of `Leaf`."""

    leaf_id: int
    into: int
    """number of the leaf that holds its readings since"""
    share: float
    """share of the readings of that leaf that it had"""
    axes: Axes
    start: Floats
    end: Floats
    epoch: Ints
    zoom: Ints
    span: Ints
    earlier_zoom: Ints
    earlier_span: Ints

    @classmethod
    def of(cls, leaf: Leaf, into: int, share: float) -> Self:
        """A leaf as it is before its cut is taken back."""
        layout = {name: getattr(leaf, name).copy() for name in _LAYOUT}
        return cls(leaf_id=leaf.leaf_id, into=into, share=share, axes=leaf.axes, **layout)


@state_type
class FormerLeafState(SavedState):
    """A former leaf with a axes."""

    leaf_id: int
    into: int
    share: Annotated[float, Number(least=0.0)]
    axis_first: Annotated[Ints, IntArray("a")]
    axis_second: Annotated[Ints, IntArray("a")]
    axis_first_weight: Annotated[Floats, FloatArray("a")]
    axis_second_weight: Annotated[Floats, FloatArray("a")]
    start: Annotated[Floats, FloatArray("a")]
    end: Annotated[Floats, FloatArray("a")]
    epoch: Annotated[Ints, IntArray("a")]
    zoom: Annotated[Ints, IntArray("a", least=NO_ZOOM)]
    span: Annotated[Ints, IntArray("a")]
    earlier_zoom: Annotated[Ints, IntArray("a", EPOCHS_KEPT, least=UNKNOWN_ZOOM)]
    earlier_span: Annotated[Ints, IntArray("a", EPOCHS_KEPT)]

    @classmethod
    def of(cls, former: FormerLeaf) -> Self:
        return cls(
            leaf_id=former.leaf_id,
            into=former.into,
            share=former.share,
            **former.axes.arrays("axis"),
            **{name: getattr(former, name) for name in _LAYOUT},
        )

    def check(self) -> None:
        require(self.into > self.leaf_id, "a former leaf is part of an earlier one")
        require(self.share <= 1.0, "a former leaf has more readings than its successor")
        require(bool((self.end > self.start).all()), "an axis of a former leaf has no range")
        require_fine_bins(self.zoom, self.span)
        require_fine_bins(self.earlier_zoom, self.earlier_span)

    def restored(self) -> FormerLeaf:
        axes = Axes.from_arrays(vars(self), "axis")
        layout = {name: getattr(self, name) for name in _LAYOUT}
        return FormerLeaf(self.leaf_id, self.into, self.share, axes, **layout)


def require_fine_bins(zoom: Ints, span: Ints) -> None:
    """Raises `InvalidState` where saved fine bins are none that a leaf lays."""
    has_fine = zoom >= 0
    is_within = (zoom + span <= BINS) & np.isin(span, SPANS)
    require(bool((is_within | ~has_fine).all()), "fine bins lie beyond the coarse ones")


class AxisCounts(NamedTuple):
    """Counts of cells that lie side by side on one axis.

    In the cells as the client counted them: a cut was found in fine bins, and coarse ones across
    it would put readings of either side on the other one.
    """

    axis: Axes
    """the axis alone"""
    edge: Floats
    """(cells + 1,) ascending"""
    counts: Floats
    """(cells,)"""
    noise: float
    """variance of the noise of one"""
    exposure: float

    def in_bins(self, start: float, end: float) -> tuple[Floats, Floats]:
        """(BINS,) counts of equal bins over a range, and the variances of their noise. Within a
        cell, counts are spread evenly."""
        places = np.linspace(start, end, BINS + 1)
        counts_before = np.concatenate([[0.0], np.cumsum(self.counts)])
        noise_before = self.noise * np.arange(len(self.edge))
        counts = np.diff(np.interp(places, self.edge, counts_before))
        return counts, np.diff(np.interp(places, self.edge, noise_before))

    def share_below(self, place: float) -> float | None:
        """Share of the counts below a place; None where noise has made their sum none."""
        total = float(self.counts.sum())
        if total <= 0.0:
            return None
        before = np.concatenate([[0.0], np.cumsum(self.counts)])
        below = float(np.interp(place, self.edge, before))
        return min(1.0, max(0.0, below / total))


class Recent(NamedTuple):
    """Recent readings, and the variance of their noise."""

    readings: float
    noise: float
    counted: float
    """all of the readings, those that do not count as recent among them"""

    def times(self, share: float) -> Recent:
        """A share of them."""
        # A variance grows with the square of a factor.
        return Recent(self.readings * share, self.noise * share**2, self.counted * share)


class LateCounts:
    """Finds the place of counts whose cells, or whose leaf, the tree has no more."""

    def __init__(self) -> None:
        self._former: dict[int, FormerLeaf] = {}
        """number of a leaf that is no more -> what is known of it; the oldest first"""

    @property
    def leaf_ids(self) -> set[int]:
        """Numbers of the leaves that are no more and remembered."""
        return set(self._former)

    def remember(self, cut: Cut, into: int) -> None:
        """Keep what is needed of the leaves of a cut that is about to be taken back, where the leaf
        that was cut gets the number `into`."""
        parts = [part for part in cut.parts if isinstance(part, Leaf)]
        # Before the cut goes: of the leaf that comes back nobody knows any more which part had how
        # much.
        shares = masses(parts).tolist()
        for leaf, share in zip([*parts, cut.leaf], [*shares, 1.0], strict=True):
            self._former[leaf.leaf_id] = FormerLeaf.of(leaf, into, share)
        for oldest in list(self._former)[:-FORMER_MAX]:
            del self._former[oldest]

    def place_of(
        self, block: Block, variance: float, nodes: Mapping[int, Node]
    ) -> tuple[AxisCounts, Node] | None:
        """Late counts in coarse bins, and the node of the tree that they are of; None where their
        cells are no longer known.

        `variance` is the noise of one of the counts, `nodes` the tree as `nodes_by_leaf` gives it.
        """
        number = block.leaf
        counted_in: Leaf | FormerLeaf | None = self._former.get(number)
        if counted_in is None and number in nodes:
            counted_in = _leaf_at(nodes[number])
        counts = None if counted_in is None else _axis_counts(counted_in, block, variance)
        if counts is None:
            return None
        # Ends, as every leaf went into one with a higher number.
        while number in self._former:
            former = self._former[number]
            counts = counts._replace(exposure=counts.exposure * former.share)
            number = former.into
        # None where a leaf was forgotten that it has been part of since.
        node = nodes.get(number)
        return None if node is None else (counts, node)

    def state(self) -> list[FormerLeafState]:
        """The leaves that are remembered, the oldest first."""
        return [FormerLeafState.of(former) for former in self._former.values()]

    @classmethod
    def restored(cls, saved: Sequence[FormerLeafState]) -> Self:
        """Remember the leaves of a saved state."""
        late = cls()
        late._former = {former.leaf_id: former.restored() for former in saved}
        return late


def nodes_by_leaf(root: Node) -> dict[int, Node]:
    """Number of a leaf, or of the leaf in which a cut was made -> its node."""
    nodes: dict[int, Node] = {cut.leaf.leaf_id: cut for cut in cuts_of(root)}
    nodes.update({leaf.leaf_id: leaf for leaf in leaves_of(root)})
    return nodes


def add_late(node: Node, counts: AxisCounts | None, recent: Recent) -> None:
    """Add late counts to the leaf of a node, and to what was cut from it.

    Without counts, as of an axis of which a part of a cut takes nothing over, only the recent
    readings are added.
    """
    leaf = _leaf_at(node)
    axis = None if counts is None else _position(leaf, counts.axis)
    if counts is not None and axis is not None:
        in_bins, noise = counts.in_bins(float(leaf.start[axis]), float(leaf.end[axis]))
        leaf.coarse[axis] += in_bins
        leaf.coarse_noise[axis] += noise
        leaf.exposure[axis] += counts.exposure
    if isinstance(node, Leaf):
        leaf.counted += recent.counted
        leaf.recent += recent.readings
        leaf.recent_noise += recent.noise
        return
    is_cut_axis = axis == node.axis
    below = share_below(leaf, node.axis, node.at)
    own_shares = (below, 1.0 - below)
    recent_shares = _recent_shares(node, counts if is_cut_axis else None)
    for part, own_share, recent_share in zip(node.parts, own_shares, recent_shares, strict=True):
        takes_over = axis is not None and (is_cut_axis or own_share > HEAVY_SHARE)
        add_late(part, counts if takes_over else None, recent.times(recent_share))


def _recent_shares(cut: Cut, counts: AxisCounts | None) -> tuple[float, float]:
    """Shares of late readings that fell into the parts of a cut: by their own counts on the axis of
    the cut, where these are known, else as the other recent readings."""
    share = None if counts is None else counts.share_below(cut.at)
    if share is None:
        # Noise can make a sum negative.
        below, above = (
            max(sum(leaf.recent for leaf in leaves_of(part)), 0.0) for part in cut.parts
        )
        share = below / (below + above) if below + above > 0.0 else 0.5
    return share, 1.0 - share


def _leaf_at(node: Node) -> Leaf:
    """A leaf, or the leaf in which a cut was made."""
    return node if isinstance(node, Leaf) else node.leaf


def _position(leaf: Leaf, axis: Axes) -> int | None:
    """Position of an axis among those of a leaf; None where it has it no more."""
    same = np.flatnonzero(leaf.axes.same_as(axis, 0))
    return int(same[0]) if len(same) else None


def _axis_counts(counted_in: Leaf | FormerLeaf, block: Block, variance: float) -> AxisCounts | None:
    """The counts of a block in coarse bins; None if its epoch is not known, or had other cells."""
    axis = block.axis
    if not 0 <= axis < len(counted_in.axes):
        return None
    age = int(counted_in.epoch[axis]) - block.epoch
    if not 0 <= age <= EPOCHS_KEPT:
        return None
    if age == 0:
        zoom = int(counted_in.zoom[axis])
        span = int(counted_in.span[axis])
    else:
        zoom = int(counted_in.earlier_zoom[axis, age - 1])
        span = int(counted_in.earlier_span[axis, age - 1])
    # A client may claim any epoch: counts of another number of cells would shift every later bin.
    if zoom == UNKNOWN_ZOOM or len(block.counts) != number_of_cells(zoom, span):
        return None
    start = float(counted_in.start[axis])
    width = (float(counted_in.end[axis]) - start) / BINS
    return AxisCounts(
        axis=counted_in.axes.take([axis]),
        edge=start + width * _cell_edges(zoom, span),
        counts=_side_by_side(zoom, span, block.counts),
        noise=variance,
        exposure=block.exposure,
    )


def _cell_edges(zoom: int, span: int) -> Floats:
    """(cells + 1,) edges of the cells of an axis from left to right, in coarse bins."""
    coarse = np.arange(BINS + 1.0)
    if zoom == NO_ZOOM:
        return coarse
    fine = zoom + np.arange(BINS) * (span / BINS)
    return np.concatenate([coarse[:zoom], fine, coarse[zoom + span :]])


def _side_by_side(zoom: int, span: int, counts: Floats) -> Floats:
    """Counts as a client lists them, the fine bins at the end -> from left to right."""
    if zoom == NO_ZOOM:
        return counts
    return np.concatenate([counts[:zoom], counts[BINS - span :], counts[zoom : BINS - span]])
