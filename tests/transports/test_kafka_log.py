"""What only the Kafka log has to get right, on a real broker that stays up; the laws of every log
are in tests/laws."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from shoal.errors import LogError, OffsetOutOfRange, SettingsError
from shoal.transports.base import TopicSettings, beginning, latest
from shoal.transports.kafka.consumer import UNREADABLE
from shoal.transports.kafka.log import KafkaLog
from shoal.transports.kafka.settings import KafkaSettings

WAIT_S = 120.0


class NotUtf8(str):
    """A header's name as a hostile sender writes it."""

    def encode(self, *_: str) -> bytes:
        return b"\xff\xfe"


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[KafkaLog]:
    with closing(KafkaLog(f"//{kafka_bootstrap}")) as log:
        yield log


@pytest.fixture
def admin(kafka_bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        yield admin


@pytest.fixture
def topic(log: KafkaLog) -> str:
    name = f"kafka-{uuid.uuid4().hex}"
    log.ensure(name)
    return name


def values(log: KafkaLog, topic: str) -> list[bytes | None]:
    at = beginning(log, topic)
    found = []
    while (read := log.read(topic, at))[1] != at:
        found += [record.value for record in read[0]]
        at = read[1]
    return found


@pytest.mark.parametrize(
    "address",
    [
        "//",
        "//host",
        "host:9092",
        "//host:port",
        "//a:1,",
        "//user:secret@host:9092",
        "//a:1/topic",
    ],
)
def test_an_address_that_names_no_brokers_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="kafka://host:port"):
        KafkaLog(address)


def test_an_unused_log_can_be_closed(kafka_bootstrap: str) -> None:
    log = KafkaLog(f"//{kafka_bootstrap}")
    log.close()
    log.close()


def test_a_first_read_finds_what_is_there_however_short_it_may_wait(
    kafka_bootstrap: str, topic: str
) -> None:
    with closing(KafkaLog(f"//{kafka_bootstrap}")) as writer:
        writer.publish(topic, b"there")
    for timeout_s in (0.0, 0.001, 0.005):
        with closing(KafkaLog(f"//{kafka_bootstrap}")) as reader:
            records, after = reader.read(topic, {0: 0}, timeout_s=timeout_s)
            assert [record.value for record in records] == [b"there"]
            assert after == {0: 1}


def test_a_record_that_the_broker_refuses_after_all_does_not_end_the_log(
    log: KafkaLog, admin: KafkaAdminClient, topic: str
) -> None:
    log.publish(topic, b"before")
    log.flush()
    limit = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "1000"})
    admin.alter_configs([limit])
    log.publish(topic, b"x" * 5000)
    with pytest.raises(LogError, match="MessageSizeTooLarge"):
        log.flush()
    for word in (b"after", b"that"):
        log.publish(topic, word)
        log.flush()
    assert values(log, topic) == [b"before", b"after", b"that"]


def test_a_record_beyond_any_request_is_refused_and_harms_nothing(log: KafkaLog) -> None:
    name = f"kafka-{uuid.uuid4().hex}"
    log.ensure(name, TopicSettings(record_bytes_max=2**28))
    with pytest.raises(LogError, match="MessageSizeTooLarge"):
        log.publish(name, b"x" * (91 * 1024 * 1024))
    log.publish(name, b"after")
    log.flush()
    assert values(log, name) == [b"after"]


def test_a_record_of_the_largest_size_travels_and_is_read_beyond_any_fetch_size(
    log: KafkaLog,
) -> None:
    name = f"kafka-{uuid.uuid4().hex}"
    log.ensure(name, TopicSettings(record_bytes_max=32 * 1024 * 1024))
    large = bytes(range(256)) * (32 * 4096)
    log.publish(name, large)
    log.publish(name, b"next")
    log.flush()
    assert values(log, name) == [large, b"next"]


def test_more_than_may_be_on_its_way_waits_and_is_stored_all_the_same(
    kafka_bootstrap: str, topic: str
) -> None:
    with closing(KafkaLog(f"//{kafka_bootstrap}", in_flight_bytes_max=10_000)) as log:
        for number in range(200):
            log.publish(topic, b"%d" % number + b"." * 3000)
        log.publish(topic, b"x" * 20_000)  # one record always has room
        log.flush()
        assert len(values(log, topic)) == 201


