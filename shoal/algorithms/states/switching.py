"""Two levels between which an autoregressive stream switches: states that overlap, or are short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.kernels.arrays import Floats, Ints

READINGS_MIN: Final = 1_000
"""readings below which nothing is told"""
SQUARE_MAX: Final = 100.0
"""squared step, in its units, to which the weight of a step is clipped, as in `jumps`"""
APART_MAX: Final = 140.0
"""squared deviations by which a reading can be further from what a pair of levels expects than from
what the likeliest pair does: of chances of 0 at two readings the product would be 0 for all"""
STARTS: Final = (3.0, 4.5, 6.0)
"""distances of the levels, in deviations of a step, from which a fit starts"""
STEPS: Final = 15
"""steps of expectation and maximization"""
STEPS_OF_STARTS: Final = 5
"""steps from each start, of which the likeliest is continued"""
PHI_MAX: Final = 0.98
"""autoregression within a level, at most: of a walk no level could be known"""
GAIN_MIN: Final = 20.0
"""nats by which two levels must explain the stream better than an autoregression one in some of
whose steps is large"""
ABRUPT_MIN: Final = 0.75
"""part of the distance of the levels that lies between the means of `BESIDE` readings before and
after a change: what turns slowly has hardly any"""
BESIDE: Final = 4
DWELL_MIN: Final = 10.0
"""readings that a dwell lasts at least, on average; a single outlier lasts one"""


@dataclass(frozen=True, eq=False)
class Switching:
    """A stream that is at one of two levels along an axis, with autoregressive noise about it.

    The Markov-switching autoregression of Hamilton, "A new approach to the economic analysis of
    nonstationary time series and the business cycle" (Econometrica 57, 1989), of order one.
    """

    axis: Floats
    """(d,)"""
    levels: Floats
    """(2,) along the axis, ascending"""
    phi: float
    deviation: float
    """deviation of what is new in a reading"""
    leave: Floats
    """(2,) chances to leave a level at a reading"""

    def of_block(self, blocks: Floats) -> Ints:
        """Readings (n, d), NaN where unknown -> (n,) the likelier level of each, by all of them; -1
        where one is unknown."""
        state = np.full(len(blocks), -1, dtype=np.int64)
        along = blocks @ self.axis
        known = ~np.isnan(along)
        if known.any():
            state[known] = _likelier(self, _filled(along))[known]
        return state


def find_switching(rows: Floats) -> Switching | None:
    """The two levels of rows (n, d), NaN where missing; None where one is as likely.

    Along the axis of the steps with the largest fourth moment (FOBI; see `jumps`): what dwells and
    jumps has few large steps there. Steps alone tell states of a strongly autocorrelated stream,
    whose levels overlap. It must be explained better than by an autoregression with heavy tails,
    whose large steps do not alternate and do not stay.
    """
    known = rows[~np.isnan(rows).any(axis=1)]
    if len(known) < READINGS_MIN:
        return None
    axis = _axis_of_jumps(known)
    if axis is None:
        return None
    values = _filled(rows @ axis)
    starts = [_fitted(values, _start(values, axis, apart), STEPS_OF_STARTS) for apart in STARTS]
    begun, _ = max(starts, key=lambda fit: fit[1])
    model, likelihood = _fitted(values, begun, STEPS)
    if likelihood - _heavy_tailed(values) < GAIN_MIN or not _is_lasting(model, values):
        return None
    return model


def _axis_of_jumps(rows: Floats) -> Floats | None:
    steps = np.diff(rows, axis=0)
    n, d = steps.shape
    covariance = steps.T @ steps / n
    mean = np.trace(covariance) / d
    if mean <= 0:
        return None
    values, vectors = np.linalg.eigh(covariance + np.eye(d) * 1e-6 * mean)
    whitening = vectors / np.sqrt(values) @ vectors.T
    white = steps @ whitening
    weight = np.minimum((white**2).sum(axis=1), SQUARE_MAX)
    _, vectors = np.linalg.eigh((white * weight[:, None]).T @ white / n)
    axis = whitening @ vectors[:, -1]
    # The sign of an eigenvector is arbitrary: its largest entry is made positive.
    return np.asarray(axis * np.sign(axis[np.abs(axis).argmax()]))


def _filled(values: Floats) -> Floats:
    """values (n,) with the one before in place of one that is missing."""
    known = np.flatnonzero(~np.isnan(values))
    place = np.searchsorted(known, np.arange(len(values)), side="right") - 1
    return np.asarray(values[known[np.maximum(place, 0)]])


def _start(values: Floats, axis: Floats, apart: float) -> Switching:
    """Levels so many deviations of a step apart, about the mean."""
    step = float(np.sqrt(np.mean(np.diff(values) ** 2)))
    gaps = values - values.mean()
    phi = float(np.clip(gaps[1:] @ gaps[:-1] / max(gaps @ gaps, 1e-12), 0.0, 0.9))
    levels = values.mean() + np.array([-0.5, 0.5]) * apart * step
    return Switching(axis, levels, phi, max(step, 1e-6), np.array([0.01, 0.01]))


def _fitted(values: Floats, model: Switching, steps: int) -> tuple[Switching, float]:
    """A likelier model after so many steps, and the logarithm of the likelihood of the one before
    the last."""
    likelihood = -np.inf
    for _ in range(steps):
        _, pairs, likelihood = _smoothed(model, values)
        model = _maximized(model, values, pairs)
    return model, likelihood


def _likelier(model: Switching, values: Floats) -> Ints:
    """(n,) the likelier level of each value, by all of them."""
    if len(values) < 2:
        return np.asarray(values > model.levels.mean(), dtype=np.int64)
    share = _smoothed(model, values)[0]
    return np.asarray(share[:, 1] > share[:, 0], dtype=np.int64)


def _new_in(model: Switching, values: Floats) -> Floats:
    """(n - 1, 2, 2) what is new in each reading, by the level before and its own."""
    before = values[:-1, None] - model.levels
    now = values[1:, None] - model.levels
    return now[:, None, :] - model.phi * before[:, :, None]


def _smoothed(model: Switching, values: Floats) -> tuple[Floats, Floats, float]:
    """Chances of levels (n, 2) and of pairs of successive ones (n - 1, 2, 2), and the logarithm of
    the likelihood of the readings after the first."""
    kept = 1 - model.leave
    chance = np.array([[kept[0], model.leave[0]], [model.leave[1], kept[1]]])
    square = (_new_in(model, values) / model.deviation) ** 2
    # Relative to the likeliest pair, or all of them would be 0 where a reading fits none.
    least = square.min(axis=(1, 2))
    apart = np.minimum(square - least[:, None, None], APART_MAX)
    moves = chance * np.exp(-0.5 * apart)
    first = model.leave[::-1] / model.leave.sum()
    forward = _running_products(moves)
    backward = _running_products(moves[::-1].transpose(0, 2, 1))
    alpha = np.concatenate([first[None], first @ forward])
    alpha /= alpha.sum(axis=1, keepdims=True)
    beta = np.concatenate([np.ones((1, 2)), np.ones(2) @ backward])[::-1]
    share = alpha * beta
    share /= share.sum(axis=1, keepdims=True)
    joint = alpha[:-1, :, None] * moves
    pairs = joint * beta[1:, None, :]
    pairs /= pairs.sum(axis=(1, 2), keepdims=True)
    # The chance of each reading, given those before.
    chances = np.maximum(joint.sum(axis=(1, 2)), 1e-300)
    total = np.log(chances).sum() - 0.5 * least.sum()
    total -= len(moves) * np.log(model.deviation * np.sqrt(2 * np.pi))
    return share, pairs, float(total)


def _running_products(matrices: Floats) -> Floats:
    """(n, 2, 2) -> the products of the first 1, 2 ... n of them, each divided by its largest entry.

    In as many rounds as doublings of one take to n, all products of a round at once. Entry by entry
    that is many times as fast as by products of small matrices.
    """
    # (2, 2, n): each entry of all matrices lies together.
    products = np.ascontiguousarray(matrices.transpose(1, 2, 0))
    reach = 1
    while reach < len(matrices):
        earlier = products[:, :, :-reach]
        later = products[:, :, reach:]
        joined = earlier[:, :1] * later[:1] + earlier[:, 1:] * later[1:]
        # The floor: no division by 0 where a product is none in these digits.
        largest = np.maximum(np.maximum(joined[0, 0], joined[0, 1]), 1e-300)
        largest = np.maximum(largest, np.maximum(joined[1, 0], joined[1, 1]))
        products[:, :, reach:] = joined / largest
        reach *= 2
    return products.transpose(2, 0, 1)


def _maximized(model: Switching, values: Floats, pairs: Floats) -> Switching:
    phi = model.phi
    # What is new is y - phi y' - (level now) + phi (level before): least squares of both levels.
    now = np.array([[1.0, 0.0], [0.0, 1.0]])
    design = now[None, :, :] - phi * now[:, None, :]
    target = values[1:] - phi * values[:-1]
    weight = pairs.sum(axis=0)
    products = np.einsum("ij,ijk,ijl->kl", weight, design, design)
    sums = np.einsum("tij,t,ijk->k", pairs, target, design)
    levels = np.sort(np.linalg.solve(products + 1e-9 * np.eye(2), sums))
    before = values[:-1, None] - levels
    after = values[1:, None] - levels
    lagged = float(np.einsum("tij,ti,tj->", pairs, before, after))
    squares = float(np.einsum("tij,ti->", pairs, before**2))
    phi = float(np.clip(lagged / max(squares, 1e-12), 0.0, PHI_MAX))
    new = after[:, None, :] - phi * before[:, :, None]
    deviation = float(np.sqrt(max(np.mean((pairs * new**2).sum(axis=(1, 2))), 1e-12)))
    moved = np.array([weight[0, 1], weight[1, 0]])
    leave = np.clip((moved + 1) / (weight.sum(axis=1) + 2), 1e-5, 0.5)
    return Switching(model.axis, levels, phi, deviation, leave)


def _heavy_tailed(values: Floats) -> float:
    """Logarithm of the likelihood of the readings after the first by an autoregression of order
    one, some of whose steps are large."""
    gaps = values - values.mean()
    before = gaps[:-1]
    after = gaps[1:]
    weight = np.ones(len(before))
    share = 0.05
    narrow = wide = 0.0
    phi = 0.0
    constant = 0.0
    likelihood = -np.inf
    for step in range(STEPS):
        total = weight.sum()
        mean_before = weight @ before / total
        mean_after = weight @ after / total
        centred = before - mean_before
        phi = float(weight @ (centred * (after - mean_after)) / max(weight @ centred**2, 1e-12))
        constant = float(mean_after - phi * mean_before)
        new = after - constant - phi * before
        if not step:
            narrow = float(np.mean(new**2)) + 1e-12
            wide = 9 * narrow
        usual = (1 - share) * np.exp(-0.5 * new**2 / narrow) / np.sqrt(2 * np.pi * narrow)
        large = share * np.exp(-0.5 * new**2 / wide) / np.sqrt(2 * np.pi * wide)
        density = usual + large + 1e-300
        likelihood = float(np.log(density).sum())
        is_large = large / density
        share = float(np.clip(is_large.mean(), 1e-4, 0.5))
        narrow = float((1 - is_large) @ new**2 / (1 - is_large).sum()) + 1e-12
        wide = max(float(is_large @ new**2 / max(is_large.sum(), 1e-9)), narrow)
        weight = (1 - is_large) / narrow + is_large / wide
    return likelihood


def _is_lasting(model: Switching, values: Floats) -> bool:
    """Whether levels change at once and stay."""
    state = _likelier(model, values)
    changes = 1 + np.flatnonzero(np.diff(state))
    inside = changes[(changes > BESIDE) & (changes < len(state) - BESIDE)]
    if len(inside) < 2 or len(state) / (len(changes) + 1) < DWELL_MIN:
        return False
    around = np.arange(BESIDE)
    after = values[inside[:, None] + around].mean(axis=1)
    before = values[inside[:, None] - 1 - around].mean(axis=1)
    direction = np.where(state[inside] == 1, 1.0, -1.0)
    distance = model.levels[1] - model.levels[0]
    return bool(distance > 0 and np.mean(direction * (after - before)) >= ABRUPT_MIN * distance)
