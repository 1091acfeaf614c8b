"""How every log keeps a topic: declared once, bounded, compacted, the same one after a restart."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from shoal.errors import LogError, OffsetOutOfRange, SettingsError
from shoal.transports import open_log
from shoal.transports.base import Log, TopicSettings, beginning, latest
from tests.laws.log_places import WAIT_S, Place, everything, publish, values

COMPACT = TopicSettings(compact=True)


def test_declaring_twice_changes_nothing(log: Log, topic: str) -> None:
    settings = TopicSettings(
        partitions=2, retain_bytes=10_000, retain_s=3600.0, record_bytes_max=1000
    )
    log.ensure(topic, settings)
    identity = log.identity(topic)
    publish(log, topic, b"a")
    log.ensure(topic, settings)
    log.ensure(topic)  # whatever it is
    assert log.identity(topic) == identity
    assert log.bounds(topic) == {0: (0, 1), 1: (0, 0)}


def test_many_processes_that_declare_a_topic_at_once_create_it_once(
    place: Place, topic: str
) -> None:
    people = 4
    rounds = 25
    together = threading.Barrier(people)

    def declare(_: int) -> list[bytes]:
        log = open_log(place.address)
        identities = []
        for number in range(rounds):
            together.wait(WAIT_S)
            log.ensure(f"{topic}-{number}", TopicSettings(partitions=2))
            identities.append(log.identity(f"{topic}-{number}"))
        log.close()
        return identities

    with ThreadPoolExecutor(people) as pool:
        first, *others = pool.map(declare, range(people))
    assert len(set(first)) == rounds
    assert all(identities == first for identities in others)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (TopicSettings(partitions=2), "partitions"),
        (COMPACT, "compact"),
        (TopicSettings(retain_bytes=5), "retain_bytes"),
        (TopicSettings(retain_s=5.0), "retain_s"),
        (TopicSettings(record_bytes_max=5), "record_bytes_max"),
    ],
)
def test_declaring_with_other_settings_is_refused_by_name(
    log: Log, place: Place, topic: str, other: TopicSettings, named: str
) -> None:
    log.ensure(topic, TopicSettings())
    someone = open_log(place.address)
    for opened in (log, someone):
        with pytest.raises(LogError, match=named):
            opened.ensure(topic, other)
    someone.close()
    publish(log, topic, b"still well")
    assert values(everything(log, topic)) == [b"still well"]


@pytest.mark.parametrize(
    "settings",
    [
        TopicSettings(partitions=0),
        TopicSettings(partitions=10**9),
        TopicSettings(retain_bytes=0),
        TopicSettings(retain_bytes=2**64),
        TopicSettings(retain_s=-1.0),
        TopicSettings(retain_s=float("nan")),
        TopicSettings(record_bytes_max=0),
    ],
)
def test_settings_that_no_topic_can_have_are_refused(
    log: Log, topic: str, settings: TopicSettings
) -> None:
    with pytest.raises(SettingsError, match="must be from"):
        log.ensure(topic, settings)
    with pytest.raises(LogError):
        log.bounds(topic)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 249,
        "x" * 100_000,
        "naïve ☃ 温度 🐟",
        "records; DROP TABLE topics; --",
        "\"'`[]\\%_?*",
        "nul\x00nul",
        "half a \ud800 character",
        "../../etc",
        "line\nline",
    ],
)
def test_any_name_is_carried_or_refused_and_harms_no_other_topic(
    log: Log, topic: str, name: str
) -> None:
    log.ensure(topic)
    try:
        log.ensure(name)
    except LogError:
        with pytest.raises(LogError):
            log.publish(name, b"here")
    else:
        publish(log, name, b"here")  # where others may have been: these names are not ours alone
        assert values(everything(log, name))[-1:] == [b"here"]
    publish(log, topic, b"there")
    assert values(everything(log, topic)) == [b"there"]


def test_a_record_too_large_is_refused_before_it_harms_others(log: Log, topic: str) -> None:
    log.ensure(topic, TopicSettings(record_bytes_max=1000))
    log.publish(topic, b"before")
    for value, key, headers in (
        (b"v" * 1001, None, ()),
        (b"v" * 900, b"k" * 101, ()),
        (None, b"k" * 991, (("five5", b"five5"),)),
    ):
        with pytest.raises(LogError, match="1001"):
            log.publish(topic, value, key, headers)
    log.publish(topic, b"v" * 490, b"k" * 500, (("five5", b"five5"),))
    publish(log, topic, b"after")
    assert values(everything(log, topic)) == [b"before", b"v" * 490, b"after"]


def test_what_is_flushed_is_there_after_a_restart_and_offsets_continue(
    log: Log, place: Place, topic: str
) -> None:
    log.ensure(topic)
    publish(log, topic, b"a", b"b")
    before = everything(log, topic)
    log.close()
    again = open_log(place.address)
    publish(again, topic, b"c")
    records = everything(again, topic)
    again.close()
    assert records[:2] == before
    assert [(record.offset, record.value) for record in records] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
    ]


def test_closing_flushes_and_closing_twice_is_harmless_and_a_closed_log_raises(
    log: Log, place: Place, topic: str
) -> None:
    log.ensure(topic)
    log.publish(topic, b"a")
    log.close()
    log.close()
    with pytest.raises(LogError, match="closed"):
        log.read(topic, {0: 0})
    with pytest.raises(LogError, match="closed"):
        log.publish(topic, b"b")
    with pytest.raises(LogError, match="closed"):
        log.flush()
    again = open_log(place.address)
    assert values(everything(again, topic)) == [b"a"]
    again.close()


def test_a_topic_is_the_same_one_until_it_is_created_again(
    log: Log, place: Place, topic: str
) -> None:
    log.ensure(topic)
    identity = log.identity(topic)
    log.ensure(topic + "-other")
    assert len(identity) == 16
    assert log.identity(topic + "-other") != identity
    log.close()

    again = open_log(place.address)
    assert again.identity(topic) == identity
    again.close()

    place.delete(topic)
    new = open_log(place.address)
    new.ensure(topic)
    assert len(new.identity(topic)) == 16
    assert new.identity(topic) != identity
    new.close()


def test_retention_removes_the_oldest_and_a_late_reader_gets_an_error(log: Log, topic: str) -> None:
    log.ensure(topic, TopicSettings(retain_bytes=50_000))
    sent = 0
    patience = time.monotonic() + 250
    while log.bounds(topic)[0][0] == 0:
        assert time.monotonic() < patience, "nothing was ever dropped"
        if sent < 20_000:
            publish(log, topic, *[b"%09d" % (sent + i) + b"." * 991 for i in range(100)])
            sent += 100
        else:
            time.sleep(0.1)  # a broker looks after its topics when it has the time
    first = end = 0
    while log.bounds(topic)[0] != (first, end):  # a broker drops records when it has the time
        first, end = log.bounds(topic)[0]
        raised = []
        for late in (0, first - 1):
            with pytest.raises(OffsetOutOfRange) as gone:
                log.read(topic, {0: late})
            raised.append(
                (gone.value.topic, gone.value.partition, gone.value.asked, gone.value.first)
            )
        with suppress(OffsetOutOfRange):
            kept = everything(log, topic, {0: first})
    assert end == sent
    assert raised == [(topic, 0, 0, first), (topic, 0, first - 1, first)]
    assert [int((record.value or b"")[:9]) for record in kept] == list(range(first, end))
    assert [record.offset for record in kept] == list(range(first, end))


def test_compaction_keeps_the_newest_of_each_key_and_its_gaps_are_no_loss(
    log: Log, topic: str
) -> None:
    log.ensure(topic, COMPACT)
    for i in range(60):
        log.publish(topic, b"%d" % i, key=b"key%d" % (i % 3))
        if i % 7 == 0:
            log.flush()
    log.flush()
    assert log.bounds(topic) == {0: (0, 60)}
    records = everything(log, topic, {0: 0})  # from before every gap, and no OffsetOutOfRange
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert all(record.value == b"%d" % record.offset for record in records)
    assert {57, 58, 59} <= set(offsets)
    assert values(everything(log, topic, {0: 58})) == [b"58", b"59"]
    _, after = log.read(topic, {0: 57}, 3, WAIT_S)
    assert after == {0: 60}


def test_the_compacted_view_has_the_newest_of_each_key_and_no_tombstones(
    log: Log, topic: str
) -> None:
    log.ensure(topic, TopicSettings(partitions=2, compact=True))
    for i in range(2000):  # more than one read takes, the last offset a gap
        log.publish(topic, b"%d" % i, key=b"key%d" % (i % 4), partition=i % 2)
    log.publish(topic, None, key=b"key0", partition=0)
    log.publish(topic, None, key=b"never there", partition=0)
    log.publish(topic, b"anew", key=b"key2", partition=0)
    log.flush()
    found = {key: record.value for key, record in latest(log, topic).items()}
    assert found == {b"key1": b"1997", b"key2": b"anew", b"key3": b"1999"}


def test_the_compacted_view_of_a_topic_kept_whole_is_the_same_and_leaves_out_what_has_no_key(
    log: Log, topic: str
) -> None:
    log.ensure(topic)
    for key, value in ((b"a", b"1"), (None, b"2"), (b"b", b"3"), (b"a", b"4"), (b"b", None)):
        log.publish(topic, value, key)
    log.flush()
    assert len(everything(log, topic)) == 5
    assert {key: record.value for key, record in latest(log, topic).items()} == {b"a": b"4"}


def test_a_compacted_topic_refuses_a_record_without_a_key(log: Log, topic: str) -> None:
    log.ensure(topic, COMPACT)
    with pytest.raises(LogError, match="key"):
        log.publish(topic, b"whose?")
    log.publish(topic, b"mine", key=b"me")
    log.flush()
    assert values(everything(log, topic)) == [b"mine"]
    assert beginning(log, topic) == {0: 0}
