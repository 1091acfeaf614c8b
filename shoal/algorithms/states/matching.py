"""States of several clients that are one: those that differ alike from the other states of their
client."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import numpy as np

from shoal.algorithms.streaming import Arrays
from shoal.kernels.arrays import Bools, Floats, Ints

LEVEL_BASE: Final = 0.5
"""deviations of the readings within two states by which the difference of their levels may be
another one at another client"""
LOG_BASE: Final = 0.2
"""nats by which the difference of two log spreads, or of two log roughnesses, may be another one"""
RELATIVE: Final = 0.25
"""part of a difference between two states by which it may be another one at another client"""
DISTINCT: Final = 2.0
"""times these bounds by which two states of a client must differ to be distinct"""
KEPT: Final = 1.5
"""times as far as others that states may lie apart which have had one number: it is to last"""
UNIT_MIN: Final = 1e-3
"""deviation, in unit coordinates, that is taken for none: a thousandth of the contract's range"""
ORIGINS_MAX: Final = 6
"""states of a client that are tried as origin, those with the most readings: bounds what an update
with many states costs"""


class Profile(NamedTuple):
    """What tells the k states of a client from each other. d columns, in unit coordinates."""

    readings: Ints
    """(k,)"""
    mean: Floats
    """(k, d)"""
    variance: Floats
    """(k, d)"""
    step: Floats
    """(k, d) mean squared difference of successive readings"""

    @classmethod
    def of(cls, arrays: Arrays) -> Self:
        """The profile in an update that is not empty."""
        weight = arrays["count"].astype(np.float64)[:, None]
        mean = arrays["total"] / weight
        variance = np.maximum(arrays["square"] / weight - mean**2, 0.0)
        return cls(arrays["count"], mean, variance, arrays["step"] / weight)

    def origins(self) -> list[int]:
        """Positions of the states that are tried as origin, by readings, the most first."""
        by_readings = np.argsort(-self.readings, kind="stable")
        return [int(place) for place in by_readings[:ORIGINS_MAX]]

    def differences(self, origin: int) -> Floats:
        """(k, 3 d) differences from one of its states: of levels in deviations within both states,
        of log spreads, and of log roughnesses.

        They depend on these two states alone: clients have other states, and are in them for other
        shares of their time.
        """
        variance = self.variance + UNIT_MIN**2
        step = self.step + UNIT_MIN**2
        unit = np.sqrt((variance + variance[origin]) / 2)
        level = (self.mean - self.mean[origin]) / unit
        spread = 0.5 * np.log(variance / variance[origin])
        rough = 0.5 * np.log(step / step[origin])
        return np.concatenate([level, spread, rough], axis=1)


def matched_states(own: Profile, other: Profile, kept: bool = False) -> list[tuple[int, int]]:
    """Positions of states of two clients that are one, each state at most once. `kept`: whether
    they have shared numbers before.

    Clients have levels, spreads and noise of their own, so states are compared by how they differ
    from another state of their client. Of all pairs that may be one, that is taken as origin which
    leaves most others, and among those the least differences. States of a client that these
    features do not tell apart are not matched: which is which could not be known. Either several
    states match or none: any two states could be one if there were nothing else to compare.
    """
    d = own.mean.shape[1]
    base = np.concatenate([np.full(d, LEVEL_BASE), np.full(2 * d, LOG_BASE)])
    slack = KEPT if kept else 1.0
    of_other = {origin: other.differences(origin) for origin in other.origins()}
    best: list[tuple[int, int]] = []
    best_gap = np.inf
    for origin in own.origins():
        differences = own.differences(origin)
        for other_origin, other_differences in of_other.items():
            gaps = _gaps(differences, other_differences, base) / slack
            pairs, gap = _closest(gaps)
            if pairs and (len(pairs), -gap) > (len(best) - 1, -best_gap):
                best = [(origin, other_origin), *pairs]
                best_gap = gap
    return best


def _gaps(differences: Floats, other: Floats, base: Floats) -> Floats:
    """(k, 3 d) and (l, 3 d) -> (k, l) how far apart two states are, at most 1 where they may be
    one; infinite where either is not distinct from its origin."""
    size = np.abs(differences)
    other_size = np.abs(other)
    allowed = base + RELATIVE * np.maximum(size[:, None], other_size)
    gaps = (np.abs(differences[:, None] - other) / allowed).max(axis=2)
    is_distinct: Bools = (size / base).max(axis=1) >= DISTINCT
    other_is_distinct: Bools = (other_size / base).max(axis=1) >= DISTINCT
    gaps[~is_distinct] = np.inf
    gaps[:, ~other_is_distinct] = np.inf
    return np.asarray(gaps)


def _closest(gaps: Floats) -> tuple[list[tuple[int, int]], float]:
    """(k, l) -> pairs with a gap of at most 1, the closest first and each state once, and the sum
    of their gaps."""
    pairs = []
    total = 0.0
    while gaps.min() <= 1.0:
        row, column = np.unravel_index(int(gaps.argmin()), gaps.shape)
        pairs.append((int(row), int(column)))
        total += float(gaps[row, column])
        gaps[row] = np.inf
        gaps[:, column] = np.inf
    return pairs, total
