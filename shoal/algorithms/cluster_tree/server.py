"""The server half of cluster_tree: cells, the tree over them, and clusters with lasting identities.

`predict` and `view` need a published snapshot alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.cluster_tree.cells import GATHERED, KNOWN, Cells
from shoal.algorithms.cluster_tree.client import ClusterTreeHalf, restored_sketch, sketch_state
from shoal.algorithms.cluster_tree.dependence import Dependence, nearest_of_latest
from shoal.algorithms.cluster_tree.identities import EARLY_READINGS, NO_PARENT, Identities
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
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import nearest
from shoal.kernels.sketching import Located, Sketch, empty_sketch, located


def predict(snapshot: Arrays, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) cluster of the nearest cell, -1 beyond its reach, and if the snapshot has
    no cell."""
    return cluster_of_nearest(rows, snapshot["cell"], snapshot["cluster"], snapshot["reach"])


def predictor(snapshot: Arrays) -> NearestPoint:
    """`predict` as plain data."""
    reach = snapshot["reach"]
    return NearestPoint(
        snapshot["cell"], snapshot["cluster"], reach=reach if (reach < EVERYWHERE).any() else None
    )


def cluster_of_nearest(rows: Rows, cells: Floats, cluster: Ints, reach: Floats) -> Ints:
    """rows (n, d), cells (k, d), their clusters and reaches (k,) -> (n,) cluster of the nearest
    cell, or -1."""
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


FEW_CLUSTERS = 20
"""clusters up to which the memory does not grow"""
UNRESOLVED = 1.2
"""places for each cluster from which some have not been told apart: a few may be parts of one
cluster"""
GATHERED_MIN = 10.0
GATHERED_MORE = 1.25
"""readings that have come near to each other where none had been, from which the tree is built
before it is due; and multiple of those when it was built last"""
BORN_SHARE = 0.5
"""share of such readings in a group from which it has been born since the last rebuild"""
LOOKS_MAX = 6
"""looks between two rebuilds at most; each rebuild allows for one more look"""


