"""Two axes to draw nodes of many features on, chosen so that the drawing keeps still while people look at it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]

KEPT_SHARE = 0.9
"""axes stay as they are while they show at least this much of the spread that the best ones would"""
POINTS_MAX = 256
"""points that decide on the axes, where there are more features than that"""
TILT = np.array([2e-9, 1e-9])
"""far below any spread that matters; it decides which axes stand where the points decide nothing"""


def principal_axes(points: Points) -> Points:
    """points (n, d), d >= 2 -> (d, 2) orthonormal: the directions of most spread, the same for the same points.

    Where the points spread in fewer than two directions, the first features fill in. The sign of an axis
    is such that its largest loading is positive.
    """
    features = points.shape[1]
    centred = points - points.mean(axis=0) if len(points) else points
    tilt = np.zeros((2, features))
    tilt[0, 0], tilt[1, 1] = TILT
    axes = np.linalg.svd(np.vstack([centred, tilt]), full_matrices=False)[2][:2].T
    largest = axes[np.abs(axes).argmax(axis=0), [0, 1]]
    return np.asarray(axes * np.where(largest < 0, -1.0, 1.0))


def spread(points: Points, axes: Points) -> float:
    """points (n, d), axes (d, k) -> the summed squares of the points about their mean that the axes show."""
    if not len(points):
        return 0.0
    return float(np.square((points - points.mean(axis=0)) @ axes).sum())


def steady_axes(points: Points, before: Points | None) -> Points:
    """The axes for `points` (n, d), given those of the drawing before: (d, 2), or None at first.

    The axes stay while they show the points well. When they must change, the new ones span the best
    plane, turned within it to lie as near to the old ones as they can (orthogonal Procrustes problem:
    Schönemann 1966), so that a drawing neither flips nor spins.
    """
    best = principal_axes(points)
    if before is None:
        return best
    if spread(points, before) >= KEPT_SHARE * spread(points, best):
        return before
    left, _, right = np.linalg.svd(best.T @ before)
    return np.asarray(best @ (left @ right))


def deciding(points: Points, count: NDArray[np.float64]) -> Points:
    """The points (n, d) that decide on the axes: all, or the most-won ones where features are very many."""
    if min(points.shape) <= POINTS_MAX:
        return points
    return points[np.sort(np.argsort(-count, kind="stable")[:POINTS_MAX])]
