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
from shoal.kernels.compiled.chords import lowest_bit, reaching
from shoal.kernels.compiled.intrinsics import exp_in_place, total
from shoal.kernels.compiled.places import (
    BANDWIDTH,
    COUNTER,
    LAST_SIGMA,
    MARGIN,
    MEAN_SIGMA,
    N_ACTIVE,
    SATURATED,
    SIZE,
    VIGILANCE,
)
from shoal.kernels.compiled.screen import at_least, blocks, bound, just_below, least_of_nearest
from shoal.kernels.workspace import BLOCK

LOWEST = np.float32(-1.0)
"""a bound that every node reaches"""
EXCLUDED = np.float32(-2.0)
"""below all bounds"""
SORTED_FROM = 200
"""numbers of which it takes less time to sort them than to compare all pairs"""


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
    screen: Any,
    least: Any,
    furthest: Any,
    loops: Any,
    terms: Any,
    found: Any,
) -> Any:
    """The nearest two nodes, each -1 if its CIM is above `furthest`, whose sum of correntropies then is below `least`.

    weights (k, d). The bounds of the screen are right to within the margin; where that is negative, all nodes are
    compared.
    """
    _, bounds, _, _ = screen
    first, second, nearest, next_nearest = -1, -1, math.inf, math.inf
    d = len(row)
    scale = -0.5 / (real[MEAN_SIGMA] * real[MEAN_SIGMA])
    lowest = just_below(least - real[MARGIN]) if real[MARGIN] >= 0.0 else LOWEST
    n = find_reaching(bounds, lowest, whole, found)
    # A single node needs no exponential where its bound shows that it is near enough.
    if n == 1 and (furthest == math.inf or at_least(bounds[found[0]], real) >= least):
        return found[0], -1
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
        if real[MARGIN] >= 0.0 and second >= 0:
            lowest = max(lowest, just_below((1.0 - next_nearest * next_nearest) * d - real[MARGIN]))
    return first if nearest <= furthest else -1, second if next_nearest <= furthest else -1


@njit(forceinline=True)
def find_reaching(bounds: Any, lowest: Any, whole: Any, found: Any) -> Any:
    """Set found[:n] to the nodes whose bounds are at least `lowest`, in ascending order. Returns n."""
    n = 0
    for block in range(blocks(whole)):
        bits = reaching(bounds, block, lowest)
        while bits:
            i = block * BLOCK + lowest_bit(bits)
            bits &= bits - 1
            # The last block has columns without nodes.
            if i < whole[SIZE]:
                found[n] = i
                n += 1
    return n


@njit(forceinline=True)
def least_within(real: Any, d: Any) -> Any:
    """The sum of correntropies that a node within the vigilance has at least."""
    return (1.0 - real[VIGILANCE] * real[VIGILANCE]) * d


@njit
def nearest_of_all(
    row: Any, weights: Any, whole: Any, real: Any, screen: Any, loops: Any, terms: Any, found: Any
) -> Any:
    """The nearest node at any distance, for a row that would be a new node in a network that is full."""
    whole[SATURATED] += 1
    least = least_of_nearest(screen, whole, real)
    return two_nearest(row, weights, whole, real, screen, least, math.inf, loops, terms, found)[0]


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
def set_vigilance(weights: Any, whole: Any, real: Any, screen: Any, loops: Any, terms: Any, found: Any) -> None:
    """The mean over nodes of the CIM to the nearest other one, as `mean_nearest_other` (eq. 15)."""
    _, bounds, _, _ = screen
    size, scale = whole[SIZE], -0.5 / (real[MEAN_SIGMA] * real[MEAN_SIGMA])
    smallest = np.ones(size)
    for k in range(size):
        row = weights[k]
        bound(row, screen, whole, real)
        bounds[k] = EXCLUDED
        least = least_of_nearest(screen, whole, real)
        other = two_nearest(row, weights, whole, real, screen, least, math.inf, loops, terms, found)[0]
        # For without a screen the bounds are not computed again.
        bounds[k] = LOWEST
        smallest[k] = distance(row, weights, other, scale, loops, terms)
        if smallest[k] == 0.0:
            smallest[k] = nearest_not_copy(row, weights, size, scale, loops, terms)
    real[VIGILANCE] = total(loops, smallest) / size


