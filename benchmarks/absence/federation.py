"""A federation of density_tree in one process, whose clients count under the plan of some windows
ago, and what it shows after each change of its tree."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.absence.streams import WINDOW, Stream
from shoal.algorithms.density_tree import DensityTreeServer
from shoal.algorithms.density_tree.snapshot import predict, view
from shoal.algorithms.streaming import Contribution
from shoal.kernels.arrays import Floats, Ints
from shoal.privacy.count_noise import count_noise
from shoal.protocol.history import NO_CLUSTER
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.lineage.events import ClusterEvent
from shoal.server_node.report.lineage.step import advance

CLIENTS = 5
MAJORITY = 0.5
"""share of the places of a state that must be in one cluster for the state to be shown as it"""


class CountedServer(DensityTreeServer):
    """Adds up what the histograms of the tree's leaves take."""

    taken = 0.0
    _before = 0.0

    def grow(self) -> None:
        """See `DensityTreeServer.grow`."""
        self._add_taken()
        super().grow()
        # What a cut leaves behind had been taken.
        self._before = self._held()

    def taken_share(self) -> float:
        """Share of all counts that the leaves of their time have taken; none is taken twice."""
        self._add_taken()
        return self.taken / self._counted

    def _add_taken(self) -> None:
        held = self._held()
        self.taken += held - self._before
        self._before = held

    def _held(self) -> float:
        return sum(float(leaf.coarse.sum()) for leaf in self._leaves)


class Look(NamedTuple):
    """What is shown after a change of the tree."""

    readings: int
    state: dict[int, int]
    """state -> identity of the cluster that most of its places are in"""
    share: dict[int, float]
    """identity -> share of the mass"""


class Run(NamedTuple):
    """One run of a stream."""

    looks: list[Look]
    events: list[ClusterEvent]
    label: Ints
    """(n,) the identity that each reading had when it came"""
    taken: float
    """share of the counts that the leaves took"""


class _Watch:
    """The lineage of the clusters, and the looks at them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lineage = Lineage()
        self.looks: list[Look] = []
        self.events: list[ClusterEvent] = []

    def look(self, server: DensityTreeServer, readings: int) -> None:
        snapshot = server.snapshot()
        if not snapshot["found"][0]:
            return
        self._lineage, events = advance(self._lineage, view(snapshot), readings, 0.0)
        self.events += events
        state = {}
        for number, places in self._stream.probes.items():
            state[number] = _majority(self.identities(server, places))
        share: Counter[int] = Counter()
        mass = snapshot["centre_mass"] / max(float(snapshot["centre_mass"].sum()), 1e-9)
        for number, part in enumerate(mass.tolist()):
            share[self._lineage.of_number.get(number, NO_CLUSTER)] += part
        self.looks.append(Look(readings, state, dict(share)))

    def identities(self, server: DensityTreeServer, rows: Floats) -> Ints:
        """rows (n, d) -> (n,) the identity that each is shown as."""
        clusters = predict(server.snapshot(), rows)
        known = self._lineage.of_number
        numbers = [known.get(number, NO_CLUSTER) for number in range(int(clusters.max()) + 1)]
        # The last place is that of the number -1: of no cluster.
        return np.array([*numbers, NO_CLUSTER], dtype=np.int64)[clusters]


def run(stream: Stream, epsilon: float | None, delay: int, seed: int) -> Run:
    """Learn a stream from windows, each counted under the plan of `delay` windows ago.

    `epsilon` None: without noise.
    """
    generator = np.random.default_rng([77, seed])
    noise = None if epsilon is None else count_noise(epsilon)
    variance = 0.0 if noise is None else noise.variance
    server = CountedServer(stream.rows.shape[1], noise_variance=variance, window_readings=WINDOW)
    watch = _Watch(stream)
    plans = deque([server.plan], maxlen=delay + 1)
    label = np.full(len(stream.rows), NO_CLUSTER)
    readings = 0
    for client, number, own in _windows(len(stream.rows)):
        rows = stream.rows[own]
        name = f"client-{client}"
        label[own] = watch.identities(server, rows)
        counted = plans[0].count(rows, np.ones(len(rows), dtype=np.bool_), name.encode(), number)
        private = counted.counts
        if epsilon is not None:
            stays = 1.0 - float(np.exp(-epsilon / 2.0))
            private = private + generator.geometric(stays, len(private))
            private = private - generator.geometric(stays, len(private))
        version = server.plan_version
        server.absorb([Contribution(name, number, counted.update(private))], b"")
        readings += len(rows)
        if server.plan_version != version:
            watch.look(server, readings)
        plans.append(server.plan)
    watch.look(server, readings)
    return Run(watch.looks, watch.events, label, server.taken_share())


def _windows(n: int) -> Sequence[tuple[int, int, Ints]]:
    """Client, number and rows of the windows of n readings that clients take in turn, in the order
    in which they fill."""
    owner = np.arange(n) % CLIENTS
    windows = []
    for client in range(CLIENTS):
        own = np.flatnonzero(owner == client)
        for first in range(0, len(own), WINDOW):
            windows.append((client, first // WINDOW, own[first : first + WINDOW]))
    return sorted(windows, key=lambda window: (int(window[2][-1]), window[0]))


def _majority(identities: Ints) -> int:
    """The identity that most of these are; `NO_CLUSTER` where none has half of the known ones."""
    known = Counter(identities[identities != NO_CLUSTER].tolist())
    if not known:
        return NO_CLUSTER
    identity, number = known.most_common(1)[0]
    return int(identity) if number >= MAJORITY * known.total() else NO_CLUSTER
