"""Processes that share a topic in a consumer group, one of which is killed: each reading is stored
once."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from shoal.transports.base import TopicSettings
from shoal.transports.kafka.log import KafkaLog
from tests.federation_text import federation_text
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.producers.running_producer import stored_in

pytestmark = pytest.mark.integration

DEVICES = 300
"""more than were once fed by one process, and as many as both may have open"""
PARTITIONS = 2


class Devices:
    """A topic with the readings of many devices, each of which is in one partition."""

    def __init__(self, bootstrap: str) -> None:
        self.topic = f"devices-{uuid.uuid4().hex}"
        self.log = KafkaLog(f"//{bootstrap}")
        self.log.ensure(self.topic, TopicSettings(partitions=PARTITIONS))
        self.sent = 0
        """readings of each device"""

    def send(self, count: int) -> None:
        """More readings of each, which count up."""
        for number in range(self.sent, self.sent + count):
            for device in range(DEVICES):
                value = {"device": f"device-{device}", "warm": number, "t": 1e9 + number}
                partition = device % PARTITIONS
                self.log.publish(self.topic, json.dumps(value).encode(), partition=partition)
        self.log.flush()
        self.sent += count

    def are_stored(self, folder: Path) -> bool:
        """Whether every reading of every device is in its log."""
        stored = stored_in(folder)
        return len(stored) == DEVICES and all(
            len(readings) >= self.sent for readings in stored.values()
        )


def test_a_process_that_is_killed_leaves_its_partition_to_the_others(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    devices = Devices(kafka_bootstrap)
    file = tmp_path / "plant.toml"
    sections = {"address": f"kafka://{kafka_bootstrap}", "topic": devices.topic, "time": "t"}
    sections |= {"client": "device", "group": f"plant-{uuid.uuid4().hex}"}
    file.write_text(
        federation_text(
            "plant",
            features=[{"name": "warm", "low": 0, "high": 100}],
            models=[{"name": "m", "algorithm": "fcac"}],
            client={"folder": "clients"},
            kafka=sections,
        ),
        encoding="utf-8",
    )
    folder = tmp_path / "clients"
    arguments = ["producer", "--config", str(file), "--kafka"]
    processes = [Process(arguments, tmp_path / f"producer-{number}.txt") for number in range(2)]
    killed, other = processes
    with closing(devices.log), killed_on_exit(processes):
        for process in processes:
            wait_until(lambda process=process: "partition_taken" in process.log_text())
        devices.send(5)
        wait_until(lambda: devices.are_stored(folder))
        # While it stores: the next readings are of both partitions.
        devices.send(5)
        wait_until(lambda: any(len(found) > 5 for found in stored_in(folder).values()))
        killed.kill()
        devices.send(5)
        wait_until(lambda: devices.are_stored(folder))
        processes[0] = killed.restarted()
        wait_until(lambda: "partition_left" in other.log_text())
        devices.send(5)
        wait_until(lambda: devices.are_stored(folder))
        assert [process.stop() for process in processes] == [0, 0]
    for client, readings in stored_in(folder).items():
        values = [reading.values[0] for reading in readings]
        assert values == list(range(devices.sent)), f"each reading of {client} once"