@njit
def nearest_not_copy(row: Any, weights: Any, size: Any, scale: Any, loops: Any, terms: Any) -> Any:
    """The CIM of a row to the nearest node that is not at a distance of 0; 1 without one."""
    nearest = 1.0
    for i in range(size):
        here = distance(row, weights, i, scale, loops, terms)
        if here > 0.0:
            nearest = min(nearest, here)
    return nearest


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
    d, newest = weights.shape[1], older[len(older) - 1]
    mean, spread = np.zeros(d), np.zeros(d)
    if d == 1:
        column = np.empty(n)
        k = newest
        for i in range(n):
            column[i] = weights[k, 0] - weights[newest, 0]
            k = older[k]
        column -= total(loops, column) / n
        column *= column
        spread[0] = total(loops, column)
    else:
        add_differences(weights, older, n, mean)
        mean /= n
        add_squares(weights, older, n, mean, spread)
    spread = np.sqrt(spread / (n - 1))
    for j in range(d):
        if spread[j] == 0.0:
            spread[j] = ZERO_SPREAD
    return max(factor * (0.5 * (in_order(spread, (d - 1) // 2) + in_order(spread, d // 2))), SIGMA_MIN)


@njit(forceinline=True)
def in_order(numbers: Any, place: Any) -> Any:
    """The number that would be at a place if the numbers, at least one, were in ascending order.

    It is the largest of those that have at most `place` smaller ones: found by comparing all pairs, a few vectors at a
    time, which takes less than sorting, whose every branch is a surprise. Many are sorted.
    """
    if len(numbers) > SORTED_FROM:
        numbers.sort()
        return numbers[place]
    found = -math.inf
    for number in numbers:
        smaller = 0
        for other in numbers:
            smaller += other < number
        if smaller <= place:
            found = max(found, number)
    return found


@njit(forceinline=True)
def add_differences(weights: Any, older: Any, n: Any, sums: Any) -> None:
    """Add to sums (d,) what each of the n most recent nodes has beyond the newest, one by one."""
    newest = older[len(older) - 1]
    origin, k = weights[newest], newest
    # Four nodes at a time: then a sum is read and written once for four terms.
    for _ in range(n // 4):
        k1 = older[k]
        k2 = older[k1]
        k3 = older[k2]
        for j in range(len(sums)):
            two = sums[j] + (weights[k, j] - origin[j]) + (weights[k1, j] - origin[j])
            sums[j] = two + (weights[k2, j] - origin[j]) + (weights[k3, j] - origin[j])
        k = older[k3]
    for _ in range(n % 4):
        for j in range(len(sums)):
            sums[j] += weights[k, j] - origin[j]
        k = older[k]


@njit(forceinline=True)
def add_squares(weights: Any, older: Any, n: Any, mean: Any, sums: Any) -> None:
    """Add to sums (d,) the squares of the same differences less their mean, one by one."""
    newest = older[len(older) - 1]
    origin, k = weights[newest], newest
    for _ in range(n // 4):
        k1 = older[k]
        k2 = older[k1]
        k3 = older[k2]
        for j in range(len(sums)):
            two = sums[j] + square(weights[k, j] - origin[j] - mean[j]) + square(weights[k1, j] - origin[j] - mean[j])
            sums[j] = two + square(weights[k2, j] - origin[j] - mean[j]) + square(weights[k3, j] - origin[j] - mean[j])
        k = older[k3]
    for _ in range(n % 4):
        for j in range(len(sums)):
            sums[j] += square(weights[k, j] - origin[j] - mean[j])
        k = older[k]


@njit(forceinline=True)
def square(number: Any) -> Any:
    """The square of a number."""
    return number * number
