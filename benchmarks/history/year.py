"""The size of a year of history, really written: the file of the server, and the topic on the
embedded log."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.history.plant import CLIENT_NAMES, CLIENTS, CLUSTERS, CONTRACT, FEATURES, SPREAD
from shoal.config.resolved import resolve
from shoal.config.settings import LogSettings
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.history import BINS_KEPT, COARSE_S, FINE_S, PLACE_UNITS, WITH_PLACES
from shoal.protocol.topics import ensure_topics
from shoal.server_node.history.attribution import Attribution, Placed
from shoal.server_node.history.recorder import Recorder
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader, HistoryRecord, HistoryStore
from shoal.transports.sqlite.log import SqliteLog

MIB = 1024 * 1024
START = 1_700_000_000 // COARSE_S * COARSE_S
FED = 12
"""clusters that a client feeds"""
RATE_SPREAD = 1.0
"""deviation of the logarithm of the clients' rates: some send a hundred times as much as others"""


def measured_year(folder: Path, bins: int) -> dict[str, Any]:
    """So many bins of half an hour, and the bins of five minutes of the last two days."""
    rng = np.random.default_rng(3)
    rates = rng.lognormal(6.0, RATE_SPREAD, CLIENTS)
    fed = np.array([rng.choice(CLUSTERS, FED, replace=False) for _ in range(CLIENTS)])
    shares = rng.dirichlet(np.ones(FED), CLIENTS)
    fine_from = START + bins * COARSE_S - BINS_KEPT[FINE_S] * FINE_S
    updates = 0
    with (
        closing(HistoryStore(resolve(CONTRACT), folder / HISTORY_FILE)) as store,
        closing(SqliteLog(folder / "log.db", durable=False)) as log,
    ):
        ensure_topics(log, CONTRACT, LogSettings())
        recorder = Recorder(CONTRACT, CONTRACT.models[0].name, store)
        centres = rng.uniform(size=(CLUSTERS, FEATURES))
        for identity in range(CLUSTERS):
            recorder.name(identity, f"cluster number {identity}", "light high, temperature low")
        for place in range(bins):
            start = START + place * COARSE_S
            for part in range(0, COARSE_S, FINE_S if start >= fine_from else COARSE_S):
                readings = np.zeros((CLIENTS, CLUSTERS), dtype=np.int64)
                np.put_along_axis(readings, fed, rng.poisson(rates[:, None] * shares), axis=1)
                at = np.full(CLIENTS, float(start + part))
                numbers = updates + 1 + np.arange(CLIENTS)
                where = placed(at, numbers, readings, centres, rng)
                identities = np.arange(CLUSTERS)
                recorder.count(Attribution(at, CLIENT_NAMES, numbers, identities, readings, where))
                updates += CLIENTS
                messages = recorder.take_changed(updates)
                changed = [HistoryRecord(message.record_key, message) for message in messages]
                records = [*changed, *store.expired(changed)]
                for record in records:
                    log.publish(*record.outbox_record(CONTRACT.history_topic))
                log.flush()
                store.apply(records)
    of_places = 0
    reader = HistoryReader(folder / HISTORY_FILE)
    for width in WITH_PLACES:
        for counted in reader.each_bin(CONTRACT.models[0].name, width, -math.inf, math.inf):
            of_places += 0 if counted.places is None else len(counted.places)
    with closing(sqlite3.connect(folder / HISTORY_FILE)) as file:
        lengths = {width: _length(file, f"bins_{width}") for width in BINS_KEPT}
    return {
        "bins": bins,
        "days": bins * COARSE_S / 86_400,
        "coarse_bytes_per_bin": lengths[COARSE_S] / bins,
        "fine_bins_mib": lengths[FINE_S] / MIB,
        "places_mib": of_places / MIB,
        "file_mib": (folder / HISTORY_FILE).stat().st_size / MIB,
        "log_mib": (folder / "log.db").stat().st_size / MIB,
    }


def placed(
    at: Floats, numbers: Ints, readings: Ints, centres: Floats, rng: np.random.Generator
) -> Placed:
    """Readings (u, k) of updates around centres (k, d), which move a little from one update to the
    next."""
    update, cluster = np.nonzero(readings)
    some = readings[update, cluster]
    means = centres[cluster] + rng.normal(0, SPREAD, (len(update), FEATURES))
    sums = np.rint(PLACE_UNITS * means * some[:, None]).astype(np.int64)
    columns = np.column_stack([some, sums])
    return Placed(at, numbers, update, cluster, columns)


def _length(file: sqlite3.Connection, table: str) -> int:
    return int(file.execute(f"SELECT coalesce(sum(length(value)), 0) FROM {table}").fetchone()[0])
