"""The history of models whose servers publish none, estimated from their snapshots.

Replicas publish no history. Between two snapshots of a model its readings have become more, and the
newer one has the share of each cluster in the recent readings: so many of the new readings are
counted to each cluster. A recent share follows with a delay (`Cluster.recent_share`), so bins show
changes later than those of a server, and smoother; over a longer time the sums are the same. Which
client a reading came from is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import Ints
from shoal.protocol.history import (
    EMPTY,
    FINE_S,
    NO_CLUSTER,
    HistoryBin,
    HistoryMessage,
    HistoryNames,
)
from shoal.protocol.messages import Snapshot
from shoal.server_node.history.attribution import PARTS_MAX, Attribution
from shoal.server_node.history.recorder import Recorder
from shoal.server_node.history.store import HistoryRecord, HistoryStore
from shoal.server_node.report.lineage.clusters import Lineage

ALL_CLIENTS = "all"
"""stands for every client while readings are counted; no bin has it"""


class EstimatedHistory:
    """Counts the readings between the snapshots of each model into the bins of a store."""

    def __init__(self, contract: ResolvedContract, store: HistoryStore) -> None:
        self._contract = contract.contract
        self._store = store
        self._recorders: dict[str, Recorder] = {}
        self._newest: dict[str, Snapshot] = {}

    def take(self, snapshot: Snapshot, lineage: Lineage) -> None:
        """Count the readings since the snapshot of the model that was taken before.

        The first one is where counting begins, after a restart as well: what was learnt while
        nothing read the log has no known time. Raises as the store does.
        """
        before = self._newest.get(snapshot.model)
        self._newest[snapshot.model] = snapshot
        if before is None:
            return
        readings = snapshot.readings - before.readings
        # A model that has begun anew has fewer.
        if readings <= 0 or snapshot.updates <= before.updates:
            return
        recorder = self._recorders.get(snapshot.model)
        if recorder is None:
            recorder = Recorder(self._contract, snapshot.model, self._store)
            self._recorders[snapshot.model] = recorder
        for cluster in lineage.known:
            recorder.name(cluster.identity, cluster.name, "")
        recorder.count(_attribution(before, snapshot, readings, lineage))
        changed = [_without_clients(message) for message in recorder.take_changed(snapshot.updates)]
        records = [HistoryRecord(message.record_key, message) for message in changed]
        self._store.apply(records + self._store.expired(records))


def _attribution(before: Snapshot, after: Snapshot, readings: int, lineage: Lineage) -> Attribution:
    """The readings between two snapshots, spread evenly over the time between them."""
    identities = [NO_CLUSTER]
    shares = [0.0]
    for cluster in lineage.known:
        identities.append(cluster.identity)
        shares.append(cluster.recent_share)
    # What is of no known cluster, but for rounding.
    shares[0] = max(0.0, 1.0 - math.fsum(shares))
    span_s = max(0.0, after.reading_time - before.reading_time)
    parts = min(PARTS_MAX, max(1, math.ceil(span_s / FINE_S)), readings)
    ends = [readings * (part + 1) // parts for part in range(parts)]
    starts = [0, *ends[:-1]]
    counts = []
    at = []
    for part, (start, end) in enumerate(zip(starts, ends, strict=True)):
        counts.append(divided(end - start, shares))
        at.append(after.reading_time - span_s * (parts - 1 - part) / parts)
    return Attribution(
        at=np.array(at),
        clients=[ALL_CLIENTS] * parts,
        numbers=np.full(parts, after.updates, dtype=np.int64),
        identities=np.array(identities, dtype=np.int64),
        readings=np.array(counts, dtype=np.int64),
    )


def divided(readings: int, shares: Sequence[float]) -> Ints:
    """shares (k,) -> (k,) whole numbers of readings that add up to `readings`.

    By largest remainders: readings that are rounded one by one would add up to more or fewer.
    """
    parts = np.array(shares, dtype=np.float64)
    exact = readings * parts / parts.sum()
    whole: Ints = np.floor(exact).astype(np.int64)
    missing = readings - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return whole


def _without_clients(message: HistoryMessage) -> HistoryMessage:
    if isinstance(message, HistoryNames):
        return replace(message, clients=[])
    assert isinstance(message, HistoryBin)
    return replace(message, clients=EMPTY[2], cells=EMPTY[3])
