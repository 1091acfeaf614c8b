"""A federation on three brokers with three copies of each topic: a leading broker is killed, and
the next one too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from shoal.config.settings import load_config
from tests.house.federation_processes import (
    check_exactly_once,
    finish,
    prepare_federation,
    start_all,
    wait_for_updates,
)
from tests.house.processes import killed_on_exit, wait_until
from tests.kafka_broker import Cluster

COPIES = 3
READINGS_PER_S = 300
UPDATES = 3
"""updates that must be published before a broker is killed, and again afterwards"""


@pytest.fixture
def brokers(can_run_kafka: None, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "kafka", COPIES)
    yield cluster
    cluster.end()


def leadership(brokers: Cluster, topic: str) -> tuple[int, int]:
    """(broker that leads the topic, number of copies that are in sync); (-1, 0) while no broker can
    tell."""
    try:
        with closing(KafkaAdminClient(bootstrap_servers=brokers.bootstrap.split(","))) as admin:
            (described,) = admin.describe_topics([topic])
    except KafkaError:
        return -1, 0
    if not described["partitions"]:
        return -1, 0
    return described["partitions"][0]["leader_id"], len(described["partitions"][0]["isr_nodes"])


# Of one broker that is killed, test_kafka_outages.py has the smaller case.
@pytest.mark.integration
@pytest.mark.parametrize("kills", [1, 2])
def test_killing_leading_brokers_loses_and_repeats_nothing(
    brokers: Cluster, tmp_path: Path, kills: int
) -> None:
    file = prepare_federation(tmp_path, f"kafka://{brokers.bootstrap}", f"replication = {COPIES}")
    topic = load_config(file).contract.updates_topic
    processes = start_all(file, READINGS_PER_S)
    killed: list[int] = []
    with killed_on_exit(processes):
        for _ in range(kills):
            wait_until(lambda: leadership(brokers, topic)[1] == COPIES)
            wait_for_updates(processes, file, UPDATES)
            killed.append(leadership(brokers, topic)[0])
            brokers.kill(killed[-1])
            wait_until(lambda: leadership(brokers, topic)[0] not in (killed[-1], -1))
            # Two of three brokers suffice. That updates follow shows that there was work left at
            # the kill.
            wait_for_updates(processes, file, UPDATES)
            if len(killed) < kills:
                brokers.start(killed[-1])
        finish(processes, tmp_path)
    assert len(set(killed)) == kills
    check_exactly_once(file, tmp_path)
