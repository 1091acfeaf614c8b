"""Where the readings of each leaf lie on each feature: their mean, and the middle 80 % of them, from noisy counts.

A leaf that has just been cut has counted little on most features. There, what the leaf that was cut had counted within
the new one's box is the better estimate, until its own counts stand out from their noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.density_tree.leaf import BINS, NO_ZOOM, Leaf
from shoal.algorithms.density_tree.tree import Cut, Node
from shoal.kernels.distance import Floats

MIDDLE: Final = (0.1, 0.9)
"""quantiles between which the middle of a leaf's readings lies"""
MASS_SIGNIFICANCE: Final = 4.0
"""standard deviations of its noise above which a histogram says where readings lie"""
EDGE_SIGNIFICANCE: Final = 2.0
"""standard deviations from which a bin at the edge of a histogram counts"""


class Extents(NamedTuple):
    """Of l leaves, in unit coordinates."""

    mean: Floats
    """(l, d)"""
    low: Floats
    """(l, d) a tenth of a leaf's readings lie below"""
    high: Floats
    """(l, d) a tenth lie above"""


class _Histogram(NamedTuple):
    """Noisy counts of bins."""

    edge: Floats
    """(n + 1,)"""
    counts: Floats
    """(n,)"""
    noise: Floats
    """(n,) variances"""


def extents(root: Node) -> Extents:
    """Of the leaves of a tree, from left to right."""
    found = [
        [_extent(leaf, ancestors, feature) for feature in range(leaf.d)] for leaf, ancestors in _with_ancestors(root)
    ]
    mean, low, high = np.moveaxis(np.array(found), -1, 0)
    return Extents(mean, low, high)


def _with_ancestors(node: Node, ancestors: Sequence[Leaf] = ()) -> Iterator[tuple[Leaf, Sequence[Leaf]]]:
    """The leaves below a node, each with the leaves that were cut to make it, the newest first."""
    if isinstance(node, Cut):
        for part in node.parts:
            yield from _with_ancestors(part, (node.leaf, *ancestors))
    else:
        yield node, ancestors


def draw_rows(root: Node, mass: Floats, n: int, seed: int) -> Floats:
    """About n rows (n, d) in unit coordinates that lie as the readings do, as far as noisy counts show.

    `mass` (l,) are the shares of the readings in the leaves, from left to right. Features are independent within a
    leaf. The rows follow from the tree and the seed.
    """
    generator, drawn = np.random.default_rng(seed), []
    for (leaf, ancestors), own in zip(_with_ancestors(root), np.rint(mass * n).astype(np.int64).tolist(), strict=True):
        even = (np.arange(own) + 0.5) / max(own, 1)
        columns = []
        for feature in range(leaf.d):
            shown = _shown(leaf, ancestors, feature)
            edge = shown.edge if shown else np.array([leaf.low[feature], leaf.high[feature]])
            held = shown.counts if shown else np.ones(1)
            reached = np.concatenate([[0.0], np.cumsum(held)]) / held.sum()
            columns.append(np.interp(generator.permutation(even), reached, edge))
        drawn.append(np.stack(columns, axis=1))
    return np.concatenate(drawn)


def _extent(leaf: Leaf, ancestors: Sequence[Leaf], feature: int) -> tuple[float, float, float]:
    """Mean, low and high on one feature; of the whole box where nothing is significant."""
    shown = _shown(leaf, ancestors, feature)
    if shown is not None:
        return _summary(shown)
    low, high = float(leaf.low[feature]), float(leaf.high[feature])
    return (low + high) / 2, low + MIDDLE[0] * (high - low), low + MIDDLE[1] * (high - low)


def _shown(leaf: Leaf, ancestors: Sequence[Leaf], feature: int) -> _Histogram | None:
    """What is known of a leaf's readings on one feature: counts of at least 0; None where nothing is significant."""
    low, high = float(leaf.low[feature]), float(leaf.high[feature])
    for source in (leaf, *ancestors):
        within = _within(_histogram(source, feature), low, high)
        mass = float(within.counts.sum())
        if mass > max(MASS_SIGNIFICANCE * math.sqrt(within.noise.sum()), 0.0):
            return within._replace(counts=_held(within))
    return None


def _histogram(leaf: Leaf, feature: int) -> _Histogram:
    """What a leaf has counted on a feature: coarse bins, and where fine bins lie over one, it is spread as they are.

    Fine bins alone would show the newer readings only, as they are laid later than coarse ones.
    """
    start, width = float(leaf.start[feature]), float(leaf.bin_width[feature])
    zoom, span = int(leaf.zoom[feature]), int(leaf.span[feature])
    pieces = np.ones(BINS, dtype=np.int64)
    shares = np.ones(BINS)
    if zoom != NO_ZOOM:
        fine = np.maximum(leaf.fine[feature], 0.0).reshape(span, -1)
        total = fine.sum(axis=1, keepdims=True)
        spread = np.where(total > 0.0, fine / np.where(total > 0.0, total, 1.0), 1.0 / fine.shape[1])
        pieces[zoom : zoom + span] = fine.shape[1]
        shares = np.concatenate([shares[:zoom], spread.ravel(), shares[zoom + span :]])
    edge = start + width * np.concatenate([[0.0], np.cumsum(np.repeat(1.0 / pieces, pieces))])
    counts, noise = (np.repeat(values[feature], pieces) * shares for values in (leaf.coarse, leaf.coarse_noise))
    return _Histogram(edge, counts, noise)


def _within(histogram: _Histogram, low: float, high: float) -> _Histogram:
    """The part of a histogram between two places; within a bin, counts are spread evenly."""
    edge = np.unique(np.clip(histogram.edge, low, high))
    if len(edge) < 2:
        return _Histogram(edge, np.zeros(0), np.zeros(0))
    counts, noise = (
        np.diff(np.interp(edge, histogram.edge, np.concatenate([[0.0], np.cumsum(values)])))
        for values in (histogram.counts, histogram.noise)
    )
    return _Histogram(edge, counts, noise)


def _held(histogram: _Histogram) -> Floats:
    """The counts (n,) of a histogram with mass, at least 0, without what lies at its edges and is not significant."""
    held = np.maximum(histogram.counts, 0.0)
    is_sure = histogram.counts > EDGE_SIGNIFICANCE * np.sqrt(histogram.noise)
    sure = np.flatnonzero(is_sure if is_sure.any() else histogram.counts == histogram.counts.max())
    held[: sure[0]] = held[sure[-1] + 1 :] = 0.0
    return np.asarray(held)


def _summary(histogram: _Histogram) -> tuple[float, float, float]:
    """Mean and quantiles of counts of at least 0."""
    held = histogram.counts
    middle = (histogram.edge[:-1] + histogram.edge[1:]) / 2
    reached = np.concatenate([[0.0], np.cumsum(held)]) / held.sum()
    low, high = (float(np.interp(share, reached, histogram.edge)) for share in MIDDLE)
    return float(held @ middle / held.sum()), low, high
