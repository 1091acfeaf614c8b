"""The saved form of the tree: its cuts, parents first, and its leaves from left to right."""

from __future__ import annotations

from typing import Annotated, Self

from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.late import require_fine_bins
from shoal.algorithms.density_tree.leaf import BINS, EPOCHS_KEPT, NO_ZOOM, UNKNOWN_ZOOM, Leaf
from shoal.algorithms.density_tree.tree import Cut, Node, cuts_of, leaves_of, positions_of
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.saved_state import FloatArray, IntArray, Number, SavedState, Whole, require, state_type

_FIELDS = (
    "coarse",
    "coarse_noise",
    "earlier",
    "earlier_noise",
    "fine",
    "fine_noise",
    "start",
    "end",
    "exposure",
    "fine_exposure",
    "hint",
    "zoom",
    "span",
    "epoch",
    "earlier_zoom",
    "earlier_span",
    "identity",
    "oblique_drawn",
    "counted",
    "uncovered",
    "recent",
    "recent_noise",
)
"""attributes of a leaf that are saved as they are, and not given to its constructor"""


@state_type
class LeafState(SavedState):
    """A leaf with a axes, as `Leaf` describes it."""

    leaf_id: int
    low: Annotated[Floats, FloatArray("d")]
    high: Annotated[Floats, FloatArray("d")]
    axis_first: Annotated[Ints, IntArray("a")]
    axis_second: Annotated[Ints, IntArray("a")]
    axis_first_weight: Annotated[Floats, FloatArray("a")]
    axis_second_weight: Annotated[Floats, FloatArray("a")]
    kept: int
    coarse: Annotated[Floats, FloatArray("a", BINS)]
    coarse_noise: Annotated[Floats, FloatArray("a", BINS)]
    earlier: Annotated[Floats, FloatArray("a", BINS)]
    earlier_noise: Annotated[Floats, FloatArray("a")]
    fine: Annotated[Floats, FloatArray("a", BINS)]
    fine_noise: Annotated[Floats, FloatArray("a", BINS)]
    start: Annotated[Floats, FloatArray("a")]
    end: Annotated[Floats, FloatArray("a")]
    exposure: Annotated[Floats, FloatArray("a")]
    fine_exposure: Annotated[Floats, FloatArray("a")]
    hint: Annotated[Floats, FloatArray("a")]
    zoom: Annotated[Ints, IntArray("a", least=NO_ZOOM)]
    span: Annotated[Ints, IntArray("a")]
    epoch: Annotated[Ints, IntArray("a")]
    earlier_zoom: Annotated[Ints, IntArray("a", EPOCHS_KEPT, least=UNKNOWN_ZOOM)]
    earlier_span: Annotated[Ints, IntArray("a", EPOCHS_KEPT)]
    identity: Annotated[int, Whole(least=-COUNT_MAX)]
    oblique_drawn: int
    counted: float
    uncovered: float
    recent: float
    recent_noise: float

    @classmethod
    def of(cls, leaf: Leaf) -> Self:
        return cls(
            leaf_id=leaf.leaf_id,
            low=leaf.low,
            high=leaf.high,
            kept=leaf.kept,
            axis_first=leaf.axes.first,
            axis_second=leaf.axes.second,
            axis_first_weight=leaf.axes.first_weight,
            axis_second_weight=leaf.axes.second_weight,
            **{name: getattr(leaf, name) for name in _FIELDS},
        )

    def check(self) -> None:
        d = len(self.low)
        a = len(self.axis_first)
        features_exist = (self.axis_first < d).all() and (self.axis_second < d).all()
        require(bool(features_exist), "an axis has a feature that does not exist")
        require(d <= self.kept <= a, "more axes are kept than there are, or not all features")
        require_fine_bins(self.zoom, self.span)
        require_fine_bins(self.earlier_zoom, self.earlier_span)
        require(bool((self.end > self.start).all()), "an axis has no range")

    def restored(self) -> Leaf:
        axes = Axes.from_arrays(vars(self), "axis")
        leaf = Leaf(self.leaf_id, self.low, self.high, axes, self.kept)
        for name in _FIELDS:
            setattr(leaf, name, getattr(self, name))
        return leaf


@state_type
class CutState(SavedState):
    """A cut. Part i >= 0 is cut i, part -1 - i is leaf i."""

    leaf: LeafState
    axis: int
    at: float
    step: Annotated[float, Number(above=0.0)]
    left: Annotated[int, Whole(least=-COUNT_MAX)]
    right: Annotated[int, Whole(least=-COUNT_MAX)]

    def check(self) -> None:
        has_axis = self.axis < len(self.leaf.axis_first)
        require(has_axis, "a cut is on an axis that its leaf does not have")


@state_type
class TreeState(SavedState):
    """Cuts, parents first, and leaves from left to right."""

    cuts: list[CutState]
    leaves: list[LeafState]

    @classmethod
    def of(cls, root: Node) -> Self:
        """The state of the tree below a root."""
        cuts = list(cuts_of(root))
        leaves = leaves_of(root)
        position = positions_of(cuts, leaves)
        saved_cuts = []
        for cut in cuts:
            left, right = cut.parts
            saved_cut = CutState(
                leaf=LeafState.of(cut.leaf),
                axis=cut.axis,
                at=cut.at,
                step=cut.step,
                left=position[id(left)],
                right=position[id(right)],
            )
            saved_cuts.append(saved_cut)
        return cls(cuts=saved_cuts, leaves=[LeafState.of(leaf) for leaf in leaves])

    def check(self) -> None:
        """The root is reached first, and every other node once: left parts first, as `of` lists
        them."""
        require(len(self.leaves) == len(self.cuts) + 1, "there must be one leaf more than cuts")
        n_cuts = 0
        n_leaves = 0
        pending = [0 if self.cuts else -1]
        while pending:
            number = pending.pop()
            expected = n_cuts if number >= 0 else -1 - n_leaves
            require(
                number == expected and number < len(self.cuts),
                "its leaves and cuts are not those that are reached from the root",
            )
            if number >= 0:
                n_cuts += 1
                # The left part last, as the last one is taken first.
                pending += [self.cuts[number].right, self.cuts[number].left]
            else:
                n_leaves += 1
        is_whole = n_cuts == len(self.cuts) and n_leaves == len(self.leaves)
        require(is_whole, "its leaves and cuts are not those that are reached from the root")

    def restored(self) -> Node:
        """The root of the tree."""
        leaves: list[Node] = [leaf.restored() for leaf in self.leaves]
        cuts: list[Node] = []
        # Parts have greater numbers than their cut, so they are there when it is made; `cuts` has
        # them from the last one back.
        for cut in reversed(self.cuts):
            parts = [
                leaves[-1 - number] if number < 0 else cuts[len(self.cuts) - 1 - number]
                for number in (cut.left, cut.right)
            ]
            leaf = cut.leaf.restored()
            cuts.append(Cut(leaf, cut.axis, cut.at, cut.step, (parts[0], parts[1])))
        return cuts[-1] if cuts else leaves[0]
