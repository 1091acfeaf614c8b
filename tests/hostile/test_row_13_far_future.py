"""Row 13: a reading of the far future is set aside; it does not push all others out of the
window."""

from __future__ import annotations

import datetime
from pathlib import Path

from shoal.client_nodes.intake import decode_batch
from shoal.protocol.readings import Reading
from shoal.protocol.topics import REJECTED
from shoal.transports.base import Record, latest
from tests.client_nodes.site import Site, readings
from tests.server_node.rounds_harness import contract_with

YEAR_9999 = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC).timestamp()


def test_one_reading_of_the_year_9999_does_not_empty_the_window(tmp_path: Path) -> None:
    site = Site(tmp_path, contract_with(), window_s=600.0)
    site.add_readings(readings(30) / 100)
    site.add_records((Reading(YEAR_9999, [0.5, 0.5]).encode(), Reading.headers()))
    site.add_readings(readings(30, seed=1) / 100, started_at=1e9 + 30)
    with site.node() as node:
        while node.step():
            pass
        assert len(node.window) == 60
        assert node.totals["rejected"] == 1
    with site.readings() as log:
        (record,) = latest(log, REJECTED).values()
    assert dict(record.headers)["reason"] == b"time"


def record(time: float | None, arrived_s: float, values: list[float] | None = None) -> Record:
    value = Reading(time, values or [1.0, 2.0]).encode()
    return Record("readings", 0, 0, round(1000 * arrived_s), None, value, Reading.headers())


def test_a_time_is_compared_with_the_arrival_and_not_with_a_clock() -> None:
    times = [(100.0, 100.0), (161.0, 100.0), (None, 100.0), (160.0, 100.0), (1e11, 1e11)]
    batch = decode_batch([record(*time) for time in times], 2, ahead_s=60.0)
    assert batch.times == [100.0, None, 160.0, 1e11]
    assert [record.reason for record in batch.rejected] == ["time"]
    assert len(decode_batch([record(*time) for time in times], 2).times) == 5, (
        "without a limit all are taken"
    )
    assert decode_batch([], 2, ahead_s=60.0).records == 0
