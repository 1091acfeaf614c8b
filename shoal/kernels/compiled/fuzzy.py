"""Memberships of rows of few features in centres, squared, in one pass over the distances of a tile
of rows.

The fuzzifier is 2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.distance import TILE, flat_distances
from shoal.kernels.compiled.intrinsics import CONST_FLOAT64_2D, FLOAT64_2D
from shoal.kernels.constants import FEW_FEATURES

SIGNATURE = types.void(CONST_FLOAT64_2D, CONST_FLOAT64_2D, FLOAT64_2D)


@njit(forceinline=True, error_model="numpy")
def set_shares(squared: Any, least: Any, scale: Any) -> None:
    """Replace distances² (k, TILE) by shares, and set `scale` (TILE,) to what makes those of a row
    add up to 1."""
    least[:] = math.inf
    scale[:] = 0.0
    for c in range(len(squared)):
        line = squared[c]
        for i in range(TILE):
            least[i] = line[i] if line[i] < least[i] else least[i]
    for c in range(len(squared)):
        line = squared[c]
        for i in range(TILE):
            part = least[i] / line[i]
            on_centre = 1.0 if line[i] == 0.0 else 0.0
            line[i] = part if least[i] > 0.0 else on_centre
            scale[i] += line[i]
    for i in range(TILE):
        scale[i] = 1.0 / scale[i]


def kernel(sources: str) -> Any:
    """rows (n, d), centres (k, d) -> sets the weights (k, n) of
    `shoal.kernels.fuzzy.fuzzy_weights`."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def fuzzy_weights(rows: Any, centres: Any, weights: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n = len(rows)
        k = len(centres)
        columns = np.zeros((FEW_FEATURES, TILE))
        squared = np.zeros((k, TILE))
        least = np.empty(TILE)
        scale = np.empty(TILE)
        for first in range(0, n, TILE):
            flat_distances(rows[first : first + TILE], centres, columns, squared)
            set_shares(squared, least, scale)
            for c in range(k):
                line = weights[c][first : first + TILE]
                shares = squared[c]
                for i in range(len(line)):
                    membership = shares[i] * scale[i]
                    line[i] = membership * membership

    return fuzzy_weights
