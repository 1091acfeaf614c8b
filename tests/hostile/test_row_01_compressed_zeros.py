"""Row 1: a small record that grows when it is read neither ends a server nor fills its memory."""

from __future__ import annotations

import gzip
import hashlib
import re
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.errors import CorruptRecordError

from shoal.config.settings import Config, load_config
from shoal.protocol.topics import ensure_topics
from shoal.transports import open_log
from shoal.transports.base import Record, latest
from shoal.transports.kafka.consumer import (
    BATCH_BYTES_MAX,
    DECODERS,
    UNREADABLE,
    BatchTooLarge,
    batches_of,
    gunzip,
)
from shoal.transports.sqlite.log import SqliteLog
from tests.federation_text import federation_text
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import an_update

MIB = 1024 * 1024

FILE = federation_text(
    "{name}", log={"address": "{address}"}, server={"port": 0, "pool_clients": 1}
)

SERVER = r"""
import re, sys
from pathlib import Path
from shoal.server_node.bootstrap import open_server
from shoal.config.settings import load_config
from shoal.runtime.service import resumed
with resumed(open_server(load_config(Path(sys.argv[1])))) as node:
    while node.step(2.0) or not node.up_to_date:
        pass
    # The peak of this process alone: what getrusage says includes its parent's.
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]
    print(int(peak) // 1024, node.status().models["clusters"].snapshot.updates)
"""


def run_server(file: Path) -> tuple[int, int]:
    """(peak of its memory in MiB, updates behind its newest snapshot) of a server in a process of
    its own."""
    ran = subprocess.run(
        [sys.executable, "-c", SERVER, file],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    peak, updates = map(int, ran.stdout.split())
    return peak, updates


def rejected_of(config: Config) -> list[Record]:
    with closing(open_log(config.log)) as log:
        return list(latest(log, config.contract.rejected_topic).values())


@pytest.fixture
def attacked(tmp_path: Path, kafka_bootstrap: str) -> tuple[Path, Config, Callable[[int], None]]:
    """A federation on Kafka: its file, its configuration, and a function that sends it so many
    zeros, compressed."""
    file = tmp_path / "plant.toml"
    file.write_text(
        FILE.format(name=f"plant-{uuid.uuid4().hex[:12]}", address=f"kafka://{kafka_bootstrap}")
    )
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)

    def send(zeros: int) -> None:
        options = {"compression_type": "gzip", "max_request_size": 2**30, "batch_size": 1}
        with closing(KafkaProducer(bootstrap_servers=kafka_bootstrap, **options)) as producer:
            producer.send(config.contract.updates_topic, bytes(zeros), b"clusters").get(120)

    return file, config, send


def test_the_server_goes_on_and_keeps_the_length_and_the_digest(
    attacked: tuple[Path, Config, Callable[[int], None]],
) -> None:
    file, config, send = attacked
    calm = an_update(config.contract)
    with closing(open_log(config.log)) as log:
        log.publish(config.contract.updates_topic, calm.encode(), b"clusters", calm.headers())
        log.flush()
    ordinary, updates = run_server(file)
    assert updates == 1
    for zeros in (MIB, 3 * MIB, 400 * MIB):
        send(zeros)
    after = an_update(config.contract, sequence=2)
    with closing(open_log(config.log)) as log:
        log.publish(config.contract.updates_topic, after.encode(), b"clusters", after.headers())
        log.flush()
    peak, updates = run_server(file)
    assert updates == 2
    assert peak < ordinary + 64, "the zeros were not unpacked"
    kept = rejected_of(config)
    assert len(kept) == 3
    for record in kept:
        headers = dict(record.headers)
        assert len(record.value or b"") <= 4096
        length = headers.get("value_bytes") or headers["original.packed_bytes"]
        assert int(length) > 0
        assert re.fullmatch(
            rb"[0-9a-f]{64}", headers.get("value_sha256") or headers["original.packed_sha256"]
        )
    assert f"original.{UNREADABLE}" in dict(kept[-1].headers)
    assert run_server(file)[1] == 2, "nor does it come again at the next start"


def test_every_decoder_stops_at_the_limit() -> None:
    packed = gzip.compress(bytes(3 * MIB))
    assert gunzip(gzip.compress(b"abc") + gzip.compress(b"def")) == b"abcdef"
    with batches_of(MIB), pytest.raises(BatchTooLarge) as refused:
        gunzip(packed)
    assert (refused.value.packed, refused.value.sha256) == (
        len(packed),
        hashlib.sha256(packed).hexdigest(),
    )
    assert len(gunzip(packed)) == 3 * MIB, "outside, the limit is that of the largest record"
    with pytest.raises(CorruptRecordError):
        gunzip(packed[:100])
    with pytest.raises(CorruptRecordError):
        gunzip(b"no gzip")
    lz4 = pytest.importorskip("lz4.frame")
    with batches_of(MIB), pytest.raises(BatchTooLarge):
        DECODERS["lz4_decode"](lz4.compress(bytes(3 * MIB)))
    assert DECODERS["lz4_decode"](lz4.compress(b"abc")) == b"abc"
    # Snappy says the size first: 5 bytes that announce four gigabytes.
    with pytest.raises(BatchTooLarge):
        DECODERS["snappy_decode"](b"\xff\xff\xff\xff\x0f" + bytes(10))
    assert BATCH_BYTES_MAX > 32 * MIB


def test_a_record_beyond_the_limit_of_its_topic_is_set_aside_cut_on_the_embedded_log(
    tmp_path: Path,
) -> None:
    site = ServerFixture(tmp_path)
    topic = site.contract.updates_topic
    with site.log():
        pass
    # Who can write to the file can write what the log would refuse.
    with closing(sqlite3.connect(tmp_path / "federation.db")) as file:
        (kept,) = file.execute(
            "SELECT record_bytes_max FROM topics WHERE name = ?", (topic,)
        ).fetchone()
        file.execute("UPDATE topics SET record_bytes_max = ? WHERE name = ?", (32 * MIB, topic))
        file.commit()
        with closing(SqliteLog(tmp_path / "federation.db")) as log:
            log.publish(topic, bytes(3 * MIB), b"clusters", (("type", b"update"), ("v", b"1")))
            log.flush()
        file.execute("UPDATE topics SET record_bytes_max = ? WHERE name = ?", (kept, topic))
        file.commit()
    site.send(an_update(site.contract))
    site.run()
    assert site.snapshots()[-1].updates == 1
    (record,) = site.rejected().values()
    assert record.value == bytes(4096)
    headers = dict(record.headers)
    assert headers["value_bytes"] == str(3 * MIB).encode()
    assert headers["value_sha256"] == hashlib.sha256(bytes(3 * MIB)).hexdigest().encode()
