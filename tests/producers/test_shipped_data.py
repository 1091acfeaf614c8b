"""The data that the demo ships is what its credit says it is."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise
from pathlib import Path

import shoal.onebox.demo
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import split_of
from tests.producers.running_producer import all_of

FOLDER = Path(shoal.onebox.demo.__file__).parent
FEATURES = ("Temperature", "Humidity", "Light", "CO2", "HumidityRatio")


def test_the_rows_of_the_office_room_are_all_there_in_order_and_sound() -> None:
    source = Replay(
        [FOLDER / "occupancy.csv.gz"],
        Columns(FEATURES, ("date",), "label"),
        split_of("blocks", 4, 0),
    )
    rows = all_of(source, 1000)
    assert not source.faults
    assert source.total == len(rows) == 20_560
    assert Counter(row.label for row in rows) == {"0": 15_810, "1": 4_750}
    assert Counter(row.client for row in rows) == {
        f"client-{number}": 5_140 for number in range(1, 5)
    }
    times = [row.time for row in rows if row.time is not None]
    assert len(times) == len(rows)
    assert all(earlier <= later for earlier, later in pairwise(times))


def test_the_file_is_small_and_is_the_one_that_is_credited() -> None:
    content = (FOLDER / "occupancy.csv.gz").read_bytes()
    assert len(content) < 300_000
    assert hashlib.sha256(content).hexdigest() in (FOLDER / "DATA.md").read_text()
