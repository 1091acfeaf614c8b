"""The exchange of an evaluation for regimes: what the server asks in each of its phases, and the
sums that clients answer.

Answers are named arrays that add up over clients, and samples of blocks, which are joined. Where
clients are in the same process the phases follow at once; in a federation one snapshot asks, and
the updates after it answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from shoal.algorithms.regimes.blocks import n_block_features
from shoal.algorithms.regimes.plan import CODEBOOK_POINTS_MAX, ScalePlan, Scaling
from shoal.algorithms.regimes.sets import CellSets
from shoal.kernels.arrays import Floats, Ints

Key = tuple[int, bool]
"""a scale, and whether clients' own levels are taken from their blocks"""
Sums = dict[str, Floats]
"""an answer, or the sum of answers: arrays by `PLACE/NAME`, the place of a scale among all, or of a
candidate"""
SAMPLE = "sample"
"""name of the array of an answer that is joined, and not added"""
BLOCKS_OF_SAMPLES_MAX = 2 * CODEBOOK_POINTS_MAX
"""blocks of all clients from which on every second one is left out"""


class Phase(IntEnum):
    """Kinds of what clients are asked for."""

    COLUMNS = 0
    """level and spread of their columns; once, before the first evaluation"""
    SCALING = 1
    """sums of the features of their blocks"""
    PRODUCTS = 2
    """products of standardized features, and some blocks"""
    PAIRS = 3
    """pairs of cells of successive blocks"""
    NAMES = 4
    """readings that the regimes found share with those before, and what these are like"""
    REST = 5
    """nothing until the next evaluation"""


@dataclass(frozen=True, eq=False)
class Columns:
    """Level and spread (d,) of the columns of all clients."""

    level: Floats
    spread: Floats

    def standardize(self, rows: Floats) -> Floats:
        """(n, d) -> (n, d)."""
        return (rows - self.level) / self.spread


@dataclass(frozen=True, eq=False)
class Codebook:
    """The regimes that were found: the plan of their scale, the sets of its cells, and the identity
    of each set."""

    plan: ScalePlan
    sets: CellSets
    identity: Ints
    """(k,) of each set"""

    @property
    def w(self) -> int:
        """Readings of a block."""
        return self.plan.scaling.w

    def order(self) -> Ints:
        """(k,) sets in the order of their identities."""
        return np.argsort(self.identity)

    def dwell(self) -> Floats:
        """(k,) mean dwell in each set, in readings, from what the changes at both lags have in
        common.

        The counts at one block alone see a dwell end whenever a block is taken for one of another
        regime.
        """
        lag_1 = self.sets.changes
        lag_2 = self.sets.changes_2
        # Not the inverse: the row of a set that no stream was in is zero.
        remaining = np.diag(np.linalg.pinv(lag_1 + lag_1.T) @ (lag_2 + lag_2.T))
        # Changes seen bound what a few blocks astray can make endless. Seen at two blocks, they are
        # rather too few.
        leaving = np.maximum(self.moved().sum(axis=1), 1.0) / np.maximum(lag_1.sum(axis=1), 1.0)
        found: Floats = self.w / np.clip(np.maximum(1.0 - remaining, leaving), 1e-6, 1.0)
        return found

    def moved(self) -> Floats:
        """(k, k) changes from each to each other regime, without blocks astray.

        A block taken for one of another regime counts at one block and at two alike, a change that
        lasts once more.
        """
        more = np.maximum(self.sets.changes_2 - self.sets.changes, 0.0)
        np.fill_diagonal(more, 0.0)
        return more

    def n_changes(self) -> int:
        """Changes from one regime to another that were seen."""
        return round(float(self.moved().sum()))


@dataclass(frozen=True, eq=False)
class Candidate:
    """Sets of cells that may be shown next, or all readings as one."""

    w: int
    centred: bool
    plan: ScalePlan | None = None
    """None: all readings are in one set"""
    of_cell: Ints = field(default_factory=lambda: np.zeros(1, np.int64))

    @property
    def n_sets(self) -> int:
        """Number of sets."""
        return int(self.of_cell.max()) + 1

    def of_block(self, blocks: Floats) -> Ints:
        """(n, m) features of blocks -> (n,) their sets; -1 for one that is NaN."""
        if self.plan is None:
            return np.where(np.isnan(blocks).any(axis=1), -1, 0)
        cells = self.plan.cells(blocks)
        return np.where(cells >= 0, self.of_cell[cells], -1)


