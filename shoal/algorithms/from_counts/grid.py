"""Algorithms on counts on a grid: clients count windows cell by cell, and the server learns rows
made from the sums.

The counts of single windows are mostly noise; their sum is not, because noise grows with the root
of the number of windows only. So the server adds up all windows, and now and then lets an algorithm
learn rows where the sums show readings beyond doubt. Rows made from private counts are
post-processing: they cost no epsilon.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.claims import Claims, require_possible
from shoal.algorithms.cluster_tree import CLUSTER_TREE
from shoal.algorithms.counting import (
    FOUND_SIGNIFICANCE,
    CountingAlgorithm,
    check_private_counts,
)
from shoal.algorithms.from_counts.cells import Grid, NetCounts, NetCountsState, links
from shoal.algorithms.from_counts.grid_sizes import CELLS_ALONG, FEATURES_MAX
from shoal.algorithms.shares import ClientShares, ClientSharesState
from shoal.algorithms.streaming import (
    Arrays,
    ArraySpec,
    Contribution,
    Rows,
    State,
    StreamingAlgorithm,
    check_rows,
)
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.saved_state import FloatArray, IntArray, Number, Opaque, require, state_type

STREAM: Final = "grid"
"""see `shoal.algorithms.counting.CountingAlgorithm.stream`"""
EPSILON_ADVISED: Final = 1.0
"""see `shoal.algorithms.counting.CountingAlgorithm`: with less, a grid needs far more than 20,000
readings"""
UPDATE: Final = {
    "places": ArraySpec("<i8", (1,), at_least_one=True),
    "count": ArraySpec("<i4", ("n",)),
}
"""one window of a client: how many readings it has, rejected ones included, and the private count
of every cell of the grid, which may be negative"""
_LIMITS: Final = np.iinfo(np.int32)


@dataclass(frozen=True)
class CountedCells:
    """The true counts of a window, which must not leave the client before noise is added."""

    counts: Ints
    """(cells,)"""
    places: int
    """readings of the window, those that are not valid included"""

    def update(self, private: Ints) -> Arrays:
        """The `UPDATE` arrays with private counts (cells,) in the place of the true ones."""
        # No noise reaches the limits of 32 bits in the age of the universe; cutting it off would
        # cost no epsilon.
        small = np.clip(private, _LIMITS.min, _LIMITS.max).astype(np.int32)
        return {"places": np.array([self.places], dtype=np.int64), "count": small}


class GridCounter:
    """Counts windows on the grid. It keeps nothing of a reading, and its plan never changes."""

    def __init__(self, dimensions: int) -> None:
        self._grid = Grid(dimensions)
        self.plan_digest = hashlib.sha256(f"grid;{dimensions};{self._grid.along}".encode()).digest()
        """32 bytes that identify the grid"""

    def adopt(self, snapshot: Arrays) -> None:
        """Nothing: the grid is the same under every snapshot."""

    def count(
        self,
        rows: Rows,
        valid: Bools,
        client: bytes,
        number: int,
        cohort: tuple[bytes, int] | None = None,
    ) -> CountedCells:
        """Count the `valid` (n,) of the rows (n, d) in unit coordinates; client and window make no
        difference.

        A reading that lacks a feature (NaN) has no cell, and is counted nowhere.
        """
        whole = valid & ~np.isnan(rows).any(axis=1)
        counts = np.bincount(self._grid.numbers(rows[whole]), minlength=self._grid.cells)
        return CountedCells(counts.astype(np.int64), len(rows))


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for counts that a window with this number of readings cannot have,
    whatever the noise."""
    counts = arrays["count"]
    # Rows are made of what is claimed, so a claim beyond any window could keep the server busy for
    # long.
    require_possible(
        claims.readings <= options["window_readings"], "it has more readings than a window"
    )
    require_possible(
        int(arrays["places"][0]) == claims.readings, "its window has other readings than the update"
    )
    require_possible(
        len(counts) == Grid(len(claims.low)).cells, "its counts are not those of the grid"
    )
    check_private_counts(counts, claims.readings, options["noise_variance"])


LEARN_READINGS: Final = 2000
"""readings absorbed between two times that rows are learnt; at first they are learnt after every
quarter more"""
PORTION_ROWS: Final = 100
"""rows contributed at once; of each portion learners may keep fewer points than rows"""
GOLDEN: Final = (np.sqrt(5.0) - 1.0) / 2.0
"""multiples of it fill the unit interval evenly"""
# Of random places in a cell some would lie close together, and pass for a denser part of it.
EVEN_STEPS: Final = {1: 1.618033988749895, 2: 1.324717957244746, 3: 1.2207440846057596}
"""d -> the root of x^(d + 1) = x + 1: multiples of its inverse powers fill the d-dimensional unit
cube evenly"""


