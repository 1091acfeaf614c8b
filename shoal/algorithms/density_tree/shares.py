"""How often each axis of a leaf is sampled: axes that begin to show a valley more, every axis now and then."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from shoal.algorithms.density_tree.arrays import SHARE_ONE
from shoal.algorithms.density_tree.axes import Ints
from shoal.algorithms.density_tree.leaf import Leaf
from shoal.kernels.distance import Floats

SAMPLED_BY_NOISE: Final = 0.27
"""axes sampled per window are this times sqrt(window / noise variance): more axes add noise in proportion to their
number, fewer make the readings of each come in clumps, in inverse proportion"""
HINT_MAX: Final = 5.0
"""significance from which on a better valley does not raise the share of an axis"""
EVEN_SHARE: Final = 0.25
"""part of the sampling that is spread evenly over the axes of a leaf"""
SETTLED_READINGS: Final = 1500.0
"""readings on the features of a leaf before oblique axes get their full share"""
OBLIQUE_FIRST, OBLIQUE_SETTLED = 0.1, 0.6
"""share of the sampling that oblique axes get together, at first and later"""
_ROUNDS = 30


def axes_sampled(axes: int, window_readings: int, noise_variance: float) -> int:
    """How many of a leaf's axes each window samples: all without noise."""
    if noise_variance <= 0.0:
        return axes
    return min(axes, max(1, round(SAMPLED_BY_NOISE * math.sqrt(window_readings / noise_variance))))


def axis_shares(leaf: Leaf, hint: Floats, sampled: int) -> Ints:
    """(A,) how often each axis is sampled, in parts of `SHARE_ONE`; they sum to `sampled` times it, none is above."""
    a, d = len(leaf.axes), leaf.d
    weight = np.exp(np.clip(np.maximum(hint, leaf.hint), 0.0, HINT_MAX))
    settled = float(leaf.exposure[:d].sum()) / SETTLED_READINGS
    if a > d and settled < 1.0:
        part = OBLIQUE_FIRST + (OBLIQUE_SETTLED - OBLIQUE_FIRST) * settled
        weight[d:] *= weight[:d].sum() / weight[d:].sum() * part / (1.0 - part)
    chance = EVEN_SHARE / a + (1.0 - EVEN_SHARE) * weight / weight.sum()
    chance = np.minimum(1.0, chance * sampled)
    for _ in range(_ROUNDS):
        chance = np.minimum(1.0, chance * sampled / chance.sum())
    return _whole(chance, sampled)


def _whole(chance: Floats, sampled: int) -> Ints:
    """Chances (A,) that sum to about `sampled` -> whole shares that sum to it exactly."""
    share = np.minimum(SHARE_ONE, np.floor(chance * SHARE_ONE)).astype(np.int64)
    missing = sampled * SHARE_ONE - int(share.sum())
    for axis in np.argsort(-chance, kind="stable").tolist():
        more = min(missing, SHARE_ONE - int(share[axis]))
        share[axis] += more
        missing -= more
    return share
