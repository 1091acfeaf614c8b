"""The broker is away for a minute while readings go on: they wait in each client's spool, up to its limit."""

from __future__ import annotations

import os
import time
from pathlib import Path

from shoal.config.settings import load_config
from tests.house.processes import none_left_over, wait_until
from tests.house.small_federation import CLIENTS
from tests.house.whole_house import (
    at_work,
    check_nothing_lost_and_nothing_twice,
    every_reading_came_once,
    finish,
    spooled,
    start_all,
    whole_house,
)
from tests.kafka_broker import Broker

OUTAGE_S = 60.0 if os.environ.get("CI") else float(os.environ.get("SHOAL_OUTAGE_S", "60"))
"""who is in a hurry on a machine of their own may shorten it; where all tests must run, it is a minute"""
READINGS_PER_S = 120
"""of all clients: they last longer than the outage does"""
MEMORY_GROWS_MAX = 1.5


def test_readings_wait_for_a_broker_that_is_away_for_a_minute_and_the_model_is_the_same(
    own_broker: Broker, tmp_path: Path
) -> None:
    file = whole_house(tmp_path, f"kafka://{own_broker.bootstrap}")
    config = load_config(file)
    processes = start_all(file, READINGS_PER_S)
    server, *clients, _ = processes
    with none_left_over(processes):
        wait_until(lambda: at_work(clients))
        before = {process: process.resident_bytes() for process in (server, *clients)}
        most = dict(before)
        came = {client: spooled(config, client)[1] for client in CLIENTS}
        own_broker.stop()
        until = time.monotonic() + OUTAGE_S
        while time.monotonic() < until:
            time.sleep(0.5)
            most = {process: max(seen, process.resident_bytes()) for process, seen in most.items()}
        assert all(process.running() for process in processes)
        assert all(spooled(config, client)[1] > came[client] + 100 for client in CLIENTS), "readings did not go on"
        assert not every_reading_came_once(config), "the outage outlasted the readings"
        own_broker.start()
        finish(processes, tmp_path)
    for process, seen in most.items():
        assert seen < MEMORY_GROWS_MAX * before[process], process.words
    check_nothing_lost_and_nothing_twice(file, tmp_path)
