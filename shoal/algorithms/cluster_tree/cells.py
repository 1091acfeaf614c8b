"""The server's cells: weighted points, bounded in number, each with the cluster it was part of at
the last rebuild."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final, Self

import numpy as np

from shoal.algorithms.cluster_tree.sketches import SketchState
from shoal.kernels.arrays import Bools, Floats, Ints, different
from shoal.kernels.distance import nearest_centres, squared_by_differences, squared_to
from shoal.kernels.sketching import Sketch, empty_sketch, merge_targets, merged
from shoal.saved_state import FloatArray, IntArray, SavedState, require, state_type

RECENT_READINGS: Final = 500.0
"""readings of all clients in which the recent mass of a cell fades to 1/e"""
NEW_RATE: Final = 0.6
NEW_RATE_TIMES: Final = 1.3
"""share of recent readings, and multiple of the share in all cells, from which readings lie where
none were before"""
FREE_SHARE: Final = 0.25
"""share of `cells_max` that is freed at once: merging costs one table of distances, however much is
merged"""
LIMIT_STEP: Final = 1.25
"""factor by which the limit of a cell's mass is raised where no cells can be merged below it: in
many features most pairs of near cells are soon too heavy, and cells of twice the limit would be
denser than the readings they stand for"""
MANY_PARTS: Final = 2.0
"""share of the recent readings, in equal parts, from which a cluster may be many that are not yet
distinguished"""
MASS_MIN: Final = 0.1
"""mass, in readings, below which a cell is removed"""
KNOWN: Final = 0
STRAY: Final = 1
GATHERED: Final = 2
"""origins of the first reading of a cell: where readings had been; far from all; or far, and near
another such one"""
FAR_CORES: Final = 2.0
"""core distances from the nearest cell beyond which no readings had been"""


@state_type
class CellsState(SavedState):
    """Saved cells, as `Cells` describes them."""

    sketch: SketchState
    recent: Annotated[Floats, FloatArray("k")]
    cluster: Annotated[Ints, IntArray("k", least=-1)]
    cell_id: Annotated[Ints, IntArray("k")]
    core: Annotated[Floats, FloatArray("k")]
    place: Annotated[Ints, IntArray("k")]
    created: int

    def check(self) -> None:
        require(len(self.recent) == len(self.sketch.mass), "there are not as many cells as points")
        require(bool((self.recent >= 0).all()), "a recent mass is negative")
        require(bool((np.diff(self.cell_id) > 0).all()), "cell_id does not ascend")
        require(int(self.cell_id.max(initial=-1)) < self.created, "a cell has an id not yet given")
        require(bool((self.core >= 0).all()), "a core distance is negative")
        is_known_kind = np.isin(self.place, (KNOWN, STRAY, GATHERED))
        require(bool(is_known_kind.all()), "place has an unknown kind")


@dataclass
class Cells:
    """k cells in the order in which their first reading came."""

    centres: Floats
    """(k, d)"""
    mass: Floats
    """(k,) readings that still count"""
    recent: Floats
    """(k,) recent readings, older ones faded"""
    cluster: Ints
    """(k,) identity of the cluster at the last rebuild; of a newer cell that of the nearest one; -1
    before any"""
    ids: Ints
    """(k,) ascending; when a cell is merged into another, its id ends"""
    core: Floats
    """(k,) core distance when the tree was built last; of a newer cell that of the nearest one; 0:
    not known"""
    place: Ints
    """(k,) `KNOWN`, `STRAY` or `GATHERED`: whether its readings came where there had been none"""
    n_created: int = 0
    """cells created since the start"""

    @classmethod
    def empty(cls, width: int) -> Self:
        """No cells, of `width` features."""
        no_floats: Floats = np.empty(0)
        no_ints: Ints = np.empty(0, dtype=np.int64)
        return cls(*empty_sketch(width), no_floats, no_ints, no_ints, no_floats, no_ints)

    def __len__(self) -> int:
        return len(self.mass)

    @property
    def sketch(self) -> Sketch:
        """Centres and masses."""
        return Sketch(self.centres, self.mass)

    @property
    def new_rate(self) -> float:
        """The share of recent readings from which a place is one where none were before."""
        return max(NEW_RATE, NEW_RATE_TIMES * float(self.recent.sum() / self.mass.sum()))

    def add(self, points: Sketch, cells_max: int) -> None:
        """Make n > 0 points cells of the cluster of their nearest cell; then merge near cells if
        there are too many."""
        n = len(points.mass)
        mass = points.mass
        cluster: Ints = np.full(n, -1, dtype=np.int64)
        core = np.zeros(n)
        place = np.full(n, KNOWN, dtype=np.int64)
        if len(self):
            near = nearest_centres(points.points, self.centres)
            distance = np.sqrt(squared_to(points.points, self.centres[near]))
            cluster = self.cluster[near]
            core = self.core[near]
            # Before the first rebuild no core distance is known, and nothing is far.
            far = np.where(core > 0.0, FAR_CORES * core, np.inf)
            place = _places(points.points, self.place[near], distance, far)
        # Fades by the readings that have come, not by time: a quiet night ages nothing.
        self.recent *= math.exp(-float(mass.sum()) / RECENT_READINGS)
        self.centres, self.mass = self.sketch.with_more(points)
        self.recent = np.concatenate([self.recent, mass])
        self.cluster = np.concatenate([self.cluster, cluster]).astype(np.int64, copy=False)
        self.ids = np.concatenate([self.ids, self.n_created + np.arange(n)])
        self.core = np.concatenate([self.core, core])
        self.place = np.concatenate([self.place, place])
        self.n_created += n
        if len(self) > cells_max:
            self._merge(cells_max)

    def _merge(self, cells_max: int) -> None:
        """Merge near cells of the same cluster. No cell may become heavier than the neighbourhood
        it is counted in."""
        n_left = int((1.0 - FREE_SHARE) * cells_max)
        total = float(self.mass.sum())
        mass_max = merged_mass_max(total, cells_max)
        while len(self) > n_left:
            into = merge_targets(self.sketch, n_left, mass_max, self.cluster)
            stays = into == np.arange(len(into))
            if not stays.all():
                self._merge_into(into, stays)
            elif mass_max < total:
                mass_max *= LIMIT_STEP
            else:
                # Even any two of a cluster may be merged, and too many are left: there are more
                # clusters than cells, so the lightest cells are removed.
                # Stable, so that of equally heavy cells the older ones stay, on every machine.
                heaviest = np.argsort(-self.mass, kind="stable")[:n_left]
                self.keep(np.isin(np.arange(len(self)), heaviest))

    def _merge_into(self, into: Ints, stays: Bools) -> None:
        """Merge each cell into another one (k,), or into itself where it `stays` (k,)."""
        self.centres, self.mass = merged(self.sketch, into)
        recent = np.bincount(into, weights=self.recent, minlength=len(into))
        self.recent = recent[stays].astype(np.float64)
        self.cluster = self.cluster[stays]
        self.ids = self.ids[stays]
        self.core = self.core[stays]
        self.place = self.place[stays]

    def settle(self, known: Bools) -> None:
        """Take the places of some cells (k,) for known ones."""
        self.place[known] = KNOWN

    def keep(self, mask: Bools) -> None:
        """Remove the cells where `mask` (k,) is false."""
        self.centres, self.mass = self.sketch.kept(mask)
        self.recent = self.recent[mask]
        self.cluster = self.cluster[mask]
        self.ids = self.ids[mask]
        self.core = self.core[mask]
        self.place = self.place[mask]

    def limit_mass(self, cluster_mass_max: float, mass_max: float, dependence: Floats) -> bool:
        """Bound the mass of every cluster: newer readings displace the oldest ones of their own
        cluster. Whether any did.

        Each may have an equal part of `mass_max`, and one that receives more than `MANY_PARTS` of
        them its share of the recent readings: what is not distinguished yet needs as much memory
        for that as its parts will have. All have at most twice `mass_max`. `dependence` (k,): how
        many readings count as one. The bounds are in readings that are independent, so that of a
        slow sensor longer spans are remembered: a thousand of its readings may all come from one
        night.
        """
        present, place = different(self.cluster)
        if not len(present):
            return False
        independent = np.bincount(place, weights=self.mass / dependence)
        recent = np.bincount(place, weights=self.recent)
        # The floor divides by no zero where all that was recent has faded.
        equal = 1.0 / len(present)
        share = recent / max(float(recent.sum()), 1e-300)
        part = np.where(share > MANY_PARTS * equal, share, equal)
        allowed = np.minimum(cluster_mass_max, mass_max * part)
        self.mass = self.mass * np.minimum(1.0, allowed / independent)[place]
        self.keep(self.mass > MASS_MIN)
        return bool((independent > allowed).any())

    def state(self) -> CellsState:
        return CellsState(
            sketch=SketchState.of(self.sketch),
            recent=self.recent,
            cluster=self.cluster,
            cell_id=self.ids,
            core=self.core,
            place=self.place,
            created=self.n_created,
        )

    @classmethod
    def restored(cls, saved: CellsState) -> Self:
        """The cells of a saved state."""
        return cls(
            *saved.sketch.restored(),
            saved.recent,
            saved.cluster,
            saved.cell_id,
            saved.core,
            saved.place,
            saved.created,
        )


def _places(points: Floats, nearest_place: Ints, distance: Floats, far: Floats) -> Ints:
    """points (n, d), place of and distance from each one's nearest cell, (n,) what is far there ->
    (n,) their places.

    A reading far from every cell, or whose nearest cell is such a reading, came where there had
    been none. It is a stray until another one comes near it.
    """
    is_new = (nearest_place != KNOWN) | (distance > far)
    place = np.where(is_new, STRAY, KNOWN).astype(np.int64)
    new = np.flatnonzero(is_new)
    if len(new):
        apart = squared_by_differences(points[new], points[new])
        # A point is not near itself.
        np.fill_diagonal(apart, np.inf)
        is_near = apart.min(axis=1) <= far[new] ** 2
        is_near |= (nearest_place[new] != KNOWN) & (distance[new] <= far[new])
        place[new[is_near]] = GATHERED
    return place


def merged_mass_max(total: float, cells_max: int) -> float:
    """The mass up to which cells are merged, of a mass of `total` in all."""
    # Two fifths of the readings within a core distance (`RESOLUTION`): a cell of as many would be a
    # neighbourhood by itself, and denser than all around it. Where all cells are full twice their
    # mean mass must be allowed, and two single readings always, or nothing could be merged.
    return max(0.2 * math.sqrt(total), 2.0 * total / cells_max, 2.0)
