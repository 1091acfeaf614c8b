"""`shoal run` without files: a topic through a whole federation in one process."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal.client_nodes.labelling.labels_command import labels
from shoal.errors import LogError, SettingsError, ShoalError
from shoal.onebox.run_command import run_command
from shoal.producers.init_command import init_command
from shoal.transports.base import TopicSettings
from shoal.transports.kafka.log import KafkaLog
from tests.federation_text import federation_text
from tests.mosquitto_broker import Sensor

MESSAGES = 3000
WET_EACH = 4
"""every so manieth message of a device is of the smaller one of its two states"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_SERVER_PORT", "0")
    monkeypatch.setenv("SHOAL_CLIENT_PUBLISH_S", "0.5")
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(run_command, arguments)
    if result.exception and not isinstance(result.exception, ShoalError):
        raise result.exception
    return result


def messages(first: int, count: int) -> list[bytes]:
    """Messages of two devices that are dry three quarters of the time, each in runs of 25."""
    generator = np.random.default_rng(first)
    contents = []
    for number in range(first, first + count):
        wet = number // 50 % WET_EACH == 0
        warm, damp = generator.normal([35, 80] if wet else [20, 40], 1.0).round(2)
        device = ("Werk Süd", "hall")[number % 2]
        message = {"ts": 1_700_000_000 + 30 * number, "device": device, "warm": warm, "damp": damp}
        contents.append(json.dumps(message).encode())
    return contents


def test_two_commands_lead_from_a_topic_to_its_clusters_and_the_second_goes_on_where_it_was(
    kafka_bootstrap: str, folder: Path
) -> None:
    topic = f"plant-{uuid.uuid4().hex}"
    with closing(KafkaLog(f"//{kafka_bootstrap}")) as log:
        log.ensure(topic, TopicSettings())
        for content in messages(0, MESSAGES):
            log.publish(topic, content)
        log.flush()
        look = ["--kafka", kafka_bootstrap, "--topic", topic, "--public", "--out", "a.toml"]
        proposed = CliRunner().invoke(init_command, [*look, "--seconds", "1"])
        assert "  shoal run a.toml   #" in proposed.output
        first = json.loads(run("a.toml", "--until-idle", "1", "--json").stdout)
        assert (first["learnt"], first["rejected"], first["clients"]) == (MESSAGES, 0, 2)
        log.publish(topic, b"no json")
        for content in messages(MESSAGES, 100):
            log.publish(topic, content)
        log.flush()
        second = json.loads(run("a.toml", "--until-idle", "1", "--json").stdout)
    assert second["learnt"] == MESSAGES + 100, "each message once"
    assert second["faults"] == {"not_json": 1}
    clusters = second["models"]["clusters"]
    dry, wet = (cluster["share"] for cluster in clusters)
    assert dry == pytest.approx(1 - 1 / WET_EACH, abs=0.03)
    assert wet == pytest.approx(1 / WET_EACH, abs=0.03)
    for name in ("hall", "Werk Süd"):
        exported = CliRunner().invoke(
            labels, ["export", "--config", "a.toml", "--name", name, "--out", f"{name}.csv"]
        )
        assert exported.exit_code == 0, exported.output
        assert (folder / f"{name}.csv").read_text().count("\n") > MESSAGES / 2
    text = run("a.toml", "--until-idle", "0.25").stdout
    assert f"{MESSAGES + 100:,} readings of 2 clients." in text
    assert "clusters: 2 clusters" in text


