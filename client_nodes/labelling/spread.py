"""The distances of readings to their clusters, as one histogram for each lasting identity; they stay on the client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidState
from shoal.kernels.distance import Floats
from shoal.kernels.novelty import BINS, KNOWN_MAX, Ints, distance_bins, rank

CLUSTERS_MAX = 256


class Spread:
    """How far the readings of each cluster lie from it: at most `CLUSTERS_MAX` histograms, those used last."""

    def __init__(self) -> None:
        self._counts: dict[int, Ints] = {}
        """identity -> (BINS,); the one used last is the last"""

    def novelty(self, reference: Ints, distances: Floats, counted: NDArray[np.bool_]) -> Floats:
        """reference (n,) identities, -1 for none; distances (n,) -> (n,) novelty, NaN where it is not known.

        Those of `counted` (n,) then belong to what is known of their cluster.
        """
        found = np.full(len(reference), np.nan)
        for identity in np.unique(reference[reference >= 0]).tolist():
            own = np.flatnonzero(reference == identity)
            counts = self._counts.pop(identity, None)
            known = np.zeros(BINS, dtype=np.int64) if counts is None else counts
            ranked = rank(distance_bins(distances[own]), known, counted[own])
            found[own] = ranked.novelty
            if counts is not None or counted[own].any():
                self._counts[identity] = ranked.counts
        while len(self._counts) > CLUSTERS_MAX:
            del self._counts[next(iter(self._counts))]
        return found

    def state(self) -> dict[str, Any]:
        """Only counts above 0, which are few."""
        counts = np.array(list(self._counts.values())).reshape(-1, BINS)
        row, column = np.nonzero(counts)
        return {
            "identities": list(self._counts),
            "row": row.astype(np.int32),
            "bin": column.astype(np.int32),
            "count": counts[row, column].astype(np.int32),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            counts = np.zeros((len(state["identities"]), BINS), dtype=np.int64)
            counts[state["row"], state["bin"]] = state["count"]
            if counts.min(initial=0) < 0 or counts.sum(axis=1).max(initial=0) > KNOWN_MAX:
                raise ValueError("impossible counts")
            # Copies, as a view would keep the whole table for one cluster.
            self._counts = {int(one): own.copy() for one, own in zip(state["identities"], counts, strict=True)}
        except (KeyError, TypeError, ValueError, IndexError) as broken:
            raise InvalidState(f"the checkpoint of the distances to clusters is damaged: {broken}") from None
