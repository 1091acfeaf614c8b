"""Correntropy, the correntropy-induced metric (CIM) between a row and all nodes, and Silverman's
bandwidth.

For a row x and a node w of d features, with one bandwidth for all nodes (FCAC paper, eq. 6-8):

    correntropy = mean over features of exp(-(x - w)^2 / (2 sigma^2))        in [0, 1]
    CIM         = sqrt(1 - correntropy)                                      in [0, 1], 0 only for
    equal points

The sum over features is taken node by node, never by a matrix product: equal nodes get equal values
at any position, so that ties are exact, and one row or a block of rows gives the same bits.

Exact screens of the nearest node by CIM use 32-bit floats to tell which few nodes it can be. With
u_i = (x_i - w_i)^2 / (2 sigma^2), d times the correntropy of a row and a node is the sum of
exp(-u_i).

By distance, without an exponential: for a given scaled squared distance, the sum of the u_i, that
sum is largest where one feature differs alone: d - 1 + exp(-distance). So a node at least as near
by CIM as one whose terms lack m < 1 of d in all has a distance of at most -log(1 - m). That one is
the nearest by distance, which a matrix product finds at a fortieth of the cost of CIM. By
correntropy, where m is too large for that: at a fifth of the cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np

from shoal.kernels.arrays import Floats, Ints, Singles
from shoal.kernels.constants import SIGMA_MIN, ZERO_SPREAD


def bandwidth(points: Floats) -> float:
    """points (m, d), m >= 2 -> (4 / (2 + d))^(1 / (4 + d)) * m^(-1 / (4 + d)) * the median over
    features of the sample standard deviation (FCAC paper, eq. 11 and 14). Finite and positive for
    |points| <= 1e150."""
    m, d = points.shape
    # Relative to the first point, so that a constant feature has a spread of exactly 0 whatever its
    # value.
    centred = points - points[0]
    # By `reduce`: of a few points, the method `sum` takes half as long again.
    centred -= np.add.reduce(centred) / m
    np.multiply(centred, centred, out=centred)
    squares = np.add.reduce(centred)
    squares.sort()
    # The order of the spreads is that of the sums of squares: roots are taken of three of them.
    least = math.sqrt(squares.item(0) / (m - 1))
    if least == 0.0:
        median = _median_but_for_constant(np.sqrt(squares / (m - 1)))
    else:
        lower = math.sqrt(squares.item((d - 1) // 2) / (m - 1))
        median = 0.5 * (lower + math.sqrt(squares.item(d // 2) / (m - 1)))
    return max(bandwidth_factor(m, d) * median, SIGMA_MIN)


def _median_but_for_constant(spread: Floats) -> float:
    """The median of the spreads (d,), in which a feature that is constant has a small one: it must
    not make the bandwidth 0."""
    d = len(spread)
    spread[spread == 0.0] = ZERO_SPREAD
    spread.sort()
    return float(0.5 * (spread[(d - 1) // 2] + spread[d // 2]))


@lru_cache(maxsize=64)
def bandwidth_factor(m: int, d: int) -> float:
    """The bandwidth of m points of d features over the median of their standard deviations."""
    return math.pow(4.0 / (2.0 + d), 1.0 / (4.0 + d)) * math.pow(m, -1.0 / (4.0 + d))


Pairs = tuple[Ints, Ints]
"""row in a block and node, in the order of both"""

BLOCK_ELEMENTS = 1 << 16
"""distances of one block: 256 KiB, which stay in the cache"""
PART_ELEMENTS = 1 << 18
"""distances of the rows that are looked at together: all of them can remain as pairs"""
TERMS_ELEMENTS = 1 << 15
"""correntropies of one block, whose terms are computed feature by feature: they stay in the cache
"""
LACK_MAX = 0.9
"""largest lack of the terms of the nearest node by distance; beyond it the limit of distances says
little, and rounding matters"""
PROBED = 24
"""points by which it is decided whether distances are of use, of a block of several times as many
"""
PROBED_STEP_MIN = 4
"""least distance between two of them in the block: of fewer points it would take longer than it may
save"""
FURTHEST = 1e15
"""largest distance of a scaled coordinate from the origin of the screen, so that no square
overflows in 32 bits"""
ROUNDING = 1e-7
"""more than half the distance between neighbouring 32-bit floats, relative to them"""
EXP_ERROR = 1e-6
"""more than the error of a 32-bit exponential that is at most 1: eight units in its last place"""
SLACK = 1e-9
"""error allowed to a sum of terms for rounding in 64 bits, also where two CIM that differ are
rounded to one number"""


class Screened(NamedTuple):
    """Findings of the screens about a block of rows."""

    rows: slice
    first: Ints
    """(b,) the nearest node by distance: that of a row without pairs"""
    pairs: Pairs
    """all that can be the nearest by CIM, of rows that have several such"""


class Scaled(NamedTuple):
    """Rows and nodes relative to a common origin, in units in which squares are the exponents
    u_i."""

    points: Floats
    """(n, d)"""
    nodes: Floats
    """(k, d)"""
    far: float
    """no coordinate is further from the origin"""

    @classmethod
    def of(cls, rows: Floats, weights: Floats, sigma: float) -> Self:
        """rows (n, d), weights (k, d), k > 0."""
        origin = weights.mean(axis=0)
        scale = np.sqrt(0.5) / sigma
        points = (rows - origin) * scale
        nodes = (weights - origin) * scale
        return cls(
            points, nodes, max(float(np.abs(nodes).max()), float(np.abs(points).max(initial=0.0)))
        )


def screened(rows: Floats, weights: Floats, sigma: float) -> Iterator[Screened] | None:
    """rows (n, d), weights (k, d), k > 0 -> blocks of the rows; None where 32-bit floats do not
    hold the numbers."""
    scaled = Scaled.of(rows, weights, sigma)
    if scaled.far >= FURTHEST:
        return None
    return _parts(scaled)


def _parts(scaled: Scaled) -> Iterator[Screened]:
    points, nodes, far = scaled
    d = points.shape[1]
    # A 1 after each point adds |w|^2 of each node w within the product.
    rows = np.empty((len(points), d + 1), dtype=np.float32)
    rows[:, :d] = points
    rows[:, d] = 1.0
    columns = np.empty((d + 1, len(nodes)), dtype=np.float32)
    columns[:d] = -2.0 * nodes.T
    columns[d] = np.square(nodes).sum(axis=1)
    # The sizes of the terms add up to at most 3 d far^2. Each is rounded at most d + 5 times: both
    # coordinates, their product, |w|^2, and d + 1 sums.
    margin = 3.0 * d * far * far * (d + 5) * ROUNDING
    height = max(1, PART_ELEMENTS // len(nodes))
    for start in range(0, len(points), height):
        here = slice(start, min(start + height, len(points)))
        if _seldom_decides(points[here], nodes, rows[here], columns):
            pairs = _by_correntropy(points[here], nodes, far)
            # Of every row there are pairs.
            yield Screened(here, np.zeros(here.stop - start, dtype=np.int64), pairs)
            continue
        first, pairs, undecided = _by_distance(points[here], nodes, rows[here], columns, margin)
        if len(undecided):
            row, node = _by_correntropy(points[here][undecided], nodes, far)
            pairs = _sorted_pairs(
                np.concatenate([pairs[0], undecided[row]]), np.concatenate([pairs[1], node])
            )
        yield Screened(here, first, pairs)


def _by_distance(
    points: Floats, nodes: Floats, rows: Singles, columns: Singles, margin: float
) -> tuple[Ints, Pairs, Ints]:
    """points (b, d), nodes (k, d), and of both what is multiplied: rows (b, d + 1), columns (d + 1,
    k).

    Each product is |w|^2 - 2 x·w of a point x and a node w, wrong by up to `margin`.
    -> the nearest node of each (b,), the pairs of those with several candidates, those that it does
    not decide (r,).
    """
    first, second = _two_least(rows, columns)
    lack = _lack(points, nodes[first])
    decided = lack < LACK_MAX
    limits = (
        -np.log1p(-np.where(decided, lack, 0.0))
        + 10 * SLACK
        + margin
        - np.square(points).sum(axis=1)
    )
    limits[~decided] = -np.inf
    # Rounded up: a limit that is rounded down could exclude the nearest node.
    limits_32 = np.nextafter(limits.astype(np.float32), np.float32(np.inf))
    several = np.flatnonzero(second <= limits_32)
    row, node = _within(rows[several], columns, limits_32[several])
    return first, (several[row], node), np.flatnonzero(~decided)


def _seldom_decides(points: Floats, nodes: Floats, rows: Singles, columns: Singles) -> bool:
    """Whether distances leave most points undecided, by a few of them: arguments of `_by_distance`.

    Of points with much noise they decide next to none, and take as long as correntropies.
    """
    step = len(points) // PROBED
    if step < PROBED_STEP_MIN:
        return False
    first, _ = _two_least(rows[::step], columns)
    undecided = np.count_nonzero(_lack(points[::step], nodes[first]) >= LACK_MAX)
    return bool(2 * undecided > len(first))


def _lack(points: Floats, nearest_nodes: Floats) -> Floats:
    """points (b, d), a node for each (b, d) -> (b,) what the terms of each pair lack of d."""
    lack: Floats = -np.expm1(-np.square(points - nearest_nodes)).sum(axis=1)
    return lack


def _products(rows: Singles, columns: Singles) -> Iterator[tuple[slice, Singles]]:
    """rows (b, d + 1), columns (d + 1, k) -> parts of the rows, and their products with all
    columns.

    The caller may overwrite them until it takes the next ones.
    """
    height = max(1, BLOCK_ELEMENTS // columns.shape[1])
    block = np.empty((min(height, len(rows)), columns.shape[1]), dtype=np.float32)
    for start in range(0, len(rows), height):
        here = slice(start, min(start + height, len(rows)))
        yield here, np.matmul(rows[here], columns, out=block[: here.stop - start])


def _two_least(rows: Singles, columns: Singles) -> tuple[Ints, Singles]:
    """rows (b, d + 1), columns (d + 1, k) -> the column of the least product of each (b,), the
    second least (b,).

    Finding these takes half the time of comparing all products with a limit.
    """
    first = np.empty(len(rows), dtype=np.int64)
    second = np.empty(len(rows), dtype=np.float32)
    for here, products in _products(rows, columns):
        row = np.arange(len(products))
        first[here] = least = products.argmin(axis=1)
        products[row, least] = np.inf
        second[here] = products[row, products.argmin(axis=1)]
    return first, second


def _within(rows: Singles, columns: Singles, limits: Singles) -> Pairs:
    """rows (b, d + 1), columns (d + 1, k), limits (b,) -> the pairs whose product is not above the
    limit of the row."""
    found = []
    for here, products in _products(rows, columns):
        row, node = np.divmod(np.flatnonzero(products <= limits[here, None]), len(products[0]))
        found.append((row + here.start, node))
    if len(found) == 1:
        return found[0]
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *(row for row, _ in found)]), np.concatenate(
        [none, *(node for _, node in found)]
    )


def _by_correntropy(points: Floats, nodes: Floats, far: float) -> Pairs:
    """points (b, d), nodes (k, d) -> the pairs of all of them, at least one of each point."""
    n, d = points.shape
    k = len(nodes)
    columns = np.ascontiguousarray(nodes.T, dtype=np.float32)
    # A difference is wrong by up to 4 roundings of a coordinate, which its exponential takes over
    # by a factor below 1.
    margin = d * (EXP_ERROR + 4 * ROUNDING * far + d * ROUNDING) + SLACK
    height = max(1, TERMS_ELEMENTS // k)
    scratch = np.empty((2, min(n, height) * k), dtype=np.float32)
    found = []
    for start in range(0, n, height):
        part = np.ascontiguousarray(points[start : start + height].T, dtype=np.float32)
        # The longer of the two is the last axis: otherwise NumPy would run many short loops.
        if part.shape[1] > k:
            sums = _sums_of_terms(columns, part, scratch).T
        else:
            sums = _sums_of_terms(part, columns, scratch)
        near = sums >= (sums.max(axis=1) - np.float32(2 * margin))[:, None]
        row, node = np.nonzero(np.ascontiguousarray(near))
        found.append((row + start, node))
    return np.concatenate([row for row, _ in found]), np.concatenate([node for _, node in found])


def _sums_of_terms(these: Singles, those: Singles, scratch: Singles) -> Singles:
    """these (d, n), those (d, m), scratch (2, at least n m) -> (n, m) d times the correntropy of
    each pair, which is overwritten by the next call."""
    n = these.shape[1]
    m = those.shape[1]
    sums = scratch[0, : n * m].reshape(n, m)
    term = scratch[1, : n * m].reshape(n, m)
    sums[:] = 0.0
    for this, that in zip(these, those, strict=True):
        np.subtract.outer(this, that, out=term)
        np.multiply(term, term, out=term)
        np.negative(term, out=term)
        sums += np.exp(term, out=term)
    return sums


def _sorted_pairs(row: Ints, node: Ints) -> Pairs:
    """The pairs in the order of rows; those of one row keep theirs."""
    order = np.argsort(row, kind="stable")
    return row[order], node[order]


Scratch = tuple[Floats, Floats]
"""two buffers (k, d) that a kernel may overwrite"""

SCREENED_FROM = 1 << 14
"""terms from which the screen of `nearest` saves more than it costs"""


def ignore_underflow() -> np.errstate:
    """The context in which the kernels are called; enter it once for many calls, as entering costs
    as much as a call.

    The square of a large distance overflows and its exponential underflows; the resulting
    correntropy of 0 is correct.
    """
    return np.errstate(over="ignore", under="ignore")


def correntropy(
    row: Floats, weights: Floats, sigma: float, out: Floats, scratch: Scratch
) -> Floats:
    """row (d,), weights (k, d) -> `out` (k,), the correntropy of the row and each node (eq.
    6, 7)."""
    difference, exponent = scratch
    # Outputs by position: naming them takes NumPy a twentieth of the time of a row.
    np.subtract(row, weights, difference)
    np.multiply(difference, -0.5 / (sigma * sigma), exponent)
    np.multiply(difference, exponent, exponent)
    np.exp(exponent, exponent)
    np.add.reduce(exponent, axis=-1, out=out)
    # A division, because a product with 1/d would not bring d ones back to exactly 1.
    return np.divide(out, weights.shape[-1], out)


def cim(row: Floats, weights: Floats, sigma: float, out: Floats, scratch: Scratch) -> Floats:
    """row (d,), weights (k, d) -> `out` (k,), the CIM of the row and each node (eq. 8)."""
    correntropy(row, weights, sigma, out, scratch)
    np.subtract(1.0, out, out)
    return np.sqrt(out, out)


def cim_blocks(rows: Floats, weights: Floats, sigma: float) -> Iterator[tuple[slice, Floats]]:
    """rows (n, d), weights (k, d) -> blocks (slice of the rows, CIM (b, k)): all pairs in bounded
    memory.

    The caller may overwrite a block until it takes the next one. The bits are those of `cim`.
    """
    k, d = weights.shape
    height = max(1, BLOCK_ELEMENTS // max(1, k * d))
    out = np.empty((height, k))
    scratch = (np.empty((height, k, d)), np.empty((height, k, d)))
    for first in range(0, len(rows), height):
        here = slice(first, min(first + height, len(rows)))
        n = here.stop - first
        yield (
            here,
            cim(rows[here, None, :], weights, sigma, out[:n], (scratch[0][:n], scratch[1][:n])),
        )


def nearest(rows: Floats, weights: Floats, sigma: float) -> Ints:
    """rows (n, d), weights (k, d), k > 0 -> (n,) position of the nearest node by CIM, the lowest
    one of a tie."""
    blocks = None
    # For few pairs the screen costs more than the exponentials that it saves.
    if len(rows) * weights.size >= SCREENED_FROM:
        blocks = screened(rows, weights, sigma)
    if blocks is None:
        return _nearest_of_all(rows, weights, sigma)
    found = np.empty(len(rows), dtype=np.int64)
    for here, first, (row, node) in blocks:
        places, nodes = _nearest_of_pairs(rows[here], weights, sigma, row, node)
        first[places] = nodes
        found[here] = first
    return found


def _nearest_of_all(rows: Floats, weights: Floats, sigma: float) -> Ints:
    """Find the nearest node by the CIM of every pair."""
    found = np.empty(len(rows), dtype=np.int64)
    for here, distances in cim_blocks(rows, weights, sigma):
        found[here] = distances.argmin(axis=1)
    return found


def _nearest_of_pairs(
    rows: Floats, weights: Floats, sigma: float, row: Ints, node: Ints
) -> tuple[Ints, Ints]:
    """Pairs of row (p,) and node (p,), in the order of both -> each row that occurs (r,), its
    nearest node (r,)."""
    if not len(row):
        return row, node
    starts = np.append(0, np.flatnonzero(row[1:] != row[:-1]) + 1)
    lengths = np.diff(starts, append=len(row))
    rows_found = row[starts]
    nodes_found = node[starts]
    # Mostly a row has one node left, which is the nearest, however far it is.
    several = np.flatnonzero(lengths > 1)
    if len(several):
        kept = np.repeat(lengths > 1, lengths)
        nodes_found[several] = _nearest_by_row(
            rows, weights, sigma, row[kept], node[kept], lengths[several]
        )
    return rows_found, nodes_found


def _nearest_by_row(
    rows: Floats, weights: Floats, sigma: float, row: Ints, node: Ints, lengths: Ints
) -> Ints:
    """Pairs of row (p,) and node (p,), in the order of both, and how many of them each row has (r,)
    -> the nearest node of each (r,)."""
    starts = np.cumsum(lengths) - lengths
    distances = np.empty(len(row))
    height = max(1, BLOCK_ELEMENTS // max(1, weights.shape[1]))
    for start in range(0, len(row), height):
        part = slice(start, start + height)
        pairs = weights[node[part]]
        cim(
            rows[row[part]],
            pairs,
            sigma,
            distances[part],
            (np.empty_like(pairs), np.empty_like(pairs)),
        )
    least = np.minimum.reduceat(distances, starts)
    # Of nodes that are equally near the first one wins, as in the form that compares all.
    equal = np.flatnonzero(distances == np.repeat(least, lengths))
    nearest_nodes: Ints = node[equal[np.searchsorted(equal, starts)]]
    return nearest_nodes


def mean_nearest_other(weights: Floats, sigma: float) -> float:
    """weights (k, d) -> the mean over nodes of the CIM to the nearest other node (eq. 15).

    A CIM of exactly 0 (a node with itself or with an exact copy) counts as 1.
    """
    smallest = np.empty(len(weights))
    for here, distances in cim_blocks(weights, weights, sigma):
        distances[distances == 0.0] = 1.0
        distances.min(axis=1, out=smallest[here])
    return float(smallest.mean())
