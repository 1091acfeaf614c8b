"""Chaos on three brokers: processes of every kind and brokers are killed, and processes are paused,
for a while.

`SHOAL_CHAOS_S` is for how long: a minute, or 600 for the ten minutes that are worth a night.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.config.settings import load_config
from tests.house import federation_processes
from tests.house.federation_processes import (
    check_exactly_once,
    finish,
    keep_feeding,
    prepare_federation,
    start_all,
)
from tests.house.processes import Process, kill_all, killed_on_exit, wait_until
from tests.house.test_three_brokers import COPIES, leadership
from tests.kafka_broker import Cluster

CHAOS_S = float(os.environ.get("SHOAL_CHAOS_S", "60"))
CLIENTS = ("attic", "cellar", "garden", "kitchen", "loft")
SERVER = 0
CLIENT_PLACES = range(1, 1 + len(CLIENTS))
PRODUCER = 1 + len(CLIENTS)
KINDS = ("server", "client", "producer", "server and clients", "broker", "leading broker", "pause")
READINGS_PER_S = 300


@pytest.fixture
def brokers(can_run_kafka: None, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "kafka", COPIES)
    yield cluster
    cluster.end()


def kill(
    kind: str, processes: list[Process], brokers: Cluster, topic: str, chance: random.Random
) -> None:
    """Kill what the kind names, and start it again. A process that is paused goes on."""
    if kind.endswith("broker"):
        # Two of three copies must be there: one broker at a time.
        wait_until(lambda: leadership(brokers, topic)[1] == COPIES)
        leading = leadership(brokers, topic)[0]
        others = [number for number in range(1, COPIES + 1) if number != leading]
        number = leading if kind == "leading broker" else chance.choice(others)
        brokers.kill(number)
        time.sleep(chance.uniform(0.0, 3.0))
        brokers.start(number)
        return
    places = {
        "server": [SERVER],
        "client": [chance.choice(CLIENT_PLACES)],
        "producer": [PRODUCER],
        "server and clients": [SERVER, *chance.sample(CLIENT_PLACES, 2)],
        "pause": [chance.choice([SERVER, *CLIENT_PLACES])],
    }[kind]
    if kind == "pause":
        processes[places[0]].send(signal.SIGSTOP)
        time.sleep(chance.uniform(0.5, 4.0))
        processes[places[0]].send(signal.SIGCONT)
        return
    kill_all(processes[place] for place in places)
    for place in places:
        processes[place] = processes[place].restarted()


@pytest.mark.integration
@pytest.mark.timeout(20 * CHAOS_S + 900)
def test_every_reading_counts_once_whatever_is_killed(
    brokers: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_processes, "CLIENTS", CLIENTS)
    file = prepare_federation(tmp_path, f"kafka://{brokers.bootstrap}", f"replication = {COPIES}")
    topic = load_config(file).contract.updates_topic
    chance = random.Random(29)
    processes = start_all(file, READINGS_PER_S)
    killed = Counter[str]()
    with killed_on_exit(processes):
        until = time.monotonic() + CHAOS_S
        while time.monotonic() < until or set(killed) != set(KINDS):
            for kind in chance.sample(KINDS, len(KINDS)):
                keep_feeding(processes, file)
                time.sleep(chance.uniform(0.05, 1.5))
                kill(kind, processes, brokers, topic, chance)
                killed[kind] += 1
        # so there was work left at the last kill
        federation_processes.wait_for_updates(processes, file)
        finish(processes, tmp_path)
    print(f"killed: {dict(killed)}")
    check_exactly_once(file, tmp_path)
