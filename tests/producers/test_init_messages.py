"""`shoal init` on topics and on a sheet of features: the file it writes, used as it is."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal.config.settings import load_config
from shoal.errors import InvalidData, SettingsError, ShoalError
from shoal.producers import sampled_messages
from shoal.producers.init_command import init_command
from shoal.producers.message_times import Sampled, time_path
from shoal.producers.messages import time_reader_of
from shoal.producers.mqtt.settings import MqttSettings, mqtt_settings
from shoal.producers.mqtt.topics import topics_of
from shoal.producers.producer_command import producer
from shoal.transports.base import TopicSettings
from shoal.transports.kafka.log import KafkaLog
from tests.mosquitto_broker import Sensor

THEN = 1_700_000_000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: str) -> Result:
    result = CliRunner().invoke(init_command, arguments)
    if result.exception and not isinstance(result.exception, ShoalError | SystemExit):
        raise result.exception
    return result


def test_a_topic_of_kafka_becomes_a_file_that_feeds_its_clients(
    kafka_bootstrap: str, folder: Path
) -> None:
    topic = f"plant-{uuid.uuid4().hex}"
    generator = np.random.default_rng(1)
    with closing(KafkaLog(f"//{kafka_bootstrap}")) as log:
        log.ensure(topic, TopicSettings(partitions=2))
        for number in range(300):
            air = {
                "temp (°C)": 21 + 2 * generator.random(),
                "rel.humidity": 40 + 20 * generator.random(),
            }
            device = {"name": ("Werk Süd", "hall")[number % 2], "firmware": "v1"}
            message = {"ts": THEN + 60 * (number // 2), "device": device, "air": air, "ok": True}
            log.publish(topic, json.dumps(message).encode(), partition=number % 2)
        log.publish(topic, b"no json", partition=0)
        log.flush()
    result = init(
        "--kafka",
        kafka_bootstrap,
        "--topic",
        topic,
        "--public",
        "--out",
        "a.toml",
        "--seconds",
        "1",
    )
    assert result.exit_code == 0, result.output
    config = load_config(folder / "a.toml")
    assert [(feature.name, feature.unit) for feature in config.contract.features] == [
        ("temp (°C)", "°C"),
        ("rel.humidity", ""),
    ]
    assert config.source("kafka").model_dump(exclude_defaults=True) == {
        "address": f"kafka://{kafka_bootstrap}",
        "topic": topic,
        "time": "ts",
        "client": "device.name",
        "fields": {"temp (°C)": "air.temp (°C)", "rel.humidity": 'air."rel.humidity"'},
    }
    assert "one message of a client every 60 s" in result.output
    host = "shoal host --config a.toml   # at the site of "
    assert f"{host}Werk Süd, hall\n" in result.output or f"{host}hall, Werk Süd\n" in result.output
    assert config.client.label
    assert "shoal producer --config a.toml --kafka\n" in result.output
    fed = CliRunner().invoke(
        producer, ["--config", "a.toml", "--kafka", "--until-idle", "0.25", "--json"]
    )
    assert json.loads(fed.stdout)["published"] == 300
    assert len(json.loads(fed.stdout)["clients"]) == 2


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize("plain", [False, True], ids=["objects", "numbers"])
def test_topics_of_mqtt_become_a_file_whose_levels_name_the_clients(
    mosquitto_port: int, folder: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    monkeypatch.setattr(sampled_messages, "MESSAGES_MAX", 200)
    at = f"h{uuid.uuid4().hex}"
    done = threading.Event()
    generator = np.random.default_rng(2)

    def publish() -> None:
        with Sensor(mosquitto_port) as sensor:
            while not done.is_set():
                for room in ("hall", "roof"):
                    warm, damp = generator.normal([21, 45], 2).round(2)
                    if plain:
                        sensor.publish_all(
                            [(f"{at}/{room}/warm", str(warm)), (f"{at}/{room}/damp", str(damp))]
                        )
                    else:
                        sensor.publish(
                            f"{at}/{room}/climate",
                            json.dumps({"warm": warm, "air": {"damp": damp}}),
                        )

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        broker = f"127.0.0.1:{mosquitto_port}"
        result = init(
            "--mqtt",
            broker,
            "--topic",
            f"{at}/#",
            "--out",
            "a.toml",
            "--seconds",
            "300",
        )
    finally:
        done.set()
        thread.join()
    assert result.exit_code == 0, result.output
    config = load_config(folder / "a.toml")
    settings = mqtt_settings(config)
    assert (settings.client, settings.port) == ("{topic.1}", mosquitto_port)
    assert config.contract.privacy.mode == "formal"
    assert config.contract.federation == at, "named after its topics"
    assert dict(sorted(settings.topics.items())) == (
        {"damp": f"{at}/+/damp", "warm": f"{at}/+/warm"}
        if plain
        else {"damp": f"{at}/+/climate#air.damp", "warm": f"{at}/+/climate#warm"}
    )
    assert topics_of(settings, config.contract, "")
    assert "shoal host --config a.toml" in result.output


def test_topics_of_devices_whose_names_have_slashes_are_of_a_client_for_each() -> None:
    generator = np.random.default_rng(3)
    messages = []
    for number, warm in enumerate(generator.normal(21, 2, 90).round(2).tolist()):
        device = ("kitchen", "hall/lamp", "bridge/state")[number % 3]
        fields = {"state": "online"} if device == "bridge/state" else {"warm": warm}
        messages.append(Sampled(f"zigbee2mqtt/{device}", fields, THEN + number))
    read = time_reader_of("", "")
    stream = sampled_messages._stream_of_topics(messages, {}, read)
    assert stream.settings["client"] == "{topic.1+}"
    assert stream.places["warm"] == "zigbee2mqtt/##warm"
    settings = MqttSettings(topics={"warm": stream.places["warm"]}, client="{topic.1+}")
    named = {settings.client_of_topic(message.topic) for message in messages}
    assert named == {"kitchen", "hall/lamp", "bridge/state"}
    options: dict[str, Any] = {str(option.name): None for option in init_command.params}
    options |= dict.fromkeys(("na_values", "bad_quality", "helpers"), ())
    plan = sampled_messages._plan("mqtt", "zigbee2mqtt/#", stream, messages, options, {})
    assert sorted(plan.understood.clients) == ["hall/lamp", "kitchen"], "a bridge sends no reading"
    plain = [Sampled("a/b", {"": "1"}, THEN), Sampled("a/b/c", {"": "1"}, THEN)]
    with pytest.raises(SettingsError, match="plain numbers"):
        sampled_messages._stream_of_topics(plain, {}, read)


def test_a_sheet_becomes_a_file_whose_bounds_are_no_proposals(folder: Path) -> None:
    Path("rooms.csv").write_text(
        "Name;Unit;Lower;Upper\nTemp;°C;-20;60,5\nCO2;ppm;0;5000\n", encoding="utf-8"
    )
    result = init("--sheet", "rooms.csv")
    assert result.exit_code == 0, result.output
    contract = load_config(folder / "rooms.toml").contract
    assert [
        (feature.name, feature.unit, feature.low, feature.high) for feature in contract.features
    ] == [
        ("Temp", "°C", -20.0, 60.5),
        ("CO2", "ppm", 0.0, 5000.0),
    ]
    assert "PROPOSAL" not in (folder / "rooms.toml").read_text(encoding="utf-8") + result.output


def test_bounds_that_clip_more_than_one_in_a_hundred_are_named_with_new_ones(folder: Path) -> None:
    rows = "".join(f"{37 * n % 97},{37 * n % 89}\n" for n in range(3000))
    Path("a.csv").write_text(f"warm,damp\n{rows}")
    assert init("a.csv", "--public").exit_code == 0
    file = folder / "a.toml"
    high = load_config(file).contract.features[0].high
    file.write_text(file.read_text().replace(f"high = {high!r}", "high = 90.0", 1))
    result = init("a.csv", "--public", "--diff")
    assert "warm: 6.2% of the values" in result.output
    assert "outside 0 to 90 of a.toml" in result.output
    assert f"proposed: 0 to {high:g}" in result.output
    assert "damp: " not in result.output


@pytest.mark.parametrize(
    ("arguments", "why", "error"),
    [
        ([], "name what to look at", SettingsError),
        (["--kafka", "x:1", "--mqtt", "y"], "give one of them", SettingsError),
        (["--kafka", "x:1"], "--topic goes with", SettingsError),
        (["--sheet", "bad.csv"], "line 3", InvalidData),
    ],
)
def test_what_cannot_be_looked_at_is_refused(
    arguments: list[str], why: str, error: type[ShoalError]
) -> None:
    Path("bad.csv").write_text("name,lower,upper\na,0,1\nb,2,1\n")
    result = init(*arguments)
    assert isinstance(result.exception, error)
    assert why in str(result.exception)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"at": "2025-04-01T00:0{}:00+02:00", "flow": 1700000000.5}, "at"),
        ({"made": "2025-04-01", "ts": "17000000{}0"}, "ts"),
        ({"serial": "170000000{}", "flow": 1.5}, ""),
        ({"fw": "2024-03-01", "flow": 1.5, "note": "-"}, ""),
    ],
)
def test_the_time_of_a_message_is_in_the_field_named_so_or_in_dates(
    fields: dict[str, Any], found: str
) -> None:
    rows = [
        {
            name: cell.format(place) if isinstance(cell, str) else cell
            for name, cell in fields.items()
        }
        for place in range(9)
    ]
    assert time_path([Sampled("t", row, 1e9) for row in rows], time_reader_of("", "")) == found
