"""The formats of everything that shoal keeps on a disk or in a topic, each with its number.

A number stands beside the code that writes the format, and is raised with it. This table names the
places, and `shoal --version --formats` prints the numbers: two versions that print the same read
each other's folders. Tests search the code for numbers that the table lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Final, NamedTuple

from shoal.errors import MissingExtra


class Format(NamedTuple):
    """One format."""

    kept: str
    """files that have it, or a part of a state in a checkpoint"""
    place: str
    """its number: "module:constant", or "module:Class.version" """

    @property
    def number(self) -> int | None:
        """Its number; None where the module needs an extra that is not installed."""
        module, _, path = self.place.partition(":")
        try:
            loaded = import_module(module)
        except (ModuleNotFoundError, MissingExtra):
            return None
        value: object = loaded
        for name in path.split("."):
            value = getattr(value, name)
        return int(str(value))


FORMATS: Final = {
    "Files": (
        Format(
            "embedded log: federation.db, readings.db",
            "shoal.transports.sqlite.schema:SCHEMA_VERSION",
        ),
        Format(
            "checkpoint: checkpoint.db, helper.db, upstream.db, mqtt.db, producer.SOURCE.db",
            "shoal.runtime.checkpoint:FORMAT",
        ),
        Format("ledger of privacy: ledger.db", "shoal.privacy.ledger:FORMAT"),
        Format("readings of a host: site.db", "shoal.runtime.site_readings:FORMAT"),
        Format(
            "changelog of the clients of a group's hosts: topic TOPIC.clients",
            "shoal.client_nodes.partition_state:FORMAT",
        ),
        Format("index of the history: history.db", "shoal.server_node.history.store:FORMAT"),
    ),
    "States in checkpoints": (
        Format("client", "shoal.client_nodes.node:STATE_VERSION"),
        Format("host: clients that need not be opened", "shoal.client_nodes.asleep:STATE_VERSION"),
        Format("server", "shoal.server_node.node:STATE_VERSION"),
        Format("server: a streaming model", "shoal.server_node.models.streaming:STATE_VERSION"),
        Format("server: a model in rounds", "shoal.server_node.models.rounds:STATE_VERSION"),
        Format(
            "server: memory of the policy of rounds",
            "shoal.algorithms.rounds.policies:PolicyState.version",
        ),
        Format(
            "server: rounds of masked counts",
            "shoal.server_node.ingest.masked:MaskedRoundsState.version",
        ),
        Format(
            "server: contributions to an upstream",
            "shoal.server_node.regions.contributions:STATE_VERSION",
        ),
        Format(
            "server: the snapshot of an upstream",
            "shoal.server_node.regions.following:FollowedSnapshotState.version",
        ),
        Format("bridge to an upstream", "shoal.server_node.regions.bridge:STATE_VERSION"),
        Format("replica: a region", "shoal.server_node.replicas.region_model:STATE_VERSION"),
        Format("forwarder of events", "shoal.server_node.outputs.forwarding:STATE_VERSION"),
        Format("helper", "shoal.helper_node.node:STATE_VERSION"),
        Format("producer: files", "shoal.producers.publisher:BookmarkState.version"),
        Format("producer: MQTT", "shoal.producers.mqtt.ingest:STATE_VERSION"),
        Format("producer: Kafka", "shoal.producers.kafka.bookmark:STATE_VERSION"),
    ),
    "Parts of these states": (
        Format("fcac: nodes", "shoal.algorithms.fcac.art_network:NetworkState.version"),
        Format("fcac: client", "shoal.algorithms.fcac.ca_plus:CAPlusState.version"),
        Format("fcac: server", "shoal.algorithms.fcac.caefc:CaefcState.version"),
        Format("fcac: sums of a region", "shoal.algorithms.fcac.ca_plus:AggregatorState.version"),
        Format(
            "cluster_tree: client",
            "shoal.algorithms.cluster_tree.client:ClusterTreeClientState.version",
        ),
        Format(
            "cluster_tree: server",
            "shoal.algorithms.cluster_tree.server:ClusterTreeServerState.version",
        ),
        Format(
            "cluster_tree: sums of a region",
            "shoal.algorithms.cluster_tree.region:AggregatorState.version",
        ),
        Format(
            "density_tree: server",
            "shoal.algorithms.density_tree.server:DensityTreeServerState.version",
        ),
        Format(
            "density_tree: sums of a region",
            "shoal.algorithms.density_tree.region:AggregatorState.version",
        ),
        Format("states: client", "shoal.algorithms.states.client_half:StatesClientState.version"),
        Format("states: server", "shoal.algorithms.states.server_half:StatesServerState.version"),
        Format(
            "states: sums of a region", "shoal.algorithms.states.region:AggregatorState.version"
        ),
        Format("from_counts: grid", "shoal.algorithms.from_counts.grid:GridState.version"),
        Format(
            "from_counts: in rounds", "shoal.algorithms.from_counts.rounds:DrawnRoundsState.version"
        ),
        Format(
            "from_counts: states",
            "shoal.algorithms.from_counts.states:StatesFromCountsState.version",
        ),
        Format("privacy formal", "shoal.privacy.formal:STATE_VERSION"),
        Format("privacy paper", "shoal.privacy.paper:STATE_VERSION"),
        Format("privacy off", "shoal.privacy.off:STATE_VERSION"),
        Format(
            "privacy: earlier rows, for values that are missing",
            "shoal.privacy.imperfect:EarlierRowsState.version",
        ),
        Format(
            "privacy: both mechanisms, for values that are missing",
            "shoal.privacy.imperfect:FilledGapsState.version",
        ),
    ),
    "Saved estimators": (
        Format("clients and server", "shoal.simulation.streaming:StreamingFederationState.version"),
        Format("clients that count", "shoal.simulation.counting:WindowFederationState.version"),
        Format("streaming", "shoal.estimators.streaming:EstimatorState.version"),
        Format(
            "federated, with their scale", "shoal.estimators.scaling:ScaledFederationState.version"
        ),
    ),
    "Records of topics": (
        Format("labels of readings", "shoal.protocol.labels:SCHEMA"),
        Format("messages of clients, servers and helpers", "shoal.protocol.messages:VERSION"),
        Format("events", "shoal.protocol.events:SCHEMA"),
    ),
    "Noise, which is the same for the same reading": (
        Format("of readings", "shoal.privacy.keyed:VERSION"),
        Format("of counts", "shoal.privacy.count_noise:VERSION"),
    ),
}
"""heading -> the formats below it"""


KEPT: Final = ("Files", "States in checkpoints", "Parts of these states")
"""headings of what the folders of processes hold"""


def kept_numbers() -> dict[str, int | None]:
    """The number of every format in the folders of processes; None as `Format.number` has it."""
    numbers = {}
    for heading in KEPT:
        for entry in FORMATS[heading]:
            numbers[entry.kept] = entry.number
    return numbers


def format_lines() -> Iterator[str]:
    """The table for people."""
    for heading, formats in FORMATS.items():
        yield f"{heading}:"
        for entry in formats:
            number = entry.number
            yield f"  {'-' if number is None else number:>4}  {entry.kept}"
