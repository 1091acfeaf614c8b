"""A broker is away for longer than a spool lasts: the oldest readings go, and nobody is silent about it."""

from __future__ import annotations

import re
from pathlib import Path

from client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from tests.house.processes import none_left_over, wait_until
from tests.house.small_federation import CLIENTS
from tests.house.whole_house import READINGS_EACH, at_work, spooled, start_all, whole_house
from tests.kafka_broker import Broker

SPOOL_BYTES = 130_000
"""some twelve seconds of the readings of one client"""
LOG_ERROR = 4


def test_a_spool_at_its_limit_drops_the_oldest_readings_and_a_client_says_how_many_it_never_learnt(
    own_broker: Broker, tmp_path: Path
) -> None:
    file = whole_house(tmp_path, f"kafka://{own_broker.bootstrap}")
    text = file.read_text(encoding="utf-8").replace("label = true", f"readings_bytes_max = {SPOOL_BYTES}")
    file.write_text(text, encoding="utf-8")
    lenient = file.with_name("lenient.toml")
    lenient.write_text(text.replace("[server]", "accept_gap = true\n[server]"), encoding="utf-8")
    config = load_config(file)
    processes = start_all(file, 300)
    with none_left_over(processes):
        strict, easy, _ = processes[1:-1]
        easy.kill()
        easy.words[easy.words.index(str(file))] = str(lenient)
        easy.words += ["--until-idle", "5"]
        processes[2] = easy = easy.again()
        wait_until(lambda: at_work([strict, easy]))
        own_broker.stop()
        ends = {client: spooled(config, client)[1] for client in CLIENTS}
        wait_until(lambda: all(spooled(config, client)[0] > ends[client] for client in CLIENTS))
        own_broker.start()
        assert strict.wait() == LOG_ERROR
        processes[-1].end()
        easy.end()
    gone = re.search(r"(\d+) records are lost", strict.said())
    assert gone is not None
    assert int(gone[1]) > 0
    lost = sum(map(int, re.findall(r"records_lost=(\d+)", easy.said())))
    assert lost > 0
    with open_client(load_config(lenient), CLIENTS[1]) as node:
        assert node.totals["learned"] == READINGS_EACH - lost
    for client in CLIENTS:
        first, end = spooled(config, client)
        assert end == READINGS_EACH, "the producer never waits"
        assert end - first < SPOOL_BYTES / 80
