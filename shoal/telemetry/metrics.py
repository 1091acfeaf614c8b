"""The Prometheus names, once. Base units, `_total` on counters only, no label that can grow without bound.

Each process has one registry of its own. A client's counters are derived from readings, so they are
served on its own premises only.
"""

from __future__ import annotations

import collections
import math
import sys
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)

from shoal import __version__

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
LEARN_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class ClientMetrics:
    """What one client counts."""

    def __init__(self) -> None:
        self.registry = _registry("client")
        self.readings = Counter("shoal_readings", "Readings by what became of them", ["result"], registry=self.registry)
        self.counted: collections.Counter[str] = collections.Counter()
        """readings counted so far by result; a node that is built again after an error goes on from here"""
        self.updates = Counter("shoal_updates", "Updates by what became of them", ["result"], registry=self.registry)
        self.nodes = Gauge("shoal_nodes", "Nodes of a model on this client", ["model"], registry=self.registry)
        self.lag = Gauge("shoal_consumer_lag_records", "Records not read yet", ["topic"], registry=self.registry)
        self.learn = Histogram(
            "shoal_learn_duration_seconds",
            "Time to make one batch private and learn it",
            buckets=LEARN_BUCKETS_S,
            registry=self.registry,
        )
        self.behind = Gauge(
            "shoal_event_time_lag_seconds", "How far the newest reading learnt lies in the past", registry=self.registry
        )
        self.epsilon = Gauge(
            "shoal_privacy_epsilon_spent",
            "Epsilon spent on each reading, from the noise tables in force (noised once, it does not grow)",
            registry=self.registry,
        )
        self.epsilon_limit = Gauge(
            "shoal_privacy_epsilon_limit",
            "Epsilon that the contract allows each reading to cost; infinite where it guarantees nothing",
            registry=self.registry,
        )
        self.checkpoint_at = _checkpoint_at(self.registry)
        self.guarantee = Gauge(
            "shoal_privacy_guarantee_info",
            "The privacy in force",
            ["mode", "unit", "mechanism"],
            registry=self.registry,
        )

    def watch_event_time(self, clock: Callable[[], float], newest_at: Callable[[], float | None]) -> None:
        """The lag is asked for when somebody looks: it grows while nothing comes. NaN while nobody knows."""

        def lag_s() -> float:
            newest = newest_at()
            return math.nan if newest is None else clock() - newest

        self.behind.set_function(lag_s)


class ServerMetrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.registry = _registry("server")
        self.counted: dict[int, int] = {}
        """partition -> newest record counted; a node that is built again after an error hears some once more"""
        self.updates = Counter("shoal_updates", "Updates by what became of them", ["result"], registry=self.registry)
        self.waiting = Gauge(
            "shoal_updates_waiting", "Updates of which some chunks are still to come", registry=self.registry
        )
        self.rejected = Counter("shoal_rejected", "Messages set aside, by reason", ["reason"], registry=self.registry)
        self.readings = Counter("shoal_readings", "Readings behind the updates", ["result"], registry=self.registry)
        self.clusters = Gauge("shoal_clusters", "Clusters of a model", ["model"], registry=self.registry)
        self.nodes = Gauge("shoal_nodes", "Nodes of a model", ["model"], registry=self.registry)
        self.edges = Gauge("shoal_edges", "Edges of a model", ["model"], registry=self.registry)
        self.cluster_events = Counter(
            "shoal_cluster_events",
            "Clusters that came and went between snapshots",
            ["model", "event"],
            registry=self.registry,
        )
        self.version = Gauge(
            "shoal_snapshot_version",
            "Newest snapshot of a model, 0 before the first",
            ["model"],
            registry=self.registry,
        )
        self.last_seen = Gauge(
            "shoal_client_last_seen_timestamp_seconds",
            "When a client was last heard",
            ["client"],
            registry=self.registry,
        )
        self.lag = Gauge("shoal_consumer_lag_records", "Records not read yet", ["topic"], registry=self.registry)
        self.margin = Gauge(
            "shoal_retention_margin_records",
            "Records read that the log still keeps: before one is lost unread, so many go",
            ["topic"],
            registry=self.registry,
        )
        self.learn = Histogram(
            "shoal_learn_duration_seconds", "Time to absorb one batch", buckets=LEARN_BUCKETS_S, registry=self.registry
        )
        self.latency = Histogram(
            "shoal_end_to_end_latency_seconds",
            "From an update made to the snapshot that holds it",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.round_duration = Histogram(
            "shoal_round_duration_seconds",
            "From a call to its close",
            ["algorithm"],
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.round = Gauge("shoal_round", "Newest round of a model that closed", ["model"], registry=self.registry)
        self.round_answers = Gauge(
            "shoal_round_answers", "Answers counted in that round", ["model"], registry=self.registry
        )
        self.answers = Counter(
            "shoal_answers",
            "Answers to calls: in_time, late (used with decay), too_late, repeated",
            ["model", "result"],
            registry=self.registry,
        )
        self.shift = Gauge("shoal_model_shift", "How far that round moved it", ["model"], registry=self.registry)
        self.checkpoint_at = _checkpoint_at(self.registry)


def _checkpoint_at(registry: CollectorRegistry) -> Gauge:
    return Gauge("shoal_checkpoint_timestamp_seconds", "When the newest checkpoint was saved", registry=registry)


def _registry(process: str) -> CollectorRegistry:
    # The time a counter began would double the number of series and tell nobody anything.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's own omission
    registry = CollectorRegistry()
    # Memory and processor time of the process, under the names that everybody's dashboards know.
    ProcessCollector(registry=registry)
    python = ".".join(map(str, sys.version_info[:3]))
    Info("shoal_build", "Version of shoal", registry=registry).info(
        {"version": __version__, "python": python, "process": process}
    )
    return registry
