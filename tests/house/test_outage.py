"""The broker is away while readings continue: they wait in each client's readings log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shoal.config.settings import load_config
from tests.house.federation_processes import (
    check_exactly_once,
    finish,
    have_published,
    keep_feeding,
    prepare_federation,
    start_all,
    stored_range,
    wait_for_updates,
)
from tests.house.processes import killed_on_exit, wait_until
from tests.house.small_federation import CLIENTS
from tests.kafka_broker import Broker

READINGS_PER_S = 240
"""of all clients together"""
MEMORY_GROWS_MAX = 1.5


@pytest.mark.integration
@pytest.mark.parametrize("outage_s", [60.0])
def test_readings_wait_for_a_broker_that_is_away_and_the_model_is_the_same(
    own_broker: Broker, tmp_path: Path, outage_s: float
) -> None:
    file = prepare_federation(tmp_path, f"kafka://{own_broker.bootstrap}")
    config = load_config(file)
    processes = start_all(file, READINGS_PER_S)
    server, *clients, _ = processes
    with killed_on_exit(processes):
        wait_until(lambda: have_published(clients))
        before = {process: process.resident_bytes() for process in (server, *clients)}
        most = dict(before)
        stored = {client: stored_range(config, client)[1] for client in CLIENTS}
        own_broker.stop()
        until = time.monotonic() + outage_s
        while time.monotonic() < until or any(
            stored_range(config, c)[1] <= stored[c] + 100 for c in CLIENTS
        ):
            time.sleep(0.5)
            keep_feeding(processes, file)
            most = {process: max(seen, process.resident_bytes()) for process, seen in most.items()}
        assert all(process.running() for process in (server, *clients))
        own_broker.start()
        wait_for_updates(processes, file)
        finish(processes, tmp_path)
    for process, seen in most.items():
        assert seen < MEMORY_GROWS_MAX * before[process], process.arguments
    check_exactly_once(file, tmp_path)
