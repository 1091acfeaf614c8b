"""The metrics of a replica are those of a server, for each region that is assigned to it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shoal.config.sections import ServerSettings
from shoal.config.settings import Config, LogSettings
from shoal.server_node.replicas.metrics import ReplicaMetrics
from shoal.server_node.replicas.region import Region
from shoal.server_node.replicas.timers import Assignments, Timers
from shoal.transports import open_log
from shoal.transports.base import Record
from tests.server_node.replicas.test_stored_state import Kept
from tests.small_plant import an_update, plant

IDENTITY = bytes(16)
AT_ONCE = ServerSettings(pool_clients=1, snapshot_updates=1)
"""a snapshot after every update"""


class Replica:
    """What a replica has that serves some regions, without its brokers."""

    def __init__(self, *names: str) -> None:
        self.regions = {}
        for name in names:
            contract = plant().model_copy(update={"federation": name})
            config = Config(contract=contract, log=LogSettings(), server=AT_ONCE)
            region = Region(config, IDENTITY)
            self.regions[contract.updates_topic] = region
        self.timers = Timers([], lambda: open_log(LogSettings()))
        self.metrics = ReplicaMetrics(self.regions)
        self._assignments = Assignments(self.timers, self.metrics.observe)

    def assign(self, topics: Mapping[str, Mapping[int, Mapping[str, int]]]) -> None:
        """Statistics with these partitions, as the consumer gives them."""
        described = {}
        for topic, partitions in topics.items():
            about = {
                str(number): {"fetch_state": "active", **offsets}
                for number, offsets in partitions.items()
            }
            described[topic] = {"partitions": about}
        self._assignments.take_statistics(json.dumps({"topics": described}))

    def absorb(self, topic: str) -> None:
        """An update of a client."""
        contract = self.regions[topic].config.contract
        update = an_update(contract)
        key = contract.update_key("clusters")
        record = Record(topic, 0, 0, 2 * 10**12, key, update.encode(), update.headers())
        self.regions[topic].absorb(record, Kept(), self.timers)

    def value(self, name: str, **labels: str) -> float | None:
        """A sample of the metrics as Prometheus reads them; None where there is none."""
        text = generate_latest(self.metrics.registry).decode()
        samples = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and sample.labels.items() >= labels.items()
        ]
        assert len(samples) <= 1, "each series once"
        return samples[0] if samples else None


def test_regions_have_their_metrics_while_they_are_assigned() -> None:
    replica = Replica("north", "south")
    assert replica.value("shoal_build_info", process="replica") == 1
    assert replica.value("shoal_updates_total", federation="north") is None
    both = {"ls_offset": 40, "next_offset": 30, "fetchq_cnt": 2}
    assigned = {"north.updates": {0: both, 1: both}, "south.updates": {0: {}}}
    replica.assign(assigned)
    replica.absorb("north.updates")
    absorbed = {"federation": "north", "result": "absorbed"}
    assert replica.value("shoal_updates_total", **absorbed) == 1
    lag = "shoal_consumer_lag_records"
    assert replica.value(lag, federation="north", topic="north.updates") == 24
    assert replica.value(lag, federation="south") == 0
    assert replica.value("shoal_updates_total", **(absorbed | {"federation": "south"})) == 0

    of_model = {"federation": "north", "model": "clusters"}
    assert replica.value("shoal_snapshot_version", **of_model) == 1

    # The model is in partition 0 of 1: its metrics go with that.
    replica.assign({"north.updates": {1: both}})
    assert replica.value("shoal_snapshot_version", **of_model) is None
    assert replica.value(lag, federation="north") == 12
    assert replica.value(lag, federation="south") is None
    replica.assign(assigned)
    assert replica.value("shoal_snapshot_version", **of_model) == 1
    assert replica.value("shoal_updates_total", **absorbed) == 1
