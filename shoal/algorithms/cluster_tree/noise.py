"""Noise: rows in places much emptier than the cluster of their nearest cell."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.algorithms.cluster_tree.cells import GATHERED, Cells
from shoal.algorithms.streaming import MAGNITUDE_MAX
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import nearest

EVERYWHERE: Final = MAGNITUDE_MAX
"""reach beyond every distance, and yet one that a snapshot may hold"""
TAIL_POWER: Final = 6.0
EMPTIER_MIN: Final = 5.0
EMPTIER_MAX: Final = 12.0
"""a cell is noise if its core distance is this many times the median of its cluster: between the
two, the upper quartile over the median to the power `TAIL_POWER`, as clusters with long tails have
wide core distances of their own"""
REACH_MIN: Final = 3.0
"""smallest reach, as a multiple of the median core distance: in many features rows are far from
every cell"""


def reaches(cells: Cells, cluster: Ints, first_new: int) -> Floats:
    """k cells, (k,) the cluster of each -> (k,) distance from each, in units of the rows, from
    which on rows are noise.

    0 for a cell that is itself noise: one in a place that is much emptier than its cluster, or one
    that has come since the tree was built (ids from `first_new` on), beyond the reach of those
    before, and alone. `EVERYWHERE` where the tree has not been built yet.
    """
    reach = np.full(len(cells), EVERYWHERE)
    for number in np.unique(cluster).tolist():
        own = np.flatnonzero(cluster == number)
        median, upper = _quartiles(cells.core[own], cells.mass[own])
        if median > 0.0:
            # Beyond the largest ratio the power would only overflow.
            ratio = min(upper / median, EMPTIER_MAX)
            emptier = min(EMPTIER_MAX, max(EMPTIER_MIN, ratio**TAIL_POWER))
            farthest = max(REACH_MIN, emptier / 2.0) * median
            reach[own] = np.where(cells.core[own] > emptier * median, 0.0, farthest)
    is_new = cells.ids >= first_new
    new = np.flatnonzero(is_new)
    known = np.flatnonzero(~is_new)
    if len(new) and len(known):
        near, squared = nearest(cells.centres[new], cells.centres[known])
        is_alone = (cells.place[new] != GATHERED) & (cluster[new] == cluster[known[near]])
        reach[new[is_alone & (np.sqrt(squared) >= reach[known[near]])]] = 0.0
    return reach


def _quartiles(core: Floats, mass: Floats) -> tuple[float, float]:
    """Core distances and masses (n,) -> median and upper quartile of the distances, by mass."""
    # Stable, so that cells of equal core distance give the same quantiles on every processor.
    order = core.argsort(kind="stable")
    reached = mass[order].cumsum()
    at = np.searchsorted(reached, reached[-1] * np.array([0.5, 0.75]))
    median, upper = core[order[at]].tolist()
    return median, upper


def without_noise(cluster: Ints, squared: Floats, reach: Floats) -> Ints:
    """(n,) cluster and squared distance of each row's nearest cell, and its reach -> (n,) clusters,
    -1 for noise."""
    return np.where(np.sqrt(squared) < reach, cluster, -1)
