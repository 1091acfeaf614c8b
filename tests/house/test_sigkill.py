"""Separate processes, killed with SIGKILL at random moments and started again, end as if nothing had happened."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from shoal.config.settings import Config, load_config
from tests.house.processes import kill_at_once, none_left_over
from tests.house.small_federation import CLIENTS
from tests.house.whole_house import (
    check_nothing_lost_and_nothing_twice,
    every_reading_came_once,
    finish,
    start_all,
    whole_house,
)

KILLS = {"sqlite": 24, "kafka": 50}
SERVER, CLIENT_PLACES, PRODUCER = 0, (1, 2, 3), 4
AIMED = 0.5
"""share of the kills that wait for the instant in which most can go wrong; chance alone seldom meets it"""
READINGS_PER_S = {"sqlite": 900, "kafka": 450}
"""slow enough that readings still come when the last one is killed"""


@pytest.fixture(params=["sqlite", "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    """Where the federation's log is."""
    if request.param == "sqlite":
        return "sqlite:federation.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"


def victims(chance: random.Random) -> tuple[int, ...]:
    """Who dies next: a client, the server, the producer, or the server and a client in the same instant."""
    client = chance.choice(CLIENT_PLACES)
    return chance.choice([(client,), (client,), (SERVER,), (PRODUCER,), (SERVER, client)])


def memories(config: Config) -> dict[int, Path]:
    """place of a process -> the file that changes whenever it remembers."""
    homes = {SERVER: config.server.folder}
    homes |= {place: config.client.folder / client for place, client in zip(CLIENT_PLACES, CLIENTS, strict=True)}
    return {place: home / "checkpoint.db-wal" for place, home in homes.items()}


def wait_until_it_remembers(memory: Path, patience_s: float = 1.0) -> None:
    """Return while it is remembering, if it does in time; it speaks some milliseconds later."""

    def seen() -> tuple[int, int] | None:
        try:
            about = memory.stat()
        except FileNotFoundError:
            return None
        return about.st_mtime_ns, about.st_size

    before, until = seen(), time.monotonic() + patience_s
    while seen() == before and time.monotonic() < until:
        pass


def test_processes_killed_at_random_moments_lose_nothing_and_learn_nothing_twice(tmp_path: Path, address: str) -> None:
    log = address.partition(":")[0]
    file = whole_house(tmp_path, address)
    memory, chance = memories(load_config(file)), random.Random(20231)
    killed: list[tuple[int, ...]] = []
    processes = start_all(file, READINGS_PER_S[log])
    with none_left_over(processes):
        while len(killed) < KILLS[log]:
            killed.append(victims(chance))
            time.sleep(chance.uniform(0.05, 0.6))
            if chance.random() < AIMED and killed[-1][-1] in memory:
                wait_until_it_remembers(memory[killed[-1][-1]])
                time.sleep(chance.uniform(0.0, 0.004))
            kill_at_once(processes[place] for place in killed[-1])
            for place in killed[-1]:
                processes[place] = processes[place].again()
        assert not every_reading_came_once(load_config(file)), "the last ones were killed with nothing left to do"
        finish(processes, tmp_path)
    assert {len(dead) for dead in killed} == {1, 2}
    check_nothing_lost_and_nothing_twice(file, tmp_path)
