"""Real streams: sensors in the order of time, the same and other tables shuffled, and short ones
repeated."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.steadiness.streams import Stream, repeated, shuffled
from shoal.kernels.arrays import Floats, Ints

ROWS_MAX = 24_000


@dataclass(frozen=True)
class Table:
    """A file of the data folder; `dropped` are columns that are no features."""

    file: str
    dropped: tuple[str, ...] = ()


SENSORS = {
    "office": Table("occupancy", ("date", "part")),
    "gas": Table("gas_drift_8of10", ("batch", "concentration")),
    "elec2": Table("elec2"),
    "skab": Table("skab_valves", ("datetime", "run", "changepoint")),
    "pm25": Table("beijing_pm25", ("timestamp", "cbwd")),
    "noaa": Table("noaa_weather"),
    "eeg": Table("eeg_eye_state"),
    "wall_robot": Table("wall_robot"),
    "air_quality": Table("air_quality_uci", ("timestamp",)),
}
SHUFFLED = {
    "gas": SENSORS["gas"],
    "office": SENSORS["office"],
    "pendigits": Table("pendigits"),
    "optdigits": Table("optdigits"),
    "phoneme": Table("phoneme"),
    "magic": Table("magic_telescope", ("ID",)),
}

REPEATED = ("gas", "optdigits")
"""tables that end before the memory of cluster_tree is full"""
REPEATED_ROWS = 20_000


def sensor(folder: Path, name: str) -> Stream:
    """One sensor in the order of time."""
    return Stream(name, "sensor", *read(folder, SENSORS[name]))


def at_random(folder: Path, name: str, seed: int) -> Stream:
    """One table in an order of no meaning."""
    return shuffled(Stream(name, "sensor", *read(folder, SHUFFLED[name])), seed)


def again(folder: Path, name: str, seed: int) -> Stream:
    """One table repeated, each time in another order of no meaning."""
    return repeated(Stream(name, "sensor", *read(folder, SHUFFLED[name])), seed, REPEATED_ROWS)


def read(folder: Path, table: Table) -> tuple[Floats, Ints]:
    """(n, d) features in the units of the file, complete rows only; (n,) classes, 0 where there are
    none."""
    with gzip.open(folder / f"{table.file}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        names = next(lines)
        cells = [line for _, line in zip(range(ROWS_MAX), lines, strict=False)]
    columns = list(zip(*cells, strict=True))
    kept = [at for at, name in enumerate(names) if name != "label" and name not in table.dropped]
    rows = np.array([[float(cell or "nan") for cell in columns[at]] for at in kept]).T
    sparse = np.isnan(rows).mean(axis=0) > 0.5
    rows = rows[:, ~sparse]
    complete = ~np.isnan(rows).any(axis=1)
    rows = rows[complete]
    labels = (
        np.array(columns[names.index("label")])[complete]
        if "label" in names
        else np.zeros(len(rows))
    )
    return rows, np.unique(labels, return_inverse=True)[1].astype(np.int64)
