"""The metrics of one helper."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class HelperMetrics:
    """The metrics of one helper."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.messages = Counter(
            "shoal_helper_messages",
            "Masked counts read, by result",
            ["result"],
            registry=self.registry,
        )
        self.rounds = Counter(
            "shoal_helper_rounds",
            "Ends of rounds by result",
            ["model", "result"],
            registry=self.registry,
        )
        self.clients = Gauge(
            "shoal_helper_clients",
            "Clients of the newest batch answered",
            ["model"],
            registry=self.registry,
        )
        self.checkpoint_at = Gauge(
            "shoal_helper_checkpoint_timestamp_seconds",
            "When the newest checkpoint was saved",
            registry=self.registry,
        )
