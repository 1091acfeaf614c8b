"""k-means on rows with weights: sums behind centres, Lloyd's steps, and seeds that a row's removal does not disturb."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.distance import Floats, block_rows, nearest, owners

Words = NDArray[np.uint64]

MASS_MIN: Final = 1e-290
"""what lies below has lost the digits that a quotient needs"""
STILL: Final = 1e-3
"""of the rows' standard deviation: centres that move less have arrived"""
_STEP: Final = 0x9E3779B97F4A7C15


def assigned(rows: Floats, centres: Floats, weights: Floats | None = None) -> tuple[Floats, Floats, float]:
    """rows (n, d), centres (k, d), weights (n,) -> per centre the mass (k,) and sum (k, d) of its rows; the inertia."""
    count, total, inertia = np.zeros(len(centres)), np.zeros_like(centres), 0.0
    height = block_rows(*centres.shape)
    for first in range(0, len(rows), height):
        part = slice(first, first + height)
        gained = gathered(rows[part], centres, None if weights is None else weights[part])
        count += gained[0]
        total += gained[1]
        inertia += gained[2]
    return count, total, inertia


def gathered(block: Floats, centres: Floats, weights: Floats | None = None) -> tuple[Floats, Floats, float]:
    """As `assigned`, of so few rows that what is made of them stays in the cache."""
    own, least = owners(block, centres)
    shares = own.astype(np.float64)
    if weights is not None:
        shares *= weights
        least = least * weights
    return shares.sum(axis=1), shares @ block, float(least.sum())


def means(count: Floats, total: Floats, otherwise: Floats) -> Floats:
    """mass (k,), sums (k, d) -> means (k, d); `otherwise` where there is no mass to divide by."""
    held = count > MASS_MIN
    out = otherwise.copy()
    out[held] = total[held] / count[held, None]
    return out


def lloyd(
    rows: Floats, centres: Floats, steps: int, tolerance: float = 0.0, weights: Floats | None = None
) -> tuple[Floats, float]:
    """Steps from `centres` (k, d) until none moves farther than `tolerance` -> centres (k, d), inertia before the last.

    A centre with no row stays where it is.
    """
    inertia = 0.0
    for _ in range(steps):
        count, total, inertia = assigned(rows, centres, weights)
        before, centres = centres, means(count, total, centres)
        if np.abs(centres - before).max() <= tolerance:
            break
    return centres, inertia


def best_of(rows: Floats, k: int, seed: int, starts: int, steps: int, weights: Floats | None = None) -> Floats:
    """k-means from `starts` seedings -> the centres (<= k, d) of least inertia, the first of equals."""
    still = STILL * float(np.std(rows / (scale := np.abs(rows).max() or 1.0))) * scale
    runs = [lloyd(rows, rows[seeds(rows, k, seed + start, weights)], steps, still, weights) for start in range(starts)]
    return min(runs, key=lambda run: run[1])[0]


def seeds(rows: Floats, k: int, seed: int, weights: Floats | None = None) -> NDArray[np.int64]:
    """k-means++ -> positions of at most k rows, in the order of choice; fewer where fewer differ.

    Each row draws its luck from its own bits, so the choice is the one that the distances to the seeds before
    demand (D², times the weight), does not depend on the order of the rows, and stays as it is when a row that was
    not chosen is removed. Equal rows draw one after the other.
    """
    if not len(rows):
        return np.empty(0, dtype=np.int64)
    words = row_words(rows, seed)
    chance = np.ones(len(rows)) if weights is None else weights.astype(np.float64)
    least = np.full(len(rows), np.inf)
    found: list[int] = []
    for step in range(min(k, len(rows))):
        share = chance if step == 0 else chance * (least / max(float(least.max()), np.finfo(np.float64).tiny))
        if not share.max() > 0.0:
            break
        # Each waits for an exponential time at the rate of its share; who is first is chosen with that probability.
        # (In logarithms, because a share can be the smallest number there is.)
        with np.errstate(divide="ignore"):
            found.append(int(np.argmin(np.log(_exponential(words, step)) - np.log(share))))
        np.minimum(least, nearest(rows, rows[found[-1:]])[1], out=least)
    return np.array(found, dtype=np.int64)


def row_words(rows: Floats, seed: int) -> Words:
    """rows (n, d) -> 64 bits for each, from its own values and how many equal rows stand before it."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    words = np.full(len(rows), _mixed(np.array([seed % 2**64], dtype=np.uint64))[0])
    for feature in range(rows.shape[1]):
        words = _mixed(words ^ bits[:, feature])
    order = np.argsort(words, kind="stable")
    fresh = np.ones(len(rows), dtype=bool)
    fresh[1:] = words[order][1:] != words[order][:-1]
    if not fresh.all():
        place = np.arange(len(rows))
        before = place - np.maximum.accumulate(np.where(fresh, place, 0))
        words[order] = _mixed(words[order] + before.astype(np.uint64))
    return words


def _exponential(words: Words, step: int) -> Floats:
    """64 bits each -> exponentially distributed numbers above 0, others for every step."""
    uniform = (_mixed(words + np.uint64(_STEP * (step + 1) % 2**64)) >> np.uint64(11)).astype(np.float64)
    return np.asarray(-np.log((uniform + 0.5) * 2.0**-53))


def _mixed(words: Words) -> Words:
    """Steele, Lea and Flood's finaliser (SplittableRandom, 2014): every bit in changes half of the bits out."""
    words = words + np.uint64(_STEP)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
