"""Which clusters the readings behind an update fell to, as far as the update shows it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.protocol.history import NO_CLUSTER

POINTS_MAX = 128
"""points of an update that are looked at: shares need no more"""


def attribute(
    readings: int, clusters: NDArray[np.int64], weights: NDArray[np.float64], of_number: Mapping[int, int]
) -> dict[int, int]:
    """identity -> readings: `readings` dealt out over the clusters (n,) of the update's points by their weights (n,).

    `of_number` is number -> identity; other numbers count as `NO_CLUSTER`. The parts are whole numbers whose sum is
    `readings`: each is the rounded share so far less the parts before it, in the order of identities.
    """
    largest = float(weights.max(initial=0.0))
    mass: defaultdict[int, float] = defaultdict(float)
    # Clients claim these weights: their sum must not overflow.
    for number, weight in zip(clusters.tolist(), (weights / (largest or 1.0)).tolist(), strict=True):
        mass[of_number.get(number, NO_CLUSTER)] += weight
    total = math.fsum(mass.values())
    if not 0 < total < math.inf:
        return {NO_CLUSTER: readings} if readings else {}
    parts, reached, given = {}, 0.0, 0
    for identity, part in sorted(mass.items()):
        reached += part
        upto = min(readings, round(readings * min(1.0, reached / total)))
        parts[identity], given = upto - given, upto
    parts[identity] += readings - given
    return {identity: part for identity, part in parts.items() if part}


def thinned(
    points: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most `POINTS_MAX` of the points (n, d) and their weights (n,), evenly spaced in their order."""
    if len(points) <= POINTS_MAX:
        return points, weights
    kept = np.linspace(0, len(points) - 1, POINTS_MAX).astype(np.int64)
    return points[kept], weights[kept]


def without_small(counts: Mapping[int, int], most: int, rest: int) -> dict[int, int]:
    """The `most` largest counts by key; the others are added up under the key `rest`."""
    if len(counts) <= most:
        return dict(counts)
    order: Sequence[int] = sorted(counts, key=lambda key: (key != rest, -counts[key], key))
    kept = {key: counts[key] for key in order[: most - 1]}
    kept[rest] = kept.get(rest, 0) + sum(counts[key] for key in order[most - 1 :])
    return kept
