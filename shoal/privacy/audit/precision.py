"""The precision attack: outputs that only one of two readings can give identify it with certainty.

Noise that is computed in floating point has holes: from a given reading not every double near it can be reached, and
which ones can depends on the reading (Mironov 2012, "On Significance of the Least Significant Bits for Differential
Privacy"). Noise from integer tables on a public grid has none: all readings can give the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shoal.privacy.audit.statistics import Loss, loss_from_guesses
from shoal.privacy.laplace import DiscreteLaplace

Values = NDArray[np.float64]
NoiseValues = Callable[[Values], Values]
"""one feature of n readings, in unit coordinates -> the same feature of their rows"""
Reachable = Callable[[Values, float], NDArray[np.bool_]]
"""rows (n,) and a reading -> (n,) whether the reading can give each row"""

UNIFORM_BITS = 53
"""numpy draws its uniform numbers in steps of 2^-53"""
BATCH = 100_000
"""outputs that are attacked at once"""

_log = np.frompyfunc(math.log, 1, 1)
"""the logarithm of the C library, which numpy's generator uses; `np.log` may round otherwise in the last bit"""


def attack_precision(
    release: NoiseValues,
    reachable: Reachable,
    readings: tuple[float, float],
    trials: int,
    generator: np.random.Generator,
) -> Loss:
    """Count the outputs that tell with certainty which of two readings gave them: those that not both can give.

    An output that neither can give counts as well: it is not of the public set that all readings share.
    """
    certain = 0
    for start in range(0, trials, BATCH):
        first = generator.integers(0, 2, size=min(BATCH, trials - start)).astype(np.bool_)
        rows = release(np.where(first, readings[0], readings[1]))
        certain += int((~(reachable(rows, readings[0]) & reachable(rows, readings[1]))).sum())
    return loss_from_guesses(trials, certain, certain)


def reachable_on_grid(noise: DiscreteLaplace) -> Reachable:
    """What the mechanism of `formal` can give from any reading: odd numbers of half steps, up to its margin."""

    def reachable(rows: Values, reading: float) -> NDArray[np.bool_]:
        half_steps = np.rint(rows * 2 * noise.steps)
        low, high = noise.reach()
        on_grid = (half_steps % 2 == 1) & (half_steps / (2 * noise.steps) == rows)
        return np.asarray(on_grid & (rows >= low) & (rows <= high))

    return reachable


def reachable_by_numpy(scale: float) -> Reachable:
    """What `numpy.random.Generator.laplace` of this scale, added to a reading, can give.

    It returns ± scale * ln V with V a multiple of 2^-53 in (0, 1]; the V near the one that fits best are tried.
    """
    width = math.ceil(8.0 / scale) + 8
    unit = 2.0**-UNIFORM_BITS

    def reachable(rows: Values, reading: float) -> NDArray[np.bool_]:
        noise = rows - reading
        best = np.rint(np.exp(-np.abs(noise) / scale) / unit)
        found = np.zeros(len(rows), dtype=np.bool_)
        for step in range(-width, width + 1):
            number = np.clip(best + step, 1.0, 1.0 / unit)
            size = scale * _log(number * unit).astype(np.float64)
            found |= reading + np.where(noise < 0, size, -size) == rows
        return found

    return reachable
