"""The federation in memory of clients whose streams have regimes.

Rows are standardized, placed on a grid of time, learnt, and given their regimes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.regimes.blocks import READING_MAX, SCALES, window_features
from shoal.algorithms.regimes.client import BlockStatistics
from shoal.algorithms.regimes.exchange import (
    Candidate,
    Codebook,
    Columns,
    Profiles,
    Sums,
    add_answer,
)
from shoal.algorithms.regimes.server import HYSTERESIS, RegimeSearch
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Bools, Floats, Ints, Texts
from shoal.simulation.federation import Advance, Federation, deal_by_name, to_the_end

NO_REGIME: Final = -1
"""label of a row whose regime is not known"""
SCALING_ROWS: Final = 1_000
"""rows that `partial_fit` collects to find the level and the spread of each column, before it
learns any"""
SPREAD_QUANTILES: Final = (0.05, 0.5, 0.95)
# 2 * 1.645, the quantile .95 of the standard normal distribution.
SPREADS_APART: Final = 3.29
"""standard deviations of a Gaussian between the outer two of these quantiles"""
REBUILD_GROWTH: Final = 1.25
"""growth of the number of rows after which regimes are found anew, at least"""
GAP_MAX: Final = 2 * SCALES[-1]
"""missing readings in a row beyond which a gap is no longer told from a longer one"""
ONLY_CLIENT: Final = "0"
"""the client of rows without a client's name"""


def columns_of(rows: Floats) -> Columns:
    """Median, and a deviation by outer quantiles, of rows (n, d) with NaN where a reading is
    missing."""
    present = [column[~np.isnan(column)] for column in rows.T]
    present = [column if len(column) else np.zeros(1) for column in present]
    low, level, high = np.array([np.quantile(column, SPREAD_QUANTILES) for column in present]).T
    deviation = np.array([column.std() for column in present])
    # Quantiles of a column that rests at one value are equal, and its deviation is not 0.
    spread = np.where(high - low > 0, (high - low) / SPREADS_APART, deviation)
    return Columns(level, np.where(spread > 0, spread, 1.0))


class StreamRows(NamedTuple):
    """Rows of clients, and their times."""

    values: Floats
    """(n, d)"""
    names: Texts
    """(n,) the client of each row"""
    seconds: Floats | None
    """(n,) the time of each row; None: rows have no times"""

    def part(self, of: Bools | slice) -> StreamRows:
        """Some of the rows."""
        seconds = None if self.seconds is None else self.seconds[of]
        return StreamRows(self.values[of], self.names[of], seconds)


@dataclass
class StreamingClient:
    """The client half, and where on its grid of time the next rows belong."""

    half: BlockStatistics
    latest: Floats
    """its last rows, standardized: as many as a window of the largest scale may need"""
    first_time: float | None = None
    last_time: float = -np.inf
    last_slot: int = -1


