"""A streaming algorithm: each client counts its rows by the corner of the unit cube that is nearest
to them."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from shoal.algorithms.streaming import ArraySpec, StreamingAlgorithm
from shoal.algorithms.view import ClusteringView
from shoal.kernels.arrays import Ints
from shoal.saved_state import IntArray, SavedState, state_type

ARRAYS = {
    "corner": ArraySpec("<f8", ("n", "d"), rowlike=True),
    "count": ArraySpec("<i8", ("n",), at_least_one=True),
}


def corner_numbers(rows):
    """rows (n, d) -> (n,) the corner nearest to each, as the number whose binary digits are its
    coordinates."""
    return (rows >= 0.5) @ (1 << np.arange(rows.shape[1]))


@state_type
class CountsState(SavedState):
    """Counts of the corners, all and those that are published."""

    version: ClassVar[int] = 1

    counts: Annotated[Ints, IntArray("corners")]
    published: Annotated[Ints, IntArray("corners")]


class Counts:
    """Both halves: a count for each of the 2**d corners."""

    def __init__(self, options, d):
        self.d = d
        self.counts = np.zeros(2**d, np.int64)
        self.published = np.zeros(2**d, np.int64)

    @property
    def size(self):
        return int((self.counts > 0).sum())

    def learn(self, rows):
        self.counts += np.bincount(corner_numbers(rows), minlength=2**self.d)

    def contribute(self):
        new = self.counts - self.published
        self.published = self.counts.copy()
        return arrays_of(new, self.d)

    def reset_published(self):
        self.published = np.zeros_like(self.counts)

    def absorb(self, contributions, key):
        for contribution in contributions:
            np.add.at(
                self.counts,
                corner_numbers(contribution.arrays["corner"]),
                contribution.arrays["count"],
            )

    def snapshot(self):
        return arrays_of(self.counts, self.d)

    def predict(self, rows):
        return predict(self.snapshot(), rows)

    def state(self):
        return CountsState(counts=self.counts, published=self.published).saved()

    def restore(self, state):
        saved = CountsState.read(state, {"corners": 2**self.d})
        self.counts = saved.counts
        self.published = saved.published


def arrays_of(counts, d):
    """The corners with a count above 0, and the counts."""
    (numbers,) = np.nonzero(counts)
    return {
        "corner": (numbers[:, None] >> np.arange(d) & 1).astype(np.float64),
        "count": counts[numbers],
    }


def predict(arrays, rows):
    """rows (n, d) -> (n,) the corner of each by its position among those with rows, -1 for a corner
    without."""
    position = {
        number: place for place, number in enumerate(corner_numbers(arrays["corner"]).tolist())
    }
    return np.array(
        [position.get(number, -1) for number in corner_numbers(rows).tolist()], np.int64
    )


def view(arrays):
    """Each corner with rows is a cluster of one node, whose id is the number of the corner."""
    numbers = corner_numbers(arrays["corner"])
    return ClusteringView.from_nodes(
        arrays["corner"], arrays["count"], np.arange(len(numbers)), node_id=numbers
    )


CORNERS = StreamingAlgorithm(
    "corners", Counts, Counts, update=ARRAYS, snapshot=ARRAYS, predict=predict, view=view
)
