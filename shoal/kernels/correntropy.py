"""Correntropy and the correntropy-induced metric (CIM) between a row and all nodes.

For a row x and a node w of d features, with one bandwidth for all nodes (FCAC paper, eq. 6-8):

    correntropy = mean over features of exp(-(x - w)^2 / (2 sigma^2))        in [0, 1]
    CIM         = sqrt(1 - correntropy)                                      in [0, 1], 0 only for equal points

The sum over features is taken node by node, never by a matrix product: equal nodes get equal values at any position,
so that ties are exact, and one row or a block of rows gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.distance import Floats
from shoal.kernels.nearest_screen import screened

Ints = NDArray[np.int64]
Scratch = tuple[Floats, Floats]
"""two buffers (k, d) that a kernel may overwrite"""

BLOCK_ELEMENTS = 1 << 16
"""terms of one block of the pairwise forms: two buffers of half a megabyte"""
SCREENED_FROM = 1 << 14
"""terms from which the screen of `nearest` saves more than it costs"""


def ignore_underflow() -> np.errstate:
    """The context in which the kernels are called; enter it once for many calls, as entering costs as much as a call.

    The square of a large distance overflows and its exponential underflows; the resulting correntropy of 0 is correct.
    """
    return np.errstate(over="ignore", under="ignore")


def correntropy(row: Floats, weights: Floats, sigma: float, out: Floats, scratch: Scratch) -> Floats:
    """row (d,), weights (k, d) -> `out` (k,), the correntropy of the row and each node (eq. 6, 7)."""
    difference, exponent = scratch
    np.subtract(row, weights, out=difference)
    np.multiply(difference, -0.5 / (sigma * sigma), out=exponent)
    np.multiply(difference, exponent, out=exponent)
    np.exp(exponent, out=exponent)
    np.add.reduce(exponent, axis=-1, out=out)
    # A division, because a product with 1/d would not bring d ones back to exactly 1.
    return np.divide(out, weights.shape[-1], out=out)


def cim(row: Floats, weights: Floats, sigma: float, out: Floats, scratch: Scratch) -> Floats:
    """row (d,), weights (k, d) -> `out` (k,), the CIM of the row and each node (eq. 8)."""
    correntropy(row, weights, sigma, out, scratch)
    np.subtract(1.0, out, out=out)
    return np.sqrt(out, out=out)


def cim_blocks(rows: Floats, weights: Floats, sigma: float) -> Iterator[tuple[slice, Floats]]:
    """rows (n, d), weights (k, d) -> blocks (slice of the rows, CIM (b, k)): all pairs in bounded memory.

    The caller may overwrite a block until it takes the next one. The bits are those of `cim`.
    """
    k, d = weights.shape
    height = max(1, BLOCK_ELEMENTS // max(1, k * d))
    out = np.empty((height, k))
    scratch = (np.empty((height, k, d)), np.empty((height, k, d)))
    for first in range(0, len(rows), height):
        here = slice(first, min(first + height, len(rows)))
        n = here.stop - first
        yield here, cim(rows[here, None, :], weights, sigma, out[:n], (scratch[0][:n], scratch[1][:n]))


def nearest(rows: Floats, weights: Floats, sigma: float) -> Ints:
    """rows (n, d), weights (k, d), k > 0 -> (n,) position of the nearest node by CIM, the lowest one of a tie."""
    blocks = screened(rows, weights, sigma) if len(rows) * weights.size >= SCREENED_FROM else None
    if blocks is None:
        return _nearest_of_all(rows, weights, sigma)
    found = np.empty(len(rows), dtype=np.int64)
    for here, first, (row, node) in blocks:
        places, nodes = _nearest_of_pairs(rows[here], weights, sigma, row, node)
        first[places] = nodes
        found[here] = first
    return found


def _nearest_of_all(rows: Floats, weights: Floats, sigma: float) -> Ints:
    """As `nearest`, by the CIM of every pair."""
    found = np.empty(len(rows), dtype=np.int64)
    for here, distances in cim_blocks(rows, weights, sigma):
        found[here] = distances.argmin(axis=1)
    return found


def _nearest_of_pairs(rows: Floats, weights: Floats, sigma: float, row: Ints, node: Ints) -> tuple[Ints, Ints]:
    """Pairs of row (p,) and node (p,), in the order of both -> each row that occurs (r,), its nearest node (r,)."""
    if not len(row):
        return row, node
    starts = np.append(0, np.flatnonzero(row[1:] != row[:-1]) + 1)
    distances = np.empty(len(row))
    height = max(1, BLOCK_ELEMENTS // max(1, weights.shape[1]))
    for start in range(0, len(row), height):
        part = slice(start, start + height)
        pairs = weights[node[part]]
        cim(rows[row[part]], pairs, sigma, distances[part], (np.empty_like(pairs), np.empty_like(pairs)))
    least = np.minimum.reduceat(distances, starts)
    equal = np.flatnonzero(distances == np.repeat(least, np.diff(starts, append=len(row))))
    return row[starts], node[equal[np.searchsorted(equal, starts)]]


def mean_nearest_other(weights: Floats, sigma: float) -> float:
    """weights (k, d) -> the mean over nodes of the CIM to the nearest other node (eq. 15).

    A CIM of exactly 0 (a node with itself or with an exact copy) counts as 1.
    """
    smallest = np.empty(len(weights))
    for here, distances in cim_blocks(weights, weights, sigma):
        distances[distances == 0.0] = 1.0
        distances.min(axis=1, out=smallest[here])
    return float(smallest.mean())
