"""What a picture shows: the newest snapshot of a model and the bins of its history, read from the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from server_node.description import Description, describe
from server_node.history.records import decode_record
from server_node.web.snapshot_json import view_of
from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract, Model
from shoal.errors import MessageRejected, SettingsError
from shoal.protocol.history import COARSE_S, FINE_S, NO_CLUSTER, HistoryBin, pairs
from shoal.protocol.messages import Snapshot
from shoal.transports.base import Log, latest

BARS_MAX = 96
"""bars of a band: of more bins several are one bar"""
FINE_UNTIL_S = 12 * 3600
"""a history that is shorter is drawn in bins of 5 minutes"""


@dataclass(frozen=True)
class PicturedCluster:
    """One known cluster."""

    identity: int
    title: str
    slot: int
    """what it is coloured as"""
    active: bool
    recent_share: float
    """of the readings that fell to all clusters lately"""
    number: int
    """in the view of the snapshot"""
    description: Description


@dataclass(frozen=True)
class Bands:
    """How the readings were divided among clusters over time."""

    starts: NDArray[np.float64]
    """(bars,) seconds since 1970, by the times in the updates"""
    width_s: float
    shares: dict[int, NDArray[np.float64]]
    """identity -> (bars,) shares, 0 to 1; NaN where there were no readings at all"""


@dataclass(frozen=True)
class Picture:
    """Everything a picture may show of one model."""

    contract: Contract
    snapshot: Snapshot
    view: ClusteringView
    clusters: Sequence[PicturedCluster]
    """those with readings now first, then by share"""
    bands: Bands | None
    """None while the log has no history"""

    def cluster(self, identity: int) -> PicturedCluster:
        """The known cluster with this identity. Raises `SettingsError`."""
        for cluster in self.clusters:
            if cluster.identity == identity:
                return cluster
        known = ", ".join(str(cluster.identity) for cluster in self.clusters) or "none"
        raise SettingsError(f"--cluster {identity}: {self.snapshot.model} has no such known cluster; it has {known}")


def read_picture(log: Log, contract: Contract, model: Model) -> Picture:
    """Read what is to be drawn; the log has the topics.

    Raises `SettingsError` before the first snapshot of the model, and as the log does.
    """
    record = latest(log, contract.snapshots_topic).get(model.name.encode())
    try:
        snapshot = None if record is None or record.value is None else Snapshot.decode(record.value, record.headers)
    except MessageRejected as wrong:
        raise SettingsError(f"the newest snapshot of {model.name} cannot be read: {wrong.detail}") from None
    if snapshot is None:
        raise SettingsError(f"there is no snapshot of {model.name} yet; start `shoal server` and wait for one")
    view = view_of(snapshot)
    return Picture(contract, snapshot, view, _clusters(snapshot, view, contract), _bands(log, contract, model.name))


def _clusters(snapshot: Snapshot, view: ClusteringView, contract: Contract) -> list[PicturedCluster]:
    described = describe(view, contract)
    found: dict[int, PicturedCluster] = {}
    for one in sorted(snapshot.cluster_identities, key=lambda one: float(view.centre_mass[one.number])):
        if one.number in described:
            description = described[one.number]
            title = one.name or description.label(contract)
            values = (one.identity, f"{title} ({one.identity})", one.slot, one.active, one.recent_share, one.number)
            found[one.identity] = PicturedCluster(*values, description)
    return sorted(found.values(), key=lambda cluster: (not cluster.active, -cluster.recent_share, cluster.identity))


def _bands(log: Log, contract: Contract, model: str) -> Bands | None:
    bins: dict[int, list[HistoryBin]] = {FINE_S: [], COARSE_S: []}
    for record in latest(log, contract.history_topic).values():
        found = decode_record(record, contract)
        if found is not None and isinstance(found.message, HistoryBin) and found.message.model == model:
            bins[found.message.width_s].append(found.message)
    coarse = sorted(bins[COARSE_S], key=lambda one: one.start)
    if not coarse:
        return None
    young = coarse[-1].start - coarse[0].start < FINE_UNTIL_S
    return bands_of(sorted(bins[FINE_S], key=lambda one: one.start) if young and bins[FINE_S] else coarse)


def bands_of(bins: Sequence[HistoryBin]) -> Bands:
    """The bands of bins in the order of time, one at least; a bar is as long as most gaps between bins."""
    gaps = [float(after.start - before.start) for before, after in pairwise(bins)]
    span = bins[-1].start - bins[0].start + bins[0].width_s
    usual_gap = float(np.quantile(gaps, 0.75, method="lower")) if gaps else 0.0
    bin_s = bins[0].width_s
    width = bin_s * max(1, int(np.ceil(max(usual_gap, span / BARS_MAX) / bin_s)))
    number = max(1, int(np.ceil(span / width)))
    identities = sorted({identity for one in bins for identity, _ in pairs(one.clusters)})
    counts = np.zeros((number, len(identities)))
    for one in bins:
        bar = min(number - 1, int((one.start - bins[0].start) // width))
        for identity, readings in pairs(one.clusters):
            counts[bar, identities.index(identity)] += readings
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    starts = bins[0].start + width * np.arange(number, dtype=np.float64)
    columns = {identity: shares[:, j] for j, identity in enumerate(identities) if identity != NO_CLUSTER}
    return Bands(starts, width, columns)
