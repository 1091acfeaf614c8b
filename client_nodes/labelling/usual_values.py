"""Usual values of clusters, by which a novel reading gets its reasons.

They are counted from the client's own readings, without noise, and stay on the client. A usual
value is one between the 1 % and the 99 % quantile of a cluster's readings. Quantiles are read from
histograms over the declared bounds, so they are exact to one bin, 1/128 of the range between the
bounds.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.client_nodes.labelling.novelty import KNOWN_MAX, KNOWN_MIN
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.saved_state import IntArray, SavedState, require, state_type

VALUE_BINS: Final = 128


QUANTILES: Final = (0.01, 0.99)


CELLS_MAX: Final = 2**20
"""bins of all clusters together: 8 MiB"""


class Outside(NamedTuple):
    """A feature in which a reading lies outside the usual values of a cluster. Values in unit
    coordinates."""

    feature: int
    """position in the contract"""
    above: bool
    """whether the reading lies above the usual values, else below"""
    low: float
    high: float


@state_type
class UsualValuesState(SavedState):
    """The counts above 0, which are few."""

    identities: list[int]
    known: list[int]
    """readings that each histogram has"""
    row: Annotated[Ints, IntArray("counts", dtype="int32")]
    """position in `identities`"""
    cell: Annotated[Ints, IntArray("counts", dtype="int32")]
    """position in the d * VALUE_BINS counts of a cluster"""
    count: Annotated[Ints, IntArray("counts", least=1, dtype="int32")]

    def check(self) -> None:
        require(len(set(self.identities)) == len(self.identities), "two clusters are the same")
        require(len(self.known) == len(self.identities), "a cluster has no number of readings")
        require(max(self.known, default=0) <= KNOWN_MAX, "a histogram has too many readings")
        require(bool((self.row < len(self.identities)).all()), "a count is of no cluster")
        require(bool((self.count <= KNOWN_MAX).all()), "a bin has too many readings")


class UsualValues:
    """Histograms of d features for each cluster, those of the clusters used last."""

    def __init__(self, width: int) -> None:
        """`width` is the number of features d."""
        self._width = width
        self._clusters_max = max(1, CELLS_MAX // (VALUE_BINS * width))
        self._counts: dict[int, Ints] = {}
        """identity -> (d, VALUE_BINS); the one used last is the last"""
        self._known: dict[int, int] = {}
        """identity -> readings counted, halved when they become too many"""

    def reasons(
        self, reference: Ints, unit: Floats, novel: Bools, counted: Bools
    ) -> dict[int, list[Outside]]:
        """Why readings are novel, then count them.

        reference (n,) identities, -1 for none; unit (n, d) in unit coordinates, NaN where nothing
        was measured; novel (n,) asks for reasons; counted (n,) belongs to what is known of its
        cluster from then on. Returns the place of each novel reading of a cluster with `KNOWN_MIN`
        readings -> features, the farthest outside first; none if no single feature is outside. Each
        reading is compared with all before it, so any batching gives the same.
        """
        reasons: dict[int, list[Outside]] = {}
        for identity in np.unique(reference[reference >= 0]).tolist():
            own = np.flatnonzero(reference == identity)
            start = 0
            for asked in np.flatnonzero(novel[own]).tolist():
                # First what came before this reading, so that it is compared with just that.
                before = own[start:asked]
                self._count(identity, unit[before][counted[before]])
                start = asked
                if self._known.get(identity, 0) >= KNOWN_MIN:
                    place = int(own[asked])
                    reasons[place] = self._outside(identity, unit[place])
            rest = own[start:]
            self._count(identity, unit[rest][counted[rest]])
        while len(self._counts) > self._clusters_max:
            # A dict keeps the order of insertion: the first is the one that was used longest ago.
            oldest = next(iter(self._counts))
            del self._counts[oldest]
            del self._known[oldest]
        return reasons

    def interval(self, identity: int) -> tuple[Floats, Floats] | None:
        """(d,) least and (d,) greatest usual value of a cluster; None of few readings."""
        if self._known.get(identity, 0) < KNOWN_MIN:
            return None
        return _quantiles(self._counts[identity])

    def state(self) -> dict[str, Any]:
        tables = np.array(list(self._counts.values()), dtype=np.int64)
        counts = tables.reshape(-1, self._width * VALUE_BINS)
        row, cell = np.nonzero(counts)
        state = UsualValuesState(
            identities=list(self._counts),
            known=[self._known[identity] for identity in self._counts],
            row=row.astype(np.int32),
            cell=cell.astype(np.int32),
            count=counts[row, cell].astype(np.int32),
        )
        return state.saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = UsualValuesState.read(state)
        cells = self._width * VALUE_BINS
        require(bool((saved.cell < cells).all()), "a count is in no bin")
        counts = np.zeros((len(saved.identities), cells), dtype=np.int64)
        counts[saved.row, saved.cell] = saved.count
        tables = counts.reshape(-1, self._width, VALUE_BINS)
        # Copies, as a view would keep the whole table for one cluster.
        self._counts = {}
        for identity, table in zip(saved.identities, tables, strict=True):
            self._counts[identity] = table.copy()
        self._known = dict(zip(saved.identities, saved.known, strict=True))

    def _count(self, identity: int, unit: Floats) -> None:
        while len(unit):
            counts = self._counts.pop(identity, None)
            if counts is None:
                counts = np.zeros((self._width, VALUE_BINS), dtype=np.int64)
            # A piece ends where the counts are halved, so that any batching halves after the same
            # reading.
            room = KNOWN_MAX - self._known.get(identity, 0)
            piece = unit[:room]
            unit = unit[room:]
            for feature, values in enumerate(piece.T):
                # A sensor may lack a feature; beyond the bounds the outermost bin counts.
                present = values[~np.isnan(values)]
                scaled = (np.clip(present, 0.0, 1.0) * VALUE_BINS).astype(np.int64)
                bins = np.minimum(scaled, VALUE_BINS - 1)
                counts[feature] += np.bincount(bins, minlength=VALUE_BINS)
            known = self._known.get(identity, 0) + len(piece)
            if known == KNOWN_MAX:
                counts = counts // 2
                known = known // 2
            self._counts[identity] = counts
            self._known[identity] = known

    def _outside(self, identity: int, unit: Floats) -> list[Outside]:
        low, high = _quantiles(self._counts[identity])
        beyond = np.maximum(low - unit, unit - high)
        # In widths of the usual interval: a steady feature that moves a little is stranger than one
        # that always moves.
        score = np.where(beyond > 0, beyond, 0.0) / np.maximum(high - low, 1 / VALUE_BINS)
        outside = []
        for j in np.argsort(-score, kind="stable").tolist():
            if score[j] > 0:
                is_above = bool(unit[j] > high[j])
                outside.append(Outside(j, is_above, float(low[j]), float(high[j])))
        return outside


def _quantiles(counts: Ints) -> tuple[Floats, Floats]:
    """counts (d, VALUE_BINS) -> (d,) 1 % and (d,) 99 % quantile, linear within a bin.

    They are 0 and 1 without a count.
    """
    total = counts.sum(axis=1)
    reached = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
    ends = []
    for share in QUANTILES:
        wanted = share * total
        bin_ = np.clip((reached[:, 1:] < wanted[:, None]).sum(axis=1), 0, VALUE_BINS - 1)
        rows = np.arange(len(counts))
        # Of an empty bin nothing is inside: 1 only avoids 0 / 0.
        inside = (wanted - reached[rows, bin_]) / np.maximum(counts[rows, bin_], 1)
        ends.append((bin_ + np.clip(inside, 0.0, 1.0)) / VALUE_BINS)
    low, high = ends
    return np.where(total > 0, low, 0.0), np.where(total > 0, high, 1.0)
