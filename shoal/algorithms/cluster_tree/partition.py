"""The groups of the server's cells: their spanning tree, cut where both sides are denser.

Source: the tree is that of HDBSCAN (Campello, Moulavi and Sander 2013); each join is tested for
significance in place of its selection of clusters by stability.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.cluster_tree.cells import Cells
from shoal.algorithms.cluster_tree.gaps import cores_of_few
from shoal.algorithms.cluster_tree.joining import RECENT_MIN, Joining, RemainApart, Weights
from shoal.kernels.arrays import Bools, Floats, Ints, Singles, different
from shoal.kernels.density_tree import Neighbours, mass_around, spanning_tree
from shoal.kernels.sketching import Located, squared_among

FEW_READINGS: Final = 10.0
"""independent readings from which a group is tested by its gap: the spread of fewer is hardly
known"""
MASS_WITHIN_MIN: Final = 20.0
"""smallest number of readings within a core distance: a smaller count is not nearly normal"""
RESOLUTION: Final = 0.5
"""readings within a core distance, as a multiple of the square root of all readings"""
LEFT_SIGNIFICANCE: Final = 2.0
"""standard deviations by which a place must receive fewer readings than before, to have been
left"""


class Partition(NamedTuple):
    """The groups of k cells."""

    group: Ints
    """(k,) equal within a group"""
    significance: dict[int, float]
    """lowest significance of the refused joins, by each group that was kept apart from another"""
    cores: Floats
    """(k,) core distances, in units of the rows; infinite where there are too few readings"""
    places: int = 1
    """places between which there is a gap, whether or not they are significantly apart"""
    present: Floats | None = None
    """(k,) share of the mass of each cell that counts; None: all of all"""


def partition(
    cells: Cells,
    centres: Located,
    active: Bools,
    settled: Bools,
    dependence: Floats,
    slow_dependence: Floats,
    split_significance: float,
    remain_apart: RemainApart,
) -> Partition:
    """cells, their centres, (k,) whether a cell's cluster is active, (k,) its dependence -> groups
    of cells.

    Dependence: how many readings count as one; `slow_dependence` (k,): over thousands of readings.
    `settled` (k,): whether its cluster is shown as itself, and nothing else as it; a settled
    cluster that receives no readings remains as it is. A join within one known cluster is refused
    from `split_significance` on, a join of two known clusters when `remain_apart` is true.
    """
    k = len(cells)
    total = float(cells.mass.sum())
    mean = float(cells.mass @ dependence) / total if k else 1.0
    within = max(MASS_WITHIN_MIN, RESOLUTION * math.sqrt(total * math.sqrt(mean)))
    few = FEW_READINGS * mean
    # With no more readings than two neighbourhoods there is no place outside of one to compare it
    # with.
    if k < 3 or total < 2.0 * within:
        return Partition(np.zeros(k, dtype=np.int64), {}, np.full(k, np.inf))
    squared = squared_among(centres.points)
    neighbours = Neighbours(squared)
    cores = _cores(squared, neighbours, cells.mass, within, few)
    present = still_present(cells, active, squared, cores, dependence)
    mass = cells.mass * present
    if (present < 1.0).any():
        cores = _cores(squared, neighbours, mass, within, few)
    # These keep their groups and are no part of the tree: a path through them would join what lies
    # at their two ends.
    unchanged = settled & ~receives_readings(cells)
    edges, lengths = _tree_of(np.flatnonzero(~unchanged), squared, cores)
    weights = Weights(mass, cells.recent, dependence, slow_dependence, cells.mass, cells.cluster)
    joining = Joining(
        weights, centres.points, squared, cores, within, few, split_significance, remain_apart
    )
    # Shortest joins first, as in HDBSCAN; equal lengths in the order of the tree, so that a rebuild
    # joins alike.
    order = np.argsort(lengths, kind="stable")
    group, significance = joining.join(edges[order], lengths[order])
    _, first, known = np.unique(cells.cluster[unchanged], return_index=True, return_inverse=True)
    group[unchanged] = np.flatnonzero(unchanged)[first][known]
    distances = np.sqrt(cores.astype(np.float64)) * centres.frame.scale
    return Partition(group, significance, distances, 1 + joining.gaps, present)


def _cores(
    squared: Singles, neighbours: Neighbours, mass: Floats, within: float, few: float
) -> Singles:
    """(k,) squared core distances: around each cell the distance within which `within` readings
    lie, for cells that are alone `few`."""
    if few >= within:
        return np.asarray(neighbours.core_distances(mass, [within])[0])
    return cores_of_few(squared, *neighbours.core_distances(mass, [within, few]))


def receives_readings(cells: Cells) -> Bools:
    """(k,) whether a cell's cluster has had more than a few recent readings.

    Of a cluster without, nothing has been learnt. With the readings of all others the
    neighbourhoods grow, and it would become too light to be told from the nearest one: it would end
    without a reading that says so.
    """
    _, place = different(cells.cluster)
    return (np.bincount(place, weights=cells.recent) > RECENT_MIN)[place]


def _tree_of(tested: Ints, squared: Singles, cores: Singles) -> tuple[Ints, Singles]:
    """Edges (t - 1, 2) and squared lengths (t - 1,) of the spanning tree of t of the k cells."""
    if len(tested) == len(cores):
        return spanning_tree(squared, cores)
    if len(tested) < 2:
        return np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32)
    among_tested = np.ascontiguousarray(squared[np.ix_(tested, tested)])
    edges, lengths = spanning_tree(among_tested, cores[tested])
    return tested[edges], lengths


def still_present(
    cells: Cells, active: Bools, squared: Singles, cores: Singles, dependence: Floats
) -> Floats:
    """squared distances (k, k); squared core distances, activity, dependence (k,) -> (k,) share of
    mass that counts.

    1 where a cluster still receives readings, or where it is quiet as a whole. Where a cluster that
    is active elsewhere receives significantly fewer readings than before, within twice the core
    distance, it has left: its old readings must neither join two parts that have moved away from
    each other, nor keep two apart that have met. A quiet cluster has not moved: what appears beside
    it is a new one. So readings where none were before do not count as those of a cluster that is
    active elsewhere.
    """
    if not active.any():
        return np.ones(len(cells))
    mass = cells.mass
    recent = cells.recent
    # Within twice the core distance: the distances are squared.
    mass_near, recent_near = mass_around(squared, 4.0 * cores, [mass, recent])
    known = recent_near < cells.new_rate * mass_near
    _, place = different(cells.cluster)
    known_recent = np.bincount(place, weights=recent * known)
    known_mass = np.bincount(place, weights=mass * known)
    # The floor: a cluster without known cells has no rate, and 0 / 0 is none either.
    rate = known_recent / np.maximum(known_mass, 1e-30)
    (expected,) = mass_around(squared, 4.0 * cores, [mass * rate[place]])
    spread = np.sqrt(expected * dependence)
    has_left = active & (expected - recent_near > LEFT_SIGNIFICANCE * spread)
    # Only what a cluster has left is divided, and there more is expected than came: the floor
    # avoids a warning for the others.
    return np.where(has_left, recent_near / np.maximum(expected, 1e-30), 1.0).astype(np.float64)
