"""What pictures of a model show, read from the log: its newest snapshot and its history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from shoal.algorithms.view import ClusteringView
from shoal.config.resolved import ResolvedContract
from shoal.errors import MessageRejected, SettingsError
from shoal.kernels.arrays import Floats
from shoal.protocol.history import BINS_KEPT, COARSE_S, FINE_S, NO_CLUSTER, HistoryBin, pairs
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import contract_in
from shoal.server_node.history.changes import Changes
from shoal.server_node.history.store import decode_record
from shoal.server_node.report.description import Description, describe
from shoal.server_node.report.units import view_of
from shoal.transports.base import Log, latest

BARS_MAX: Final = 96
"""bars of a band: of more bins several are one bar"""
UNTIL_S: Final = {FINE_S: 12 * 3600, COARSE_S: BINS_KEPT[COARSE_S] * COARSE_S}
"""width of bins -> how long a history is that is drawn in them; a longer one is drawn in days"""


@dataclass(frozen=True)
class PicturedCluster:
    """One known cluster."""

    identity: int
    title: str
    slot: int
    """number of its colour"""
    active: bool
    recent_share: float
    """share of the recent readings of all clusters"""
    number: int
    """number of the cluster in the view of the snapshot"""
    description: Description


@dataclass(frozen=True)
class Bands:
    """Division of the readings among clusters over time."""

    starts: Floats
    """(bars,) seconds since 1970, by the times in the updates"""
    width_s: float
    shares: dict[int, Floats]
    """identity -> (bars,) shares, 0 to 1; NaN where there were no readings at all"""


@dataclass(frozen=True)
class Picture:
    """Everything a picture may show of one model."""

    contract: ResolvedContract
    snapshot: Snapshot
    view: ClusteringView
    clusters: Sequence[PicturedCluster]
    """those with readings now first, then by share"""
    bands: Bands | None
    """None while the log has no history"""
    changes: Changes | None = None
    """changes between the two halves of the history; None where they were not requested"""

    def cluster(self, identity: int) -> PicturedCluster:
        """The known cluster with this identity. Raises `SettingsError`."""
        for cluster in self.clusters:
            if cluster.identity == identity:
                return cluster
        known = ", ".join(str(cluster.identity) for cluster in self.clusters) or "none"
        raise SettingsError(
            f"--cluster {identity}: {self.snapshot.model} has no such known cluster; it has {known}"
        )


def read_picture(log: Log, contract: ResolvedContract, model: str) -> Picture:
    """Read what is to be drawn; the log has the topics.

    Raises `SettingsError` before the first snapshot of the model, and as the log does.
    """
    record = latest(log, contract.contract.snapshots_topic).get(model.encode())
    if record is None or record.value is None:
        raise SettingsError(
            f"there is no snapshot of {model} yet; start `shoal server` and wait for one"
        )
    try:
        snapshot = Snapshot.decode(record.value, record.headers)
    except MessageRejected as rejected:
        raise SettingsError(
            f"the newest snapshot of {model} cannot be read: {rejected.detail}"
        ) from None
    view = view_of(snapshot, contract)
    return Picture(
        contract,
        snapshot,
        view,
        _clusters(snapshot, view, contract),
        _bands(log, contract_in(log, contract), model),
    )


def _clusters(
    snapshot: Snapshot, view: ClusteringView, contract: ResolvedContract
) -> list[PicturedCluster]:
    entries = snapshot.cluster_identities
    described = describe(view, contract.contract, {entry.number: entry.time for entry in entries})
    clusters: dict[int, PicturedCluster] = {}
    # Two groups may be shown as one cluster: the heavier comes later and describes it.
    for entry in sorted(entries, key=lambda entry: float(view.centre_mass[entry.number])):
        description = described.get(entry.number)
        if description is None:
            continue
        title = entry.name or description.label
        clusters[entry.identity] = PicturedCluster(
            entry.identity,
            f"{title} ({entry.identity})",
            entry.slot,
            entry.active,
            entry.recent_share,
            entry.number,
            description,
        )
    return sorted(
        clusters.values(),
        key=lambda cluster: (not cluster.active, -cluster.recent_share, cluster.identity),
    )


def _bands(log: Log, contract: ResolvedContract, model: str) -> Bands | None:
    bins_of: dict[int, list[HistoryBin]] = {width_s: [] for width_s in BINS_KEPT}
    for record in latest(log, contract.contract.history_topic).values():
        decoded = decode_record(record, contract)
        if decoded is None or not isinstance(decoded.message, HistoryBin):
            continue
        if decoded.message.model == model:
            bins_of[decoded.message.width_s].append(decoded.message)
    by_width: dict[int, list[HistoryBin]] = {}
    for width_s, bins in sorted(bins_of.items()):
        if bins:
            by_width[width_s] = sorted(bins, key=lambda bin_: bin_.start)
    if not by_width:
        return None
    # The finest bins that reach as far back as all wider ones, unless there would be too many.
    for width_s, bins in by_width.items():
        first = bins[0].start
        is_whole = all(wider[0].start >= first // step * step for step, wider in by_width.items())
        if is_whole and bins[-1].start - first < UNTIL_S.get(width_s, math.inf):
            return bands_of(bins)
    return bands_of(by_width[max(by_width)])


def bands_of(bins: Sequence[HistoryBin]) -> Bands:
    """The bands of bins in the order of time, one at least.

    A bar is as long as most gaps between bins: a shorter one would leave white stripes where
    readings are rare.
    """
    first = bins[0].start
    bin_s = bins[0].width_s
    gaps = [float(after.start - before.start) for before, after in pairwise(bins)]
    # `lower`: a gap that there is, and none between two, so that it is a multiple of the width of a
    # bin.
    usual_gap = 0.0
    if gaps:
        usual_gap = float(np.quantile(gaps, 0.75, method="lower"))
    span = bins[-1].start - first + bin_s
    width = bin_s * max(1, int(np.ceil(max(usual_gap, span / BARS_MAX) / bin_s)))
    bars = max(1, int(np.ceil(span / width)))
    identities = sorted({identity for bin_ in bins for identity, _ in pairs(bin_.clusters)})
    counts = np.zeros((bars, len(identities)))
    for bin_ in bins:
        # Rounding may put the end of the last bin beyond the last bar.
        bar = min(bars - 1, int((bin_.start - first) // width))
        for identity, readings in pairs(bin_.clusters):
            counts[bar, identities.index(identity)] += readings
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    starts = first + width * np.arange(bars, dtype=np.float64)
    columns: dict[int, Floats] = {}
    for j, identity in enumerate(identities):
        if identity != NO_CLUSTER:
            columns[identity] = shares[:, j]
    return Bands(starts, width, columns)