def test_a_topic_that_is_not_there_or_has_nothing_to_learn_is_told(
    kafka_bootstrap: str, folder: Path
) -> None:
    topic = f"plant-{uuid.uuid4().hex}"

    def of_topic(name: str) -> str:
        (folder / "a.toml").write_text(
            federation_text(
                "a",
                features=[{"name": "warm", "low": 0, "high": 100}],
                models=[{"name": "clusters", "algorithm": "cluster_tree"}],
                log={"address": "sqlite:a/log.db"},
                client={"folder": "a/clients"},
                server={"folder": "a/server"},
                kafka={"address": f"kafka://{kafka_bootstrap}", "topic": name, "client": "device"},
            )
        )
        return "a.toml"

    with closing(KafkaLog(f"//{kafka_bootstrap}")) as log:
        log.ensure(topic, TopicSettings())
        absent = run(of_topic(f"{topic}-x"), "--until-idle", "0.25").exception
        assert isinstance(absent, LogError)
        assert topic in str(absent), "the topics that there are"
        log.publish(topic, json.dumps({"device": "a", "warm": "hot"}).encode())
        log.flush()
        text = run(of_topic(topic), "--until-idle", "0.25").stdout
    assert "0 readings of 0 clients." in text
    assert "1 values were no numbers" in text
    assert "clusters: 0 clusters so far" in text


@pytest.mark.needs("mosquitto")
def test_sensors_of_mqtt_are_clustered_while_they_send(mosquitto_port: int, folder: Path) -> None:
    at = f"h{uuid.uuid4().hex}"
    file = folder / "a.toml"
    features = [
        {"name": "warm", "low": 0, "high": 100},
        {"name": "damp", "low": 0, "high": 100},
    ]
    mqtt = {
        "host": "127.0.0.1",
        "port": mosquitto_port,
        "client": "{topic.1}",
        "time": "ts",
        "topics": {name: f"{at}/+/climate#{name}" for name in ("warm", "damp")},
    }
    file.write_text(
        federation_text(
            "a",
            features=features,
            models=[{"name": "clusters", "algorithm": "cluster_tree"}],
            log={"address": "sqlite:a/log.db"},
            client={"folder": "a/clients", "publish_readings": 50},
            server={"folder": "a/server", "snapshot_updates": 1, "pool_clients": 1},
            mqtt=mqtt,
        )
    )
    stopped = threading.Event()

    def publish() -> None:
        number = 0
        left = 8
        with Sensor(mosquitto_port) as sensor:
            # Blocks until somebody listens, and some more.
            while left and not stopped.wait(0.1):
                for content in messages(number, 50):
                    sensor.publish(f"{at}/hall/climate", content.decode())
                number += 50
                left -= (folder / "a" / "clients" / "hall").exists()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        summary = json.loads(run("a.toml", "--until-idle", "1", "--json").stdout)
    finally:
        stopped.set()
        thread.join()
    assert summary["clients"] == 1
    assert summary["learnt"] > 0
    assert summary["models"]["clusters"]


@pytest.mark.parametrize(
    ("tables", "arguments", "message"),
    [
        ({}, [], r"name the files to read, .* has no \[influx\], \[kafka\] or \[mqtt\]"),
        (
            {
                "kafka": {"address": "kafka://127.0.0.1:1", "topic": "t", "client": "device"},
                "mqtt": {"topics": {"warm": "a#warm"}},
            },
            [],
            r"\[kafka\] and \[mqtt\] are sources",
        ),
        ({"kafka": {"address": "kafka://127.0.0.1:1", "topic": "t"}}, [], "give --name CLIENT"),
        (
            {
                "kafka": {"address": "kafka://127.0.0.1:1", "topic": "t"},
                "readings": {"address": "kafka://127.0.0.1:1"},
            },
            ["--name", "a"],
            "processes of their own",
        ),
        ({}, ["--no-wait"], "see --until-idle"),
        ({}, ["readings.csv", "--name", "a"], "--name means nothing with DATA"),
    ],
)
def test_what_cannot_be_run_is_refused_with_words(
    folder: Path, tables: dict[str, object], arguments: list[str], message: str
) -> None:
    (folder / "readings.csv").write_text("warm\n1\n")
    text = federation_text(
        "a",
        features=[{"name": "warm", "low": 0, "high": 100}],
        models=[{"name": "clusters", "algorithm": "cluster_tree"}],
        **tables,
    )
    (folder / "a.toml").write_text(text)
    result = run("a.toml", *arguments)
    assert isinstance(result.exception, SettingsError)
    with pytest.raises(SettingsError, match=message):
        raise result.exception
