"""The test of gaps: whether an empty stretch beside a small group is too long to be chance.

It finds what the test of densities is too coarse for: a few readings that are close together and
far from all others, fewer than lie within a core distance.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import numpy as np

from shoal.kernels.arrays import Floats, Ints, Singles
from shoal.kernels.density_tree import median_radius

OWN_SHARE: Final = 0.75
"""share of a small group's readings by which its spread is measured, so that some strays do not
count"""
ALONE: Final = 5.0
"""gap, in core distances, beside which `FEW_READINGS` readings are significant by 4.5 standard
deviations"""
EMPTIER: Final = 2.0
"""ratio of the two core distances of a cell from which it may be alone"""
LEAST_CHANCE: Final = 1e-300
"""smaller chances are not told apart"""


def cores_of_few(squared: Singles, cores: Singles, near: Singles) -> Singles:
    """Squared distances (k, k), squared core distances (k,) -> the same, smaller for cells that are
    alone.

    `near` (k,): squared core distances for as few readings as a group must have.

    A group of fewer readings than lie within a core distance would not be a group: each of its
    cells reaches across the gap. So within the core distance of a cell that is alone lie few
    readings. A cell is alone if one of those few has its own few within a fifth of the cell's core
    distance.
    """
    # Few cells can be alone: most core distances are not five times the smallest.
    maybe = np.flatnonzero((cores > EMPTIER**2 * near) & (cores > ALONE**2 * near.min()))
    densest = np.where(squared[maybe] <= near[maybe, None], near, np.float32(np.inf)).min(axis=1)
    alone = maybe[cores[maybe] > ALONE**2 * densest]
    reduced = cores.copy()
    reduced[alone] = near[alone]
    return reduced


def spread(
    group: Ints, mass: Floats, squared: Singles, cores: Singles, within: float, few: float
) -> tuple[float, float]:
    """-> a number of readings of a group of n > 1 cells, and the distance from its median one
    within which they lie.

    `mass` and `cores` (k,) are those of all cells, `within` the readings within a core distance.
    The readings of merged cells count only as far as there are cells: of n equal ones, n readings.
    """
    own = mass[group]
    total = float(own.sum())
    readings = min(within, max(few, OWN_SHARE * total))
    # A core distance of a cell in a light group reaches beyond the group: its own radii do not.
    is_light = total < 2.0 * within
    radius, next_cell = median_radius(squared, group, own, cores, readings, total / 2, is_light)
    # The readings of a merged cell may be as far apart as it is from the next one.
    distance = math.sqrt(max(radius, next_cell))
    return min(readings, total**2 / float(own @ own)), distance


def gap_significance(readings: float, distance: float, gap: float) -> float:
    """Number of standard deviations by which an empty gap is too long to be chance.

    `readings` independent readings lie within a distance of a place, and none in a row of such
    places as long as the gap. Were all equally dense, each reading would be in the first one with a
    chance of 1 / (1 + places). The significance is that of a normal variable with the same chance.
    0 for a gap in which there is no room for a place.
    """
    if distance <= 0.0 or gap < 2.0 * distance:
        return 0.0
    chance = (1.0 + gap / (2.0 * distance)) ** -readings
    return -NormalDist().inv_cdf(min(0.5, max(LEAST_CHANCE, chance)))
