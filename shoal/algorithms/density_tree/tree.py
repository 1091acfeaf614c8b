"""The tree of cuts: which leaf a row falls into, how leaves are cut and cuts are taken back, and
its saved form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from shoal.algorithms.density_tree.leaf import BINS, NO_ZOOM, Axes, Leaf, oblique_axes, rebinned
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State
from shoal.errors import InvalidState
from shoal.kernels.arrays import Floats, Ints

HEAVY_SHARE: Final = 0.75
"""a part of a cut leaf with more than this share of its mass inherits all that was counted"""
HINT_KEPT: Final = 0.7
"""share of the hint of a valley that both parts of a cut leaf take over"""
NEAR_BINS: Final = 16
"""bins on either side of a cut in which the peaks beside it are sought"""
SURE: Final = 2.0
"""standard deviations above zero from which a density near a cut is one"""
ENDS_WIDTH: Final = 1 / 64
"""least width of the bins in which the two ends of a circular feature are compared"""


@dataclass
class Cut:
    """A leaf that was cut in two: rows below `at` on its axis fall into the first part."""

    leaf: Leaf
    """the leaf when it was cut"""
    axis: int
    """position among the leaf's axes"""
    at: float
    step: float
    """width of the bins in which the valley was found"""
    parts: tuple[Node, Node]


Node = Leaf | Cut


def cuts_of(node: Node) -> Iterator[Cut]:
    """The cuts below a node and itself, parents first."""
    if isinstance(node, Cut):
        yield node
        for part in node.parts:
            yield from cuts_of(part)


def leaves_of(node: Node) -> list[Leaf]:
    """The leaves below a node, from left to right."""
    if isinstance(node, Leaf):
        return [node]
    return [leaf for part in node.parts for leaf in leaves_of(part)]


def axis_in(leaf: Leaf, cut: Cut) -> int:
    """Position of the axis of a cut among the axes of a leaf below it."""
    if cut.axis < leaf.d:
        return cut.axis
    same = leaf.axes.same_as(cut.leaf.axes, cut.axis)
    # Only axes that cuts above use can be the one of this cut; a drawn one may be equal by chance.
    same[: leaf.d] = same[leaf.kept :] = False
    return int(np.flatnonzero(same)[0])


def new_leaf(leaf_id: int, low: Floats, high: Floats, kept: Axes, oblique: int) -> Leaf:
    """A leaf with nothing counted, with its `kept` axes and `oblique` public ones that follow from
    its number."""
    axes = kept.with_more(oblique_axes(0, oblique, high - low, leaf_id)) if oblique else kept
    leaf = Leaf(leaf_id, low, high, axes, len(kept))
    leaf.oblique_drawn = oblique
    return leaf


def can_be_cut(leaf: Leaf, axis: int, at: float) -> bool:
    """Whether both parts have room on every axis that they keep: a cut on a feature can leave one
    part wholly beyond an oblique cut above, where no reading is."""
    for right in (False, True):
        low = leaf.low.copy()
        high = leaf.high.copy()
        # An oblique cut bounds no feature by itself, so the boxes of its parts are that of the
        # leaf.
        if axis < leaf.d:
            (low if right else high)[axis] = at
        start, end = (each[: leaf.kept] for each in leaf.axes.box_range(low, high))
        room = np.minimum(end, leaf.end[: leaf.kept]) - np.maximum(start, leaf.start[: leaf.kept])
        if not (room > 0.0).all():
            return False
    return True


def cut_leaf(
    leaf: Leaf, axis: int, at: float, hints: Floats, leaf_ids: tuple[int, int], oblique: int
) -> tuple[Leaf, Leaf]:
    """The two parts of a leaf. Both keep the histogram of the axis on their side; a heavy part
    keeps all of them."""
    held = leaf.coarse[axis]
    start = float(leaf.start[axis])
    end = float(leaf.end[axis])
    share = float(rebinned(held, start, end, start, at).sum()) / max(float(held.sum()), 1e-9)
    parts = []
    for right, heavy in ((False, share > HEAVY_SHARE), (True, share < 1 - HEAVY_SHARE)):
        low = leaf.low.copy()
        high = leaf.high.copy()
        if axis < leaf.d:
            (low if right else high)[axis] = at
        kept = list(range(leaf.kept)) + [axis] * (axis >= leaf.kept)
        part = new_leaf(leaf_ids[right], low, high, leaf.axes.take(kept), oblique)
        if heavy and axis < leaf.kept:
            kept = list(range(len(leaf.axes)))
            part = Leaf(part.leaf_id, low, high, leaf.axes, leaf.kept)
            part.oblique_drawn = leaf.oblique_drawn
        _inherit_all(part, leaf, kept, axis, at, hints, right=right, heavy=heavy)
        part.recent = leaf.recent * (share if not right else 1.0 - share)
        part.recent_noise = leaf.recent_noise
        parts.append(part)
    return parts[0], parts[1]


