"""A state that goes away for a weekend of readings and comes back has the number and the name that
it had, whatever algorithm finds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm, streaming_algorithm
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.codec import pack, unpack
from shoal.server_node.report.lineage.clusters import NO_CLUSTER, Lineage, restore_lineage
from shoal.server_node.report.lineage.events import ClusterChange, EventKind
from shoal.server_node.report.lineage.step import advance
from shoal.simulation.streaming import StreamingFederation
from tests.server_node.rounds_harness import RoundsHarness, contract_with

GONE_AT = 4_000
BACK_AT = 10_000
READINGS = 13_000
SPREAD = 0.035
LEAST_APART = 8 * SPREAD
"""distance of any two states on the feature that parts them most"""
DIM = 0.1
"""part of the readings between the state that is away and another one, as those of dusk"""
CLIENTS = 3
WINDOW = 600
"""newest readings of a client that a model in rounds is made of"""
WAKES_AFTER_S = 1_000.0
NAME = "Night"


class Planted(NamedTuple):
    """Readings of three states, the last of which is away in the middle."""

    rows: Floats
    """(n, 2)"""
    probes: Floats
    """(m, 2) places of the state that goes"""


class Told(NamedTuple):
    """What is told of the state that goes."""

    before: int
    """its identity when it went"""
    after: int
    """its identity at the end"""
    name: str
    """the name that it has at the end"""
    events: list[EventKind]
    """what has become of that identity after it went"""


def planted(seed: int, dim: float) -> Planted:
    generator = np.random.default_rng([2026, seed])
    while True:
        centres = generator.uniform(0.12, 0.88, (3, 2))
        apart = np.abs(centres[:, None] - centres).max(axis=2) + np.eye(3)
        if apart.min() >= LEAST_APART:
            break
    states = np.where(
        is_away(np.arange(READINGS)),
        generator.integers(0, 2, READINGS),
        generator.integers(0, 3, READINGS),
    )
    rows = centres[states] + generator.normal(0.0, SPREAD, (READINGS, 2))
    is_dim = is_away(np.arange(READINGS)) & (generator.random(READINGS) < dim)
    along = generator.uniform(0.0, 1.0, (int(is_dim.sum()), 1))
    noise = generator.normal(0.0, SPREAD, (int(is_dim.sum()), 2))
    rows[is_dim] = centres[1] * (1.0 - along) + centres[2] * along + noise
    probes = centres[2] + generator.normal(0.0, SPREAD / 2, (60, 2))
    return Planted(np.clip(rows, 0.0, 1.0), np.clip(probes, 0.0, 1.0))


def is_away(reading: Ints) -> Ints:
    return (reading >= GONE_AT) & (reading < BACK_AT)


def identity_of(labels: Ints, lineage: Lineage) -> int:
    """The identity that most of the probes are shown as; labels (m,) are numbers of clusters."""
    known = Counter(lineage.of_number.get(int(label), NO_CLUSTER) for label in labels)
    return known.most_common(1)[0][0]


def naming(identity: int) -> ClusterChange:
    return ClusterChange(identity, EventKind.NAMED, {"name": NAME})


def streamed(algorithm: str, stream: Planted, pace: int) -> Told:
    """Of a streaming algorithm with a snapshot after each `pace` readings."""
    federation = StreamingFederation(algorithm, {}, 2, CLIENTS, 0, max(20, pace // CLIENTS))
    half = streaming_algorithm(algorithm)
    lineage = Lineage()
    before = NO_CLUSTER
    kinds: list[EventKind] = []
    for first in range(0, READINGS, pace):
        federation.learn(stream.rows[first : first + pace], None)
        snapshot = federation.server.snapshot()
        learnt = min(READINGS, first + pace)
        lineage, events = advance(lineage, half.view(snapshot), learnt, 0.0)
        kinds += [event.kind for event in events if before == event.identity]
        if learnt >= GONE_AT and before == NO_CLUSTER:
            before = identity_of(half.predict(snapshot, stream.probes), lineage)
            changed = lineage.changed(naming(before))
            assert changed is not None
            # The server is started again while the state is away.
            lineage = restore_lineage(unpack(pack(changed.state())))
    after = identity_of(half.predict(snapshot, stream.probes), lineage)
    return Told(before, after, lineage.clusters[after].name, kinds)


def in_rounds(algorithm: str, stream: Planted, pace: int) -> Told:
    """Of a model in rounds whose clients have the next `pace` readings before each time that they
    are asked."""
    harness = RoundsHarness(contract_with(algorithm, {"clusters": 3}))
    model = rounds_algorithm(algorithm)
    harness.tick(0.0)
    before = NO_CLUSTER
    for learnt in range(pace, READINGS + 1, pace):
        windows = windows_of(stream.rows[:learnt])
        for client, rows in windows.items():
            if harness.is_asked(client):
                harness.answer(client, rows)
        # By then a model that has come to rest looks at the rows again.
        harness.tick(harness.now + WAKES_AFTER_S)
        lineage = harness.model.status().lineage
        if learnt >= GONE_AT and before == NO_CLUSTER:
            before = identity_of(model.predict(harness.newest.arrays, stream.probes), lineage)
            harness.model.change_cluster(naming(before), (0, 0))
            harness.restart()
    lineage = harness.model.status().lineage
    after = identity_of(model.predict(harness.newest.arrays, stream.probes), lineage)
    events = harness.model.status().events
    kinds = [EventKind(event.kind) for event in events if event.cluster == before]
    return Told(before, after, lineage.clusters[after].name, kinds)


def windows_of(rows: Floats) -> dict[str, Floats]:
    """The newest readings of each client."""
    return {f"client-{number}": rows[number::CLIENTS][-WINDOW:] for number in range(CLIENTS)}


Way = Callable[[str, Planted, int], Told]


@pytest.mark.parametrize(
    ("way", "algorithm", "pace", "dim"),
    [
        (streamed, "cluster_tree", 500, DIM),
        (streamed, "cluster_tree", 1000, 0.0),
        (streamed, "fcac", 250, 0.0),
        (streamed, "fcac", 1000, 0.0),
        (in_rounds, "kmeans", 250, 0.0),
        (in_rounds, "kmeans", 1000, DIM),
        (in_rounds, "fcm", 250, 0.0),
        (in_rounds, "fcm", 1000, DIM),
        (in_rounds, "gmm", 250, DIM),
    ],
)
def test_a_state_that_was_away_keeps_its_number_and_name(
    way: Way, algorithm: str, pace: int, dim: float
) -> None:
    told = way(algorithm, planted(90, dim), pace)
    assert told.before != NO_CLUSTER
    assert told.after == told.before
    assert told.name == NAME
    # Weights of fcm and gmm, and nodes of fcac, may lie where the state was all the time.
    if algorithm in ("cluster_tree", "kmeans") and not dim:
        assert EventKind.RETURNED in told.events
