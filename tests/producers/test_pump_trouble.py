"""Logs that go away and kills at any call: no reading is lost and none comes twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidData, InvalidState, LogError, LogUnavailable
from shoal.producers.files.split import split_of
from shoal.producers.publisher import open_bookmark
from shoal.producers.source import Source
from shoal.protocol.topics import READINGS
from shoal.transports.base import Log
from tests.producers.pumping import (
    Cut,
    Cutting,
    PowerCut,
    as_it_should_be,
    drained,
    pump_of,
    rows_by_client,
)
from tests.producers.running_producer import Clock, csv_of, logs_in, plain_rows, replay, stored_in

METHODS = ["ensure", "identity", "publish_batch", "flush", "read", "bounds", "close"]
CUTS = [(method, nth, after) for method in METHODS for nth in (1, 2, 5) for after in (False, True)]


@pytest.mark.parametrize(("method", "nth", "after"), CUTS)
def test_a_log_that_is_away_at_any_call_costs_no_reading_and_repeats_none(
    tmp_path: Path, path: Path, method: str, nth: int, after: bool
) -> None:
    cut = Cut(method, nth, after, LogUnavailable("away"))
    clock = Clock()
    drained(pump_of(replay(path), tmp_path, limit=9))
    opened: list[Log] = []

    def logs(client: str) -> Any:
        opened.append(logs_in(tmp_path)(client))
        return Cutting(opened[-1], cut)

    pump = pump_of(replay(path), tmp_path, clock, open_log=logs, batch_readings_max=11)
    for _ in range(100):
        pump.step()
        clock.now += pump.wait_s
    assert pump.finished
    pump.close()
    for log in opened:
        log.close()  # where the cut kept the pump from it
    assert rows_by_client(tmp_path) == as_it_should_be()
    # Closing and looking through a log happen seldom where all goes well.
    assert cut.calls[method] >= nth or method in ("close", "read", "identity", "ensure")


@pytest.mark.long
@pytest.mark.parametrize(("method", "nth", "after"), CUTS)
def test_a_kill_at_any_call_costs_no_reading_and_repeats_none(
    tmp_path: Path, path: Path, method: str, nth: int, after: bool
) -> None:
    cut = Cut(method, nth, after, PowerCut())
    source = replay(path)
    drained(pump_of(source, tmp_path, limit=9))
    bookmark = open_bookmark(tmp_path, source.identity)
    opened: list[Log] = []

    def logs(client: str) -> Any:
        opened.append(logs_in(tmp_path)(client))
        return Cutting(opened[-1], cut)

    clock = Clock()
    pump = pump_of(
        replay(path), tmp_path, clock, open_log=logs, bookmark=bookmark, batch_readings_max=5
    )
    try:
        while not pump.finished:
            pump.step()
            # so that the place is noted after some of the batches and not after others
            clock.now += 0.4
        pump.close()
    except PowerCut:
        pass
    # What a kill would leave: what was not flushed is gone, the files are let go of.
    for log in opened:
        log._pending.clear()  # type: ignore[attr-defined]  # of the embedded log
        log.close()
    bookmark.close()
    drained(pump_of(replay(path), tmp_path))
    assert rows_by_client(tmp_path) == as_it_should_be()


def test_a_log_that_stays_away_is_asked_less_and_less_often(tmp_path: Path, path: Path) -> None:
    clock = Clock()
    waits = []

    def away(client: str) -> Log:
        raise LogUnavailable("away")

    pump = pump_of(replay(path), tmp_path, clock, open_log=away)
    for _ in range(12):
        assert not pump.step()
        waits.append(pump.wait_s)
        clock.now += pump.wait_s
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert waits[-1] == pytest.approx(30)
    assert pump.position == 0
    pump.close()


def test_a_log_that_refuses_is_not_asked_again(tmp_path: Path, path: Path) -> None:
    log = logs_in(tmp_path)("client-1")
    log.ensure(READINGS)
    log.close()
    pump = pump_of(replay(path), tmp_path)
    with pytest.raises(LogError, match="other settings"):
        pump.step()
    pump.close()


def test_a_log_replaced_between_two_tries_is_not_written_with_a_hole(
    tmp_path: Path, path: Path
) -> None:
    cut = Cut("flush", 2, False, LogUnavailable("away"))
    clock = Clock()
    pump = pump_of(
        replay(path, split=split_of("round-robin", 1, 0)),
        tmp_path,
        clock,
        open_log=lambda client: Cutting(logs_in(tmp_path)(client), cut),
        batch_readings_max=9,
    )
    assert pump.step()
    assert not pump.step()
    shutil.rmtree(tmp_path / "client-1")
    clock.now += 1
    with pytest.raises(InvalidState, match="start the producer again"):
        pump.step()
    pump.close()
    drained(pump_of(replay(path, split=split_of("round-robin", 1, 0)), tmp_path))
    assert rows_by_client(tmp_path) == as_it_should_be(clients=1)


def test_a_client_that_has_fallen_silent_is_not_forgotten_when_a_log_was_away(
    tmp_path: Path,
) -> None:
    rows = [(n, n, n, "silent" if n < 10 and n % 2 else "loud") for n in range(40)]
    path = csv_of(tmp_path / "a.csv", rows)
    split = split_of("column:label", 1, 0)
    cut = Cut("flush", 3, False, LogUnavailable("away"))
    clock = Clock()
    pump = pump_of(
        replay(path, split=split),
        tmp_path,
        clock,
        open_log=lambda client: Cutting(logs_in(tmp_path)(client), cut),
        batch_readings_max=10,
    )
    while not pump.finished:
        pump.step()
        clock.now += 1 + pump.wait_s
    pump.close()
    before = stored_in(tmp_path)
    shutil.rmtree(tmp_path / "silent")
    drained(pump_of(replay(path, split=split), tmp_path))
    assert stored_in(tmp_path) == before


def test_the_rows_before_a_damaged_place_are_stored_before_the_error(tmp_path: Path) -> None:
    whole = csv_of(tmp_path / "a.csv", plain_rows(10))
    damaged = tmp_path / "b.csv.gz"
    damaged.write_bytes(b"no gzip at all, but a file all the same")
    with pytest.raises(InvalidData, match="damaged"):
        replay(whole, damaged)
    broken = Breaking(replay(whole), after=6)
    pump = pump_of(broken, tmp_path)
    with pytest.raises(InvalidData):
        drained(pump)
    pump.close()
    assert sum(map(len, stored_in(tmp_path).values())) == 6


class Breaking:
    """A source with a damaged place."""

    def __init__(self, source: Source, after: int) -> None:
        self._source = source
        self._left = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, limit: int) -> list[Any]:
        rows = self._source.read(min(limit, self._left))
        self._left -= len(rows)
        if not rows:
            raise InvalidData("damaged here")
        return rows
