"""A topic of JSON messages as a source: whose they are, what is rejected and where, and each stored
once."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.config.base import client_name_of
from shoal.errors import SettingsError
from shoal.producers.producer_command import producer
from shoal.transports.base import TopicSettings
from shoal.transports.kafka.log import KafkaLog
from tests.federation_text import federation_text
from tests.producers.running_producer import stored_in

FEDERATION = federation_text(
    "t",
    features=[
        {"name": "warm.in", "low": -40, "high": 1e9},
        {"name": "damp", "low": 0, "high": 1e9},
    ],
    models=[{"name": "m", "algorithm": "fcac"}],
    client={"folder": "clients"},
    kafka={},
)
PLANT = "Werk Süd"


class Topic:
    """A topic of somebody's devices, and the federation file of who reads it."""

    def __init__(self, bootstrap: str, folder: Path, settings: str, kept: TopicSettings) -> None:
        self.name = f"devices-{uuid.uuid4().hex}"
        self.folder = folder / "clients"
        self.file = folder / "federation.toml"
        self.file.write_text(
            FEDERATION
            + f'address = "kafka://{bootstrap}"\ntopic = "{self.name}"\ntime = "t"\n{settings}'
        )
        self.log = KafkaLog(f"//{bootstrap}")
        self.log.ensure(self.name, kept)

    def send(self, partition: int, *messages: bytes | dict[str, Any] | None) -> None:
        for message in messages:
            value = json.dumps(message).encode() if isinstance(message, dict) else message
            self.log.publish(self.name, value, b"k", partition=partition)
        self.log.flush()

    def feed(self, *options: str) -> dict[str, Any]:
        arguments = [
            "--config",
            str(self.file),
            "--kafka",
            "--until-idle",
            "0.25",
            "--json",
            *options,
        ]
        result = CliRunner().invoke(producer, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        done: dict[str, Any] = json.loads(result.stdout)
        done["events"] = [
            json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")
        ]
        return done

    def values(self, client: str) -> list[float]:
        return sorted(
            reading.values[0] for reading in stored_in(self.folder).get(client_name_of(client), [])
        )


def message(device: str, warm: float, time: float = 1000.0) -> dict[str, Any]:
    return {"t": time, "dev": {"name": device}, "air": {"warm.in": warm}, "damp": 5}


NESTED = 'client = "dev.name"\n[kafka.fields]\n"warm.in" = \'air."warm.in"\'\n'


def test_two_devices_of_one_topic_are_fed_once_through_restarts_and_lost_files(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    topic = Topic(kafka_bootstrap, tmp_path, NESTED, TopicSettings(partitions=2))
    with closing(topic.log):
        topic.send(
            0, *(message(PLANT, number) for number in range(3)), b"\xff21,75", b"no json", None
        )
        topic.send(
            1, message("hall", 10), {"t": 1, "air": {"warm.in": 1}, "damp": 1}, message(PLANT, 11)
        )
        topic.send(1, {**message("hall", 12), "damp": "21,75"})
        done = topic.feed()
        assert done["clients"] == {"hall": 1, client_name_of(PLANT): 4}
        assert done["faults"] == {"not_text": 1, "not_json": 2, "nameless": 1, "not_a_number": 1}
        assert (topic.values(PLANT), topic.values("hall")) == ([0, 1, 2, 11], [10])
        assert (topic.folder / client_name_of(PLANT) / "name.txt").read_text(
            encoding="utf-8"
        ) == f"{PLANT}\n"
        rejected = {
            event["reason"]: event
            for event in done["events"]
            if event["event"] == "messages_rejected"
        }
        assert {
            reason: (record["partition"], record["offset"]) for reason, record in rejected.items()
        } == {
            "not_text": (0, 3),
            "not_json": (0, 4),
            "nameless": (1, 1),
            "not_a_number": (1, 3),
        }
        assert "21,75" not in json.dumps(done)

        topic.send(1, message("hall", 13))
        assert topic.feed()["clients"] == {"hall": 1}, "from the bookmark on"

        # As if it had been killed before its first bookmark: the logs themselves say what they
        # hold.
        (bookmark,) = topic.folder.glob("producer.*.db")
        bookmark.unlink()
        topic.send(0, message("hall", 14))
        done = topic.feed()
        assert (done["published"], done["already_there"]) == (1, 6)

        for lost in (topic.folder / "hall").glob("readings.db*"):
            lost.unlink()
        assert topic.feed()["clients"] | {client_name_of(PLANT): 0} == {
            "hall": 3,
            client_name_of(PLANT): 0,
        }
        assert topic.values("hall") == [10, 13, 14]
        assert topic.values(PLANT) == [0, 1, 2, 11]

        assert topic.feed("--again")["published"] == 7
        elsewhere = topic.feed("--name", PLANT, "--readings", str(tmp_path / "elsewhere"))
        assert elsewhere["clients"] == {client_name_of(PLANT): 4}


def test_a_site_that_starts_with_what_is_new_misses_nothing_from_then_on(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = 'start = "newest"\n[kafka.fields]\n"warm.in" = "w"\n'
    topic = Topic(kafka_bootstrap, tmp_path, settings, TopicSettings())
    with closing(topic.log):
        topic.send(0, {"t": 1, "w": 1, "damp": 1})
        assert topic.feed("--name", "attic")["published"] == 0
        topic.send(0, {"t": 2, "w": 2, "damp": 1})
        assert topic.feed("--name", "attic")["published"] == 1
        assert topic.values("attic") == [2]


@pytest.mark.parametrize(
    ("settings", "options", "why"),
    [
        ("", ["--name", "a"], "address and topic"),
        ('address = "kafka://x:1"\ntopic = "t"', [], "give --name CLIENT, or set client"),
        ('address = "x:1"\ntopic = "t"', ["--name", "a"], "kafka://host:port"),
        ('time = "a..b"', [], "time: write a field"),
        ("client = 'a.\"b'", [], "client: write a field"),
        ('[kafka.fields]\nwarm = "w"', [], "'warm' is no feature"),
        ('sasl = "plain"\nuser = "u"\nsecret_file = "s"', [], "needs tls = true"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, settings: str, options: list[str], why: str
) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(FEDERATION + settings)
    result = CliRunner().invoke(producer, ["--config", str(file), "--kafka", *options])
    assert isinstance(result.exception, SettingsError)
    assert why in str(result.exception)