@dataclass(frozen=True)
class CountOptions:
    """Terms of a federation's counts, from [privacy] of the contract."""

    noise_variance: float = 0.0
    """variance of the noise of one published count"""
    window_readings: int = 400
    """readings of a full window; here only the number of windows matters"""

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Split a mapping into these options and all others."""
        others = dict(options)
        own = cls(
            others.pop("noise_variance", cls.noise_variance),
            others.pop("window_readings", cls.window_readings),
        )
        return own, others


@state_type
class GridState(NetCountsState):
    """Sums of all windows, what was learnt from them, and the learner."""

    version: ClassVar[int] = 2

    total: Annotated[Floats, FloatArray("cells")]
    """a sum of private counts may be negative"""
    learnt: Annotated[Ints, IntArray("cells")]
    windows: Annotated[float, Number(least=0.0)]
    readings: int
    learnt_at: int
    portions: int
    learner: Annotated[State, Opaque()]
    shares: ClientSharesState

    def check(self) -> None:
        super().check()
        is_known = self.learnt_at <= self.readings
        require(is_known, "rows were learnt after readings not yet absorbed")


class GridServer:
    """Adds up private counts of windows, and lets the server half of `learner` learn rows made from
    the sums.

    The state is a function of the contributions in their order, whatever their grouping: rows are
    made after a fixed number of readings, never by the clock, and nothing is random.
    """

    def __init__(
        self,
        learner: StreamingAlgorithm,
        points: str,
        dimensions: int | None,
        options: Mapping[str, Any],
    ) -> None:
        """`points`: the array of the learner's updates that holds points; the other is `count`.

        Raises `SettingsError`.
        """
        if dimensions is None:
            raise SettingsError(
                f"{learner.name} needs the number of features before the first counts"
            )
        self._learner = learner
        self._points = points
        self._count_options, self._options = CountOptions.split(options)
        self._grid = Grid(dimensions)
        self._half = learner.server(self._options, dimensions)
        self._shares = ClientShares()
        self._net = NetCounts(self._grid, self._count_options.noise_variance)
        self._total: Floats = np.zeros(self._grid.cells)
        self._learnt: Ints = np.zeros(self._grid.cells, dtype=np.int64)
        """(cells,) rows learnt from each"""
        self._windows = 0.0
        """windows whose noise the sum has; one that counts in part has the square of that part"""
        self._readings = 0
        self._learnt_at = 0
        """readings when rows were learnt last"""
        self._portions = 0

    @property
    def half(self) -> str:
        """What a saved state must be of."""
        return f"{self._learner.name} server of counts"

    @property
    def rows_learnt(self) -> int:
        """Rows made from counts so far."""
        return int(self._learnt.sum())

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Add private counts in the order given; nothing is random, so `key` is not used. Raises
        `InvalidData`."""
        for contribution in contributions:
            if contribution.arrays["count"].shape != self._total.shape:
                raise InvalidData(
                    f"contribution of {contribution.client}: its counts are not those of the grid"
                )
        for contribution in contributions:
            self._add(contribution)

    def _add(self, contribution: Contribution) -> None:
        """Add the counts of one window, and learn rows if that is due."""
        counts = contribution.arrays["count"]
        if not self._net.take(contribution.client, counts):
            return
        places = int(contribution.arrays["places"][0])
        part = self._shares.admit(contribution.client, float(places))
        self._total = self._total + part * counts
        # Variances add up: noise in proportion to `part` has its square of the variance.
        self._windows += part**2
        self._readings += places
        if self._readings - self._learnt_at >= min(LEARN_READINGS, self._learnt_at / 4):
            self._learn()

    def _learn(self) -> None:
        """Learn the rows that the sums are worth by now and that have not been learnt yet."""
        self._learnt_at = self._readings
        worth = self._worth()
        worth[links(self._grid, worth, self._net.owners())] = 0.0
        # What was learnt stays: a sum that noise has made smaller takes nothing back.
        new = np.maximum(np.floor(worth).astype(np.int64) - self._learnt, 0)
        rows = self._rows(new)
        self._learnt = self._learnt + new
        for first in range(0, len(rows), PORTION_ROWS):
            portion = rows[first : first + PORTION_ROWS]
            arrays = {self._points: portion, "count": np.ones(len(portion), dtype=np.int64)}
            self._portions += 1
            self._half.absorb(
                [Contribution("counts", self._portions, arrays)],
                self._portions.to_bytes(8, "little"),
            )

    def _worth(self) -> Floats:
        """(cells,) how many independent readings would be as certain as the count of each cell.

        A sum of m readings has the variance m of independent readings, and that of the noise
        besides. With the shares of the readings in the cells kept, all of them together are worth
        m^2 / (m + noise).
        """
        noise = self._windows * self._count_options.noise_variance
        total = self._total
        # Whether a client's readings are accepted is hidden, and nothing is learnt from the noise
        # of none.
        if float(total.sum()) <= FOUND_SIGNIFICANCE * math.sqrt(len(total) * noise):
            return np.zeros(len(total))
        certain = self._grid.certain(total, self._windows, self._count_options.noise_variance)
        kept = np.where(certain, np.maximum(total, 0.0), 0.0)
        readings = float(kept.sum())
        cells = float((kept > 0.0).sum())
        return kept * (readings / max(readings + cells * noise, 1.0))

    def _rows(self, new: Ints) -> Rows:
        """Numbers of new rows (cells,) -> rows (n, d), spread evenly over their cells, the cells
        mixed evenly."""
        cell = np.repeat(np.arange(len(new)), new)
        # The number of each row among the new ones of its cell; those learnt before go on counting,
        # so that no row is made twice.
        place = np.arange(len(cell)) - (np.cumsum(new) - new)[cell]
        step = EVEN_STEPS[self._grid.d] ** -np.arange(1.0, self._grid.d + 1.0)
        phase = (cell * GOLDEN) % 1.0
        within = (phase[:, None] + (self._learnt[cell] + place)[:, None] * step) % 1.0
        rows = self._grid.corners[cell] + within / self._grid.along
        # The rows of all cells in turns: a learner that takes them one by one must not see cell
        # after cell.
        return np.asarray(rows[np.argsort((place + phase) / new[cell], kind="stable")])

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) in unit coordinates -> (n,) cluster of each, as the learner predicts. Raises
        `InvalidData`."""
        return self._half.predict(check_rows(rows, self._grid.d))

    def snapshot(self) -> Arrays:
        """The learner's snapshot."""
        return self._half.snapshot()

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        state = GridState(
            **vars(self._net.state()),
            total=self._total,
            learnt=self._learnt,
            windows=self._windows,
            readings=self._readings,
            learnt_at=self._learnt_at,
            portions=self._portions,
            learner=self._half.state(),
            shares=self._shares.state(),
        )
        return state.saved(**self._identity())

    def _identity(self) -> dict[str, Any]:
        """What a saved state must agree with."""
        return {
            "half": self.half,
            "options": asdict(self._count_options),
            "width": self._grid.d,
        }

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has
        changed."""
        saved = GridState.read(state, {"cells": self._grid.cells}, **self._identity())
        fresh = type(self)(
            self._learner,
            self._points,
            self._grid.d,
            {**self._options, **asdict(self._count_options)},
        )
        fresh._restore_from(saved)
        vars(self).update(vars(fresh))

    def _restore_from(self, saved: GridState) -> None:
        self._total = saved.total
        self._learnt = saved.learnt
        self._windows = saved.windows
        self._readings = saved.readings
        self._shares = ClientShares.restored(saved.shares)
        self._net = NetCounts.restored(saved, self._grid, self._count_options.noise_variance)
        self._learnt_at = saved.learnt_at
        self._portions = saved.portions
        self._half.restore(saved.learner)


def counted_points(update: Arrays, snapshot: Arrays) -> tuple[Rows, Floats]:
    """The middles (n, d) of the cells in which an update has counted readings, and how many (n,);
    the grid is the same under every snapshot."""
    counts = update["count"]
    # The number of cells says how many features there are.
    features = next(d for d, along in CELLS_ALONG.items() if along**d == len(counts))
    grid = Grid(features)
    filled = counts > 0
    return grid.corners[filled] + 0.5 / grid.along, counts[filled].astype(np.float64)


def from_counts(
    learner: StreamingAlgorithm, points: str, options_of_clients: Collection[str] = ()
) -> CountingAlgorithm:
    """The algorithm `NAME_from_counts`, whose server half learns rows made from counts as `learner`
    learns points.

    `points` names the array of the learner's updates that holds points; its updates must have one
    more array, `count`. `options_of_clients` are the learner's options that mean nothing without
    its client half. They are refused.
    """
    name = f"{learner.name}_from_counts"

    def counter(options: Mapping[str, Any], dimensions: int) -> GridCounter:
        return GridCounter(dimensions)

    def server(options: Mapping[str, Any], dimensions: int | None) -> GridServer:
        for option in options_of_clients:
            if option in options:
                raise SettingsError(
                    f"{option} means nothing to {name}, whose clients count; leave it out"
                )
        return GridServer(learner, points, dimensions, options)

    return CountingAlgorithm(
        name=name,
        counter=counter,
        server=server,
        update=UPDATE,
        snapshot=learner.snapshot,
        predict=learner.predict,
        predictor=learner.predictor,
        view=learner.view,
        counted_points=counted_points,
        check_claims=check_claims,
        counted="readings, by cell of a grid over the declared bounds: each in one cell at most",
        features_max=FEATURES_MAX,
        stream=STREAM,
        epsilon_advised=EPSILON_ADVISED,
    )


CLUSTER_TREE_FROM_COUNTS: Final = from_counts(CLUSTER_TREE, "point", ["points_max"])
