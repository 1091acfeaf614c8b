"""The server half of cluster_tree: cells, the tree over them, and clusters with lasting identities.

`predict` and `view` need a published snapshot alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.cluster_tree.cells import GATHERED, KNOWN, Cells, CellsState
from shoal.algorithms.cluster_tree.dependence import Dependence, nearest_of_latest
from shoal.algorithms.cluster_tree.identities import (
    EARLY_READINGS,
    NO_PARENT,
    Cluster,
    Identities,
    IdentitiesState,
)
from shoal.algorithms.cluster_tree.joining import Pair, RemainApart
from shoal.algorithms.cluster_tree.noise import EVERYWHERE, reaches, without_noise
from shoal.algorithms.cluster_tree.options import ClusterTreeOptions
from shoal.algorithms.cluster_tree.partition import Partition, partition
from shoal.algorithms.cluster_tree.sketches import SketchState
from shoal.algorithms.half import Half, HalfState
from shoal.algorithms.shares import ClientShares, ClientSharesState
from shoal.algorithms.streaming import Arrays, Contribution, Rows, check_rows, counted_points
from shoal.algorithms.view import NO_CLUSTER, ClusteringView, NearestPoint
from shoal.kernels.arrays import Floats, Ints, different
from shoal.kernels.distance import nearest_centres, squared_to
from shoal.kernels.sketching import Located, Sketch, empty_sketch, located
from shoal.saved_state import FloatArray, SavedState, Whole, require, state_type


def predict(snapshot: Arrays, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) cluster of the nearest cell, -1 beyond its reach, and if the snapshot has
    no cell."""
    return cluster_of_nearest(rows, snapshot["cell"], snapshot["cluster"], snapshot["reach"])


def predictor(snapshot: Arrays) -> NearestPoint:
    """`predict` as plain data."""
    reach = snapshot["reach"]
    is_bounded = bool((reach < EVERYWHERE).any())
    return NearestPoint(snapshot["cell"], snapshot["cluster"], reach=reach if is_bounded else None)


def cluster_of_nearest(rows: Rows, cells: Floats, cluster: Ints, reach: Floats) -> Ints:
    """rows (n, d), cells (k, d), their clusters and reaches (k,) -> (n,) cluster of the nearest
    cell, or -1."""
    if not len(cells) or not len(rows):
        return np.full(len(rows), NO_CLUSTER, dtype=np.int64)
    near = nearest_centres(rows, cells)
    if (reach >= EVERYWHERE).all():
        return cluster[near]
    return without_noise(cluster[near], squared_to(rows, cells[near]), reach[near])


def view(snapshot: Arrays) -> ClusteringView:
    """View of the cells as nodes without edges; clusters have the server's identities and activity.

    The mass of a cell is bounded and fades, so it is not a count of all rows since the start.
    """
    return ClusteringView.from_nodes(
        snapshot["cell"],
        snapshot["mass"],
        snapshot["cluster"],
        node_id=snapshot["cell_id"],
        centres=snapshot["centre"],
        centre_mass=snapshot["centre_mass"],
        active=snapshot["active"],
        identity=snapshot["identity"],
        parent=snapshot["parent"],
        recent=snapshot["recent"],
        unresolved=int(snapshot["unresolved"].sum()),
        accumulates=False,
    )


FEW_CLUSTERS: Final = 20
"""clusters up to which the memory does not grow"""
UNRESOLVED: Final = 1.2
"""places for each cluster from which some clusters are not distinguished yet: a few places may be
parts of one cluster"""
GATHERED_MIN: Final = 10.0
GATHERED_MORE: Final = 1.25
"""readings that have come near to each other where none had been, from which the tree is built
before it is due; and multiple of those when it was built last"""
BORN_SHARE: Final = 0.5
"""share of such readings in a group from which it has been born since the last rebuild"""
SEARCHES_MAX: Final = 6
"""searches for births between two rebuilds at most; each rebuild allows for one more"""


