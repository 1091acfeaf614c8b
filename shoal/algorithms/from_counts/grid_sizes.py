"""Sizes of the public grid: plain numbers, so that a report on settings loads no algorithm."""

from __future__ import annotations

from typing import Final

# Measured at two features: cluster_tree on rows from 32 x 32 cells finds moons, bars and blobs with
# the right number from an epsilon of 1 on.
CELLS_ALONG: Final = {1: 64, 2: 32, 3: 16}
"""number of features -> cells along each of them"""
FEATURES_MAX: Final = max(CELLS_ALONG)
