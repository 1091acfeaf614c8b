"""The tree of cuts, and which leaf a row falls into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.leaf import Leaf
from shoal.kernels.arrays import Floats, Ints


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
    left, right = node.parts
    return leaves_of(left) + leaves_of(right)


def positions_of(cuts: list[Cut], leaves: list[Leaf]) -> dict[int, int]:
    """The number of each node, by its `id`: cut i is i, leaf i is -1 - i, so that one array names
    both."""
    positions = {id(cut): number for number, cut in enumerate(cuts)}
    positions.update({id(leaf): -1 - number for number, leaf in enumerate(leaves)})
    return positions


def axis_in(leaf: Leaf, cut: Cut) -> int:
    """Position of the axis of a cut among the axes of a leaf below it."""
    if cut.axis < leaf.d:
        return cut.axis
    same = leaf.axes.same_as(cut.leaf.axes, cut.axis)
    # Only axes that cuts above use can be the one of this cut; a drawn one may be equal by chance.
    same[: leaf.d] = False
    same[leaf.kept :] = False
    return int(np.flatnonzero(same)[0])


def leaf_of(rows: Floats, axes: Axes, at: Floats, parts: Ints) -> Ints:
    """rows (n, d) and the cuts' axes, places (s,) and parts (s, 2) -> (n,) leaf of each row.

    Part i >= 0 is cut i, part -1 - i is leaf i; cut 0 is the root, and without cuts there is one
    leaf.
    """
    root = 0 if len(at) else -1
    node = np.full(len(rows), root, dtype=np.int64)
    open_rows = np.flatnonzero(node >= 0)
    ways = parts.reshape(-1)
    while len(open_rows):
        cut = node.take(open_rows)
        is_above = axes.positions(rows, open_rows, cut) >= at.take(cut)
        below = ways.take(2 * cut + is_above)
        node[open_rows] = below
        open_rows = open_rows[below >= 0]
    return -1 - node
