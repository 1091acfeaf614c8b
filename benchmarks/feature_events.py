"""Site events of features on sensor files with planted faults: false alarms a month and delays of
a sensor that is stuck, drifts or was exchanged, beside ADWIN and Page-Hinkley."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np

from benchmarks.machine import facts, one_line
from benchmarks.results import data_option, out_option, quick_option, table, write
from shoal import ClusterTree
from shoal.client_nodes.labelling.drift import DriftWatch
from shoal.client_nodes.labelling.stuck import StuckWatch
from shoal.config.base import DAY_S
from shoal.config.contract import Contract
from shoal.config.sections import ClientSettings
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label

SEED: Final = 4100
START: Final = 1_609_718_400.0
"""a Monday; the rows of a file are taken to come without gaps"""
BLOCK: Final = 500
"""readings that are followed together"""
FAULTS: Final = 2
"""faults of each kind that are planted in a stream, in one feature each, one at a time"""
MONTH_DAYS: Final = 30
DRIFT_PER_DAY: Final = 0.1
STEP: Final = 2.0
"""in standard deviations of the feature within its states"""
WITHIN_DAYS: Final = {"stuck": 7, "drift": 60, "exchanged": 30}
"""days in which a fault must be found; a sensor is stuck for so long"""
SHOAL_KINDS: Final = {
    "stuck": {"stuck"},
    "drift": {"drift", "level_shift"},
    "exchanged": {"drift", "level_shift"},
}


class File(NamedTuple):
    """A file of a sensor, or of several at one place."""

    file: str
    features: tuple[str, ...]
    step_s: int
    rows_max: int = 9_000
    series: str = ""
    """value of the column `series` of its rows; empty: all rows"""


FILES: Final = {
    "air quality, 8 features": File(
        "air_quality_uci",
        ("CO_GT", "PT08.S1_CO", "C6H6_GT", "NOx_GT", "NO2_GT", "PT08.S5_O3", "T", "RH"),
        3600,
    ),
    "weather and dust, 7 features": File(
        "beijing_pm25", ("pm2.5", "DEWP", "TEMP", "PRES", "Iws", "Is", "Ir"), 3600
    ),
    "electricity, 5 features": File(
        "elec2", ("nswprice", "nswdemand", "vicprice", "vicdemand", "transfer"), 1800
    ),
    "ambient temperature": File(
        "nab_known_cause", ("value",), 3600, series="ambient_temperature_system_failure"
    ),
    "machine temperature": File(
        "nab_known_cause", ("value",), 300, 22_700, "machine_temperature_system_failure"
    ),
}


class Stream(NamedTuple):
    """A file as one client has it."""

    name: str
    rows: Floats
    """(n, d), each feature from 0 to 1 between its 0.1 % and 99.9 % quantiles, NaN where missing"""
    times: Floats
    spread: Floats
    """(d,) standard deviations within states"""
    labels: Callable[[Floats], Ints]
    """rows -> states, by a model that has learnt the file without faults"""

    @property
    def days(self) -> float:
        """Length of the stream."""
        return float(self.times[-1] - self.times[0]) / DAY_S


class Fault(NamedTuple):
    """A planted fault."""

    kind: str
    feature: int
    at: float
    """seconds since 1970"""
    rows: Floats


class Alarm(NamedTuple):
    """An alarm of one method."""

    at: float
    feature: int
    kind: str


Method = Callable[[Stream, Floats, Bools], list[Alarm]]
"""stream, rows with a fault, features that are followed -> alarms in the order of time"""


@click.command(context_settings={"max_content_width": 100})
@data_option
@quick_option("One stream")
@out_option("feature_events")
def main(data: Path, quick: bool, out: Path) -> None:
    """Measure false alarms and delays on five sensor files. Five minutes."""
    names = list(FILES)[-2:-1] if quick else list(FILES)
    result: dict[str, Any] = {
        "made_by": "python -m benchmarks feature_events --data FOLDER" + " --quick" * quick,
        "machine": facts(("shoal", "numpy", "river")),
        "streams": [measured(read(data, name)) for name in names],
    }
    write(out, "feature_events", result, markdown(result))
    click.echo(f"written to {out}/feature_events.json and {out}/feature_events.md")


def read(data: Path, name: str) -> Stream:
    """The stream of a file."""
    source = FILES[name]
    rows = []
    with gzip.open(data / f"{source.file}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if source.series in ("", line.get("series")):
                rows.append([float(line[feature] or "nan") for feature in source.features])
            if len(rows) == source.rows_max:
                break
    values = np.array(rows)
    low, high = np.nanquantile(values, [0.001, 0.999], axis=0)
    unit = (values - low) / np.where(high > low, high - low, 1.0)
    median = np.nanmedian(unit, axis=0)
    model = ClusterTree(random_state=0).fit(filled(unit, median))

    def labels(rows: Floats) -> Ints:
        found: Ints = np.asarray(model.predict(filled(rows, median)), dtype=np.int64)
        return found

    states = labels(unit)
    squares = np.zeros(unit.shape[1])
    for state in np.unique(states):
        own = unit[states == state]
        squares += np.nansum((own - np.nanmean(own, axis=0)) ** 2, axis=0)
    spread = np.sqrt(squares / (~np.isnan(unit)).sum(axis=0))
    times: Floats = START + source.step_s * np.arange(len(unit), dtype=np.float64)
    return Stream(name, unit, times, spread, labels)


def filled(rows: Floats, median: Floats) -> Floats:
    """Rows within the bounds, without gaps: the model of states has none."""
    return np.clip(np.where(np.isnan(rows), median, rows), 0.0, 1.0)


def faults(stream: Stream) -> Iterator[Fault]:
    """Faults at random times from a third of the stream on, with room for each to be found."""
    rng = np.random.default_rng([SEED, len(stream.rows), stream.rows.shape[1]])
    for kind, days in WITHIN_DAYS.items():
        for number in range(FAULTS):
            moving = np.flatnonzero(stream.spread > 0)
            feature = int(moving[rng.permutation(len(moving))[number % len(moving)]])
            end = stream.times[-1] - min(days, stream.days / 3) * DAY_S
            at = float(rng.uniform(stream.times[0] + stream.days * DAY_S / 3, end))
            yield Fault(kind, feature, at, planted(stream, kind, feature, at))


def planted(stream: Stream, kind: str, feature: int, at: float) -> Floats:
    """The rows with a fault in one feature from `at` on."""
    rows = stream.rows.copy()
    days = (stream.times - at) / DAY_S
    after = days >= 0
    if kind == "stuck":
        known = np.flatnonzero(~after & ~np.isnan(rows[:, feature]))
        rows[after & (days < WITHIN_DAYS[kind]), feature] = rows[known[-1], feature]
    elif kind == "drift":
        rows[:, feature] += np.maximum(days, 0.0) * DRIFT_PER_DAY * stream.spread[feature]
    else:
        rows[after, feature] += STEP * stream.spread[feature]
    return rows


def shoal_alarms(stream: Stream, rows: Floats, features: Bools) -> list[Alarm]:
    """Those of a client with the settings that are the defaults."""
    names = [f"f{number}" for number in range(rows.shape[1])]
    contract = Contract.model_validate(
        {
            "federation": "bench",
            "features": [{"name": name, "low": 0.0, "high": 1.0} for name in names],
            "privacy": {"mode": "off"},
            "models": [{"name": "m", "algorithm": "cluster_tree"}],
        }
    )
    settings = ClientSettings()
    stuck = StuckWatch(contract, "c", settings.stuck_per_month)
    drift = DriftWatch(contract, "c", "m", settings.drift_per_month)
    states = stream.labels(rows).tolist()
    events: list[SiteEvent] = []
    for start in range(0, len(rows), BLOCK):
        here = slice(start, start + BLOCK)
        times = stream.times[here].tolist()
        places = [(0, start + number) for number in range(len(times))]
        events += stuck.follow(rows[here], times, places)
        labels = [
            Label(state, state if state >= 0 else None, "", None, 1, time)
            for state, time in zip(states[here], times, strict=True)
        ]
        events += drift.follow(labels, rows[here], places)
    alarms = []
    for event in events:
        feature = names.index(event.feature)
        if event.at is not None and event.kind != "stuck_ended" and features[feature]:
            alarms.append(Alarm(event.at, feature, event.kind))
    return sorted(alarms)


def detector_alarms(name: str) -> Method:
    """Those of a detector of river on each feature, with its defaults; those of a feature within a
    day are one."""
    from river import drift  # noqa: PLC0415 - an optional peer

    def alarms(stream: Stream, rows: Floats, features: Bools) -> list[Alarm]:
        found = []
        for feature in np.flatnonzero(features).tolist():
            detector = getattr(drift, name)()
            newest = -math.inf
            for time, value in zip(stream.times.tolist(), rows[:, feature].tolist(), strict=True):
                if math.isnan(value):
                    continue
                detector.update(value)
                if detector.drift_detected and time - newest >= DAY_S:
                    newest = time
                    found.append(Alarm(time, feature, name))
        return sorted(found)

    return alarms


def methods() -> dict[str, Method]:
    """Name -> method; river's where it is installed."""
    found: dict[str, Method] = {"shoal": shoal_alarms}
    if find_spec("river") is not None:
        found["ADWIN"] = detector_alarms("ADWIN")
        found["Page-Hinkley"] = detector_alarms("PageHinkley")
    return found


