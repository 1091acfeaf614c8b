"""The pump: every reading in its log, in order, when it is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import SettingsError
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import split_of
from shoal.producers.pacing import Pacing
from shoal.producers.publisher import Bookmark, Mark
from shoal.producers.pump import LINGER_LEAST_S, LINGER_READINGS, LINGER_S, Pump
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS
from tests.producers.pumping import ROWS, as_it_should_be, drained, pump_of, rows_by_client
from tests.producers.running_producer import Clock, Stored, csv_of, logs_in, replay, stored_in


def test_a_source_without_rows_is_finished_and_opens_no_log(tmp_path: Path) -> None:
    pump = drained(pump_of(replay(csv_of(tmp_path / "a.csv", [])), tmp_path))
    assert pump.published == {}
    assert stored_in(tmp_path) == {}


def test_readings_are_in_their_clients_logs_with_time_and_values_and_without_label(
    tmp_path: Path,
) -> None:
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


def test_a_step_stores_what_is_due_and_tells_for_how_long_nothing_will_be(
    tmp_path: Path, path: Path
) -> None:
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


def test_a_limit_counts_from_the_beginning_of_the_source(tmp_path: Path, path: Path) -> None:
    first = drained(pump_of(replay(path), tmp_path, limit=5))
    assert (first.position, first.total) == (5, 5)
    assert drained(pump_of(replay(path), tmp_path, limit=5)).published == {}
    assert drained(pump_of(replay(path), tmp_path, limit=3)).position == 5
    drained(pump_of(replay(path), tmp_path, limit=7))
    assert rows_by_client(tmp_path) == as_it_should_be(7)


def test_while_nothing_is_due_nothing_is_written(tmp_path: Path, path: Path) -> None:
    notes: list[int] = []

    class Counted(Bookmark):
        def save(self, row: int, marks: dict[str, Mark]) -> None:
            notes.append(row)
            super().save(row, marks)

    clock = Clock()
    pump = pump_of(replay(path), tmp_path, clock, bookmark=Counted(), pacing=Pacing(rate=0.01))
    for _ in range(250):
        pump.step()
        clock.now += 1.0
    pump.close()
    assert notes == [1, 2, 3]


def test_rows_that_are_due_one_by_one_are_stored_a_few_together(tmp_path: Path, path: Path) -> None:
    clock = Clock()
    pump = pump_of(replay(path), tmp_path, clock, pacing=Pacing(rate=1000))
    assert pump.step()
    assert pump.position == 1
    clock.now += 0.9 * LINGER_S
    assert not pump.step()
    assert 0 < pump.wait_s <= LINGER_S
    clock.now += pump.wait_s
    assert pump.step()
    assert pump.position == 1 + int(1000 * LINGER_S)


@pytest.mark.parametrize(
    ("rate", "wait_s"),
    [(1000, LINGER_S), (10_000, LINGER_READINGS / 10_000), (30_000, LINGER_LEAST_S)],
)
def test_many_rows_that_are_due_one_by_one_are_stored_sooner(
    tmp_path: Path, rate: float, wait_s: float
) -> None:
    clock = Clock()
    file = csv_of(tmp_path / "a.csv", [(n, 1, 2, "") for n in range(4000)])
    pump = pump_of(replay(file), tmp_path, clock, pacing=Pacing(rate=rate))
    waits = []
    for _ in range(3):
        assert pump.step()
        waits.append(pump.wait_s)
        clock.now += pump.wait_s
    assert waits[0] == pytest.approx(LINGER_S)
    assert waits[-1] == pytest.approx(wait_s, rel=0.05)
