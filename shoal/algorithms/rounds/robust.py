"""Robust combination: answers of all clients -> one answer in which no client counts for more than
its part.

An answer says for each cluster how much mass a client has there, and where: a sum of its rows,
which is a mean once it is divided by the mass (its *moments*). Two bounds hold for every method:

- no client counts for more rows than `ROWS_FACTOR` times the median client;
- where a cluster is, no client has more than `SHARE_MAX` of the weight, as long as enough clients
  have rows there.

The moments of a cluster are then those of one of three combinations of the clients' moments around
their geometric median: the median itself; the mean without the 3/7 of the weight that are farthest
from it (`trimmed`); the mean of all, each moved towards it to within the median distance (`clip`).

Sources: Y. Chen, L. Su, J. Xu (2017) for the geometric median of clients' answers; D. Yin and
others (2018) for the trimmed mean; S. P. Karimireddy, L. He, M. Jaggi (2021) for clipping around a
centre; E. Weiszfeld (1937) for the iteration that finds the median.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from shoal.algorithms.streaming import Arrays
from shoal.kernels.arrays import AnyArray, Floats

METHODS: Final = ("none", "median", "trimmed", "clip")
ROWS_FACTOR: Final = 2.0
SHARE_MAX: Final = 1 / 7
"""largest share of a client: three of ten clients together then have less than half"""
TRIMMED: Final = 3 * SHARE_MAX
STEPS: Final = 100
FAR: Final = 1e100
"""moments beyond it count as if they were there"""
STILL: Final = 1e-9
"""movement of a cluster in unit coordinates below which the iteration ends"""


@dataclass(frozen=True)
class RobustForm:
    """Which arrays of an answer are what, so that answers can be combined robustly."""

    mass: str
    """(k,) how many rows, or how much of them, the client has in each cluster"""
    moments: tuple[str, ...]
    """(k, ...) what is divided by the mass to be compared"""
    sums: bool = True
    """whether the moments travel multiplied by the mass"""
    totals: tuple[str, ...] = ()
    """(1,) what adds up over clients"""
    refuses: Callable[[Mapping[str, Any]], str] = lambda options: ""
    """options of the model -> why they cannot be combined robustly; empty when they can"""


def combine_robustly(form: RobustForm, method: str, answers: Sequence[Arrays]) -> list[Arrays]:
    """Answers of equal shapes, ordered by client -> one answer that stands for all, in a list; none
    for none.

    Answers without mass in any cluster are left out. `method` is one of `METHODS`.
    """
    if method == "none":
        return list(answers)
    # A client without rows has no place that could be compared.
    filled = [answer for answer in answers if (answer[form.mass] > 0).any()]
    if len({answer[form.mass].shape for answer in filled}) != 1:
        # None, or answers of unequal shapes, which `combine` rejects.
        return filled
    mass = np.stack([answer[form.mass] for answer in filled])
    rows = mass.sum(axis=1)
    parts = mass * _row_factors(rows)[:, None]
    total = parts.sum(axis=0)
    combined: dict[str, AnyArray] = {form.mass: total}
    moments = [_moments(form, name, filled, mass) for name in form.moments]
    # All moments of a cluster are one point: its sum and its other moments come from the same mix
    # of clients.
    places = _locations(method, np.concatenate(moments, axis=2), parts)
    first = 0
    for name, moment in zip(form.moments, moments, strict=True):
        place = places[:, first : first + moment.shape[2]]
        first += moment.shape[2]
        if form.sums:
            place = place * total[:, None]
        combined[name] = place.reshape(filled[0][name].shape)
    factors = parts.sum(axis=1) / rows
    for name in form.totals:
        values = np.array([float(answer[name][0]) for answer in filled])
        combined[name] = np.array([_total(values, rows, factors)])
    return [{name: combined[name] for name in filled[0]}]


def _moments(form: RobustForm, name: str, answers: Sequence[Arrays], mass: Floats) -> Floats:
    """(c, k, p) the moments of each client in each cluster; zeros where it has no mass."""
    arrays = np.stack([answer[name].reshape(mass.shape[1], -1) for answer in answers])
    if form.sums:
        with np.errstate(over="ignore"):
            arrays = np.divide(
                arrays, mass[:, :, None], out=np.zeros_like(arrays), where=mass[:, :, None] > 0
            )
    # A mass that is next to nothing must not make a number that cannot be calculated with.
    return np.asarray(np.clip(arrays, -FAR, FAR), dtype=np.float64)


def _row_factors(rows: Floats) -> Floats:
    """rows (c,) of each client -> (c,) the factor, at most 1, that bounds them to a multiple of the
    median."""
    return np.asarray(np.minimum(1.0, ROWS_FACTOR * np.median(rows) / rows))


def _total(values: Floats, rows: Floats, factors: Floats) -> float:
    """A total of all clients: the median of their totals per row, times the rows that count."""
    # A total over almost no rows overflows, and counts as one that is far away.
    with np.errstate(over="ignore"):
        per_row = np.clip(values / rows, -FAR, FAR)
    # Stable: clients of equal totals count in the order of their names.
    order = np.argsort(per_row, kind="stable")
    counted = np.cumsum((rows * factors)[order])
    middle = order[np.searchsorted(counted, counted[-1] / 2)]
    return float(per_row[middle] * counted[-1])


def _locations(method: str, moments: Floats, mass: Floats) -> Floats:
    """moments (c, k, p), mass (c, k) -> (k, p) the place of each cluster; zeros without mass."""
    places = np.zeros(moments.shape[1:])
    for cluster in np.flatnonzero(mass.any(axis=0)):
        has_mass = mass[:, cluster] > 0
        shares = bounded_shares(mass[has_mass, cluster])
        places[cluster] = _location(method, moments[has_mass, cluster], shares)
    return places


def bounded_shares(mass: Floats) -> Floats:
    """mass (c,) above 0 -> (c,) shares that add up to 1, in proportion to the mass but for those
    that are bounded.

    Of fewer than 1 / `SHARE_MAX` clients each has the same share: then a bound by mass would be one
    by what they claim.
    """
    if len(mass) * SHARE_MAX <= 1:
        return np.full(len(mass), 1 / len(mass))
    shares = mass / mass.sum()
    bounded = np.zeros(len(mass), dtype=np.bool_)
    # What is taken from one goes to the others, which may then exceed the limit themselves. The
    # slack keeps a share that is the limit but for rounding from going round once more.
    while True:
        over = shares > SHARE_MAX * (1 + 1e-12)
        if not (over & ~bounded).any():
            return np.asarray(shares)
        bounded |= over
        rest = mass / mass[~bounded].sum() * (1 - SHARE_MAX * bounded.sum())
        shares = np.where(bounded, SHARE_MAX, rest)


def _location(method: str, points: Floats, shares: Floats) -> Floats:
    """The combination of points (c, p) with shares (c,) by one of `METHODS` -> (p,)."""
    centre = geometric_median(points, shares)
    if method == "median":
        return centre
    far = np.linalg.norm(points - centre, axis=1)
    order = np.argsort(far, kind="stable")
    if method == "trimmed":
        before = np.cumsum(shares[order]) - shares[order]
        # The slack leaves out a point before which the shares sum to the limit but for rounding.
        kept = order[before < 1 - TRIMMED - 1e-12]
        return np.asarray(shares[kept] @ points[kept] / shares[kept].sum())
    radius = far[order[np.searchsorted(np.cumsum(shares[order]), 0.5)]]
    factor = np.divide(radius, far, out=np.ones_like(far), where=far > radius)
    return np.asarray(centre + shares @ ((points - centre) * factor[:, None]))


def geometric_median(points: Floats, shares: Floats) -> Floats:
    """points (c, p), shares (c,) that add up to 1 -> (p,) the point with the least sum of weighted
    distances.

    A point with half of the shares or more is the median itself.
    """
    if shares.max() >= 0.5:
        return np.asarray(points[shares.argmax()])
    # Each coordinate by itself; stable, so that equal values keep the order of the clients.
    order = np.argsort(points, axis=0, kind="stable")
    counted = np.cumsum(shares[order], axis=0)
    middle = (counted < 0.5 - 1e-12).sum(axis=0)
    # From the median of each coordinate, which is near, whatever a minority claims.
    centre = np.take_along_axis(points, np.take_along_axis(order, middle[None], axis=0), axis=0)[0]
    for _ in range(STEPS):
        far = np.linalg.norm(points - centre, axis=1)
        # A point on the median would pull with infinite strength; the floor keeps it finite.
        pull = shares / np.maximum(far, 1e-12)
        before = centre
        centre = pull @ points / pull.sum()
        if np.abs(centre - before).max() <= STILL:
            break
    return np.asarray(centre)
