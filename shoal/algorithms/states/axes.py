"""Axes without labels: the directions in which tiles differ more over the stream than from one to
the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.algorithms.states.tiles import OVERLAP
from shoal.kernels.arrays import Bools, Floats

AXES: Final = 6
"""axes that are kept"""
FEATURE_MAX: Final = 20.0
"""units of a feature's own change from tile to tile to which it is clipped"""
RANK_MIN: Final = 3
RANK_MAX: Final = 24
TILES_OF_RANK: Final = 4
"""disjoint tiles for each principal component of the shares of signs; a third as many components of
the other features"""
DIAGONAL: Final = 0.1
"""share of the diagonal that is added to a covariance of few tiles"""


@dataclass(frozen=True, eq=False)
class FeatureGroup:
    """Some features, each in units of its own change from tile to tile, and their principal
    components."""

    varying: Bools
    """(p,) features that are not constant"""
    centre: Floats
    """(v,) of those that vary"""
    unit: Floats
    """(v,)"""
    mean: Floats
    """(v,) of the features in these units"""
    components: Floats
    """(v, r), divided by the root of v, so that groups of few and of many features weigh alike"""

    @classmethod
    def of(cls, features: Floats, rank: int) -> FeatureGroup:
        """features (n, p) of overlapping tiles."""
        varying = features.std(axis=0) > 1e-6
        values = features[:, varying]
        unit = own_change(values)
        centre = np.median(values, axis=0)
        group = cls(varying, centre, unit, np.zeros_like(unit), np.eye(len(unit)))
        standard = group._standard(features)
        mean = standard.mean(axis=0)
        _, vectors = np.linalg.eigh((standard - mean).T @ (standard - mean))
        # Eigenvalues ascend, so that the last vectors are the principal ones.
        components = vectors[:, ::-1][:, :rank] / np.sqrt(max(1, len(unit)))
        return cls(varying, centre, unit, mean, components)

    def project(self, features: Floats) -> Floats:
        """features (n, p) -> (n, r)"""
        return (self._standard(features) - self.mean) @ self.components

    def _standard(self, features: Floats) -> Floats:
        standard = (features[:, self.varying] - self.centre) / self.unit
        return np.clip(standard, -FEATURE_MAX, FEATURE_MAX)


@dataclass(frozen=True, eq=False)
class Axes:
    """The linear map from features of tiles to the few axes along which they change slowly.

    Linear discriminant analysis without labels: two neighbours mostly are in the same state, so the
    covariance of their differences stands for that within states. Features are first reduced to
    principal components, fewer for a short stream.
    """

    groups: tuple[FeatureGroup, ...]
    directions: Floats
    """(sum of ranks, q)"""

    @classmethod
    def of(cls, features: Sequence[Floats]) -> Axes:
        """features: groups of them, each (n, p), of the same n overlapping tiles."""
        n = len(features[0])
        rank = int(np.clip(n / OVERLAP / TILES_OF_RANK, RANK_MIN, RANK_MAX))
        ranks = [rank, *(max(rank // 3, 2) for _ in features[1:])]
        groups = tuple(
            FeatureGroup.of(values, most) for values, most in zip(features, ranks, strict=True)
        )
        return cls(groups, slow_directions(_joined(groups, features)))

    def project(self, features: Sequence[Floats]) -> Floats:
        """The groups of features, each (n, p) -> (n, q)."""
        return _joined(self.groups, features) @ self.directions


def own_change(values: Floats) -> Floats:
    """values (n, v) of overlapping tiles -> (v,) the usual change of each from tile to tile."""
    steps = values[OVERLAP:] - values[:-OVERLAP]
    # The median of a Gaussian's absolute difference of two is .95 of its deviation. A part of
    # the whole spread is added for features that hardly ever change.
    step = np.median(np.abs(steps), axis=0) / 0.95
    unit: Floats = step + 0.05 * values.std(axis=0) + 1e-6
    return unit


def covariance_of_changes(tiles: Floats) -> Floats:
    """tiles (n, r), overlapping -> (r, r) covariance of one about the state that it is in, by
    differences of neighbours."""
    steps = tiles[OVERLAP:] - tiles[:-OVERLAP]
    # The difference of two tiles has twice the covariance of one.
    covariance: Floats = steps.T @ steps / max(1, 2 * len(steps))
    return covariance


def slow_directions(tiles: Floats) -> Floats:
    """tiles (n, r) -> (r, q) the directions in which they differ most over the stream, relative to
    neighbours."""
    within = covariance_of_changes(tiles)
    within = (1 - DIAGONAL) * within + DIAGONAL * np.diag(np.diag(within))
    values, vectors = np.linalg.eigh(within)
    whitening = vectors / np.sqrt(np.maximum(values, 1e-12)) @ vectors.T
    white = tiles @ whitening
    _, vectors = np.linalg.eigh(white.T @ white)
    directions: Floats = whitening @ vectors[:, ::-1][:, :AXES]
    return directions


def _joined(groups: tuple[FeatureGroup, ...], features: Sequence[Floats]) -> Floats:
    parts = [group.project(values) for group, values in zip(groups, features, strict=True)]
    return np.concatenate(parts, axis=1)
