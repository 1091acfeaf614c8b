"""The synthetic data of the FFCM paper (cases 1 to 4) and its measures.

In two points they follow the paper's tables and not its text: the errors are not squared (the tables have sums of
distances over n d), and the standard deviation of case 1, which the text leaves out, is 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.distance import squared_distances
from shoal.kernels.matching import assignment

Floats = NDArray[np.float64]


class CaseData(NamedTuple):
    """Rows (n_i, d) of each client, and the true centres (k, d)."""

    clients: list[Floats]
    centres: Floats


@dataclass(frozen=True)
class Case:
    """Normal clusters of one standard deviation: true centres, and how many rows of each every client holds."""

    centres: tuple[tuple[float, ...], ...]
    sd: float
    rows: tuple[tuple[int, ...], ...]
    fuzzifier: float = 2.0

    def draw(self, seed: int) -> CaseData:
        """The data of one trial."""
        generator = np.random.default_rng(seed)
        centres = np.array(self.centres)
        return CaseData(
            [np.concatenate([_blob(generator, *each) for each in self._blobs(rows)]) for rows in self.rows], centres
        )

    def _blobs(self, rows: tuple[int, ...]) -> list[tuple[tuple[float, ...], float, int]]:
        return [(centre, self.sd, n) for centre, n in zip(self.centres, rows, strict=True)]


def _blob(generator: np.random.Generator, centre: tuple[float, ...], sd: float, n: int) -> Floats:
    return generator.normal(size=(n, len(centre))) * sd + centre


_DIAGONAL = ((-2.0, -2.0), (0.0, 0.0), (2.0, 2.0))
_CORNERS = ((0.0, 0.0), (0.0, 10.0), (10.0, 10.0), (10.0, 0.0))


def _corners(first: int, second: int, third: int) -> Case:
    """Case 3: clients of two neighbouring corners each, their rows in equal parts."""
    a, b, c = first // 2, second // 2, third // 2
    return Case(_CORNERS, 1.0, ((a, a, 0, 0), (0, b, b, 0), (0, 0, c, c)))


CASES: Final[dict[str, Case]] = {
    "case1": Case(_DIAGONAL, 0.5, ((333, 333, 333), (333, 333, 333), (500, 500, 0))),
    "case2": Case(((5.0, 0.0), (5.0, 10.0), (10.0, 10.0)), 1.1, ((900, 50, 50), (50, 900, 50)), fuzzifier=1.1),
    "case3-100-1000-100": _corners(100, 1000, 100),
    "case3-100-1000-1000": _corners(100, 1000, 1000),
    "case3-1000-100-100": _corners(1000, 100, 100),
    "case3-1000-1000-1000": _corners(1000, 1000, 1000),
}
G2_WIDTHS: Final = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
G2_DEVIATIONS: Final = tuple(range(10, 101, 10))
G2_CLIENTS: Final = 10
G2_ROWS: Final = 1024


def g2(d: int, sd: float, seed: int) -> CaseData:
    """A G2 set (Fränti and Sieranoja): 1024 rows around 500, 1024 around 600, whole numbers, dealt to ten clients."""
    generator = np.random.default_rng([seed, d, int(sd)])
    centres = np.array([[500.0] * d, [600.0] * d])
    # Rounded down, not to the nearest: the published files' means lie half below 500 and 600, and that half in each
    # feature of both centres is the least gap that table 5 has.
    rows = np.floor(np.repeat(centres, G2_ROWS, axis=0) + generator.normal(size=(2 * G2_ROWS, d)) * sd)
    return CaseData(np.array_split(generator.permutation(rows), G2_CLIENTS), centres)


def errors(rows: Floats, centres: Floats) -> tuple[float, float]:
    """rows (n, d), centres (k, d) -> within and outside error: distances to own centres and to the others, / (n d)."""
    distances = np.sqrt(squared_distances(rows, centres))
    own = distances.min(axis=1).sum()
    return float(own / rows.size), float((distances.sum() - own) / rows.size)


def gap(found: Floats, true: Floats) -> float:
    """Sum of the distances between found and true centres, (k, d) each, in the pairing with the least sum."""
    distances = np.sqrt(squared_distances(true, found))
    return float(distances[np.arange(len(true)), assignment(distances)].sum())
