"""References for the throughput, from the same run: the arithmetic without a log, and the log
without arithmetic."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from contextlib import closing
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from benchmarks.path.settings import CENTRES, DIMENSIONS, EPSILON_PER_FEATURE, SEED
from benchmarks.streams import Blobs
from shoal.config.settings import LogSettings
from shoal.estimators.fcac import FCAC
from shoal.privacy import Bounds, load_mode
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS_SETTINGS
from shoal.transports import open_log

UPDATE_ROWS = 500
"""rows of a client between two updates, as `publish_readings` has it"""
FLUSH_ROWS = 1000
spawn = multiprocessing.get_context("spawn")


def arithmetic(readings: int, clients: int) -> float:
    """Readings per second of wall-clock time of one process that adds noise to the same rows and
    clusters them with the estimator and as many clients: no message, no disk."""
    bounds = Bounds([0.0] * DIMENSIONS, [1.0] * DIMENSIONS)
    mode = load_mode("formal")(bounds, {"epsilon_per_reading": EPSILON_PER_FEATURE * DIMENSIONS})
    noise = mode.mechanism(bytes(32), "peer", bytes(16))
    rows = Blobs(DIMENSIONS, CENTRES, 0, SEED).draw(readings)
    owners = np.arange(readings) % clients
    places = np.stack([owners, np.arange(readings)], axis=1)
    model = FCAC()
    size = UPDATE_ROWS * clients
    began = time.perf_counter()
    for start in range(0, readings, size):
        part = slice(start, start + size)
        model.partial_fit(noise.privatise(rows[part], places[part]).rows, clients=owners[part])
    return readings / (time.perf_counter() - began)


def raw_records(address: str, folder: Path, readings: int) -> float:
    """Readings per second of wall-clock time from one process through the same log to another.

    From the first one published to the last one read and decoded.
    """
    settings = LogSettings(
        address=f"sqlite:{folder / 'raw.db'}" if address.startswith("sqlite:") else address
    )
    topic = f"raw-{uuid.uuid4().hex}"
    with closing(open_log(settings)) as log:
        log.ensure(topic, READINGS_SETTINGS)
        log.read(topic, {0: 0})
        ready = spawn.Event()
        go = spawn.Event()
        writer = spawn.Process(target=_write, args=(settings, topic, readings, ready, go))
        writer.start()
        ready.wait()
        began = time.perf_counter()
        go.set()
        at = {0: 0}
        read = 0
        while read < readings:
            records, at = log.read(topic, at, 1000, timeout_s=30.0)
            if not records:
                raise RuntimeError(f"no record after {read} readings")
            read += sum(
                len(Reading.decode(record.value, record.headers).values) > 0 for record in records
            )
        took = time.perf_counter() - began
        writer.join()
    return readings / took


def _write(settings: LogSettings, topic: str, readings: int, ready: Event, go: Event) -> None:
    rows = Blobs(DIMENSIONS, CENTRES, 0, SEED).draw(readings)
    with closing(open_log(settings)) as log:
        log.ensure(topic, READINGS_SETTINGS)
        ready.set()
        go.wait()
        for number, row in enumerate(rows):
            log.publish(topic, Reading(float(number), row).encode(), None, Reading.headers())
            if number % FLUSH_ROWS == FLUSH_ROWS - 1:
                log.flush()
        log.flush()


def encoded_bytes() -> int:
    """Bytes of one reading in a log: value and headers."""
    value = Reading(0.0, np.zeros(DIMENSIONS)).encode()
    return len(value) + sum(len(name) + len(content) for name, content in Reading.headers())
