"""Shares of the clusters by day, at night and at weekends, from the bins of the history."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from shoal.config.resolved import resolve
from shoal.protocol.history import HistoryBin
from shoal.server_node.history.day_times import DayTimes, day_times
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.history.usual import DAYS_MAX
from shoal.server_node.report.clusters import share_by_time
from tests.server_node.test_usual import CONTRACT, a_bin

MONDAY = datetime(2026, 3, 16)
"""midnight where the test runs"""


def at(day: int, hour: float, clusters: dict[int, int]) -> HistoryBin:
    start = MONDAY + timedelta(days=day, hours=hour)
    return a_bin(int(start.timestamp()), clusters)


def found(folder: Path, *bins: HistoryBin) -> DayTimes | None:
    store = HistoryStore(resolve(CONTRACT), folder / HISTORY_FILE)
    store.apply([HistoryRecord(history_bin.record_key, history_bin) for history_bin in bins])
    store.close()
    return day_times(HistoryReader(folder / HISTORY_FILE), "fcac")


def test_readings_count_by_day_at_night_and_at_weekends(tmp_path: Path) -> None:
    days = [at(day, 6, {0: 1, 1: 2}) for day in range(3)]
    days += [at(day, 17.5, {1: 1}) for day in range(3)]
    nights = [at(day, hour, {0: 4, 1: 1}) for day in range(3) for hour in (5.5, 22)]
    nights += [at(day, 18, {1: 99}) for day in range(3)]  # evenings are neither
    weekend = [at(5, 12, {0: 6}), at(6, 3, {0: 1, -1: 1})]
    times = found(tmp_path, *days, *nights, *weekend)
    assert times is not None
    assert times.day == pytest.approx({0: 0.25, 1: 0.75})
    assert times.night == pytest.approx({0: 0.8, 1: 0.2})
    assert times.weekend == pytest.approx({0: 0.875, -1: 0.125})


def test_at_a_time_without_readings_there_are_no_shares(tmp_path: Path) -> None:
    working = [at(day, 9, {0: 1}) for day in range(3)]
    times = found(tmp_path, *working, at(5, 9, {1: 1}), at(6, 9, {1: 1}))
    assert times == DayTimes({0: 1.0}, {}, {1: 1.0})


@pytest.mark.parametrize("days", [(), (0,), (0, 1, 5, 6), (0, 1, 2, 3, 4, 5)])
def test_nothing_is_said_before_three_working_days_and_a_weekend(
    days: tuple[int, ...], tmp_path: Path
) -> None:
    assert found(tmp_path, *(at(day, 9, {0: 1}) for day in days)) is None
    assert day_times(HistoryReader(tmp_path / "away.db"), "fcac") is None


def test_only_the_newest_four_weeks_count(tmp_path: Path) -> None:
    old = [at(-DAYS_MAX - back, 9, {1: 100}) for back in range(1, 8)]
    new = [at(day, 9, {0: 1}) for day in (0, 1, 2, 5, 6)]
    times = found(tmp_path, *old, *new)
    assert times is not None
    assert set(times.day) | set(times.weekend) == {0}


def test_a_report_tells_whole_percents_and_a_rare_cluster_from_an_absent_one() -> None:
    times = DayTimes({0: 0.9961, 1: 0.0039}, {0: 0.254, 2: 0.746}, {})
    usual = share_by_time(times, 0)
    assert usual is not None
    assert (usual.day, usual.night, usual.weekend) == (1.0, 0.25, None)
    rare = share_by_time(times, 1)
    assert rare is not None
    assert (rare.day, rare.night, rare.weekend) == (0.001, 0.0, None)
    assert share_by_time(None, 0) is None
