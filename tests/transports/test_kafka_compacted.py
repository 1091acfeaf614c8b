"""A topic after the brokers' own cleaner has been through it: most offsets are gone, and nothing is
lost."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from shoal.transports.base import Record, TopicSettings, beginning, latest
from shoal.transports.kafka.log import KafkaLog

KEYS = 4
WRITTEN = 400


@pytest.fixture(scope="module")
def log(kafka_bootstrap: str) -> Iterator[KafkaLog]:
    with closing(KafkaLog(f"//{kafka_bootstrap}")) as log:
        yield log


@pytest.fixture(scope="module")
def cleaned(log: KafkaLog, kafka_bootstrap: str) -> str:
    """A compacted topic of 400 records and a tombstone, in which the cleaner has been: only the
    newest of each key."""
    topic = f"cleaned-{uuid.uuid4().hex}"
    log.ensure(topic, TopicSettings(compact=True))
    hurry = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, hurry)])
    for number in range(WRITTEN):
        log.publish(topic, b"%d" % number, b"key%d" % (number % KEYS))
        if number % 50 == 49:
            log.flush()
    log.publish(topic, None, b"key0")
    log.flush()
    rolled = 0
    while len(everything(log, topic)) - rolled > KEYS + 1:
        # The newest segment is never cleaned: something has to come for it to become an older one.
        rolled += 1
        log.publish(topic, b"%d" % rolled, b"rolling%d" % rolled)
        log.flush()
    return topic


def everything(log: KafkaLog, topic: str, at: int | None = None, limit: int = 500) -> list[Record]:
    position = beginning(log, topic) if at is None else {0: at}
    end = log.bounds(topic)[0][1]
    found = []
    while position[0] < end:
        records, position = log.read(topic, position, limit, timeout_s=30.0)
        found += records
    return found


def test_the_bounds_do_not_move_when_records_between_them_go(log: KafkaLog, cleaned: str) -> None:
    first, end = log.bounds(cleaned)[0]
    assert first == 0
    # The record without a value comes after those that were written, even where the cleaner was so
    # fast that no further one was needed.
    assert end >= WRITTEN + 1


def test_reading_goes_over_the_gaps_from_anywhere_and_by_any_step(
    log: KafkaLog, cleaned: str
) -> None:
    kept = everything(log, cleaned, 0)
    offsets = [record.offset for record in kept]
    assert offsets == sorted(set(offsets))
    assert offsets[0] > 0, "the cleaner was not there"
    assert len(offsets) < WRITTEN / 2
    for limit in (1, 2, 3):
        assert everything(log, cleaned, 0, limit) == kept
    for start in (1, 7, offsets[0], offsets[0] + 1, offsets[1], WRITTEN // 2, WRITTEN):
        assert everything(log, cleaned, start) == [
            record for record in kept if record.offset >= start
        ]


def test_a_position_in_a_gap_is_no_lost_position(log: KafkaLog, cleaned: str) -> None:
    records, after = log.read(cleaned, {0: 5}, 1, timeout_s=30.0)
    assert records[0].offset > 5
    assert after[0] > records[0].offset
    assert log.read(cleaned, {0: 5}, 1, timeout_s=30.0) == (records, after)


def test_the_newest_of_each_key_is_what_it_was_and_a_tombstone_removes_its_key(
    log: KafkaLog, cleaned: str
) -> None:
    newest = {
        key: record.value for key, record in latest(log, cleaned).items() if key.startswith(b"key")
    }
    assert newest == {b"key%d" % key: b"%d" % (WRITTEN - KEYS + key) for key in range(1, KEYS)}
