"""The broker is away for longer than a readings log lasts: the oldest readings are removed, and the
loss is named."""

from __future__ import annotations

import re
from pathlib import Path

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.runtime.service import resumed
from tests.house.federation_processes import (
    have_published,
    keep_feeding,
    prepare_federation,
    readings_each,
    start_all,
    stored_range,
)
from tests.house.processes import killed_on_exit, wait_until
from tests.house.small_federation import CLIENTS
from tests.kafka_broker import Broker

READINGS_PER_S = 150
"""of all clients together"""
READINGS_BYTES = 45_000
"""about eight seconds of the readings of one client"""
LOG_ERROR = 4


def test_a_full_readings_log_drops_the_oldest_readings_and_a_client_names_how_many_it_missed(
    own_broker: Broker, tmp_path: Path
) -> None:
    file = prepare_federation(tmp_path, f"kafka://{own_broker.bootstrap}")
    text = file.read_text(encoding="utf-8").replace(
        "label = true", f"readings_bytes_max = {READINGS_BYTES}"
    )
    file.write_text(text, encoding="utf-8")
    lenient = file.with_name("lenient.toml")
    lenient.write_text(text.replace("[server]", "accept_gap = true\n[server]"), encoding="utf-8")
    config = load_config(file)
    processes = start_all(file, READINGS_PER_S)
    with killed_on_exit(processes):
        processes[-1].kill()  # no reading may be dropped while a client starts
        strict_client, lenient_client, _ = processes[1:-1]
        lenient_client.kill()
        lenient_client.arguments[lenient_client.arguments.index(str(file))] = str(lenient)
        lenient_client.arguments += ["--until-idle", "5"]
        processes[2] = lenient_client = lenient_client.restarted()
        wait_until(lambda: all("started" in process.log_text() for process in processes[:-1]))
        processes[-1] = processes[-1].restarted()
        wait_until(lambda: have_published([strict_client, lenient_client]))
        own_broker.stop()
        ends = {client: stored_range(config, client)[1] for client in CLIENTS}

        def lost_some() -> bool:
            keep_feeding(processes, file)
            return all(stored_range(config, client)[0] > ends[client] for client in CLIENTS)

        wait_until(lost_some)
        own_broker.start()
        assert strict_client.wait() == LOG_ERROR
        processes[-1].end()
        lenient_client.end()
    gone = re.search(r"(\d+) records are lost", strict_client.log_text())
    assert gone is not None
    assert int(gone[1]) > 0
    lost = sum(map(int, re.findall(r"records_lost=(\d+)", lenient_client.log_text())))
    assert lost > 0
    with resumed(open_client(load_config(lenient), CLIENTS[1])) as node:
        assert node.totals["learned"] == readings_each(file) - lost
    for client in CLIENTS:
        first, end = stored_range(config, client)
        assert end == readings_each(file), "the producer does not wait for clients"
        assert end - first < READINGS_BYTES / 80
