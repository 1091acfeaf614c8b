"""Squared Euclidean distances and nearest centres, at the speed of a matrix product and the
precision of differences.

|x|² - 2 x·c + |c|² is a matrix product and ten times as fast as differences, but its error is
relative to the lengths of x and c, not to their distance. So the product is used where its error
cannot matter, and the rows for which it can (near a centre, or almost half-way between two) are
computed again from differences. Up to rounding, the result for a row does not depend on the other
rows of the call: equal rows have equal labels.

Missing values are NaN in rows, replaced by those of the nearest point over what a row has.
Distances are summed feature by feature in their order, so that they are the same bits on every
machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from shoal.kernels import forms
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.kernels.constants import FEW_FEATURES

BLOCK_ELEMENTS: Final = 1 << 16
"""half a megabyte of distances at a time, which stays in a core's cache"""
FEW_FEATURES_BLOCK_ELEMENTS: Final = 1 << 14
"""fewer where distances cost little: blocks of this size reuse memory that is not returned to the
system in between"""
FEW_TERMS: Final = 1 << 14
"""differences up to which the calls of NumPy take longer than the arithmetic: all features at once
take a fifth to three quarters of the time of one after the other, or of a product"""
NEAR: Final = 1e-4
"""share of the squared lengths below which a distance is computed from differences: its relative
error stays 1e-11"""
DOUBTFUL: Final = 0.125
"""share of rows for which rounding could decide; above it, lengths are taken relative to the
centres"""
MANY_CENTRES: Final = 64
"""centres from which a row's distances lie side by side"""
ROUNDING: Final = 8 * float(np.finfo(np.float64).eps)
UNDERFLOW: Final = 16 * float(np.finfo(np.float64).smallest_subnormal)
"""more than products too small for 64 bits can change, for each feature, in the difference of two
distances"""


