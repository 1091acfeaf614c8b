"""Axes along which a stream jumps: the directions in which blocks follow each other slowly, and
differ from the block before seldom and by much."""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.algorithms.states.plan import (
    CELLS,
    CODEBOOK_POINTS_MAX,
    COLUMNS_MAX,
    SHRINKAGE,
    ScalePlan,
    Scaling,
    generalised_eigh,
    make_codewords,
)
from shoal.kernels.arrays import Floats

AXES: Final = (1, 2, 4)
"""leading axes of a plan: two states differ along one, and what drifts beside them hides them in
more; several states take more"""
BLOCKS_MIN: Final = 60
"""blocks below which nothing is told"""
SQUARE_MAX: Final = 100.0
"""squared step, in its units, to which the weight of a step is clipped: ten deviations are a jump,
and one outlier is no axis"""


def jump_plans(blocks: Floats, w: int) -> list[ScalePlan]:
    """Features (n, m) of blocks of w readings, NaN where unknown -> a plan for each number of
    leading axes; none where no direction is slower than noise.

    The slow directions are those of time-lagged independent component analysis (Perez-Hernandez et
    al., Journal of Chemical Physics 139, 2013). Within them, the steps from block to block are made
    white, and rotated to the directions of the largest fourth moment (FOBI; Cardoso, "Source
    separation using higher order moments", ICASSP 1989). What wanders or turns has steps of every
    size, so that a column which drifts is no axis, however slow it is; what dwells and jumps has
    hardly any steps and a few large ones.
    """
    is_known = np.asarray(~np.isnan(blocks).any(axis=1), dtype=np.bool_)
    both = is_known[1:] & is_known[:-1]
    n = int(both.sum())
    if n < BLOCKS_MIN:
        return []
    known = blocks[is_known]
    # The floor: a feature that never varies is divided by something small and stays 0.
    deviation = np.sqrt(np.maximum(known.var(axis=0), 1e-12))
    scaling = Scaling(w, known.mean(axis=0), deviation)
    standard = scaling.standardize(blocks)
    first = standard[:-1][both]
    second = standard[1:][both]
    origin = (first.mean(axis=0) + second.mean(axis=0)) / 2
    first = first - origin
    second = second - origin
    slow = _slow_directions(first, second)
    if slow is None:
        return []
    steps = (second - first) @ slow
    covariance = steps.T @ steps / n
    q = len(covariance)
    values, vectors = np.linalg.eigh(covariance + np.eye(q) * 1e-6 * np.trace(covariance) / q)
    whitening = vectors / np.sqrt(values) @ vectors.T
    white = steps @ whitening
    weight = np.minimum((white**2).sum(axis=1), SQUARE_MAX)
    _, vectors = np.linalg.eigh((white * weight[:, None]).T @ white / n)
    # Eigenvalues ascend, so that the last vectors are the axes of the largest moment.
    axes = slow @ whitening @ vectors[:, ::-1]
    # The sign of an eigenvector is arbitrary: its largest entry is made positive.
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(q)])
    points = (standard[is_known] - origin) @ axes
    spread = points.std(axis=0)
    axes /= spread
    points /= spread
    if len(points) > CODEBOOK_POINTS_MAX:
        points = points[np.linspace(0, len(points) - 1, CODEBOOK_POINTS_MAX).astype(np.int64)]
    plans = []
    for number in AXES:
        if number <= q:
            codewords = make_codewords(points[:, :number], min(CELLS, len(points) // 4))
            plans.append(ScalePlan(scaling, origin, axes[:, :number], codewords))
    return plans


def _slow_directions(first: Floats, second: Floats) -> Floats | None:
    """Pairs of successive blocks, each (n, m) about their mean -> (m, q) directions in which they
    are alike beyond what noise reaches; None where there are none."""
    n, m = first.shape
    same = (first.T @ first + second.T @ second) / (2 * n)
    lagged = (first.T @ second + second.T @ first) / (2 * n)
    # The floor keeps a column that never varies from dividing by 0; its autocorrelation is 0 then.
    own = np.diag(lagged) / np.maximum(np.diag(same), 1e-9)
    used = np.argsort(-own, kind="stable")[:COLUMNS_MAX]
    used = used[own[used] > 3 / np.sqrt(n)]  # three standard errors of an autocorrelation
    if not len(used):
        return None
    inside = np.ix_(used, used)
    values, vectors = generalised_eigh(lagged[inside], same[inside] + SHRINKAGE * np.eye(len(used)))
    edge = max(3 * np.sqrt(len(used) / n), 0.1)  # what noise alone reaches
    q = max(1, int((values > edge).sum()))
    directions = np.zeros((m, q))
    directions[used] = vectors[:, ::-1][:, :q]
    return directions
