"""Novelty of readings: how strange the distance of one from its cluster is.

The novelty of a distance is 1 - p, where p = (1 + earlier distances that are not smaller) / (1 +
earlier distances) is the p-value of conformal anomaly detection (Laxhammar and Falkman 2011, with
distance as nonconformity measure). While readings come from the same distribution, at most a share
1 - q of them has a novelty of q or more. Distances in the same bin count as equal, which can only
make p larger. Every distance is compared with all before it, in order, so any batching gives the
same result.

The features in which a novel reading lies outside are in `usual_values`, runs of novel readings in
`streaks`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shoal.kernels.arrays import Bools, Floats, Ints

NEAREST: Final = 1e-5
"""distances below it are in the first bin, in unit coordinates"""
DECADES: Final = 7
BINS_PER_DECADE: Final = 64
"""a bin is 3.7 % wide"""
BINS: Final = 1 + DECADES * BINS_PER_DECADE
KNOWN_MIN: Final = 100
"""distances that must be known before a novelty is computed"""
KNOWN_MAX: Final = 32_768
"""known distances at which their number is halved: old ones lose weight"""
BLOCK: Final = 256
"""distances that are compared with each other at once"""


def distance_bins(distances: Floats) -> Ints:
    """distances (n,), infinity allowed -> (n,) bins, 0 to `BINS` - 1, in order of distance."""
    decades = np.log10(np.clip(distances, NEAREST, NEAREST * 10.0**DECADES) / NEAREST)
    bins: Ints = 1 + np.minimum(np.floor(decades * BINS_PER_DECADE).astype(np.int64), BINS - 2)
    bins[distances < NEAREST] = 0
    return bins


def middle_distances() -> Floats:
    """(BINS,) a distance in the middle of each bin."""
    middle = NEAREST * 10.0 ** ((np.arange(BINS) - 0.5) / BINS_PER_DECADE)
    middle[0] = 0.5 * NEAREST
    return middle


class Ranked(NamedTuple):
    """What `rank` returns."""

    novelty: Floats
    """(n,) 0 to 1, NaN where fewer than `KNOWN_MIN` distances were known"""
    counts: Ints
    """(BINS,) the histogram after them"""


def rank(bins: Ints, counts: Ints, counted: Bools) -> Ranked:
    """bins (n,) in order, counts (BINS,) of what was known before -> their novelty.

    counted (n,): which of them become known. The inputs are not changed.
    """
    counts = counts.copy()
    novelty = np.empty(len(bins))
    start = 0
    while start < len(bins):
        known = int(counts.sum())
        if known >= KNOWN_MAX:
            counts = halve(counts)
            known = int(counts.sum())
        # A piece ends where the histogram is halved, so that halving comes after the same distance
        # in any batching.
        piece = slice(start, start + min(BLOCK, KNOWN_MAX - known))
        own = bins[piece]
        becomes_known = counted[piece]
        at_least = np.cumsum(counts[::-1])[::-1][own]
        # Those of this piece that come before, which are below the diagonal.
        is_at_least = (own[None, :] >= own[:, None]) & becomes_known[None, :]
        at_least += np.tril(is_at_least, -1).sum(axis=1)
        before = known + np.cumsum(becomes_known) - becomes_known
        novelty[piece] = np.where(before < KNOWN_MIN, np.nan, 1.0 - (1 + at_least) / (1 + before))
        counts += np.bincount(own[becomes_known], minlength=BINS)
        start += len(own)
    return Ranked(novelty, counts)


def halve(counts: Ints) -> Ints:
    """counts (BINS,) -> half of them; the share beyond each bin stays as it was to within one.

    Bin by bin, every count of 1 would vanish, and the rare far distances with them.
    """
    # Rounded up from the far end: the farthest reading stays for as long as any does.
    beyond = (np.cumsum(counts[::-1]) + 1) // 2
    return np.ascontiguousarray(np.diff(beyond, prepend=0)[::-1])
