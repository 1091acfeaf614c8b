"""Cutting a leaf in two, what its parts take over, and taking a cut back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.algorithms.density_tree.axes import Axes, oblique_axes
from shoal.algorithms.density_tree.leaf import Leaf, rebinned
from shoal.algorithms.density_tree.tree import Cut, axis_in
from shoal.kernels.arrays import Floats

# What a leaf has counted on its other axes is of both parts together. It describes a part with most
# of the mass, and not a small one, which begins anew. Were nothing inherited, every small cluster
# that is cut off would make the tree forget all that it knew of the large one beside it.
HEAVY_SHARE: Final = 0.75
"""a part of a cut leaf with more than this share of its mass inherits all that was counted"""
# Less than all of it: the valley need not be in both parts. Without any, an axis that was about to
# be cut would be sampled as seldom as the others, and be found again only much later.
HINT_KEPT: Final = 0.7
"""share of the hint of a valley that both parts of a cut leaf take over"""


def new_leaf(leaf_id: int, low: Floats, high: Floats, kept: Axes, oblique: int) -> Leaf:
    """A leaf with nothing counted, with its `kept` axes and `oblique` public ones that follow from
    its number."""
    axes = kept
    if oblique:
        axes = kept.with_more(oblique_axes(0, oblique, high - low, leaf_id))
    leaf = Leaf(leaf_id, low, high, axes, len(kept))
    leaf.oblique_drawn = oblique
    return leaf


def can_be_cut(leaf: Leaf, axis: int, at: float) -> bool:
    """Whether both parts have room on every axis that they keep: a cut on a feature can leave one
    part wholly beyond an oblique cut above, where no reading is."""
    for is_right in (False, True):
        start, end = leaf.axes.box_range(*_box_of_part(leaf, axis, at, is_right))
        start = np.maximum(start[: leaf.kept], leaf.start[: leaf.kept])
        end = np.minimum(end[: leaf.kept], leaf.end[: leaf.kept])
        if not (end - start > 0.0).all():
            return False
    return True


def _box_of_part(leaf: Leaf, axis: int, at: float, is_right: bool) -> tuple[Floats, Floats]:
    """The corners (d,), (d,) of one part of a leaf that is cut."""
    low = leaf.low.copy()
    high = leaf.high.copy()
    # An oblique cut bounds no feature by itself, so the boxes of its parts are that of the leaf.
    if axis < leaf.d:
        (low if is_right else high)[axis] = at
    return low, high


def share_below(leaf: Leaf, axis: int, at: float) -> float:
    """Share of the readings counted on an axis of a leaf that lie below a place."""
    counts = leaf.coarse[axis]
    start = float(leaf.start[axis])
    end = float(leaf.end[axis])
    below = float(rebinned(counts, start, end, start, at).sum())
    # The floor divides by no zero where noise has made the sum negative.
    return below / max(float(counts.sum()), 1e-9)


@dataclass(frozen=True)
class _Place:
    """The place at which a leaf is cut."""

    axis: int
    at: float
    hints: Floats
    """(A,) significance of the best valley of each of the leaf's axes"""


def cut_leaf(
    leaf: Leaf, axis: int, at: float, hints: Floats, leaf_ids: tuple[int, int], oblique: int
) -> tuple[Leaf, Leaf]:
    """The two parts of a leaf. Both keep the histogram of the axis on their side; a heavy part
    keeps all of them."""
    share = share_below(leaf, axis, at)
    place = _Place(axis, at, hints)
    # Of a state that is new today the older readings have few.
    newer_share = leaf.newer_share(axis, at)
    recent_share = share if newer_share is None else newer_share
    left = _part_of(leaf, place, leaf_ids[0], oblique, is_right=False, heavy=share > HEAVY_SHARE)
    left.recent = leaf.recent * recent_share
    heavy = share < 1 - HEAVY_SHARE
    right = _part_of(leaf, place, leaf_ids[1], oblique, is_right=True, heavy=heavy)
    right.recent = leaf.recent * (1.0 - recent_share)
    _divide_counted(leaf, left, right, leaf.counted_below(axis, at, share))
    return left, right


def _divide_counted(leaf: Leaf, left: Leaf, right: Leaf, below: tuple[float, float]) -> None:
    """Divide the readings of a leaf between its parts: `below` are those of the left one, and those
    of them that its axes had not counted."""
    left.counted, left.uncovered = below
    right.counted = leaf.counted - left.counted
    right.uncovered = leaf.uncovered - left.uncovered
    for part in (left, right):
        # All axes of a heavy part go on with their counts; of another one all but one begin anew.
        if not (part.exposure[: part.d] > 0.0).all():
            part.uncovered = part.counted


