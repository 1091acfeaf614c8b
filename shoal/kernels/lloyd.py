"""k-means on weighted rows: sums per centre, Lloyd's algorithm, and k-means++ that is stable when a
row is removed."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.kernels import forms
from shoal.kernels.arrays import Floats, Ints, Words
from shoal.kernels.constants import FEW_FEATURES, GOLDEN_RATIO
from shoal.kernels.distance import block_rows, nearest, nearest_labels, nearest_mask

MASS_MIN: Final = 1e-290
"""smaller masses have lost the digits that a quotient needs"""
STILL: Final = 1e-3
"""share of the rows' standard deviation; centres that move less have converged"""
SHARE_OF_LEARNING: Final = 0.01
"""time to assign a row, relative to that in which CA+ learns one: how soon the compiled form is
worth loading"""
FEW_CENTRES: Final = 1 << 12
"""values per centre above which a sum for each centre takes less time than all together"""


def assign(
    rows: Floats, centres: Floats, weights: Floats | None = None
) -> tuple[Floats, Floats, float]:
    """rows (n, d), centres (k, d), weights (n,) -> mass (k,) and sum (k, d) of each centre's rows,
    inertia."""
    count = np.zeros(len(centres))
    total = np.zeros_like(centres)
    inertia = 0.0
    height = block_rows(*centres.shape)
    for first in range(0, len(rows), height):
        part = slice(first, first + height)
        own, least = nearest_mask(rows[part], centres)
        shares = own.astype(np.float64)
        if weights is not None:
            shares *= weights[part]
            least = least * weights[part]
        count += shares.sum(axis=1)
        total += shares @ rows[part]
        inertia += float(least.sum())
    return count, total, inertia


def assign_block(
    block: Floats, centres: Floats, weights: Floats | None = None
) -> tuple[Floats, Floats, float]:
    """Assign a block whose arrays stay in the cache, with bits that depend on rows and centres
    alone.

    The sums of `assign` are a product, whose last bits depend on the processor.

    Masses and sums are taken row by row in order, and the squared differences of all rows as one
    array, so that the compiled form can compute the same bits.
    """
    k = len(centres)
    compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(block))
    if compiled is not None:
        count = np.zeros(k)
        total = np.zeros_like(centres)
        # No weights are an empty array, as a kernel's argument has one type.
        weight = np.empty(0)
        if weights is not None:
            weight = np.ascontiguousarray(weights, dtype=np.float64)
        rows = np.ascontiguousarray(block)
        centres = np.ascontiguousarray(centres)
        return (
            count,
            total,
            compiled.assign_rows(rows, centres, weight, count, total, compiled.loops),
        )
    labels = nearest_labels(block, centres)
    gaps = centres.take(labels, axis=0)
    gaps -= block
    np.multiply(gaps, gaps, out=gaps)
    if weights is not None:
        gaps *= weights[:, None]
        block = block * weights[:, None]
    count = np.bincount(labels, weights, k).astype(np.float64, copy=False)
    return count, sums_by_label(block, labels, k), float(gaps.ravel().sum())


def sums_by_label(rows: Floats, labels: Ints, k: int) -> Floats:
    """rows (n, d), labels (n,) -> (k, d) the sum of the rows of each label, added one by one in
    order."""
    n, d = rows.shape
    if d <= FEW_FEATURES:
        return np.stack([np.bincount(labels, rows[:, feature], k) for feature in range(d)], axis=1)
    if n * d < FEW_CENTRES * k:
        places = labels[:, None] * d + np.arange(d)
        return np.asarray(
            np.bincount(places.ravel(), rows.ravel(), k * d), dtype=np.float64
        ).reshape(k, d)
    total = np.empty((k, d))
    # NumPy sorts whole numbers of 8 or 16 bits by radix, in linear time; stable, so rows keep their
    # order.
    ordered = rows.take(np.argsort(labels.astype(np.min_scalar_type(k)), kind="stable"), axis=0)
    first = 0
    for label, last in enumerate(np.cumsum(np.bincount(labels, minlength=k)).tolist()):
        # Along the first axis, NumPy adds whole rows in order.
        np.add.reduce(ordered[first:last], axis=0, out=total[label])
        first = last
    return total


def means(count: Floats, total: Floats, otherwise: Floats) -> Floats:
    """mass (k,), sums (k, d) -> means (k, d); `otherwise` where there is no mass to divide by."""
    held = count > MASS_MIN
    out = otherwise.copy()
    out[held] = total[held] / count[held, None]
    return out


