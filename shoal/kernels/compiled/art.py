"""The competition of CA+ and CAEFC, compiled: the steps of `shoal.algorithms.fcac.art_network`, and its bits.

The nodes are a tuple of arrays that have room for more: weights (capacity, d), sigmas, counts, stamps and ids.
Functions of every input get arrays one by one: to take them from a tuple costs as much as the arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from shoal.kernels.bandwidth import SIGMA_MIN, ZERO_SPREAD
from shoal.kernels.compiled.intrinsics import exp_in_place, total
from shoal.kernels.compiled.places import (
    BANDWIDTH,
    COUNTER,
    LAST_SIGMA,
    MEAN_SIGMA,
    N_ACTIVE,
    SATURATED,
    SIZE,
    VIGILANCE,
)
from shoal.kernels.compiled.screen import just_below, least_of_nearest

LOWEST = np.float32(-1.0)
"""a bound that every node reaches"""


@njit(forceinline=True)
def distance(row: Any, weights: Any, k: Any, scale: Any, loops: Any, terms: Any) -> Any:
    """row (d,) -> its CIM to node k, as `shoal.kernels.correntropy.cim`; `scale` is -1 / (2 sigma^2)."""
    for j in range(len(row)):
        difference = row[j] - weights[k, j]
        terms[j] = difference * (difference * scale)
    exp_in_place(loops, terms)
    return math.sqrt(1.0 - total(loops, terms) / len(row))


@njit(forceinline=True)
def two_nearest(
    row: Any,
    weights: Any,
    whole: Any,
    real: Any,
    bounds: Any,
    margin: Any,
    least: Any,
    furthest: Any,
    loops: Any,
    terms: Any,
    found: Any,
) -> Any:
    """The nearest two nodes, each -1 if its CIM is above `furthest`, whose sum of correntropies then is below `least`.

    weights (k, d); bounds (k,) of the sums, right to within `margin`. Where that is negative, all nodes are compared.
    """
    first, second, nearest, next_nearest = -1, -1, math.inf, math.inf
    d = len(row)
    scale = -0.5 / (real[MEAN_SIGMA] * real[MEAN_SIGMA])
    lowest = just_below(least - margin[0]) if margin[0] >= 0.0 else LOWEST
    # Without a branch, because few nodes reach the threshold and which ones cannot be foretold.
    n = 0
    for i in range(whole[SIZE]):
        found[n] = i
        n += bounds[i] >= lowest
    for number in range(n):
        i = found[number]
        if bounds[i] < lowest:
            continue
        here = distance(row, weights, i, scale, loops, terms)
        if here < nearest:
            first, second, nearest, next_nearest = i, first, here, nearest
        elif here < next_nearest:
            second, next_nearest = i, here
        # Only a node nearer than the second nearest can still change the result.
        if margin[0] >= 0.0 and second >= 0:
            lowest = max(lowest, just_below((1.0 - next_nearest * next_nearest) * d - margin[0]))
    return first if nearest <= furthest else -1, second if next_nearest <= furthest else -1


@njit(forceinline=True)
def least_within(real: Any, d: Any) -> Any:
    """The sum of correntropies that a node within the vigilance has at least."""
    return (1.0 - real[VIGILANCE] * real[VIGILANCE]) * d


@njit
def nearest_of_all(
    row: Any,
    weights: Any,
    whole: Any,
    real: Any,
    bounds: Any,
    margin: Any,
    loops: Any,
    terms: Any,
    found: Any,
) -> Any:
    """The nearest node at any distance, for a row that would be a new node in a network that is full."""
    whole[SATURATED] += 1
    least = least_of_nearest(bounds, whole, margin)
    return two_nearest(row, weights, whole, real, bounds, margin, least, math.inf, loops, terms, found)[0]


@njit
def add_node(row: Any, nodes: Any, whole: Any, real: Any) -> None:
    """Make a row a node with the bandwidth computed last."""
    weights, sigmas, counts, stamps, ids = nodes
    k = whole[SIZE]
    weights[k] = row
    sigmas[k] = real[LAST_SIGMA]
    counts[k] = 1
    stamps[k] = whole[COUNTER]
    ids[k] = ids[k - 1] + 1 if k else 0
    whole[SIZE] = k + 1


@njit
def set_bandwidth(
    nodes: Any, whole: Any, real: Any, limits: Any, factors: Any, loops: Any, older: Any, everywhere: Any
) -> None:
    """Give the newest node the bandwidth of the most recent nodes, or give it to all nodes."""
    weights, sigmas, _, _, _ = nodes
    k = whole[SIZE]
    real[LAST_SIGMA] = recent_bandwidth(weights, older, limits[N_ACTIVE], factors[BANDWIDTH], loops)
    for i in range(0 if everywhere else k - 1, k):
        sigmas[i] = real[LAST_SIGMA]
    set_mean_bandwidth(sigmas, whole, real, loops)


@njit
def set_mean_bandwidth(sigmas: Any, whole: Any, real: Any, loops: Any) -> None:
    """Compute the mean bandwidth again; 0 without nodes."""
    real[MEAN_SIGMA] = total(loops, sigmas[: whole[SIZE]]) / whole[SIZE] if whole[SIZE] else 0.0


@njit
def set_vigilance(weights: Any, whole: Any, real: Any, loops: Any, terms: Any) -> None:
    """The mean over nodes of the CIM to the nearest other one, as `mean_nearest_other` (eq. 15)."""
    size = whole[SIZE]
    scale = -0.5 / (real[MEAN_SIGMA] * real[MEAN_SIGMA])
    smallest = np.ones(size)
    for k in range(size):
        # The CIM of two nodes is the same either way. One of 0, to a copy, does not count.
        for other in range(k):
            found = distance(weights[k], weights, other, scale, loops, terms)
            if found > 0.0:
                smallest[k] = min(smallest[k], found)
                smallest[other] = min(smallest[other], found)
    real[VIGILANCE] = total(loops, smallest) / size


@njit(forceinline=True)
def win(row: Any, weights: Any, counts: Any, stamps: Any, first: Any, counter: Any) -> None:
    """Move the nearest node to the mean of the rows that it has won."""
    counts[first] += 1
    stamps[first] = counter
    for j in range(len(row)):
        weights[first, j] += (row[j] - weights[first, j]) / counts[first]


@njit(forceinline=True)
def move(row: Any, weights: Any, k: Any, share: Any) -> None:
    """Move node k by a share of its way to a row."""
    for j in range(len(row)):
        weights[k, j] += (row[j] - weights[k, j]) * share


@njit
def recent_bandwidth(weights: Any, older: Any, n: Any, factor: Any, loops: Any) -> Any:
    """The bandwidth of the n most recent nodes, as `shoal.kernels.bandwidth`; its `factor` is given.

    Sums are taken as NumPy takes them: row by row, but those of a single column as of one array.
    """
    d, end = weights.shape[1], len(older) - 1
    newest = older[end]
    mean, spread = np.zeros(d), np.zeros(d)
    column = np.empty(n if d == 1 else 0)
    k = newest
    for i in range(n):
        for j in range(d):
            mean[j] += weights[k, j] - weights[newest, j]
        if d == 1:
            column[i] = weights[k, 0] - weights[newest, 0]
        k = older[k]
    if d == 1:
        mean[0] = total(loops, column)
    mean /= n
    k = newest
    for _ in range(n):
        for j in range(d):
            centred = (weights[k, j] - weights[newest, j]) - mean[j]
            spread[j] += centred * centred
        k = older[k]
    if d == 1:
        column -= mean[0]
        column *= column
        spread[0] = total(loops, column)
    spread = np.sqrt(spread / (n - 1))
    for j in range(d):
        if spread[j] == 0.0:
            spread[j] = ZERO_SPREAD
    spread.sort()
    return max(factor * (0.5 * (spread[(d - 1) // 2] + spread[d // 2])), SIGMA_MIN)