def block_rows(n_centres: int, d: int) -> int:
    """Rows per block, so that the arrays computed from a block stay in the cache."""
    elements = FEW_FEATURES_BLOCK_ELEMENTS if d <= FEW_FEATURES else BLOCK_ELEMENTS
    return max(1, elements // max(1, n_centres, d))


def squared_distances(rows: Floats, centres: Floats) -> Floats:
    """rows (n, d), centres (k, d) -> (n, k), never negative, 0 exactly where a row is a centre."""
    if rows.shape[1] <= FEW_FEATURES:
        return squared_by_differences(rows, centres)
    out, lengths, reach = _by_product(rows, centres)
    out += lengths
    doubtful = np.flatnonzero(out.min(axis=0) < NEAR * (lengths + reach))
    if len(doubtful):
        out[:, doubtful] = squared_by_differences(rows[doubtful], centres).T
    return out.T


def nearest_labels(rows: Floats, centres: Floats) -> Ints:
    """rows (n, d), centres (k, d) -> (n,) the centre of the least distance² that
    `squared_by_differences` gives, the lowest of a tie; faster than `nearest` while the rows are
    not far from 0, relative to their spread."""
    if rows.size * len(centres) <= FEW_TERMS:
        least: Ints = squared_by_differences(rows, centres).argmin(axis=1)
        return least.astype(np.int64, copy=False)
    if rows.shape[1] <= FEW_FEATURES:
        relative = squared_by_differences(rows, centres).T
        margin = 0.0
    elif len(centres) >= MANY_CENTRES:
        return _nearest_of_many(rows, centres)
    else:
        factors, terms, margin = _relative_squared(rows, centres)
        relative = factors @ rows.T
        relative += terms[:, None]
    own = relative <= relative.min(axis=0) + margin
    several = np.count_nonzero(own) - len(rows)
    # Written so that it holds for a margin that is not a number, too.
    if several > DOUBTFUL * len(rows) or not margin < np.inf:
        return nearest(rows, centres)[0]
    if several:
        doubt = np.flatnonzero(np.count_nonzero(own, axis=0) > 1)
        own[:, doubt] = False
        own[squared_by_differences(rows[doubt], centres).argmin(axis=1), doubt] = True
    # A product with a matrix takes less time than to look for the one in each column.
    labels: Floats = np.arange(float(len(centres))) @ own.astype(np.float64)
    return labels.astype(np.int64)


def _nearest_of_many(rows: Floats, centres: Floats) -> Ints:
    """rows (n, d), centres (k, d), k > 1 -> (n,) what `nearest_labels` gives.

    The distances of a row lie side by side: where they are many, their least is found in two thirds
    of the time that it takes over the rows of a table (k, n).
    """
    factors, terms, margin = _relative_squared(rows, centres)
    relative = rows @ factors.T
    relative += terms
    row = np.arange(len(rows))
    labels: Ints = relative.argmin(axis=1)
    limits = relative[row, labels] + margin
    relative[row, labels] = np.inf
    doubt = np.flatnonzero(relative[row, relative.argmin(axis=1)] <= limits)
    # Written so that it holds for a margin that is not a number, too.
    if len(doubt) > DOUBTFUL * len(rows) or not margin < np.inf:
        return nearest(rows, centres)[0]
    if len(doubt):
        labels[doubt] = squared_by_differences(rows[doubt], centres).argmin(axis=1)
    return labels.astype(np.int64, copy=False)


def _relative_squared(rows: Floats, centres: Floats) -> tuple[Floats, Floats, float]:
    """rows (n, d), centres (k, d) -> factors (k, d) and terms (k,): the product of a row and a
    factor, plus the term, is the distance² to that centre less a number for each row; and what
    rounding can change in it.

    With the mean m of the centres, |x - c|² - |x - m|² is (c - m)·(c + m) - 2 x·(c - m).
    """
    middle = centres.mean(axis=0)
    d = rows.shape[1]
    gaps = centres - middle
    terms = np.einsum("ij,ij->i", gaps, centres + middle)
    furthest = max(rows.max(initial=0.0), -rows.min(initial=0.0)) + np.abs(centres).max()
    margin = (d + 4) * (ROUNDING * d * float(furthest) ** 2 + UNDERFLOW)
    return -2.0 * gaps, terms, margin


def nearest_centres(rows: Floats, centres: Floats) -> Ints:
    """rows (n, d), centres (k, d), k > 0 -> (n,) the nearest centre, as of `nearest`; in memory
    that does not grow with n k."""
    # Not counted as work: a process that learns few rows and labels them needs no compiled form.
    compiled = forms.PROCESS.compiled_for()
    found = np.empty(len(rows), dtype=np.int64)
    if compiled is not None:
        compiled.nearest_centres(np.ascontiguousarray(rows), np.ascontiguousarray(centres), found)
        return found
    height = block_rows(*centres.shape)
    for first in range(0, len(rows), height):
        part = slice(first, first + height)
        found[part] = nearest_labels(rows[part], centres)
    return found


def squared_to(rows: Floats, points: Floats) -> Floats:
    """rows (n, d), points (n, d) -> (n,) the squared distance of each from its point, summed
    feature by feature."""
    # A feature a row, so that the sums are taken feature by feature.
    gaps = np.empty(rows.shape[::-1])
    np.subtract(rows.T, points.T, out=gaps)
    np.multiply(gaps, gaps, out=gaps)
    return column_sums(gaps)


def nearest(rows: Floats, centres: Floats) -> tuple[Ints, Floats]:
    """rows (n, d), centres (k, d) -> (n,) the nearest centre, the lowest of a tie, and (n,) its
    distance²."""
    own, least = nearest_mask(rows, centres)
    return own.argmax(axis=0).astype(np.int64, copy=False), least


def nearest_mask(rows: Floats, centres: Floats) -> tuple[Bools, Floats]:
    """rows (n, d), centres (k, d) -> (k, n) true at each row's nearest centre, the lowest of a tie,
    and (n,) its distance²."""
    if rows.shape[1] <= FEW_FEATURES:
        squared = squared_by_differences(rows, centres).T
        least = squared.min(axis=0)
        own = squared == least
        doubt = np.zeros(len(rows), dtype=bool)
    else:
        out, lengths, reach = _by_product(rows, centres)
        least = out.min(axis=0)
        scale = lengths + reach
        # All centres that rounding could make the nearest: it changes each of d + 4 terms by a part
        # of the lengths.
        own = out <= least + (rows.shape[1] + 4) * (ROUNDING * scale + UNDERFLOW)
        least += lengths
        doubt = least < NEAR * scale
    if np.count_nonzero(own) > len(rows):
        doubt |= np.count_nonzero(own, axis=0) > 1
    if doubt.any():
        again = squared_by_differences(rows[doubt], centres)
        least[doubt] = again.min(axis=1)
        own[:, doubt] = False
        own[again.argmin(axis=1), np.flatnonzero(doubt)] = True
    return own, least


def _by_product(rows: Floats, centres: Floats) -> tuple[Floats, Floats, float]:
    """rows (n, d), centres (k, d) -> (k, n) distances² less the rows' lengths², these (n,), the
    centres' greatest.

    Lengths are relative to the mean of the centres. A 1 is appended to each row and its length² to
    each centre, which saves two passes over the product. n is the last axis, as NumPy is slow at
    many short rows.
    """
    n, d = rows.shape
    middle = centres.mean(axis=0)
    near = np.ones((n, d + 1))
    centred = centres - middle
    np.subtract(rows, middle, out=near[:, :d])
    lengths = np.einsum("ij,ij->i", near[:, :d], near[:, :d])
    reach = np.einsum("ij,ij->i", centred, centred)
    return (
        np.concatenate([-2.0 * centred, reach[:, None]], axis=1) @ near.T,
        lengths,
        float(reach.max()),
    )


def column_sums(table: Floats) -> Floats:
    """(k, n) -> (n,) the sum of each column, its numbers added one by one in order."""
    # Along the first axis, NumPy adds whole rows in order; but one column it adds in pairs.
    if table.shape[1] == 1:
        return np.asarray(table.cumsum(axis=0)[-1])
    return np.asarray(table.sum(axis=0))


def squared_by_differences(rows: Floats, centres: Floats) -> Floats:
    """rows (n, d), centres (k, d) -> (n, k), summed feature by feature: the same bits whatever the
    other rows are."""
    # The longer of the two is the last axis: otherwise NumPy would run many short loops.
    longer_last = len(rows) < len(centres)
    these, those = (rows, centres) if longer_last else (centres, rows)
    if rows.size * len(centres) <= FEW_TERMS:
        terms = np.empty((rows.shape[1], len(these), len(those)))
        np.subtract(these.T[:, :, None], those.T[:, None, :], out=terms)
        np.multiply(terms, terms, out=terms)
        few = column_sums(terms.reshape(len(terms), -1)).reshape(terms.shape[1:])
        return few if longer_last else few.T
    out = _gaps(these, those, 0, np.empty((len(these), len(those))))
    # A second array only where it is used: it is as large as the result.
    gap = np.empty_like(out) if rows.shape[1] > 1 else out
    for feature in range(1, rows.shape[1]):
        out += _gaps(these, those, feature, gap)
    return out if longer_last else out.T


def _gaps(these: Floats, those: Floats, feature: int, out: Floats) -> Floats:
    """(n, d), (m, d) -> (n, m), in `out`, the squares of the differences in one feature."""
    np.subtract.outer(these[:, feature], np.ascontiguousarray(those[:, feature]), out=out)
    return np.multiply(out, out, out=out)


TABLE_CELLS: Final = 1 << 16
"""distances that are held at once"""
MIDDLE: Final = 0.5
"""a missing value in unit coordinates where there is no point to take it from"""


def nearest_over_present(rows: Floats, points: Floats) -> tuple[Ints, Floats]:
    """rows (n, d) with NaN for missing values, points (k, d) whole, k > 0 -> (n,) the nearest
    point, (n,) distance².

    The squared distance over the features that a row has is scaled by d over their number, which
    makes no difference to which point is nearest. Of equally near points the first is taken. A row
    without any value: the first, at 0.
    """
    nearest = np.empty(len(rows), dtype=np.int64)
    squared = np.empty(len(rows))
    for part in _parts(len(rows), len(points)):
        near = _table(rows[part], points)
        nearest[part] = near.argmin(axis=1)
        squared[part] = near[np.arange(len(near)), nearest[part]]
    d = rows.shape[1]
    present = d - np.isnan(rows).sum(axis=1)
    return nearest, np.where(present == d, squared, squared * (d / np.maximum(present, 1)))


def filled_from(rows: Floats, points: Floats) -> Floats:
    """rows (n, d) with NaN for missing values, points (k, d) whole -> the rows, missing values
    those of the nearest point; `MIDDLE` where there is no point."""
    lacks = np.isnan(rows)
    if not lacks.any():
        return rows
    if not len(points):
        return np.where(lacks, MIDDLE, rows)
    some = np.flatnonzero(lacks.any(axis=1))
    found = rows.copy()
    nearest, _ = nearest_over_present(rows[some], points)
    found[some] = np.where(lacks[some], points[nearest], rows[some])
    return found


def _parts(n: int, k: int) -> Iterator[slice]:
    size = max(1, TABLE_CELLS // k)
    return (slice(first, min(first + size, n)) for first in range(0, n, size))


def _table(rows: Floats, points: Floats) -> Floats:
    """(n, k) sums of squared differences over the features that each row has."""
    table = np.zeros((len(rows), len(points)))
    for column, places in zip(rows.T, np.ascontiguousarray(points.T), strict=True):
        apart = column[:, None] - places
        apart *= apart
        apart[np.isnan(column)] = 0.0
        table += apart
    return table
