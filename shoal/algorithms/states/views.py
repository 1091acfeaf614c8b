"""Two views of a stream's tiles, with and without their level, and the vote of the sets of
kernels."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.states.axes import Axes
from shoal.algorithms.states.segments import Thresholds, states_of_tiles
from shoal.algorithms.states.tiles import KERNEL_SETS, OVERLAP, TileFeatures
from shoal.kernels.arrays import Floats, Ints

TILES_MIN: Final = 12
"""overlapping tiles below which nothing is told"""


class Sureness(NamedTuple):
    """Thresholds of both views."""

    rhythm: Thresholds
    """thresholds without the level: spread, rhythm, correlation"""
    level: Thresholds
    """thresholds with the level, which may wander: its changes must be abrupt or clear, or
    the level must stay on both sides"""


def _sureness(
    significance: float, held_out: float, abrupt: float, clear: float, wander: float
) -> Sureness:
    rhythm = Thresholds(
        significance, 4.0, 6.0, held_out, abrupt=0.0, clear=0.0, wander=0.0, settled_jump=0.0
    )
    level = Thresholds(
        significance, 3.0, 4.0, held_out, abrupt, clear=clear, wander=wander, settled_jump=8.0
    )
    return Sureness(rhythm, level)


# One side of a change in a random walk wanders less than `wander` in 2 and in 1 of 100 cases.
DEFAULT: Final = _sureness(significance=6.0, held_out=27.0, abrupt=4.0, clear=25.0, wander=0.03)
STRICT: Final = _sureness(significance=7.0, held_out=33.0, abrupt=5.0, clear=28.0, wander=0.0248)


class View(NamedTuple):
    """The states of tiles as a view shows them, and the axes on which it does."""

    axes: Axes
    tiles: Floats
    """(n, q) on the axes"""
    state: Ints
    """(n,) from 0"""
    with_level: bool
    kernels: int
    """number of the set of kernels"""

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.state.max()) + 1


def features_of(tiles: TileFeatures, kernels: int, with_level: bool) -> tuple[Floats, Floats]:
    """The two groups of features of a view: shares of signs, and the others."""
    others = tiles.second
    if with_level:
        others = np.concatenate([tiles.level, others], axis=1)
    return tiles.signs[kernels], others


def best_view(tiles: TileFeatures, sureness: Sureness) -> View:
    """The one of the views with and without the level that has more states; where both have as
    many, that with it."""
    rhythm = voted_view(tiles, False, sureness)
    level = voted_view(tiles, True, sureness)
    return level if level.n_states >= rhythm.n_states else rhythm


def _view(tiles: TileFeatures, kernels: int, with_level: bool, sureness: Sureness) -> View:
    features = features_of(tiles, kernels, with_level)
    axes = Axes.of(features)
    on_axes = axes.project(features)
    thresholds = sureness.level if with_level else sureness.rhythm
    return View(axes, on_axes, states_of_tiles(on_axes, thresholds), with_level, kernels)


def view_of_long(tiles: TileFeatures) -> View:
    """The view of a few long tiles, without the level, which of long tiles of a random walk seems
    to stay: one state unless all sets of kernels see more, by the stricter thresholds."""
    return voted_view(tiles, False, STRICT, KERNEL_SETS)


def voted_view(
    tiles: TileFeatures, with_level: bool, sureness: Sureness, least: int = KERNEL_SETS // 2 + 1
) -> View:
    """One state unless at least so many sets of kernels, by default most, see more; then the view
    that is most like the others.

    Of several columns without the level all sets must: there are many features that have nothing
    to do with kernels, and of a short stream some of them differ by chance.
    """
    views = []
    several = 0
    is_unsure = not with_level and tiles.level.shape[1] > 1
    required = KERNEL_SETS if is_unsure else least
    for kernels in range(KERNEL_SETS):
        views.append(_view(tiles, kernels, with_level, sureness))
        several += views[-1].n_states > 1
        # What the sets that are left see decides nothing any more.
        if several + KERNEL_SETS - len(views) < min(required, KERNEL_SETS):
            return views[0]._replace(state=np.zeros_like(views[0].state))
    likeness = [sum(agreement(view.state, other.state) for other in views) for view in views]
    return views[int(np.argmax(likeness))]


def agreement(first: Ints, second: Ints) -> float:
    """Mutual information of two labellings of the same tiles, as a share of their mean entropy."""
    pairs = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(pairs, (first, second), 1.0 / len(first))
    both = _entropy(pairs.sum(axis=1)) + _entropy(pairs.sum(axis=0))
    return 1.0 if both == 0 else 2 * (both - _entropy(pairs)) / both


def _entropy(share: Floats) -> float:
    positive = share[share > 0]
    return float(-(positive * np.log(positive)).sum())


def explained(tiles: Floats, state: Ints) -> float:
    """Share of the variance of tiles (n, q) that lies between states (n,), less what as many states
    of noise would have: 0 for one state, and without tiles."""
    if not len(tiles):
        return 0.0
    total = float(((tiles - tiles.mean(axis=0)) ** 2).sum())
    numbers, number = np.unique(state, return_inverse=True)
    k = len(numbers)
    independent = len(tiles) / OVERLAP
    if k == 1 or total <= 0 or independent <= k + 1:
        return 0.0
    member = np.eye(k)[number]
    means = member.T @ tiles / member.sum(axis=0)[:, None]
    within = float(((tiles - means[number]) ** 2).sum())
    # As an adjusted R^2, over as many tiles as do not overlap.
    return 1.0 - within / total * (independent - 1) / (independent - k)
