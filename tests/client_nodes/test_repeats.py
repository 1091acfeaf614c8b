"""Readings that a sensor has sent again are dropped by their time, where the settings say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client_nodes.site import Site
from tests.client_nodes.site import readings as weather


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_a_reading_with_the_time_of_an_earlier_one_is_dropped_and_keeps_its_place(
    tmp_path: Path, batch: int
) -> None:
    site = Site(tmp_path, publish_readings=20, batch_readings_max=batch, drop_repeats=True)
    values = weather(60)
    site.add_readings(values[:40])
    site.run()
    site.add_readings(values[20:40], started_at=1e9 + 20)
    site.add_readings(values[40:], started_at=1e9 + 40)
    totals = site.run()
    assert (totals["read"], totals["learned"], totals["rejected"]) == (80, 60, 20), (
        "also of an earlier run"
    )
    assert {dict(record.headers)["reason"] for record in site.rejected().values()} == {b"repeat"}


def test_a_repeat_is_told_by_its_time_and_not_by_its_values(tmp_path: Path) -> None:
    site = Site(tmp_path, drop_repeats=True)
    site.add_readings([[20.0, 50.0], [20.0, 50.0]])
    site.add_readings([[30.0, 60.0]])
    totals = site.run()
    assert (totals["learned"], totals["rejected"]) == (2, 1)


def test_readings_without_a_time_are_no_repeats_and_by_default_none_is_dropped(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path / "untimed", drop_repeats=True)
    site.add_readings([[20.0, 50.0]] * 5, started_at=None)
    assert site.run()["learned"] == 5
    site = Site(tmp_path / "default")
    for _ in range(2):
        site.add_readings([[20.0, 50.0]])
    assert site.run()["learned"] == 2
