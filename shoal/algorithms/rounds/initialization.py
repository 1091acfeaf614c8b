"""Initialisation of centres, before any client has answered."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.rounds.options import needs_another_model
from shoal.errors import SettingsError
from shoal.kernels.distance import Floats
from shoal.kernels.lloyd import best_kmeans

STARTS: Final = 10
STEPS: Final = 100


def starting_centres(clusters: int | str, d: int, hint: InitHint) -> Floats:
    """The points of the hint, reduced to `clusters` by weighted k-means if there are more, and filled up with uniformly
    random points in the box if there are fewer.

    -> (k, d).  Raises `SettingsError` when "auto" or a criterion has no points, or the hint is of other features.
    """
    if hint.low.shape != (d,) or hint.high.shape != (d,):
        raise SettingsError(f"the box of the hint has {len(hint.low)} features, the rows have {d}")
    points = np.empty((0, d)) if hint.points is None else np.asarray(hint.points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != d:
        raise SettingsError(f"the points of the hint have shape {points.shape}; they must have {d} features")
    if needs_another_model(clusters):
        if not len(points):
            raise SettingsError(
                f'clusters = "{clusters}" needs a model to start from that has found some; or give a number'
            )
        return points.copy()
    k = int(clusters)
    found = points if len(points) <= k else best_kmeans(points, k, hint.seed, STARTS, STEPS, hint.weights)
    generator = np.random.default_rng(hint.seed)
    return np.concatenate([found, generator.uniform(hint.low, hint.high, size=(k, d))[len(found) :]])
