"""The streams that all learners are measured on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.algorithms.fcac import CAPlus
from shoal.kernels.arrays import Floats, Ints

SPREAD = 0.005
"""standard deviation of every blob, in the unit cube"""
NEIGHBOURS = 10
"""centres that the walk visits at one time"""
CLIENTS = 10
UPDATE_ROWS = 500
"""rows a client learns between two updates, as `publish_readings` has it"""


class Batch(NamedTuple):
    """Rows for one call."""

    rows: Floats
    """(n, d)"""
    counts: Ints
    """(n,) how many readings each row stands for"""


class Blobs:
    """An endless stream of Gaussian blobs around `centres` uniform centres: a walk first, then all
    centres alike.

    The walk, `walk` rows long, goes along the first feature, ten neighbouring centres at a time,
    like a sensor that drifts over its range. After it CA+ has about one node per centre in any
    dimension. Without it CA+ has at most about sixty nodes in two dimensions, for any number of
    centres.
    """

    def __init__(self, d: int, centres: int, walk: int, seed: int, sensor: int = 0) -> None:
        """`seed` gives the centres; `sensor` is the number of this stream around them."""
        places = np.random.default_rng(seed).uniform(size=(centres, d))
        self._places = places[np.argsort(places[:, 0])]
        self._walk = walk
        self._near = min(NEIGHBOURS, centres)
        self._generator = np.random.default_rng((seed, sensor))
        self._drawn = 0

    def draw(self, n: int) -> Floats:
        """The next rows, (n, d)."""
        centres, d = self._places.shape
        step = np.arange(self._drawn, self._drawn + n)
        walking = step * (centres - self._near + 1) // max(
            1, self._walk
        ) + self._generator.integers(self._near, size=n)
        resting = self._generator.integers(centres, size=n)
        self._drawn += n
        which = np.where(step < self._walk, walking, resting)
        return self._places[which] + SPREAD * self._generator.standard_normal((n, d))


def in_batches(rows: Floats, size: int) -> list[Batch]:
    """Batches of `size` rows with a count of 1 each."""
    pieces = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [Batch(piece, np.ones(len(piece), dtype=np.int64)) for piece in pieces]


def updates(d: int, centres: int, walk: int, nodes: int, seed: int) -> list[Batch]:
    """Updates with at least `nodes` nodes together, of ten CA+ clients in turn, each with a stream
    of its own around the same centres, from its first reading on."""
    clients = [(CAPlus(d), Blobs(d, centres, walk, seed, sensor)) for sensor in range(CLIENTS)]
    batches: list[Batch] = []
    while sum(len(update.rows) for update in batches) < nodes:
        for client, stream in clients:
            client.learn(stream.draw(UPDATE_ROWS))
            update = client.contribute()
            batches.append(Batch(update["weight"], update["count"]))
    return batches
