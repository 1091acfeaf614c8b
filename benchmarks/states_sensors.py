"""States of sensor files: what they mean, and whether the halves of a file agree."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from benchmarks.results import table
from shoal.estimators.states import States
from shoal.kernels.arrays import Floats, Ints

ROWS_MAX: Final = 24_000


class Sensor(NamedTuple):
    """A sensor file, and the columns that are no readings."""

    file: str
    time: str | None = None
    meanings: tuple[str, ...] = ()
    """columns of which each value has a meaning: a setting, a fault"""
    dropped: tuple[str, ...] = ()


SENSORS: Final = {
    "office": Sensor("occupancy", "date", ("label",), ("part",)),
    "gas": Sensor("gas_drift_8of10", None, ("label", "batch"), ("concentration",)),
    "elec2": Sensor("elec2", None, ("label", "day"), ("date", "period")),
    "skab": Sensor("skab_valves", None, ("label", "run"), ("datetime", "changepoint")),
    "pm25": Sensor("beijing_pm25", "timestamp", ("cbwd",)),
    "noaa": Sensor("noaa_weather", None, ("label",)),
    "eeg": Sensor("eeg_eye_state", None, ("label",)),
    "wall_robot": Sensor("wall_robot", None, ("label",)),
    "air_quality": Sensor("air_quality_uci", "timestamp"),
    "cmapss": Sensor("cmapss_fd001_train", None, ("unit",), ("cycle",)),
    "nab": Sensor("nab_known_cause", "timestamp", ("label", "series")),
    "wisdm": Sensor("wisdm_transformed", None, ("label", "user"), ("window_id",)),
}


def read(folder: Path, sensor: Sensor) -> tuple[Floats, dict[str, Ints]]:
    """(n, d) readings in the order of time, NaN where missing, and of each meaning (n,) its
    values."""
    path = folder / f"{sensor.file}.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        names = next(lines)
        cells = [line for _, line in zip(range(ROWS_MAX), lines, strict=False)]
    columns = dict(zip(names, zip(*cells, strict=True), strict=True))
    no_readings = {sensor.time, *sensor.meanings, *sensor.dropped}
    rows = np.array(
        [
            [float(cell or "nan") for cell in values]
            for name, values in columns.items()
            if name not in no_readings
        ]
    ).T
    rows = rows[:, np.isnan(rows).mean(axis=0) <= 0.5]
    meanings = {name: _numbered(columns[name]) for name in sensor.meanings}
    if sensor.time is not None:
        times = [datetime.fromisoformat(cell) for cell in columns[sensor.time]]
        meanings["hour"] = np.array([time.hour for time in times])
        if (max(times) - min(times)).days > 180:
            meanings["season"] = np.array([time.month % 12 // 3 for time in times])
    return rows, meanings


def _numbered(cells: tuple[str, ...]) -> Ints:
    return np.unique(np.array(cells), return_inverse=True)[1].astype(np.int64)


def measure_sensors(folder: Path, quick: bool) -> Iterator[dict[str, Any]]:
    """Of each file: states and changes found, adjusted mutual information with what is known of
    its rows, and the agreement over the whole file of models of its halves."""
    for name, sensor in list(SENSORS.items())[: 1 if quick else None]:
        rows, meanings = read(folder, sensor)
        model = States().fit(rows)
        half = len(rows) // 2
        halves = [States().fit(part) for part in (rows[:half], rows[half:])]
        first, second = (part.predict(rows) for part in halves)
        line = {
            "sensor": name,
            "rows": len(rows),
            "states": model.n_states_,
            "changes": len(model.segments_) - 1,
            "ami": {
                meaning: float(adjusted_mutual_info_score(values, model.labels_))
                for meaning, values in meanings.items()
            },
            "states_of_halves": [part.n_states_ for part in halves],
            "returned_in_halves": [int(part.returns_.sum()) for part in halves],
            "halves": float(adjusted_rand_score(first, second)),
            "with_whole": [
                float(adjusted_rand_score(model.labels_[part], half_model.labels_))
                for part, half_model in zip((slice(half), slice(half, None)), halves, strict=True)
            ],
        }
        click.echo(str(line))
        yield line


def sensors_page(cells: list[dict[str, Any]]) -> str:
    """The section of the page."""
    if not cells:
        return ""
    lines = []
    for cell in cells:
        meanings = ", ".join(f"{meaning} {ami:.2f}" for meaning, ami in cell["ami"].items())
        several = min(cell["states_of_halves"]) > 1
        counts = " and ".join(
            f"{states} ({returned})"
            for states, returned in zip(
                cell["states_of_halves"], cell["returned_in_halves"], strict=True
            )
        )
        with_whole = ", ".join(f"{ari:.2f}" for ari in cell["with_whole"])
        lines.append(
            [
                cell["sensor"],
                str(cell["rows"]),
                str(cell["states"]),
                str(cell["changes"]),
                meanings,
                counts,
                f"{cell['halves']:.2f}" if several else "-",
                with_whole,
            ]
        )
    head = ["sensor", "rows", "states", "changes", "AMI with", "of halves", "halves", "with whole"]
    several = [cell for cell in cells if min(cell["states_of_halves"]) > 1]
    returning = [cell for cell in cells if min(cell["returned_in_halves"]) > 1]
    return (
        "\n## Sensors\n\nStates and changes found; adjusted mutual information of the states with"
        " what is known of the rows (hour, season, setting, fault); the states that the halves of a"
        " file have each alone, in brackets those seen in more than one segment; the adjusted Rand"
        " index over the whole file of what both models tell of it, where both have several, and of"
        " each half's states with those of the whole on that half. What is known of the rows need"
        f" not be a state.\n\n{table(head, lines)}\nHalves that both have several states agree at"
        f" {_agreements(several)}; those that both have two or more that returned at"
        f" {_agreements(returning)}. A phase, seen once in a half, is not in the other half to be"
        " told again.\n"
    )


def _agreements(cells: Sequence[dict[str, Any]]) -> str:
    """The agreement of halves of these files, the best first, and how many have .8 or more."""
    found = sorted((cell["halves"] for cell in cells), reverse=True)
    if not found:
        return "no file"
    listed = ", ".join(f"{ari:.2f}" for ari in found)
    return f"{listed} ({sum(ari >= 0.8 for ari in found)} of {len(found)} at 0.8 or more)"
