"""The screenshots of the documentation show the demo as it is."""

from __future__ import annotations

import csv
import gzip
import json
from datetime import date
from pathlib import Path

import pytest
from PIL import Image

import shoal.onebox.demo
from tests.server_node.web_screenshot import AXIS_TEXT, DOCS, SCREENSHOTS


def days_of_the_demo() -> tuple[date, date]:
    """First and last day of the readings that the demo replays."""
    with gzip.open(Path(shoal.onebox.demo.__path__[0]) / "occupancy.csv.gz", "rt") as file:
        days = [row["date"][:10] for row in csv.DictReader(file)]
    return date.fromisoformat(min(days)), date.fromisoformat(max(days))


@pytest.mark.parametrize("name", SCREENSHOTS)
def test_the_axis_of_a_screenshot_has_the_sixteen_days_of_the_demo(name: str) -> None:
    """Its labels are days, such as "Fri 6", and that it ends now."""
    first, last = days_of_the_demo()
    assert (last - first).days == 16
    with Image.open(DOCS / name) as picture:
        labels = json.loads(picture.text[AXIS_TEXT])  # type: ignore[attr-defined]  # a PNG has it
    *days, end = labels
    assert end == "now"
    shown = [int(label.split()[-1]) for label in days]
    assert len(shown) >= 2, "days, and no minutes of a replay"
    assert days == [f"{first.replace(day=day):%a} {day}" for day in shown]
    assert shown == sorted(shown)
    step = shown[1] - shown[0]
    # The page shows all but the last readings, which wait until a window of counts is full.
    assert first.day <= shown[0] <= first.day + step
    assert last.day - 2 - step <= shown[-1] <= last.day
