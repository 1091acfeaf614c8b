"""Models whose updates no snapshot shows yet are asked to look at their timers, by records in the
log."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from shoal.errors import LogUnavailable
from shoal.protocol.topics import ensure_topics
from shoal.server_node.replicas.timers import Timers
from shoal.transports.base import Log, Record, beginning
from shoal.transports.sqlite.log import SqliteLog
from tests.server_node.replicas.test_absorb import CONTRACT, a_region


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "federation.db"
    with closing(SqliteLog(path, durable=False)) as log:
        ensure_topics(log, CONTRACT)
    return path


def requests(file: Path) -> list[Record]:
    with closing(SqliteLog(file)) as log:
        return list(log.read(CONTRACT.updates_topic, beginning(log, CONTRACT.updates_topic))[0])


def wait_for(file: Path, number: int) -> list[Record]:
    while len(found := requests(file)) < number:
        time.sleep(0.01)
    return found


def test_a_model_with_pending_updates_is_asked_once_its_snapshot_is_due(file: Path) -> None:
    region = a_region(snapshot_s=0.01)
    timers = Timers([region], lambda: SqliteLog(file, durable=False))
    with timers.running():
        timers.note(region, pending=True)
        (request,) = wait_for(file, 1)
    assert region.is_timer_request(request)
    assert request.key == CONTRACT.update_key("clusters")


def test_a_model_without_pending_updates_is_not_asked(file: Path) -> None:
    quiet = a_region(snapshot_s=0.2)
    other = a_region(snapshot_s=0.01)
    timers = Timers([quiet, other], lambda: SqliteLog(file, durable=False))
    timers.note(quiet, pending=True)
    timers.note(quiet, pending=False)
    with timers.running():
        timers.note(other, pending=True)
        wait_for(file, 1)
        timers.note(other, pending=True)
        wait_for(file, 2)
        assert timers._due == {}  # nothing of the quiet one waits


def test_after_an_assignment_every_model_is_asked(file: Path) -> None:
    timers = Timers(
        [a_region(snapshot_s=0.01), a_region(snapshot_s=0.01)],
        lambda: SqliteLog(file, durable=False),
    )
    with timers.running():
        timers.ask_all()
        assert len(wait_for(file, 2)) == 2


def test_a_model_that_has_nothing_to_publish_is_asked_ever_more_seldom(file: Path) -> None:
    region = a_region(snapshot_s=0.001)
    timers = Timers([region], lambda: SqliteLog(file, durable=False))
    with timers.running():
        waits = []
        for number in range(1, 6):
            waits.append(timers._wait_s(region))
            timers.note(region, pending=True)
            wait_for(file, number)
        assert waits == [0.001, 0.002, 0.004, 0.008, 0.016]
        timers.note(region, pending=False)
        assert timers._wait_s(region) == 0.001


def test_requests_go_on_after_an_outage(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.server_node.replicas.timers.RETRY_S", 0.01)
    region = a_region(snapshot_s=0.01)
    opened = []

    def open_log() -> Log:
        opened.append(1)
        if len(opened) < 3:
            raise LogUnavailable("the brokers do not answer")
        return SqliteLog(file, durable=False)

    timers = Timers([region], open_log)
    with timers.running():
        timers.note(region, pending=True)
        assert wait_for(file, 1)
    assert len(opened) == 3
