"""The HTTP endpoints of a process without a page: whether its loop runs, and its metrics."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from shoal.errors import SettingsError
from shoal.runtime.health import serve
from shoal.runtime.service import LIVE_S, Heartbeat
from shoal.telemetry.metrics import ClientMetrics


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@contextmanager
def served(heartbeat: Heartbeat, metrics: ClientMetrics) -> Iterator[str]:
    web = serve("127.0.0.1", 0, metrics.registry, heartbeat)
    try:
        yield f"http://127.0.0.1:{web.server_port}"
    finally:
        web.shutdown()
        web.server_close()


def fetched(address: str) -> tuple[int, str]:
    try:
        with urlopen(address) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as rejected:
        with rejected:
            return rejected.code, rejected.read().decode()


def test_a_client_is_alive_while_its_loop_runs(clock: Clock) -> None:
    heartbeat = Heartbeat(clock)
    with served(heartbeat, ClientMetrics()) as client:
        assert fetched(f"{client}/livez") == (200, "alive\n")
        clock.now += LIVE_S
        assert fetched(f"{client}/livez") == (503, f"no step for {LIVE_S:.0f} s\n")
        heartbeat.beat()
        assert fetched(f"{client}/livez") == (200, "alive\n")


def test_the_metrics_are_served(clock: Clock) -> None:
    metrics = ClientMetrics()
    metrics.lag.labels(topic="readings").set(17)
    with served(Heartbeat(clock), metrics) as client:
        status, text = fetched(f"{client}/metrics")
    assert status == 200
    assert 'shoal_consumer_lag_records{topic="readings"} 17.0' in text


def test_a_port_in_use_raises(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            SettingsError, match=f"metrics at host 127.0.0.1, port {port}: .* choose others"
        ):
            serve("127.0.0.1", port, ClientMetrics().registry, Heartbeat(clock))


def test_an_unknown_host_raises(clock: Clock) -> None:
    with pytest.raises(SettingsError, match=r"metrics at host nowhere\.invalid"):
        serve("nowhere.invalid", 0, ClientMetrics().registry, Heartbeat(clock))
