"""The learner of states: what it keeps, when it evaluates, and what it shows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.states.axes import Axes
from shoal.algorithms.states.blocks import (
    BLOCKS_MAX,
    READING_MAX,
    SCALES,
    BlockMemory,
    window_features,
)
from shoal.algorithms.states.cycles import shared_period
from shoal.algorithms.states.returns import Returning, find_returning
from shoal.algorithms.states.segments import SHORTEST
from shoal.algorithms.states.tiles import HALF_TILES_MAX, LONGER, OVERLAP, TileMemory
from shoal.algorithms.states.timeline import (
    NO_STATE,
    continued,
    matched,
    overlap_of,
    runs_of,
    state_at,
)
from shoal.algorithms.states.views import (
    DEFAULT,
    STRICT,
    TILES_MIN,
    View,
    best_view,
    explained,
    features_of,
    view_of_long,
)
from shoal.errors import InvalidState
from shoal.kernels.arrays import AnyArray, Floats, Ints

EVALUATION_GROWTH: Final = 16
"""an evaluation waits for this part of the readings so far: what an evaluation costs stays in
proportion to the stream"""
SEGMENTS_GAIN: Final = 3.0
"""times as much of the variance of tiles that segments must explain as states that return, to be
shown in their place: to have returned many times is more to go by than a change seen once"""
WAITING_MAX: Final = 1_024
"""readings that wait until they are cut into blocks: in groups that costs less"""


class Route(IntEnum):
    """How the states shown were found."""

    SINGLE = 0
    SEGMENTS = 1
    RETURNS = 2
    LONG_SEGMENTS = 3
    """segments of windows that are `LONGER` times as long"""


class StateFigures(NamedTuple):
    """What is known of each state, by its place in `identity`."""

    identity: Ints
    """(k,) ascending"""
    mean: Floats
    """(k, d) of the readings, in their units; NaN where none is remembered"""
    deviation: Floats
    """(k, d)"""
    period: Floats
    """(k,) readings of the cycle that it shows, NaN where it shows none"""


class StateLearner:
    """Finds the states of one stream in bounded memory.

    A state is a way in which a stream goes on for a while: its level, its spread, its rhythm, and
    how its columns go together. Nothing is told of the states, neither their number nor a label.
    Where a stream goes on in one way there is one state; a stream that repeats a pattern is in one
    state, that has a period.

    Steps
    -----
    1. **Window** (`window`). From the first 1 000 readings the length w of a stretch that shows
       what the whole does (SuSS, of ClaSP), the least of all columns, and level and spread of each
       column. A stream whose length is known and short gets at least 48 windows.
    2. **Sums** (`tiles`). Per reading and column: the standardized value and its square, squared
       differences to the readings 1, 2, 4 ... w before, and the signs of three sets of fixed random
       kernels (MiniRocket's, at dilations up to w / 8); products of columns where there are at most
       eight. A sign has no level and no scale, so it tells the form of a waveform; lagged
       differences tell its rhythm where it has no form. Means of half-tiles of w / 2 readings are
       kept, and their neighbours joined when there are 1 024.
    3. **Features** (`tiles`). Of tiles of two half-tiles: level; logarithms of spread and of lagged
       differences, correlations; shares of positive signs.
    4. **Axes** (`axes`). Each feature in units of its own change from tile to tile; principal
       components; the six directions in which tiles differ most over the stream relative to
       neighbours (linear discriminant analysis without labels).
    5. **Segments, then joins** (`segments`). The best cutting into at most forty segments, whose
       weakest boundary is undone until each passes: significance against long-run noise within
       segments; the same in tiles held out, along the direction in which the others differ; each
       side stays at its level; the jump is larger than jumps within; and, where the level counts,
       it is abrupt or far larger, since the level of a random walk wanders. Then segments that do
       not differ are joined. Overlapping windows are never clustered as points: of white noise that
       makes 2 to 10 clusters.
    6. **Views** (`views`). Steps 4 and 5 without and with the level, each for three sets of kernels
       of which most must agree that there is more than one state, of several columns without the
       level all. The view with more states counts. Where no states return (below) a stream of one
       column is looked at without the level in windows four times as long as well, by stricter
       thresholds, and these states are shown where they are more.
    7. **Returns** (`returns`). The second way to be sure, for dwells too short for segments: sets
       of blocks of 1 to 256 readings between which the stream jumps, many times and both ways, told
       apart by valleys and by how seldom the stream crosses (`sets`). Blocks are seen along one,
       two and four axes of jumps (`jumps`): of the slow directions those whose steps are seldom
       and large, so that columns which drift hide nothing. Two levels are also told reading by
       reading, by a switching autoregression (`switching`): by their jumps they are known where
       they overlap and where the stream is strongly autocorrelated within them. States are left
       out where they follow each other as the parts of a cycle, or begin again regularly.
    8. **Choice.** The states that return where there are any, unless there are segments that
       explain three times as much of the variance of tiles on the axes, over the tiles that both
       know.
    9. **Identities** (`timeline`). A state keeps its number while it has most of the readings that
       it had. Seen in one run it is a phase; once it has returned it is a state, under the same
       number.

    What is kept: 1 024 rows of sums, the latest 3 500 blocks of nine lengths, the last 12 w
    readings and at most 4 096 runs; 0.8 MiB for one column, 3.1 MiB for eight at windows of 35. Any
    batching of the same readings gives the same states. What is found at an evaluation depends on
    readings before it only. Cost, on one core of a shared machine: 10
    microseconds a reading of one column, 31 of eight; 0.5 to 0.8 s an evaluation when all rows of
    sums are there.

    Sources: Ermshaus, Schaefer and Leser, "ClaSP: parameter-free time series segmentation" (2023)
    for the window, and "CLaP - state detection from time series" (2025) for segments first and then
    joins; Dempster, Schmidt and Webb, "MiniRocket" (KDD 2021) for the kernels; Perez-Hernandez et
    al., Journal of Chemical Physics 139 (2013) for the slow directions of step 7, and Cardoso,
    "Source separation using higher order moments" (ICASSP 1989) for its axes; Hamilton, "A new
    approach to the economic analysis of nonstationary time series and the business cycle"
    (Econometrica 57, 1989) for its switching autoregression. The tests of step 5
    and their thresholds are our own, chosen on streams without states and on every second series of
    TSSB, the time series segmentation benchmark.
    """

    def __init__(
        self,
        width: int,
        *,
        window: int | None = None,
        length: int | None = None,
        strict: bool = False,
        evaluate_every: int = 1_000,
        memory: int = HALF_TILES_MAX,
    ) -> None:
        """`window`: readings of a tile, None: found; `length`: readings of the whole stream, where
        they are known; `strict`: fewer false states and fewer found; `evaluate_every`: readings
        between two evaluations, at least; `memory`: rows of sums that are kept, at most 1 024, and
        blocks in proportion."""
        half_tiles = memory // OVERLAP * OVERLAP
        self.memory = TileMemory(width, window, length, half_tiles)
        self.runs = np.empty((0, 3), dtype=np.int64)
        """(r, 3) first reading, reading after the last, identity of each run, as of the last
        evaluation"""
        self.route = Route.SINGLE
        self._sureness = STRICT if strict else DEFAULT
        self._evaluate_every = evaluate_every
        self._blocks = BlockMemory(width, SCALES, BLOCKS_MAX * half_tiles // HALF_TILES_MAX)
        self.scale = 0
        """readings of the windows by which states that return are told; 0 for other routes"""
        self._first = 0
        """rows before the first one that has a value: they are in no state"""
        self._seen = np.zeros(width, dtype=np.bool_)
        """columns that had a value in what is in blocks"""
        self._waiting = np.empty((0, width))
        """readings that are not in blocks yet"""
        self.evaluated_at = 0
        """readings from the first value on at the last evaluation"""
        self._next_evaluation = evaluate_every
        self._next_identity = 0
        self._view = (False, 0)
        """whether the view shown has the level, and the number of its set of kernels"""

    @property
    def blocks(self) -> BlockMemory:
        """The latest blocks of readings, standardized by level and spread of the first ones; all of
        them are there once window and scale are known."""
        self._cut_blocks()
        return self._blocks

    @property
    def unscaled(self) -> Floats:
        """(n, d) the rows so far, while window and scale are not known yet."""
        return self._waiting

    @property
    def n_readings(self) -> int:
        """Rows that have come, from the first one on."""
        return self._first + self.memory.n_readings

    @property
    def first_known(self) -> int:
        """The first row that has a value; those before are in no state."""
        return self._first

    def add(self, rows: Floats) -> None:
        """Rows (n, d), NaN where missing, in the order of time; states are looked for when it is
        time."""
        rows = self._from_first_value(rows)
        first = 0
        while first < len(rows):
            last = min(len(rows), first + self._next_evaluation - self.memory.n_readings)
            self._learn(rows[first:last])
            first = last
            if self.memory.n_readings == self._next_evaluation:
                self.evaluate()

    def learn_whole(self, rows: Floats) -> None:
        """All rows (n, d) of a stream, with one evaluation at their end."""
        self._learn(self._from_first_value(rows))
        self.memory.start_early()
        self.evaluate()

    def _from_first_value(self, rows: Floats) -> Floats:
        """Rows (n, d) without those that come before the first value of the stream: neither scale
        nor window is to be taken from them."""
        if self.memory.n_readings:
            return rows
        has_value = ~np.isnan(rows).all(axis=1)
        skipped = int(has_value.argmax()) if has_value.any() else len(rows)
        self._first += skipped
        return rows[skipped:]

    def _learn(self, rows: Floats) -> None:
        self.memory.add(rows)
        self._waiting = np.concatenate([self._waiting, rows])
        if len(self._waiting) >= WAITING_MAX:
            self._cut_blocks()

    def _cut_blocks(self) -> None:
        if not self.memory.is_started or not len(self._waiting):
            return
        # Blocks that lack a column are unknown; one that never had a value would leave none.
        is_used = np.logical_or.accumulate(~np.isnan(self._waiting), axis=0) | self._seen
        self._seen = is_used[-1].copy()
        rows = np.where(is_used, self._waiting, self.memory.mean)
        self._blocks.add((rows - self.memory.mean) / self.memory.spread)
        # A view would keep all that has waited in memory.
        self._waiting = self._waiting[:0].copy()

    @property
    def delay(self) -> float:
        """Readings from a change until it can be told, at most: the shortest segment and the wait
        for the next evaluation; infinite until the window is known. Four times the segment where
        longer windows show the states."""
        if not self.memory.is_started:
            return float("inf")
        half = self.memory.half
        if self.route is Route.LONG_SEGMENTS:
            half *= LONGER
        return (SHORTEST + 1) * half + self._interval(self.memory.n_readings)

    def _interval(self, n_readings: int) -> int:
        return max(self._evaluate_every, n_readings // EVALUATION_GROWTH)

    def evaluate(self) -> None:
        """Look for states in what is remembered."""
        n = self.memory.n_readings
        self.evaluated_at = n
        self._next_evaluation = n + self._interval(n)
        self._cut_blocks()
        if not n:
            return
        if len(self.memory.known()) > TILES_MIN:
            view = best_view(self.memory.features(), self._sureness)
            returning = find_returning(self._blocks, self.memory.cycle_window)
            if returning is None or not self._show_returning(returning, view):
                self._show_segments(view)
        else:
            self._show_single()

    def _show_single(self) -> None:
        self.route = Route.SINGLE
        self.scale = 0
        self._identify(np.array([[self._first, self.n_readings, 0]], dtype=np.int64))

    def _show_returning(self, returning: Returning, view: View) -> bool:
        """Show the states that return, unless segments explain far more of the tiles' variance;
        returns whether they are shown."""
        by_returns = self._runs_of_returns(returning)
        state = state_at(by_returns, self.tile_middles())
        # Compared where both are known: of short blocks only the latest are remembered.
        known = state != NO_STATE
        tiles = view.tiles[known]
        share_by_segments = explained(tiles, view.state[known])
        share_by_returns = explained(tiles, state[known])
        # Dwells shorter than a tile explain nothing of it, but nothing else is found either.
        is_only = view.n_states == 1
        # Two levels alone may be a coarse picture of segments that differ in spread as well.
        gain = SEGMENTS_GAIN if returning.has_sets else 1.0
        if not is_only and gain * share_by_returns <= share_by_segments:
            return False
        self._view = (view.with_level, view.kernels)
        self.route = Route.RETURNS
        self.scale = returning.label_scale or returning.scale
        self._identify(by_returns)
        return True

    def _show_segments(self, view: View) -> None:
        """Show the segments of this view, or, of a stream of one column, those of longer windows
        where they have more states: waves that differ by little show only in many of them."""
        memory = self.memory
        self.route = Route.SEGMENTS if view.n_states > 1 else Route.SINGLE
        longer = memory.coarser()
        # Of several columns they found nothing more, and states in two more of 64 streams that
        # are or hold a random walk.
        if memory.width == 1 and len(longer.known()) > TILES_MIN:
            long_view = view_of_long(longer.features())
            if long_view.n_states > view.n_states:
                view = long_view
                memory = longer
                self.route = Route.LONG_SEGMENTS
        self._view = (view.with_level, view.kernels)
        self.scale = 0
        self._identify(self._runs_of_view(view, memory))

    def tile_middles(self) -> Ints:
        """The reading in the middle of each tile."""
        return self._middles(self.memory)

    def _middles(self, memory: TileMemory) -> Ints:
        return (self._first + memory.known()[1:] * memory.half).astype(np.int64)

    def _runs_of_view(self, view: View, memory: TileMemory) -> Ints:
        half = memory.half
        edges = self._first + half * memory.known() + half // 2
        # The first and the last tile stand for what lies before and after their middles as well.
        edges[0] = self._first
        edges[-1] = self.n_readings
        return runs_of(view.state, edges)

    def _runs_of_returns(self, returning: Returning) -> Ints:
        state = returning.of_readings()
        edges = self._first + returning.first + np.arange(len(state) + 1)
        edges[-1] = self.n_readings
        return runs_of(state, edges)

    def _identify(self, runs: Ints) -> None:
        """Give the states of new runs the numbers of those that they go on with, and new ones."""
        old, new, table = overlap_of(self.runs, runs)
        number = matched(old, table)
        if len(new) == 1 and len(old):
            # What is one state now goes on in the largest of its parts.
            number[0] = old[int(table[:, 0].argmax())]
        # In the order in which they appear in the stream, so that new numbers follow from it alone.
        appearance = np.argsort([runs[runs[:, 2] == state, 0].min() for state in new])
        for place in appearance.tolist():
            if number[place] == NO_STATE:
                number[place] = self._next_identity
                self._next_identity += 1
        named = runs.copy()
        named[:, 2] = number[np.searchsorted(new, runs[:, 2])]
        self.runs = continued(self.runs, named)

    def labels(self, first: int, end: int) -> Ints:
        """(end - first,) the state of each of these readings, counted from the beginning of the
        stream; readings since the last evaluation have the state that held then, and those that
        are remembered no more `NO_STATE`."""
        return self.labels_at(np.arange(first, end))

    def identities(self) -> Ints:
        """(k,) the states seen in the runs that are kept, ascending."""
        return np.unique(self.runs[:, 2])

    def figures(self) -> StateFigures:
        """What is known of each state from the half-tiles that are remembered."""
        identity = self.identities()
        d = self.memory.width
        mean = np.full((len(identity), d), np.nan)
        deviation = np.full((len(identity), d), np.nan)
        period = np.full(len(identity), np.nan)
        known = self.memory.known()
        if not len(known):
            return StateFigures(identity, mean, deviation, period)
        half = self.memory.half
        level, square = self.memory.moments()
        state = self.labels_at(self._first + half * known + half // 2)
        periods = self.memory.periods()
        for place, number in enumerate(identity.tolist()):
            own = state == number
            if own.any():
                centre = level[own].mean(axis=0)
                # Where nothing varies, rounding may put the mean of squares below the square of the
                # mean.
                variance = np.maximum(square[own].mean(axis=0) - centre**2, 0.0)
                mean[place] = centre * self.memory.spread + self.memory.mean
                deviation[place] = np.sqrt(variance) * self.memory.spread
                period[place] = shared_period(periods[own])
        return StateFigures(identity, mean, deviation, period)

    def labels_at(self, readings: Ints) -> Ints:
        """(m,) the state of each of these readings, as in `labels`."""
        if len(self.runs):
            readings = np.minimum(readings, self.runs[-1, 1] - 1)
        return state_at(self.runs, readings)

    def predict(self, rows: Floats) -> Ints:
        """rows (n, d), a stretch of a stream -> (n,) the known state that each is most like;
        `NO_STATE` before the first evaluation, for a stretch shorter than a tile and for one
        without a value."""
        n = len(rows)
        identity = self.identities()
        if not len(identity) or np.isnan(rows).all():
            return np.full(n, NO_STATE, dtype=np.int64)
        if len(identity) < 2:
            return np.full(n, identity[0], dtype=np.int64)
        if self.route is Route.RETURNS:
            self._cut_blocks()
            found = find_returning(self._blocks, self.memory.cycle_window)
            if found is not None:
                return self._predict_by_returns(found, rows)
        return self._predict_by_tiles(rows)

    def _predict_by_tiles(self, rows: Floats) -> Ints:
        """The state with the nearest mean of tiles, on the axes of what is remembered now."""
        n = len(rows)
        other = self.memory.like()
        other.add(rows)
        if len(other.known()) < OVERLAP:
            return np.full(n, NO_STATE, dtype=np.int64)
        memory = self.memory
        if self.route is Route.LONG_SEGMENTS:
            memory = memory.coarser()
            if len(other.known()) >= LONGER * OVERLAP:
                other = other.coarser()
        with_level, kernels = self._view
        groups = features_of(memory.features(), kernels, with_level)
        axes = Axes.of(groups)
        tiles = axes.project(groups)
        state = self.labels_at(self._middles(memory))
        numbers = np.unique(state[state != NO_STATE])
        centres = np.stack([tiles[state == number].mean(axis=0) for number in numbers])
        ways = axes.project(features_of(other.features(), kernels, with_level))[:, None] - centres
        nearest = numbers[(ways**2).sum(axis=2).argmin(axis=1)]
        begins = other.half * other.known()[:-1] + other.half // 2
        place = np.searchsorted(begins, np.arange(n), side="right") - 1
        return np.asarray(nearest[np.maximum(place, 0)])

    def _predict_by_returns(self, found: Returning, rows: Floats) -> Ints:
        """The state that has the cell of the window of readings around each."""
        n = len(rows)
        w = found.scale
        if n < w:
            return np.full(n, NO_STATE, dtype=np.int64)
        old, new, table = overlap_of(self.runs, self._runs_of_returns(found))
        number = np.full(int(new.max()) + 1, NO_STATE, dtype=np.int64)
        number[new] = old[table.argmax(axis=0)]
        standard = found.columns.standardize((rows - self.memory.mean) / self.memory.spread)
        features = window_features(np.clip(standard, -READING_MAX, READING_MAX), w)
        features[:, : len(found.level)] -= found.level
        state = found.classifier.of_block(features)
        known = np.flatnonzero(state >= 0)
        if not len(known):
            return np.full(n, NO_STATE, dtype=np.int64)
        at = np.clip(np.arange(n) - w // 2, 0, len(state) - 1)
        place = np.maximum(np.searchsorted(known, at, side="right") - 1, 0)
        return number[state[known[place]]]

    def state(self) -> dict[str, AnyArray]:
        """Everything that further learning depends on, as copies."""
        # Cut first, so that any batching of the same readings has the same state.
        self._cut_blocks()
        with_level, kernels = self._view
        numbers = [
            self.evaluated_at,
            self._next_evaluation,
            self._next_identity,
            int(self.route),
            int(with_level),
            kernels,
            self._first,
            self.scale,
        ]
        return {
            "numbers": np.array(numbers, dtype=np.int64),
            "runs": self.runs.copy(),
            "waiting": self._waiting.copy(),
            "seen": self._seen.copy(),
            **{f"tiles_{name}": array for name, array in self.memory.state().items()},
            **{f"blocks_{name}": array for name, array in self._blocks.state().items()},
        }

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Become the learner that `state` was of. Raises `InvalidState`."""
        numbers = arrays["numbers"].tolist()
        runs = arrays["runs"]
        if len(numbers) != 8 or min(numbers) < 0 or runs.shape[1:] != (3,) or numbers[3] > 3:
            raise InvalidState("saved state contradicts itself: its runs or numbers are impossible")
        self.evaluated_at, self._next_evaluation, self._next_identity = numbers[:3]
        self.route = Route(numbers[3])
        self._view = (bool(numbers[4]), numbers[5])
        self._first = numbers[6]
        self.scale = numbers[7]
        self.runs = runs
        self._waiting = arrays["waiting"]
        self._seen = arrays["seen"].astype(np.bool_)
        if self._seen.shape != (self.memory.width,):
            raise InvalidState("saved state contradicts itself: its columns are not those seen")
        self.memory.restore(_part(arrays, "tiles_"))
        self._blocks.restore(_part(arrays, "blocks_"))


def _part(arrays: Mapping[str, AnyArray], prefix: str) -> dict[str, AnyArray]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
