"""Streams of named clients in one process: standardized, placed on a grid of time, learnt, and
given their regimes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.regimes.blocks import READING_MAX, SCALES, window_features
from shoal.algorithms.regimes.client import RegimeClient
from shoal.algorithms.regimes.exchange import Book, Candidate, Columns, Profiles, Sums, add_answer
from shoal.algorithms.regimes.server import RegimeServer
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Bools, Floats, Ints, Texts

NO_REGIME: Final = -1
"""label of a row whose regime is not known"""
SCALING_ROWS: Final = 1_000
"""rows that `partial_fit` collects to find the level and the spread of each column, before it
learns any"""
SPREAD_QUANTILES: Final = (0.05, 0.5, 0.95)
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
    spread = np.where(high - low > 0, (high - low) / SPREADS_APART, deviation)
    return Columns(level, np.where(spread > 0, spread, 1.0))


class RegimeStreams:
    """Clients by name with the streams they have learnt, and the server they contribute to.

    Raises `SettingsError`.
    """

    def __init__(self, pool: bool | None, interval: float | None, rebuild_readings: int) -> None:
        if not (pool is None or isinstance(pool, bool | np.bool_)):
            raise SettingsError(f"pool = {pool!r} must be True, False or None")
        if interval is not None and not (interval > 0 and np.isfinite(interval)):
            raise SettingsError(f"interval = {interval!r} must be seconds above 0")
        # True is 1 in Python, and means no number here.
        if isinstance(rebuild_readings, bool) or not float(rebuild_readings) >= 1:
            raise SettingsError(
                f"rebuild_readings = {rebuild_readings!r} must be a whole number from 1 on"
            )
        self.server = RegimeServer(None if pool is None else not pool)
        self._interval = interval
        self._rebuild_readings = int(rebuild_readings)
        self._clients: dict[str, RegimeClient] = {}
        self._latest: dict[str, Floats] = {}
        """the last rows of each client, standardized: as many as a window of the largest scale may
        need"""
        self._first_time: dict[str, float] = {}
        self._last_time: dict[str, float] = {}
        self._last_slot: dict[str, int] = {}
        self._collected: list[tuple[Floats, Texts, Floats | None]] = []
        self._columns: Columns | None = None
        self._n = 0
        self._next_rebuild = int(rebuild_readings)

    def learn(
        self,
        rows: Floats,
        clients: ArrayLike | None,
        times: ArrayLike | None,
        is_last: bool = False,
    ) -> None:
        """Rows (n, d) of clients (n,) at times (n,); `is_last`: look for regimes at the end,
        whatever was learnt.

        Raises `InvalidData` before anything has changed.
        """
        names = _client_names(clients, len(rows))
        seconds = _seconds(times, len(rows))
        self._check_times(names, seconds)
        if self._columns is None:
            self._collected.append((rows, names, seconds))
            if sum(len(part[0]) for part in self._collected) < SCALING_ROWS and not is_last:
                return
            rows, names, seconds = self._join_collected()
            # Any division of the stream into calls gives the same scaling, except that `fit` knows
            # all of it.
            known = slice(None) if is_last else slice(SCALING_ROWS)
            self._columns = columns_of(rows[known])
            if seconds is not None and self._interval is None:
                self._interval = _usual_step(names[known], seconds[known])
        standard = self._columns.standardize(rows)
        if is_last:
            self._learn_table(standard, names, seconds)
            return
        first = 0
        while first < len(standard):
            last = min(len(standard), first + self._next_rebuild - self._n)
            self._add(
                standard[first:last],
                names[first:last],
                None if seconds is None else seconds[first:last],
            )
            self._n += last - first
            first = last
            if self._n == self._next_rebuild:
                self._plan_next_rebuild()
                self.server.rebuild(list(self._clients.values()))

    def _learn_table(self, standard: Floats, names: Texts, seconds: Floats | None) -> None:
        """A whole table is looked at twice, to see whether what its first three quarters show
        lasts."""
        early = _early(names)
        for part in (early, ~early):
            self._add(standard[part], names[part], None if seconds is None else seconds[part])
            self.server.rebuild(list(self._clients.values()), hysteresis=1.0)
        self._n = len(standard)
        self._plan_next_rebuild()

    def _plan_next_rebuild(self) -> None:
        self._next_rebuild = int(max(self._n + self._rebuild_readings, self._n * REBUILD_GROWTH))

    def predict(
        self, rows: Floats, clients: ArrayLike | None, times: ArrayLike | None, live: bool
    ) -> Ints:
        """rows (n, d) of clients (n,) at times (n,) -> (n,) identities. Raises `InvalidData`."""
        names = _client_names(clients, len(rows))
        seconds = _seconds(times, len(rows))
        labels = np.full(len(rows), NO_REGIME, dtype=np.int64)
        if self._columns is None or not self.server.n_readings:
            return labels
        book = self.server.book
        if book is None:
            labels[:] = self.server.single
            return labels
        standard = self._columns.standardize(rows)
        for name in np.unique(names):
            own = np.flatnonzero(names == name)
            dense = standard[own]
            places = np.arange(len(own))
            if seconds is not None:
                dense, places = _on_grid(
                    dense, self._slots(seconds[own], float(seconds[own][0])), -1
                )
            labels[own] = self._labels(book, str(name), dense, live)[places]
        return labels

    def predict_next(self, rows: Floats) -> int:
        """The regime of a row (1, d) that follows those that the only client has learnt."""
        if self._columns is None or not self.server.n_readings:
            return NO_REGIME
        if self.server.book is None:
            return self.server.single
        before = self._latest.get(ONLY_CLIENT, np.empty((0, rows.shape[1])))
        dense = np.concatenate([before, self._columns.standardize(rows)])
        return int(self._labels(self.server.book, ONLY_CLIENT, dense, True)[-1])

    def profiles(self, width: int) -> tuple[Floats, Floats]:
        """(k, d) mean and standard deviation of each regime over the blocks that clients remember,
        in rows' units.

        NaN where no block is known.
        """
        book = self.server.book
        columns = self._columns
        if columns is None or not self.server.identities():  # nothing was looked at yet
            return np.empty((0, width)), np.empty((0, width))
        one = Candidate(1, False)
        if book is not None:
            one = Candidate(book.w, book.plan.scaling.centred, book.plan, book.sets.of_cell)
        totals: Sums = {}
        for client in self._clients.values():
            add_answer(
                totals, {"0/level": client.level, "0/levels": np.ones(1)} | client.profile(0, one)
            )
        found = Profiles.of(totals, 0, one.centred)
        order = slice(None) if book is None else book.order()
        return found.mean[order] * columns.spread + columns.level, found.spread[
            order
        ] * columns.spread

    def _labels(self, book: Book, name: str, dense: Floats, live: bool) -> Ints:
        """dense (n, d) standardized readings in a row -> (n,) identities."""
        n = len(dense)
        w = book.w
        if n < w:
            return np.full(n, NO_REGIME, dtype=np.int64)
        client = self._clients.get(name) or self._stranger(dense)
        features = window_features(np.clip(dense, -READING_MAX, READING_MAX), w)
        cells = book.plan.cells(client.levelled(features, book.plan.scaling.centred))
        known = np.flatnonzero(cells >= 0)
        if not len(known):
            return np.full(n, NO_REGIME, dtype=np.int64)
        at = np.clip(np.arange(n) - (w - 1 if live else w // 2), 0, len(cells) - 1)
        # A window with too few readings has the regime of the last one that has enough.
        nearest = known[np.maximum(np.searchsorted(known, at, side="right") - 1, 0)]
        return book.identity[book.sets.of_cell[cells[nearest]]]

    def _stranger(self, dense: Floats) -> RegimeClient:
        client = RegimeClient(dense.shape[1])
        client.memory.add(dense)
        client.begin(self.server.ask())
        return client

    def _join_collected(self) -> tuple[Floats, Texts, Floats | None]:
        rows = np.concatenate([part[0] for part in self._collected])
        names = np.concatenate([part[1] for part in self._collected])
        with_times = [part[2] for part in self._collected if part[2] is not None]
        self._collected = []
        return rows, names, np.concatenate(with_times) if with_times else None

    def _add(self, standard: Floats, names: Texts, seconds: Floats | None) -> None:
        """Standardized rows (n, d) are learnt by their clients."""
        for name in np.unique(names).tolist():
            own = names == name
            rows = standard[own]
            if seconds is not None:
                slots = self._slots(
                    seconds[own], self._first_time.setdefault(name, float(seconds[own][0]))
                )
                rows, _ = _on_grid(rows, slots, self._last_slot.get(name, -1))
                self._last_slot[name], self._last_time[name] = (
                    int(slots[-1]),
                    float(seconds[own][-1]),
                )
            client = self._clients.setdefault(name, RegimeClient(standard.shape[1]))
            client.memory.add(rows)
            before = self._latest.get(name, np.empty((0, standard.shape[1])))
            self._latest[name] = np.concatenate([before, rows])[-SCALES[-1] :]

    def _slots(self, seconds: Floats, origin: float) -> Ints:
        return np.round((seconds - origin) / (self._interval or 1.0)).astype(np.int64)

    def _check_times(self, names: Texts, seconds: Floats | None) -> None:
        """Times must be given always or never, and not decrease within a client. Raises
        `InvalidData`."""
        known = [part[2] is not None for part in self._collected] + [bool(self._last_time)] * bool(
            self._n
        )
        if known and known[0] != (seconds is not None):
            raise InvalidData("times must be given in every call, or in none")
        if seconds is None:
            return
        for name in np.unique(names).tolist():
            before = [part[2][part[1] == name] for part in self._collected if part[2] is not None]
            steps = np.diff(
                np.concatenate(
                    [[self._last_time.get(name, -np.inf)], *before, seconds[names == name]]
                )
            )
            if (steps < 0).any():
                raise InvalidData(
                    "times decrease within a client; give its rows in the order of time"
                )


def _early(names: Texts) -> Bools:
    """(n,) whether a row is of the first three quarters of its client's rows."""
    early = np.zeros(len(names), dtype=bool)
    for name in np.unique(names):
        own = np.flatnonzero(names == name)
        early[own[: len(own) * 3 // 4]] = True
    return early


def _client_names(clients: ArrayLike | None, n: int) -> Texts:
    if clients is None:
        return np.full(n, ONLY_CLIENT)
    names = np.asarray(clients)
    if names.shape != (n,):
        raise InvalidData(
            f"clients has shape {names.shape}, it must name the client of each of the {n} rows"
        )
    return names.astype(str)


def _seconds(times: ArrayLike | None, n: int) -> Floats | None:
    if times is None:
        return None
    array = np.asarray(times)
    if array.shape != (n,):
        raise InvalidData(
            f"times has shape {array.shape}, it must have the time of each of the {n} rows"
        )
    if array.dtype.kind == "M":
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
    return float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0


def _on_grid(rows: Floats, slots: Ints, before: int) -> tuple[Floats, Ints]:
    """Rows (n, d) in ascending slots (n,) after slot `before` -> (m, d) rows of successive slots,
    (n,) places in them.

    A slot without a row is NaN, and of several rows in a slot the first counts; a row in a slot
    from before has the place -1. A gap of more than `GAP_MAX` slots is shortened to that.
    """
    # A gap of a week must not become a table of a week's slots.
    steps = np.minimum(np.diff(slots, prepend=before), GAP_MAX)
    places = np.cumsum(steps) - 1
    dense = np.full((int(places[-1]) + 1 if len(places) else 0, rows.shape[1]), np.nan)
    # backwards, so that the first row of a slot is written last
    new = np.flatnonzero(places >= 0)[::-1]
    dense[places[new]] = rows[new]
    return dense, places
