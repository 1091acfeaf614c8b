"""Groups of cells: the spanning tree is cut where both sides of a join are denser than the join.

As in HDBSCAN, groups grow along the minimum spanning tree of mutual reachability, the shortest edges first. HDBSCAN
then condenses the tree by a smallest cluster size and picks the clusters that persist. Here each join of two groups is
tested when its edge comes: it is refused, and the two sides are clusters of their own, when the readings of each side
lie significantly denser than where the sides meet. A small group is told by the gap around it (`gaps`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.cluster_tree.cells import Cells
from shoal.algorithms.cluster_tree.gaps import FEW_READINGS, cores_of_few
from shoal.algorithms.cluster_tree.joining import RECENT_MIN, Joining, RemainApart, Weights
from shoal.kernels.density_tree import Neighbours, mass_around, spanning_tree
from shoal.kernels.distance import Floats
from shoal.kernels.sketching import Located, Positions, Singles, squared_among

MASS_WITHIN_MIN = 20.0
"""smallest number of readings within a core distance: a smaller count is not nearly normal"""
RESOLUTION = 0.5
"""readings within a core distance, as a multiple of the square root of all readings"""
LEFT_SIGNIFICANCE = 2.0
"""standard deviations by which a place must receive fewer readings than before, to have been left"""


class Partition(NamedTuple):
    """The groups of k cells."""

    group: Positions
    """(k,) equal within a group"""
    significance: dict[int, float]
    """of each group that was kept apart from another, the lowest significance of its refused joins"""
    cores: Floats
    """(k,) core distances, in units of the rows; infinite where there are too few readings"""


def partition(
    cells: Cells,
    centres: Located,
    active: NDArray[np.bool_],
    settled: NDArray[np.bool_],
    dependence: Floats,
    slow_dependence: Floats,
    split_significance: float,
    remain_apart: RemainApart,
) -> Partition:
    """cells, their centres, (k,) whether a cell's cluster is active, (k,) its dependence -> groups of cells.

    Dependence: how many readings count as one; `slow_dependence` (k,): over thousands of readings. `settled` (k,):
    whether its cluster is shown as itself, and nothing else as it; a settled cluster that receives no readings remains
    as it is. A join within one known cluster is refused from `split_significance` on, a join of two known clusters when
    `remain_apart` is true.
    """
    k, total = len(cells), float(cells.mass.sum())
    mean = float(cells.mass @ dependence) / total if k else 1.0
    within, few = max(MASS_WITHIN_MIN, RESOLUTION * math.sqrt(total * math.sqrt(mean))), FEW_READINGS * mean
    if k < 3 or total < 2.0 * within:
        return Partition(np.zeros(k, dtype=np.int64), {}, np.full(k, np.inf))
    squared = squared_among(centres.points)
    neighbours = Neighbours(squared)
    cores = _cores(squared, neighbours, cells.mass, within, few)
    present = still_present(cells, active, squared, cores, dependence)
    mass = cells.mass * present
    if (present < 1.0).any():
        cores = _cores(squared, neighbours, mass, within, few)
    unchanged = settled & ~receives_readings(cells)
    edges, lengths = _tree_of(np.flatnonzero(~unchanged), squared, cores)
    weights = Weights(mass, cells.recent, dependence, slow_dependence, cells.mass, cells.cluster)
    joining = Joining(weights, squared, cores, within, few, split_significance, remain_apart)
    order = np.argsort(lengths, kind="stable")
    group, significance = joining.join(edges[order], lengths[order])
    _, first, known = np.unique(cells.cluster[unchanged], return_index=True, return_inverse=True)
    group[unchanged] = np.flatnonzero(unchanged)[first][known]
    return Partition(group, significance, np.sqrt(cores.astype(np.float64)) * centres.frame.scale)


def _cores(squared: Singles, neighbours: Neighbours, mass: Floats, within: float, few: float) -> Singles:
    if few >= within:
        return np.asarray(neighbours.core_distances(mass, [within])[0])
    return cores_of_few(squared, *neighbours.core_distances(mass, [within, few]))


def receives_readings(cells: Cells) -> NDArray[np.bool_]:
    """(k,) whether a cell's cluster has had more than a few readings lately.

    Of a cluster without, nothing has been learnt. With the readings of all others the neighbourhoods grow, and it would
    become too light to be told from the nearest one: it would end without a reading that says so.
    """
    _, place = np.unique(cells.cluster, return_inverse=True)
    return (np.bincount(place, weights=cells.recent) > RECENT_MIN)[place]


def _tree_of(tested: Positions, squared: Singles, cores: Singles) -> tuple[Positions, Singles]:
    """Edges (t - 1, 2) and squared lengths (t - 1,) of the spanning tree of t of the k cells."""
    if len(tested) == len(cores):
        return spanning_tree(squared, cores)
    if len(tested) < 2:
        return np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32)
    edges, lengths = spanning_tree(np.ascontiguousarray(squared[np.ix_(tested, tested)]), cores[tested])
    return tested[edges], lengths


def still_present(
    cells: Cells, active: NDArray[np.bool_], squared: Singles, cores: Singles, dependence: Floats
) -> Floats:
    """squared distances (k, k); squared core distances, activity, dependence (k,) -> (k,) share of mass that counts.

    1 where a cluster still receives readings, or where it is quiet as a whole. Where a cluster that is active elsewhere
    receives significantly fewer readings than before, within twice the core distance, it has left: its old readings
    must neither join two parts that have moved away from each other, nor keep two apart that have met. A quiet cluster
    has not moved: what appears beside it is a new one. So readings where none were before do not count as those of a
    cluster that is active elsewhere.
    """
    if not active.any():
        return np.ones(len(cells))
    mass, recent = cells.mass, cells.recent
    all_around, held = mass_around(squared, 4.0 * cores, [mass, recent])
    known = held < cells.new_rate * all_around
    _, place = np.unique(cells.cluster, return_inverse=True)
    rate = np.bincount(place, weights=recent * known) / np.maximum(np.bincount(place, weights=mass * known), 1e-30)
    (expected,) = mass_around(squared, 4.0 * cores, [mass * rate[place]])
    left = active & (expected - held > LEFT_SIGNIFICANCE * np.sqrt(expected * dependence))
    return np.where(left, held / np.maximum(expected, 1e-30), 1.0).astype(np.float64)