class ClusterTreeServer(ClusterTreeHalf):
    """Absorbs the weighted points of clients and finds their clusters. Options:
    `ClusterTreeOptions`.

    The tree is rebuilt after a fixed number of readings and never by the clock. So the state is a
    function of the contributions in their order; how they are grouped into calls makes no
    difference.
    """

    half = "cluster_tree server"

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
        self._block_time: Floats = np.empty(0)
        self._readings = 0
        self._rebuilt = 0
        self._counted = 0
        """points of the block that are in the recent readings of their clusters"""
        self._gathered = 0.0
        """readings where none had been, when the tree was built last"""
        self._looks = 0
        """looks that are left before the next rebuild is due"""
        self._first_new = 0
        """the id from which on a cell can be where no readings had been"""
        self._places = 1
        """places with gaps between them, when the tree was built last"""
        self._unresolved = 0
        """their number where it is more than the memory at its limit can tell apart, else 0"""

    @property
    def readings(self) -> int:
        """Readings absorbed."""
        return self._readings

    @property
    def unresolved(self) -> int:
        """Places with gaps between them, where they are more than the memory at its limit can tell
        apart; else 0."""
        return self._unresolved

    @property
    def identities(self) -> list[int]:
        """The identities shown, ascending: identity i of this list is cluster number i of the
        snapshot."""
        return [int(identity) for identity in np.unique(self._shown())]

    @property
    def active(self) -> list[int]:
        """The identities shown that are active, ascending."""
        known = self._identities.clusters
        return [
            identity for identity in self.identities if identity in known and known[identity].active
        ]

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
        self._block_time = np.concatenate(
            [self._block_time, np.cumsum(sketch.mass) / sketch.mass.sum()]
        )
        self._readings += int(sketch.mass.sum())
        if self._readings >= self._due_after(self._rebuilt):
            self.rebuild()
        # A quarter more than at the last build: strays that remain must not lead to a look at every
        # update.
        elif self._looks and self._gathered_now() >= max(
            GATHERED_MIN, GATHERED_MORE * self._gathered
        ):
            self._looks -= 1
            self._look()

    def _due_after(self, rebuilt: float) -> float:
        """The readings at which the rebuild after that at `rebuilt` is due."""
        # Early in a stream after every quarter more, so that there are clusters to see at once.
        return rebuilt + min(self.options.rebuild_readings, rebuilt / 4)

    def _growth(self) -> float:
        """Multiple of the memory for few clusters that is allowed for those that are known or to be
        told apart."""
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
            identities.count_received(
                cells, cells.cluster[near], self._block.mass, float(self._rebuilt)
            )
        self._review()
        self._block = empty_sketch(self._width or 0)
        self._block_time = np.empty(0)
        self._counted = 0
        dependence = identities.dependence(cells.cluster)
        growth = self._growth()
        is_full = cells.limit_mass(
            growth * self.options.cluster_mass_max, growth * self.options.mass_max, dependence
        )
        # Once full, a memory may have room again for a while: what it has lost is not known.
        is_full = is_full or self._unresolved > 0
        self._unresolved = self._places if is_full and self._is_crowded() else 0
        # What gathers slowly has until the rebuild after the next.
        cells.settle(cells.ids < self._first_new)
        self._first_new = cells.n_created
        self._rebuilt = self._readings
        self._looks, self._gathered = min(LOOKS_MAX, self._looks + 1), self._gathered_now()

    def _look(self) -> None:
        """Look for clusters that have been born since the last rebuild; what is known remains as it
        is."""
        cells = self._cells
        identities = self._identities
        readings = float(self._readings)

        def remain_apart(pair: Pair, significance: float) -> bool:
            return identities.may_remain_apart(pair, significance, readings)

        centres = located(cells.centres)
        found = self._partition(centres, remain_apart)
        total: Floats = np.bincount(found.group, weights=cells.mass).astype(np.float64)
        gathered = np.bincount(
            found.group, weights=cells.mass * (cells.place != KNOWN), minlength=len(total)
        )
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
        """Whether there are many places with gaps between them that have not been told apart."""
        return self._places > max(self._growth() * FEW_CLUSTERS, UNRESOLVED * len(self.identities))

    def _is_by_review(self) -> bool:
        """Whether parts of known clusters are shown at reviews only: not early, not before anything
        has been told apart, and not where much has not been."""
        is_early = self._due_after(self._readings) <= EARLY_READINGS
        return not is_early and len(self.identities) > 1 and not self._is_crowded()

    def _review(self) -> None:
        """Show what has been found by now, at the last rebuild before a review is due."""
        upto = self._due_after(self._readings)
        if upto > self._identities.next_review:
            before = self._shown()
            self._identities.review(upto)
            self._settle(before)

    def _assign(self, found: Partition) -> None:
        """Give the groups their identities, and the cells their core distances."""
        cells = self._cells
        before = self._shown()
        self._identities.assign(cells, found, float(self._readings), self._is_by_review())
        cells.core = np.where(np.isfinite(found.cores), found.cores, 0.0)
        self._settle(before)

    def _settle(self, before: Ints) -> None:
        """Decide what is shown from now on. What is shown as another cluster than `before` has been
        told apart."""
        self._identities.settle(float(self._readings))
        self._cells.settle(self._shown() != before)

    def _gathered_now(self) -> float:
        """Independent readings that have come near to each other where there had been none."""
        cells = self._cells
        new = np.flatnonzero(cells.place == GATHERED)
        return (
            float((cells.mass[new] / self._identities.slow_dependence(cells.cluster[new])).sum())
            if len(new)
            else 0.0
        )

    def _count_recent(self, near: Ints) -> None:
        """Count the readings of the block that have not been counted; `near`: the nearest cell of
        each of them."""
        shown = self._identities.shown(self._cells.cluster[near])
        mass = self._block.mass[self._counted :]
        self._identities.count_recent(shown, mass)
        self._counted += len(mass)

    def _shown(self) -> Ints:
        return self._identities.shown(self._cells.cluster)

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) -> (n,) cluster of the nearest cell as its number in the snapshot; -1 before
        anything is learnt, and with the option `noise` for rows that belong to no cluster.

        `identities` has the identity of each number. Raises `InvalidData`.
        """
        _, cluster = np.unique(self._shown(), return_inverse=True)
        cluster = cluster.astype(np.int64)
        return cluster_of_nearest(
            check_rows(rows, self._width), self._cells.centres, cluster, self._reach(cluster)
        )

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
        centre_mass: Floats = np.bincount(
            cluster, weights=cells.mass, minlength=len(identity)
        ).astype(np.float64)
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
            "parent": np.array(
                [NO_PARENT if one.appeared else one.parent for one in facts], dtype=np.int64
            ),
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
        self._readings = saved.read_int("readings")
        self._rebuilt = saved.read_int("rebuilt")
        saved.check(
            self._rebuilt <= self._readings, "the tree was rebuilt after readings not yet absorbed"
        )
        self._gathered = saved.read_float("gathered")
        self._looks = saved.read_int("looks")
        saved.check(self._looks <= LOOKS_MAX, f"looks must be at most {LOOKS_MAX}")
        self._first_new = saved.read_int("first_new")
        self._counted = saved.read_int("counted")
        self._places = saved.read_int("places", least=1)
        self._unresolved = saved.read_int("unresolved")
        self._block = restored_sketch(saved, "block", width)
        self._block_time = saved.read_floats("block_time", (len(self._block.mass),))
        saved.check(
            self._counted <= len(self._block.mass),
            "more points of the block were counted than it has",
        )
        self._cells = Cells.restored(saved, width)
        self._identities.restore_from(saved)
        self._dependence = Dependence.restored(saved, width)
        self._shares = ClientShares.restored(saved)
        known = set(self._identities.clusters)
        saved.check(
            known.issuperset(self._cells.cluster.tolist()),
            "a cell is part of a cluster that does not exist",
        )


def _mean(values: Floats, mass: Floats, cluster: Ints, cluster_mass: Floats) -> Floats:
    """values (k, d), masses and clusters (k,), masses of clusters (c,) -> (c, d) weighted means."""
    shares = mass / cluster_mass[cluster]
    columns = [
        np.bincount(cluster, weights=column * shares, minlength=len(cluster_mass))
        for column in values.T
    ]
    return (
        np.stack(columns, axis=1).astype(np.float64)
        if columns
        else np.empty((len(cluster_mass), 0))
    )


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
        raise InvalidData(
            f"contribution of {contribution.client}: count must be one whole number from 1 per point"
        )
    return Sketch(points, counts.astype(np.float64))