class RegimeFederation(Federation[StreamingClient]):
    """Clients by name with the streams they have learnt, and the server they contribute to.

    Raises `SettingsError`.
    """

    def __init__(
        self, width: int, pool: bool | None, interval: float | None, rebuild_readings: int
    ) -> None:
        if not (pool is None or isinstance(pool, bool | np.bool_)):
            raise SettingsError(f"pool = {pool!r} must be True, False or None")
        if interval is not None and not (interval > 0 and np.isfinite(interval)):
            raise SettingsError(f"interval = {interval!r} must be seconds above 0")
        # True is 1 in Python, and means no number here.
        if isinstance(rebuild_readings, bool) or not float(rebuild_readings) >= 1:
            raise SettingsError(
                f"rebuild_readings = {rebuild_readings!r} must be a whole number from 1 on"
            )
        super().__init__(width)
        self.server = RegimeSearch(None if pool is None else not pool)
        self._interval = interval
        self._rebuild_readings = int(rebuild_readings)
        self._collected: list[StreamRows] = []
        """rows that wait until the level and the spread of each column are known"""
        self._columns: Columns | None = None
        self._n_learnt = 0
        self._next_rebuild = int(rebuild_readings)

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        advance: Advance = to_the_end,
        times: ArrayLike | None = None,
    ) -> None:
        """Rows (n, d) of clients (n,) at times (n,); `is_last`: look for regimes at the end,
        whatever was learnt.

        Raises `InvalidData` before anything has changed.
        """
        n = len(rows)
        stream = StreamRows(rows, self.names_of(n, client_names), _seconds(times, n))
        self._check_times(stream)
        self._n_rows += n
        if self._columns is None:
            self._collected.append(stream)
            if self._n_rows < SCALING_ROWS and not is_last:
                return
            stream = self._join_collected()
            # Any division of the stream into calls gives the same scaling, except that `fit` knows
            # all of it.
            known = stream if is_last else stream.part(slice(SCALING_ROWS))
            self._columns = columns_of(known.values)
            if known.seconds is not None and self._interval is None:
                self._interval = _usual_step(known.names, known.seconds)
        standard = stream._replace(values=self._columns.standardize(stream.values))
        if is_last:
            self._learn_table(standard)
        else:
            self._learn_on(standard)
        advance(n)

    def _learn_on(self, standard: StreamRows) -> None:
        """Rows that continue streams; regimes are looked for whenever it is time."""
        first = 0
        n = len(standard.values)
        while first < n:
            last = min(n, first + self._next_rebuild - self._n_learnt)
            self._add(standard.part(slice(first, last)))
            self._n_learnt += last - first
            first = last
            if self._n_learnt == self._next_rebuild:
                self._plan_next_rebuild()
                self._rebuild()

    def _learn_table(self, standard: StreamRows) -> None:
        """A whole table is looked at twice, to see whether what its first three quarters show
        lasts."""
        early = _early(standard.names)
        for part in (early, ~early):
            self._add(standard.part(part))
            self._rebuild(hysteresis=1.0)
        self._n_learnt = len(standard.values)
        self._plan_next_rebuild()

    def _rebuild(self, hysteresis: float = HYSTERESIS) -> None:
        self.server.rebuild([client.half for client in self._clients.values()], hysteresis)

    def _plan_next_rebuild(self) -> None:
        n = self._n_learnt
        self._next_rebuild = int(max(n + self._rebuild_readings, n * REBUILD_GROWTH))

    def predict(
        self, rows: Floats, client_names: ArrayLike | None, times: ArrayLike | None, live: bool
    ) -> Ints:
        """rows (n, d) of clients (n,) at times (n,) -> (n,) identities. Raises `InvalidData`."""
        dealt = self.deal(len(rows), client_names)
        seconds = _seconds(times, len(rows))
        labels = np.full(len(rows), NO_REGIME, dtype=np.int64)
        if self._columns is None or not self.server.n_readings:
            return labels
        codebook = self.server.codebook
        if codebook is None:
            labels[:] = self.server.single
            return labels
        standard = self._columns.standardize(rows)
        for name, own in dealt.rows_of_clients():
            dense = standard[own]
            places = np.arange(len(own))
            if seconds is not None:
                slots = self._slots(seconds[own], float(seconds[own][0]))
                dense, places = _on_grid(dense, slots, -1)
            labels[own] = self._labels(codebook, name, dense, live)[places]
        return labels

    def predict_next(self, rows: Floats) -> int:
        """The regime of a row (1, d) that follows those that the only client has learnt."""
        if self._columns is None or not self.server.n_readings:
            return NO_REGIME
        if self.server.codebook is None:
            return self.server.single
        before = np.empty((0, rows.shape[1]))
        if ONLY_CLIENT in self._clients:
            before = self._clients[ONLY_CLIENT].latest
        # Its window reaches back to rows that were learnt.
        dense = np.concatenate([before, self._columns.standardize(rows)])
        return int(self._labels(self.server.codebook, ONLY_CLIENT, dense, True)[-1])

    def profiles(self) -> tuple[Floats, Floats]:
        """(k, d) mean and standard deviation of each regime over the blocks that clients remember,
        in rows' units.

        NaN where no block is known.
        """
        codebook = self.server.codebook
        columns = self._columns
        if columns is None or not self.server.identities():  # nothing was looked at yet
            return np.empty((0, self.width)), np.empty((0, self.width))
        shown = Candidate(1, False)
        if codebook is not None:
            shown = Candidate(
                codebook.w, codebook.plan.scaling.centred, codebook.plan, codebook.sets.of_cell
            )
        totals: Sums = {}
        for client in self._clients.values():
            level = {"0/level": client.half.level, "0/levels": np.ones(1)}
            add_answer(totals, level | client.half.profile(0, shown))
        profiles = Profiles.of(totals, 0, shown.centred)
        order = slice(None) if codebook is None else codebook.order()
        means = profiles.mean[order] * columns.spread + columns.level
        return means, profiles.spread[order] * columns.spread

    def _labels(self, codebook: Codebook, name: str, dense: Floats, live: bool) -> Ints:
        """dense (n, d) standardized readings in a row -> (n,) identities."""
        n = len(dense)
        w = codebook.w
        if n < w:
            return np.full(n, NO_REGIME, dtype=np.int64)
        known_client = self._clients.get(name)
        client = self._stranger(dense) if known_client is None else known_client.half
        # As in the blocks from which the cells were made: there a wild value counts up to this
        # alone.
        features = window_features(np.clip(dense, -READING_MAX, READING_MAX), w)
        cells = codebook.plan.cells(client.levelled(features, codebook.plan.scaling.centred))
        known = np.flatnonzero(cells >= 0)
        if not len(known):
            return np.full(n, NO_REGIME, dtype=np.int64)
        at = np.clip(np.arange(n) - (w - 1 if live else w // 2), 0, len(cells) - 1)
        # A window with too few readings has the regime of the last one that has enough.
        nearest = known[np.maximum(np.searchsorted(known, at, side="right") - 1, 0)]
        return codebook.identity[codebook.sets.of_cell[cells[nearest]]]

    def _stranger(self, dense: Floats) -> BlockStatistics:
        client = BlockStatistics(dense.shape[1])
        client.memory.add(dense)
        client.begin(self.server.query())
        return client

    def _join_collected(self) -> StreamRows:
        parts = self._collected
        self._collected = []
        rows = np.concatenate([part.values for part in parts])
        names = np.concatenate([part.names for part in parts])
        with_times = [part.seconds for part in parts if part.seconds is not None]
        if not with_times:
            return StreamRows(rows, names, None)
        return StreamRows(rows, names, np.concatenate(with_times))

    def _new_client(self, name: str) -> StreamingClient:
        return StreamingClient(BlockStatistics(self.width), np.empty((0, self.width)))

    def _add(self, standard: StreamRows) -> None:
        """Standardized rows are learnt by their clients."""
        values, names, seconds = standard
        for name, own in deal_by_name(len(values), names).rows_of_clients():
            client = self.client(name)
            rows = values[own]
            if seconds is not None:
                times = seconds[own]
                if client.first_time is None:
                    client.first_time = float(times[0])
                slots = self._slots(times, client.first_time)
                rows, _ = _on_grid(rows, slots, client.last_slot)
                client.last_slot = int(slots[-1])
                client.last_time = float(times[-1])
            client.half.memory.add(rows)
            client.latest = np.concatenate([client.latest, rows])[-SCALES[-1] :]

    def _slots(self, seconds: Floats, origin: float) -> Ints:
        # To the nearest: times vary around the interval, so that cut off two would often share a
        # slot.
        return np.round((seconds - origin) / (self._interval or 1.0)).astype(np.int64)

    def _check_times(self, stream: StreamRows) -> None:
        """Times must be given always or never, and not decrease within a client. Raises
        `InvalidData`."""
        if self._n_rows and self._has_times() != (stream.seconds is not None):
            raise InvalidData("times must be given in every call, or in none")
        if stream.seconds is None:
            return
        for name, own in deal_by_name(len(stream.names), stream.names).rows_of_clients():
            times = [self._last_time_of(name), *stream.seconds[own].tolist()]
            if (np.diff(times) < 0).any():
                raise InvalidData(
                    "times decrease within a client; give its rows in the order of time"
                )

    def _has_times(self) -> bool:
        """Whether the rows before had times; there are some."""
        if self._collected:
            return self._collected[0].seconds is not None
        return any(client.first_time is not None for client in self._clients.values())

    def _last_time_of(self, name: str) -> float:
        """The time of the newest row of a client; minus infinity before the first."""
        for part in reversed(self._collected):
            own = part.names == name
            if part.seconds is not None and own.any():
                return float(part.seconds[own][-1])
        if name not in self._clients:
            return -np.inf
        return self._clients[name].last_time


def _early(names: Texts) -> Bools:
    """(n,) whether a row is of the first three quarters of its client's rows."""
    early = np.zeros(len(names), dtype=bool)
    for name in np.unique(names):
        own = np.flatnonzero(names == name)
        early[own[: len(own) * 3 // 4]] = True
    return early


def _seconds(times: ArrayLike | None, n: int) -> Floats | None:
    if times is None:
        return None
    array = np.asarray(times)
    if array.shape != (n,):
        raise InvalidData(
            f"times has shape {array.shape}, it must have the time of each of the {n} rows"
        )
    if array.dtype.kind == "M":
        # In nanoseconds first: the same moments are the same seconds, whatever unit they come in.
        seconds = array.astype("datetime64[ns]").astype(np.int64) / 1e9
    elif array.dtype.kind in "iuf":
        seconds = array.astype(np.float64)
    else:
        raise InvalidData("times must be seconds or datetime64")
    if not np.isfinite(seconds).all():
        raise InvalidData("times has entries that are no times")
    return seconds


def _usual_step(names: Texts, seconds: Floats) -> float:
    """Median of the steps of time within clients; 1 if there is none."""
    steps = np.concatenate([np.diff(seconds[names == name]) for name in np.unique(names)])
    ahead = steps[steps > 0]
    if not len(ahead):
        return 1.0
    # The median, as a few long pauses would raise the mean.
    return float(np.median(ahead))


def _on_grid(rows: Floats, slots: Ints, before: int) -> tuple[Floats, Ints]:
    """Rows (n, d) in ascending slots (n,) after slot `before` -> (m, d) rows of successive slots,
    (n,) places in them.

    A slot without a row is NaN, and of several rows in a slot the first counts; a row in a slot
    from before has the place -1. A gap of more than `GAP_MAX` slots is shortened to that.
    """
    # A gap of a week must not become a table of a week's slots.
    steps = np.minimum(np.diff(slots, prepend=before), GAP_MAX)
    places = np.cumsum(steps) - 1
    n_slots = 0
    if len(places):
        n_slots = int(places[-1]) + 1
    dense = np.full((n_slots, rows.shape[1]), np.nan)
    # backwards, so that the first row of a slot is written last
    new = np.flatnonzero(places >= 0)[::-1]
    dense[places[new]] = rows[new]
    return dense, places
