"""A house over three brokers that keep three copies: any one of them may be killed, whichever leads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from shoal.config.settings import load_config
from tests.house.processes import Process, none_left_over, wait_until
from tests.house.whole_house import (
    check_nothing_lost_and_nothing_twice,
    every_reading_came_once,
    finish,
    start_all,
    whole_house,
)
from tests.kafka_broker import Cluster

COPIES = 3
READINGS_PER_S = 400
"""slow enough that readings still come when the second leader is killed"""


@pytest.fixture
def brokers(can_run_kafka: None, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "kafka", COPIES)
    yield cluster
    cluster.end()


def leadership(brokers: Cluster, topic: str) -> tuple[int, int]:
    """Who leads the topic, and how many copies are up to date; (-1, 0) when nobody can tell."""
    try:
        with closing(KafkaAdminClient(bootstrap_servers=brokers.bootstrap.split(","))) as admin:
            (described,) = admin.describe_topics([topic])
    except KafkaError:
        return -1, 0
    if not described["partitions"]:
        return -1, 0
    return described["partitions"][0]["leader_id"], len(described["partitions"][0]["isr_nodes"])


def wait_for_updates(clients: Sequence[Process], number: int = 3) -> None:
    """Until they have published so many more."""

    def published() -> int:
        return sum(client.said().count("updates_published") for client in clients)

    before = published()
    wait_until(lambda: published() >= before + number)


def test_a_house_goes_on_to_the_same_model_when_a_leader_of_three_brokers_is_killed_and_then_the_next(
    brokers: Cluster, tmp_path: Path
) -> None:
    file = whole_house(tmp_path, f"kafka://{brokers.bootstrap}", f"replication = {COPIES}")
    config = load_config(file)
    topic = config.contract.updates_topic
    processes = start_all(file, READINGS_PER_S)
    led: list[int] = []
    with none_left_over(processes):
        for _ in range(2):
            wait_until(lambda: leadership(brokers, topic)[1] == COPIES)
            wait_for_updates(processes[1:-1])
            led.append(leadership(brokers, topic)[0])
            brokers.kill(led[-1])
            wait_until(lambda: leadership(brokers, topic)[0] not in (led[-1], -1))
            wait_for_updates(processes[1:-1])  # two of three are enough
            if len(led) == 1:
                brokers.start(led[-1])
        assert not every_reading_came_once(config), "the last one was killed with nothing left to do"
        finish(processes, tmp_path)
    assert led[0] != led[1]
    check_nothing_lost_and_nothing_twice(file, tmp_path)
