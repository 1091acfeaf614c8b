"""The server half of density_tree: adds up noisy counts, and lets the tree grow where they show
valleys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.counting import FOUND_SIGNIFICANCE, without_far_noise
from shoal.algorithms.density_tree.arrays import SHARE_ONE, SNAPSHOT, Block, blocks_of
from shoal.algorithms.density_tree.axes import Axes, oblique_axes
from shoal.algorithms.density_tree.clumping import Clumping
from shoal.algorithms.density_tree.clusters import cluster_leaves, masses
from shoal.algorithms.density_tree.cutting import can_be_cut, cut_leaf, new_leaf, take_back
from shoal.algorithms.density_tree.extents import draw_rows, extents
from shoal.algorithms.density_tree.identities import Identities, IdentitiesState, Shown
from shoal.algorithms.density_tree.late import (
    FORMER_MAX,
    FormerLeafState,
    LateCounts,
    Recent,
    add_late,
    nodes_by_leaf,
)
from shoal.algorithms.density_tree.leaf import BINS, NO_IDENTITY, NO_ZOOM, AxisValleys, Leaf
from shoal.algorithms.density_tree.options import DensityTreeOptions
from shoal.algorithms.density_tree.plan import CountingPlan
from shoal.algorithms.density_tree.plan_check import check_plan
from shoal.algorithms.density_tree.sampling import axes_of_leaf, axes_sampled, axis_shares
from shoal.algorithms.density_tree.saved_tree import TreeState
from shoal.algorithms.density_tree.snapshot import cluster_arrays, counted_in, plan_arrays, predict
from shoal.algorithms.density_tree.tree import Cut, Node, cuts_of, leaves_of
from shoal.algorithms.density_tree.valleys import is_filled
from shoal.algorithms.shares import (
    ClientDeficits,
    ClientDeficitsState,
    ClientShares,
    ClientSharesState,
)
from shoal.algorithms.streaming import (
    Arrays,
    Contribution,
    Rows,
    State,
    check_dimensions,
    check_rows,
)
from shoal.errors import InvalidData, InvalidState
from shoal.kernels.arrays import AnyArray, Floats, Ints
from shoal.saved_state import Number, SavedState, Table, require, state_type

FADE_READINGS: Final = 400
"""readings after which everything counted has faded by the option `decay`"""
RECENT_READINGS: Final = 4000.0
"""readings of all clusters in which the recent readings of a leaf fade to 1/e"""
OBLIQUE_PATIENCE: Final = 500.0
"""readings on an oblique axis after which it is drawn anew if it shows nothing"""


@state_type
class DensityTreeServerState(SavedState):
    """What the server half has learnt, and the snapshot that clients count under now."""

    version: ClassVar[int] = 8

    readings: int
    grown: int
    next_leaf: int
    dropped: int
    counted: float
    counted_noise: Annotated[float, Number(least=0.0)]
    found: bool
    apart: float
    compared: float
    tree: TreeState
    former_leaves: list[FormerLeafState]
    snapshot: Annotated[Arrays, Table(SNAPSHOT)]
    identities: IdentitiesState
    shares: ClientSharesState
    deficits: ClientDeficitsState

    def check(self) -> None:
        require(self.grown <= self.readings, "the tree changed after readings not yet absorbed")
        leaves = self.tree.leaves
        known = set(self.identities.identity.tolist())
        known |= {NO_IDENTITY - 1 - n for n in range(len(self.identities.candidate_since))}
        require(
            known >= {leaf.identity for leaf in leaves},
            "a leaf is part of a cluster that does not exist",
        )
        require(
            max(leaf.leaf_id for leaf in leaves) < self.next_leaf,
            "a leaf has a number not yet given",
        )
        former = [leaf.leaf_id for leaf in self.former_leaves]
        require(
            len(set(former)) == len(former) <= FORMER_MAX,
            "there are too many former leaves, or one twice",
        )
        features = [leaf.axis_first.max(initial=0) for leaf in self.former_leaves]
        features += [leaf.axis_second.max(initial=0) for leaf in self.former_leaves]
        require(
            max(features, default=0) < len(leaves[0].low),
            "an axis of a former leaf has a feature that does not exist",
        )


class DensityTreeServer:
    """Absorbs noisy counts of windows, and grows the tree where they show valleys.

    **Idea.** Noise on every reading hides clusters long before it protects anybody; noise on counts
    of many readings does not. So clients publish counts only. Each reading is counted once, in one
    cell of a public tree, and its noise does not depend on the number of features: one feature is
    drawn for each reading. The server cuts the space where the counts of a feature have a valley
    between two peaks, and asks for finer counts where readings lie. Leaves between which no valley
    is left are one cluster. K is never given.

    **Steps.** A window of a client, in order:

    1. *Sampling* (`CountingPlan.sampled_axes`): of each leaf the window counts some axes, as many
       as noise (which grows with them) and clumping (which falls with them) balance, those that
       begin to show a valley more often (`axis_shares`).
    2. *Counting* (`CountingPlan.count`): a reading descends the tree, draws one of its leaf's
       sampled axes by a public hash, and adds one to one cell of it. The client adds noise to all
       cells, the empty ones included, and publishes them.
    3. *Admission* (`_absorb`): a client's counts are bounded below by what noise can be
       (`ClientDeficits`), and above by its share of the recent readings (`ClientShares`).
    4. *Addition* (`Leaf.add`): counts and the known variance of their noise are added up, per leaf
       and axis, in coarse bins and in the fine ones over their support. What was counted under an
       earlier plan is added as though it had arrived before the tree changed (`LateCounts`).

    After every `grow_readings` readings (`grow`):

    5. *Taking back* (`_take_back`, `is_filled`): a cut whose valley has filled up goes, and its
       leaf has again what both parts have counted.
    6. *Cutting* (`_axis_to_cut`, `find_valleys`): each leaf is cut at its most significant valley,
       if that is at least `cut_significance` standard deviations deep and at most `depth` times the
       lower of its peaks high. A part with most of the readings inherits the histograms.
    7. *Zooming* (`Leaf.zoom_in`): elsewhere fine bins are laid over the part of an axis in which
       readings lie, and oblique axes that show nothing are drawn anew (`_renew_oblique`).
    8. *Clusters* (`cluster_leaves`): leaves that touch are joined where no valley is left between
       them. A leaf without significant mass goes with its heaviest neighbour.
    9. *Identities* (`Identities.assign`): each cluster continues the identity that most of its mass
       had; it is active while its recent readings stand out from their noise.
    10. *Publishing* (`_publish`): the snapshot has the tree, the axes with the shares by which they
        are sampled, which is the next plan, and the clusters.

    **Kept.** The tree of at most `leaves_max` leaves, and of the leaves that were cut: per axis 64
    numbers, so about leaves times features times 0.5 KB. Nothing of a reading or a client but its
    share. It does not grow with the readings.

    **Cost.** A window of 400 readings is about 900 counts at 8 features, 300 bytes compressed, and
    0.1 to 0.2 ms for the client. Absorbing it takes a few additions for each block, growing the
    tree O(leaves * axes) searches for valleys in one call of a kernel.

    **Exactness.** Everything is in unit coordinates. The state is a function of the contributions
    in their order; the tree changes after a fixed number of readings, never by the clock. Whatever
    is computed here is made from private counts, so it costs no privacy.

    **Source.** This project's own; it differs from PrivTree (Zhang, Xiao and Xie 2016) in that the
    counts of all windows under one tree are added up, and that cuts follow valleys of the density.

    Options: `DensityTreeOptions`.
    """

    half = "density_tree server"

    def __init__(self, dimensions: int, **options: Any) -> None:
        check_dimensions(dimensions)
        self.options = DensityTreeOptions.parse(options)
        self.d = dimensions
        circular = self.options.circular_features
        self.options.require(
            "circular", max(circular, default=-1) < dimensions, f"positions below {dimensions}"
        )
        self._noise_variance = self.options.noise_variance
        self._shares = ClientShares()
        self._deficits = ClientDeficits(self._noise_variance)
        self._clumping = Clumping()
        self._oblique = self.options.oblique_axes if dimensions > 1 else 0
        self._next_leaf = 0
        self._root: Node = new_leaf(
            self._new_id(),
            np.zeros(dimensions),
            np.ones(dimensions),
            Axes.features(dimensions),
            self._oblique,
        )
        self._late = LateCounts()
        self._identities = Identities(dimensions, self.options.circular_features)
        self._readings = 0
        self._grown = 0
        """readings absorbed when the tree changed last"""
        self.dropped = 0
        """counted blocks of an earlier plan whose cells are no longer known"""
        self._counted = 0.0
        """sum of all private counts: about the readings, as far as noise can tell"""
        self._counted_noise = 0.0
        """the variance of its noise"""
        self._found = False
        """whether that sum has been significant: noise alone is no cluster"""
        self._snapshot: dict[str, AnyArray]
        self._publish()

    @property
    def plan(self) -> CountingPlan:
        """The plan under which clients count now."""
        return CountingPlan.from_arrays(self._snapshot, self.d)

    @property
    def plan_version(self) -> int:
        """Readings absorbed when the plan changed last: it changes whenever the tree does."""
        return self._grown

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Add noisy counts in the order given; nothing is random, so `key` is not used. Raises
        `InvalidData`."""
        # All are checked before any is added: an error leaves the half as it was.
        checked = []
        for contribution in contributions:
            blocks = blocks_of(contribution.arrays, contribution.client)
            checked.append((contribution.client, blocks, int(contribution.arrays["places"][0])))
        for client, blocks, places in checked:
            self._absorb(client, blocks, places)

    def _absorb(self, client: str, blocks: Sequence[Block], places: int) -> None:
        """Add the counts. A part of the readings are recent ones, as far as the client's share
        allows."""
        # The share decides on recent readings alone. What was counted is added whole: a client that
        # publishes much is limited in which clusters seem active, and loses nothing of what it has
        # seen.
        part = self._shares.admit(client, float(places))
        leaves = self._leaves
        if self.options.decay < 1.0:
            for leaf in leaves:
                leaf.fade(self.options.decay ** (places / FADE_READINGS))
        faded = math.exp(-places * part / RECENT_READINGS)
        for leaf in leaves:
            # A variance fades with the square of what its sum fades with.
            leaf.recent = leaf.recent * faded
            leaf.recent_noise = leaf.recent_noise * faded**2
        by_id = {leaf.leaf_id: leaf for leaf in leaves}
        late = []
        for block in blocks:
            own = by_id.get(block.leaf)
            if own and own.is_counted_by(block.axis, block.epoch, len(block.counts)):
                self._add(client, block, own, part)
            else:
                late.append(block)
        if late:
            self._add_late(client, late, part)
        self._readings += places
        if not self._found and self._counted > FOUND_SIGNIFICANCE * math.sqrt(self._counted_noise):
            self._found = True
            self._snapshot["found"] = np.array([True])
        if self._readings - self._grown >= self.options.grow_readings:
            self.grow()

    def _add(self, client: str, block: Block, leaf: Leaf, part: float) -> None:
        """Add the counts of one block to its leaf."""
        block = self._with_likely_counts(block)
        if not self._may_add(client, block):
            return
        variance = block.windows * self._noise_variance
        if block.windows == 1:  # in sums the differences between their windows no longer show
            in_bins, noise = leaf.in_coarse_bins(block.axis, block.counts, variance)
            # Before the window is added: afterwards it would be compared with itself in part.
            self._compare(leaf, block.axis, in_bins, noise)
        leaf.add(block.axis, block.counts, block.exposure, variance)
        readings = float(block.counts.sum())
        leaf.counted += readings
        leaf.recent += readings * part
        leaf.recent_noise += len(block.counts) * variance * part**2

    def _add_late(self, client: str, blocks: Sequence[Block], part: float) -> None:
        """Add counts of cells that were those of an earlier plan."""
        nodes = nodes_by_leaf(self._root)
        for block in map(self._with_likely_counts, blocks):
            variance = block.windows * self._noise_variance
            place = self._late.place_of(block, variance, nodes)
            if place is None:
                self.dropped += 1
                continue
            if not self._may_add(client, block):
                continue
            in_cells, node = place
            # A leaf that was not cut since: only its fine bins have moved.
            if block.windows == 1 and isinstance(node, Leaf) and node.leaf_id == block.leaf:
                start = float(node.start[block.axis])
                end = float(node.end[block.axis])
                self._compare(node, block.axis, *in_cells.in_bins(start, end))
            noise = len(block.counts) * variance * part**2
            readings = float(block.counts.sum())
            add_late(node, in_cells, Recent(readings * part, noise, readings))

    def _with_likely_counts(self, block: Block) -> Block:
        """A block without what no noise can be; all of its counts are in the sum of all."""
        # Whether a client's readings are accepted is hidden: only the counts say how many there
        # are.
        self._counted += float(block.counts.sum())
        self._counted_noise += len(block.counts) * block.windows * self._noise_variance
        counts = without_far_noise(block.counts, self._noise_variance, block.windows)
        return block._replace(counts=counts)

    def _may_add(self, client: str, block: Block) -> bool:
        """Whether a client's counts may be added to a leaf: they sum to no less than noise can."""
        readings = float(block.counts.sum())
        draws = len(block.counts) * block.windows
        return self._deficits.take(client, block.leaf, readings, draws)

    def _compare(self, leaf: Leaf, axis: int, in_bins: Floats, noise: Floats) -> None:
        """Compare the counts of one window in coarse bins with what was counted before."""
        self._clumping.compare(leaf.coarse[axis], leaf.coarse_noise[axis], in_bins, noise)

    def grow(self) -> None:
        """Take back cuts that have filled up, cut leaves at their valleys, and look closer at the
        others."""
        options = self.options
        # First, so that the leaves which come back can be cut elsewhere within the limit of leaves.
        self._take_back()
        for leaf in self._leaves:
            # `_leaves` is a list of its own, so the parts of a leaf that is cut here wait for the
            # next growth: they have counted nothing yet on most axes.
            valleys = leaf.best_valleys(options.depth, options.cut_significance)
            axis = self._axis_to_cut(leaf, valleys)
            if axis is not None:
                self._cut(leaf, axis, valleys)
            else:
                leaf.zoom_in(options.cut_significance, options.finest)
                self._renew_oblique(leaf)
        for leaf in self._leaves:
            leaf.end_look()
        self._grown = self._readings
        # Leaves for which counts may still arrive; of others nothing is kept, so that memory is
        # bounded.
        self._deficits.keep(set(nodes_by_leaf(self._root)) | self._late.leaf_ids)
        self._publish()

    def end_stream(self) -> None:
        """No reading follows that could confirm a group which is not shown yet: show each."""
        if self._identities.has_candidates:
            self._publish(show_all=True)

    def _cut(self, leaf: Leaf, axis: int, valleys: AxisValleys) -> None:
        """Cut a leaf at the valley of one of its axes."""
        ids = self._new_id(), self._new_id()
        at = float(valleys.position[axis])
        parts = cut_leaf(leaf, axis, at, valleys.hint, ids, self._oblique)
        self._replace(leaf, Cut(leaf, axis, at, float(valleys.bin_width[axis]), parts))

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) in unit coordinates, NaN where missing -> (n,) cluster of each as its number
        in the snapshot.

        Raises `InvalidData`.
        """
        return predict(self._snapshot, check_rows(rows, self.d, gaps=True))

    def draw_rows(self, n: int) -> Rows:
        """About n rows (n, d) in unit coordinates that lie as the readings do, as far as noisy
        counts show.

        They follow from the tree and its counts alone.
        """
        return draw_rows(self._root, masses(self._leaves), n, seed=0)

    def snapshot(self) -> Arrays:
        """The `SNAPSHOT` arrays as of the last change of the tree, as copies; `counted` as of
        now."""
        arrays = {name: array.copy() for name, array in self._snapshot.items()}
        arrays["counted"] = counted_in(self._leaves)
        return arrays

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        now = DensityTreeServerState(
            readings=self._readings,
            grown=self._grown,
            next_leaf=self._next_leaf,
            dropped=self.dropped,
            counted=self._counted,
            counted_noise=self._counted_noise,
            found=self._found,
            apart=self._clumping.apart,
            compared=self._clumping.compared,
            tree=TreeState.of(self._root),
            former_leaves=self._late.state(),
            snapshot=self._snapshot,
            identities=self._identities.state(),
            shares=self._shares.state(),
            deficits=self._deficits.state(),
        )
        return now.saved(half=self.half, options=self.options.as_dict(), width=self.d)

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has
        changed."""
        options = self.options.as_dict()
        saved = DensityTreeServerState.read(
            state, {"d": self.d}, half=self.half, options=options, width=self.d
        )
        # Into a new half, so that a state that proves damaged halfway changes nothing.
        fresh = type(self)(self.d, **options)
        fresh._restore_from(saved)
        vars(self).update(vars(fresh))

    def _restore_from(self, saved: DensityTreeServerState) -> None:
        self._readings = saved.readings
        self._grown = saved.grown
        self._next_leaf = saved.next_leaf
        self.dropped = saved.dropped
        self._counted = saved.counted
        self._counted_noise = saved.counted_noise
        self._found = saved.found
        self._clumping = Clumping(saved.apart, saved.compared)
        self._root = saved.tree.restored()
        self._late = LateCounts.restored(saved.former_leaves)
        self._identities = Identities.restored(
            saved.identities, self.d, self.options.circular_features
        )
        self._shares = ClientShares.restored(saved.shares)
        self._deficits = ClientDeficits.restored(saved.deficits, self._noise_variance)
        self._snapshot = dict(saved.snapshot)
        # Clients count under the plan of the snapshot now, and under that of the tree when it is
        # published next.
        every_axis = [np.full(len(leaf.axes), SHARE_ONE) for leaf in self._leaves]
        try:
            check_plan(self._snapshot, self.d)
            check_plan(plan_arrays(self._root, every_axis), self.d)
        except InvalidData as damaged:
            raise InvalidState(f"saved tree: {damaged}") from None

    @property
    def _leaves(self) -> list[Leaf]:
        return leaves_of(self._root)

    def _new_id(self) -> int:
        self._next_leaf += 1
        return self._next_leaf - 1

    def _replace(self, old: Node, new: Node) -> None:
        """Put another node in the place of one in the tree."""
        if self._root is old:
            self._root = new
        for cut in cuts_of(self._root):
            left, right = cut.parts
            if left is old:
                cut.parts = (new, right)
            elif right is old:
                cut.parts = (left, new)

    def _take_back(self) -> None:
        for cut in list(cuts_of(self._root)):
            left, right = cut.parts
            # Only cuts with nothing below them: a cut above comes in turn once those have been
            # taken back.
            if not (isinstance(left, Leaf) and isinstance(right, Leaf)):
                continue
            # Between two known clusters it stays until their merge has lasted, when both have one
            # identity.
            if left.identity != right.identity and min(left.identity, right.identity) >= 0:
                continue
            if is_filled(cut, [left], [right], self.options.filled):
                leaf_id = self._new_id()
                self._late.remember(cut, leaf_id)
                self._replace(cut, take_back(cut, leaf_id))

    def _axis_to_cut(self, leaf: Leaf, valleys: AxisValleys) -> int | None:
        """The axis with the most significant valley at which the leaf can be cut; None where it
        stays as it is."""
        if len(self._leaves) >= self.options.leaves_max:
            return None
        # Stable: of equally significant valleys the first axis is cut, on every machine.
        for axis in np.argsort(-valleys.significance, kind="stable").tolist():
            if valleys.significance[axis] < self.options.cut_significance:
                return None
            if can_be_cut(leaf, axis, float(valleys.position[axis])):
                return int(axis)
        return None

    def _renew_oblique(self, leaf: Leaf) -> None:
        """Draw oblique axes anew that were counted long enough and show nothing."""
        if not self._oblique:
            return
        hint = leaf.best_valleys(self.options.depth, self.options.cut_significance).hint
        # Those up to `kept` are features and axes that a cut above uses: they are never drawn anew.
        for axis in range(leaf.kept, len(leaf.axes)):
            mass, noise = _newest_counts(leaf, axis)
            if mass <= max(OBLIQUE_PATIENCE, 4.0 * math.sqrt(noise)):
                continue
            # The longer an axis has been counted, the more it must show to stay.
            if hint[axis] >= 1.0 + mass / OBLIQUE_PATIENCE:
                continue
            support = np.where(leaf.zoom[: self.d] != NO_ZOOM, leaf.span[: self.d] / BINS, 1.0)
            width = (leaf.high - leaf.low) * support
            leaf.redraw(axis, oblique_axes(leaf.oblique_drawn, 1, width, leaf.leaf_id))

    def _publish(self, show_all: bool = False) -> None:
        """Make the snapshot, which holds until the tree changes again; `show_all` as in
        `Identities.assign`."""
        leaves = self._leaves
        options = self.options
        mass = masses(leaves)
        extent = extents(self._root)
        group = cluster_leaves(self._root, mass, extent, options.filled, options.circular_features)
        cluster, identity = self._identities.assign(
            leaves, mass, group, extent, self._readings, show_all
        )
        # Before any reading, noise alone would make leaves active.
        if self._readings:
            recent = np.bincount(cluster, weights=[leaf.recent for leaf in leaves])
            variance = np.bincount(cluster, weights=[leaf.recent_noise for leaf in leaves])
            self._identities.update_activity(
                identity, recent.astype(np.float64), variance.astype(np.float64)
            )
        shares = []
        for leaf, share in zip(leaves, mass.tolist(), strict=True):
            shares.append(self._axis_shares(leaf, options.window_readings * share))
        arrays = plan_arrays(self._root, shares)
        arrays |= cluster_arrays(
            self._root,
            mass,
            extent,
            Shown(cluster, identity),
            self._identities,
            self._readings,
            options.circular_features,
        )
        arrays["found"] = np.array([self._found])
        self._snapshot = {name: arrays[name] for name in SNAPSHOT}

    def _axis_shares(self, leaf: Leaf, readings: float) -> Ints:
        """(A,) how often each axis of a leaf is sampled, where a window has `readings` in it."""
        options = self.options
        variance = self._noise_variance
        sampled = axes_sampled(
            len(leaf.axes), options.window_readings, variance, options.axes_per_window
        )
        if not options.axes_per_window:
            sampled = axes_of_leaf(sampled, readings, variance, self._clumping.variance)
        hint = leaf.best_valleys(options.depth, options.cut_significance).hint
        return axis_shares(leaf, hint, sampled)


def _newest_counts(leaf: Leaf, axis: int) -> tuple[float, float]:
    """What was counted on an axis since its cells are what they are, and the variance of its
    noise."""
    if leaf.zoom[axis] != NO_ZOOM:
        return float(leaf.fine[axis].sum()), float(leaf.fine_noise[axis].sum())
    return float(leaf.coarse[axis].sum()), float(leaf.coarse_noise[axis].sum())
