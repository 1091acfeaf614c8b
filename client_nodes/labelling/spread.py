"""Distances of readings to their clusters, from which their novelty is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from shoal.client_nodes.labelling.novelty import BINS, KNOWN_MAX, distance_bins, rank
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.saved_state import IntArray, SavedState, require

# A server may name new identities for ever; what a client keeps of them must not grow with that.
CLUSTERS_MAX = 256


@dataclass(frozen=True, kw_only=True)
class SpreadState(SavedState):
    """The counts above 0, which are few."""

    identities: list[int]
    row: Annotated[Ints, IntArray("cells", dtype="int32")]
    """position in `identities`"""
    bin: Annotated[Ints, IntArray("cells", dtype="int32")]
    count: Annotated[Ints, IntArray("cells", least=1, dtype="int32")]

    def check(self) -> None:
        require(len(set(self.identities)) == len(self.identities), "two clusters are the same")
        require(bool((self.row < len(self.identities)).all()), "a count is of no cluster")
        require(bool((self.bin < BINS).all()), "a count is in no bin")


class Spread:
    """Distances of readings from their clusters: `CLUSTERS_MAX` histograms, those used last.

    There is one for each lasting identity.
    """

    def __init__(self) -> None:
        self._counts: dict[int, Ints] = {}
        """identity -> (BINS,); the one used last is the last"""

    def novelty(self, reference: Ints, distances: Floats, counted: Bools) -> Floats:
        """reference (n,) identities, -1 for none; distances (n,) -> (n,) novelty, NaN if unknown.

        Those of `counted` (n,) then belong to what is known of their cluster.
        """
        novelty = np.full(len(reference), np.nan)
        for identity in np.unique(reference[reference >= 0]).tolist():
            own = np.flatnonzero(reference == identity)
            # Taken out and put back, so that the identity used last is the last of the dict.
            counts = self._counts.pop(identity, None)
            known = np.zeros(BINS, dtype=np.int64) if counts is None else counts
            ranked = rank(distance_bins(distances[own]), known, counted[own])
            novelty[own] = ranked.novelty
            # A histogram without a reading would only push out one that has some.
            if counts is not None or counted[own].any():
                self._counts[identity] = ranked.counts
        while len(self._counts) > CLUSTERS_MAX:
            del self._counts[next(iter(self._counts))]
        return novelty

    def state(self) -> dict[str, Any]:
        counts = np.array(list(self._counts.values())).reshape(-1, BINS)
        row, column = np.nonzero(counts)
        state = SpreadState(
            identities=list(self._counts),
            row=row.astype(np.int32),
            bin=column.astype(np.int32),
            count=counts[row, column].astype(np.int32),
        )
        return state.saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = SpreadState.read(state)
        counts = np.zeros((len(saved.identities), BINS), dtype=np.int64)
        counts[saved.row, saved.bin] = saved.count
        require(counts.sum(axis=1).max(initial=0) <= KNOWN_MAX, "a histogram has too many counts")
        # Copies, as a view would keep the whole table for one cluster.
        self._counts = {}
        for identity, histogram in zip(saved.identities, counts, strict=True):
            self._counts[identity] = histogram.copy()
