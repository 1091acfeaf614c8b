"""The server half of algorithms that learn from counts on a grid: adds counts up, and learns rows made from them.

The counts of single windows are mostly noise; their sum is not, because noise grows with the root of the number of
windows only. So the server adds up all windows, and now and then lets an algorithm learn rows where the sums show
readings beyond doubt. Rows made from private counts are post-processing: they cost no epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.from_counts.grid import Grid
from shoal.algorithms.rows import check_rows
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, Contribution, Rows, State, StreamingAlgorithm
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.cells import Ints
from shoal.kernels.distance import Floats

STATE_VERSION: Final = 1
SIGNIFICANCE: Final = 4.0
"""standard deviations of noise above zero from which a cell, or it and the cells around it, hold readings: among a
thousand cells without any, one is taken to hold some about once in thirty times"""
FEW_WINDOWS: Final = 4
"""windows whose noise fewer ones are taken to have: the sum of a few geometric noises is often far from zero"""
LEARN_READINGS: Final = 2000
"""readings absorbed between two times that rows are learnt; at first they are learnt after every quarter more"""
PORTION_ROWS: Final = 100
"""rows contributed at once; of each portion learners may keep fewer points than rows"""
GOLDEN: Final = (np.sqrt(5.0) - 1.0) / 2.0
"""multiples of it fill the unit interval evenly"""
EVEN_STEPS: Final = {1: 1.618033988749895, 2: 1.324717957244746, 3: 1.2207440846057596}
"""d -> the root of x^(d + 1) = x + 1: multiples of its inverse powers fill the d-dimensional unit cube evenly"""


@dataclass(frozen=True)
class CountOptions:
    """What a federation says of its counts, from [privacy] of the contract."""

    noise_variance: float = 0.0
    """of one published count"""
    window_readings: int = 400
    """readings of a full window; here only the number of windows matters"""

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """These options, and all others."""
        own = {name: options[name] for name in ("noise_variance", "window_readings") if name in options}
        return cls(**own), {name: value for name, value in options.items() if name not in own}


class GridServer:
    """Adds up private counts of windows, and lets the server half of `learner` learn rows made from the sums.

    The state is a function of the contributions in their order, whatever their grouping: rows are made after a fixed
    number of readings, never by the clock, and nothing is random.
    """

    def __init__(
        self, learner: StreamingAlgorithm, points: str, dimensions: int | None, options: Mapping[str, Any]
    ) -> None:
        """`points`: the array of the learner's updates that holds points; the other is `count`.

        Raises `SettingsError`.
        """
        if dimensions is None:
            raise SettingsError(f"{learner.name} needs the number of features before the first counts")
        self._learner, self._points = learner, points
        self._count_options, self._options = CountOptions.split(options)
        self._grid = Grid(dimensions)
        self._half = learner.server(self._options, dimensions)
        self._total: Ints = np.zeros(self._grid.cells, dtype=np.int64)
        self._learnt: Ints = np.zeros(self._grid.cells, dtype=np.int64)
        """(cells,) rows learnt from each"""
        self._windows = self._readings = self._learnt_at = self._portions = 0

    @property
    def half(self) -> str:
        """What a saved state must be of."""
        return f"{self._learner.name} server of counts"

    @property
    def rows_learnt(self) -> int:
        """Rows made from counts so far."""
        return int(self._learnt.sum())

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Add private counts in the order given; nothing is random, so `key` is not used. Raises `InvalidData`."""
        for one in contributions:
            if one.arrays["count"].shape != self._total.shape:
                raise InvalidData(f"contribution of {one.client}: its counts are not those of the grid")
        for one in contributions:
            self._total = self._total + one.arrays["count"]
            self._windows += 1
            self._readings += int(one.arrays["places"][0])
            if self._readings - self._learnt_at >= min(LEARN_READINGS, self._learnt_at / 4):
                self._learn()

    def _learn(self) -> None:
        """Learn the rows that the sums are worth by now and that have not been learnt yet."""
        self._learnt_at = self._readings
        new = np.maximum(np.floor(self._worth()).astype(np.int64) - self._learnt, 0)
        rows = self._rows(new)
        self._learnt = self._learnt + new
        for first in range(0, len(rows), PORTION_ROWS):
            portion = rows[first : first + PORTION_ROWS]
            arrays = {self._points: portion, "count": np.ones(len(portion), dtype=np.int64)}
            self._portions += 1
            self._half.absorb([Contribution("counts", self._portions, arrays)], self._portions.to_bytes(8, "little"))

    def _worth(self) -> Floats:
        """(cells,) how many rows each cell is worth: as many independent readings would be as certain as its count.

        A sum of m readings has the variance m of independent readings, and that of the noise besides. With the shares
        of the readings in the cells kept, all of them together are worth m^2 / (m + noise).
        """
        noise = self._windows * self._count_options.noise_variance
        total = self._total.astype(np.float64)
        least = SIGNIFICANCE**2 * max(self._windows, FEW_WINDOWS) * self._count_options.noise_variance
        around, cells_around = map(self._grid.with_neighbours, (total, np.ones(self._grid.cells)))
        certain = (total > np.sqrt(least)) | (around > np.sqrt(cells_around * least))
        held = np.where(certain, np.maximum(total, 0.0), 0.0)
        readings = float(held.sum())
        return held * (readings / max(readings + float((held > 0.0).sum()) * noise, 1.0))

    def _rows(self, new: Ints) -> Rows:
        """Numbers of new rows (cells,) -> rows (n, d), spread evenly over their cells, the cells mixed evenly."""
        cell = np.repeat(np.arange(len(new)), new)
        place = np.arange(len(cell)) - (np.cumsum(new) - new)[cell]
        step = EVEN_STEPS[self._grid.d] ** -np.arange(1.0, self._grid.d + 1.0)
        phase = (cell * GOLDEN) % 1.0
        within = (phase[:, None] + (self._learnt[cell] + place)[:, None] * step) % 1.0
        rows = self._grid.corners[cell] + within / self._grid.along
        return np.asarray(rows[np.argsort((place + phase) / new[cell], kind="stable")])

    def predict(self, rows: ArrayLike) -> NDArray[np.int64]:
        """rows (n, d) in unit coordinates -> (n,) cluster of each, as the learner predicts. Raises `InvalidData`."""
        return self._half.predict(check_rows(rows, self._grid.d))

    def snapshot(self) -> Arrays:
        """The learner's snapshot."""
        return self._half.snapshot()

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        return {
            "version": STATE_VERSION,
            "half": self.half,
            "options": asdict(self._count_options),
            "width": self._grid.d,
            "total": self._total.copy(),
            "learnt": self._learnt.copy(),
            "windows": self._windows,
            "readings": self._readings,
            "learnt_at": self._learnt_at,
            "portions": self._portions,
            "learner": self._half.state(),
        }

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has changed."""
        saved = StateReader(
            state, STATE_VERSION, half=self.half, options=asdict(self._count_options), width=self._grid.d
        )
        fresh = type(self)(self._learner, self._points, self._grid.d, {**self._options, **asdict(self._count_options)})
        fresh._restore_from(saved, state)
        vars(self).update(vars(fresh))

    def _restore_from(self, saved: StateReader, state: State) -> None:
        # A sum of private counts may be negative.
        self._total = saved.read_ints("total", (self._grid.cells,), least=np.iinfo(np.int64).min)
        self._learnt = saved.read_ints("learnt", (self._grid.cells,))
        self._windows, self._readings = saved.read_int("windows"), saved.read_int("readings")
        self._learnt_at, self._portions = saved.read_int("learnt_at"), saved.read_int("portions")
        saved.check(self._learnt_at <= self._readings, "rows were learnt after readings not yet absorbed")
        saved.check("learner" in state, "there is no learner")
        self._half.restore(state["learner"])
