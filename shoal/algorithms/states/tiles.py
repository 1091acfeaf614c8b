"""What a client keeps of its stream: sums over half-tiles, in bounded memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.states.cycles import dominant_periods
from shoal.algorithms.states.window import window_length
from shoal.errors import InvalidState
from shoal.kernels.arrays import AnyArray, Bools, Floats, Indices

HALF_TILES_MAX: Final = 1_024
"""half-tiles that are remembered; an even number, as neighbours are joined when all are there"""
FIRST_READINGS: Final = 1_000
"""readings from which a client finds its window and its scale"""
TILES_OF_SHORT: Final = 48
"""tiles of a stream whose length is known and short, at least: with 24 a state of an eighth of the
stream has three, too few to be told from noise, and with 64 tiles of TSSB hold too little"""
TILE_MIN: Final = 6
"""readings of a tile, at least"""
OVERLAP: Final = 2
"""half-tiles of a tile; successive tiles share one"""
LONGER: Final = 4
"""windows of a longer one, with which a stream is looked at as well; a power of two"""
# In a first version one set found states in .11 of 45 streams that have none, the vote of three in
# none.
KERNEL_SETS: Final = 3
"""sets of kernels, each of which makes its own segments; most of them decide"""
KERNELS: Final = 16
"""kernels of a set, over all columns"""
KERNELS_OF_COLUMN: Final = 2
"""kernels of a set that a column has, at least"""
KERNEL_LENGTH: Final = 9
PERIOD_WINDOWS: Final = 12
"""windows of readings in which a period is sought; half of them is the longest one found"""
COLUMNS_OF_PRODUCTS: Final = 8
"""columns up to which correlations are kept: their number grows with the square"""
GROUP: Final = 64
"""half-tiles whose readings are described at a time: bounds the memory of a step"""
FLOOR: Final = 1e-4
"""added to squares in units of the first readings' variance before logarithms: a hundredth of the
deviation is taken as none"""
READING_MAX: Final = 64.0
"""deviations of the first readings to which a reading is clipped: an outlier must not decide what
the sums of a tile are"""


class TileFeatures(NamedTuple):
    """Features of overlapping tiles."""

    level: Floats
    """(n, d)"""
    second: Floats
    """(n, p) logarithms of spread and of lagged differences, and correlations of columns"""
    signs: tuple[Floats, ...]
    """(n, q) shares of readings at which a kernel is positive, of each set of kernels"""


def kernels_of(width: int) -> list[list[list[tuple[int, ...]]]]:
    """The places of the three weights of +2 of each kernel, by set and column; the others have -1.

    The kernels of MiniRocket (Dempster, Schmidt and Webb, KDD 2021) are the 84 choices of three
    places of nine. A fixed generator draws from them, so that every client has the same ones.
    """
    places = list(combinations(range(KERNEL_LENGTH), 3))
    count = max(KERNELS_OF_COLUMN, KERNELS // width)
    sets = []
    for number in range(KERNEL_SETS):
        rng = np.random.default_rng(number)
        drawn = [rng.choice(len(places), count, replace=False) for _ in range(width)]
        sets.append([[places[place] for place in chosen] for chosen in drawn])
    return sets


class TileMemory:
    """Sums over the half-tiles of a stream, at most `HALF_TILES_MAX`; when all are there,
    neighbours are joined and half-tiles become twice as long.

    Any batching of the same readings gives the same sums, bit for bit.
    """

    def __init__(
        self,
        width: int,
        window: int | None = None,
        length: int | None = None,
        half_tiles_max: int = HALF_TILES_MAX,
    ) -> None:
        """`window`: readings of a tile, None: found from the first readings; `length`: readings of
        the whole stream, where they are known; `half_tiles_max`: those that are remembered, an even
        number."""
        self.width = width
        self.half_tiles_max = half_tiles_max
        self.window = window
        self.half = 0
        """readings of a half-tile; 0 until the first readings are there"""
        self.n_readings = 0
        self.n_half_tiles = 0
        self._given_window = window
        self._length = length
        self._kernels = kernels_of(width)
        self._open = np.empty((0, width))
        """readings of no whole half-tile yet"""
        self._tail = np.empty((0, width))
        """standardized readings before those"""
        self._latest = np.full(width, np.nan)
        """the last known value of each column"""
        self.mean = np.zeros(width)
        self.spread = np.ones(width)
        self._lags: list[int] = []
        self._dilations: list[int] = []
        self._sums = np.empty((0, 0), dtype=np.float32)
        self._periods = np.empty((0, 2), dtype=np.float32)
        self._known = np.empty(0, dtype=np.bool_)
        """half-tiles that have enough values"""

    @property
    def is_started(self) -> bool:
        """Whether window and scale are known."""
        return self.half > 0

    @property
    def cycle_window(self) -> int:
        """Readings of the window by which cycles are told from states, 0 until it is known: twice
        those of a window that was cut short, as a cycle need not be shorter in a short stream."""
        window = self.window or 0
        is_cut = self._length is not None and window >= self._length // TILES_OF_SHORT
        return 2 * window if is_cut else window

    @property
    def lags(self) -> list[int]:
        """The lags of differences, 1, 2, 4 ... up to the window."""
        return self._lags

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of columns whose correlation is kept."""
        return self._pairs()

    def add(self, rows: Floats) -> None:
        """Rows (n, d), NaN where missing, in the order of time."""
        self.n_readings += len(rows)
        self._open = np.concatenate([self._open, rows])
        if not self.is_started:
            is_whole = self._length is not None and self.n_readings >= self._length
            if len(self._open) < FIRST_READINGS and not is_whole:
                return
            if not len(self._open):
                return
            self._start()
        self._describe_open()

    def start_early(self) -> None:
        """Find window and scale from the readings that are there, fewer than usual."""
        if not self.is_started and len(self._open):
            self._start()
            self._describe_open()

    def _start(self) -> None:
        first = _filled(self._open[:FIRST_READINGS], self._latest)
        for column in np.flatnonzero(np.isnan(first[0])).tolist():
            known = first[~np.isnan(first[:, column]), column]
            start = known[0] if len(known) else 0.0
            first[np.isnan(first[:, column]), column] = start
        self.mean = first.mean(axis=0)
        deviation = first.std(axis=0)
        # A column that did not vary yet has its later values in their own unit.
        self.spread = np.where(deviation > 1e-12 * np.abs(self.mean), deviation, 1.0)
        window = self._given_window or window_length(first)
        if self._length is not None:
            window = min(window, self._length // TILES_OF_SHORT)
        self.window = max(TILE_MIN, window)
        self._lay_out(max(TILE_MIN // OVERLAP, round(self.window / OVERLAP)))
        self._tail = np.repeat(self._standard(first[:1]), self._tail_length(), axis=0)

    def _lay_out(self, half: int) -> None:
        assert self.window is not None, "the window is known"
        self.half = half
        reach = KERNEL_LENGTH - 1
        self._lags = _doubled(self.window)
        self._dilations = _doubled(self.window // reach)
        columns = (
            2 + len(self._lags) + len(self._dilations) * KERNEL_SETS * len(self._kernels[0][0])
        )
        self._n_sums = self.width * columns + len(self._pairs())
        # In 32 bits: these are most of what a client keeps.
        self._sums = np.zeros((self.half_tiles_max, self._n_sums), dtype=np.float32)
        self._periods = np.zeros((self.half_tiles_max, 2), dtype=np.float32)
        self._known = np.zeros(self.half_tiles_max, dtype=np.bool_)

    def _tail_length(self) -> int:
        assert self.window is not None, "the window is known"
        reach = (KERNEL_LENGTH - 1) * self._dilations[-1]
        return max(reach, self._lags[-1], PERIOD_WINDOWS * self.window)

    def _pairs(self) -> list[tuple[int, int]]:
        if self.width > COLUMNS_OF_PRODUCTS:
            return []
        return list(combinations(range(self.width), 2))

    def _standard(self, rows: Floats) -> Floats:
        standard = (rows - self.mean) / self.spread
        return np.clip(standard, -READING_MAX, READING_MAX)

    def _describe_open(self) -> None:
        while len(self._open) >= self.half:
            free = self.half_tiles_max - self.n_half_tiles
            count = min(len(self._open) // self.half, free, GROUP)
            if not count:
                self._join_neighbours()
                continue
            part = self._open[: count * self.half]
            self._open = self._open[count * self.half :]
            self._describe(part, count)
        # A copy, so that the readings before can be freed.
        self._open = self._open.copy()

    def _describe(self, rows: Floats, count: int) -> None:
        missing = np.isnan(rows)
        # A column that has had no value yet, as of a sensor that is not there, is not missed.
        is_used = np.logical_or.accumulate(~missing, axis=0) | ~np.isnan(self._latest)
        rows = _filled(rows, self._latest)
        self._latest = rows[-1].copy()
        # Before its first value a column stays at its mean, or, without a scale, at 0.
        np.copyto(rows, self.mean, where=np.isnan(rows))
        standard = self._standard(rows)
        before = np.concatenate([self._tail, standard])
        places = slice(self.n_half_tiles, self.n_half_tiles + count)
        self._sums[places] = self._means(before, standard, count)
        self._periods[places] = dominant_periods(
            before, count, self.half, PERIOD_WINDOWS * int(self.window or 0)
        )
        # One that lacks more than half of its values is no evidence.
        lacking = (missing & is_used).reshape(count, -1).sum(axis=1)
        due = is_used.reshape(count, -1).sum(axis=1)
        self._known[places] = (due > 0) & (lacking <= 0.5 * due)
        self.n_half_tiles += count
        self._tail = before[-len(self._tail) :].copy()

    def _means(self, before: Floats, standard: Floats, count: int) -> Floats:
        """Tail and rows (t + n, d), rows (n, d) -> (count, sums) means of the rows of each
        half-tile."""
        n = len(standard)
        t = len(before) - n
        columns: list[Floats] = []

        def add(values: Floats | Bools) -> None:
            columns.append(values.reshape(count, self.half).mean(axis=1))

        for column in range(self.width):
            values = standard[:, column]
            past = before[:, column]
            add(values)
            add(values**2)
            for lag in self._lags:
                # Needed besides signs, which are positive half of the time in a symmetric signal of
                # any rhythm: streams that differ in rhythm alone were told apart with these
                # (adjusted Rand index .92), not without them (0).
                add((values - past[t - lag : t - lag + n]) ** 2)
            for dilation in self._dilations:
                starts = [t - place * dilation for place in range(KERNEL_LENGTH - 1, -1, -1)]
                shifted = [past[start : start + n] for start in starts]
                # The last digits of a stretch that does not vary must not decide.
                third = sum(shifted[1:], shifted[0]) / 3 + 1e-9
                for kernels in self._kernels:
                    for first, second, last in kernels[column]:
                        add(shifted[first] + shifted[second] + shifted[last] > third)
        for first, second in self._pairs():
            add(standard[:, first] * standard[:, second])
        return np.stack(columns, axis=1)

    def coarser(self) -> TileMemory:
        """The same with half-tiles of `LONGER` times as many readings; the last ones, that make up
        no whole one, are left out. No readings are to be added to it."""
        other = copy.copy(self)
        other._sums = self._sums[: self.n_half_tiles].copy()
        other._known = self._known[: self.n_half_tiles].copy()
        other._periods = self._periods[: self.n_half_tiles].copy()
        while other.half < LONGER * self.half:
            other._join_neighbours()
        return other

    def _join_neighbours(self) -> None:
        half = self.n_half_tiles // 2
        known = self._known[: 2 * half].reshape(half, 2)
        is_known: Bools = np.logical_or(known[:, 0], known[:, 1])
        # Of two the known one counts; of two that are alike in this both do.
        either = known | ~is_known[:, None]
        weight = either.astype(np.float32)
        weight /= weight.sum(axis=1)[:, None]
        pairs = self._sums[: 2 * half].reshape(half, 2, self._n_sums)
        self._sums[:half] = pairs[:, 0] * weight[:, :1] + pairs[:, 1] * weight[:, 1:]
        self._known[:half] = is_known
        periods = self._periods[: 2 * half].reshape(half, 2, 2)
        stronger = periods[:, :, 1].argmax(axis=1)
        self._periods[:half] = periods[np.arange(half), stronger]
        self.n_half_tiles = half
        self.half *= 2

    def features(self) -> TileFeatures:
        """Features of the remembered tiles, each of two successive known half-tiles."""
        sums = self._sums[self.known()].astype(np.float64)
        tiles = (sums[1:] + sums[:-1]) / 2
        n = len(tiles)
        pairs = self._pairs()
        products = tiles[:, tiles.shape[1] - len(pairs) :]
        own = tiles[:, : tiles.shape[1] - len(pairs)].reshape(n, self.width, -1)
        level = own[:, :, 0]
        variance = np.maximum(own[:, :, 1] - level**2, 0.0) + FLOOR
        end = 2 + len(self._lags)
        second = [0.5 * np.log(variance), 0.5 * np.log(own[:, :, 2:end] + FLOOR).reshape(n, -1)]
        for place, (one_column, other) in enumerate(pairs):
            covariance = products[:, place] - level[:, one_column] * level[:, other]
            scale = np.sqrt(variance[:, one_column] * variance[:, other])
            second.append((covariance / scale)[:, None])
        count = len(self._kernels[0][0])
        signs = own[:, :, end:].reshape(n, self.width, len(self._dilations), KERNEL_SETS, count)
        parts = [signs[:, :, :, number].reshape(n, -1) for number in range(KERNEL_SETS)]
        return TileFeatures(level, np.concatenate(second, axis=1), tuple(parts))

    def known(self) -> Indices:
        """The places of the remembered half-tiles that have enough values."""
        return np.flatnonzero(self._known[: self.n_half_tiles])

    def periods(self) -> Floats:
        """(known half-tiles, 2) the period, in readings, that shows most up to each of them, and
        the autocorrelation at it; 0 and 0 where none shows."""
        return self._periods[self.known()].astype(np.float64)

    def moments(self) -> tuple[Floats, Floats]:
        """(known half-tiles, d) mean and mean square of the readings of each, standardized."""
        per_column = (self._n_sums - len(self._pairs())) // self.width
        own = self._sums[self.known(), : per_column * self.width].astype(np.float64)
        own = own.reshape(-1, self.width, per_column)
        return own[:, :, 0], own[:, :, 1]

    def like(self) -> TileMemory:
        """A memory without readings, of the same window, scale and first length of half-tiles."""
        memory = TileMemory(self.width, self.window)
        if self.is_started:
            assert self.window is not None, "the window is known"
            memory.mean = self.mean
            memory.spread = self.spread
            memory._lay_out(max(TILE_MIN // OVERLAP, round(self.window / OVERLAP)))
            memory._tail = np.zeros((memory._tail_length(), self.width))
        return memory

    def state(self) -> dict[str, AnyArray]:
        """Everything that further sums depend on, as copies."""
        numbers = [self.n_readings, self.half, self.window or 0, self.n_half_tiles]
        known = [self._given_window or 0, -1 if self._length is None else self._length]
        return {
            "numbers": np.array(numbers + known, dtype=np.int64),
            "open": self._open.copy(),
            "tail": self._tail.copy(),
            "latest": np.nan_to_num(self._latest),
            "has_latest": ~np.isnan(self._latest),
            "scale": np.stack([self.mean, self.spread]),
            "sums": self._sums[: self.n_half_tiles].copy(),
            "periods": self._periods[: self.n_half_tiles].copy(),
            "known": self._known[: self.n_half_tiles].copy(),
        }

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Become the memory that `state` was of. Raises `InvalidState`."""
        numbers = arrays["numbers"].tolist()
        if len(numbers) != 6 or min(numbers[:5]) < 0 or numbers[3] > self.half_tiles_max:
            raise InvalidState(
                "saved state contradicts itself: its numbers of tiles are impossible"
            )
        n_readings, half, window, n_half_tiles, given, length = numbers
        self.n_readings = n_readings
        self._given_window = given or None
        self.window = window or None
        self._length = None if length < 0 else length
        self._open = arrays["open"].astype(np.float64)
        self._latest = np.where(arrays["has_latest"], arrays["latest"], np.nan)
        self.mean, self.spread = arrays["scale"].astype(np.float64)
        self.half = 0
        self.n_half_tiles = 0
        self._tail = arrays["tail"].astype(np.float64)
        if not half:
            return
        self._lay_out(half)
        forms = {
            "sums": (n_half_tiles, self._n_sums),
            "periods": (n_half_tiles, 2),
            "known": (n_half_tiles,),
            "tail": (self._tail_length(), self.width),
            "open": (len(self._open), self.width),
        }
        for name, form in forms.items():
            if arrays[name].shape != form:
                raise InvalidState(
                    f"saved state contradicts itself: {name} has the shape {arrays[name].shape}"
                )
        self.n_half_tiles = n_half_tiles
        self._sums[:n_half_tiles] = arrays["sums"]
        self._periods[:n_half_tiles] = arrays["periods"]
        self._known[:n_half_tiles] = arrays["known"]


def _doubled(most: int) -> list[int]:
    """1, 2, 4 ... up to `most`; at least 1."""
    numbers = [1]
    while 2 * numbers[-1] <= most:
        numbers.append(2 * numbers[-1])
    return numbers


def _filled(rows: Floats, latest: Floats) -> Floats:
    """Rows (n, d) in which a missing value is the last known one, from `latest` (d,) on; NaN where
    there was none yet."""
    rows = rows.copy()
    missing = np.isnan(rows)
    if not missing.any():
        return rows
    for column in np.flatnonzero(missing.any(axis=0)).tolist():
        values = rows[:, column]
        known = np.flatnonzero(~missing[:, column])
        place = np.searchsorted(known, np.arange(len(values)), side="right") - 1
        sources = np.concatenate([latest[[column]], values[known]])
        rows[:, column] = sources[place + 1]
    return rows


class WindowFeatures:
    """Level, spread, lagged differences and correlations of windows that begin at each row, and the
    same of the tiles of a memory, for windows as long as its first tiles.

    Without signs of kernels, and with lags up to half a window: of a longer one few pairs lie in
    it.
    """

    def __init__(self, memory: TileMemory) -> None:
        self._memory = memory
        window = memory.window or 1
        self._lags = [lag for lag in memory.lags if 2 * lag <= window]

    def of_tiles(self) -> Floats:
        """(n, p) of overlapping tiles."""
        features = self._memory.features()
        d = self._memory.width
        lags = len(self._memory.lags)
        spread = features.second[:, :d]
        lagged = features.second[:, d : d + d * lags].reshape(-1, d, lags)
        kept = lagged[:, :, : len(self._lags)].reshape(len(lagged), -1)
        correlations = features.second[:, d + d * lags :]
        return np.concatenate([features.level, spread, kept, correlations], axis=1)

    def of_rows(self, standard: Floats, window: int) -> Floats:
        """standard (n, d), n >= window, NaN where missing -> (n - window + 1, p); NaN where a
        column lacks more than half of a window."""
        d = standard.shape[1]
        present = ~np.isnan(standard)
        rows = np.clip(standard, -READING_MAX, READING_MAX)
        rows = _filled(rows, np.where(present.any(axis=0), np.nan, 0.0))
        # What comes before the first value of a column has that value.
        rows = _filled(rows[::-1], np.zeros(d))[::-1]
        level = _running_mean(rows, window)
        variance = np.maximum(_running_mean(rows**2, window) - level**2, 0.0) + FLOOR
        lagged = np.empty((len(level), d, len(self._lags)))
        for place, lag in enumerate(self._lags):
            squares = (rows[lag:] - rows[:-lag]) ** 2
            lagged[:, :, place] = _running_mean(squares, window - lag)[: len(level)]
        parts = [
            level,
            0.5 * np.log(variance),
            0.5 * np.log(lagged + FLOOR).reshape(len(level), -1),
        ]
        for first, second in self._memory.pairs:
            product = _running_mean(rows[:, [first]] * rows[:, [second]], window)[:, 0]
            covariance = product - level[:, first] * level[:, second]
            scale = np.sqrt(variance[:, first] * variance[:, second])
            parts.append((covariance / scale)[:, None])
        features = np.concatenate(parts, axis=1)
        enough = _running_mean(present.astype(np.float64), window) >= 0.5
        features[~enough.all(axis=1)] = np.nan
        return features


def _running_mean(values: Floats, w: int) -> Floats:
    """(n, d) -> (n - w + 1, d) means of w successive rows."""
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=sums[1:])
    return (sums[w:] - sums[:-w]) / w
