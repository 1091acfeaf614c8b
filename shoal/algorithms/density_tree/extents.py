"""Extents of the readings of each leaf on each feature: their mean, and the middle 80 % of them,
from noisy counts.

A leaf that has just been cut has counted little on most features. There, what the leaf that was cut
had counted within the new one's box is the better estimate, until its own counts stand out from
their noise. It is an estimate and no measurement: a small state may be nothing like the one that it
was part of. `Extents.own` says which of both it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.density_tree.leaf import BINS, NO_ZOOM, SPANS, Leaf
from shoal.algorithms.density_tree.tree import Cut, Node
from shoal.kernels.arrays import Bools, Floats, Ints

MIDDLE: Final = (0.1, 0.9)
"""quantiles between which the middle of a leaf's readings lies"""
MASS_SIGNIFICANCE: Final = 4.0
"""standard deviations of its noise above which a histogram says where readings lie"""
EDGE_SIGNIFICANCE: Final = 2.0
"""standard deviations from which a bin at the edge of a histogram counts"""
# Chosen on some seeds of a small state, and measured on others: the largest error of a mean that
# was told fell from 12 to 4 % of the range.
MEAN_ERROR: Final = 0.01
"""standard error of a mean by the noise of its counts, as a part of the range of the feature, up to
which it is measured: a bin far away that stands out by noise alone moves it by more"""
BINS_MAX: Final = 2 * BINS - 1
"""bins of a histogram: fine ones lie over one coarse bin at least"""


class Extents(NamedTuple):
    """Extents of l leaves, in unit coordinates."""

    mean: Floats
    """(l, d)"""
    low: Floats
    """(l, d) a tenth of a leaf's readings lie below"""
    high: Floats
    """(l, d) a tenth lie above"""
    own: Bools
    """(l, d) whether the leaf's own counts have decided, and not those of a leaf that was cut, and
    show its mean up to `MEAN_ERROR`"""


class _Histograms(NamedTuple):
    """p histograms of `BINS_MAX` bins each. Bins of no width hold nothing: they fill up those that
    have fewer."""

    edge: Floats
    """(p, n + 1)"""
    counts: Floats
    """(p, n)"""
    noise: Floats
    """(p, n) variances"""

    def take(self, which: Bools) -> _Histograms:
        return _Histograms(self.edge[which], self.counts[which], self.noise[which])


class _Counted(NamedTuple):
    """Counts of s leaves on d features, and their bins."""

    start: Floats
    """(s, d)"""
    bin_width: Floats
    zoom: Ints
    span: Ints
    coarse: Floats
    """(s, d, BINS)"""
    coarse_noise: Floats
    fine: Floats

    def of(self, leaf: Ints, feature: Ints) -> _Counted:
        """Leaves (p,) and features (p,) -> the p of these, without the axis of the features."""
        at = leaf, feature
        return _Counted(
            self.start[at],
            self.bin_width[at],
            self.zoom[at],
            self.span[at],
            self.coarse[at],
            self.coarse_noise[at],
            self.fine[at],
        )


def extents(root: Node) -> Extents:
    """Extents of the leaves of a tree, from left to right."""
    chains = list(_with_ancestors(root))
    edge, counts, own = _known(chains)
    share_before, total = _shares(counts)
    middle = (edge[:, :-1] + edge[:, 1:]) / 2
    mean = (counts * middle).sum(axis=1) / total
    low, high = (_interpolated(share, share_before, edge) for share in MIDDLE)
    leaves = len(chains)
    return Extents(mean.reshape(leaves, -1), low.reshape(leaves, -1), high.reshape(leaves, -1), own)


def draw_rows(root: Node, mass: Floats, n: int, seed: int) -> Floats:
    """About n rows (n, d) in unit coordinates that lie as the readings do, as far as noisy counts
    show.

    `mass` (l,) are the shares of the readings in the leaves, from left to right. Features are
    independent within a leaf. The rows follow from the tree and the seed.
    """
    generator = np.random.default_rng(seed)
    chains = list(_with_ancestors(root))
    edge, counts, _ = _known(chains)
    share_before, _ = _shares(counts)
    d = chains[0][0].d
    drawn = []
    for leaf, own in enumerate(np.rint(mass * n).astype(np.int64).tolist()):
        # Evenly and not at random: so few rows as a leaf may have would miss a part of it.
        even = (np.arange(own) + 0.5) / max(own, 1)
        rows = np.empty((own, d))
        for feature in range(d):
            at = leaf * d + feature
            rows[:, feature] = np.interp(generator.permutation(even), share_before[at], edge[at])
        drawn.append(rows)
    return np.concatenate(drawn)


