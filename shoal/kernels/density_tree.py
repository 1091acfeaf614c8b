"""Density of weighted points by counting, and the tree in which HDBSCAN joins them (Campello, Moulavi, Sander 2013).

All distances are squared: what is compared here has the same order, and no root has to be taken of n² numbers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.distance import Floats
from shoal.kernels.sketching import Positions, Singles

SAMPLE_POINTS = 128
"""points of a group whose neighbours are counted, to find the median"""


def core_distances(squared: Singles, masses: Floats, mass_within: float) -> Singles:
    """squared distances (k, k), masses (k,) -> (k,) squared core distance: within it lies a mass of `mass_within`.

    The mass of a point counts half at its own distance and grows linearly between two neighbours, so that how the
    readings were cut into points matters little. Where there is less mass in all, the distance to the farthest point.
    """
    k = len(masses)
    cores = np.empty(k, dtype=np.float32)
    left, q = np.arange(k), min(k, 8 + int(2.5 * mass_within * k / max(float(masses.sum()), 1e-300)))
    while len(left):
        rows = squared if len(left) == k else squared[left]
        order = np.argpartition(rows, q - 1, axis=1)[:, :q] if q < k else np.argsort(rows, axis=1)
        near = np.take_along_axis(rows, order, axis=1)
        inner = near.argsort(axis=1)
        found, enough = _reached(
            np.take_along_axis(near, inner, axis=1), masses[np.take_along_axis(order, inner, axis=1)], mass_within
        )
        if q == k:
            enough[:] = True
        cores[left[enough]] = found[enough]
        left, q = left[~enough], min(k, 3 * q)
    return cores


def _reached(near: Singles, masses: Floats, wanted: float) -> tuple[Floats, NDArray[np.bool_]]:
    """ascending squared distances (n, q) and masses (n, q) -> (n,) where `wanted` is reached, (n,) whether it is."""
    held = np.cumsum(masses, axis=1) - masses / 2
    at = np.clip((held < wanted).sum(axis=1), 1, near.shape[1] - 1) if near.shape[1] > 1 else np.zeros(len(near), int)
    row = np.arange(len(near))
    low, high = held[row, at - 1], held[row, at]
    share = np.clip((wanted - low) / np.maximum(high - low, 1e-300), 0.0, 1.0)
    inner, outer = np.sqrt(near[row, at - 1]), np.sqrt(near[row, at])
    return (inner + share * (outer - inner)) ** 2, held[:, -1] >= wanted


def spanning_tree(squared: Singles, cores: Singles) -> tuple[Positions, Singles]:
    """squared distances (k, k), squared core distances (k,), k > 0 -> edges (k - 1, 2) and their lengths (k - 1,).

    The minimum spanning tree of mutual reachability, max(core, core, distance), by Prim, from the densest point.
    """
    k = len(cores)
    reach = np.maximum(squared, cores)
    np.maximum(reach, cores[:, None], out=reach)
    best, parent = np.full(k, np.inf, dtype=np.float32), np.zeros(k, dtype=np.int64)
    done = np.zeros(k, dtype=np.float32)  # infinite for points in the tree: no edge leads to them
    row, better = np.empty(k, dtype=np.float32), np.empty(k, dtype=np.bool_)
    edges, lengths = np.empty((k - 1, 2), dtype=np.int64), np.empty(k - 1, dtype=np.float32)
    here = int(cores.argmin())
    done[here] = np.inf
    for step in range(k - 1):
        np.maximum(reach[here], done, out=row)
        np.less(row, best, out=better)
        np.copyto(best, row, where=better)
        np.putmask(parent, better, here)
        here = int(best.argmin())
        edges[step, 0], edges[step, 1], lengths[step] = parent[here], here, best[here]
        best[here] = done[here] = np.inf
    return edges, lengths


def typical_mass(squared: Singles, own: Positions, masses: Floats, within: float) -> float:
    """The mass of the group `own` (m,) within the squared distance `within` of its median reading.

    It is computed from at most `SAMPLE_POINTS` points of the group, evenly chosen.
    """
    sample = own[:: -(-len(own) // SAMPLE_POINTS)]
    held = (squared[np.ix_(sample, own)] <= within).astype(np.float32) @ masses[own].astype(np.float32)
    order = held.argsort(kind="stable")
    upto = masses[sample[order]].cumsum()
    return float(held[order[np.searchsorted(upto, upto[-1] / 2)]])


def join_significance(typical: float, mass_within: float, dependence: float) -> float:
    """By how many standard deviations a side of a join is denser than the join.

    At the join's length the mass within is `mass_within` where the two sides meet, by definition of the core
    distance, and `typical` at the side's median reading. A count of n readings, of which `dependence` count as one,
    has a standard deviation of sqrt(n * dependence).
    """
    return (typical / mass_within - 1.0) * math.sqrt(mass_within / dependence)
