"""From MQTT sensors to clusters, and an MQTT producer that is killed at every call that stores or
acknowledges."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.producers.mqtt import connection as mqtt
from shoal.producers.mqtt.client_stream import IngestCounts
from shoal.producers.mqtt.connection import Connection
from shoal.producers.mqtt.ingest import open_mqtt_ingest
from shoal.producers.mqtt.settings import mqtt_settings
from shoal.producers.mqtt.silence import SilenceMonitor
from shoal.producers.mqtt.topics import topics_of
from shoal.producers.publisher import ReadingsPublisher
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from tests.house.power_cut import cut_power_at, run_forked
from tests.house.processes import TIMEOUT_S, Process, killed_on_exit
from tests.house.small_federation import all_records, weather, write_federation
from tests.mosquitto_broker import Mosquitto, Sensor

pytestmark = [
    pytest.mark.needs("mosquitto"),
    pytest.mark.skipif(
        not hasattr(os, "fork"), reason="a power cut is simulated in a forked process"
    ),
]
CLIENT = "attic"
CALLS = [
    (Checkpoint, "save"),
    (ReadingsPublisher, "publish"),
    (ReadingsPublisher, "flush"),
    (Connection, "acknowledge"),
]


@pytest.fixture
def own_broker(can_run_mosquitto: None, tmp_path: Path) -> Iterator[Mosquitto]:
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker")
    yield broker
    broker.stop()


def with_sensors(folder: Path, port: int, settings: str = "") -> Config:
    """A federation of two features whose sensors publish to an MQTT broker."""
    file = write_federation(folder, pool_clients=1)
    topics = (
        f'[mqtt.topics]\nwarm = "{folder.name}/{{client}}/warm"\ndamp ='
        f' "{folder.name}/{{client}}/damp"\n'
    )
    # The values have their times of arrival: also those before and after a kill must make one
    # reading.
    settings += "\ntolerance_s = 3600"
    client_id = f'client_id = "{folder.name}-{{client}}"'
    mqtt_table = f'[mqtt]\nhost = "127.0.0.1"\nport = {port}\n{client_id}\n{settings}\n{topics}'
    file.write_text(file.read_text() + mqtt_table, encoding="utf-8")
    return load_config(file)


def messages_of(config: Config, folder: Path, rows: Any) -> list[tuple[str, str | bytes]]:
    """(MQTT topic, payload) of these rows, one value in each message."""
    names = ("warm", "damp")
    return [
        (f"{folder.name}/{CLIENT}/{name}", repr(value))
        for row in rows
        for name, value in zip(names, row.tolist(), strict=True)
    ]


def ingest_all(config: Config, readings: int = 0, quiet_s: float = 0.1) -> IngestCounts:
    """Run the producer until it has stored `readings` in all its runs and no message arrives."""
    counts = IngestCounts(
        SilenceMonitor(topics_of(mqtt_settings(config), config.contract, CLIENT), 0.0)
    )
    end = time.monotonic() + TIMEOUT_S
    with open_mqtt_ingest(config, CLIENT, config.client.folder, counts) as ingest:
        while ingest.step(quiet_s) or counts.position < readings:
            assert time.monotonic() < end
    return counts


def stored(config: Config) -> list[list[float]]:
    address = f"sqlite:{config.client.folder / CLIENT / 'readings.db'}"
    readings = [
        Reading.decode(record.value, record.headers) for record in all_records(address, READINGS)
    ]
    return [list(reading.values) for reading in readings]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[1])
def test_a_producer_killed_at_any_call_loses_no_message_and_stores_none_twice(
    tmp_path: Path,
    mosquitto_port: int,
    monkeypatch: pytest.MonkeyPatch,
    call: tuple[type, str],
    number: int,
    after: bool,
) -> None:
    config = with_sensors(tmp_path, mosquitto_port)
    ingest_all(config)
    rows = np.arange(60.0).reshape(30, 2)
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all(messages_of(config, tmp_path, rows))
    # An odd number, so that the power is cut between the two values of a reading.
    monkeypatch.setattr(mqtt, "BATCH_MESSAGES_MAX", 7)

    def run() -> None:
        cut_power_at(*call, number, after)
        ingest_all(config, len(rows))

    assert run_forked(run) == signal.SIGKILL
    ingest_all(config, len(rows))
    assert stored(config) == rows.tolist()


def until(holds: Callable[[], bool], process: Process) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        assert process.running(), process.log_text()
        assert time.monotonic() < end, process.log_text()
        time.sleep(0.05)


def test_a_producer_and_a_broker_stopped_at_random_moments_store_every_reading(
    tmp_path: Path, own_broker: Mosquitto
) -> None:
    config = with_sensors(tmp_path, own_broker.port)
    rows = np.arange(1200.0).reshape(600, 2)
    chance = random.Random(20232)
    arguments = [
        "producer",
        "--config",
        str(tmp_path / "federation.toml"),
        "--mqtt",
        "--name",
        CLIENT,
    ]
    processes = [Process(arguments, tmp_path / "producer.txt")]
    with killed_on_exit(processes):
        until(lambda: "mqtt_connected" in processes[0].log_text(), processes[0])
        for part in range(4):
            with Sensor(own_broker.port) as sensor:
                sensor.publish_all(
                    messages_of(config, tmp_path, rows[150 * part : 150 * part + 75])
                )
                time.sleep(chance.uniform(0.0, 0.2))
                processes[0].kill()
                sensor.publish_all(
                    messages_of(config, tmp_path, rows[150 * part + 75 : 150 * (part + 1)])
                )
            if part == 1:
                own_broker.stop()
            processes[0] = processes[0].restarted()
            if part == 1:
                until(lambda: "retrying" in processes[0].log_text(), processes[0])
                own_broker.start()
        until(lambda: len(stored(config)) >= len(rows), processes[0])
        assert processes[0].stop() == 0, processes[0].log_text()
    assert stored(config) == rows.tolist()


def test_values_of_sensors_become_clusters(tmp_path: Path, mosquitto_port: int) -> None:
    config = with_sensors(tmp_path, mosquitto_port)
    ingest_all(config)
    rows = weather(600, 7)
    with Sensor(mosquitto_port) as sensor:
        sensor.publish_all(messages_of(config, tmp_path, rows))
    assert ingest_all(config, 600).published == 600
    with resumed(open_client(config, CLIENT)) as client:
        while client.step():
            pass
        assert client.totals["learned"] == 600
    with resumed(open_server(config)) as server:
        while server.step():
            pass
        assert server.models()["clusters"].snapshot.clusters >= 2


def test_the_command_reports_what_it_did_and_stops_on_sigterm(
    tmp_path: Path, own_broker: Mosquitto
) -> None:
    config = with_sensors(tmp_path, own_broker.port, "silent_s = 0.5")
    file = tmp_path / "federation.toml"
    arguments = [
        sys.executable,
        "-m",
        "shoal",
        "producer",
        "--config",
        str(file),
        "--mqtt",
        "--name",
        CLIENT,
        "--json",
    ]
    with (tmp_path / "log.txt").open("w") as errors:
        producer = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        end = time.monotonic() + TIMEOUT_S
        while "mqtt_connected" not in (tmp_path / "log.txt").read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        with Sensor(own_broker.port) as sensor:
            sensor.publish_all(messages_of(config, tmp_path, np.arange(20.0).reshape(10, 2)))
            sensor.publish(f"{tmp_path.name}/{CLIENT}/warm", "broken")
        while "sensor_silent" not in (tmp_path / "log.txt").read_text() or len(stored(config)) < 10:
            assert time.monotonic() < end
            time.sleep(0.05)
        producer.terminate()
        done = json.loads(producer.communicate(timeout=TIMEOUT_S)[0])
    finally:
        producer.kill()
        producer.wait()
    assert producer.returncode == 0
    assert (done["published"], done["clients"], done["position"]) == (10, {CLIENT: 10}, 10)
    assert done["faults"] == {"not_a_number": 1}
    assert not done["finished"]
    events = [
        json.loads(line)
        for line in (tmp_path / "log.txt").read_text().splitlines()
        if line.startswith("{")
    ]
    assert {"started", "mqtt_connected", "sensor_silent", "messages_rejected"} <= {
        event["event"] for event in events
    }


def test_a_wrong_password_ends_the_command_with_one_line(
    tmp_path: Path, can_run_mosquitto: None
) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    (folder / "passwords").write_text("producer:right\n")
    subprocess.run(["mosquitto_passwd", "-U", str(folder / "passwords")], check=True)
    broker = Mosquitto(folder, f"allow_anonymous false\npassword_file {folder}/passwords")
    (tmp_path / "secret").write_text("wrong-one")
    with_sensors(tmp_path, broker.port, 'user = "producer"\nsecret_file = "secret"')
    arguments = [
        "producer",
        "--config",
        str(tmp_path / "federation.toml"),
        "--mqtt",
        "--name",
        CLIENT,
    ]
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "shoal", *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        broker.stop()
    assert ended.returncode == 4
    assert "check user and secret_file" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "wrong-one" not in ended.stderr
