"""The first centres of an algorithm in rounds: what another model has found, and random points."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.algorithms.options import needs_another_model
from shoal.algorithms.rounds.base import InitHint
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.lloyd import best_kmeans

STARTS: Final = 10
"""initialisations of k-means on the points of a hint, of which the best counts"""
STEPS: Final = 100
"""steps of Lloyd's algorithm from each of them, at most"""


def starting_centres(clusters: int | str, d: int, hint: InitHint) -> Floats:
    """The points of the hint, reduced or filled up to `clusters` -> (k, d).

    More points are reduced by weighted k-means, fewer are filled up with uniformly random points in
    the box. Raises `SettingsError` when "auto" or a criterion has no points, or the hint is of
    other features.
    """
    if hint.low.shape != (d,) or hint.high.shape != (d,):
        raise SettingsError(f"the box of the hint has {len(hint.low)} features, the rows have {d}")
    points = np.empty((0, d)) if hint.points is None else np.asarray(hint.points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != d:
        raise SettingsError(
            f"the points of the hint have shape {points.shape}; they must have {d} features"
        )
    if needs_another_model(clusters):
        if not len(points):
            raise SettingsError(
                f'clusters = "{clusters}" needs a `source` that has found some; or give a number'
            )
        return points.copy()
    k = int(clusters)
    if len(points) > k:
        points = best_kmeans(points, k, hint.seed, STARTS, STEPS, hint.weights)
    # All k are drawn, however few are needed: so a random centre does not depend on how many points
    # there are.
    drawn = np.random.default_rng(hint.seed).uniform(hint.low, hint.high, size=(k, d))
    return np.concatenate([points, drawn[len(points) :]])