def lloyd(
    rows: Floats, centres: Floats, steps: int, tolerance: float = 0.0, weights: Floats | None = None
) -> tuple[Floats, float]:
    """Lloyd's algorithm from `centres` (k, d) until none moves farther than `tolerance`, at most
    `steps` steps.

    -> centres (k, d), and the inertia before the last step. A centre without rows keeps its
    position.
    """
    inertia = 0.0
    for _ in range(steps):
        count, total, inertia = assign(rows, centres, weights)
        before = centres
        centres = means(count, total, centres)
        if np.abs(centres - before).max() <= tolerance:
            break
    return centres, inertia


def best_kmeans(
    rows: Floats, k: int, seed: int, starts: int, steps: int, weights: Floats | None = None
) -> Floats:
    """k-means from `starts` initialisations -> the centres (<= k, d) of least inertia, the first of
    equals."""
    # Scaled, so that squares of large values do not overflow.
    still = STILL * float(np.std(rows / (scale := np.abs(rows).max() or 1.0))) * scale
    runs = [
        lloyd(rows, rows[kmeans_plusplus(rows, k, seed + start, weights)], steps, still, weights)
        for start in range(starts)
    ]
    # Of equal inertias the run with the lowest seed: `min` takes the first.
    return min(runs, key=lambda run: run[1])[0]


def kmeans_plusplus(rows: Floats, k: int, seed: int, weights: Floats | None = None) -> Ints:
    """k-means++ -> positions of at most k rows, in the order of choice; fewer where fewer differ.

    Rows are drawn with probability proportional to D², the squared distance to the rows chosen
    before, times the weight. Each row takes its random number from its own bits, so the choice does
    not depend on the order of the rows, and stays the same when a row that was not chosen is
    removed. Equal rows get different random numbers.
    """
    if not len(rows):
        return np.empty(0, dtype=np.int64)
    words = row_hashes(rows, seed)
    chance = np.ones(len(rows)) if weights is None else weights.astype(np.float64)
    least = np.full(len(rows), np.inf)
    found: list[int] = []
    for step in range(min(k, len(rows))):
        share = chance
        if step > 0:
            # Relative to the largest, so that squares of tiny distances do not vanish; 0 where all
            # rows are chosen.
            share = chance * (least / max(float(least.max()), np.finfo(np.float64).tiny))
        if not share.max() > 0.0:
            break
        # The smallest of exponentially distributed times, one per row at the rate of its share,
        # belongs to each row with the probability of its share. (In logarithms, because a share can
        # be the smallest float64.)
        with np.errstate(divide="ignore"):
            found.append(int(np.argmin(np.log(_exponential(words, step)) - np.log(share))))
        np.minimum(least, nearest(rows, rows[found[-1:]])[1], out=least)
    return np.array(found, dtype=np.int64)


def row_hashes(rows: Floats, seed: int) -> Words:
    """rows (n, d) -> 64 pseudo-random bits for each, from its own values and the number of equal
    rows before it."""
    # Plus 0: rows with 0 and with -0 are equal, and have to have the same bits.
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    words = np.full(len(rows), _mix64(np.array([seed % 2**64], dtype=np.uint64))[0])
    for feature in range(rows.shape[1]):
        words = _mix64(words ^ bits[:, feature])
    # Stable: equal rows have equal words, and the first of them stays the first.
    order = np.argsort(words, kind="stable")
    fresh = np.ones(len(rows), dtype=bool)
    fresh[1:] = words[order][1:] != words[order][:-1]
    if not fresh.all():
        place = np.arange(len(rows))
        before = place - np.maximum.accumulate(np.where(fresh, place, 0))
        words[order] = _mix64(words[order] + before.astype(np.uint64))
    return words


def _exponential(words: Words, step: int) -> Floats:
    """64 bits each -> exponentially distributed numbers above 0, different ones for every step."""
    uniform = (
        _mix64(words + np.uint64(GOLDEN_RATIO * (step + 1) % 2**64)) >> np.uint64(11)
    ).astype(np.float64)
    # Half a step up, so that it is never 0, whose logarithm is infinite; 53 bits, so that the whole
    # number is exact as a float.
    return np.asarray(-np.log((uniform + 0.5) * 2.0**-53))


def _mix64(words: Words) -> Words:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit changes half of
    the output bits."""
    words = words + np.uint64(GOLDEN_RATIO)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