@dataclass(frozen=True, eq=False)
class Query:
    """The server's query to every client."""

    phase: Phase
    evaluation: int
    """number of the evaluation; clients find their own level anew in each"""
    keys: tuple[Key, ...]
    """all scales, whose places name the arrays of an answer"""
    columns: Columns | None = None
    """None: rows are standardized already, or not known yet"""
    scalings: Mapping[int, Scaling] = field(default_factory=dict)
    """scalings by place, in the phase of products"""
    plans: Mapping[int, ScalePlan] = field(default_factory=dict)
    """plans by place, in the phase of pairs"""
    candidates: tuple[Candidate, ...] = ()
    """candidates, in the phase of names"""
    last: Codebook | None = None
    """the regimes that identities come from, in the phase of names; None: there are none"""

    def places(self) -> tuple[int, ...]:
        """Places of the scales, or of the candidates, that an answer is about."""
        if self.phase is Phase.SCALING:
            return tuple(range(len(self.keys)))
        found: dict[Phase, tuple[int, ...]] = {
            Phase.PRODUCTS: tuple(self.scalings),
            Phase.PAIRS: tuple(self.plans),
            Phase.NAMES: tuple(range(len(self.candidates))),
        }
        return found.get(self.phase, ())

    def forms(self, d: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the arrays of an answer, without the sample, for d columns."""
        if self.phase is Phase.NAMES:
            return self._forms_of_names(d)
        forms: dict[str, tuple[int, ...]] = {}
        for place in self.places():
            m = n_block_features(d, self.keys[place][0])
            if self.phase is Phase.PAIRS:
                c = len(self.plans[place].codewords)
                forms[f"{place}/pairs"] = (2, c, c)
                continue
            forms |= {f"{place}/n": (1,), f"{place}/total": (m,)}
            if self.phase is Phase.SCALING:
                forms[f"{place}/squares"] = (m,)
            else:
                forms |= {f"{place}/same": (m, m), f"{place}/lagged": (m, m)}
        return forms

    def _forms_of_names(self, d: int) -> dict[str, tuple[int, ...]]:
        old = 0 if self.last is None else len(self.last.identity)
        forms: dict[str, tuple[int, ...]] = {"0/level": (d,), "0/levels": (1,)}
        for place, candidate in enumerate(self.candidates):
            k = candidate.n_sets
            forms |= {
                f"{place}/overlap": (old, k),
                f"{place}/information": (3,),
                f"{place}/count": (k,),
            }
            forms |= {f"{place}/{name}": (k, d) for name in ("mean", "square", "rough", "slope")}
        return forms


def add_answer(totals: Sums, answer: Sums) -> None:
    """Add an answer to the sum of the others, in place."""
    for name, array in answer.items():
        if name not in totals:
            totals[name] = array.copy()
        elif name.endswith(SAMPLE):
            joined = np.concatenate([totals[name], array])
            totals[name] = joined[::2] if len(joined) > BLOCKS_OF_SAMPLES_MAX else joined
        else:
            totals[name] = totals[name] + array


@dataclass(frozen=True, eq=False)
class Profiles:
    """What the readings of each of k regimes are like, standardized (k, d)."""

    count: Floats
    """(k,) blocks"""
    mean: Floats
    """mean; where clients' own levels are taken, as if all clients had the mean of their levels"""
    spread: Floats
    """standard deviation"""
    rough: Floats
    """log roughness of a block, less its log deviation; 0 at the smallest scale, which has none"""
    slope: Floats

    @classmethod
    def of(cls, totals: Sums, place: int, centred: bool) -> Profiles:
        """Those of a candidate, from the answers; NaN where no block is known."""
        count = totals[f"{place}/count"].copy()
        shown = np.where(count > 0, count, np.nan)[:, None]
        mean, square, rough, slope = (
            totals[f"{place}/{name}"] / shown for name in ("mean", "square", "rough", "slope")
        )
        # Rounding makes the difference negative where a regime stands still.
        spread = np.sqrt(np.maximum(square - mean**2, 0.0))
        if centred and totals["0/levels"][0] > 0:
            mean = mean + totals["0/level"] / totals["0/levels"][0]
        return cls(count, mean, spread, rough, slope)
