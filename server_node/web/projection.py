"""The two axes of the map where there are more than two features: principal axes that change as rarely as possible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]

KEEP_SHARE_MIN = 0.9
"""axes are kept while they explain at least this share of the variance that the principal axes would"""
POINTS_MAX = 256
"""points that the axes are fitted to, where there are more features than that"""
TIE_BREAK = np.array([2e-9, 1e-9])
"""far below any variance that matters; it selects the axes where the points leave them undetermined"""


def principal_axes(points: Points) -> Points:
    """points (n, d), d >= 2 -> (d, 2) orthonormal: the directions of most variance.

    The same points give the same axes: where they vary in fewer than two directions, the first features fill in,
    and the sign of an axis makes its largest loading positive.
    """
    features = points.shape[1]
    centred = points - points.mean(axis=0) if len(points) else points
    tie_break = np.zeros((2, features))
    tie_break[0, 0], tie_break[1, 1] = TIE_BREAK
    axes = np.linalg.svd(np.vstack([centred, tie_break]), full_matrices=False)[2][:2].T
    largest = axes[np.abs(axes).argmax(axis=0), [0, 1]]
    return np.asarray(axes * np.where(largest < 0, -1.0, 1.0))


def scatter(points: Points, axes: Points) -> float:
    """points (n, d), axes (d, k) -> the squared deviations of the points from their mean, summed over the axes."""
    if not len(points):
        return 0.0
    return float(np.square((points - points.mean(axis=0)) @ axes).sum())


def steady_axes(points: Points, before: Points | None) -> Points:
    """Axes (d, 2) for `points` (n, d), given those used before: (d, 2), or None at first.

    The axes are kept while they explain the points well. When they must change, the new ones span the best
    plane and are rotated within it to be as near to the old ones as possible (orthogonal Procrustes problem:
    Schönemann 1966), so that the map neither flips nor spins.
    """
    best = principal_axes(points)
    if before is None:
        return best
    if scatter(points, before) >= KEEP_SHARE_MIN * scatter(points, best):
        return before
    left, _, right = np.linalg.svd(best.T @ before)
    return np.asarray(best @ (left @ right))


def axis_sample(points: Points, count: NDArray[np.float64]) -> Points:
    """The points (n, d) that the axes are fitted to: all, or those with the highest count where features are many."""
    if min(points.shape) <= POINTS_MAX:
        return points
    return points[np.sort(np.argsort(-count, kind="stable")[:POINTS_MAX])]