def measured(stream: Stream) -> dict[str, Any]:
    """Alarms on a stream as it is, and the delay after each fault."""
    every = np.ones(stream.rows.shape[1], dtype=bool)
    by_method = methods()
    plain = {name: method(stream, stream.rows, every) for name, method in by_method.items()}
    found: list[dict[str, Any]] = []
    for fault in faults(stream):
        own = np.arange(len(every)) == fault.feature
        delays: dict[str, float | None] = {}
        for name, method in by_method.items():
            kinds = SHOAL_KINDS[fault.kind] if name == "shoal" else {name, "PageHinkley"}
            delays[name] = delay_of(fault, method(stream, fault.rows, own), kinds)
        found.append({"kind": fault.kind, "feature": fault.feature, "delay_h": delays})
    alarms_of = {name: len(alarms) for name, alarms in plain.items()}
    click.echo(f"{stream.name}: {alarms_of}", err=True)
    return {
        "name": stream.name,
        "days": stream.days,
        "states": len(np.unique(stream.labels(stream.rows))),
        "alarms": alarms_of,
        "kinds": sorted(alarm.kind for alarm in plain["shoal"]),
        "faults": found,
    }


def delay_of(fault: Fault, alarms: Sequence[Alarm], kinds: set[str]) -> float | None:
    """Hours from a fault to the first alarm of its feature; None within the days it has."""
    end = fault.at + WITHIN_DAYS[fault.kind] * DAY_S
    for alarm in alarms:
        if alarm.kind in kinds and fault.at <= alarm.at < end:
            return (alarm.at - fault.at) / 3600
    return None


