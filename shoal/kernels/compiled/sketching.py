"""The pairs of near points that may be merged, and the merging, as in `shoal.kernels.sketching`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.groups import root_of

TABLE = types.Array(types.float32, 2, "C", readonly=True)
BITS = types.Array(types.int32, 2, "C", readonly=True)
FLOATS = types.Array(types.float64, 1, "C", readonly=True)
POINTS = types.Array(types.float64, 2, "C", readonly=True)
PLACES = types.Array(types.int64, 1, "C", readonly=True)
PAIRS = types.void(TABLE, BITS, PLACES, FLOATS, types.float64, types.int64[:, ::1], types.int64[:, ::1])
UNITE = types.void(PLACES, types.int64[:, ::1], types.int64, types.float64, types.float64[::1], types.int64[::1])
MERGE = types.int64(POINTS, FLOATS, PLACES, types.float64[:, ::1], types.float64[::1])
CHUNK = 32
"""distances of which the least is found before they are looked at one by one"""


@njit(forceinline=True)
def find_nearest(squared: Any, bits: Any, own: Any, groups: Any, tie: Any, near: Any, far: Any) -> None:
    """Set `near` (q,) to the nearest other points of the same group, the first of a tie first, and `far` (q,) to their
    distances²; infinite: there is none. `bits` (n,): those of the distances² `squared` (n,), whose order they have."""
    n, q = len(squared), len(near)
    far[:], near[:] = np.float32(math.inf), 0
    far_bits = far.view(np.int32)
    for start in range(0, n, CHUNK):
        part, numbers, least = squared[start : start + CHUNK], bits[start : start + CHUNK], far_bits[q - 1]
        for place in range(len(numbers)):
            least = min(least, numbers[place])
        if least == far_bits[q - 1]:
            continue
        for place in range(len(part)):
            other, last = start + place, q - 1
            distance = np.float32(np.float64(part[place]) + (own ^ other) * tie)
            if not distance < far[last] or other == own or groups[other] != groups[own]:
                continue
            while last > 0 and distance < far[last - 1]:
                far[last], near[last] = far[last - 1], near[last - 1]
                last -= 1
            far[last], near[last] = distance, other


def pairs_kernel(sources: str) -> Any:
    """squared (n, n), its bits, groups (n,), masses (n,), what a tie adds for the lowest bit -> sets two tables (n, q).

    `near`: the nearest others of each; `keys`: the bits of what merging each pair adds, and the number of the pair.
    """

    @njit(PAIRS, cache=True, error_model="numpy")
    def near_pairs(squared: Any, bits: Any, groups: Any, masses: Any, tie: Any, near: Any, keys: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n, q = near.shape
        far = np.empty(q, np.float32)
        far_bits = far.view(np.int32)
        for own in range(n):
            find_nearest(squared[own], bits[own], own, groups, tie, near[own], far)
            for place in range(q):
                mass, others = masses[own], masses[near[own, place]]
                far[place] = np.float32(np.float64(far[place]) * (mass * others / (mass + others)))
                keys[own, place] = (np.int64(far_bits[place]) << 32) | (own * q + place)

    return near_pairs


def unite_kernel(sources: str) -> Any:
    """Pairs (p,) by number in the order of merging, near (n, q), points to merge, largest mass, masses (n,) -> sets
    `root` (n,) to the lowest position of those that each is merged with."""

    @njit(UNITE, cache=True, error_model="numpy")
    def unite(pairs: Any, near: Any, wanted: Any, mass_max: Any, mass: Any, root: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        q = near.shape[1]
        for pair in pairs:
            if wanted <= 0:
                break
            a, b = root_of(root, pair // q), root_of(root, near[pair // q, pair % q])
            if a != b and mass[a] + mass[b] <= mass_max:
                low, high = min(a, b), max(a, b)
                root[high] = low
                mass[low] += mass[high]
                wanted -= 1
        for at in range(len(root)):
            root[at] = root[root[at]]

    return unite


def merge_kernel(sources: str) -> Any:
    """points (n, d), masses (n,), into (n,) -> sets the first of `merged` (n, d) and `mass` (n,); returns how many."""

    @njit(MERGE, cache=True, error_model="numpy")
    def merge(points: Any, masses: Any, into: Any, merged: Any, mass: Any) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        place, n = np.empty(len(into), np.int64), 0
        for at in range(len(into)):
            if into[at] == at:
                place[at], mass[n], merged[n] = n, 0.0, 0.0
                n += 1
            # A point is merged into one that stands before it.
            mass[place[into[at]]] += masses[at]
        for at in range(len(into)):
            to = place[into[at]]
            share = masses[at] / mass[to]
            for feature in range(points.shape[1]):
                merged[to, feature] += points[at, feature] * share
        return n

    return merge
