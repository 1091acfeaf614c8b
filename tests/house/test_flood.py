"""A flood of what is no message, over Kafka and in a readings log, at a server and a client that run: neither grows."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from shoal.config.settings import load_config
from shoal.protocol.messages import Update
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, REJECTED
from shoal.runtime.readings_log import open_client_log
from shoal.transports import open_log
from shoal.transports.base import Headers, Log
from tests.house.processes import Process, none_left_over, wait_until
from tests.house.small_federation import begin, final_model, run_to_end

FLOOD, FIRST = 10_000, 1000
MESSAGE_BYTES = 2_000
MEMORY_GROWS_MAX = 1.5


def flood(log: Log, topic: str, headers: Headers, number: int) -> None:
    chance = random.Random(number)
    for place in range(number):
        log.publish(topic, chance.randbytes(MESSAGE_BYTES), b"clusters", headers if place % 2 else ())
    log.flush()


def grown(process: Process, send: Callable[[int], None], set_aside: Callable[[], int]) -> float:
    """How many times the memory it had after a few it had at most until all of the flood was set aside."""
    send(FIRST)
    wait_until(lambda: set_aside() == FIRST)
    before = most = process.resident_bytes()
    send(FLOOD - FIRST)
    while set_aside() < FLOOD:
        most = max(most, process.resident_bytes())
    assert set_aside() == FLOOD
    return most / before


def test_ten_thousand_malformed_messages_and_readings_are_set_aside_while_memory_stays_as_it_was(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    file = begin(tmp_path, readings=100, batch_updates_max=200, address=f"kafka://{kafka_bootstrap}")
    config = load_config(file)
    run_to_end(file)
    before = final_model(file)
    server = Process(["server", "--config", str(file), "--no-page"], tmp_path / "server.txt")
    client = Process(["client", "--config", str(file), "--name", "attic"], tmp_path / "attic.txt")
    with (
        none_left_over([server, client]),
        closing(open_log(config.log)) as log,
        closing(open_client_log(config, "attic")) as own,
    ):
        updates, rejected = config.contract.updates_topic, config.contract.rejected_topic
        already = own.bounds(REJECTED)[0][1]
        assert (
            grown(
                server, lambda number: flood(log, updates, Update.headers(), number), lambda: log.bounds(rejected)[0][1]
            )
            < MEMORY_GROWS_MAX
        )
        assert (
            grown(
                client,
                lambda number: flood(own, READINGS, Reading.headers(), number),
                lambda: own.bounds(REJECTED)[0][1] - already,
            )
            < MEMORY_GROWS_MAX
        )
        for process in (server, client):
            assert process.stop() == 0
    assert final_model(file) == before