def markdown(result: dict[str, Any]) -> str:
    """The report."""
    names = list(result["streams"][0]["alarms"])
    lines = []
    for stream in result["streams"]:
        months = stream["days"] / MONTH_DAYS
        alarms = [f"{stream['alarms'][name] / months:.2f}" for name in names]
        lines.append([stream["name"], f"{stream['days']:.0f}", str(stream["states"]), *alarms])
    head = ["stream", "days", "states", *(f"{name}: alarms a month" for name in names)]
    text = "# Features that are stuck or drift: delay and false alarms\n\n"
    text += f"Made by `{result['made_by']}`; do not edit.\n\n{table(head, lines)}\n"
    of_faults = [fault for stream in result["streams"] for fault in stream["faults"]]
    rows = []
    for kind in WITHIN_DAYS:
        own = [fault["delay_h"] for fault in of_faults if fault["kind"] == kind]
        row = [f"{kind}, of {len(own)}"]
        for name in names:
            delays = [delays[name] for delays in own if delays[name] is not None]
            middle = f"{np.median(delays):.0f} h" if delays else "-"
            row.append(f"{len(delays)} ({middle})")
        rows.append(row)
    head = ["planted", *(f"{name}: found (median delay)" for name in names)]
    text += (
        f"{table(head, rows)}\nEach file is one client, its rows one after the other at their usual"
        " distance, with states by cluster_tree. Alarms a month: of all features together, in the"
        " file as it is, which has seasons and faults of its own; shoal's are `stuck`, `drift` and"
        " `level_shift` at the defaults, which aim at 1. A fault is planted in one feature at a"
        f" random time: it has one value for {WITHIN_DAYS['stuck']} days; drifts by"
        f" {DRIFT_PER_DAY} standard deviations within its states a day; or is {STEP:g} higher from"
        " then on. Found: an alarm of that feature within"
        f" {WITHIN_DAYS['stuck']}, {WITHIN_DAYS['drift']} and {WITHIN_DAYS['exchanged']} days."
        " River's detectors see each feature alone, with their defaults, and their alarms within a"
        " day are one.\n"
    )
    return f"{text}\n{one_line(result['machine'])}\n"
