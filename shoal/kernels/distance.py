"""Squared Euclidean distances, and which centre is nearest: as fast as one matrix product, as true as differences.

|x|² - 2 x·c + |c|² is a matrix product and ten times as fast as differences, but its error is relative to the
lengths of x and c, not to their distance. So the product is used where its error cannot matter, and the rows
for which it could (near a centre, or almost half-way between two) are calculated again from differences. What
comes out for a row does not depend on the rows it came with, beyond rounding: equal rows have equal labels.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BLOCK_ELEMENTS: Final = 1 << 16
"""half a megabyte of distances at a time stays in a core's cache"""
FLAT_ELEMENTS: Final = 1 << 14
"""where there is next to nothing to calculate, less: memory that is not given back to the system between two blocks"""
NEAR: Final = 1e-4
"""below this share of the squared lengths, a distance is calculated from differences: its relative error stays 1e-11"""
FLAT: Final = 3
"""features up to which differences are as fast as a product"""
SHORT_ROW: Final = 16
ROUNDING: Final = 8 * float(np.finfo(np.float64).eps)


def block_rows(n_centres: int, d: int) -> int:
    """Rows to take at a time, so that what is made of them stays in the cache."""
    return max(1, (FLAT_ELEMENTS if d <= FLAT else BLOCK_ELEMENTS) // max(1, n_centres, d))


def squared(rows: Floats, centres: Floats) -> Floats:
    """rows (n, d), centres (k, d) -> (n, k), never negative, 0 exactly where a row is a centre."""
    if rows.shape[1] <= FLAT:
        return from_differences(rows, centres)
    out, lengths, reach = _by_product(rows, centres)
    out += lengths
    doubtful = np.flatnonzero(out.min(axis=0) < NEAR * (lengths + reach))
    if len(doubtful):
        out[:, doubtful] = from_differences(rows[doubtful], centres).T
    return out.T


def nearest(rows: Floats, centres: Floats) -> tuple[NDArray[np.int64], Floats]:
    """rows (n, d), centres (k, d) -> (n,) place of the nearest centre, the lowest of a tie, and (n,) its distance²."""
    own, least = owners(rows, centres)
    return own.argmax(axis=0).astype(np.int64, copy=False), least


def owners(rows: Floats, centres: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """rows (n, d), centres (k, d) -> (k, n) true at each row's nearest centre, the lowest of a tie, and (n,) its
    distance²."""
    if rows.shape[1] <= FLAT:
        far = from_differences(rows, centres).T
        least = far.min(axis=0)
        own = far == least
        doubt = np.zeros(len(rows), dtype=bool)
    else:
        out, lengths, reach = _by_product(rows, centres)
        least, scale = out.min(axis=0), lengths + reach
        own = out <= least + (rows.shape[1] + 4) * ROUNDING * scale
        least += lengths
        doubt = least < NEAR * scale
    if np.count_nonzero(own) > len(rows):
        doubt |= np.count_nonzero(own, axis=0) > 1
    if doubt.any():
        again = from_differences(rows[doubt], centres)
        least[doubt], own[:, doubt] = again.min(axis=1), False
        own[again.argmin(axis=1), np.flatnonzero(doubt)] = True
    return own, least


def _by_product(rows: Floats, centres: Floats) -> tuple[Floats, Floats, float]:
    """rows (n, d), centres (k, d) -> (k, n) distances² less the rows' lengths², these (n,), the centres' greatest.

    Lengths are taken from the middle of the centres. Each row ends in a 1 and each centre in its length², which
    spares two passes over the product; n is inside, as numpy is slow at many short rows.
    """
    n, d = rows.shape
    middle = centres.mean(axis=0)
    near, centred = np.ones((n, d + 1)), centres - middle
    np.subtract(rows, middle, out=near[:, :d])
    lengths = np.einsum("ij,ij->i", near[:, :d], near[:, :d])
    reach = np.einsum("ij,ij->i", centred, centred)
    return np.concatenate([-2.0 * centred, reach[:, None]], axis=1) @ near.T, lengths, float(reach.max())


def row_minima(table: Floats) -> Floats:
    """(n, k) -> (n,): the least of each row, column by column where rows are short, as numpy is slow at those."""
    if table.shape[1] > SHORT_ROW:
        return np.asarray(table.min(axis=1))
    least = table[:, 0].copy()
    for column in range(1, table.shape[1]):
        np.minimum(least, table[:, column], out=least)
    return least


def from_differences(rows: Floats, centres: Floats) -> Floats:
    """rows (n, d), centres (k, d) -> (n, k), one feature after the other: the same bits whatever the other rows are."""
    # The longer of the two inside: the other way round numpy would go through many short loops.
    longer_last = len(rows) < len(centres)
    these, those = (rows, centres) if longer_last else (centres, rows)
    out = _gaps(these, those, 0, np.empty((len(these), len(those))))
    gap = np.empty_like(out) if rows.shape[1] > 1 else out
    for feature in range(1, rows.shape[1]):
        out += _gaps(these, those, feature, gap)
    return out if longer_last else out.T


def _gaps(these: Floats, those: Floats, feature: int, out: Floats) -> Floats:
    """(n, d), (m, d) -> (n, m), in `out`, the squares of the differences in one feature."""
    np.subtract.outer(these[:, feature], np.ascontiguousarray(those[:, feature]), out=out)
    return np.multiply(out, out, out=out)
