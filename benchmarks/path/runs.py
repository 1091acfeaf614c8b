"""The runs: highest throughput, latency at a rate, and recovery after kills."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.path.federation import OBSERVER, PRODUCER, SERVER, FederationProcesses
from benchmarks.path.latencies import SnapshotContents, due_at, percentiles
from benchmarks.path.logs import LogPlace
from benchmarks.path.references import arithmetic, encoded_bytes, raw_records
from benchmarks.path.settings import DIMENSIONS, SETTINGS, Extent, write_federation
from benchmarks.process import footprint_of
from benchmarks.results import spread

FAST = "prompt"
"""settings of the throughput run, so that it does not wait for the last snapshot"""


@contextmanager
def federation_on(
    place: LogPlace, stream: Path, clients: int, settings: str, kernels: str | None = None
) -> Iterator[FederationProcesses]:
    """A new federation in a folder of its own, with all processes idle."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "federation.toml"
        # A broker outlives a run, so the federation has a name of its own.
        write_federation(
            file, f"measured-{uuid.uuid4().hex[:12]}", place.address, SETTINGS[settings], clients
        )
        with FederationProcesses(file, stream, clients, kernels) as federation:
            yield federation


def throughput(place: LogPlace, stream: Path, extent: Extent) -> dict[str, Any]:
    """Readings per second from the first one stored to the snapshot with the last one, beside the
    references."""
    rates: list[float] = []
    peers: dict[str, list[float]] = {"arithmetic": [], "raw records": []}
    used: list[dict[str, Any]] = []
    wire: dict[str, float] = {}
    for _ in range(extent.turns):
        with federation_on(place, stream, extent.clients, FAST, extent.kernels) as federation:
            broker_before = _broker_cpu(place)
            federation.produce(limit=extent.readings)
            each = extent.readings // extent.clients
            _wait_for_readings(federation, [each] * extent.clients)
            first = min(float(federation.stored(name).at[0]) for name in federation.clients)
            contents = federation.contents()
            last = max(float(contents.seen_at(name, each).max()) for name in federation.clients)
            rates.append(extent.readings / (last - first))
            used = _usage(federation, place, broker_before, extent.readings)
            wire = _wire(federation, extent.readings)
            peers["arithmetic"].append(arithmetic(extent.readings, extent.clients))
            peers["raw records"].append(
                raw_records(place.address, federation.folder, extent.readings)
            )
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


def latency(
    place: LogPlace, stream: Path, extent: Extent, rate: int, settings: str
) -> dict[str, Any]:
    """Seconds from the time at which a reading is due to the first snapshot with it, for every
    reading that is due in the measured time. The producer continues until all of them are in a
    snapshot."""
    with federation_on(place, stream, extent.clients, settings, extent.kernels) as federation:
        broker_before = _broker_cpu(place)
        federation.produce(rate=rate)
        federation.wait_until(
            lambda: all(len(federation.stored(name).at) for name in federation.clients)
        )
        _keep_running(federation, extent.warm_s + extent.measured_s)
        # On a busy machine the producer falls behind; the figures are about every reading that was
        # due by then.
        due_each = rate * (extent.warm_s + extent.measured_s) / extent.clients
        federation.wait_until(
            lambda: all(len(federation.stored(name).at) > due_each for name in federation.clients)
        )
        stored = [federation.stored(name) for name in federation.clients]
        counts = [len(log.at) for log in stored]
        _wait_for_readings(federation, counts)
        contents = federation.contents()
        due = due_at(stored, rate)
        began = min(float(moments[0]) for moments in due)
        waits = []
        measured = []
        for name, moments in zip(federation.clients, due, strict=True):
            waits.append(contents.seen_at(name, len(moments)) - moments)
            measured.append(
                (moments >= began + extent.warm_s)
                & (moments < began + extent.warm_s + extent.measured_s)
            )
        late = max(
            float((log.at - moments).max()) for log, moments in zip(stored, due, strict=True)
        )
        readings = sum(_readings_in(contents, name) for name in federation.clients)
        result = {
            "rate": rate,
            "settings": settings,
            **percentiles(np.concatenate(waits)[np.concatenate(measured)]),
            "max_with_start_s": round(float(np.concatenate(waits).max()), 4),
            "stored_late_max_s": round(late, 4),
            "snapshots_per_s": round(len(contents.times) / (time.time() - began), 2),
            "wire": _wire(federation, readings),
            "processes": _usage(federation, place, broker_before, readings),
        }
        federation.stop(PRODUCER)
        return result


