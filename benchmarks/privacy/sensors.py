"""Real streams in the order of time, in the unit cube of declared bounds, dealt to five clients in
turn."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks.privacy.families import Maker, Stream
from benchmarks.steadiness.sensors import SENSORS, Table, read

CLIENTS = 5
OFFICE_BOUNDS = {
    "Temperature": (10, 35),
    "Humidity": (0, 100),
    "Light": (0, 2000),
    "CO2": (300, 2500),
}
"""the ranges of such sensors, which the demo declares too; HumidityRatio follows from two others"""
TABLES = {
    "office": Table("occupancy", ("date", "part", "HumidityRatio")),
    "elec2": SENSORS["elec2"],
    "skab": SENSORS["skab"],
    "pm25": SENSORS["pm25"],
    "noaa": SENSORS["noaa"],
    "wall_robot": SENSORS["wall_robot"],
    "pendigits": Table("pendigits"),
}
WITHOUT_CLASSES = ("pm25",)
STEPS = {"elec2": {1: 1 / 6, 2: 1 / 47}, "skab": {3: 1 / 9, 7: 1 / 12}}
"""smallest differences that features show, as parts of their ranges: weekdays and half hours; ten
values of a pressure, and whole litres of a flow, which is a mean of two now and then"""


def sensors(folder: Path) -> dict[str, Maker]:
    """Every stream of the folder by its name, the same for every seed.

    All but the office have the range of their file for bounds. In a federation bounds have to be
    declared, because a range that follows the data reveals the largest reading; here it stands for
    what an operator would know.
    """
    return {name: partial(_same, folder, name) for name in TABLES}


def _same(folder: Path, name: str, seed: int) -> Stream:
    return _stream(folder, name)


@cache
def _stream(folder: Path, name: str) -> Stream:
    rows, truth = read(folder, TABLES[name])
    if name == "office":
        low, high = np.array(list(OFFICE_BOUNDS.values()), dtype=np.float64).T
    else:
        low = rows.min(axis=0)
        high = rows.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    unit = np.clip((rows - low) / span, 0.0, 1.0)
    owner = np.arange(len(rows)) % CLIENTS
    return Stream(name, "sensor", unit, truth, owner, known=name not in WITHOUT_CLASSES)
