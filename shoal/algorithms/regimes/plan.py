"""The plan of one scale that a server publishes: how blocks are standardized, slow coordinates, and
the codebook."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.kernels.arrays import Floats, Ints

CELLS = 128
"""cells of a codebook"""
SLOW_MAX = 4
"""slow coordinates used"""
COLUMNS_MAX = 12
"""features from which they are made, those with the largest autocorrelation"""
FEATURE_MAX = 4.0
"""standardized features beyond this are clipped to it"""
CODEBOOK_STEPS = 15
CODEBOOK_POINTS_MAX = 4_096
PART_ROWS = 4_096
SHRINKAGE = 0.02
"""added to the variances of features, so that coordinates are not made of the rounding of nearly
equal features"""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and deviation (m,) of the features of blocks of w readings, over all clients."""

    w: int
    centred: bool
    """whether each client's own level is taken from the means of its blocks"""
    mean: Floats
    deviation: Floats

    def standardize(self, blocks: Floats) -> Floats:
        """(n, m) -> (n, m) in deviations, clipped; NaN stays."""
        standard: Floats = np.clip((blocks - self.mean) / self.deviation, -FEATURE_MAX, FEATURE_MAX)
        return standard


@dataclass(eq=False)
class Products:
    """Sums over pairs of successive blocks of standardized features, and some of the blocks
    themselves."""

    n: int
    total: Floats
    """(m,) of both blocks of all pairs"""
    same: Floats
    """(m, m) of products within a block, both blocks of all pairs"""
    lagged: Floats
    """(m, m) of products of a block with the next one, made symmetric"""
    sample: Floats
    """(s, m)"""


@dataclass(frozen=True, eq=False)
class ScalePlan:
    """What clients need to assign a block to a cell."""

    scaling: Scaling
    origin: Floats
    """(m,) mean of the standardized features"""
    slow: Floats
    """(m, q) from standardized features to slow coordinates, each stretched by its autocorrelation
    """
    codewords: Floats
    """(c, q)"""

    def coordinates(self, blocks: Floats) -> Floats:
        """(n, m) features of blocks -> (n, q)."""
        slow: Floats = (self.scaling.standardize(blocks) - self.origin) @ self.slow
        return slow

    def cells(self, blocks: Floats) -> Ints:
        """(n, m) features of blocks -> (n,) cells; -1 for a block that is NaN."""
        known = ~np.isnan(blocks).any(axis=1)
        cells = np.full(len(blocks), -1, np.int64)
        cells[known] = nearest(self.coordinates(blocks[known]), self.codewords)
        return cells


def generalised_eigh(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Values (n,) ascending and vectors (n, n) of A v = lambda B v, for symmetric A and B > 0, with
    v' B v = 1."""
    root = np.linalg.inv(np.linalg.cholesky(b))
    # By a symmetric problem, not by the inverse of B times A: rounding cannot make its values
    # complex.
    values, vectors = np.linalg.eigh(root @ a @ root.T)
    return values, root.T @ vectors


def make_plan(scaling: Scaling, sums: Products) -> ScalePlan | None:
    """The plan of a scale from the sums of all clients; None where no coordinate is slower than
    noise.

    Coordinates are those of time-lagged independent component analysis (Perez-Hernandez et al.,
    2013).
    """
    n = sums.n
    if not n:
        return None
    origin = sums.total / (2 * n)
    same = sums.same / (2 * n) - np.outer(origin, origin)
    lagged = sums.lagged / (2 * n) - np.outer(origin, origin)
    # The floor keeps a column that never varies from dividing by 0; its autocorrelation is 0 then.
    own = np.diag(lagged) / np.maximum(np.diag(same), 1e-9)
    # Those that depend most on the value before tell most of what stays.
    used = np.argsort(-own, kind="stable")[:COLUMNS_MAX]
    used = used[own[used] > 3 / np.sqrt(n)]  # three standard errors of an autocorrelation
    if not len(used):
        return None
    inside = np.ix_(used, used)
    try:
        values, vectors = generalised_eigh(
            lagged[inside], same[inside] + SHRINKAGE * np.eye(len(used))
        )
    except np.linalg.LinAlgError:  # sums that no blocks have, as a client may forge them
        return None
    # The sign of an eigenvector is arbitrary: its largest entry is made positive.
    vectors *= np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(used))])
    values = values[::-1]
    vectors = vectors[:, ::-1]
    edge = max(3 * np.sqrt(len(used) / n), 0.1)  # what noise alone reaches
    q = max(1, min(SLOW_MAX, int((values > edge).sum())))
    slow = np.zeros((len(origin), q))
    slow[used] = vectors[:, :q] * np.maximum(values[:q], 0.0)
    sample = (sums.sample - origin) @ slow
    if len(sample) > CODEBOOK_POINTS_MAX:
        sample = sample[np.linspace(0, len(sample) - 1, CODEBOOK_POINTS_MAX).astype(np.int64)]
    return ScalePlan(scaling, origin, slow, make_codewords(sample, min(CELLS, len(sample) // 4)))


def nearest(points: Floats, codewords: Floats) -> Ints:
    """(n, q), (c, q) -> (n,) the nearest cell of each point, the first of equals."""
    half_squares = (codewords**2).sum(axis=1) / 2
    cells = [np.argmin(half_squares - part @ codewords.T, axis=1) for part in _in_parts(points)]
    return np.concatenate(cells).astype(np.int64)


def _in_parts(points: Floats) -> list[Floats]:
    return np.array_split(points, len(points) // PART_ROWS + 1)


def make_codewords(points: Floats, n_cells: int) -> Floats:
    """k-means of points (n, q) without chance: it starts at points evenly spaced along the slowest
    coordinate."""
    # The first coordinate counts first, as it is the slowest; `lexsort` takes its last key first.
    points = points[np.lexsort(points.T[::-1])]
    cells = points[np.linspace(0, len(points) - 1, min(n_cells, len(points))).astype(np.int64)]
    for _ in range(CODEBOOK_STEPS):
        cell = nearest(points, cells)
        mass = np.bincount(cell, minlength=len(cells))
        sums = np.stack(
            [np.bincount(cell, weights=column, minlength=len(cells)) for column in points.T], axis=1
        )
        moved = np.where(mass[:, None] > 0, sums / np.maximum(mass, 1)[:, None], cells)
        if np.array_equal(moved, cells):
            break
        cells = moved
    return cells
