"""Watches which regions Kafka assigns to this replica, by the statistics that librdkafka gives."""

from __future__ import annotations

import json

from server_node.replicas.timers import Timers
from shoal.telemetry.events import log_event


class Assignments:
    """Logs every assignment, and has all models asked for their timers after it."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._newest: tuple[int, list[str]] = (0, [])

    def look(self, statistics: str) -> None:
        """Take in the newest statistics, which are JSON."""
        found = json.loads(statistics)
        rebalances = found.get("cgrp", {}).get("rebalance_cnt", 0)
        assigned = sorted(
            f"{name}/{partition}"
            for name, topic in found.get("topics", {}).items()
            for partition, about in topic["partitions"].items()
            if name.endswith(".updates") and about.get("fetch_state") == "active"
        )
        if (rebalances, assigned) == self._newest:
            return
        if assigned != self._newest[1]:
            log_event("regions_assigned", partitions=len(assigned), topics=" ".join(assigned))
        self._newest = (rebalances, assigned)
        self._timers.ask_all()
