"""The metrics of a page: those of the server that follow from what is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Metric

from shoal.telemetry.metrics import ServerMetrics, process_registry

SHOWN: Final = frozenset(
    {
        "shoal_cluster_centre",
        "shoal_cluster_event_timestamp_seconds",
        "shoal_cluster_events",
        "shoal_cluster_recent_share",
        "shoal_clusters",
        "shoal_clusters_active",
        "shoal_clusters_published",
        "shoal_edges",
        "shoal_model_epsilon",
        "shoal_models_epsilon",
        "shoal_nodes",
        "shoal_prediction_error",
        "shoal_quarantined_clients",
        "shoal_snapshot_version",
        "shoal_state_dwell_readings",
        "shoal_unknown_share",
        "shoal_unusual",
    }
)
"""the others count what a server does with updates, and would be 0 here whatever it did"""


class PageMetrics:
    """Metrics that the page sets as a server does, and a registry with those that it knows."""

    def __init__(self) -> None:
        self.server = ServerMetrics()
        self.registry: CollectorRegistry = process_registry("page")
        self.registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing: the names are those of the server."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families of `SHOWN`."""
        for family in self.server.registry.collect():
            if family.name in SHOWN:
                yield family
