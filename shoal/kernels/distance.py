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
NEAR: Final = 1e-4
"""below this share of the squared lengths, a distance is calculated from differences: its relative error stays 1e-11"""
FLAT: Final = 3
"""features up to which differences are as fast as a product"""
SHORT_ROW: Final = 16
ROUNDING: Final = 8 * float(np.finfo(np.float64).eps)


def block_rows(n_centres: int, d: int) -> int:
    """Rows to take at a time, so that what is made of them stays in the cache."""
    return max(1, BLOCK_ELEMENTS // max(1, n_centres, d))


def squared(rows: Floats, centres: Floats) -> Floats:
    """rows (n, d), centres (k, d) -> (n, k), never negative, 0 exactly where a row is a centre."""
    if rows.shape[1] <= FLAT:
        return from_differences(rows, centres)
    near, centred = rows - (middle := centres.mean(axis=0)), centres - middle
    lengths = np.einsum("ij,ij->i", near, near)
    reach = np.einsum("ij,ij->i", centred, centred)
    out = near @ centred.T
    out *= -2.0
    out += reach
    out += lengths[:, None]
    doubtful = np.flatnonzero(row_minima(out) < NEAR * (lengths + reach.max()))
    if len(doubtful):
        out[doubtful] = from_differences(rows[doubtful], centres)
    return np.asarray(out)


def nearest(rows: Floats, centres: Floats) -> tuple[NDArray[np.int64], Floats]:
    """rows (n, d), centres (k, d) -> (n,) place of the nearest centre, the lowest of a tie, and (n,) its distance²."""
    if rows.shape[1] <= FLAT:
        far = from_differences(rows, centres)
        return far.argmin(axis=1).astype(np.int64, copy=False), row_minima(far)
    near, centred = rows - (middle := centres.mean(axis=0)), centres - middle
    lengths = np.einsum("ij,ij->i", near, near)
    reach = np.einsum("ij,ij->i", centred, centred)
    out = near @ centred.T
    out *= -2.0
    out += reach
    labels = out.argmin(axis=1)
    least = np.take_along_axis(out, labels[:, None], axis=1)[:, 0]
    scale = lengths + reach.max()
    close = out <= (least + (rows.shape[1] + 4) * ROUNDING * scale)[:, None]
    least += lengths
    doubt = least < NEAR * scale
    if np.count_nonzero(close) > len(rows):
        doubt |= np.count_nonzero(close, axis=1) > 1
    if doubt.any():
        again = from_differences(rows[doubt], centres)
        labels[doubt], least[doubt] = again.argmin(axis=1), again.min(axis=1)
    return labels.astype(np.int64, copy=False), least


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
    out = np.zeros((len(rows), len(centres)))
    gap = np.empty_like(out)
    for feature in range(rows.shape[1]):
        np.subtract.outer(rows[:, feature], centres[:, feature], out=gap)
        np.multiply(gap, gap, out=gap)
        out += gap
    return out
