"""Row 5: a client whose clock is eight days ahead publishes; no unread update of the others is
removed for that."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from shoal.config.settings import load_config
from shoal.protocol.messages import Update
from shoal.protocol.topics import ensure_topics
from shoal.transports import open_log
from shoal.transports.base import Record
from tests.house.small_federation import write_federation
from tests.small_plant import an_update

UPDATES = 20
TOP = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["sqlite", "kafka"])
def test_a_clock_that_is_days_ahead_removes_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = "sqlite:federation.db"
    if kind == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_bootstrap')}"
    file = write_federation(tmp_path, address=address)
    config = load_config(file)
    topic = config.contract.updates_topic
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        for sequence in range(1, UPDATES + 1):
            update = an_update(config.contract, sequence=sequence)
            log.publish(
                topic, update.encode(), config.contract.update_key(update.model), Update.headers()
            )
        log.flush()
    for _ in range(2):
        ahead = [sys.executable, str(Path(__file__).parent / "publish_ahead.py"), str(file)]
        subprocess.run(ahead, check=True, env={"PYTHONPATH": str(TOP), "PATH": ""})
    with closing(open_log(config.log)) as log:
        log.ensure(topic)
        assert log.bounds(topic) == {0: (0, UPDATES + 2)}
        records: list[Record] = []
        at = {0: 0}
        while at[0] < UPDATES + 2:
            more, at = log.read(topic, at, 100, 5.0)
            records += more
        assert len(records) == UPDATES + 2
        assert all(abs(record.timestamp_ms / 1000 - time.time()) < 86400 for record in records)