@state_type
class BlockState(SavedState):
    """The points since the last rebuild."""

    points: SketchState
    time: Annotated[Floats, FloatArray("n")]

    def check(self) -> None:
        require(len(self.time) == len(self.points.mass), "a point of the block has no time")


@state_type
class ClusterTreeServerState(HalfState):
    """What the server half has learnt."""

    version: ClassVar[int] = 8

    readings: int
    rebuilt: int
    counted: int
    gathered: float
    searches_left: int
    first_new: int
    places: Annotated[int, Whole(least=1)]
    unresolved: int
    block: BlockState
    cells: CellsState
    identities: IdentitiesState
    earlier: SketchState
    """the sample of `Dependence`"""
    shares: ClientSharesState

    def check(self) -> None:
        require(
            self.rebuilt <= self.readings, "the tree was rebuilt after readings not yet absorbed"
        )
        require(self.searches_left <= SEARCHES_MAX, f"searches_left must be at most {SEARCHES_MAX}")
        require(
            self.counted <= len(self.block.time),
            "more points of the block were counted than it has",
        )
        is_known = np.isin(self.cells.cluster, self.identities.identity)
        require(bool(is_known.all()), "a cell is part of a cluster that does not exist")


class ClusterTreeServer(Half[ClusterTreeOptions, ClusterTreeServerState]):
    """Absorbs the weighted points of clients and finds their clusters.

    **Idea.** A cluster is a region denser than all the places through which it can be left. The
    server keeps some thousand weighted points, the *cells*, joins them along HDBSCAN's tree of
    mutual reachability from the shortest edge to the longest, and refuses a join whose two sides
    are both significantly denser than the place where they meet. "Significantly" is counted in
    independent readings: with more of them finer structure becomes significant, so both the
    readings that count and the times at which people see something new are bounded. That keeps the
    number of clusters steady, where an adaptive vigilance lets it jump with every node.

    **Steps.** What each contribution does, in order, with its method:

    1. *Admit* (`_absorb_share`, `shoal.algorithms.shares`): a client's points count up to its share
       of all readings, so that no client alone displaces the others.
    2. *Cells* (`Cells.add`): every point becomes a cell of the cluster of its nearest cell. It is
       marked where no readings had been there before. Recent masses fade by the readings that have
       come, never by time. Beyond `cells_max` near cells of the same cluster are merged (Ward).
    3. *Birth* (`_find_births`): where enough readings have gathered in such new places, the tree is
       built at once, and groups mostly of such readings become clusters. All others stay as they
       are.

    After every `rebuild_readings` readings (`rebuild`):

    4. *Core distances* (`partition`): the distance around each cell within which about half of the
       square root of all readings lie; for cells that are alone fewer (`cores_of_few`).
    5. *Presence* (`still_present`): a place that has received significantly fewer readings than the
       rest of its cluster has been left, and its old readings no longer count in the tree.
    6. *Tree and joins* (`spanning_tree`, `Joining.join`): from the shortest edge on, each join is
       tested by density, and across an empty stretch by the length of the gap (`gap_significance`).
       Two clusters known before are held to the lower `keep_significance`, and stay two for
       `confirm_readings` readings of doubt (`Identities.remain_apart`).
    7. *Identities* (`Identities.assign`): the group with most of a cluster's mass continues it;
       another one is a new cluster, with the one that it parted from as its parent, or one that
       has ended and is found again at its place (`FormerClusters`). New ones are
       shown at once where they are certain or lie where no readings were, otherwise once they have
       lasted, and finer parts of known clusters at reviews only (`settle`, `review`).
    8. *Dependence* (`Dependence.compare`): how many successive readings count as one, per cluster,
       by comparing the newest readings with earlier ones.
    9. *Activity* (`Identities.count_recent`): clusters with few recent readings become inactive.
    10. *Memory* (`Cells.limit_mass`): newer readings displace older ones of the same cluster. So a
        cluster is never forgotten because others receive readings: nothing else takes its mass.

    **Kept.** At most `cells_max` cells (times up to `growth_max` where clusters are many), a
    cluster's identity and a dozen numbers, 250 earlier points for the dependence, the points since
    the last rebuild, and the shares of clients. It does not grow with the readings.

    **Cost.** Absorbing 500 readings takes about 0.5 ms. A rebuild works on the table of distances
    of k cells: O(k^2 d) time and 4 k^2 bytes, about 25 ms and 4 MB at 1 000 cells in NumPy's form.

    **Exactness.** The tree is rebuilt after a fixed number of readings and never by the clock. So
    the state is a function of the contributions in their order; how they are grouped into calls
    makes no difference.

    **Sources.** The tree: Campello, Moulavi and Sander, "Density-based clustering based on
    hierarchical density estimates" (2013). Merging: Ward (1963). The tests of joins, reviews and
    dependence are this project's own; benchmarks/steadiness measures what they give.

    Options: `ClusterTreeOptions`.
    """

    half = "cluster_tree server"
    options_type = ClusterTreeOptions
    state_type = ClusterTreeServerState

    def _reset(self, width: int | None) -> None:
        super()._reset(width)
        options = self.options
        self._cells = Cells.empty(width or 0)
        self._identities = Identities(
            options.confirm_readings, options.split_significance, options.keep_significance
        )
        self._dependence = Dependence(width or 0)
        self._shares = ClientShares()
        self._block = empty_sketch(width or 0)
        """the points since the last rebuild"""
        self._block_time: Floats = np.empty(0)
        """the time in its update at which each of them came, 0 to 1"""
        self._readings = 0
        self._rebuilt = 0
        """readings absorbed when the tree was rebuilt last"""
        self._counted = 0
        """points of the block that are in the recent readings of their clusters"""
        self._gathered = 0.0
        """readings where none had been, when the tree was built last"""
        self._searches_left = 0
        """searches for births that may be made before the next rebuild is due"""
        self._first_new = 0
        """the id from which on a cell can be where no readings had been"""
        self._places = 1
        """places with gaps between them, when the tree was built last"""
        self._unresolved = 0
        """their number where it is more than the memory at its limit can distinguish, else 0"""

    @property
    def readings(self) -> int:
        """Readings absorbed."""
        return self._readings

    @property
    def unresolved(self) -> int:
        """Places with gaps between them, where they are more than the memory at its limit can
        distinguish; else 0."""
        return self._unresolved

    @property
    def identities(self) -> list[int]:
        """The identities shown, ascending: identity i of this list is cluster number i of the
        snapshot."""
        return [int(identity) for identity in np.unique(self._shown())]

    @property
    def active(self) -> list[int]:
        """The identities shown that are active, ascending."""
        active = {i for i, cluster in self._identities.clusters.items() if cluster.active}
        return [identity for identity in self.identities if identity in active]

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Merge contributions into the cells, in the order given; nothing is random, so `key` is
        not used.

        Raises `InvalidData` before anything has changed.
        """
        checked = []
        width = self._width
        for contribution in contributions:
            sketch = _sketch_of(contribution, width)
            if len(sketch.mass):
                width = sketch.points.shape[1]
                checked.append((contribution.client, sketch))
        if checked and self._width is None:
            self._reset(width)
        for client, sketch in checked:
            self._absorb_share(client, sketch)

    def _absorb_share(self, client: str, sketch: Sketch) -> None:
        """Absorb what a client's share allows of it: of all points alike, in whole readings."""
        part = self._shares.admit(client, float(sketch.mass.sum()))
        if part < 1.0:
            # Of running sums, so that the rounding of one point is made good at the next.
            mass = np.diff(np.floor(np.cumsum(sketch.mass) * part), prepend=0.0)
            sketch = Sketch(sketch.points, mass).kept(mass > 0.0)
        if len(sketch.mass):
            self._absorb(sketch)

    def _absorb(self, sketch: Sketch) -> None:
        self._cells.add(sketch, int(self._growth() * self.options.cells_max))
        self._block = self._block.with_more(sketch)
        time = np.cumsum(sketch.mass) / sketch.mass.sum()
        self._block_time = np.concatenate([self._block_time, time])
        self._readings += int(sketch.mass.sum())
        if self._readings >= self._due_after(self._rebuilt):
            self.rebuild()
        elif self._searches_left and self._gathered_now() >= self._gathered_min():
            # Counted before the search: strays that never become a cluster must not cost a tree at
            # each update.
            self._searches_left -= 1
            self._find_births()

    def _due_after(self, rebuilt: float) -> float:
        """The readings at which the rebuild after that at `rebuilt` is due."""
        # Early in a stream after every quarter more, so that there are clusters to see at once.
        return rebuilt + min(self.options.rebuild_readings, rebuilt / 4)

    def _gathered_min(self) -> float:
        """Readings that must have gathered in new places before births are searched for."""
        # A quarter more than at the last build: strays that remain must not lead to a search at
        # every update.
        return max(GATHERED_MIN, GATHERED_MORE * self._gathered)

    def _growth(self) -> float:
        """Multiple of the memory for few clusters that is allowed for those that are known or to be
        distinguished."""
        places = max(self._places, len(self._identities.clusters))
        return min(self.options.growth_max, max(1.0, places / FEW_CLUSTERS))

    def rebuild(self) -> None:
        """Build the tree and find the clusters anew; measure dependence, and bound the memory.

        `absorb` calls it after every `rebuild_readings` readings.
        """
        cells = self._cells
        identities = self._identities
        readings = float(self._readings)

        def remain_apart(pair: Pair, significance: float) -> bool:
            return identities.remain_apart(pair, significance, readings)

        centres = located(cells.centres)
        found = self._partition(centres, remain_apart)
        self._assign(found)
        self._places = found.places
        if len(self._block.mass):
            near = self._dependence.compare(
                self._block, self._block_time, cells, centres, found.cores, identities
            )
            self._count_recent(near[self._counted :])
            # `_rebuilt` still is the rebuild before this one: a group that has only just been found
            # had no readings of its own in the block, and would seem to have missed its share.
            identities.count_received(
                cells, cells.cluster[near], self._block.mass, float(self._rebuilt)
            )
        self._review()
        self._block = empty_sketch(self._width or 0)
        self._block_time = np.empty(0)
        self._counted = 0
        # After all that holds positions of cells (`near`, `found`): this removes cells.
        self._limit_memory()
        # What gathers slowly has until the rebuild after the next.
        cells.settle(cells.ids < self._first_new)
        self._first_new = cells.n_created
        self._rebuilt = self._readings
        self._searches_left = min(SEARCHES_MAX, self._searches_left + 1)
        self._gathered = self._gathered_now()

    def _limit_memory(self) -> None:
        cells = self._cells
        dependence = self._identities.dependence(cells.cluster)
        growth = self._growth()
        is_full = cells.limit_mass(
            growth * self.options.cluster_mass_max, growth * self.options.mass_max, dependence
        )
        # Once full, a memory may have room again for a while: what it has lost is not known.
        is_full = is_full or self._unresolved > 0
        self._unresolved = self._places if is_full and self._is_crowded() else 0

    def _find_births(self) -> None:
        """Find clusters that have been born since the last rebuild; what is known remains as it
        is."""
        cells = self._cells
        identities = self._identities
        readings = float(self._readings)

        def remain_apart(pair: Pair, significance: float) -> bool:
            return identities.may_remain_apart(pair, significance, readings)

        centres = located(cells.centres)
        found = self._partition(centres, remain_apart)
        new_mass = cells.mass * (cells.place != KNOWN)
        total: Floats = np.bincount(found.group, weights=cells.mass).astype(np.float64)
        gathered = np.bincount(found.group, weights=new_mass, minlength=len(total))
        is_born = (gathered > BORN_SHARE * total)[found.group]
        # Numbers of groups are positions of cells: those of known clusters come after them.
        group = np.where(is_born, found.group, len(cells) + cells.cluster)
        self._assign(found._replace(group=group))
        self._count_recent(nearest_of_latest(self._block.points[self._counted :], cells, centres))
        self._gathered = self._gathered_now()

    def _partition(self, centres: Located, remain_apart: RemainApart) -> Partition:
        """The groups of the cells, whose `centres` are in their frame."""
        cells = self._cells
        identities = self._identities
        return partition(
            cells,
            centres,
            identities.active(cells.cluster),
            identities.settled(cells.cluster),
            identities.dependence(cells.cluster),
            identities.slow_dependence(cells.cluster),
            self.options.split_significance,
            remain_apart,
        )

    def _is_crowded(self) -> bool:
        """Whether there are many places with gaps between them that no clusters distinguish."""
        return self._places > max(self._growth() * FEW_CLUSTERS, UNRESOLVED * len(self.identities))

    def _is_by_review(self) -> bool:
        """Whether parts of known clusters are shown at reviews only: not early, not before there
        are two clusters, and not where many are not distinguished yet."""
        is_early = self._due_after(self._readings) <= EARLY_READINGS
        return not is_early and len(self.identities) > 1 and not self._is_crowded()

    def _review(self) -> None:
        """Show what has been found by now, at the last rebuild before a review is due."""
        next_rebuild = self._due_after(self._readings)
        if next_rebuild > self._identities.next_review:
            before = self._shown()
            self._identities.review(next_rebuild)
            self._settle(before)

    def _assign(self, found: Partition) -> None:
        """Give the groups their identities, and the cells their core distances."""
        cells = self._cells
        before = self._shown()
        self._identities.assign(cells, found, float(self._readings), self._is_by_review())
        # 0 is not known: the distance to nothing is infinite, which no snapshot may hold.
        cells.core = np.where(np.isfinite(found.cores), found.cores, 0.0)
        self._settle(before)

    def _settle(self, before: Ints) -> None:
        """Decide what is shown from now on. What is shown as another cluster than `before` is in
        known ground from then on."""
        self._identities.settle(float(self._readings))
        self._cells.settle(self._shown() != before)

    def _gathered_now(self) -> float:
        """Independent readings that have come near to each other where there had been none."""
        cells = self._cells
        new = np.flatnonzero(cells.place == GATHERED)
        # Most updates bring none, and the dependence of no cells takes as long as that of some.
        if not len(new):
            return 0.0
        dependence = self._identities.slow_dependence(cells.cluster[new])
        return float((cells.mass[new] / dependence).sum())

    def _count_recent(self, near: Ints) -> None:
        """Count the readings of the block that have not been counted; `near`: the nearest cell of
        each of them."""
        shown = self._identities.shown(self._cells.cluster[near])
        mass = self._block.mass[self._counted :]
        self._identities.count_recent(shown, mass)
        self._counted += len(mass)

    def _shown(self) -> Ints:
        """(k,) the identity as which the cluster of each cell is shown."""
        return self._identities.shown(self._cells.cluster)

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) -> (n,) cluster of the nearest cell as its number in the snapshot; -1 before
        anything is learnt, and with the option `noise` for rows that belong to no cluster.

        `identities` has the identity of each number. Raises `InvalidData`.
        """
        table = check_rows(rows, self._width)
        _, cluster = different(self._shown())
        return cluster_of_nearest(table, self._cells.centres, cluster, self._reach(cluster))

    def _reach(self, cluster: Ints) -> Floats:
        """(k,) the cluster of each cell -> (k,) the distance from which on rows belong to none."""
        if self.options.noise:
            return reaches(self._cells, cluster, self._first_new)
        return np.full(len(cluster), EVERYWHERE)

    def snapshot(self) -> Arrays:
        """The `SNAPSHOT` arrays, as copies."""
        cells = self._cells
        identity, cluster = different(self._shown())
        shown = [self._identities.clusters[number] for number in identity.tolist()]
        sums = np.bincount(cluster, weights=cells.mass, minlength=len(identity))
        centre_mass: Floats = sums.astype(np.float64)
        centre = _mean(cells.centres, cells.mass, cluster, centre_mass)
        # In units of the range, because the squares of large numbers overflow.
        scale = np.abs(cells.centres - centre[cluster]).max(axis=0, initial=0.0)
        scale[scale == 0.0] = 1.0
        gaps = ((cells.centres - centre[cluster]) / scale) ** 2
        return {
            "cell_id": cells.ids.copy(),
            "cell": cells.centres.copy(),
            "mass": cells.mass.copy(),
            "cluster": cluster,
            "reach": self._reach(cluster),
            "identity": identity,
            "centre": centre,
            "centre_mass": centre_mass,
            "spread": np.sqrt(_mean(gaps, cells.mass, cluster, centre_mass)) * scale,
            "recent": np.array([known.recent for known in shown], dtype=np.float64),
            "active": np.array([known.active for known in shown], dtype=np.bool_),
            "parent": np.array([_parent_shown(known) for known in shown], dtype=np.int64),
            "since": np.array([known.since for known in shown], dtype=np.int64),
            "unresolved": np.full(int(self._unresolved > 0), self._unresolved, dtype=np.int64),
        }

    def _state(self) -> ClusterTreeServerState:
        return ClusterTreeServerState(
            width=self._width,
            readings=self._readings,
            rebuilt=self._rebuilt,
            counted=self._counted,
            gathered=self._gathered,
            searches_left=self._searches_left,
            first_new=self._first_new,
            places=self._places,
            unresolved=self._unresolved,
            block=BlockState(points=SketchState.of(self._block), time=self._block_time),
            cells=self._cells.state(),
            identities=self._identities.state(self._width or 0),
            earlier=self._dependence.state(),
            shares=self._shares.state(),
        )

    def _restore_from(self, saved: ClusterTreeServerState) -> None:
        self._readings = saved.readings
        self._rebuilt = saved.rebuilt
        self._counted = saved.counted
        self._gathered = saved.gathered
        self._searches_left = saved.searches_left
        self._first_new = saved.first_new
        self._places = saved.places
        self._unresolved = saved.unresolved
        self._block = saved.block.points.restored()
        self._block_time = saved.block.time
        self._cells = Cells.restored(saved.cells)
        self._identities.restore_from(saved.identities)
        self._dependence = Dependence.restored(saved.earlier, saved.width or 0)
        self._shares = ClientShares.restored(saved.shares)


def _mean(values: Floats, mass: Floats, cluster: Ints, cluster_mass: Floats) -> Floats:
    """values (k, d), masses and clusters (k,), masses of clusters (c,) -> (c, d) weighted means."""
    # By shares: a sum of values times masses could overflow, and that of shares cannot.
    shares = mass / cluster_mass[cluster]
    means = np.empty((len(cluster_mass), values.shape[1]))
    for feature, column in enumerate(values.T):
        means[:, feature] = np.bincount(
            cluster, weights=column * shares, minlength=len(cluster_mass)
        )
    return means


def _parent_shown(cluster: Cluster) -> int:
    """The identity that a cluster parted from. A birth has none, though its cells were counted to
    another cluster at first."""
    return NO_PARENT if cluster.appeared else cluster.parent


def _sketch_of(contribution: Contribution, width: int | None) -> Sketch:
    """The checked arrays of one contribution. Raises `InvalidData`, which names the client."""
    points, counts = counted_points(contribution, "point", width, "point")
    return Sketch(points, counts.astype(np.float64))
