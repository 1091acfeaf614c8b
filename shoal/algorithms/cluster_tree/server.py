"""The server half of cluster_tree: cells, the tree over them, and clusters with lasting identities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.cluster_tree.cells import Cells
from shoal.algorithms.cluster_tree.client import check_width, restored_sketch, restored_width, sketch_state
from shoal.algorithms.cluster_tree.dependence import Dependence
from shoal.algorithms.cluster_tree.identities import NO_PARENT, Identities
from shoal.algorithms.cluster_tree.joining import Pair
from shoal.algorithms.cluster_tree.options import ClusterTreeOptions
from shoal.algorithms.cluster_tree.partition import partition
from shoal.algorithms.cluster_tree.snapshot import cluster_of_nearest
from shoal.algorithms.rows import check_rows
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, Contribution, State
from shoal.errors import InvalidData
from shoal.kernels.distance import Floats
from shoal.kernels.sketching import Positions, Sketch, empty_sketch, located

STATE_VERSION = 1


class ClusterTreeServer:
    """Absorbs the weighted points of clients and finds their clusters. Options: `ClusterTreeOptions`.

    The tree is rebuilt after a fixed number of readings and never by the clock. So the state is a function of the
    contributions in their order; how they are grouped into calls makes no difference.
    """

    half = "cluster_tree server"

    def __init__(self, dimensions: int | None = None, **options: Any) -> None:
        check_width(dimensions)
        self.options = ClusterTreeOptions.from_mapping(options)
        self._given_width = dimensions
        self._reset(dimensions)

    def _reset(self, width: int | None) -> None:
        options = self.options
        self._width = width
        self._cells = Cells.empty(width or 0)
        self._identities = Identities(options.confirm_readings, options.split_significance, options.keep_significance)
        self._dependence = Dependence(width or 0)
        self._block = empty_sketch(width or 0)
        self._block_time: Floats = np.empty(0)
        self._readings = 0
        self._rebuilt = 0

    @property
    def dimensions(self) -> int | None:
        """Features of a row; None before the first ones."""
        return self._width

    @property
    def readings(self) -> int:
        """Readings absorbed."""
        return self._readings

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
                checked.append(sketch)
        if checked and self._width is None:
            self._reset(width)
        for sketch in checked:
            self._absorb(sketch)

    def _absorb(self, sketch: Sketch) -> None:
        self._cells.add(sketch, self.options.cells_max)
        self._block = self._block.with_more(sketch)
        self._block_time = np.concatenate([self._block_time, np.cumsum(sketch.mass) / sketch.mass.sum()])
        self._readings += int(sketch.mass.sum())
        # Early in a stream after every quarter more, so that there are clusters to see at once.
        if self._readings - self._rebuilt >= min(self.options.rebuild_readings, self._rebuilt / 4):
            self.rebuild()

    def rebuild(self) -> None:
        """Build the tree and find the clusters anew. `absorb` calls it after every `rebuild_readings` readings."""
        cells, identities, readings = self._cells, self._identities, float(self._readings)

        def remain_apart(pair: Pair, significance: float) -> bool:
            return identities.remain_apart(pair, significance, readings)

        centres = located(cells.centres)
        found = partition(
            cells,
            centres,
            identities.active(cells.cluster),
            identities.settled(cells.cluster),
            identities.dependence(cells.cluster),
            identities.slow_dependence(cells.cluster),
            self.options.split_significance,
            remain_apart,
        )
        identities.assign(cells, found, readings)
        identities.settle(readings)
        if len(self._block.mass):
            near = self._dependence.compare(self._block, self._block_time, cells, centres, found.cores, identities)
            identities.count_recent(identities.shown(cells.cluster[near]), self._block.mass)
        self._block, self._block_time = empty_sketch(self._width or 0), np.empty(0)
        dependence = identities.dependence(cells.cluster)
        cells.limit_mass(self.options.cluster_mass_max, self.options.mass_max, dependence)
        self._rebuilt = self._readings

    def _shown(self) -> Positions:
        return self._identities.shown(self._cells.cluster)

    def predict(self, rows: ArrayLike) -> NDArray[np.int64]:
        """rows (n, d) -> (n,) cluster of the nearest cell as its number in the snapshot; -1 before anything is learnt.

        `identities` has the identity of each number. Raises `InvalidData`.
        """
        _, cluster = np.unique(self._shown(), return_inverse=True)
        return cluster_of_nearest(check_rows(rows, self._width), self._cells.centres, cluster.astype(np.int64))

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
            "identity": identity,
            "centre": centre,
            "centre_mass": centre_mass,
            "spread": np.sqrt(_mean(gaps, cells.mass, cluster, centre_mass)) * scale,
            "recent": np.array([one.recent for one in facts], dtype=np.float64),
            "active": np.array([one.active for one in facts], dtype=np.bool_),
            "parent": np.array([NO_PARENT if one.appeared else one.parent for one in facts], dtype=np.int64),
            "since": np.array([one.since for one in facts], dtype=np.int64),
        }

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        return {
            "version": STATE_VERSION,
            "half": self.half,
            "options": self.options.as_dict(),
            "width": self._width,
            "readings": self._readings,
            "rebuilt": self._rebuilt,
            **sketch_state("block", self._block),
            "block_time": self._block_time.copy(),
            **self._cells.state(),
            **self._identities.state(),
            **self._dependence.state(),
        }

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has changed."""
        saved = StateReader(state, STATE_VERSION, half=self.half, options=self.options.as_dict())
        fresh = type(self)(self._given_width, **self.options.as_dict())
        fresh._restore_from(saved)
        vars(self).update(vars(fresh))

    def _restore_from(self, saved: StateReader) -> None:
        width = restored_width(saved, self._given_width)
        self._reset(width)
        self._readings, self._rebuilt = saved.read_int("readings"), saved.read_int("rebuilt")
        saved.check(self._rebuilt <= self._readings, "the tree was rebuilt after readings not yet absorbed")
        self._block = restored_sketch(saved, "block", width or 0)
        self._block_time = saved.read_floats("block_time", (len(self._block.mass),))
        self._cells = Cells.restored(saved, width or 0)
        self._identities.restore_from(saved)
        self._dependence = Dependence.restored(saved, width or 0)
        known = set(self._identities.clusters)
        saved.check(known.issuperset(self._cells.cluster.tolist()), "a cell is part of a cluster that does not exist")


def _mean(values: Floats, mass: Floats, cluster: Positions, cluster_mass: Floats) -> Floats:
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
