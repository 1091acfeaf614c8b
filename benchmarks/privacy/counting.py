"""A federation of any algorithm that learns from counts, in memory: windows, noise, updates,
snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.privacy.families import Stream
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.kernels.arrays import Ints
from shoal.privacy.count_noise import CountMechanism, count_noise
from shoal.privacy.keyed import SOURCE_BYTES

WINDOW = 400


@dataclass(frozen=True)
class Learnt:
    """What a federation has learnt, and what it has published for that."""

    snapshot: Arrays
    updates: list[Arrays]


def windows_of(stream: Stream, window: int = WINDOW) -> Iterator[tuple[str, int, Ints]]:
    """(client, number of its window, rows of the window), in the order in which windows fill up.

    The last window of a client holds what is left.
    """
    full: list[tuple[int, str, int, Ints]] = []
    for client in np.unique(stream.owner).tolist():
        own = np.flatnonzero(stream.owner == client)
        # The first window of a client is shorter, so that clients do not all publish at once.
        first = 1 + (client * 97) % window
        edges = [0, *range(first, len(own), window), len(own)]
        for number, (start, end) in enumerate(pairwise(edges)):
            full.append((int(own[end - 1]), f"client-{client}", number, own[start:end]))
    for _, name, number, rows in sorted(full, key=lambda each: each[:3]):
        yield name, number, rows


def learn(
    algorithm: CountingAlgorithm,
    stream: Stream,
    epsilon: float | None,
    seed: int,
    *,
    window: int = WINDOW,
    readings_of_a_user: int = 1,
    **own: Any,
) -> Learnt:
    """Let the algorithm, with its `own` options or default ones, learn a stream from private
    counts.

    The noise is for `readings_of_a_user` readings of a user in a window.
    """
    noise = None if epsilon is None else count_noise(epsilon, readings_of_a_user)
    key = np.random.default_rng(seed).bytes(32)
    options = {
        **own,
        "noise_variance": 0.0 if noise is None else noise.variance,
        "window_readings": window,
    }
    d = stream.rows.shape[1]
    counter = algorithm.counter(options, d)
    server = algorithm.server(options, d)
    counter.adopt(server.snapshot())
    updates = []
    for name, number, rows in windows_of(stream, window):
        valid = np.ones(len(rows), dtype=np.bool_)
        counted = counter.count(stream.rows[rows], valid, name.encode(), number)
        private = counted.counts
        if noise is not None:
            mechanism = CountMechanism(noise, key, name, bytes(SOURCE_BYTES), algorithm.name)
            private = mechanism.release(
                private, (number, int(rows[0]), int(rows[-1])), counter.plan_digest
            )
        updates.append(counted.update(private))
        server.absorb([Contribution(name, number, updates[-1])], key)
        counter.adopt(server.snapshot())
    return Learnt(server.snapshot(), updates)
