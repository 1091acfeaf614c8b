"""The pump: every reading once, in order, when it is due, whatever happens to the logs and to the pump."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from at_work import Clock, Stored, csv_of, logs_in, plain_rows, replay, stored_in
from producers.bookmark import Bookmark, open_bookmark
from producers.outlet import Mark
from producers.pacing import Pacing
from producers.pump import Pump
from producers.replay import Columns, Replay
from producers.source import Source
from producers.split import split_of
from shoal.errors import DataRefused, LogRefused, LogUnavailable, SettingsError, StateRefused
from shoal.messages import Reading
from shoal.topics import READINGS, READINGS_SETTINGS
from shoal.transports.contract import Log, TopicSettings

ROWS = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return csv_of(tmp_path / "a.csv", plain_rows(ROWS))


def pump_of(source: Source, folder: Path, clock: Clock | None = None, **options: Any) -> Pump:
    options.setdefault("logs", logs_in(folder))
    if "bookmark" not in options:
        options["bookmark"] = open_bookmark(folder, source.identity)
    return Pump(source, clock=clock or Clock(), **options)


def drained(pump: Pump) -> Pump:
    """The pump after its source has ended."""
    while not pump.finished:
        pump.step()
    pump.close()
    return pump


def rows_by_client(folder: Path) -> dict[str, list[int]]:
    return {client: [reading.row for reading in readings] for client, readings in stored_in(folder).items()}


def as_it_should_be(rows: int = ROWS, clients: int = 2) -> dict[str, list[int]]:
    return {f"client-{number + 1}": list(range(number, rows, clients)) for number in range(clients)}


def test_a_source_without_rows_is_finished_and_opens_no_log(tmp_path: Path) -> None:
    pump = drained(pump_of(replay(csv_of(tmp_path / "a.csv", [])), tmp_path))
    assert pump.published == {}
    assert stored_in(tmp_path) == {}


def test_readings_stand_in_their_clients_logs_with_time_and_values_and_without_label(tmp_path: Path) -> None:
    path = csv_of(tmp_path / "a.csv", [(1, 2, 3, "secret"), (4, "x", "", "secret")])
    pump = drained(pump_of(replay(path), tmp_path))
    assert stored_in(tmp_path) == {
        "client-1": [Stored(0, 1.0, [2.0, 3.0])],
        "client-2": [Stored(1, 4.0, ["x", None])],
    }
    assert pump.published == {"client-1": 1, "client-2": 1}
    with_label = [path for path in tmp_path.glob("*/*") if b"secret" in path.read_bytes()]
    assert with_label == []


def test_numbers_travel_as_an_array(tmp_path: Path, path: Path) -> None:
    drained(pump_of(replay(path), tmp_path))
    log = logs_in(tmp_path)("client-1")
    [record], _ = log.read(READINGS, {0: 0}, 1)
    reading = Reading.decode(record.value, record.headers)
    assert not isinstance(reading.values, list)
    assert reading.values.dtype == "float64"
    log.close()


def test_a_step_stores_what_is_due_and_says_how_long_nothing_will_be(tmp_path: Path, path: Path) -> None:
    clock = Clock()
    pump = pump_of(replay(path), tmp_path, clock, pacing=Pacing(speed=2))
    assert pump.step()
    assert not pump.step()
    assert pump.position == 1
    assert pump.wait_s == pytest.approx(0.5)
    clock.now += 2.0
    assert pump.step()
    assert pump.position == 5
    assert not pump.finished
    assert pump.total == ROWS
    pump.close()
    assert sum(map(len, stored_in(tmp_path).values())) == 5


def test_readings_without_time_cannot_be_paced_by_it(tmp_path: Path, path: Path) -> None:
    untimed = Replay([path], Columns(("a", "b")), split_of("round-robin", 1, 0))
    for source in (untimed, replay(path, shuffle=True)):
        with pytest.raises(SettingsError, match="--time-column"):
            Pump(source, logs_in(tmp_path), clock=Clock(), pacing=Pacing(speed=1))
    drained(pump_of(untimed, tmp_path))


def test_a_limit_counts_from_the_beginning_of_the_source_whoever_published(tmp_path: Path, path: Path) -> None:
    first = drained(pump_of(replay(path), tmp_path, limit=5))
    assert (first.position, first.total) == (5, 5)
    assert drained(pump_of(replay(path), tmp_path, limit=5)).published == {}
    assert drained(pump_of(replay(path), tmp_path, limit=3)).position == 5
    drained(pump_of(replay(path), tmp_path, limit=7))
    assert rows_by_client(tmp_path) == as_it_should_be(7)


def test_started_again_it_goes_on_and_at_the_end_there_is_nothing_to_do(tmp_path: Path, path: Path) -> None:
    pump = pump_of(replay(path), tmp_path, batch_rows_max=7)
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


def test_publishing_again_on_purpose_publishes_all_again_even_if_killed_in_between(tmp_path: Path, path: Path) -> None:
    drained(pump_of(replay(path), tmp_path))
    bookmark = open_bookmark(tmp_path, replay(path).identity)
    bookmark.begin_again()
    pump_of(replay(path), tmp_path, bookmark=bookmark, batch_rows_max=20).step()
    bookmark.close()
    drained(pump_of(replay(path), tmp_path))
    assert rows_by_client(tmp_path) == {client: rows * 2 for client, rows in as_it_should_be().items()}


def test_two_sources_and_other_writers_share_the_logs_without_minding(tmp_path: Path, path: Path) -> None:
    other = csv_of(tmp_path / "b.csv", plain_rows(30))
    one, two = (pump_of(replay(file), tmp_path, batch_rows_max=4) for file in (path, other))
    log = logs_in(tmp_path)("client-1")
    log.ensure(READINGS, READINGS_SETTINGS)
    for _ in range(3):
        one.step()
        log.publish(READINGS, b"not ours", headers=(("row", b"999"), ("source", b"somebody")))
        log.publish(READINGS, b"not ours", headers=(("row", b"x"),))
        log.flush()
        two.step()
    one.close()
    two.close()
    drained(pump_of(replay(path), tmp_path))
    drained(pump_of(replay(other), tmp_path))
    by_source: dict[bytes, list[int]] = {}
    records, _ = log.read(READINGS, {0: 0}, 1000)
    for record in records:
        headers = dict(record.headers)
        if record.value != b"not ours":
            by_source.setdefault(headers["source"], []).append(int(headers["row"]))
    log.close()
    assert sorted(by_source.values(), key=len) == [list(range(0, 30, 2)), list(range(0, ROWS, 2))]


def test_a_second_producer_of_the_same_source_is_turned_away(tmp_path: Path, path: Path) -> None:
    pump = pump_of(replay(path), tmp_path)
    pump.step()
    with pytest.raises(StateRefused, match=r"is the producer of source [0-9a-f]{16} running already"):
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


@pytest.mark.parametrize("rule", ["round-robin", "dirichlet:label:0.2", "column:label", "label-skew:label"])
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


def test_a_log_made_again_by_somebody_else_is_not_taken_for_the_old_one(tmp_path: Path, path: Path) -> None:
    drained(pump_of(replay(path), tmp_path, limit=40))
    shutil.rmtree(tmp_path / "client-1")
    log = logs_in(tmp_path)("client-1")
    log.ensure(READINGS, READINGS_SETTINGS)
    reading = Reading(None, [])
    for _ in range(ROWS):
        log.publish(READINGS, reading.encode(), headers=(*Reading.headers(), ("row", b"7777")))
    log.flush()
    log.close()
    drained(pump_of(replay(path), tmp_path))
    ours = [row for row in rows_by_client(tmp_path)["client-1"] if row != 7777]
    assert ours == as_it_should_be()["client-1"]


def test_a_client_that_has_fallen_silent_is_not_forgotten_when_a_log_was_away(tmp_path: Path) -> None:
    rows = [(n, n, n, "silent" if n < 10 and n % 2 else "loud") for n in range(40)]
    path = csv_of(tmp_path / "a.csv", rows)
    split = split_of("column:label", 1, 0)
    cut, clock = Cut("flush", 3, False, LogUnavailable("away")), Clock()
    pump = pump_of(
        replay(path, split=split),
        tmp_path,
        clock,
        logs=lambda client: Cutting(logs_in(tmp_path)(client), cut),
        batch_rows_max=10,
    )
    while not pump.finished:
        pump.step()
        clock.now += 1 + pump.wait_s
    pump.close()
    before = stored_in(tmp_path)
    shutil.rmtree(tmp_path / "silent")
    drained(pump_of(replay(path, split=split), tmp_path))
    assert stored_in(tmp_path) == before


def test_readings_that_retention_takes_while_a_log_is_looked_through_are_no_matter(
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

    monkeypatch.setattr("producers.outlet.READINGS_SETTINGS", TopicSettings(retain_bytes=1000))
    drained(pump_of(replay(path), tmp_path, limit=50, batch_rows_max=5))
    for note in tmp_path.glob("producer.*"):
        note.unlink()
    kept = rows_by_client(tmp_path)
    assert kept["client-1"][0] > 0
    pump = drained(pump_of(replay(path), tmp_path, logs=lambda client: Late(logs_in(tmp_path)(client))))
    assert (pump.already_there, pump.published.total()) == (50, ROWS - 50)


def test_while_nothing_is_due_nothing_is_written(tmp_path: Path, path: Path) -> None:
    notes: list[int] = []

    class Counted(Bookmark):
        def note(self, row: int, marks: dict[str, Mark]) -> None:
            notes.append(row)
            super().note(row, marks)

    clock = Clock()
    pump = pump_of(replay(path), tmp_path, clock, bookmark=Counted(), pacing=Pacing(rate=0.01))
    for _ in range(250):
        pump.step()
        clock.now += 1.0
    pump.close()
    assert notes == [1, 2, 3]


def test_a_loop_goes_on_where_it_was(tmp_path: Path, path: Path) -> None:
    for limit in (50, 130, 200):
        drained(pump_of(replay(path, loop=True), tmp_path, limit=limit))
    assert rows_by_client(tmp_path) == as_it_should_be(200)
    times = {reading.row: reading.time for readings in stored_in(tmp_path).values() for reading in readings}
    assert [times[row] for row in range(200)] == pytest.approx(range(200))


def test_the_rows_before_a_damaged_place_are_stored_before_it_is_told(tmp_path: Path) -> None:
    whole = csv_of(tmp_path / "a.csv", plain_rows(10))
    damaged = tmp_path / "b.csv.gz"
    damaged.write_bytes(b"no gzip at all, but a file all the same")
    with pytest.raises(DataRefused, match="damaged"):
        replay(whole, damaged)
    broken = Breaking(replay(whole), after=6)
    pump = pump_of(broken, tmp_path)
    with pytest.raises(DataRefused):
        drained(pump)
    pump.close()
    assert sum(map(len, stored_in(tmp_path).values())) == 6


class Breaking:
    """A source with a damaged place."""

    def __init__(self, source: Source, after: int) -> None:
        self._source, self._left = source, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, limit: int) -> list[Any]:
        rows = self._source.read(min(limit, self._left))
        self._left -= len(rows)
        if not rows:
            raise DataRefused("damaged here")
        return rows


class PowerCut(BaseException):
    """Nothing catches it, as nothing catches a kill."""


class Cutting:
    """A real log, and what happens before or after the nth call of one of its methods over all logs."""

    def __init__(self, log: Log, cut: Cut) -> None:
        self._log, self._cut = log, cut

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = getattr(self._log, name)

        def called(*arguments: Any, **named: Any) -> Any:
            now = self._cut.counts(name)
            if now and not self._cut.after:
                raise self._cut.error
            result = real(*arguments, **named)
            if now:
                raise self._cut.error
            return result

        return called


class Cut:
    """The `nth` call of `method` fails, before it does its work or after."""

    def __init__(self, method: str, nth: int, after: bool, error: BaseException) -> None:
        self.method, self.nth, self.after, self.error = method, nth, after, error
        self.calls: Counter[str] = Counter()

    def counts(self, method: str) -> bool:
        self.calls[method] += 1
        return method == self.method and self.calls[method] == self.nth


METHODS = ["ensure", "identity", "publish", "flush", "read", "bounds", "close"]
CUTS = [(method, nth, after) for method in METHODS for nth in (1, 2, 5) for after in (False, True)]


@pytest.mark.parametrize(("method", "nth", "after"), CUTS)
def test_a_log_that_is_away_at_any_call_costs_no_reading_and_repeats_none(
    tmp_path: Path, path: Path, method: str, nth: int, after: bool
) -> None:
    cut, clock = Cut(method, nth, after, LogUnavailable("away")), Clock()
    drained(pump_of(replay(path), tmp_path, limit=9))
    pump = pump_of(
        replay(path),
        tmp_path,
        clock,
        logs=lambda client: Cutting(logs_in(tmp_path)(client), cut),
        batch_rows_max=11,
    )
    for _ in range(100):
        pump.step()
        clock.now += pump.wait_s
    assert pump.finished
    pump.close()
    assert rows_by_client(tmp_path) == as_it_should_be()
    # Closing and looking through a log happen seldom where all goes well.
    assert cut.calls[method] >= nth or method in ("close", "read", "identity", "ensure")


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
    pump = pump_of(replay(path), tmp_path, clock, logs=logs, bookmark=bookmark, batch_rows_max=5)
    try:
        while not pump.finished:
            pump.step()
            clock.now += 0.4  # so that the place is noted after some of the batches and not after others
        pump.close()
    except PowerCut:
        pass
    # What a kill would leave: what was not flushed is gone, the files are let go of.
    for log in opened:
        log._pending.clear()  # type: ignore[attr-defined]
        log.close()
    bookmark.close()
    drained(pump_of(replay(path), tmp_path))
    assert rows_by_client(tmp_path) == as_it_should_be()


def test_a_log_that_stays_away_is_asked_less_and_less_often(tmp_path: Path, path: Path) -> None:
    clock, waits = Clock(), []

    def away(client: str) -> Log:
        raise LogUnavailable("away")

    pump = pump_of(replay(path), tmp_path, clock, logs=away)
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
    with pytest.raises(LogRefused, match="other settings"):
        pump.step()
    pump.close()


def test_a_log_replaced_between_two_tries_is_not_written_with_a_hole(tmp_path: Path, path: Path) -> None:
    cut = Cut("flush", 2, False, LogUnavailable("away"))
    clock = Clock()
    pump = pump_of(
        replay(path, split=split_of("round-robin", 1, 0)),
        tmp_path,
        clock,
        logs=lambda client: Cutting(logs_in(tmp_path)(client), cut),
        batch_rows_max=9,
    )
    assert pump.step()
    assert not pump.step()
    shutil.rmtree(tmp_path / "client-1")
    clock.now += 1
    with pytest.raises(StateRefused, match="start the producer again"):
        pump.step()
    pump.close()
    drained(pump_of(replay(path, split=split_of("round-robin", 1, 0)), tmp_path))
    assert rows_by_client(tmp_path) == as_it_should_be(clients=1)


def test_a_bookmark_of_another_version_is_refused(tmp_path: Path) -> None:
    note = open_bookmark(tmp_path, "0" * 16)
    note._checkpoint.save({"row": "?"})  # type: ignore[union-attr]
    note.close()
    with pytest.raises(StateRefused, match="another version"):
        open_bookmark(tmp_path, "0" * 16)
    assert Bookmark().row == 0