def _inherit_all(
    part: Leaf,
    leaf: Leaf,
    kept: list[int],
    cut_axis: int,
    at: float,
    hints: Floats,
    *,
    right: bool,
    heavy: bool,
) -> None:
    part.identity = leaf.identity
    for new, old in enumerate(kept):
        part.start[new], part.end[new] = (
            max(part.start[new], leaf.start[old]),
            min(part.end[new], leaf.end[old]),
        )
        if old == cut_axis:
            (part.start if right else part.end)[new] = at
        else:
            part.hint[new] = HINT_KEPT * max(hints[old], leaf.hint[old])
        if heavy or old == cut_axis:
            _inherit(part, new, leaf, old)


def _inherit(part: Leaf, new: int, leaf: Leaf, old: int) -> None:
    """Let axis `new` of a part take over what axis `old` of the leaf has counted in the part's
    range."""
    part.exposure[new] = leaf.exposure[old]
    if part.start[new] == leaf.start[old] and part.end[new] == leaf.end[old]:
        for mine, theirs in (
            (part.coarse, leaf.coarse), (part.coarse_noise, leaf.coarse_noise), (part.fine, leaf.fine),
            (part.fine_noise, leaf.fine_noise),
        ):  # fmt: skip
            mine[new] = theirs[old]
        part.zoom[new], part.span[new] = leaf.zoom[old], leaf.span[old]
        part.fine_exposure[new] = leaf.fine_exposure[old]
        return
    was = (leaf.start[old], leaf.end[old])
    now = (part.start[new], part.end[new])
    part.coarse[new] = rebinned(leaf.coarse[old], *was, *now)
    part.coarse_noise[new] = rebinned(leaf.coarse_noise[old], *was, *now)


Side = list[tuple[Leaf, int]]
"""leaves on one side of a place, each with its axis across it"""


