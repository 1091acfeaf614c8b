"""The metrics of a host: sums over its clients, and the ten that are furthest behind."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from shoal.client_nodes.monitoring import READING_RESULTS
from shoal.telemetry.metrics import client_info

if TYPE_CHECKING:
    from shoal.client_nodes.hosted_client import HostedClient

RECORD_RESULTS: Final = ("taken_in", "refused", "other", "elsewhere", "nameless", "unreadable")
"""what becomes of a record of the log of a site; the last depends on what is in it"""
WORST: Final = 10
"""clients that have a series of their own: a series of each would be one for every device"""


class HostMetrics:
    """The metrics of one host."""

    def __init__(self, on_site: bool = True, client_names: Mapping[str, str] | None = None) -> None:
        """`on_site`: only the host's own site can read them, so that counts made from raw readings
        may be among them. `client_names`: those that owners gave, by client."""
        self._client_names = client_names or {}
        self.registry = CollectorRegistry()
        self._results = READING_RESULTS if on_site else ("read",)
        self._counted: dict[str, Mapping[str, int]] = {}
        """client -> its totals, as far as they are counted"""
        self.clients = Gauge(
            "shoal_host_clients",
            "Clients of a host by state: open, away (silent, and closed until their next reading),"
            " waiting (an outage, or no contract yet), left_out (an error that needs a person),"
            " refused (beyond clients_max)",
            ["state"],
            registry=self.registry,
        )
        self.readings = Counter(
            "shoal_host_readings",
            "Readings of all clients of a host by result, since it was started",
            ["result"],
            registry=self.registry,
        )
        self.updates = Counter(
            "shoal_host_updates",
            "Updates that the clients of a host have published, since it was started",
            registry=self.registry,
        )
        self.lag = Gauge(
            "shoal_host_lag_records",
            "Readings of all clients of a host that wait in their logs",
            registry=self.registry,
        )
        self.worst = Gauge(
            "shoal_host_worst_lag_records",
            "Readings that wait, of the ten clients of a host with the most",
            ["client"],
            registry=self.registry,
        )
        self.client_info = client_info(self.registry)
        self.records = Counter(
            "shoal_host_records",
            "Records of the log of a site, which has the readings of all its clients, by result:"
            " taken_in, refused (a client beyond clients_max), other (a client that this host is"
            " not named), elsewhere (a client that another host has), nameless, unreadable (a"
            " message that makes no reading)",
            ["result"],
            registry=self.registry,
        )
        self.records_waiting = Gauge(
            "shoal_host_records_waiting",
            "Records of the log of a site that a host has not taken in yet",
            registry=self.registry,
        )
        self.partitions = Gauge(
            "shoal_host_partitions",
            "Partitions of the readings of a site whose clients a host of a group has at present",
            registry=self.registry,
        )
        self.partitions_moved = Counter(
            "shoal_host_partitions_moved",
            "Partitions that a host of a group has gained or lost since it was started",
            ["change"],
            registry=self.registry,
        )
        self.takeover_seconds = Gauge(
            "shoal_host_takeover_seconds",
            "Seconds in which a host of a group has restored the clients of the partition that it"
            " gained last",
            registry=self.registry,
        )
        self._moved_counted: dict[str, int] = {}
        self._record_results = RECORD_RESULTS if on_site else RECORD_RESULTS[:-1]
        self._records_counted: dict[str, int] = {}
        for result in self._results:
            self.readings.labels(result=result).inc(0)

    def show(
        self, clients: Mapping[str, HostedClient], refused: int, lags: Mapping[str, int] | None
    ) -> None:
        """Show the state after a step. `lags`: of each client; None: those of before."""
        states = {"open": 0, "away": 0, "waiting": 0, "left_out": 0, "refused": refused}
        new = dict.fromkeys((*self._results, "updates"), 0)
        for client in clients.values():
            states[_state_of(client)] += 1
            self._count(client, new)
        for result in self._results:
            self.readings.labels(result=result).inc(new[result])
        self.updates.inc(new["updates"])
        for state, number in states.items():
            self.clients.labels(state=state).set(number)
        if lags is None:
            return
        self.lag.set(sum(lags.values()))
        self.worst.clear()
        self.client_info.clear()
        for name in heapq.nlargest(WORST, lags, key=lags.__getitem__):
            if not lags[name]:
                continue
            self.worst.labels(client=name).set(lags[name])
            if name in self._client_names:
                self.client_info.labels(client=name, name=self._client_names[name]).set(1)

    def show_site(self, records: Mapping[str, int], waiting: int | None) -> None:
        """Show what became of the records of a site's log since the host was started, and how many
        wait there; None: as many as before."""
        for result in self._record_results:
            number = records.get(result, 0)
            new = number - self._records_counted.get(result, 0)
            self.records.labels(result=result).inc(new)
            self._records_counted[result] = number
        if waiting is not None:
            self.records_waiting.set(waiting)

    def show_partitions(self, partitions: int, moved: Mapping[str, int], takeover_s: float) -> None:
        """Show the partitions of a host of a group, and how many were gained and lost since its
        start."""
        self.partitions.set(partitions)
        for change in ("gained", "lost"):
            new = moved.get(change, 0) - self._moved_counted.get(change, 0)
            self.partitions_moved.labels(change=change).inc(new)
            self._moved_counted[change] = moved.get(change, 0)
        self.takeover_seconds.set(takeover_s)

    def _count(self, client: HostedClient, new: dict[str, int]) -> None:
        """Add to `new`, of each total, what this client has that was not counted yet."""
        totals = client.totals
        counted = self._counted.get(client.name, client.totals_before)
        # Most of thousands of clients have made no step since: a step makes new totals.
        if counted is None or counted is totals:
            return
        reached: Mapping[str, int] = totals
        for name in new:
            increase = totals[name] - counted[name]
            new[name] += max(0, increase)
            if increase < 0:
                # A client that was opened again reads what it had not stored once more: that counts
                # once.
                reached = {name: max(totals[name], counted[name]) for name in totals}
        self._counted[client.name] = reached


def _state_of(client: HostedClient) -> str:
    if client.failure is not None:
        return "left_out"
    if client.is_open:
        return "open"
    return "away" if client.is_away else "waiting"
