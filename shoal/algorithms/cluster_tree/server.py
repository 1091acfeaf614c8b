"""The server half of cluster_tree: cells, the tree over them, and clusters with lasting identities.

`Dependence` measures how many readings count as one, because successive readings of a sensor are not independent.
`predict` and `view` need a published snapshot alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.cluster_tree.cells import GATHERED, KNOWN, Cells
from shoal.algorithms.cluster_tree.client import ClusterTreeHalf, restored_sketch, sketch_state
from shoal.algorithms.cluster_tree.identities import NO_PARENT, Cluster, Identities
from shoal.algorithms.cluster_tree.partition import (
    EVERYWHERE,
    Pair,
    Partition,
    RemainApart,
    partition,
    reaches,
    without_noise,
)
from shoal.algorithms.shares import ClientShares
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, Contribution, Rows, State, check_rows
from shoal.algorithms.view import NO_CLUSTER, ClusteringView, NearestPoint
from shoal.errors import InvalidData
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.kernels.distance import nearest
from shoal.kernels.sketching import Located, Sketch, empty_sketch, frame_of, located, nearest_to, squared_between


def predict(snapshot: Arrays, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) cluster of the nearest cell, -1 beyond its reach, and if the snapshot has no cell."""
    return cluster_of_nearest(rows, snapshot["cell"], snapshot["cluster"], snapshot["reach"])


def predictor(snapshot: Arrays) -> NearestPoint:
    """`predict` as plain data."""
    reach = snapshot["reach"]
    return NearestPoint(snapshot["cell"], snapshot["cluster"], reach=reach if (reach < EVERYWHERE).any() else None)


def cluster_of_nearest(rows: Rows, cells: Floats, cluster: Ints, reach: Floats) -> Ints:
    """rows (n, d), cells (k, d), their clusters and reaches (k,) -> (n,) cluster of the nearest cell, or -1."""
    if not len(cells) or not len(rows):
        return np.full(len(rows), NO_CLUSTER, dtype=np.int64)
    near, squared = nearest(rows, cells)
    return without_noise(cluster[near], squared, reach[near])


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


SAMPLE_POINTS = 200
"""points of a block whose neighbours are counted"""
KEPT, KEPT_OF_BLOCK = 250, 25
"""earlier points kept for comparison, and how many of them each block adds"""
SLOW_READINGS = 2000.0
"""readings of all clusters before now that are compared with those before them"""
LONG_READINGS = 5000.0
"""readings of a cluster in which a measured excess fades to 1/e"""
FIRST_READINGS = 500.0
"""readings that the first estimate, no excess, is worth"""
OTHER_TIME = 0.25
"""share of an update between two readings from which they came at another time"""
COMPARED_MIN = 5.0
"""fewest readings of the cluster in the block from which a share is computed"""
EARLIER_MIN = 100.0
"""fewest earlier readings from which a share is computed; each point stands for about twenty"""


class Dependence:
    """A sample of earlier readings, with which each block is compared."""

    def __init__(self, width: int) -> None:
        self._earlier = empty_sketch(width)
        """points and the readings absorbed that each stands for"""

    def compare(
        self, block: Sketch, time: Floats, cells: Cells, centres: Located, cores: Floats, identities: Identities
    ) -> Ints:
        """Measure the excess of each cluster in a block of n > 0 points -> (n,) the nearest cell of each point.

        `time` (n,): when in its update each point came, 0 to 1. `centres` (k, d) and `cores` (k,): those of the cells.
        """
        mass = block.mass
        near = nearest_of_latest(block.points, cells, centres)
        sample = np.linspace(0, len(mass) - 1, min(len(mass), SAMPLE_POINTS)).astype(np.int64)
        if len(self._earlier.mass) and np.isfinite(cores).all():
            earlier_cluster = cells.cluster[_nearest(self._earlier.points, centres)]
            within = cores[near[sample]] ** 2
            counts = _Counts(block, cells.cluster[near], sample, within, self._earlier, earlier_cluster)
            _learn_each(identities, counts, *counts.excess(time))
            _learn_each(identities, counts, *counts.slow_excess(), slow=True)
        few = np.linspace(0, len(mass) - 1, min(len(mass), KEPT_OF_BLOCK)).astype(np.int64)
        stand_for_all = Sketch(block.points[few], mass[few] * float(mass.sum() / mass[few].sum()))
        self._earlier = self._earlier.with_more(stand_for_all).kept(slice(-KEPT, None))
        return near

    def state(self) -> State:
        return sketch_state("earlier", self._earlier)

    @classmethod
    def restored(cls, saved: StateReader, width: int) -> Self:
        """The sample of a saved state. Raises `InvalidState`."""
        fresh = cls(width)
        fresh._earlier = restored_sketch(saved, "earlier", width)
        return fresh


