"""A federation of cluster_tree clients reports what becomes of clusters: births, quiet and returned
ones, merges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.protocol.events import ClusterEventMessage
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from tests.house.small_federation import all_records, clock, write_federation, write_readings

CLIENTS = ("attic", "cellar")
COLD = np.array([5.0, 80.0])
MILD = np.array([20.0, 50.0])
HOT = np.array([30.0, 50.0])
STEP = 250
"""readings of each client between two runs of the server"""
Happened = tuple[str, int, int | None]
"""kind of the event, identity, other identity"""


class Plant:
    """A running federation, to which readings are added in phases."""

    def __init__(self, config: Config, stack: ExitStack) -> None:
        self._config = config
        self._nodes = [
            stack.enter_context(resumed(open_client(config, name, clock=clock))) for name in CLIENTS
        ]
        self.server: ServerNode = stack.enter_context(resumed(open_server(config, clock=clock)))
        self._random = np.random.default_rng(0)
        self._seen = 0

    def learn(
        self, readings: int, centres: list[np.ndarray], until: list[np.ndarray] | None = None
    ) -> list[Happened]:
        """The events while clients learn so many readings in all around these centres, which move
        to `until`."""
        steps = readings // (STEP * len(CLIENTS))
        for step in range(steps):
            way = (step + 1) / steps
            now = np.array(centres) * (1 - way) + np.array(until or centres) * way
            for client in CLIENTS:
                rows = now[self._random.integers(len(now), size=STEP)]
                write_readings(
                    self._config, client, rows + self._random.normal(size=rows.shape) * [1.0, 1.5]
                )
            for node in [*self._nodes, self.server]:
                while node.step():
                    pass
        return self._new_events()

    def _new_events(self) -> list[Happened]:
        records = all_records(self._config.log.address, self._config.contract.events_topic)
        new = records[self._seen :]
        self._seen = len(records)
        events = [ClusterEventMessage.decode(record.value) for record in new]
        return [
            (event.kind, event.cluster, event.other)
            for event in events
            if event.kind != "share_moved"
        ]

    def identity_at(self, point: np.ndarray) -> int:
        """The identity of the cluster nearest to a point in the units of the contract."""
        model = self.server.models()["clusters"]
        low = np.array([-10.0, 0.0])
        high = np.array([50.0, 100.0])
        assert model.view is not None
        number = int(
            ((model.view.centres - (point - low) / (high - low)) ** 2).sum(axis=1).argmin()
        )
        return model.lineage.of_number[number]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    file = write_federation(tmp_path, publish_readings=STEP, batch_readings_max=500, pool_clients=2)
    file.write_text(
        file.read_text(encoding="utf-8").replace('"fcac"', '"cluster_tree"'), encoding="utf-8"
    )
    with ExitStack() as stack:
        yield Plant(load_config(file), stack)


def test_births_rests_returns_and_merges_are_reported_under_the_identities_of_the_algorithm(
    plant: Plant,
) -> None:
    first = plant.learn(2000, [COLD, MILD])
    assert {kind for kind, _, _ in first} <= {"birth", "parted"}
    cold = plant.identity_at(COLD)
    mild = plant.identity_at(MILD)
    assert cold != mild

    born = plant.learn(1500, [COLD, MILD, HOT])
    hot = plant.identity_at(HOT)
    assert born == [("birth", hot, None)]

    assert plant.learn(4000, [MILD, HOT]) == [("quiet", cold, None)]
    assert plant.identity_at(COLD) == cold
    assert plant.learn(1000, [COLD, MILD, HOT]) == [("returned", cold, None)]

    middle = (MILD + HOT) / 2
    events = plant.learn(4000, [MILD, HOT, COLD], until=[middle, middle, COLD])
    events += plant.learn(4000, [middle, middle, COLD])
    ((kind, ended, into),) = events
    assert (kind, {ended, into}) == ("merged", {mild, hot})
    assert plant.identity_at(middle) == into
    assert plant.identity_at(COLD) == cold
