"""Separate processes, killed with SIGKILL at random moments and started again, end as if nothing had happened."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from processes import none_left_over
from whole_house import check_nothing_lost_and_nothing_twice, finish, start_all, whole_house

KILLS = 24


@pytest.fixture(params=["sqlite", "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    """Where the federation's log is."""
    if request.param == "sqlite":
        return "sqlite:federation.db"
    return f"kafka://{request.getfixturevalue('kafka_bootstrap')}"


def test_processes_killed_at_random_moments_lose_nothing_and_learn_nothing_twice(tmp_path: Path, address: str) -> None:
    file = whole_house(tmp_path, address)
    chance = random.Random(20231)
    processes = start_all(file)
    with none_left_over(processes):
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.05, 0.6))
            victim = chance.randrange(len(processes))
            processes[victim].kill()
            processes[victim] = processes[victim].again()
        finish(processes, tmp_path)
    check_nothing_lost_and_nothing_twice(file, tmp_path)