def recovery(place: LogPlace, stream: Path, extent: Extent) -> list[dict[str, Any]]:
    """Seconds from a SIGKILL under load, after which the process is started at once, to the first
    snapshot with a reading due after it: of the killed client, or else of any client."""
    targets = ["client-1", SERVER] + ["broker"] * (place.pid is not None)
    took: dict[str, list[float]] = {target: [] for target in targets}
    with federation_on(place, stream, extent.clients, "prompt") as federation:
        federation.produce(rate=extent.kill_rate)
        _wait_for_readings(federation, [1] * extent.clients)
        for target in targets * extent.kills:
            killed_at = place.kill() if target == "broker" else federation.kill(target)
            affected = [target] if target in federation.clients else federation.clients
            took[target].append(
                _first_snapshot_after(federation, affected, killed_at, extent.kill_rate) - killed_at
            )
            _keep_running(federation, extent.steady_s)
        federation.stop(PRODUCER)
    return [
        {"killed": target, "kills": len(seconds), "seconds": spread(seconds)}
        for target, seconds in took.items()
    ]


def _first_snapshot_after(
    federation: FederationProcesses, clients: list[str], after: float, rate: int
) -> float:
    """Time at which the first snapshot with a reading of one of these clients, due after that time,
    was read."""
    found: list[float] = []

    def seen() -> bool:
        contents = federation.contents()
        stored = [federation.stored(name) for name in federation.clients]
        for name, due in zip(federation.clients, due_at(stored, rate), strict=True):
            sights = contents.seen_at(name, len(due))[due > after]
            if name in clients and len(sights) and np.isfinite(sights[0]):
                found.append(float(sights[0]))
        return bool(found)

    federation.wait_until(seen)
    return min(found)


def _keep_running(federation: FederationProcesses, seconds: float) -> None:
    until = time.monotonic() + seconds
    federation.wait_until(lambda: time.monotonic() > until)


def _wait_for_readings(federation: FederationProcesses, counts: list[int]) -> None:
    """Wait until the newest snapshot has `counts` readings of the clients."""

    def readings_in() -> bool:
        contents = federation.contents()
        return all(
            _readings_in(contents, name) >= count
            for name, count in zip(federation.clients, counts, strict=True)
        )

    federation.wait_until(readings_in)


def _readings_in(contents: SnapshotContents, client: str) -> int:
    readings_in = contents.readings_in(client)
    return int(readings_in[-1]) if len(readings_in) else 0


def _wire(federation: FederationProcesses, readings: int) -> dict[str, float]:
    """Bytes published per reading, and their ratio to the bytes of the reading."""
    contents = federation.contents()
    up = contents.update_bytes / readings
    down = contents.snapshot_bytes / readings
    raw = 8 * DIMENSIONS
    encoded = encoded_bytes()
    return {
        "update_bytes_per_reading": round(up, 1),
        "snapshot_bytes_per_reading": round(down, 1),
        "raw_bytes": raw,
        "encoded_bytes": encoded,
        "updates_to_raw": round(up / raw, 3),
        "updates_to_encoded": round(up / encoded, 3),
    }


def _usage(
    federation: FederationProcesses, place: LogPlace, broker_before: float, readings: int
) -> list[dict[str, Any]]:
    """Peak memory, and processor time since the first reading, of each process."""
    federation.sample()
    rows = []
    for name, after in federation.after.items():
        if name == OBSERVER:
            continue
        before = federation.before[name].cpu_s if name in federation.before else 0.0
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


def _broker_cpu(place: LogPlace) -> float:
    return 0.0 if place.pid is None else footprint_of(place.pid).cpu_s
