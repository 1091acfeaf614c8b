"""The runs: as fast as it goes, at a rate, and with kills."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.path.figures import Contents, due_at, percentiles
from benchmarks.path.house import OBSERVER, PRODUCER, SERVER, House
from benchmarks.path.logs import Place
from benchmarks.path.peers import arithmetic, encoded_bytes, raw_records
from benchmarks.path.settings import DIMENSIONS, SETTINGS, Extent, write_federation
from benchmarks.process import footprint_of
from benchmarks.results import spread

FAST = "prompt"
"""settings as fast as it goes: the last snapshot is not waited for"""


@contextmanager
def house_on(place: Place, stream: Path, clients: int, settings: str) -> Iterator[House]:
    """A new federation in a folder of its own, everybody waiting."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "federation.toml"
        # A broker outlives a run, so the federation has a name of its own.
        write_federation(file, f"measured-{uuid.uuid4().hex[:12]}", place.address, SETTINGS[settings], clients)
        with House(file, stream, clients) as house:
            yield house


def throughput(place: Place, stream: Path, extent: Extent) -> dict[str, Any]:
    """Readings per second from the first one stored to the snapshot that holds the last one, beside the peers."""
    rates: list[float] = []
    peers: dict[str, list[float]] = {"arithmetic": [], "raw records": []}
    used: list[dict[str, Any]] = []
    wire: dict[str, float] = {}
    for _ in range(extent.turns):
        with house_on(place, stream, extent.clients, FAST) as house:
            broker_before = _broker_cpu(place)
            house.produce(limit=extent.readings)
            each = extent.readings // extent.clients
            _until_held(house, [each] * extent.clients)
            first = min(float(house.stored(name).at[0]) for name in house.clients)
            contents = house.contents()
            last = max(float(contents.seen_at(name, each).max()) for name in house.clients)
            rates.append(extent.readings / (last - first))
            used = _used(house, place, broker_before, extent.readings)
            wire = _wire(house, extent.readings)
            peers["arithmetic"].append(arithmetic(extent.readings, extent.clients))
            peers["raw records"].append(raw_records(place.address, house.folder, extent.readings))
    return {
        "readings": extent.readings,
        "readings_per_s": spread(rates),
        "peers": {
            name: {
                "readings_per_s": spread(theirs),
                "ratio": spread([ours / other for ours, other in zip(rates, theirs, strict=True)]),
            }
            for name, theirs in peers.items()
        },
        "wire": wire,
        "processes": used,
    }


def latency(place: Place, stream: Path, extent: Extent, rate: int, settings: str) -> dict[str, Any]:
    """From the instant a reading is due to the first sight of a snapshot that holds it, for every reading that is
    due in the time measured. The producer goes on until all of them are seen."""
    with house_on(place, stream, extent.clients, settings) as house:
        broker_before = _broker_cpu(place)
        house.produce(rate=rate)
        house.wait_until(lambda: all(len(house.stored(name).at) for name in house.clients))
        _go_on(house, extent.warm_s + extent.measured_s)
        stored = [house.stored(name) for name in house.clients]
        counts = [len(log.at) for log in stored]
        _until_held(house, counts)
        contents, due = house.contents(), due_at(stored, rate)
        began = min(float(moments[0]) for moments in due)
        waits, measured = [], []
        for name, moments in zip(house.clients, due, strict=True):
            waits.append(contents.seen_at(name, len(moments)) - moments)
            measured.append((moments >= began + extent.warm_s) & (moments < began + extent.warm_s + extent.measured_s))
        late = max(float((log.at - moments).max()) for log, moments in zip(stored, due, strict=True))
        readings = sum(_held(contents, name) for name in house.clients)
        result = {
            "rate": rate,
            "settings": settings,
            **percentiles(np.concatenate(waits)[np.concatenate(measured)]),
            "max_with_start_s": round(float(np.concatenate(waits).max()), 4),
            "stored_late_max_s": round(late, 4),
            "snapshots_per_s": round(len(contents.moments) / (time.time() - began), 2),
            "wire": _wire(house, readings),
            "processes": _used(house, place, broker_before, readings),
        }
        house.stop(PRODUCER)
        return result


