"""Thousands of malformed messages and readings do not let the memory of a server or a client
grow."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from shoal.config.settings import load_config
from shoal.protocol.messages import Update
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, REJECTED
from shoal.runtime.logs import open_client_log
from shoal.transports import open_log
from shoal.transports.base import Headers, Log
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.house.small_federation import create_federation, final_model, run_to_end

FLOOD = 10_000
FIRST = 1000
MESSAGE_BYTES = 2_000
MEMORY_GROWS_MAX = 1.5


def flood(log: Log, topic: str, headers: Headers, number: int) -> None:
    chance = random.Random(number)
    for place in range(number):
        log.publish(
            topic, chance.randbytes(MESSAGE_BYTES), b"clusters", headers if place % 2 else ()
        )
    log.flush()


def memory_growth(
    process: Process, send: Callable[[int], None], rejected_count: Callable[[], int]
) -> float:
    """Largest memory until all records were rejected, relative to the memory after the first of
    them."""
    send(FIRST)
    wait_until(lambda: rejected_count() == FIRST)
    seen = [process.resident_bytes()]
    send(FLOOD - FIRST)

    def all_rejected() -> bool:
        seen.append(process.resident_bytes())
        return rejected_count() >= FLOOD

    wait_until(all_rejected)
    assert rejected_count() == FLOOD
    return max(seen) / seen[0]


@pytest.mark.integration
def test_ten_thousand_malformed_messages_and_readings_are_rejected_in_constant_memory(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A copy of each is kept: what costs most memory.
    monkeypatch.setenv("SHOAL_SERVER_REJECTED_KEPT_PER_S", "0")
    # Attic's 100 readings and the 2 malformed ones among them make two updates. Rejected readings
    # count for the next update as others do, so a rest would be published during the flood, and the
    # models would differ by it.
    file = create_federation(
        tmp_path,
        readings=100,
        publish_readings=51,
        batch_updates_max=200,
        address=f"kafka://{kafka_bootstrap}",
    )
    config = load_config(file)
    run_to_end(file)
    before = final_model(file)
    server = Process(["server", "--config", str(file), "--no-page"], tmp_path / "server.txt")
    client = Process(["client", "--config", str(file), "--name", "attic"], tmp_path / "attic.txt")
    with (
        killed_on_exit([server, client]),
        closing(open_log(config.log)) as log,
        closing(open_client_log(config, "attic")) as own,
    ):
        updates = config.contract.updates_topic
        rejected = config.contract.rejected_topic
        already = own.bounds(REJECTED)[0][1]
        assert (
            memory_growth(
                server,
                lambda number: flood(log, updates, Update.headers(), number),
                lambda: log.bounds(rejected)[0][1],
            )
            < MEMORY_GROWS_MAX
        )
        assert (
            memory_growth(
                client,
                lambda number: flood(own, READINGS, Reading.headers(), number),
                lambda: own.bounds(REJECTED)[0][1] - already,
            )
            < MEMORY_GROWS_MAX
        )
        for process in (server, client):
            assert process.stop() == 0
    assert final_model(file) == before
