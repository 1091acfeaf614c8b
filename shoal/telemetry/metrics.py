"""The Prometheus metrics of clients and the server, each declared once.

Names have base units and `_total` on counters only; no label has an unbounded number of values.
Each process has its own registry. A client's counters are derived from its readings, so only the
client itself serves them.
"""

from __future__ import annotations

import collections
import sys
import threading
from collections.abc import Callable
from typing import ClassVar, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)

from shoal import __version__

LATENCY_BUCKETS_S = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
LEARN_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


def client_info(registry: CollectorRegistry) -> Gauge:
    """The names that owners gave to clients, in the metrics of a server and of a host."""
    return Gauge(
        "shoal_client_info",
        "1, with the name that a client's owner gave it ([server.client_names]): joined by "
        "client to the other metrics of clients",
        ["client", "name"],
        registry=registry,
    )


class PutOff:
    """Work on metrics that is put off until they are read: a collector that is asked before all
    others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str], Callable[[], None]] = {}

    def put(self, metric: str, model: str, work: Callable[[], None]) -> None:
        """Do this when metrics are read next, in place of what waits for the same metric and
        model."""
        with self._lock:
            self._waiting[metric, model] = work

    def clear(self) -> None:
        """Drop all that waits."""
        with self._lock:
            self._waiting.clear()

    def describe(self) -> list[Metric]:
        """No metric of its own."""
        return []

    def collect(self) -> list[Metric]:
        """No metric of its own, once all that waits is done."""
        with self._lock:
            # Under the lock: two readers of metrics at once must not do the work twice.
            for work in self._waiting.values():
                work()
            self._waiting.clear()
        return []


class ProcessMetrics:
    """The metrics that clients and the server have in common; `process` is `client` or `server`."""

    READINGS: ClassVar[str]
    """help text of `shoal_readings_total`"""

    def __init__(self, process: str) -> None:
        self.registry = process_registry(process)
        self.readings = Counter(
            "shoal_readings",
            self.READINGS,
            ["result"],
            registry=self.registry,
        )
        self.updates = Counter(
            "shoal_updates",
            "Updates by result. Client: published; server: absorbed, repeated, rejected, "
            "quarantined, superseded (of an earlier contract, not learnt), chunk (kept until the "
            "other chunks arrive), incomplete (they will not arrive)",
            ["result"],
            registry=self.registry,
        )
        self.nodes = Gauge("shoal_nodes", "Nodes of a model", ["model"], registry=self.registry)
        self.lag = Gauge(
            "shoal_consumer_lag_records",
            "Records in a topic that are not read yet",
            ["topic"],
            registry=self.registry,
        )
        self.lost = Counter(
            "shoal_records_lost",
            "Records that retention removed before they were read, and that accept_gap skipped",
            ["topic"],
            registry=self.registry,
        )
        self.learn = Histogram(
            "shoal_learn_duration_seconds",
            "Time to learn one batch: of readings on a client, of updates on the server",
            buckets=LEARN_BUCKETS_S,
            registry=self.registry,
        )
        self.checkpoint_at = Gauge(
            "shoal_checkpoint_timestamp_seconds",
            "When the newest checkpoint was saved",
            registry=self.registry,
        )


class ClientMetrics(ProcessMetrics):
    """The metrics of one client."""

    READINGS = (
        "Readings by result: read (in all); refused (read and not released at epsilon_max); "
        "learned; clipped (moved into the bounds, and learned); rejected; withheld; repeated "
        "(read again after an error, counted as read once). All but read, refused and repeated "
        "are made from raw readings"
    )

    def __init__(self, on_site: bool = True) -> None:
        """`on_site`: only the client's own site reaches them; otherwise no count made from raw
        readings is among them.

        Counts made from raw readings are those of rejected, withheld, clipped, learned and novel
        ones, and of site events.
        """
        super().__init__("client")
        self.on_site = on_site
        self.counted: collections.Counter[str] = collections.Counter()
        """result -> readings counted so far; a node that is rebuilt after an error continues from
        here"""
        self.novel_counted: collections.Counter[str] = collections.Counter()
        """model -> novel readings counted so far"""
        self.rejected_counted: collections.Counter[tuple[str, str]] = collections.Counter()
        """(reason, feature) -> rejected readings counted so far"""
        self.readings_rejected = Counter(
            "shoal_readings_rejected",
            "Readings that cannot be learnt, by reason and by the feature that has the fault; "
            "made from raw readings",
            ["reason", "feature"],
            registry=self.registry,
        )
        self.readings_novel = Counter(
            "shoal_readings_novel",
            "Labelled readings whose novelty is at least novelty_quantile",
            ["model"],
            registry=self.registry,
        )
        self.site_events = Counter(
            "shoal_site_events",
            "Site events by kind, and by feature where they are of one; made from raw readings",
            ["kind", "feature"],
            registry=self.registry,
        )
        self.readings_clipped = Counter(
            "shoal_readings_clipped",
            "Readings outside the bounds of a feature, moved to them; made from raw readings",
            ["feature"],
            registry=self.registry,
        )
        self.values_missing = Counter(
            "shoal_values_missing",
            'Readings that are learnt without a value of a feature, with missing = "learn"; made '
            "from raw readings",
            ["feature"],
            registry=self.registry,
        )
        self.event_time_lag = Gauge(
            "shoal_event_time_lag_seconds",
            "Age of the newest reading that was learned",
            registry=self.registry,
        )
        self.epsilon_spent = Gauge(
            "shoal_privacy_epsilon_spent",
            "Epsilon spent on each privacy unit, such as a reading, computed from the noise "
            "tables in use",
            registry=self.registry,
        )
        self.epsilon_limit = Gauge(
            "shoal_privacy_epsilon_limit",
            "Epsilon that the contract allows for each privacy unit; infinite without a guarantee",
            registry=self.registry,
        )
        self.guarantee = Gauge(
            "shoal_privacy_guarantee_info",
            "The privacy mode, its unit and its mechanism",
            ["mode", "unit", "mechanism"],
            registry=self.registry,
        )


MASKED_RESULTS: Final = ("closed", "absorbed", "void", "checked")


class ServerMetrics(ProcessMetrics):
    """The metrics of the server."""

    READINGS = (
        "Readings behind updates of streaming models by result: learned; repeated (behind updates "
        "that were published twice and dropped, or read again after an error). Of models that "
        "learn from counts, rejected readings are among them"
    )

    def __init__(self) -> None:
        super().__init__("server")
        self.put_off = PutOff()
        self.registry.register(self.put_off)
        self.counted: dict[int, int] = {}
        """partition -> newest offset counted; a node that is rebuilt after an error reads some
        records again"""
        self.partial_updates = Gauge(
            "shoal_partial_updates",
            "Updates that still miss some of their chunks",
            registry=self.registry,
        )
        self.quarantined = Gauge(
            "shoal_quarantined_clients",
            "Clients that a model absorbs nothing from (shoal quarantine list)",
            registry=self.registry,
        )
        self.masked_rounds = Counter(
            "shoal_masked_rounds",
            "Rounds of masked counts by result: closed (helpers are asked), absorbed, void (no "
            "sum of counts), checked (of invented clients, for the helpers)",
            ["result"],
            registry=self.registry,
        )
        # Series begin at 0, so that Prometheus sees the first increment as one.
        for result in MASKED_RESULTS:
            self.masked_rounds.labels(result=result)
        self.helpers_awaited = Gauge(
            "shoal_helpers_awaited",
            "Helpers whose sums closed rounds wait for",
            registry=self.registry,
        )
        self.helpers_wrong = Gauge(
            "shoal_helpers_wrong",
            "Helpers with wrong sums or too little noise, by the newest check: no round with "
            "clients ends meanwhile",
            registry=self.registry,
        )
        self.places_used = Gauge(
            "shoal_clients_max_used_ratio",
            "Share of the places for clients (clients_max) that are taken; 0 where [server] "
            "clients names them",
            registry=self.registry,
        )
        self.region_clients = Gauge(
            "shoal_region_clients",
            "Clients of a region, without those of the regions below it, as its newest update says",
            ["region"],
            registry=self.registry,
        )
        self.copied = Counter(
            "shoal_copied_clients",
            "Pairs of processes found to publish as one client",
            registry=self.registry,
        )
        self.clusters = Gauge(
            "shoal_clusters", "Known clusters of a model", ["model"], registry=self.registry
        )
        self.clusters_active = Gauge(
            "shoal_clusters_active",
            "Known clusters to which readings fall at present",
            ["model"],
            registry=self.registry,
        )
        self.clusters_published = Gauge(
            "shoal_clusters_published",
            "Clusters as the algorithm counts them in its newest snapshot; for FCAC single nodes "
            "are among them",
            ["model"],
            registry=self.registry,
        )
        self.cluster_recent_share = Gauge(
            "shoal_cluster_recent_share",
            "Share of the recent readings of a model that fell to a known cluster, 0 to 1, a "
            "reading counting less the more came after it; the 100 largest clusters",
            ["model", "cluster", "name"],
            registry=self.registry,
        )
        self.state_dwell = Gauge(
            "shoal_state_dwell_readings",
            "Mean dwell in a known cluster that is a state, in readings of a client; those 100 "
            "clusters",
            ["model", "cluster", "name"],
            registry=self.registry,
        )
        self.cluster_centre = Gauge(
            "shoal_cluster_centre",
            "Centre of a known cluster in a feature, in the unit of the feature; those 100 "
            "clusters, and the first 16 features",
            ["model", "cluster", "name", "feature", "unit"],
            registry=self.registry,
        )
        self.cluster_event_at = Gauge(
            "shoal_cluster_event_timestamp_seconds",
            "When a known cluster was born, parted, merged or ended, with the event in words; the "
            "newest 50 of a model",
            ["model", "event", "cluster", "text"],
            registry=self.registry,
        )
        self.unknown_share = Gauge(
            "shoal_unknown_share",
            "Share of the readings of the newest 5 minutes of a model's history that fell to no "
            "known cluster, 0 to 1",
            ["model"],
            registry=self.registry,
        )
        self.unusual = Gauge(
            "shoal_unusual",
            "Whether the shares of a model's clusters are unusual for the time of day: 1 or 0",
            ["model"],
            registry=self.registry,
        )
        self.model_epsilon = Gauge(
            "shoal_model_epsilon",
            "Epsilon that the contract guarantees for a model, of each unit; infinite without a "
            "guarantee",
            ["model", "unit"],
            registry=self.registry,
        )
        self.epsilon = Gauge(
            "shoal_models_epsilon",
            "Epsilon that the contract guarantees for all models together; those that share noisy "
            "rows or counts count once",
            registry=self.registry,
        )
        self.prediction_error = Gauge(
            "shoal_prediction_error",
            "Root of the mean squared error of a model's predictions over the rows behind the "
            "newest answers, in the unit of its target",
            ["model"],
            registry=self.registry,
        )
        self.edges = Gauge("shoal_edges", "Edges of a model", ["model"], registry=self.registry)
        self.cluster_events = Counter(
            "shoal_cluster_events",
            "Events of known clusters, by kind",
            ["model", "event"],
            registry=self.registry,
        )
        self.version = Gauge(
            "shoal_snapshot_version",
            "Version of the newest snapshot of a model, 0 before the first",
            ["model"],
            registry=self.registry,
        )
        self._describe_rejected()
        self._describe_clients()
        self.margin = Gauge(
            "shoal_retention_margin_records",
            "Records already read that the log still keeps; below 0, records are lost before they "
            "are read",
            ["topic"],
            registry=self.registry,
        )
        self.latency = Histogram(
            "shoal_end_to_end_latency_seconds",
            "Time from the creation of an update to the snapshot that contains it",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.round_duration = Histogram(
            "shoal_round_duration_seconds",
            "Time from a round request to the end of its round",
            ["algorithm"],
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.round = Gauge(
            "shoal_round_number",
            "Newest round of a model that has closed",
            ["model"],
            registry=self.registry,
        )
        self.round_counted = Gauge(
            "shoal_round_counted_answers",
            "Answers that counted in the newest closed round of a model",
            ["model"],
            registry=self.registry,
        )
        self.round_shift = Gauge(
            "shoal_round_shift",
            "How far the newest closed round moved the model's parameters",
            ["model"],
            registry=self.registry,
        )
        self.round_opened_at = Gauge(
            "shoal_round_opened_timestamp_seconds",
            "Since when a model waits for a round to close; 0 while none is open",
            ["model"],
            registry=self.registry,
        )
        self.rounds_failed = Counter(
            "shoal_rounds_failed",
            "Rounds whose answers could not be combined, though each was valid",
            ["model"],
            registry=self.registry,
        )
        self.round_answers = Counter(
            "shoal_round_answers",
            "Answers to round requests by result: in_time, late (counted with decay), too_late, "
            "repeated",
            ["model", "result"],
            registry=self.registry,
        )

    def _describe_rejected(self) -> None:
        self.rejected = Counter(
            "shoal_rejected_messages",
            "Rejected messages by reason",
            ["reason"],
            registry=self.registry,
        )
        self.rejected_not_kept = Counter(
            "shoal_rejected_messages_not_kept",
            "Rejected messages of which no copy is kept, as there are more than "
            "rejected_kept_per_s, by reason",
            ["reason"],
            registry=self.registry,
        )

    def _describe_clients(self) -> None:
        """Metrics that each client has its own value of."""
        self.last_seen = Gauge(
            "shoal_client_last_seen_timestamp_seconds",
            "When the newest update of a client was read; kept over a restart of the server",
            ["client"],
            registry=self.registry,
        )
        self.client_info = client_info(self.registry)
        self.client_unlikeness = Gauge(
            "shoal_client_unlikeness",
            "Total variation distance of a client's shares of clusters to those of the most "
            "similar other client at the same hours, 0 to 1: of the three days up to the newest",
            ["model", "client"],
            registry=self.registry,
        )


def process_registry(process: str) -> CollectorRegistry:
    """A registry with what every process shows: its memory, CPU time and version."""
    # A creation time beside each counter would double the number of series and no dashboard or
    # alert needs it.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's own omission
    registry = CollectorRegistry()
    # Memory and CPU time of the process, under the standard names.
    ProcessCollector(registry=registry)
    python = ".".join(map(str, sys.version_info[:3]))
    Info("shoal_build", "Version of shoal", registry=registry).info(
        {"version": __version__, "python": python, "process": process}
    )
    return registry