class _Counts:
    """Which readings of a block of n points, and of m earlier ones, lie near s sampled points in the same cluster."""

    def __init__(
        self,
        block: Sketch,
        cluster: Ints,
        sample: Ints,
        within: Floats,
        earlier: Sketch,
        earlier_cluster: Ints,
    ) -> None:
        """`cluster` (n,), `earlier_cluster` (m,) those of the points, `sample` (s,) positions, `within` (s,) squared
        distances."""
        own = cluster[sample]
        self.mass, self.cluster, self.sample, self.earlier_mass = block.mass, cluster, sample, earlier.mass
        self.same, self.same_before = own[:, None] == cluster, own[:, None] == earlier_cluster
        self.close = (_apart(block.points[sample], block.points) <= within[:, None]) & self.same
        self.before = (_apart(block.points[sample], earlier.points) <= within[:, None]) & self.same_before
        # A sampled reading is itself among those counted around it, but not among those it is compared with.
        self.close_in_block, self.others_in_block = self.close @ self.mass - 1.0, self.same @ self.mass - 1.0

    def excess(self, time: Floats) -> tuple[Bools, Floats]:
        """-> (s,) which of the sampled points can be compared, (s,) the excess of readings around each."""
        held, whole = self.before @ self.earlier_mass, self.same_before @ self.earlier_mass
        late = np.abs(time[self.sample, None] - time) > OTHER_TIME
        held_late, whole_late = (self.close & late) @ self.mass, (self.same & late) @ self.mass
        share, share_late = held / np.maximum(whole, 1.0), held_late / np.maximum(whole_late, 1.0)
        # Where a cluster has moved its earlier readings are few, and no sign that those of now depend on each other.
        by_late = (held <= 0.0) | ((share_late > share) & (whole_late >= COMPARED_MIN))
        share = np.where(by_late, share_late, share)
        counted = np.where(by_late, whole_late >= COMPARED_MIN, whole >= EARLIER_MIN)
        return counted, self.close_in_block - self.others_in_block * share

    def slow_excess(self) -> tuple[Bools, Floats]:
        """The same for the last `SLOW_READINGS` readings and those before."""
        is_late = np.cumsum(self.earlier_mass[::-1])[::-1] + float(self.mass.sum()) / 2 <= SLOW_READINGS
        weights = self.earlier_mass[:, None] * np.stack([is_late, ~is_late], axis=1)
        held, whole = self.before @ weights, self.same_before @ weights
        share = held[:, 1] / np.maximum(whole[:, 1], 1.0)
        excess = self.close_in_block + held[:, 0] - (self.others_in_block + whole[:, 0]) * share
        return whole[:, 1] >= EARLIER_MIN, excess


def _learn_each(identities: Identities, counts: _Counts, counted: Bools, excess: Floats, slow: bool = False) -> None:
    """Each cluster learns the mean excess of those of its sampled points (s,) that were `counted`."""
    of_sample = counts.cluster[counts.sample]
    for identity in np.unique(counts.cluster).tolist():
        here = counted & (of_sample == identity)
        if here.any():
            measured = float(np.average(excess[here], weights=counts.mass[counts.sample[here]]))
            mass = float(counts.mass[counts.cluster == identity].sum())
            _learn(identities.clusters[identity], measured, mass, slow)


def _learn(cluster: Cluster, measured: float, mass: float, slow: bool) -> None:
    compared = mass + (cluster.slow_compared if slow else cluster.compared)
    rate = max(1.0 - math.exp(-mass / LONG_READINGS), mass / (compared + FIRST_READINGS))
    if slow:
        cluster.slow_compared, cluster.slow_excess = compared, (1.0 - rate) * cluster.slow_excess + rate * measured
    else:
        cluster.compared, cluster.excess = compared, (1.0 - rate) * cluster.excess + rate * measured


def nearest_of_latest(points: Floats, cells: Cells, centres: Located) -> Ints:
    """points (n, d), the latest that became cells, in their order -> (n,) the nearest cell of each.

    Only of those that have been merged with others, or removed, it has to be looked for.
    """
    ids = np.arange(cells.n_created - len(points), cells.n_created)
    place = np.minimum(np.searchsorted(cells.ids, ids), len(cells) - 1)
    moved = np.flatnonzero((cells.ids[place] != ids) | (cells.centres[place] != points).any(axis=1))
    if len(moved):
        place[moved] = _nearest(points[moved], centres)
    return place


