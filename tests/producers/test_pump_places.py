"""Started again, the pump goes on where it was: the logs know what they hold."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidState
from shoal.producers.files.replay import Replay
from shoal.producers.files.split import split_of
from shoal.producers.publisher import Bookmark, open_bookmark
from shoal.protocol.readings import Reading, number_of
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.transports.base import Log, TopicSettings
from tests.producers.pumping import ROWS, as_it_should_be, drained, pump_of, rows_by_client
from tests.producers.running_producer import csv_of, logs_in, plain_rows, replay, stored_in


def test_started_again_it_goes_on_and_at_the_end_there_is_nothing_to_do(
    tmp_path: Path, path: Path
) -> None:
    pump = pump_of(replay(path), tmp_path, batch_readings_max=7)
    pump.step()
    pump.step()
    pump.close()
    again = drained(pump_of(replay(path), tmp_path))
    assert again.published.total() == ROWS - 14
    assert drained(pump_of(replay(path), tmp_path)).published == {}
    assert rows_by_client(tmp_path) == as_it_should_be()


def test_a_file_that_grew_gives_its_new_rows(tmp_path: Path, path: Path) -> None:
    drained(pump_of(replay(path), tmp_path))
    csv_of(path, plain_rows(ROWS + 9))
    assert drained(pump_of(replay(path), tmp_path)).published.total() == 9
    assert rows_by_client(tmp_path) == as_it_should_be(ROWS + 9)


def test_a_file_that_shrank_gives_nothing_twice(tmp_path: Path, path: Path) -> None:
    drained(pump_of(replay(path), tmp_path))
    csv_of(path, plain_rows(ROWS - 20))
    assert drained(pump_of(replay(path), tmp_path)).published == {}
    assert rows_by_client(tmp_path) == as_it_should_be()


def test_publishing_again_on_purpose_publishes_all_again_even_if_killed_in_between(
    tmp_path: Path, path: Path
) -> None:
    drained(pump_of(replay(path), tmp_path))
    bookmark = open_bookmark(tmp_path, replay(path).identity)
    bookmark.start_again()
    killed = pump_of(replay(path), tmp_path, bookmark=bookmark, batch_readings_max=20)
    killed.step()
    killed._close_publishers()
    bookmark.close()
    drained(pump_of(replay(path), tmp_path))
    assert rows_by_client(tmp_path) == {
        client: rows * 2 for client, rows in as_it_should_be().items()
    }


def test_two_sources_and_other_writers_share_the_logs_without_minding(
    tmp_path: Path, path: Path
) -> None:
    other = csv_of(tmp_path / "b.csv", plain_rows(30))
    one, two = (pump_of(replay(file), tmp_path, batch_readings_max=4) for file in (path, other))
    log = logs_in(tmp_path)("client-1")
    log.ensure(READINGS, READINGS_SETTINGS)
    for _ in range(3):
        one.step()
        log.publish(READINGS, b"not ours", headers=(("number", b"999"), ("source", b"somebody")))
        log.publish(READINGS, b"not ours", headers=(("number", b"x"),))
        log.flush()
        two.step()
    one.close()
    two.close()
    drained(pump_of(replay(path), tmp_path))
    drained(pump_of(replay(other), tmp_path))
    by_source: dict[bytes, list[int | None]] = {}
    records, _ = log.read(READINGS, {0: 0}, 1000)
    for record in records:
        headers = dict(record.headers)
        if record.value != b"not ours":
            by_source.setdefault(headers["source"], []).append(number_of(record.headers))
    log.close()
    assert sorted(by_source.values(), key=len) == [list(range(0, 30, 2)), list(range(0, ROWS, 2))]


def test_a_second_producer_of_the_same_source_is_turned_away(tmp_path: Path, path: Path) -> None:
    pump = pump_of(replay(path), tmp_path)
    pump.step()
    with pytest.raises(
        InvalidState, match=r"is the producer of source [0-9a-f]{16} running already"
    ):
        pump_of(replay(path), tmp_path)
    pump.close()
    pump_of(replay(path), tmp_path).close()


def test_without_the_bookmark_the_logs_alone_know_the_place(tmp_path: Path, path: Path) -> None:
    drained(pump_of(replay(path), tmp_path, limit=31))
    for note in tmp_path.glob("producer.*"):
        note.unlink()
    pump = drained(pump_of(replay(path), tmp_path))
    assert (pump.already_there, pump.published.total()) == (31, ROWS - 31)
    assert rows_by_client(tmp_path) == as_it_should_be()


@pytest.mark.parametrize(
    "rule", ["round-robin", "dirichlet:label:0.2", "column:label", "label-skew:label"]
)
def test_a_log_that_was_deleted_is_filled_again_and_the_others_get_nothing_twice(
    tmp_path: Path, path: Path, rule: str
) -> None:
    def source() -> Replay:
        return replay(path, split=split_of(rule, 3, 0))

    drained(pump_of(source(), tmp_path, limit=40))
    before = stored_in(tmp_path)
    shutil.rmtree(tmp_path / next(iter(before)))
    drained(pump_of(source(), tmp_path, limit=40))
    assert stored_in(tmp_path) == before


def test_a_log_put_back_from_an_older_copy_gets_what_it_lacks(tmp_path: Path, path: Path) -> None:
    drained(pump_of(replay(path), tmp_path, limit=11))
    shutil.copytree(tmp_path / "client-2", tmp_path / "copy" / "client-2")
    drained(pump_of(replay(path), tmp_path, limit=41))
    shutil.rmtree(tmp_path / "client-2")
    shutil.copytree(tmp_path / "copy" / "client-2", tmp_path / "client-2")
    shutil.rmtree(tmp_path / "copy")
    drained(pump_of(replay(path), tmp_path))
    assert rows_by_client(tmp_path) == as_it_should_be()


def test_a_log_that_another_program_created_again_is_another_log(
    tmp_path: Path, path: Path
) -> None:
    drained(pump_of(replay(path), tmp_path, limit=40))
    shutil.rmtree(tmp_path / "client-1")
    log = logs_in(tmp_path)("client-1")
    log.ensure(READINGS, READINGS_SETTINGS)
    reading = Reading(None, [])
    for _ in range(ROWS):
        log.publish(READINGS, reading.encode(), headers=(*Reading.headers(), ("number", b"7777")))
    log.flush()
    log.close()
    drained(pump_of(replay(path), tmp_path))
    ours = [row for row in rows_by_client(tmp_path)["client-1"] if row != 7777]
    assert ours == as_it_should_be()["client-1"]


def test_readings_that_retention_removes_during_the_search_do_no_harm(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late:
        """Says that the log begins where it once began."""

        def __init__(self, log: Log) -> None:
            self._log = log

        def __getattr__(self, name: str) -> Any:
            return getattr(self._log, name)

        def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
            return {partition: (0, end) for partition, (_, end) in self._log.bounds(topic).items()}

    small = TopicSettings(retain_bytes=1000)
    drained(pump_of(replay(path), tmp_path, limit=50, batch_readings_max=5, topic_settings=small))
    for note in tmp_path.glob("producer.*"):
        note.unlink()
    kept = rows_by_client(tmp_path)
    assert kept["client-1"][0] > 0
    pump = drained(
        pump_of(
            replay(path),
            tmp_path,
            open_log=lambda client: Late(logs_in(tmp_path)(client)),
            topic_settings=small,
        )
    )
    assert (pump.already_there, pump.published.total()) == (50, ROWS - 50)


def test_a_loop_goes_on_where_it_was(tmp_path: Path, path: Path) -> None:
    for limit in (50, 130, 200):
        drained(pump_of(replay(path, loop=True), tmp_path, limit=limit))
    assert rows_by_client(tmp_path) == as_it_should_be(200)
    times = {
        reading.row: reading.time
        for readings in stored_in(tmp_path).values()
        for reading in readings
    }
    assert [times[row] for row in range(200)] == pytest.approx(range(200))


def test_a_bookmark_of_another_version_is_refused(tmp_path: Path) -> None:
    note = open_bookmark(tmp_path, "0" * 16)
    note._checkpoint.save({"number": "?"})  # type: ignore[union-attr]  # it is open
    note.close()
    with pytest.raises(InvalidState, match="delete it"):
        open_bookmark(tmp_path, "0" * 16)
    assert Bookmark().number == 0
