"""Messages of a topic that lack a value, on the embedded log: rejected, filled up, or stored with
gaps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.settings import load_config
from shoal.producers.kafka.bookmark import TopicBookmarks
from shoal.producers.kafka.ingest import KafkaCounts, KafkaIngest, SourceTopic
from shoal.producers.source_type import ProducerTask
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.logs import open_readings
from shoal.transports.base import Log, TopicSettings
from shoal.transports.sqlite.log import SqliteLog

FILE = """
[federation]
name = "plant"
[[features]]
name = "warm"
low = 0
high = 50
[[features]]
name = "damp"
low = 0
high = 100
[privacy]
mode = "off"
{privacy}
[[models]]
name = "clusters"
algorithm = "cluster_tree"
[log]
address = "sqlite:{folder}/federation.db"
[client]
folder = "{folder}/clients"
[kafka]
address = "kafka://127.0.0.1:9"
topic = "devices"
time = "t"
{kafka}
"""
MESSAGES: list[dict[str, Any]] = [
    {"warm": 1, "damp": 10},
    {"warm": 2},
    {"damp": 30},
    {},
    {"warm": "hot", "damp": 5},
    {"warm": 6, "damp": None},
]
NAN = np.nan


@contextmanager
def opened(folder: Path, counts: KafkaCounts) -> Iterator[KafkaIngest]:
    config = load_config(folder / "plant.toml")
    task = ProducerTask(config, config.client.folder, {"name": "hall"}, False)
    with ExitStack() as stack:
        log: Log = stack.enter_context(closing(SqliteLog(folder / "devices.db", durable=False)))
        bookmarks = TopicBookmarks(folder, "source", "devices")

        def open_log(client: str, text: str) -> Log:
            (config.client.folder / client).mkdir(parents=True, exist_ok=True)
            return open_readings(config, client, config.client.folder)

        topic = SourceTopic(log, "devices", "source")
        yield stack.enter_context(closing(KafkaIngest(task, topic, bookmarks, counts, open_log)))


def stored(
    folder: Path, privacy: str, kafka: str = "", cut: int = 0
) -> tuple[list[list[float]], dict[str, int]]:
    """The readings that these messages became, and the faults; the producer is started again after
    `cut` of them."""
    folder.mkdir()
    (folder / "plant.toml").write_text(
        FILE.format(privacy=privacy, kafka=kafka, folder=folder), encoding="utf-8"
    )
    counts = KafkaCounts()
    with closing(SqliteLog(folder / "devices.db", durable=False)) as log:
        log.ensure("devices", TopicSettings())
        for part in (MESSAGES[:cut], MESSAGES[cut:]):
            first = cut * (part is not MESSAGES[:cut]) if cut else 0
            for number, message in enumerate(part):
                log.publish("devices", json.dumps(message | {"t": 1e9 + first + number}).encode())
            log.flush()
            with opened(folder, counts) as ingest:
                while ingest.step():
                    pass
    config = load_config(folder / "plant.toml")
    with closing(open_readings(config, "hall", config.client.folder)) as readings:
        readings.ensure(READINGS, readings_settings(config.client))
        records, _ = readings.read(READINGS, {0: 0})
    return [list(Reading.decode(record.value, record.headers).values) for record in records], dict(
        counts.faults
    )


@pytest.mark.parametrize("cut", [0, 2])
@pytest.mark.parametrize(
    ("privacy", "kafka", "expected", "faults"),
    [
        ("", "", [[1.0, 10.0]], {"missing": 5, "not_a_number": 1}),
        (
            "",
            'missing = "hold"',
            [[1, 10], [2, 10], [1, 30], [6, 10]],
            {"filled": 3, "missing": 2, "not_a_number": 1},
        ),
        (
            'missing = "learn"',
            "",
            [[1, 10], [2, NAN], [NAN, 30], [6, NAN]],
            {"with_gaps": 3, "missing": 2, "not_a_number": 1},
        ),
        ('missing = "learn"', 'missing = "drop"', [[1, 10]], {"missing": 5, "not_a_number": 1}),
    ],
)
def test_a_message_that_lacks_a_value_is_treated_as_the_settings_say(
    privacy: str,
    kafka: str,
    expected: list[list[float]],
    faults: dict[str, int],
    cut: int,
    tmp_path: Path,
) -> None:
    values, found = stored(tmp_path / "run", privacy, kafka, cut)
    np.testing.assert_equal(values, expected)
    assert found == faults