def _nearest(points: Floats, centres: Located) -> Ints:
    """points (n, d) -> (n,) the nearest centre; of centres that nearly coincide any of them."""
    return nearest_to(centres.frame.of(points), centres.points)


def _apart(one: Floats, other: Floats) -> Floats:
    """points (n, d), (m, d) -> (n, m) squared distances."""
    frame = frame_of(np.concatenate([one, other]))
    return squared_between(frame.of(one), frame.of(other)).astype(np.float64) * frame.scale**2


FEW_CLUSTERS = 20
"""clusters up to which the memory does not grow"""
UNRESOLVED = 1.2
"""places for each cluster from which some have not been told apart: a few may be parts of one cluster"""
GATHERED_MIN, GATHERED_MORE = 10.0, 1.25
"""readings that have come near to each other where none had been, from which the tree is built before it is due; and
multiple of those when it was built last"""
BORN_SHARE = 0.5
"""share of such readings in a group from which it has been born since the last rebuild"""
LOOKS_MAX = 6
"""how often at most between two rebuilds; each rebuild allows for one more look"""


class ClusterTreeServer(ClusterTreeHalf):
    """Absorbs the weighted points of clients and finds their clusters. Options: `ClusterTreeOptions`.

    The tree is rebuilt after a fixed number of readings and never by the clock. So the state is a function of the
    contributions in their order; how they are grouped into calls makes no difference.
    """

    half = "cluster_tree server"

    def _reset(self, width: int | None) -> None:
        super()._reset(width)
        options = self.options
        self._cells = Cells.empty(width or 0)
        self._identities = Identities(options.confirm_readings, options.split_significance, options.keep_significance)
        self._dependence = Dependence(width or 0)
        self._shares = ClientShares()
        self._block = empty_sketch(width or 0)
        self._block_time: Floats = np.empty(0)
        self._readings = 0
        self._rebuilt = 0
        self._counted = 0
        """points of the block that are in the recent readings of their clusters"""
        self._gathered = 0.0
        """readings where none had been, when the tree was built last"""
        self._looks = 0
        """how often the tree may be built before the next rebuild is due"""
        self._first_new = 0
        """the id from which on a cell can be where no readings had been"""
        self._places = 1
        """places with gaps between them, when the tree was built last"""
        self._unresolved = 0
        """as many where they are more than the memory at its limit can tell apart, else 0"""

    @property
    def readings(self) -> int:
        """Readings absorbed."""
        return self._readings

    @property
    def unresolved(self) -> int:
        """Places with gaps between them, where they are more than the memory at its limit can tell apart; else 0."""
        return self._unresolved

    @property
    def identities(self) -> list[int]:
        """The identities shown, ascending: identity i of this list is cluster number i of the snapshot."""
        return [int(identity) for identity in np.unique(self._shown())]

    @property
    def active(self) -> list[int]:
        """The identities shown that are active, ascending."""
        known = self._identities.clusters
        return [identity for identity in self.identities if identity in known and known[identity].active]

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Merge contributions into the cells, in the order given; nothing is random, so `key` is not used.

        Raises `InvalidData` before anything has changed.
        """
        checked, width = [], self._width
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
            mass = np.diff(np.floor(np.cumsum(sketch.mass) * part), prepend=0.0)
            sketch = Sketch(sketch.points, mass).kept(mass > 0.0)
        if len(sketch.mass):
            self._absorb(sketch)

    def _absorb(self, sketch: Sketch) -> None:
        self._cells.add(sketch, int(self._growth() * self.options.cells_max))
        self._block = self._block.with_more(sketch)
        self._block_time = np.concatenate([self._block_time, np.cumsum(sketch.mass) / sketch.mass.sum()])
        self._readings += int(sketch.mass.sum())
        # Early in a stream after every quarter more, so that there are clusters to see at once.
        if self._readings - self._rebuilt >= min(self.options.rebuild_readings, self._rebuilt / 4):
            self.rebuild()
        elif self._looks and self._gathered_now() >= max(GATHERED_MIN, GATHERED_MORE * self._gathered):
            self._looks -= 1
            self._look()

    def _growth(self) -> float:
        """Multiple of the memory for few clusters that is allowed for those that are known or to be told apart."""
        places = max(self._places, len(self._identities.clusters))
        return min(self.options.growth_max, max(1.0, places / FEW_CLUSTERS))

    def rebuild(self) -> None:
        """Build the tree and find the clusters anew; measure dependence, and bound the memory.

        `absorb` calls it after every `rebuild_readings` readings.
        """
        cells, identities, readings = self._cells, self._identities, float(self._readings)

        def remain_apart(pair: Pair, significance: float) -> bool:
            return identities.remain_apart(pair, significance, readings)

        centres = located(cells.centres)
        found = self._partition(centres, remain_apart)
        self._places = found.places
        self._assign(found)
        if len(self._block.mass):
            near = self._dependence.compare(self._block, self._block_time, cells, centres, found.cores, identities)
            self._count_recent(near[self._counted :])
            identities.count_received(cells, cells.cluster[near], self._block.mass, float(self._rebuilt))
        self._block, self._block_time, self._counted = empty_sketch(self._width or 0), np.empty(0), 0
        dependence = identities.dependence(cells.cluster)
        growth = self._growth()
        is_full = cells.limit_mass(growth * self.options.cluster_mass_max, growth * self.options.mass_max, dependence)
        # Once full, a memory may have room again for a while: what it has lost is not known.
        is_full = is_full or self._unresolved > 0
        is_crowded = self._places > max(growth * FEW_CLUSTERS, UNRESOLVED * len(self.identities))
        self._unresolved = self._places if is_full and is_crowded else 0
        # What gathers slowly has until the rebuild after the next.
        cells.settle(cells.ids < self._first_new)
        self._first_new, self._rebuilt = cells.n_created, self._readings
        self._looks, self._gathered = min(LOOKS_MAX, self._looks + 1), self._gathered_now()

    def _look(self) -> None:
        """Look for clusters that have been born since the last rebuild; what is known remains as it is."""
        cells, identities, readings = self._cells, self._identities, float(self._readings)

        def remain_apart(pair: Pair, significance: float) -> bool:
            return identities.may_remain_apart(pair, significance, readings)

        centres = located(cells.centres)
        found = self._partition(centres, remain_apart)
        total: Floats = np.bincount(found.group, weights=cells.mass).astype(np.float64)
        gathered = np.bincount(found.group, weights=cells.mass * (cells.place != KNOWN), minlength=len(total))
        is_born = (gathered > BORN_SHARE * total)[found.group]
        # Numbers of groups are positions of cells: those of known clusters come after them.
        group = np.where(is_born, found.group, len(cells) + cells.cluster)
        self._assign(found._replace(group=group))
        self._count_recent(nearest_of_latest(self._block.points[self._counted :], cells, centres))
        self._gathered = self._gathered_now()

    def _partition(self, centres: Located, remain_apart: RemainApart) -> Partition:
        """The groups of the cells, whose `centres` are in their frame."""
        cells, identities = self._cells, self._identities
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

    def _assign(self, found: Partition) -> None:
        """Give the groups their identities, and the cells their core distances."""
        cells, identities, readings = self._cells, self._identities, float(self._readings)
        before = self._shown()
        identities.assign(cells, found, readings)
        identities.settle(readings)
        cells.core = np.where(np.isfinite(found.cores), found.cores, 0.0)
        # What is shown as another cluster than before has been told apart.
        cells.settle(self._shown() != before)

    def _gathered_now(self) -> float:
        """Independent readings that have come near to each other where there had been none."""
        cells = self._cells
        new = np.flatnonzero(cells.place == GATHERED)
        return (
            float((cells.mass[new] / self._identities.slow_dependence(cells.cluster[new])).sum()) if len(new) else 0.0
        )

    def _count_recent(self, near: Ints) -> None:
        """Count the readings of the block that have not been counted; `near`: the nearest cell of each of them."""
        shown, mass = self._identities.shown(self._cells.cluster[near]), self._block.mass[self._counted :]
        self._identities.count_recent(shown, mass)
        self._counted += len(mass)

    def _shown(self) -> Ints:
        return self._identities.shown(self._cells.cluster)

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) -> (n,) cluster of the nearest cell as its number in the snapshot; -1 before anything is learnt,
        and with the option `noise` for rows that belong to no cluster.

        `identities` has the identity of each number. Raises `InvalidData`.
        """
        _, cluster = np.unique(self._shown(), return_inverse=True)
        cluster = cluster.astype(np.int64)
        return cluster_of_nearest(check_rows(rows, self._width), self._cells.centres, cluster, self._reach(cluster))

    def _reach(self, cluster: Ints) -> Floats:
        """(k,) the cluster of each cell -> (k,) the distance from which on rows belong to none."""
        if self.options.noise:
            return reaches(self._cells, cluster, self._first_new)
        return np.full(len(cluster), EVERYWHERE)

    def snapshot(self) -> Arrays:
        """The `SNAPSHOT` arrays, as copies."""
        cells = self._cells
        identity, cluster = np.unique(self._shown(), return_inverse=True)
        facts = [self._identities.clusters[one] for one in identity.tolist()]
        centre_mass: Floats = np.bincount(cluster, weights=cells.mass, minlength=len(identity)).astype(np.float64)
        centre = _mean(cells.centres, cells.mass, cluster, centre_mass)
        # In units of the range, because the squares of large numbers overflow.
        scale = np.abs(cells.centres - centre[cluster]).max(axis=0, initial=0.0)
        scale[scale == 0.0] = 1.0
        gaps = ((cells.centres - centre[cluster]) / scale) ** 2
        return {
            "cell_id": cells.ids.copy(),
            "cell": cells.centres.copy(),
            "mass": cells.mass.copy(),
            "cluster": cluster.astype(np.int64),
            "reach": self._reach(cluster),
            "identity": identity,
            "centre": centre,
            "centre_mass": centre_mass,
            "spread": np.sqrt(_mean(gaps, cells.mass, cluster, centre_mass)) * scale,
            "recent": np.array([one.recent for one in facts], dtype=np.float64),
            "active": np.array([one.active for one in facts], dtype=np.bool_),
            "parent": np.array([NO_PARENT if one.appeared else one.parent for one in facts], dtype=np.int64),
            "since": np.array([one.since for one in facts], dtype=np.int64),
            "unresolved": np.full(int(self._unresolved > 0), self._unresolved, dtype=np.int64),
        }

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        return {
            **self._saved_identity(),
            "readings": self._readings,
            "rebuilt": self._rebuilt,
            "counted": self._counted,
            "gathered": self._gathered,
            "looks": self._looks,
            "first_new": self._first_new,
            "places": self._places,
            "unresolved": self._unresolved,
            **sketch_state("block", self._block),
            "block_time": self._block_time.copy(),
            **self._cells.state(),
            **self._identities.state(),
            **self._dependence.state(),
            **self._shares.state(),
        }

    def _restore_from(self, saved: StateReader, width: int) -> None:
        self._readings, self._rebuilt = saved.read_int("readings"), saved.read_int("rebuilt")
        saved.check(self._rebuilt <= self._readings, "the tree was rebuilt after readings not yet absorbed")
        self._gathered, self._looks = saved.read_float("gathered"), saved.read_int("looks")
        saved.check(self._looks <= LOOKS_MAX, f"looks must be at most {LOOKS_MAX}")
        self._first_new, self._counted = saved.read_int("first_new"), saved.read_int("counted")
        self._places, self._unresolved = saved.read_int("places", least=1), saved.read_int("unresolved")
        self._block = restored_sketch(saved, "block", width)
        self._block_time = saved.read_floats("block_time", (len(self._block.mass),))
        saved.check(self._counted <= len(self._block.mass), "more points of the block were counted than it has")
        self._cells = Cells.restored(saved, width)
        self._identities.restore_from(saved)
        self._dependence = Dependence.restored(saved, width)
        self._shares = ClientShares.restored(saved)
        known = set(self._identities.clusters)
        saved.check(known.issuperset(self._cells.cluster.tolist()), "a cell is part of a cluster that does not exist")


def _mean(values: Floats, mass: Floats, cluster: Ints, cluster_mass: Floats) -> Floats:
    """values (k, d), masses and clusters (k,), masses of clusters (c,) -> (c, d) weighted means."""
    shares = mass / cluster_mass[cluster]
    columns = [np.bincount(cluster, weights=column * shares, minlength=len(cluster_mass)) for column in values.T]
    return np.stack(columns, axis=1).astype(np.float64) if columns else np.empty((len(cluster_mass), 0))


def _sketch_of(contribution: Contribution, width: int | None) -> Sketch:
    """The checked arrays of one contribution. Raises `InvalidData`, which names the client."""
    try:
        points = check_rows(contribution.arrays["point"], width)
        counts = np.asarray(contribution.arrays["count"])
    except KeyError as missing:
        raise InvalidData(f"contribution of {contribution.client} lacks {missing}") from None
    except InvalidData as refused:
        raise InvalidData(f"contribution of {contribution.client}: {refused}") from None
    if counts.shape != (len(points),) or counts.dtype.kind not in "iu" or not (counts >= 1).all():
        raise InvalidData(f"contribution of {contribution.client}: count must be one whole number from 1 per point")
    return Sketch(points, counts.astype(np.float64))
