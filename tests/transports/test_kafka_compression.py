"""Records that are packed before they travel: smaller on the broker, the same when they are
read."""

from __future__ import annotations

import uuid
from contextlib import closing

import numpy as np
import pytest
from kafka import KafkaAdminClient, codec

from shoal.config.settings import log_settings
from shoal.errors import MissingExtra
from shoal.transports import open_log
from shoal.transports.base import Log, TopicSettings, beginning
from shoal.transports.kafka.consumer import UNREADABLE

WAYS = ("none", "gzip", "lz4")
PLAIN = b"the same words again and again, " * 30_000
NOISE = np.random.default_rng(1).bytes(1_000_000)


def log_of(bootstrap: str, compression: str) -> Log:
    return open_log(log_settings(address=f"kafka://{bootstrap}", compression=compression))


def stored_bytes(bootstrap: str, topic: str) -> int:
    """What the broker's files of a topic hold."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        described = admin.describe_log_dirs({topic: [0]})
    (size,) = (
        partition["partition_size"]
        for broker in described
        for folder in broker["log_dirs"]
        for topic in folder["topics"]
        for partition in topic["partitions"]
    )
    assert isinstance(size, int)
    return size


def everything(log: Log, topic: str) -> list[bytes | None]:
    at = beginning(log, topic)
    found = []
    while (read := log.read(topic, at))[1] != at:
        found += [record.value for record in read[0]]
        at = read[1]
    return found


@pytest.mark.parametrize("compression", WAYS)
def test_what_is_stored_is_packed_and_what_is_read_is_not(
    compression: str, kafka_bootstrap: str
) -> None:
    topic = f"packed-{uuid.uuid4().hex}"
    with closing(log_of(kafka_bootstrap, compression)) as log:
        log.ensure(topic)
        log.publish(topic, PLAIN, b"key", (("type", b"update"),))
        log.flush()
        size = stored_bytes(kafka_bootstrap, topic)
        assert size > len(PLAIN) if compression == "none" else size < len(PLAIN) / 20
        (record,), _ = log.read(topic, {0: 0}, timeout_s=30.0)
    assert (record.value, record.key, record.headers) == (PLAIN, b"key", (("type", b"update"),))


def test_writers_of_every_way_share_a_topic_and_every_reader_reads_it(kafka_bootstrap: str) -> None:
    topic = f"mixed-{uuid.uuid4().hex}"
    published = []
    for number in range(2):
        for compression in WAYS:
            with closing(log_of(kafka_bootstrap, compression)) as log:
                log.ensure(topic)
                published += [b"%d %s " % (number, compression.encode()) + PLAIN, b"short", b""]
                for value in published[-3:]:
                    log.publish(topic, value)
    for compression in WAYS:
        with closing(log_of(kafka_bootstrap, compression)) as log:
            assert everything(log, topic) == published


@pytest.mark.parametrize("compression", WAYS)
def test_the_largest_record_travels_though_packing_does_not_make_it_smaller(
    compression: str, kafka_bootstrap: str
) -> None:
    topic = f"noise-{uuid.uuid4().hex}"
    large = NOISE * 8
    with closing(log_of(kafka_bootstrap, compression)) as log:
        log.ensure(topic, TopicSettings(record_bytes_max=len(large)))
        log.publish(topic, large)
        log.flush()
        assert everything(log, topic) == [large]


def test_a_missing_package_is_named(kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "lz4", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[lz4\]'"):
        log_of(kafka_bootstrap, "lz4")
    log_of(kafka_bootstrap, "gzip").close()


def test_a_reader_without_the_package_sets_packed_records_aside_and_reads_on(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"unpacked-{uuid.uuid4().hex}"
    for compression in ("lz4", "none"):
        with closing(log_of(kafka_bootstrap, compression)) as log:
            log.ensure(topic)
            log.publish(topic, PLAIN)
    monkeypatch.setattr(codec, "lz4", None)
    with closing(log_of(kafka_bootstrap, "none")) as log:
        assert everything(log, topic) == [None, PLAIN]
        (record,), _ = log.read(topic, {0: 0}, timeout_s=30.0)
        assert record.headers == ((UNREADABLE, b"UnsupportedCodecError"), ("codec", b"lz4"))
