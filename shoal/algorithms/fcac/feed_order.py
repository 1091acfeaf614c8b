"""The order in which the server learns the nodes of several clients (paper, 4.3.1; Algorithm 3)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Permute = Callable[[str, int], Positions]
"""("high" or "low", n) -> a permutation of 0..n-1; called with "high" first"""


def feed_order(counts: Sequence[NDArray[np.int64]], permute: Permute) -> tuple[Positions, Positions]:
    """Winning counts (n_i,) of each client -> positions in their concatenation: the high group, then the low one.

    A node is high when its count reaches the 75th percentile of its own client (linear interpolation). The
    groups are taken over the clients in the order given, and each is permuted. A client may have no nodes.
    """
    high = [client >= upper_quartile(client) for client in counts if len(client)]
    is_high = np.concatenate([np.empty(0, dtype=np.bool_), *high])
    highs, lows = np.flatnonzero(is_high), np.flatnonzero(~is_high)
    return highs[permute("high", len(highs))], lows[permute("low", len(lows))]


def upper_quartile(counts: NDArray[np.int64]) -> float:
    """counts (n,), n > 0 -> their 75th percentile with the bits of `np.percentile`, which takes ten times as long."""
    place = 0.75 * (len(counts) - 1)
    below = int(place)
    ordered = np.sort(counts)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(counts) - 1)])
    share = place - below
    # As NumPy does: from the nearer end.
    return high - (high - low) * (1.0 - share) if share >= 0.5 else low + (high - low) * share


def keyed_permutation(key: bytes) -> Permute:
    """A permutation that is a pure function of `key`, the same on every platform and in every version.

    It sorts n little-endian words of 64 bits, taken from SHAKE-256 of the key and the name of the group.
    """

    def permute(group: str, n: int) -> Positions:
        words = hashlib.shake_256(key + group.encode()).digest(8 * n)
        return np.argsort(np.frombuffer(words, dtype="<u8"), kind="stable").astype(np.int64)

    return permute


def legacy_permutation(seed: int = 0) -> Permute:
    """The permutation of the paper's experiments: one Mersenne Twister for both groups, the high group first."""
    generator = np.random.RandomState(seed)

    def permute(group: str, n: int) -> Positions:
        return generator.permutation(n).astype(np.int64)

    return permute
