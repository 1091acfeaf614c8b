"""What was found out about kafka-python and Kafka the hard way, where no other test would say that
it was forgotten."""

from __future__ import annotations

import re
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import google_crc32c
import pytest
from kafka import KafkaProducer
from kafka.record import util

from shoal.transports.base import latest
from shoal.transports.kafka import checksums
from shoal.transports.kafka.consumer import FETCH_BYTES
from shoal.transports.kafka.log import IN_FLIGHT_BYTES_MAX, KafkaLog

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[KafkaLog]:
    with closing(KafkaLog(f"//{kafka_bootstrap}")) as log:
        yield log


@pytest.fixture
def topic(log: KafkaLog) -> str:
    name = f"guarded-{uuid.uuid4().hex}"
    log.ensure(name)
    log.publish(name, b"v", b"k")
    log.flush()
    log.read(name, {0: 0}, timeout_s=30.0)
    return name


def test_the_library_is_one_of_those_that_were_tried_and_has_its_fast_checksums() -> None:
    needed = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]["kafka"]
    # Versions before deliver nothing after a rebalance or hang in a flush; with checksums in Python
    # all is twenty times slower.
    assert needed == ["kafka-python>=3.0.12,<3.1", "google-crc32c>=1.5"]
    assert re.fullmatch(r"3\.0\.(1[2-9]|[2-9]\d)", version("kafka-python"))
    assert google_crc32c.implementation == "c"


def test_checksums_are_those_of_the_package_whose_licence_allows_any_use() -> None:
    # kafka-python itself prefers another package where that is installed.
    (computed,) = util.calc_crc32c.__defaults__
    assert computed in (checksums.crc32c, util.crc32c_c)
    for content in (b"", b"123456789", bytes(range(256)) * 100):
        buffer = memoryview(bytearray(content))
        assert checksums.crc32c(buffer) == util.crc32c_py(buffer)


def test_what_kafka_python_computes_in_python_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util.calc_crc32c, "__defaults__", (util.crc32c_py,))
    checksums.use_fast_checksums()
    assert util.calc_crc32c.__defaults__ == (checksums.crc32c,)
    assert util.calc_crc32c(memoryview(bytearray(b"123456789"))) == 0xE3069283


def test_every_kind_of_client_comes_back_within_a_second_of_its_broker(
    log: KafkaLog, topic: str
) -> None:
    clients = {
        "writer": log._writer._producer.config,
        "reader": log._reader._client.config,
        "topics": log._topics._client.config,
    }
    assert {
        name: config["reconnect_backoff_max_ms"] for name, config in clients.items()
    } == dict.fromkeys(clients, 1000)


def test_a_reader_is_in_no_group_and_jumps_nowhere(log: KafkaLog, topic: str) -> None:
    config = log._reader._client.config
    assert config["group_id"] is None
    assert config["auto_offset_reset"] == "none"
    assert not config["enable_auto_commit"]


def test_memory_is_bounded_at_both_ends(log: KafkaLog, topic: str) -> None:
    assert log._reader._client.config["max_partition_fetch_bytes"] == FETCH_BYTES <= 4 * 2**20
    assert log._writer._bytes_max == IN_FLIGHT_BYTES_MAX == 64 * 2**20


def test_a_transaction_that_a_stranger_left_open_hides_nothing_from_who_comes_later(
    log: KafkaLog, topic: str, kafka_bootstrap: str
) -> None:
    with closing(
        KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=topic)
    ) as stranger:
        stranger.init_transactions()
        stranger.begin_transaction()
        stranger.send(topic, b"not yet", b"stranger")
        stranger.flush()
        log.publish(topic, b"newer", b"k")
        log.flush()
        found = latest(log, topic)
        assert found[b"k"].value == b"newer"
        stranger.abort_transaction()