def test_records_removed_between_two_questions_are_an_error_and_not_a_silent_jump(
    log: KafkaLog, admin: KafkaAdminClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        log.publish(topic, b"%d" % number)
    log.flush()
    asked = log._topics.bounds

    def asked_just_before_retention(
        name: str, partitions: Iterable[int]
    ) -> dict[int, tuple[int, int]]:
        found = asked(name, partitions)
        monkeypatch.undo()
        admin.delete_records({TopicPartition(topic, 0): 12})
        return found

    monkeypatch.setattr(log._topics, "bounds", asked_just_before_retention)
    with pytest.raises(OffsetOutOfRange) as gone:
        log.read(topic, {0: 5}, timeout_s=WAIT_S)
    assert (gone.value.asked, gone.value.first) == (5, 12)
    assert log.read(topic, {0: 12}, timeout_s=WAIT_S)[0][0].value == b"12"


def test_a_topic_created_again_while_the_log_is_open_is_another_topic(
    log: KafkaLog, admin: KafkaAdminClient, topic: str
) -> None:
    log.identity(topic)
    admin.delete_topics([topic])
    while topic in admin.list_topics():
        pass
    with pytest.raises(LogError, match="is not there"):
        log.identity(topic)
    admin.create_topics(
        {topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True
    )
    with pytest.raises(LogError, match="created again"):
        log.identity(topic)


def test_a_topic_created_by_another_program_is_checked_by_name_and_replication(
    kafka_bootstrap: str, admin: KafkaAdminClient
) -> None:
    name = f"kafka-{uuid.uuid4().hex}"
    configs = {"retention.ms": "5000", "max.message.bytes": "100000"}
    admin.create_topics({name: {"num_partitions": 3, "replication_factor": 1, "configs": configs}})
    with closing(KafkaLog(f"//{kafka_bootstrap}", KafkaSettings(replication=2))) as log:
        log.ensure(name)
        with pytest.raises(LogError) as caught:
            log.ensure(name, TopicSettings())
    for difference in (
        "partitions is 3",
        "retain_s is 5.0",
        "record_bytes_max is 34464",
        "replication is 1, not 2",
    ):
        assert difference in str(caught.value)


def test_a_topic_that_would_lose_what_counts_as_stored_is_reported(
    kafka_bootstrap: str, admin: KafkaAdminClient, log: KafkaLog, topic: str
) -> None:
    with closing(KafkaLog(f"//{kafka_bootstrap}", KafkaSettings(replication=3))) as careful:
        with pytest.raises(LogError, match=r"replication is 1, not 3") as caught:
            careful.ensure(topic, TopicSettings())
        assert "min.insync.replicas is 1, not 2" in str(caught.value)
    log.ensure(topic, TopicSettings())
    by_the_senders_clock = ConfigResource(
        ConfigResourceType.TOPIC, topic, {"message.timestamp.type": "CreateTime"}
    )
    admin.alter_configs([by_the_senders_clock])
    # A broker answers before it has applied a changed setting.
    setting = ConfigResource(ConfigResourceType.TOPIC, topic, {"message.timestamp.type": None})
    while "CreateTime" not in str(admin.describe_configs([setting])):
        pass
    with pytest.raises(
        LogError, match=r"declared: message.timestamp.type is CreateTime, not LogAppendTime"
    ):
        log.ensure(topic, TopicSettings())


def test_records_stay_packed_as_their_writers_packed_them(
    admin: KafkaAdminClient, log: KafkaLog, topic: str
) -> None:
    log.ensure(topic, TopicSettings())
    setting = ConfigResource(ConfigResourceType.TOPIC, topic, {"compression.type": None})
    about = admin.describe_configs([setting], config_filter="all")["topic"][topic]
    # Its own setting: the brokers' default, which may be another, does not count.
    assert about["compression.type"]["value"] == "producer"
    assert "TOPIC" in str(about["compression.type"]["config_source"])
    packed = ConfigResource(ConfigResourceType.TOPIC, topic, {"compression.type": "zstd"})
    admin.alter_configs([packed])
    while "zstd" not in str(admin.describe_configs([setting])):
        pass
    with pytest.raises(LogError, match=r"declared: compression\.type is zstd, not producer"):
        log.ensure(topic, TopicSettings())


def test_a_topic_is_retained_by_the_clock_of_the_brokers(
    log: KafkaLog, topic: str, kafka_bootstrap: str
) -> None:
    with closing(KafkaProducer(bootstrap_servers=kafka_bootstrap)) as stranger:
        stranger.send(topic, b"old", timestamp_ms=1).get(WAIT_S)
    ((record,), _) = log.read(topic, {0: 0}, timeout_s=WAIT_S)
    assert record.timestamp_ms > 10**12


def test_an_undecodable_record_is_returned_as_such_and_stops_no_reader(
    log: KafkaLog, topic: str, kafka_bootstrap: str
) -> None:
    with closing(KafkaProducer(bootstrap_servers=kafka_bootstrap)) as stranger:
        for value, headers in (
            (b"a", []),
            (b"b", [(NotUtf8("name"), b"")]),
            (b"c", [("fine", b"")]),
        ):
            stranger.send(topic, value, headers=headers)
            stranger.flush()  # each in a batch of its own
        stranger.send(topic, b"d", headers=[(NotUtf8("name"), b"")])
    assert values(log, topic) == [b"a", None, b"c", None]
    ((record,), after) = log.read(topic, {0: 1}, timeout_s=WAIT_S)
    assert [name for name, _ in record.headers] == [UNREADABLE]
    assert (record.offset, after) == (1, {0: 2})


def test_a_header_without_a_value_is_an_empty_one(
    log: KafkaLog, topic: str, kafka_bootstrap: str
) -> None:
    with closing(KafkaProducer(bootstrap_servers=kafka_bootstrap)) as stranger:
        stranger.send(topic, b"a", headers=[("", b"")])
    assert log.read(topic, {0: 0}, timeout_s=WAIT_S)[0][0].headers == (("", b""),)


def test_the_compacted_view_ends_at_a_gap_that_a_transaction_left(
    log: KafkaLog, topic: str, kafka_bootstrap: str
) -> None:
    with closing(
        KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=topic)
    ) as stranger:
        stranger.init_transactions()
        stranger.begin_transaction()
        stranger.send(topic, b"v", b"k")
        stranger.commit_transaction()
    while log.bounds(topic) != {0: (0, 2)}:  # the commit gets an offset too, soon, and is no record
        pass
    assert {key: record.value for key, record in latest(log, topic).items()} == {b"k": b"v"}
    assert log.read(topic, {0: 1}, timeout_s=0.0) == ([], {0: 2})


def test_a_tombstone_for_no_key_is_refused(log: KafkaLog, topic: str) -> None:
    with pytest.raises(LogError, match="tombstone"):
        log.publish(topic, None)
