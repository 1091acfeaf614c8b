"""The contract of a log, tested on every transport (see `PLACES`)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from shoal.errors import LogError
from shoal.transports import open_log
from shoal.transports.base import (
    Headers,
    Log,
    Positions,
    RecordBatch,
    TopicSettings,
    beginning,
    latest,
    publish_batch,
)
from tests.laws.log_places import WAIT_S, Place, everything, publish, values


def test_an_empty_topic_has_nothing_to_read(log: Log, topic: str) -> None:
    assert isinstance(log, Log)
    log.ensure(topic)
    log.flush()
    assert log.bounds(topic) == {0: (0, 0)}
    assert beginning(log, topic) == {0: 0}
    assert log.read(topic, {0: 0}) == ([], {0: 0})
    assert log.read(topic, {0: 0}, timeout_s=0.01) == ([], {0: 0})
    assert log.read(topic, {}, timeout_s=WAIT_S) == ([], {})
    assert latest(log, topic) == {}


def test_an_undeclared_topic_is_an_error(log: Log, topic: str) -> None:
    with pytest.raises(LogError, match=topic):
        log.publish(topic, b"")
    with pytest.raises(LogError, match=topic):
        log.read(topic, {0: 0})
    with pytest.raises(LogError, match=topic):
        log.bounds(topic)
    with pytest.raises(LogError, match=topic):
        log.identity(topic)


def test_records_come_back_in_order_and_from_any_position(log: Log, topic: str) -> None:
    log.ensure(topic)
    publish(log, topic, b"a", b"b", b"c")
    records, after = log.read(topic, {0: 0}, timeout_s=WAIT_S)
    assert [
        (record.topic, record.partition, record.offset, record.value) for record in records
    ] == [
        (topic, 0, 0, b"a"),
        (topic, 0, 1, b"b"),
        (topic, 0, 2, b"c"),
    ]
    assert after == {0: 3}
    assert log.bounds(topic) == {0: (0, 3)}
    assert log.read(topic, after) == ([], after)
    assert values(everything(log, topic, {0: 1})) == [b"b", b"c"]
    assert everything(log, topic) == everything(log, topic, limit=1) == records


BATCHES = {
    "nothing": RecordBatch([], (("type", b"reading"),), [("row", [])]),
    "no headers": RecordBatch([b"a", b"", b"c"], ()),
    "equal headers": RecordBatch([b"a", b"b"], (("type", b"reading"), ("v", b"1"))),
    "one that varies": RecordBatch(
        [b"a", b"b", b"c"], (("type", b"reading"),), [("row", [b"9", b"10", b""])]
    ),
    "two that vary": RecordBatch(
        [b"a", b"b", b"c"],
        (("type", b"reading"),),
        [("row", [b"9", b"10", b"11"]), ("naïve ☃", [b"", b"\xff" * 300, b"u"])],
    ),
    "only what varies": RecordBatch([b"a" * 70_000, b"b"], (), [("row", [b"1" * 70_000, b"2"])]),
    "many headers": RecordBatch(
        [b"a"], tuple((f"h{i}", bytes([i])) for i in range(20)), [("row", [b"1"])]
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_stored_as_its_records_are_one_by_one(log: Log, topic: str, name: str) -> None:
    log.ensure(topic, TopicSettings(partitions=2))
    publish_batch(log, topic, BATCHES[name], 1)
    log.flush()
    records = everything(log, topic)
    assert [(record.value, record.headers) for record in records] == list(BATCHES[name].records())
    assert [(record.partition, record.offset, record.key) for record in records] == [
        (1, offset, None) for offset in range(len(BATCHES[name].values))
    ]


NOT_ALL_BYTES: list[Any] = [b"", 1]
"""values of a header, of which one is a number"""


@pytest.mark.parametrize(
    "batch",
    [
        RecordBatch([b"a", b"b" * 3000], ()),
        RecordBatch([b"a", b"b"], (), [("row", [b"", b"1" * 3000])]),
        RecordBatch([b"a", "b"], ()),  # type: ignore[list-item]  # that is tested
        RecordBatch([b"a", b"b"], (), [("row", NOT_ALL_BYTES)]),
        RecordBatch([b"a", b"b"], ((1, b""),)),  # type: ignore[arg-type]  # that is tested
    ],
    ids=["value too large", "header too large", "value", "content", "header"],
)
def test_a_batch_with_a_record_that_a_topic_does_not_take_is_an_error(
    log: Log, topic: str, batch: RecordBatch
) -> None:
    log.ensure(topic, TopicSettings(record_bytes_max=2000))
    with pytest.raises(LogError, match=topic):
        publish_batch(log, topic, batch, 0)


def test_a_batch_without_a_content_for_every_record_is_a_slip_of_its_maker(
    log: Log, topic: str
) -> None:
    log.ensure(topic)
    with pytest.raises(ValueError, match="zip"):
        publish_batch(log, topic, RecordBatch([b"a", b"b"], (), [("row", [b"1"])]), 0)


def test_reading_changes_neither_the_log_nor_the_positions_it_was_given(
    log: Log, topic: str
) -> None:
    log.ensure(topic)
    publish(log, topic, b"a", b"b")
    at = {0: 0}
    first, _ = log.read(topic, at, timeout_s=WAIT_S)
    again, _ = log.read(topic, at, timeout_s=WAIT_S)
    assert at == {0: 0}
    assert list(first) == list(again)


def test_positions_may_come_from_numpy(log: Log, topic: str) -> None:
    log.ensure(topic)
    publish(log, topic, b"a", b"b")
    at: Positions = {np.int64(0): np.int64(1)}  # type: ignore[dict-item]  # that is tested
    records, after = log.read(topic, at, timeout_s=WAIT_S)
    assert values(records) == [b"b"]
    assert after == {0: 2}


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, b"", ()),
        (None, b"v", (("type", b"update"),)),
        (b"", b"v", (("", b""),)),
        (b"k", None, ()),
        (b"k\x00'\"", bytes(range(256)), (("naïve ☃", b"\xff"), ("twice", b"1"), ("twice", b"2"))),
        (b"k", b"v" * 1_000_000, tuple((f"h{i}", bytes([i])) for i in range(50))),
    ],
)
def test_key_value_and_headers_come_back_as_they_were(
    log: Log, topic: str, key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    log.ensure(topic)
    log.publish(topic, value, key, headers)
    log.flush()
    (record,) = everything(log, topic)
    assert (record.key, record.value, record.headers) == (key, value, headers)


@pytest.mark.parametrize(
    ("value", "key", "headers"),
    [
        ("text", None, ()),
        (bytearray(b"it could still change"), None, ()),
        (b"", "text", ()),
        (b"", None, (("name", "text"),)),
        (b"", None, ((b"name", b""),)),
        (b"", None, (("\ud800", b""),)),
        (b"", None, ("pair",)),
    ],
)
def test_what_is_not_bytes_is_refused_and_harms_no_other_record(
    log: Log, topic: str, value: object, key: object, headers: object
) -> None:
    log.ensure(topic)
    log.publish(topic, b"before")
    with pytest.raises(LogError, match="bytes"):
        log.publish(topic, value, key, headers)  # type: ignore[arg-type]  # wrong on purpose
    publish(log, topic, b"after")
    assert values(everything(log, topic)) == [b"before", b"after"]


def test_partitions_are_logs_of_their_own(log: Log, topic: str) -> None:
    log.ensure(topic, TopicSettings(partitions=3))
    publish(log, topic, b"0a", b"0b")
    publish(log, topic, b"2a", partition=2)
    assert log.bounds(topic) == {0: (0, 2), 1: (0, 0), 2: (0, 1)}
    assert values(everything(log, topic, {0: 0})) == [b"0a", b"0b"]
    assert values(everything(log, topic, {1: 0})) == []
    assert values(everything(log, topic, {2: 0})) == [b"2a"]
    records, after = log.read(topic, {1: 0, 2: 0}, timeout_s=WAIT_S)
    assert values(records) == [b"2a"]
    assert after == {1: 0, 2: 1}


def test_a_key_belongs_to_one_partition_which_is_the_same_on_every_log(
    log: Log, topic: str
) -> None:
    log.ensure(topic, TopicSettings(partitions=3))
    for number in range(12):
        log.publish(topic, b"%d" % number, b"key%d" % (number % 6))
    log.publish(topic, b"nobody's")
    log.publish(topic, b"put there", b"key0", partition=2)
    log.flush()
    found = {place: values(everything(log, topic, {place: 0})) for place in range(3)}
    assert found == {
        0: [b"3", b"4", b"9", b"10", b"nobody's"],
        1: [b"1", b"2", b"5", b"7", b"8", b"11"],
        2: [b"0", b"6", b"put there"],
    }


@pytest.mark.parametrize("partition", [-1, 1, 10**12])
def test_a_partition_that_is_not_there_is_refused(log: Log, topic: str, partition: int) -> None:
    log.ensure(topic)
    with pytest.raises(LogError, match=str(partition)):
        log.publish(topic, b"", partition=partition)
    with pytest.raises(LogError, match=str(partition)):
        log.read(topic, {0: 0, partition: 0})


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_busy_partition_does_not_keep_the_others_from_being_read(
    log: Log, topic: str, limit: int
) -> None:
    log.ensure(topic, TopicSettings(partitions=3))
    publish(log, topic, *[b"busy"] * 30, partition=1)
    for partition in (0, 2):
        publish(log, topic, *[b"quiet"] * 3, partition=partition)
    assert len(everything(log, topic, limit=limit)) == 36
    at = beginning(log, topic)
    seen = 0
    while seen < 6:  # the busy one never runs dry, and yet the quiet ones are read
        records, at = log.read(topic, at, limit, WAIT_S)
        seen += values(records).count(b"quiet")
        publish(log, topic, *[b"busy"] * limit, partition=1)
        assert log.bounds(topic)[1][1] < 300


@pytest.mark.parametrize("limit", [0, -1])
def test_a_read_of_nothing_is_refused(log: Log, topic: str, limit: int) -> None:
    log.ensure(topic)
    with pytest.raises(LogError, match="limit"):
        log.read(topic, {0: 0}, limit)


def test_a_position_that_the_log_has_not_reached_is_refused_for_the_log_was_replaced(
    log: Log, topic: str
) -> None:
    log.ensure(topic)
    publish(log, topic, b"a")
    with pytest.raises(LogError, match="ends at 1"):
        log.read(topic, {0: 2})
    with pytest.raises(LogError, match="-1"):
        log.read(topic, {0: -1})


def test_showing_progress_changes_no_reader(log: Log, topic: str) -> None:
    log.ensure(topic)
    publish(log, topic, b"a", b"b")
    log.show_progress("somebody", topic, {0: 1})
    assert values(everything(log, topic, {0: 0})) == [b"a", b"b"]


def test_a_waiting_reader_returns_when_a_record_arrives(log: Log, topic: str, place: Place) -> None:
    log.ensure(topic)
    about_to_wait = threading.Event()

    def publish_later() -> None:
        other = open_log(place.address)
        about_to_wait.wait()
        publish(other, topic, b"news")
        other.close()

    speaker = threading.Thread(target=publish_later)
    speaker.start()
    about_to_wait.set()
    records, after = log.read(topic, {0: 0}, timeout_s=WAIT_S)
    speaker.join()
    assert values(records) == [b"news"]
    assert after == {0: 1}