def recovery(place: Place, stream: Path, extent: Extent) -> list[dict[str, Any]]:
    """SIGKILL under load, started again at once: seconds until a snapshot holds a reading due after the kill, of the
    killed client itself or of any."""
    targets = ["client-1", SERVER] + ["broker"] * (place.pid is not None)
    took: dict[str, list[float]] = {target: [] for target in targets}
    with house_on(place, stream, extent.clients, "prompt") as house:
        house.produce(rate=extent.kill_rate)
        _until_held(house, [1] * extent.clients)
        for target in targets * extent.kills:
            killed_at = place.kill() if target == "broker" else house.kill(target)
            affected = [target] if target in house.clients else house.clients
            took[target].append(_first_sight(house, affected, killed_at, extent.kill_rate) - killed_at)
            _go_on(house, extent.steady_s)
        house.stop(PRODUCER)
    return [{"killed": target, "kills": len(seconds), "seconds": spread(seconds)} for target, seconds in took.items()]


def _first_sight(house: House, clients: list[str], after: float, rate: int) -> float:
    """When a snapshot that holds a reading of one of these, due after that moment, was first seen."""
    found: list[float] = []

    def seen() -> bool:
        contents = house.contents()
        stored = [house.stored(name) for name in house.clients]
        for name, due in zip(house.clients, due_at(stored, rate), strict=True):
            sights = contents.seen_at(name, len(due))[due > after]
            if name in clients and len(sights) and np.isfinite(sights[0]):
                found.append(float(sights[0]))
        return bool(found)

    house.wait_until(seen)
    return min(found)


def _go_on(house: House, seconds: float) -> None:
    until = time.monotonic() + seconds
    house.wait_until(lambda: time.monotonic() > until)


def _until_held(house: House, counts: list[int]) -> None:
    """Wait until the newest snapshot seen holds so many readings of each client."""

    def held() -> bool:
        contents = house.contents()
        return all(_held(contents, name) >= count for name, count in zip(house.clients, counts, strict=True))

    house.wait_until(held)


def _held(contents: Contents, client: str) -> int:
    held = contents.held(client)
    return int(held[-1]) if len(held) else 0


def _wire(house: House, readings: int) -> dict[str, float]:
    """Bytes published for each reading, beside the reading itself."""
    contents = house.contents()
    up, down = contents.bytes_said / readings, contents.bytes_seen / readings
    raw, encoded = 8 * DIMENSIONS, encoded_bytes()
    return {
        "update_bytes_per_reading": round(up, 1),
        "snapshot_bytes_per_reading": round(down, 1),
        "raw_bytes": raw,
        "encoded_bytes": encoded,
        "updates_to_raw": round(up / raw, 3),
        "updates_to_encoded": round(up / encoded, 3),
    }


def _used(house: House, place: Place, broker_before: float, readings: int) -> list[dict[str, Any]]:
    """Memory at most and processor time of each process, since it waited for the first reading."""
    house.look()
    rows = []
    for name, after in house.after.items():
        if name == OBSERVER:
            continue
        before = house.before[name].cpu_s if name in house.before else 0.0
        rows.append(_row(name, after.peak_mib, after.cpu_s - before, readings))
    if place.pid is not None:
        broker = footprint_of(place.pid)
        rows.append(_row("broker", broker.peak_mib, broker.cpu_s - broker_before, readings))
    return rows


def _row(name: str, peak_mib: float, cpu_s: float, readings: int) -> dict[str, Any]:
    return {
        "name": name,
        "rss_max_mib": round(peak_mib, 1),
        "cpu_s": round(cpu_s, 2),
        "cpu_s_per_1000_readings": round(1000 * cpu_s / readings, 4),
    }


def _broker_cpu(place: Place) -> float:
    return 0.0 if place.pid is None else footprint_of(place.pid).cpu_s
