"""The broker is away for longer than a readings log lasts: the oldest readings are removed, and the
loss is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.runtime.service import resumed
from tests.house import federation_processes
from tests.house.federation_processes import have_published, stored_range
from tests.house.processes import killed_on_exit, wait_until
from tests.house.small_federation import CLIENTS
from tests.kafka_broker import Broker

READINGS_BYTES = 45_000
"""about 400 readings of one client"""
PART_READINGS = 350
"""readings of each client in one file for the producer: none of the first file is removed, however
long a client takes to start"""
LOG_ERROR = 4


def test_a_full_readings_log_drops_the_oldest_readings_and_a_client_names_how_many_it_missed(
    own_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_processes, "PART_READINGS", PART_READINGS)
    file = federation_processes.prepare_federation(tmp_path, f"kafka://{own_broker.bootstrap}")
    text = file.read_text(encoding="utf-8").replace(
        "label = true", f"readings_bytes_max = {READINGS_BYTES}"
    )
    file.write_text(text, encoding="utf-8")
    lenient = file.with_name("lenient.toml")
    lenient.write_text(text.replace("[server]", "accept_gap = true\n[server]"), encoding="utf-8")
    config = load_config(file)
    processes = federation_processes.start_all(file)
    with killed_on_exit(processes):
        strict_client, lenient_client, _ = processes[1:-1]
        lenient_client.kill()
        lenient_client.arguments[lenient_client.arguments.index(str(file))] = str(lenient)
        processes[2] = lenient_client = lenient_client.restarted()
        wait_until(lambda: have_published([strict_client, lenient_client]))
        processes[-1].end()
        assert [stored_range(config, client) for client in CLIENTS] == [(0, PART_READINGS)] * 3
        own_broker.stop()

        def lost_some() -> bool:
            federation_processes.keep_feeding(processes, file)
            return all(stored_range(config, client)[0] > PART_READINGS for client in CLIENTS)

        wait_until(lost_some)
        own_broker.start()
        assert strict_client.wait() == LOG_ERROR
        processes[-1].end()
        wait_until(lambda: "records_lost=" in lenient_client.log_text())
        assert lenient_client.stop() == 0
        lenient_client.arguments += federation_processes.FINISH
        processes[2] = lenient_client = lenient_client.restarted()
        lenient_client.end()
    total = federation_processes.readings_each(file)
    gone = re.search(r"(\d+) records are lost", strict_client.log_text())
    assert gone is not None
    assert int(gone[1]) > 0
    lost = sum(map(int, re.findall(r"records_lost=(\d+)", lenient_client.log_text())))
    assert lost > 0
    with resumed(open_client(load_config(lenient), CLIENTS[1])) as node:
        assert node.totals["learned"] == total - lost
    for client in CLIENTS:
        first, end = stored_range(config, client)
        assert end == total, "the producer does not wait for clients"
        assert end - first < READINGS_BYTES / 80
