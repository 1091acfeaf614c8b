"""The server half of density_tree: adds up noisy counts, and lets the tree grow where they show
valleys.

Its snapshot has the plan under which clients count, and the clusters of the leaves; `predict` and
`view` need a snapshot alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.counting import FOUND_SIGNIFICANCE, without_far_noise
from shoal.algorithms.density_tree.arrays import (
    SHARE_ONE,
    SNAPSHOT,
    Block,
    DensityTreeOptions,
    blocks_of,
)
from shoal.algorithms.density_tree.clusters import Identities, cluster_leaves, masses
from shoal.algorithms.density_tree.extents import draw_rows, extents
from shoal.algorithms.density_tree.leaf import (
    BINS,
    NO_AXES,
    NO_ZOOM,
    Axes,
    AxisValleys,
    Clumping,
    Leaf,
    oblique_axes,
)
from shoal.algorithms.density_tree.plan import (
    CountingPlan,
    LeafFacts,
    axes_of_leaf,
    axes_sampled,
    axis_shares,
    check_plan,
    possible_leaves,
)
from shoal.algorithms.density_tree.tree import (
    Cut,
    Node,
    can_be_cut,
    cut_leaf,
    cuts_of,
    is_filled,
    leaf_of,
    leaves_of,
    new_leaf,
    restored_tree,
    take_back,
    tree_state,
)
from shoal.algorithms.shares import ClientDeficits, ClientShares
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import (
    Arrays,
    Contribution,
    Rows,
    State,
    check_dimensions,
    check_rows,
)
from shoal.algorithms.view import ClusteringView, Cuts
from shoal.errors import InvalidData, InvalidState
from shoal.kernels.arrays import AnyArray, Floats, Ints

_AXES = ("first", "second", "first_weight", "second_weight")


def plan_arrays(root: Node, shares: Sequence[Ints]) -> dict[str, AnyArray]:
    """The arrays from which clients count: cuts, leaves, and the axes of all leaves with their
    shares, leaf by leaf."""
    leaves = leaves_of(root)
    cuts = list(cuts_of(root))
    position: dict[int, int] = {id(cut): i for i, cut in enumerate(cuts)}
    # Leaves below 0, so that one array names cuts and leaves.
    position.update({id(leaf): -1 - i for i, leaf in enumerate(leaves)})
    cut_axes = NO_AXES
    axes = NO_AXES
    for cut in cuts:
        cut_axes = cut_axes.with_more(cut.leaf.axes.take([cut.axis]))
    for leaf in leaves:
        axes = axes.with_more(leaf.axes)
    parts = [[position[id(part)] for part in cut.parts] for cut in cuts]
    return {
        **_axis_arrays("cut", cut_axes),
        "cut_at": np.array([cut.at for cut in cuts], dtype=np.float64),
        "cut_parts": np.array(parts, dtype=np.int64).reshape(-1, 2),
        "leaf_id": np.array([leaf.leaf_id for leaf in leaves], dtype=np.int64),
        "axis_leaf": np.repeat(np.arange(len(leaves)), [len(leaf.axes) for leaf in leaves]),
        **_axis_arrays("axis", axes),
        "axis_start": np.concatenate([leaf.start for leaf in leaves]),
        "axis_end": np.concatenate([leaf.end for leaf in leaves]),
        "axis_zoom": np.concatenate([leaf.zoom for leaf in leaves]),
        "axis_span": np.concatenate([leaf.span for leaf in leaves]),
        "axis_epoch": np.concatenate([leaf.epoch for leaf in leaves]),
        "axis_share": np.concatenate(shares),
    }


def cluster_arrays(
    root: Node,
    mass: Floats,
    cluster: Ints,
    identity: Ints,
    identities: Identities,
    readings: int,
    circular: Sequence[int] = (),
) -> dict[str, AnyArray]:
    """The arrays that describe the leaves (l,) with their shares and clusters, and the clusters
    (c,)."""
    leaves = leaves_of(root)
    extent = extents(root)
    facts = [identities.clusters[one] for one in identity.tolist()]
    recent = np.bincount(cluster, weights=[leaf.recent for leaf in leaves])
    return {
        "low": np.array([leaf.low for leaf in leaves]),
        "high": np.array([leaf.high for leaf in leaves]),
        "mass": mass * readings,
        "leaf_centre": extent.mean,
        "leaf_low": extent.low,
        "leaf_high": extent.high,
        "cluster": cluster,
        "identity": identity,
        "centre": _cluster_means(extent.mean, mass, cluster, circular),
        "centre_mass": np.bincount(cluster, weights=mass) * readings,
        "recent": np.maximum(recent, 0.0),
        "active": np.array([one.active for one in facts], dtype=np.bool_),
        "parent": np.array([one.parent for one in facts], dtype=np.int64),
        "since": np.array([one.since for one in facts], dtype=np.int64),
    }


def predict(snapshot: Arrays, rows: Rows) -> Ints:
    """rows (n, d) in unit coordinates -> (n,) cluster of the leaf that each falls into, exact on
    the leaves' boxes.

    -1 as long as nothing is found. A row that lacks features (NaN) falls into the likeliest leaf of
    those that the others allow.
    """
    if not snapshot["found"][0]:
        return np.full(len(rows), NO_CLUSTER)
    cuts = (
        Axes(*(snapshot[f"cut_{part}"] for part in _AXES)),
        snapshot["cut_at"],
        snapshot["cut_parts"],
    )
    x = np.clip(rows, 0.0, 1.0)
    leaf = leaf_of(x, *cuts)
    if (lacking := np.flatnonzero(np.isnan(x).any(axis=1))).size:
        leaf[lacking] = LeafFacts.of(snapshot, rows.shape[1]).likeliest(
            x[lacking], *possible_leaves(x[lacking], *cuts)
        )
    return np.asarray(snapshot["cluster"][leaf])


def predictor(snapshot: Arrays) -> Cuts:
    """`predict` as plain data."""
    cluster = (
        snapshot["cluster"]
        if snapshot["found"][0]
        else np.full_like(snapshot["cluster"], NO_CLUSTER)
    )
    first, second, first_weight, second_weight = (snapshot[f"cut_{part}"] for part in _AXES)
    parts = snapshot["cut_parts"].reshape(-1, 2)
    return Cuts(first, second, first_weight, second_weight, snapshot["cut_at"], parts, cluster)


def counted_points(update: Arrays, snapshot: Arrays) -> tuple[Rows, Floats]:
    """The centres (l, d) of a snapshot's leaves, and the readings (l,) that an update has counted
    in each.

    What it has counted in leaves that are gone is left out.
    """
    leaf = np.repeat(update["leaf"], update["cells"])
    counted = [
        float(update["count"][leaf == number].sum()) for number in snapshot["leaf_id"].tolist()
    ]
    return snapshot["leaf_centre"], np.maximum(counted, 0.0)


def view(snapshot: Arrays) -> ClusteringView:
    """View of the leaves as nodes without edges; the mass of a leaf is an estimate from noisy
    counts.

    It is empty until something is found.

    Raises `InvalidData` for a plan under which nothing can be counted.
    """
    check_plan(snapshot, snapshot["low"].shape[1])
    if not snapshot["found"][0]:
        return nothing_found(snapshot["low"].shape[1])
    return ClusteringView.from_nodes(
        snapshot["leaf_centre"],
        snapshot["mass"],
        snapshot["cluster"],
        node_id=snapshot["leaf_id"],
        centres=snapshot["centre"],
        centre_mass=snapshot["centre_mass"],
        active=snapshot["active"],
        identity=snapshot["identity"],
        parent=snapshot["parent"],
        recent=snapshot["recent"],
        accumulates=False,
        node_low=snapshot["leaf_low"],
        node_high=snapshot["leaf_high"],
    )


def nothing_found(dimensions: int, identities: bool = True) -> ClusteringView:
    """A view without nodes and clusters; `identities`: of an algorithm that gives clusters lasting
    identities."""
    none: Floats = np.empty((0, dimensions))
    names: list[int] | None = [] if identities else None
    return ClusteringView.from_nodes(
        none,
        [],
        [],
        centres=none,
        centre_mass=[],
        identity=names,
        parent=names,
        recent=names,
        accumulates=False,
    )


def _axis_arrays(name: str, axes: Axes) -> dict[str, AnyArray]:
    return {
        f"{name}_{part}": values.copy() for part, values in zip(_AXES, axes.parts(), strict=True)
    }


def _cluster_means(
    centre: Floats, mass: Floats, cluster: Ints, circular: Sequence[int] = ()
) -> Floats:
    """(c, d) the means of the leaves' centres by mass; plain means where a cluster has none."""
    total = np.bincount(cluster, weights=mass)
    count = np.bincount(cluster)
    own = total[cluster]
    weight = np.where(own > 0.0, mass / np.where(own > 0.0, own, 1.0), 1.0 / count[cluster])
    means = np.zeros((len(total), centre.shape[1]))
    np.add.at(means, cluster, centre * weight[:, None])
    for feature in circular:
        # A cluster that lies across the ends has its mean on a circle: that of the directions.
        way = np.zeros(len(total), dtype=np.complex128)
        np.add.at(way, cluster, np.exp(2j * np.pi * centre[:, feature]) * weight)
        means[:, feature] = np.angle(way) / (2.0 * np.pi) % 1.0
    return means


