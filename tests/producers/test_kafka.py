"""A topic of JSON messages as a source: whose they are, what is rejected and where, and each stored
once."""

from __future__ import annotations

import json
import logging
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.config.base import client_name_of
from shoal.config.settings import load_config
from shoal.errors import InvalidState, LogUnavailable, SettingsError
from shoal.producers.kafka import ingest
from shoal.producers.kafka.bookmark import KafkaBookmark
from shoal.producers.kafka.ingest import KafkaCounts, KafkaIngest, open_kafka_ingest
from shoal.producers.producer_command import producer
from shoal.producers.source_type import ProducerTask
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

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        settings: str,
        kept: TopicSettings,
        name: str | None = None,
    ) -> None:
        self.name = name or f"devices-{uuid.uuid4().hex}"
        self.kept = kept
        folder.mkdir(exist_ok=True)
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

    def task(self) -> ProducerTask:
        return ProducerTask(
            load_config(self.file), self.folder, {"name": None, "again": False}, True
        )

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

        # As if it had been killed before its first bookmarks: the logs themselves say what they
        # hold.
        bookmarks = list(topic.folder.glob("producer.*.db"))
        assert len(bookmarks) == 3, "one of each partition, and what they begin with"
        for bookmark in bookmarks:
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


def step_until(holds: Callable[[], bool], *members: KafkaIngest) -> None:
    """Step these in turn until the condition holds; only pytest's timeout limits it."""
    while not holds():
        for member in members:
            member.step(0.01)


def test_two_processes_of_a_group_share_the_partitions_and_store_each_reading_once(
    kafka_bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "shoal")
    group = f'group = "{uuid.uuid4().hex}"\n'
    topic = Topic(kafka_bootstrap, tmp_path, group + NESTED, TopicSettings(partitions=2))
    devices = (PLANT, "hall")
    sent: list[float] = []
    """what each device has sent"""

    def send(count: int) -> None:
        for partition in (0, 1):
            new = [float(len(sent) + number) for number in range(count)]
            for device in devices:
                topic.send(partition, *(message(device, value) for value in new))
            sent.extend(new)

    def is_stored() -> bool:
        return all(topic.values(device) == sent for device in devices)

    counts = [KafkaCounts(), KafkaCounts()]
    with closing(topic.log), ExitStack() as first, ExitStack() as second:
        one = first.enter_context(open_kafka_ingest(topic.task(), counts[0]))
        send(3)
        step_until(is_stored, one)
        assert one.positions == {0: 6, 1: 6}
        other = second.enter_context(open_kafka_ingest(topic.task(), counts[1]))
        step_until(lambda: len(one.positions) == len(other.positions) == 1, one, other)
        assert one.positions.keys() != other.positions.keys()
        send(2)
        step_until(is_stored, one, other)
        assert [count.position for count in counts] == [16, 4]

        # As if it was killed once it had stored readings, before it had saved its bookmark.
        with monkeypatch.context() as killed:
            killed.setattr(KafkaBookmark, "save", lambda _: None)
            send(1)
            step_until(is_stored, one, other)
            killed.setattr(KafkaBookmark, "save", unavailable)
            (left,) = one.positions
            first.close()
        send(1)
        # A process that has lost a partition and does not know so yet still has its bookmark.
        (bookmark,) = topic.folder.glob(f"producer.*.{left}.db")
        with closing(sqlite3.connect(bookmark, isolation_level=None)) as slow:
            slow.execute("BEGIN EXCLUSIVE")
            step_until(lambda: "partition_in_use" in caplog.messages, other)
            assert left not in other.positions
        step_until(lambda: len(other.positions) == 2, other)
        step_until(is_stored, other)
        assert other.positions == {0: 14, 1: 14}
        assert counts[1].already_there > 0, "it has found what the first one had stored"

        # A process with a folder of its own would store a part of each client's readings there.
        stranger = Topic(
            kafka_bootstrap, tmp_path / "other", group + NESTED, topic.kept, topic.name
        )
        with (
            closing(stranger.log),
            open_kafka_ingest(stranger.task(), KafkaCounts()) as elsewhere,
            pytest.raises(InvalidState, match="another folder of readings"),
        ):
            step_until(lambda: bool(elsewhere.positions), other, elsewhere)
        assert not list(stranger.folder.glob("*/readings.db"))
        send(1)
        step_until(is_stored, other)


def unavailable(_: KafkaBookmark) -> None:
    raise LogUnavailable("the disk is full")


def test_more_clients_than_files_may_be_open_are_fed_up_to_the_limit(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "allow_files", lambda _: ingest.FILES_SPARE + 2 * ingest.FILES_EACH)
    settings = f"clients_max = 5\n{NESTED}"
    topic = Topic(kafka_bootstrap, tmp_path, settings, TopicSettings(partitions=2))
    names = [f"device-{number}" for number in range(7)]
    with closing(topic.log):
        for start in (0, 10):
            for number in range(2):
                for partition in (0, 1):
                    value = start + 2 * number + partition
                    topic.send(partition, *(message(name, value) for name in names))
            done = topic.feed()
            assert done["published"] == 5 * 4
            assert done["faults"] == {"crowded": 2 * 4}
    assert sum(topic.values(name) == [0, 1, 2, 3, 10, 11, 12, 13] for name in names) == 5


@pytest.mark.parametrize(
    ("settings", "options", "why"),
    [
        ("", ["--name", "a"], "address and topic"),
        ('address = "kafka://x:1"\ntopic = "t"', [], "give --name CLIENT, or set client"),
        (
            'address = "kafka://x:1"\ntopic = "t"\ngroup = "g"',
            ["--name", "a", "--again"],
            "--again",
        ),
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
