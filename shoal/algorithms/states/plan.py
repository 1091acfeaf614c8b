"""The plan of blocks of one length: how they are standardized, the axes on which they are seen, and
the codebook of cells on these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.kernels.arrays import Floats, Ints

CELLS = 128
"""cells of a codebook"""
COLUMNS_MAX = 12
"""features from which axes are made, those with the largest autocorrelation"""
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
    """Mean and deviation (m,) of the features of blocks of w readings."""

    w: int
    mean: Floats
    deviation: Floats

    def standardize(self, blocks: Floats) -> Floats:
        """(n, m) -> (n, m) in deviations, clipped; NaN stays."""
        standard: Floats = np.clip((blocks - self.mean) / self.deviation, -FEATURE_MAX, FEATURE_MAX)
        return standard


@dataclass(frozen=True, eq=False)
class ScalePlan:
    """What assigns a block to a cell."""

    scaling: Scaling
    origin: Floats
    """(m,) mean of the standardized features"""
    axes: Floats
    """(m, q) from standardized features to coordinates on the axes"""
    codewords: Floats
    """(c, q)"""

    def coordinates(self, blocks: Floats) -> Floats:
        """(n, m) features of blocks -> (n, q)."""
        on_axes: Floats = (self.scaling.standardize(blocks) - self.origin) @ self.axes
        return on_axes

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


def nearest(points: Floats, codewords: Floats) -> Ints:
    """(n, q), (c, q) -> (n,) the nearest cell of each point, the first of equals."""
    if codewords.shape[1] == 1:
        order = np.argsort(codewords[:, 0], kind="stable")
        ordered = codewords[order, 0]
        between = (ordered[1:] + ordered[:-1]) / 2
        return order[np.searchsorted(between, points[:, 0])].astype(np.int64)
    # A column of ones, so that one product has the half squares as well.
    weights = np.concatenate([codewords.T, -(codewords**2).sum(axis=1)[None] / 2])
    cells = [
        np.argmax(np.column_stack([part, np.ones(len(part))]) @ weights, axis=1)
        for part in _in_parts(points)
    ]
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
