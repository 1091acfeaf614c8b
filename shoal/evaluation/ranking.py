"""Ranks of algorithms over many comparisons: mean ranks, the Friedman test and the Nemenyi test.

Source: J. Demšar, "Statistical comparisons of classifiers over multiple data sets" (2006), sections 3.2.2 and 3.2.3.
Both tests take the comparisons for independent. Comparisons by several scores on one data set are not, and neither are
its splits: as the FCAC paper counts them, the tests find a difference significant too easily.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidData

Floats = NDArray[np.float64]
ALPHA: Final = 0.05


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of k algorithms over n comparisons; 1 is best."""

    names: tuple[str, ...]
    mean: Floats
    """(k,)"""
    comparisons: int
    friedman_p: float
    """probability of ranks as different as these if all algorithms were equally good; NaN for fewer than 3 of them"""
    critical_difference: float
    """mean ranks that differ by less do not differ significantly (Nemenyi, 5 %)"""

    def of(self, name: str) -> float:
        """The mean rank of one algorithm."""
        return float(self.mean[self.names.index(name)])

    def differ(self, a: str, b: str) -> bool:
        """Whether both tests find a difference between two algorithms."""
        return self.friedman_p < ALPHA and abs(self.of(a) - self.of(b)) >= self.critical_difference

    def groups(self) -> list[tuple[str, ...]]:
        """The largest groups of algorithms, best first, in which no two differ by the critical difference."""
        order = sorted(self.names, key=self.of)
        found: list[tuple[str, ...]] = []
        for place, first in enumerate(order):
            group = tuple(name for name in order[place:] if self.of(name) - self.of(first) < self.critical_difference)
            if len(group) > 1 and not (found and set(group) <= set(found[-1])):
                found.append(group)
        return found


def rank(scores: Sequence[Mapping[str, float]], names: Sequence[str]) -> Ranking:
    """The scores of `names` in each comparison -> their ranks, the highest score first, equal ones at their mean rank.

    Raises `InvalidData` without comparisons, or with fewer than two algorithms.
    """
    if not scores or len(names) < 2:
        raise InvalidData(f"{len(names)} algorithms in {len(scores)} comparisons cannot be ranked; run at least two")
    from scipy import stats  # noqa: PLC0415 - an extra that edge clients do without

    table = np.array([[each[name] for name in names] for each in scores])
    n, k = table.shape
    p = float("nan")
    if k > 2:
        # Where every comparison is a tie there is nothing that could differ.
        p = float(stats.friedmanchisquare(*table.T).pvalue) if (np.ptp(table, axis=1) > 0).any() else 1.0
    ranks = np.asarray(stats.rankdata(-table, axis=1))
    q = float(stats.studentized_range.ppf(1 - ALPHA, k, np.inf)) / np.sqrt(2)
    return Ranking(tuple(names), ranks.mean(axis=0), n, p, q * float(np.sqrt(k * (k + 1) / (6 * n))))
