"""Readings that wait for the label of the window around them.

Where a cluster is seen in successive readings and not in a single one, a reading has the cluster of
the window around it. So it gets its label once half a window more has come, and what is needed
until then is kept in the client's checkpoint: labels do not depend on how readings are split into
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.algorithms.streaming import Rows, SequenceHalf, SequenceLabels
from shoal.algorithms.view import NO_CLUSTER
from shoal.client_nodes.intake import Batch
from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import Floats, Ints
from shoal.privacy.imperfect import CoarseReadings
from shoal.saved_state import FloatArray, SavedState, require, state_type

CONTEXT: Final = 256
"""labelled rows that are kept, as windows of those that wait begin before them"""
RowsOf = Callable[[Batch], Rows]
"""readings -> (n, d) their rows as models learn them, NaN where a value is missing"""


class Sequences(NamedTuple):
    """What labels of sequences are made from, besides snapshots."""

    halves: Mapping[str, SequenceHalf]
    """model -> its client half, of the models that label sequences"""
    rows_of: RowsOf


def sequences_of(
    contract: ResolvedContract,
    halves: Mapping[str, SequenceHalf],
    key: bytes | None,
    client: str,
    source: bytes,
) -> Sequences | None:
    """None where no model labels sequences.

    `key`, `source`: as for the mechanism of the client's rows.
    """
    if not halves:
        return None
    return Sequences(halves, _learnt_rows(contract, key, client, source))


def _learnt_rows(
    contract: ResolvedContract, key: bytes | None, client: str, source: bytes
) -> RowsOf:
    """The function that makes readings of a client the rows which its models have learnt.

    Clusters of sequences were found in rows with noise, whose spread and roughness those without it
    do not have. Noise is a function of a reading's place, so it is drawn again.
    """
    mechanism = contract.mode.mechanism(key, client, source)
    coarse = CoarseReadings(contract.bounds, contract.contract.steps, key, client, source)
    low = contract.bounds.low

    def rows(batch: Batch) -> Rows:
        is_missing = np.isnan(batch.values)
        places = np.array(batch.places, np.int64).reshape(-1, 2)
        # A mechanism takes no NaN: what is missing gets any value, and loses it again.
        spread = coarse.spread(batch.values, batch.places)
        released = mechanism.privatise(np.where(is_missing, low, spread), places)
        learnt = np.full(batch.values.shape, np.nan)
        learnt[released.kept] = released.rows
        learnt[is_missing] = np.nan
        return learnt

    return rows


@state_type
class WaitingState(SavedState):
    """Readings that wait for a label, with the rows before them."""

    rows: Annotated[Floats, FloatArray("rows", "d", gaps=True)]
    values: Annotated[Floats, FloatArray("waiting", "d", gaps=True)]
    places: list[list[int]]
    times: list[float | None]

    def check(self) -> None:
        fits = len(self.places) == len(self.times) == len(self.values) <= len(self.rows)
        require(fits, "readings that wait for a label do not fit together")
        for place in self.places:
            require(len(place) == 2, "a place is a partition and an offset")


class WaitingReadings:
    """Readings of one client that wait for a label, in order, and the rows before them."""

    def __init__(self, width: int) -> None:
        """`width` is the number of features d."""
        self._width = width
        self._rows: Floats = np.empty((0, width))
        """rows of the readings that wait, after up to `CONTEXT` earlier ones"""
        self._values: Floats = np.empty((0, width))
        """(p, d) the readings that wait"""
        self._places: list[tuple[int, int]] = []
        self._times: list[float | None] = []

    def add(self, batch: Batch, rows: Rows) -> None:
        """The next readings (n, d) and their rows."""
        self._rows = np.concatenate([self._rows, rows])
        self._values = np.concatenate([self._values, batch.values])
        self._places += batch.places
        self._times += batch.times

    def take(self, labels: SequenceLabels, is_last: bool = False) -> tuple[Batch, Ints]:
        """Those whose window is whole, and (n,) the number of their cluster.

        All of them where no more come (`is_last`).
        """
        m = len(self._rows)
        p = len(self._places)
        window = labels.window
        # The window around a reading ends window - window // 2 - 1 readings after it.
        whole = p if is_last else max(0, min(p, p - window + window // 2 + 1))
        if m < window and not is_last:
            whole = 0
        numbers = np.empty(0, np.int64)
        if whole:
            numbers = self._numbers(labels, m - p)[:whole]
        taken = Batch(self._values[:whole], self._places[:whole], self._times[:whole], [])
        self._values = self._values[whole:]
        self._places = self._places[whole:]
        self._times = self._times[whole:]
        # A copy, so that the array of a large batch is given back.
        self._rows = self._rows[max(0, m - p + whole - CONTEXT) :].copy()
        return taken, numbers

    def _numbers(self, labels: SequenceLabels, first: int) -> Ints:
        """(p,) clusters of the readings from row `first` on."""
        window = labels.window
        start = max(0, min(first - window // 2, len(self._rows) - window))
        rows = self._rows[start:]
        if len(rows) < window:
            return np.full(len(self._rows) - first, NO_CLUSTER, np.int64)
        of_window = labels.numbers(rows)
        known = np.flatnonzero(of_window != NO_CLUSTER)
        if not len(known):
            return np.full(len(self._rows) - first, NO_CLUSTER, np.int64)
        # The window around a reading; at both ends of the rows, the nearest whole one.
        at = np.arange(first - start, len(rows)) - window // 2
        at = np.clip(at, 0, len(of_window) - 1)
        # A window with too few values has the cluster of the last one that has enough.
        newest_known = np.maximum(np.searchsorted(known, at, side="right") - 1, 0)
        return of_window[known[newest_known]]

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        state = WaitingState(
            rows=self._rows,
            values=self._values,
            places=[list(place) for place in self._places],
            times=self._times,
        )
        return state.saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = WaitingState.read(state, {"d": self._width})
        self._rows = saved.rows
        self._values = saved.values
        self._places = [(partition, offset) for partition, offset in saved.places]
        self._times = saved.times