def _part_of(
    leaf: Leaf, place: _Place, leaf_id: int, oblique: int, *, is_right: bool, heavy: bool
) -> Leaf:
    """One part of a leaf, with what it takes over of its counts."""
    axis = place.axis
    low, high = _box_of_part(leaf, axis, place.at, is_right)
    kept = list(range(leaf.kept))
    # The axis of an oblique cut is kept from here on: it bounds the leaves below.
    if axis >= leaf.kept:
        kept.append(axis)
    part = new_leaf(leaf_id, low, high, leaf.axes.take(kept), oblique)
    if heavy and axis < leaf.kept:
        # A heavy part is nearly the leaf: it also keeps its oblique axes, as all that was counted.
        kept = list(range(len(leaf.axes)))
        part = Leaf(leaf_id, low, high, leaf.axes, leaf.kept)
        part.oblique_drawn = leaf.oblique_drawn
    part.identity = leaf.identity
    part.recent_noise = leaf.recent_noise
    for new, old in enumerate(kept):
        part.start[new] = max(part.start[new], leaf.start[old])
        part.end[new] = min(part.end[new], leaf.end[old])
        if old == axis:
            (part.start if is_right else part.end)[new] = place.at
        else:
            part.hint[new] = HINT_KEPT * max(place.hints[old], leaf.hint[old])
        if heavy or old == axis:
            _inherit(part, new, leaf, old)
    return part


def _inherit(part: Leaf, new: int, leaf: Leaf, old: int) -> None:
    """Let axis `new` of a part take over what axis `old` of the leaf has counted in the part's
    range."""
    # Exposure counts the readings of windows that sampled the axis, wherever they fell: a density
    # is counts by exposure, so a part with half of the counts has the whole exposure.
    part.exposure[new] = leaf.exposure[old]
    if part.start[new] == leaf.start[old] and part.end[new] == leaf.end[old]:
        part.coarse[new] = leaf.coarse[old]
        part.coarse_noise[new] = leaf.coarse_noise[old]
        part.fine[new] = leaf.fine[old]
        part.fine_noise[new] = leaf.fine_noise[old]
        part.zoom[new] = leaf.zoom[old]
        part.span[new] = leaf.span[old]
        part.fine_exposure[new] = leaf.fine_exposure[old]
        return
    # Fine bins are left behind: they lie over coarse ones that the part has no more.
    ranges = (leaf.start[old], leaf.end[old], part.start[new], part.end[new])
    part.coarse[new] = rebinned(leaf.coarse[old], *ranges)
    part.coarse_noise[new] = rebinned(leaf.coarse_noise[old], *ranges)


def take_back(cut: Cut, leaf_id: int) -> Leaf:
    """The leaf that a cut between two leaves was made in, with what both parts have counted at
    equal exposure."""
    leaf = cut.leaf
    parts = [part for part in cut.parts if isinstance(part, Leaf)]
    leaf.leaf_id = leaf_id
    # The heavier part keeps its name, as most readings of the leaf were called by it; but a cluster
    # that is shown does not become one that is not.
    heavier = max(parts, key=lambda part: (part.identity >= 0, part.recent))
    leaf.identity = heavier.identity
    leaf.counted = sum(part.counted for part in parts)
    leaf.uncovered = sum(part.uncovered for part in parts)
    leaf.recent = sum(part.recent for part in parts)
    leaf.recent_noise = sum(part.recent_noise for part in parts)
    for axis in range(len(leaf.axes)):
        # Counts for the two parts, which are still on their way, must not be added to the leaf:
        # this begins an epoch as well.
        leaf.clear_fine(axis)
        leaf.hint[axis] = 0.0
        # Of drawn oblique axes the parts have others, except of the one that was cut.
        if axis < leaf.kept or axis == cut.axis:
            _add_up(leaf, axis, cut, parts)
    # How much of it is newer than the last change of the tree is known of the parts only.
    leaf.end_look()
    return leaf


def _add_up(leaf: Leaf, axis: int, cut: Cut, parts: list[Leaf]) -> None:
    """Add to one axis of a leaf what the parts have counted on it since the cut."""
    if axis == cut.axis:
        # The parts took over what the leaf had counted here.
        leaf.coarse[axis] = 0.0
        leaf.coarse_noise[axis] = 0.0
        leaf.exposure[axis] = 0.0
        own_axes = [axis_in(part, cut) for part in parts]
    else:
        own_axes = [axis] * len(parts)
    own = list(zip(parts, own_axes, strict=True))
    # At equal exposure: the part that was counted longer would weigh more than its readings do.
    exposure = min(part.exposure[own_axis] for part, own_axis in own)
    if exposure <= 0.0:
        return
    for part, own_axis in own:
        share = exposure / part.exposure[own_axis]
        ranges = (part.start[own_axis], part.end[own_axis], leaf.start[axis], leaf.end[axis])
        leaf.coarse[axis] += share * rebinned(part.coarse[own_axis], *ranges)
        # A variance grows with the square of a factor.
        leaf.coarse_noise[axis] += share**2 * rebinned(part.coarse_noise[own_axis], *ranges)
    leaf.exposure[axis] += exposure