def _with_ancestors(node: Node, ancestors: Sequence[Leaf] = ()) -> Iterator[Sequence[Leaf]]:
    """The leaves below a node, each followed by the leaves that were cut to make it, the newest
    first."""
    if isinstance(node, Cut):
        for part in node.parts:
            yield from _with_ancestors(part, (node.leaf, *ancestors))
    else:
        yield node, *ancestors


def _known(chains: Sequence[Sequence[Leaf]]) -> tuple[Floats, Floats, Bools]:
    """What is known of the readings of each leaf on each feature.

    l leaves, each followed by its ancestors -> edges (l * d, n + 1), counts of at least 0 (l * d,
    n), and whether they are the leaf's own (l, d). Where nothing is significant, the readings lie
    anywhere in the box.
    """
    low = np.concatenate([leaf.low for leaf, *_ in chains])
    high = np.concatenate([leaf.high for leaf, *_ in chains])
    edge = np.repeat(high[:, None], BINS_MAX + 1, axis=1)
    edge[:, 0] = low
    counts = np.zeros((len(low), BINS_MAX))
    counts[:, 0] = 1.0
    counted, sources = _counted(chains)
    d = chains[0][0].d
    unsettled = np.arange(len(low))
    own = np.zeros(len(low), dtype=np.bool_)
    for position, source in enumerate(sources.T):
        # Chains differ in length: those that have ended are settled with what they have.
        unsettled = unsettled[source[unsettled // d] >= 0]
        leaf, feature = np.divmod(unsettled, d)
        histograms = _histograms(counted.of(source[leaf], feature))
        within = _within(histograms, low[unsettled], high[unsettled])
        # A running sum adds from left to right on every machine, which `sum` does not.
        mass = within.counts.cumsum(axis=1)[:, -1]
        noise = within.noise.cumsum(axis=1)[:, -1]
        is_sure = mass > MASS_SIGNIFICANCE * np.sqrt(noise)
        sure = within.take(is_sure)
        # The first source that is significant decides, from the leaf up; what it settles is not
        # looked at again.
        edge[unsettled[is_sure]] = sure.edge
        counts[unsettled[is_sure]] = _significant(sure)
        if position == 0:
            own[unsettled[is_sure]] = _mean_errors(sure, counts[unsettled[is_sure]]) <= MEAN_ERROR
        unsettled = unsettled[~is_sure]
    return edge, counts, own.reshape(len(chains), d)


def _counted(chains: Sequence[Sequence[Leaf]]) -> tuple[_Counted, Ints]:
    """-> what all leaves and ancestors have counted, (l, longest) the positions of each chain's
    leaves in it, -1 beyond its end."""
    leaves: list[Leaf] = []
    place: dict[int, int] = {}
    sources = np.full((len(chains), max(map(len, chains))), -1)
    for row, chain in zip(sources, chains, strict=True):
        for position, leaf in enumerate(chain):
            if id(leaf) not in place:
                place[id(leaf)] = len(leaves)
                leaves.append(leaf)
            row[position] = place[id(leaf)]
    # The features come first among the axes of a leaf.
    d = leaves[0].d
    counted = [np.stack([getattr(leaf, name)[:d] for leaf in leaves]) for name in _Counted._fields]
    return _Counted(*counted), sources


def _histograms(counted: _Counted) -> _Histograms:
    """What p leaves have counted on a feature each: coarse bins, and where fine bins lie over one,
    it is spread as they are.

    Fine bins alone would show the newer readings only, as they are laid later than coarse ones.
    """
    is_fine = counted.zoom != NO_ZOOM
    zoom = np.where(is_fine, counted.zoom, BINS)[:, None]
    span = np.where(is_fine, counted.span, 0)[:, None]
    edge = np.arange(BINS_MAX + 1)
    # Coarse bins from 0 to `zoom`, then `BINS` fine ones, then the other coarse ones; beyond the
    # last one no bin has a width. A fine bin is 1/2 to 1/16 as wide as a coarse one, so these
    # numbers are exact.
    unit = np.minimum(
        np.minimum(edge, zoom)
        + np.clip(edge - zoom, 0, BINS) * span / BINS
        + np.maximum(edge - zoom - BINS, 0),
        BINS,
    )
    bins = np.minimum(unit[:, :-1].astype(np.int64), BINS - 1)
    shares = (np.diff(unit, axis=1) > 0.0).astype(np.float64)
    for width in SPANS:
        here = np.flatnonzero(counted.span * is_fine == width)
        shares[here[:, None], zoom[here] + np.arange(BINS)] = _spread(counted.fine[here], width)
    counts = np.take_along_axis(counted.coarse, bins, axis=1) * shares
    noise = np.take_along_axis(counted.coarse_noise, bins, axis=1) * shares
    return _Histograms(counted.start[:, None] + counted.bin_width[:, None] * unit, counts, noise)


def _spread(fine: Floats, span: int) -> Floats:
    """Counts (p, BINS) of fine bins over `span` coarse ones -> the share of its coarse bin that
    each holds."""
    per_coarse = BINS // span
    counts = np.maximum(fine, 0.0).reshape(len(fine), span, per_coarse)
    total = counts.sum(axis=2, keepdims=True)
    has_counts = total > 0.0
    share = np.where(has_counts, counts / np.where(has_counts, total, 1.0), 1.0 / per_coarse)
    return share.reshape(fine.shape)


def _within(histograms: _Histograms, low: Floats, high: Floats) -> _Histograms:
    """The parts of p histograms between two places (p,), (p,); within a bin, counts are spread
    evenly."""
    edge = np.clip(histograms.edge, low[:, None], high[:, None])
    parts = []
    for values in (histograms.counts, histograms.noise):
        before = _before_each(values)
        at_low = _interpolated(low, histograms.edge, before)[:, None]
        at_high = _interpolated(high, histograms.edge, before)[:, None]
        # Where edges were moved to a place, the sum before it is that in the middle of a bin.
        below_high = np.where(edge == high[:, None], at_high, before)
        parts.append(np.diff(np.where(edge == low[:, None], at_low, below_high), axis=1))
    return _Histograms(edge, *parts)


def _significant(histograms: _Histograms) -> Floats:
    """Histograms with mass -> their counts, at least 0, without what lies at the edges and is not
    significant."""
    counts = histograms.counts
    is_sure = counts > EDGE_SIGNIFICANCE * np.sqrt(histograms.noise)
    # Mass that is significant in all, and in no single bin: the fullest stands for it.
    is_sure |= ~is_sure.any(axis=1, keepdims=True) & (counts == counts.max(axis=1, keepdims=True))
    is_after_first = np.logical_or.accumulate(is_sure, axis=1)
    is_before_last = np.logical_or.accumulate(is_sure[:, ::-1], axis=1)[:, ::-1]
    return np.where(is_after_first & is_before_last, np.maximum(counts, 0.0), 0.0)


def _mean_errors(histograms: _Histograms, counts: Floats) -> Floats:
    """(p,) standard errors of the means of p histograms by the noise of the bins that count: their
    counts (p, n) are above 0."""
    middle = (histograms.edge[:, :-1] + histograms.edge[:, 1:]) / 2
    total = counts.sum(axis=1, keepdims=True)
    mean = (counts * middle).sum(axis=1, keepdims=True) / total
    noise = np.where(counts > 0.0, histograms.noise, 0.0)
    return np.asarray(np.sqrt((noise * np.square(middle - mean)).sum(axis=1)) / total[:, 0])


def _shares(counts: Floats) -> tuple[Floats, Floats]:
    """Counts (p, n) -> the share before each edge (p, n + 1), and the sums (p,)."""
    before = _before_each(counts)
    return before / before[:, -1:], before[:, -1]


def _before_each(values: Floats) -> Floats:
    """(p, n) -> (p, n + 1) the sums of those before each edge."""
    return np.concatenate([np.zeros((len(values), 1)), values.cumsum(axis=1)], axis=1)


def _interpolated(places: Floats | float, known: Floats, values: Floats) -> Floats:
    """Row by row `np.interp`: the values (p, n) at ascending `known` (p, n) places -> those at
    `places` (p,)."""
    n = known.shape[1]
    row = np.arange(len(known))
    at = np.clip((known <= np.reshape(places, (-1, 1))).sum(axis=1) - 1, 0, n - 2)
    low = known[row, at]
    high = known[row, at + 1]
    first = values[row, at]
    last = values[row, at + 1]
    slope = (last - first) / np.where(high > low, high - low, 1.0)
    # The ends as they are: the formula need not give them to the last bit.
    from_low = np.where(places <= low, first, slope * (places - low) + first)
    return np.asarray(np.where(places >= high, last, from_low))