def density(side: Side, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Readings per unit of length in intervals (n,) of an axis, over the leaves of a side; and its
    variance."""
    mass = np.zeros(len(low))
    variance = np.zeros(len(low))
    for leaf, axis in side:
        more, uncertain = leaf.density(axis, low, high)
        mass = mass + more
        variance = variance + uncertain
    length = high - low
    return mass / length, variance / length**2


def is_filled(
    cut: Cut, left: list[Leaf], right: list[Leaf], filled: float, sure: float = 1.0
) -> bool:
    """Whether the valley of a cut is none any more between the leaves of its two sides, by `sure`
    standard deviations.

    It is judged at the bin width at which the valley was found.
    """
    sides = [[(leaf, axis_in(leaf, cut)) for leaf in part] for part in (left, right)]
    ends = float(cut.leaf.start[cut.axis]), float(cut.leaf.end[cut.axis])
    return _no_valley(sides[0], sides[1], (cut.at, cut.at), ends, cut.step, filled, sure)


def ends_meet(feature: int, last: Leaf, first: Leaf, filled: float) -> bool:
    """Whether there is no valley where a circular feature ends in one leaf, at 1, and begins in
    another, at 0."""
    widths = [float(leaf.bin_width[feature]) for leaf in (last, first)]
    step = min(max(*widths, ENDS_WIDTH), *(BINS * width for width in widths))
    return _no_valley([(last, feature)], [(first, feature)], (1.0, 0.0), (0.0, 1.0), step, filled)


def _no_valley(
    left: Side,
    right: Side,
    at: tuple[float, float],
    ends: tuple[float, float],
    step: float,
    filled: float,
    sure: float = 1.0,
) -> bool:
    """Whether there is no valley where the left side ends and the right one begins, at the places
    `at`.

    The density must exceed `filled` times the lower of the two peaks on both sides, by `sure`
    standard deviations.
    """
    if min(leaf.exposure[axis] for leaf, axis in left + right) <= 0.0:
        return False
    beside = [
        density(side, np.array([low]), np.array([low + step]))
        for side, low in ((left, at[0] - step), (right, at[1]))
    ]
    lowest, error = min((float(value[0]), math.sqrt(variance[0])) for value, variance in beside)
    # Most valleys hold next to nothing: their peaks need not be looked for.
    if lowest <= SURE * error:
        return False
    peaks = []
    for side, first, last in (
        (left, max(ends[0], at[0] - NEAR_BINS * step), at[0]), (right, at[1], min(ends[1], at[1] + NEAR_BINS * step)),
    ):  # fmt: skip
        # .99: the last whole step must be there, whichever way the quotient is rounded.
        low = np.arange(first, last - 0.99 * step, step / 2)
        peaks.append(float(density(side, low, low + step)[0].max(initial=0.0)))
    return lowest > filled * min(peaks) + sure * error


def take_back(cut: Cut, leaf_id: int) -> Leaf:
    """The leaf that a cut between two leaves was made in, with what both parts have counted at
    equal exposure."""
    leaf = cut.leaf
    parts = [part for part in cut.parts if isinstance(part, Leaf)]
    leaf.leaf_id = leaf_id
    # The heavier part keeps its name: most readings of the leaf were called by it.
    heavier = max(parts, key=lambda part: part.recent)
    leaf.identity = heavier.identity
    leaf.recent = sum(part.recent for part in parts)
    leaf.recent_noise = sum(part.recent_noise for part in parts)
    for axis in range(len(leaf.axes)):
        leaf.zoom[axis], leaf.span[axis], leaf.hint[axis] = -1, 0, 0.0
        leaf.fine[axis] = leaf.fine_noise[axis] = leaf.fine_exposure[axis] = 0.0
        # Counts for the two parts, which are still on their way, must not be added to the leaf.
        leaf.epoch[axis] += 1
        if axis >= leaf.kept and axis != cut.axis:
            continue
        own = [axis_in(part, cut) if axis == cut.axis else axis for part in parts]
        # At equal exposure: the part that was counted longer would weigh more than its readings do.
        exposure = min(part.exposure[i] for part, i in zip(parts, own, strict=True))
        if axis == cut.axis:
            leaf.coarse[axis] = leaf.coarse_noise[axis] = leaf.exposure[axis] = 0.0
        if exposure <= 0.0:
            continue
        for part, i in zip(parts, own, strict=True):
            share = exposure / part.exposure[i]
            ranges = (part.start[i], part.end[i], leaf.start[axis], leaf.end[axis])
            leaf.coarse[axis] += share * rebinned(part.coarse[i], *ranges)
            leaf.coarse_noise[axis] += share**2 * rebinned(part.coarse_noise[i], *ranges)
        leaf.exposure[axis] += exposure
    return leaf


def leaf_of(rows: Floats, axes: Axes, at: Floats, parts: Ints) -> Ints:
    """rows (n, d) and the cuts' axes, places (s,) and parts (s, 2) -> (n,) leaf of each row.

    Part i >= 0 is cut i, part -1 - i is leaf i; cut 0 is the root, and without cuts there is one
    leaf.
    """
    node = np.full(len(rows), 0 if len(at) else -1, dtype=np.int64)
    open_rows = np.flatnonzero(node >= 0)
    ways = parts.reshape(-1)
    while len(open_rows):
        cut = node.take(open_rows)
        below = ways.take(2 * cut + (axes.positions(rows, open_rows, cut) >= at.take(cut)))
        node[open_rows] = below
        open_rows = open_rows[below >= 0]
    return -1 - node


VERSION: Final = 1
_HISTOGRAMS: Final = ("coarse", "coarse_noise", "fine", "fine_noise")
_PER_AXIS: Final = ("start", "end", "exposure", "fine_exposure", "hint")
_WHOLE: Final = {"zoom": NO_ZOOM, "span": 0, "epoch": 0}
_AXES: Final = ("first", "second", "first_weight", "second_weight")


def tree_state(root: Node) -> State:
    """Cuts, parents first, and leaves from left to right; part i >= 0 of a cut is cut i, part -1 -
    i is leaf i."""
    cuts = list(cuts_of(root))
    leaves = leaves_of(root)
    position: dict[int, int] = {id(cut): i for i, cut in enumerate(cuts)}
    position.update({id(leaf): -1 - i for i, leaf in enumerate(leaves)})
    return {
        "cuts": [
            {
                "leaf": _leaf_state(cut.leaf),
                "axis": cut.axis,
                "at": cut.at,
                "step": cut.step,
                "parts": [position[id(part)] for part in cut.parts],
            }
            for cut in cuts
        ],
        "leaves": [_leaf_state(leaf) for leaf in leaves],
    }


def restored_tree(saved: Mapping[str, Any], d: int) -> Node:
    """The root of a saved tree over d features. Raises `InvalidState`."""
    try:
        leaves = [_restored_leaf(each, d) for each in saved["leaves"]]
        nodes: list[Node | None] = [None] * len(saved["cuts"])
        # Parts have greater numbers than their cut, so they are there when it is made.
        for i in reversed(range(len(nodes))):
            each = saved["cuts"][i]
            leaf = _restored_leaf(each["leaf"], d)
            parts = [leaves[-1 - at] if at < 0 else nodes[at] for at in each["parts"]]
            if len(parts) != 2 or not all(at < 0 or at > i for at in each["parts"]):
                raise InvalidState("saved tree: a cut is not above its parts")
            if not 0 <= each["axis"] < len(leaf.axes):
                raise InvalidState("saved tree: a cut is on an axis that its leaf does not have")
            at = float(each["at"])
            step = float(each["step"])
            if not 0.0 < step < math.inf:
                raise InvalidState("saved tree: a cut was found in bins without width")
            nodes[i] = Cut(leaf, each["axis"], at, step, (parts[0], parts[1]))
    except (KeyError, IndexError, TypeError, ValueError) as broken:
        raise InvalidState(f"saved tree is damaged: {broken}") from None
    root = nodes[0] if nodes else leaves[0]
    assert root is not None
    if list(map(id, leaves_of(root))) != list(map(id, leaves)) or list(
        map(id, cuts_of(root))
    ) != list(map(id, nodes)):
        raise InvalidState(
            "saved tree: its leaves and cuts are not those that are reached from the root"
        )
    return root


def _leaf_state(leaf: Leaf) -> State:
    arrays = {
        name: getattr(leaf, name).copy()
        for name in (*_HISTOGRAMS, *_PER_AXIS, *_WHOLE, "low", "high")
    }
    axes = {
        f"axis_{name}": part.copy() for name, part in zip(_AXES, leaf.axes.parts(), strict=True)
    }
    return {
        "version": VERSION,
        "leaf_id": leaf.leaf_id,
        "identity": leaf.identity,
        "kept": leaf.kept,
        "oblique_drawn": leaf.oblique_drawn,
        "recent": leaf.recent,
        "recent_noise": leaf.recent_noise,
        **arrays,
        **axes,
    }


def _restored_leaf(state: Mapping[str, Any], d: int) -> Leaf:
    saved = StateReader(state, VERSION)
    first = saved.read_ints("axis_first", (None,))
    a = len(first)
    second = saved.read_ints("axis_second", (a,))
    saved.check(
        bool((first < d).all() and (second < d).all()), "an axis has a feature that does not exist"
    )
    weights = [
        saved.read_floats(f"axis_{name}", (a,)) for name in ("first_weight", "second_weight")
    ]
    kept = saved.read_int("kept", least=d)
    saved.check(kept <= a, "more axes are kept than there are")
    low, high = (saved.read_floats(name, (d,)) for name in ("low", "high"))
    leaf = Leaf(saved.read_int("leaf_id"), low, high, Axes(first, second, *weights), kept)
    leaf.identity = saved.read_int("identity", least=-1)
    leaf.oblique_drawn = saved.read_int("oblique_drawn")
    leaf.recent = saved.read_float("recent")
    leaf.recent_noise = saved.read_float("recent_noise")
    for name in _HISTOGRAMS:
        setattr(leaf, name, saved.read_floats(name, (a, BINS)))
    for name in _PER_AXIS:
        setattr(leaf, name, saved.read_floats(name, (a,)))
    for name, least in _WHOLE.items():
        setattr(leaf, name, saved.read_ints(name, (a,), least=least))
    saved.check(bool((leaf.zoom + leaf.span <= BINS).all()), "fine bins lie beyond the coarse ones")
    saved.check(bool((leaf.end > leaf.start).all()), "an axis has no range")
    return leaf