STATE_VERSION: Final = 4
NO_CLUSTER: Final = -1
FADE_READINGS: Final = 400
"""readings after which everything counted has faded by the option `decay`"""
RECENT_READINGS: Final = 4000.0
"""readings of all clusters in which the recent readings of a leaf fade to 1/e"""
OBLIQUE_PATIENCE: Final = 500.0
"""readings on an oblique axis after which it is drawn anew if it shows nothing"""


class DensityTreeServer:
    """Absorbs noisy counts of windows and grows the tree. Options: `DensityTreeOptions`.

    Everything is in unit coordinates. The state is a function of the contributions in their order;
    the tree changes after a fixed number of readings, never by the clock.
    """

    half = "density_tree server"

    def __init__(self, dimensions: int, **options: Any) -> None:
        check_dimensions(dimensions)
        self.options = DensityTreeOptions.parse(options)
        self.d = dimensions
        beyond = [each for each in self.options.circular_features if each >= dimensions]
        self.options.require("circular", not beyond, f"positions below {dimensions}")
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
        self._identities = Identities()
        self._readings = 0
        self._grown = 0
        self.dropped = 0
        """counted blocks that fitted no leaf any more"""
        self._counted = self._counted_noise = 0.0
        self._found = False
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
        checked = [
            (blocks_of(one.arrays, one.client), int(one.arrays["places"][0]))
            for one in contributions
        ]
        for (blocks, places), one in zip(checked, contributions, strict=True):
            self._absorb(one.client, blocks, places)

    def _absorb(self, client: str, blocks: Sequence[Block], places: int) -> None:
        """Add the counts. A part of the readings are recent ones, as far as the client's share
        allows."""
        part = self._shares.admit(client, float(places))
        if self.options.decay < 1.0:
            for each in self._leaves:
                each.fade(self.options.decay ** (places / FADE_READINGS))
        by_id = {leaf.leaf_id: leaf for leaf in self._leaves}
        faded = math.exp(-places * part / RECENT_READINGS)
        for each in self._leaves:
            # A variance fades with the square of what its sum fades with.
            each.recent = each.recent * faded
            each.recent_noise = each.recent_noise * faded**2
        for block in blocks:
            # Whether a client's readings are accepted is hidden: only the counts say how many there
            # are.
            self._counted += float(block.counts.sum())
            self._counted_noise += len(block.counts) * block.windows * self._noise_variance
            leaf = by_id.get(block.leaf)
            # A client may have counted under an earlier plan: its leaf can have been cut since, or
            # its axis drawn anew.
            if leaf is None or not leaf.is_counted_by(block.axis, block.epoch, len(block.counts)):
                self.dropped += 1
                continue
            variance = block.windows * self._noise_variance
            counts = without_far_noise(block.counts, self._noise_variance, block.windows)
            if not self._deficits.take(
                client, block.leaf, float(counts.sum()), len(counts) * block.windows
            ):
                continue
            if block.windows == 1:  # sums do not tell how their windows differ
                earlier = leaf.coarse[block.axis], leaf.coarse_noise[block.axis]
                self._clumping.compare(*earlier, *leaf.in_coarse_bins(block.axis, counts, variance))
            leaf.add(block.axis, counts, block.exposure, variance)
            leaf.recent += float(counts.sum()) * part
            leaf.recent_noise += len(block.counts) * variance * part**2
        self._readings += places
        if not self._found and self._counted > FOUND_SIGNIFICANCE * math.sqrt(self._counted_noise):
            self._found = True
            self._snapshot["found"] = np.array([True])
        if self._readings - self._grown >= self.options.grow_readings:
            self.grow()

    def grow(self) -> None:
        """Take back cuts that have filled up, cut leaves at their valleys, and look closer at the
        others."""
        options = self.options
        # First, so that the leaves which come back can be cut elsewhere within the limit of leaves.
        self._take_back()
        for leaf in self._leaves:
            valleys = leaf.best_valleys(options.depth, options.cut_significance)
            axis = self._axis_to_cut(leaf, valleys)
            if axis is not None:
                ids = self._new_id(), self._new_id()
                at = float(valleys.position[axis])
                parts = cut_leaf(leaf, axis, at, valleys.hint, ids, self._oblique)
                self._replace(leaf, Cut(leaf, axis, at, float(valleys.bin_width[axis]), parts))
            else:
                leaf.zoom_in(options.cut_significance, options.finest)
                self._renew_oblique(leaf)
        self._grown = self._readings
        self._deficits.keep({leaf.leaf_id for leaf in self._leaves})
        self._publish()

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
        """The `SNAPSHOT` arrays as of the last change of the tree, as copies."""
        return {name: array.copy() for name, array in self._snapshot.items()}

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        return {
            "version": STATE_VERSION,
            "half": self.half,
            "options": self.options.as_dict(),
            "width": self.d,
            "readings": self._readings,
            "grown": self._grown,
            "next_leaf": self._next_leaf,
            "dropped": self.dropped,
            "counted": self._counted,
            "counted_noise": self._counted_noise,
            "found": self._found,
            "apart": self._clumping.apart,
            "compared": self._clumping.compared,
            "tree": tree_state(self._root),
            "snapshot": self.snapshot(),
            **self._identities.state(),
            **self._shares.state(),
            **self._deficits.state(),
        }

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has
        changed."""
        saved = StateReader(
            state, STATE_VERSION, half=self.half, options=self.options.as_dict(), width=self.d
        )
        # Into a new half, so that a state that proves damaged halfway changes nothing.
        fresh = type(self)(self.d, **self.options.as_dict())
        fresh._restore_from(saved, state)
        vars(self).update(vars(fresh))

    def _restore_from(self, saved: StateReader, state: State) -> None:
        self._readings = saved.read_int("readings")
        self._grown = saved.read_int("grown")
        saved.check(
            self._grown <= self._readings, "the tree changed after readings not yet absorbed"
        )
        self._next_leaf = saved.read_int("next_leaf")
        self.dropped = saved.read_int("dropped")
        self._counted = saved.read_float("counted")
        self._counted_noise = saved.read_float("counted_noise")
        saved.check(self._counted_noise >= 0.0, "counts have a variance below zero")
        saved.check(
            isinstance(state.get("found"), bool), "it is unknown whether anything was found"
        )
        self._found = bool(state["found"])
        self._clumping = Clumping(saved.read_float("apart"), saved.read_float("compared"))
        saved.check(isinstance(state.get("tree"), Mapping), "there is no tree")
        self._root = restored_tree(state["tree"], self.d)
        self._identities = Identities()
        self._identities.restore_from(saved)
        self._shares = ClientShares.restored(saved)
        self._deficits = ClientDeficits.restored(saved, self._noise_variance)
        known = set(self._identities.clusters)
        saved.check(
            known >= {leaf.identity for leaf in self._leaves},
            "a leaf is part of a cluster that does not exist",
        )
        saved.check(
            max(leaf.leaf_id for leaf in self._leaves) < self._next_leaf,
            "a leaf has a number not yet given",
        )
        self._snapshot = saved.read_arrays("snapshot", SNAPSHOT, self.d)
        # Clients count under the plan of the snapshot now, and under that of the tree when it is
        # published next.
        every_axis = [np.full(len(leaf.axes), SHARE_ONE) for leaf in self._leaves]
        try:
            for plan in (self._snapshot, plan_arrays(self._root, every_axis)):
                check_plan(plan, self.d)
        except InvalidData as damaged:
            raise InvalidState(f"saved tree: {damaged}") from None

    @property
    def _leaves(self) -> list[Leaf]:
        return leaves_of(self._root)

    def _new_id(self) -> int:
        self._next_leaf += 1
        return self._next_leaf - 1

    def _replace(self, old: Node, new: Node) -> None:
        if self._root is old:
            self._root = new
        for cut in cuts_of(self._root):
            if old in cut.parts:
                cut.parts = (new, cut.parts[1]) if cut.parts[0] is old else (cut.parts[0], new)

    def _take_back(self) -> None:
        for cut in list(cuts_of(self._root)):
            left, right = cut.parts
            # Only cuts with nothing below them: a cut above comes in turn once those have been
            # taken back.
            if not (isinstance(left, Leaf) and isinstance(right, Leaf)):
                continue
            if is_filled(cut, [left], [right], self.options.filled):
                self._replace(cut, take_back(cut, self._new_id()))

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
            zoomed = leaf.zoom[axis] != NO_ZOOM
            mass = float((leaf.fine if zoomed else leaf.coarse)[axis].sum())
            noise = float((leaf.fine_noise if zoomed else leaf.coarse_noise)[axis].sum())
            if (
                mass <= max(OBLIQUE_PATIENCE, 4.0 * math.sqrt(noise))
                or hint[axis] >= 1.0 + mass / OBLIQUE_PATIENCE
            ):
                continue
            support = np.where(leaf.zoom[: self.d] != NO_ZOOM, leaf.span[: self.d] / BINS, 1.0)
            width = (leaf.high - leaf.low) * support
            leaf.redraw(axis, oblique_axes(leaf.oblique_drawn, 1, width, leaf.leaf_id))

    def _publish(self) -> None:
        """Make the snapshot, which holds until the tree changes again."""
        leaves = self._leaves
        options = self.options
        mass = masses(leaves)
        cluster = cluster_leaves(self._root, mass, options.filled, options.circular_features)
        identity = self._identities.assign(leaves, mass, cluster, self._readings)
        # Before any reading, noise alone would make leaves active.
        if self._readings:
            self._identities.update_activity(
                identity,
                np.bincount(cluster, weights=[leaf.recent for leaf in leaves]).astype(np.float64),
                np.bincount(cluster, weights=[leaf.recent_noise for leaf in leaves]).astype(
                    np.float64
                ),
            )
        shares = []
        for leaf, held in zip(leaves, (options.window_readings * mass).tolist(), strict=True):
            hint = leaf.best_valleys(options.depth, options.cut_significance).hint
            sampled = axes_sampled(
                len(leaf.axes),
                options.window_readings,
                self._noise_variance,
                options.axes_per_window,
            )
            if not options.axes_per_window:
                sampled = axes_of_leaf(sampled, held, self._noise_variance, self._clumping.variance)
            shares.append(axis_shares(leaf, hint, sampled))
        arrays = plan_arrays(self._root, shares)
        arrays |= cluster_arrays(
            self._root,
            mass,
            cluster,
            identity,
            self._identities,
            self._readings,
            options.circular_features,
        )
        arrays["found"] = np.array([self._found])
        self._snapshot = {name: arrays[name] for name in SNAPSHOT}
