"""A codec that is not installed here is a lack on our side: nothing is lost to it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from shoal.config.settings import load_config
from shoal.errors import MissingCodec
from shoal.producers.kafka.ingest import KafkaCounts
from shoal.producers.sampled_messages import _from_kafka
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.logs import open_readings
from shoal.transports.base import CODEC, UNREADABLE, TopicSettings
from shoal.transports.sqlite.log import SqliteLog
from tests.producers.test_gaps_of_topics import FILE, opened


def message(number: int) -> bytes:
    return json.dumps({"warm": number % 40, "damp": 50, "t": 1e9 + number}).encode()


@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4"])
def test_a_source_stops_at_a_codec_that_is_not_installed_and_loses_nothing(
    codec: str, tmp_path: Path
) -> None:
    (tmp_path / "plant.toml").write_text(
        FILE.format(privacy="", kafka="", folder=tmp_path), encoding="utf-8"
    )
    headers = ((UNREADABLE, b"UnsupportedCodecError"), (CODEC, codec.encode()))
    counts = KafkaCounts()
    with closing(SqliteLog(tmp_path / "devices.db", durable=False)) as log:
        log.ensure("devices", TopicSettings())
        for number in range(20):
            log.publish("devices", message(number))
        log.publish("devices", None, headers=headers)
        log.flush()
        with opened(tmp_path, counts) as ingest:
            with pytest.raises(
                MissingCodec, match=rf"with {codec}.*install '\.\[{codec}\]'"
            ) as stop:
                ingest.step()
            assert (stop.value.exit_code, stop.value.retriable) == (4, False)
            assert ingest.positions == {0: 0}, "the position is kept"
        with pytest.raises(MissingCodec):
            _from_kafka(log, "devices", 8.0, {})
    assert not counts.faults
    # Once it is installed the reader gives all messages.
    (tmp_path / "devices.db").unlink()
    with closing(SqliteLog(tmp_path / "devices.db", durable=False)) as log:
        log.ensure("devices", TopicSettings())
        for number in range(21):
            log.publish("devices", message(number))
        log.flush()
    with opened(tmp_path, counts) as ingest:
        while ingest.step():
            pass
    config = load_config(tmp_path / "plant.toml")
    with closing(open_readings(config, "hall", config.client.folder)) as readings:
        readings.ensure(READINGS, readings_settings(config.client))
        records, _ = readings.read(READINGS, {0: 0})
    assert len(records) == 21
    assert not counts.faults
