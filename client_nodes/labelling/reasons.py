"""Usual values of each cluster, feature by feature, and the features in which a novel reading lies outside them.

They are counted from the client's own readings, without noise, and stay on the client. A usual value is one between
the 1 % and the 99 % quantile of a cluster's readings. Quantiles are read from histograms over the declared bounds, so
they are exact to one bin, 1/128 of the range between the bounds.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from shoal.errors import InvalidState
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.kernels.novelty import KNOWN_MAX, KNOWN_MIN

BINS: Final = 128
QUANTILES: Final = (0.01, 0.99)
REASONS_MAX: Final = 3
"""features named for one reading"""
CELLS_MAX: Final = 2**20
"""bins of all clusters together: 8 MiB"""


class Outside(NamedTuple):
    """A feature in which a reading lies outside the usual values of a cluster. Values in unit coordinates."""

    feature: int
    """position in the contract"""
    above: bool
    """whether the reading lies above the usual values, else below"""
    low: float
    high: float


class UsualValues:
    """Histograms of d features for each cluster, those of the clusters used last."""

    def __init__(self, width: int) -> None:
        """`width` is the number of features d."""
        self._width = width
        self._clusters_max = max(1, CELLS_MAX // (BINS * width))
        self._counts: dict[int, Ints] = {}
        """identity -> (d, BINS); the one used last is the last"""
        self._known: dict[int, int] = {}
        """identity -> readings counted since the last halving, what is left of those before included"""

    def reasons(self, reference: Ints, unit: Floats, novel: Bools, counted: Bools) -> dict[int, list[Outside]]:
        """Why readings are novel, then count them.

        reference (n,) identities, -1 for none; unit (n, d) in unit coordinates, NaN where nothing was measured; novel
        (n,) asks for reasons; counted (n,) belongs to what is known of its cluster from then on. Returns the place of
        each novel reading of a cluster with `KNOWN_MIN` readings -> features, the farthest outside first; none if no
        single feature is outside. Each reading is compared with all before it, so any batching gives the same.
        """
        found: dict[int, list[Outside]] = {}
        for identity in np.unique(reference[reference >= 0]).tolist():
            own = np.flatnonzero(reference == identity)
            start = 0
            for asked in np.flatnonzero(novel[own]).tolist():
                self._count(identity, unit[own[start:asked]][counted[own[start:asked]]])
                start = asked
                if self._known.get(identity, 0) >= KNOWN_MIN:
                    found[int(own[asked])] = self._outside(identity, unit[own[asked]])
            self._count(identity, unit[own[start:]][counted[own[start:]]])
        while len(self._counts) > self._clusters_max:
            oldest = next(iter(self._counts))
            del self._counts[oldest], self._known[oldest]
        return found

    def state(self) -> dict[str, Any]:
        """Only counts above 0."""
        counts = np.array(list(self._counts.values()), dtype=np.int64).reshape(-1, self._width * BINS)
        row, column = np.nonzero(counts)
        return {
            "identities": list(self._counts),
            "known": [self._known[one] for one in self._counts],
            "row": row.astype(np.int32),
            "cell": column.astype(np.int32),
            "count": counts[row, column].astype(np.int32),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            identities, known = state["identities"], state["known"]
            if not all(type(one) is int and 0 <= one <= KNOWN_MAX for one in known):
                raise ValueError("impossible counts")
            counts = np.zeros((len(identities), self._width * BINS), dtype=np.int64)
            counts[state["row"], state["cell"]] = state["count"]
            if counts.min(initial=0) < 0 or counts.max(initial=0) > KNOWN_MAX:
                raise ValueError("impossible counts")
            tables = counts.reshape(-1, self._width, BINS)
            # Copies, as a view would keep the whole table for one cluster.
            self._counts = {int(one): own.copy() for one, own in zip(identities, tables, strict=True)}
            self._known = dict(zip(self._counts, known, strict=True))
        except (KeyError, TypeError, ValueError, IndexError) as broken:
            raise InvalidState(f"the checkpoint of the usual values is damaged: {broken}") from None

    def _count(self, identity: int, unit: Floats) -> None:
        while len(unit):
            counts = self._counts.pop(identity, None)
            if counts is None:
                counts = np.zeros((self._width, BINS), dtype=np.int64)
            # A piece ends where the counts are halved, so that any batching halves after the same reading.
            room = KNOWN_MAX - self._known.get(identity, 0)
            piece, unit = unit[:room], unit[room:]
            for feature, values in enumerate(piece.T):
                # A sensor may lack a feature; beyond the bounds the outermost bin counts.
                there = values[~np.isnan(values)]
                bins = np.minimum((np.clip(there, 0.0, 1.0) * BINS).astype(np.int64), BINS - 1)
                counts[feature] += np.bincount(bins, minlength=BINS)
            known = self._known.get(identity, 0) + len(piece)
            if known == KNOWN_MAX:
                counts, known = counts // 2, known // 2
            self._counts[identity], self._known[identity] = counts, known

    def _outside(self, identity: int, unit: Floats) -> list[Outside]:
        low, high = _quantiles(self._counts[identity])
        beyond = np.maximum(low - unit, unit - high)
        # In widths of the usual interval: a steady feature that moves a little is stranger than one that always moves.
        score = np.where(beyond > 0, beyond, 0.0) / np.maximum(high - low, 1 / BINS)
        order = np.argsort(-score, kind="stable")[:REASONS_MAX].tolist()
        return [Outside(j, bool(unit[j] > high[j]), float(low[j]), float(high[j])) for j in order if score[j] > 0]


def _quantiles(counts: Ints) -> tuple[Floats, Floats]:
    """counts (d, BINS) -> (d,) 1 % and (d,) 99 % quantile, linear within a bin; 0 and 1 where nothing is counted."""
    total = counts.sum(axis=1)
    reached = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
    ends = []
    for share in QUANTILES:
        wanted = share * total
        bin_ = np.clip((reached[:, 1:] < wanted[:, None]).sum(axis=1), 0, BINS - 1)
        rows = np.arange(len(counts))
        inside = (wanted - reached[rows, bin_]) / np.maximum(counts[rows, bin_], 1)
        ends.append((bin_ + np.clip(inside, 0.0, 1.0)) / BINS)
    low, high = ends
    return np.where(total > 0, low, 0.0), np.where(total > 0, high, 1.0)
