"""Whether the claims of one message agree: the readings it is from, where they lie, and what it
says of them.

The receiver of an update knows neither the rows behind it nor whether its sender is honest. It
knows how many readings the update is said to be from, and the box in which the contract and its
privacy mode let rows lie. Sums, masses and moments of that number of rows from that box keep to the
bounds below; an update beyond them is from no rows at all. The bounds hold for noisy rows too,
since the box is that of the rows after privacy (`shoal.privacy.base.RowRange`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.errors import InvalidData
from shoal.kernels.arrays import AnyArray, Floats, unpack_symmetric

ROUNDING_SHARE = 1e-9
"""distance by which a sum of floating-point numbers may lie beyond its bound, as a part of the
bound"""


@dataclass(frozen=True)
class Box:
    """Region in which rows lie, noise included. What follows from it is worked out once for a
    contract's claims."""

    low: Floats
    """(d,) lower corner"""
    high: Floats
    """(d,) upper corner"""

    @cached_property
    def span(self) -> Floats:
        """(d,) its extent."""
        return self.high - self.low

    @cached_property
    def diagonal_squared(self) -> float:
        """No two rows in it are farther apart, as a square."""
        return float((self.span**2).sum())

    @cached_property
    def scale(self) -> float:
        """The largest coordinate of a row in it, by size; above 0."""
        # The floor keeps the slack of comparisons above 0 where the box is the origin.
        return float(max(np.abs(self.low).max(), np.abs(self.high).max(), 1e-12))


@dataclass(frozen=True)
class Claims:
    """Claims of a message about the rows behind it, and what its contract says of them."""

    readings: int
    """readings that the message claims to be from"""
    box: Box
    """the box that the rows lie in"""

    @property
    def low(self) -> Floats:
        """(d,) lower corner of the box."""
        return self.box.low

    @property
    def high(self) -> Floats:
        """(d,) upper corner."""
        return self.box.high

    @property
    def span(self) -> Floats:
        """(d,) extent of the box."""
        return self.box.span

    @property
    def scale(self) -> float:
        """Scale of the box (`Box.scale`)."""
        return self.box.scale

    def relative_to(self, origin: Floats) -> Claims:
        """The same with rows relative to `origin` (d,)."""
        return Claims(self.readings, Box(self.low - origin, self.high - origin))


def require_possible(possible: bool | np.bool_, problem: str) -> None:
    """Raises `InvalidData` for claims that no rows can have. `problem` contains no value of a
    message."""
    if not possible:
        raise InvalidData(f"its claims do not agree: {problem}")


def check_masses(name: str, masses: AnyArray, claims: Claims, *, spare: float = 0.0) -> None:
    """Raises `InvalidData` for masses or counts (k,) below 0, or more than the readings in all.

    `spare` readings more are allowed.
    """
    require_possible(bool((masses >= 0).all()), f"{name} holds a number below 0")
    most = (claims.readings + spare) * (1.0 + ROUNDING_SHARE)
    require_possible(_total(masses) <= most, f"{name} adds up to more than its readings")


def check_sums(name: str, masses: Floats, sums: Floats, claims: Claims) -> None:
    """Raises `InvalidData` unless sums (k, d) can be those of rows of masses (k,) from the box.

    Where there is no mass the sum is 0; elsewhere sum / mass lies in the box.
    """
    slack = (ROUNDING_SHARE * claims.scale * (masses + ROUNDING_SHARE * (masses > 0)))[:, None]
    # A claim may overflow: what is then infinite or no number fails the comparison.
    with np.errstate(over="ignore", invalid="ignore"):
        low = masses[:, None] * claims.low - slack
        high = masses[:, None] * claims.high + slack
        possible = bool(((sums >= low) & (sums <= high)).all())
    require_possible(possible, f"{name} is not a sum of its rows within the bounds")


def check_at_most(name: str, entries: int, most: int) -> None:
    """Raises `InvalidData` for more entries of an array than `most`."""
    require_possible(
        entries <= most, f"{name} has {entries} entries, {most} were asked for at most"
    )


def check_moments(masses: Floats, sums: Floats, squares: Floats, claims: Claims) -> None:
    """Raises `InvalidData` unless masses (k,), sums and squares (k, d) can be those of such rows.

    From (x - low)(high - x) >= 0 follows the upper bound, from the mean of squares >= the square of
    the mean the lower one (the inequality of Bhatia and Davis).
    """
    slack = (ROUNDING_SHARE * claims.scale**2 * (masses + ROUNDING_SHARE))[:, None]
    # Masses of 0 divide, and claims overflow: `where` and the comparisons below decide about both.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        least = np.where(masses[:, None] > 0, sums**2 / masses[:, None], 0.0) - slack
        most = (
            (claims.low + claims.high) * sums - claims.low * claims.high * masses[:, None] + slack
        )
        possible = bool(((squares >= least) & (squares <= most)).all())
    require_possible(possible, "second moments that no rows within the bounds have")


def check_total_moments(masses: Floats, sums: Floats, squares: Floats, claims: Claims) -> None:
    """Check moments like `check_moments`, for squares (k,) that are added up over the features."""
    slack = ROUNDING_SHARE * claims.scale**2 * sums.shape[1] * (masses + ROUNDING_SHARE)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        least = np.where(masses > 0, (sums**2).sum(axis=1) / masses, 0.0) - slack
        by_feature = (claims.low + claims.high) * sums - claims.low * claims.high * masses[:, None]
        most = by_feature.sum(axis=1) + slack
        possible = bool(((squares >= least) & (squares <= most)).all())
    require_possible(possible, "second moments that no rows within the bounds have")


def check_scatter(halves: Floats, masses: Floats, sums: Floats, claims: Claims) -> None:
    """Raises `InvalidData` where second moments (c, m) leave a covariance with negative variance.

    They are upper halves of matrices. c is k, or 1 for the moments of all components together.
    masses (k,), sums (k, d).
    """
    d = sums.shape[1]
    # Masses of 0 divide, and claims overflow: what is then no number is no definite matrix.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        means = np.where(masses[:, None] > 0, sums / masses[:, None], 0.0)
    between = sums[:, :, None] * means[:, None, :]
    total = masses
    if len(halves) != len(masses):
        between = between.sum(axis=0)[None]
        total = masses.sum()[None]
    slack = ROUNDING_SHARE * claims.scale**2 * d * (total + ROUNDING_SHARE)
    check_definite(unpack_symmetric(halves, d) - between + slack[:, None, None] * np.eye(d))


def check_definite(matrices: Floats) -> None:
    """Raises `InvalidData` unless all matrices (c, d, d) are positive definite."""
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        raise InvalidData("its claims do not agree: a covariance with a variance below 0") from None


def check_between(name: str, value: float, least: float, most: float) -> None:
    """Raises `InvalidData` unless a number lies in its bounds, as far as rounding goes."""
    slack = ROUNDING_SHARE * max(abs(least), abs(most), 1e-12)
    require_possible(
        least - slack <= value <= most + slack, f"{name} is not that of its rows within the bounds"
    )


def _total(masses: AnyArray) -> float:
    # As floats, since a sum of whole numbers could overflow.
    with np.errstate(over="ignore"):
        return float(masses.sum(dtype=np.float64))
