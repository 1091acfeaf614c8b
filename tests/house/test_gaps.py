"""Retention removed records that were not read yet: an error names the loss, or an accepted gap is
skipped."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import pytest

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, LogSettings, load_config
from shoal.errors import OffsetOutOfRange
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS
from shoal.runtime.logs import open_readings
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.telemetry.events import start_logging
from shoal.transports import open_log
from shoal.transports.base import TopicSettings
from tests.house.small_federation import clock, weather, write_federation

SMALL = TopicSettings(retain_bytes=4000)


def config_of(folder: Path, accept_gap: bool) -> Config:
    file = write_federation(folder)
    allowed = f"accept_gap = {str(accept_gap).lower()}"
    text = file.read_text(encoding="utf-8").replace("port = 0", f"port = 0\n{allowed}")
    spool = f"readings_bytes_max = {SMALL.retain_bytes}\n{allowed}"
    file.write_text(text.replace("label = true", spool), encoding="utf-8")
    return load_config(file)


def publish(address: str, topic: str, values: list[bytes]) -> int:
    """Append records so that retention removes old ones; returns the first offset kept."""
    with closing(open_log(address)) as log:
        for value in values:
            log.publish(topic, value, headers=Reading.headers())
            log.flush()
        return log.bounds(topic)[0][0]


@pytest.mark.parametrize("accept_gap", [False, True])
def test_readings_that_were_removed_before_they_were_learnt(
    accept_gap: bool, tmp_path: Path
) -> None:
    output = io.StringIO()
    start_logging("attic", as_json=True, stream=output)
    config = config_of(tmp_path, accept_gap)
    folder = config.client.folder / "attic"
    folder.mkdir(parents=True)
    readings = [Reading(1e9, row).encode() for row in weather(400, 1)]
    with closing(open_readings(config, "attic")) as log:
        assert log.bounds(READINGS) == {0: (0, 0)}
    publish(f"sqlite:{folder / 'readings.db'}", READINGS, readings[:10])
    with resumed(open_client(config, "attic", clock=clock)) as node:
        node.step()
        first = publish(f"sqlite:{folder / 'readings.db'}", READINGS, readings[10:])
        assert first > 10
        if not accept_gap:
            with pytest.raises(OffsetOutOfRange, match=f"{first - 10} records are lost"):
                node.step()
            return
        while node.step():
            pass
        assert node.totals["learned"] == 10 + 400 - first
        assert (
            '"event": "gap_accepted", "process": "attic", "topic": "readings", "partition": 0'
            in output.getvalue()
        )
        assert f'"records_lost": {first - 10}' in output.getvalue()


def test_a_server_that_was_away_too_long_raises_or_skips_the_gap(tmp_path: Path) -> None:
    config = config_of(tmp_path, accept_gap=False)
    config = config.model_copy(
        update={"log": LogSettings(address=config.log.address, updates_retention_bytes=4000)}
    )
    address = config.log.address
    topic = config.contract.updates_topic
    with resumed(open_server(config, clock=clock)) as server:
        publish(address, topic, [b"not an update"] * 5)
        while server.step():
            pass
    first = publish(address, topic, [b"x" * 200] * 100)
    assert first > 5
    with (
        resumed(open_server(config, clock=clock)) as server,
        pytest.raises(OffsetOutOfRange, match="set accept_gap = true"),
    ):
        server.step()
