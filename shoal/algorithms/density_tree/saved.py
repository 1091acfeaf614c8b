"""The saved form of the tree: leaves and cuts as plain values and arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.leaf import BINS, NO_ZOOM, Leaf
from shoal.algorithms.density_tree.tree import Cut, Node, cuts_of, leaves_of
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State
from shoal.errors import InvalidState

VERSION: Final = 1
_HISTOGRAMS: Final = ("coarse", "coarse_noise", "fine", "fine_noise")
_PER_AXIS: Final = ("start", "end", "exposure", "fine_exposure", "hint")
_WHOLE: Final = {"zoom": NO_ZOOM, "span": 0, "epoch": 0}
_AXES: Final = ("first", "second", "first_weight", "second_weight")


def tree_state(root: Node) -> State:
    """Cuts, parents first, and leaves from left to right; part i >= 0 of a cut is cut i, part -1 - i is leaf i."""
    cuts, leaves = list(cuts_of(root)), leaves_of(root)
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
        for i in reversed(range(len(nodes))):
            each = saved["cuts"][i]
            leaf = _restored_leaf(each["leaf"], d)
            parts = [leaves[-1 - at] if at < 0 else nodes[at] for at in each["parts"]]
            if len(parts) != 2 or not all(at < 0 or at > i for at in each["parts"]):
                raise InvalidState("saved tree: a cut is not above its parts")
            if not 0 <= each["axis"] < len(leaf.axes):
                raise InvalidState("saved tree: a cut is on an axis that its leaf does not have")
            at, step = float(each["at"]), float(each["step"])
            if not 0.0 < step < math.inf:
                raise InvalidState("saved tree: a cut was found in bins without width")
            nodes[i] = Cut(leaf, each["axis"], at, step, (parts[0], parts[1]))
    except (KeyError, IndexError, TypeError, ValueError) as broken:
        raise InvalidState(f"saved tree is damaged: {broken}") from None
    root = nodes[0] if nodes else leaves[0]
    assert root is not None
    if list(map(id, leaves_of(root))) != list(map(id, leaves)) or list(map(id, cuts_of(root))) != list(map(id, nodes)):
        raise InvalidState("saved tree: its leaves and cuts are not those that are reached from the root")
    return root


def _leaf_state(leaf: Leaf) -> State:
    arrays = {name: getattr(leaf, name).copy() for name in (*_HISTOGRAMS, *_PER_AXIS, *_WHOLE, "low", "high")}
    axes = {f"axis_{name}": part.copy() for name, part in zip(_AXES, leaf.axes.parts(), strict=True)}
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
    saved.check(bool((first < d).all() and (second < d).all()), "an axis has a feature that does not exist")
    weights = [saved.read_floats(f"axis_{name}", (a,)) for name in ("first_weight", "second_weight")]
    kept = saved.read_int("kept", least=d)
    saved.check(kept <= a, "more axes are kept than there are")
    low, high = (saved.read_floats(name, (d,)) for name in ("low", "high"))
    leaf = Leaf(saved.read_int("leaf_id"), low, high, Axes(first, second, *weights), kept)
    leaf.identity = saved.read_int("identity", least=-1)
    leaf.oblique_drawn = saved.read_int("oblique_drawn")
    leaf.recent, leaf.recent_noise = saved.read_float("recent"), saved.read_float("recent_noise")
    for name in _HISTOGRAMS:
        setattr(leaf, name, saved.read_floats(name, (a, BINS)))
    for name in _PER_AXIS:
        setattr(leaf, name, saved.read_floats(name, (a,)))
    for name, least in _WHOLE.items():
        setattr(leaf, name, saved.read_ints(name, (a,), least=least))
    saved.check(bool((leaf.zoom + leaf.span <= BINS).all()), "fine bins lie beyond the coarse ones")
    saved.check(bool((leaf.end > leaf.start).all()), "an axis has no range")
    return leaf
