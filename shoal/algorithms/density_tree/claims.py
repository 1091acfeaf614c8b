"""What an update of density_tree may claim: counts that its number of readings can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.algorithms.claims import ROUNDING_SHARE, Claims, require_possible
from shoal.algorithms.counting import check_block_sums, check_private_counts
from shoal.algorithms.density_tree.leaf import BINS
from shoal.algorithms.density_tree.options import DensityTreeOptions
from shoal.algorithms.density_tree.region import windows_max
from shoal.algorithms.streaming import Arrays


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for counts that this number of readings cannot have, whatever the noise.

    They are of one window of a client, or of all windows that a region has added up.
    """
    parsed = DensityTreeOptions.parse(options)
    _check_blocks(arrays, claims)
    if "windows" in arrays:
        _check_region(parsed, arrays, claims)
    else:
        _check_window(parsed, arrays, claims)


def _check_blocks(arrays: Arrays, claims: Claims) -> None:
    """Rules that hold for the blocks of a client and of a region."""
    cells = arrays["cells"]
    require_possible(
        int(arrays["places"][0]) == claims.readings, "its window has other readings than the update"
    )
    for name in ("leaf", "axis", "epoch"):
        require_possible(bool((arrays[name] >= 0).all()), f"{name} holds a number below 0")
    require_possible(
        bool((cells <= 2 * BINS).all()), "a block has more cells than an axis can have"
    )
    require_possible(
        int(cells.sum()) == len(arrays["count"]),
        "the cells of its blocks do not add up to its counts",
    )


def _check_window(options: DensityTreeOptions, arrays: Arrays, claims: Claims) -> None:
    readings = claims.readings
    counts = arrays["count"]
    cells = arrays["cells"]
    require_possible(readings <= options.window_readings, "it has more readings than a window")
    check_private_counts(counts, readings, options.noise_variance)
    check_block_sums(counts, cells, readings, options.noise_variance, np.ones_like(cells))


def _check_region(options: DensityTreeOptions, arrays: Arrays, claims: Claims) -> None:
    full = options.window_readings
    variance = options.noise_variance
    counts = arrays["count"]
    cells = arrays["cells"]
    windows = arrays["windows"]
    most = min(claims.readings, windows_max(claims.readings, full))
    require_possible(bool((windows <= most).all()), "it has more windows than its readings make")
    if options.axes_per_window:
        # With masked counts, what has one noise is no window but a batch, of any number of clients.
        full = claims.readings
    readings = np.minimum(claims.readings, windows.astype(np.float64) * full)
    is_exposed = bool((arrays["exposure"] <= readings * (1.0 + ROUNDING_SHARE)).all())
    require_possible(is_exposed, "exposure is above the readings of its windows")
    check_private_counts(counts, claims.readings, variance, np.repeat(windows, cells), full)
    check_block_sums(counts, cells, claims.readings, variance, windows)
