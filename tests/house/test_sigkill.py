"""Separate processes, killed with SIGKILL at random moments and restarted, end as if nothing had
happened."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from shoal.config.settings import Config, load_config
from tests.house.federation_processes import (
    check_exactly_once,
    finish,
    keep_feeding,
    prepare_federation,
    start_all,
    wait_for_updates,
)
from tests.house.processes import kill_all, killed_on_exit
from tests.house.small_federation import CLIENTS

FEW_KILLS = {"sqlite": 12, "kafka": 12}
"""with the seed below, every process is killed, and both the server and a client at once"""
MANY_KILLS = {"sqlite": 24, "kafka": 50}
SERVER = 0
CLIENT_PLACES = (1, 2, 3)
PRODUCER = 4
AIMED = 0.5
"""share of the kills that wait for a checkpoint being stored, where most can go wrong and chance
seldom hits"""
READINGS_PER_S = {"sqlite": 450, "kafka": 300}


@pytest.fixture(params=["sqlite", "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    """The address of the federation's log."""
    if request.param == "sqlite":
        return "sqlite:federation.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"


def victims(chance: random.Random) -> tuple[int, ...]:
    """The processes to kill next: a client, the server, the producer, or the server and a client at
    once."""
    client = chance.choice(CLIENT_PLACES)
    return chance.choice([(client,), (client,), (SERVER,), (PRODUCER,), (SERVER, client)])


def checkpoint_files(config: Config) -> dict[int, Path]:
    """Place of a process -> the file that changes whenever it stores its checkpoint."""
    folders = {SERVER: config.server.folder}
    folders |= {
        place: config.client.folder / client
        for place, client in zip(CLIENT_PLACES, CLIENTS, strict=True)
    }
    return {place: folder / "checkpoint.db-wal" for place, folder in folders.items()}


def wait_until_it_stores(file: Path, wait_max_s: float = 1.0) -> None:
    """Return while the checkpoint is being stored, or after `wait_max_s`; the process publishes
    some ms later."""

    def version() -> tuple[int, int] | None:
        try:
            about = file.stat()
        except FileNotFoundError:
            return None
        return about.st_mtime_ns, about.st_size

    before = version()
    until = time.monotonic() + wait_max_s
    while version() == before and time.monotonic() < until:
        pass


@pytest.mark.parametrize(
    "kills",
    [FEW_KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.integration)],
    ids=["few", "many"],
)
def test_processes_killed_at_random_moments_lose_nothing_and_learn_nothing_twice(
    tmp_path: Path, address: str, kills: dict[str, int]
) -> None:
    transport = address.partition(":")[0]
    file = prepare_federation(tmp_path, address)
    stored = checkpoint_files(load_config(file))
    chance = random.Random(20231)
    killed: list[tuple[int, ...]] = []
    processes = start_all(file, READINGS_PER_S[transport])
    with killed_on_exit(processes):
        while len(killed) < kills[transport]:
            keep_feeding(processes, file)
            killed.append(victims(chance))
            time.sleep(chance.uniform(0.05, 0.6))
            if chance.random() < AIMED and killed[-1][-1] in stored:
                wait_until_it_stores(stored[killed[-1][-1]])
                time.sleep(chance.uniform(0.0, 0.004))
            kill_all(processes[place] for place in killed[-1])
            for place in killed[-1]:
                processes[place] = processes[place].restarted()
        wait_for_updates(processes, file)  # so there was work left at the last kill
        finish(processes, tmp_path)
    assert {len(places) for places in killed} == {1, 2}
    check_exactly_once(file, tmp_path)
