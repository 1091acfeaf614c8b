"""Which clusters a model has, where they lie and what became of them, as metrics: all of it from its snapshots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import Gauge

from server_node.history.summary import newest_fine_bin
from server_node.lineage import Cluster, EventKind, Lineage
from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds
from shoal.protocol.history import NO_CLUSTER, HistoryBin, HistoryNames, pairs
from shoal.telemetry.metrics import ServerMetrics

CLUSTERS_LABELLED_MAX = 100
"""clusters of a model that have metrics of their own, those with the largest recent shares"""
FEATURES_LABELLED_MAX = 16
"""features of which centres are shown, the first ones of the contract"""
EVENTS_LABELLED_MAX = 50
"""newest births and ends of clusters of a model that have a metric of their own"""
BIRTHS_AND_ENDS = frozenset({EventKind.BIRTH, EventKind.PARTED, EventKind.MERGED, EventKind.GONE})

Labels = tuple[str, ...]


class Happened(NamedTuple):
    """A birth or an end of a cluster."""

    event: str
    """its kind"""
    cluster: int
    """identity"""
    text: str
    at: float
    """seconds since 1970"""


class ClusterMonitoring:
    """Sets the metrics of the clusters of each model, and removes the series of what is shown no more."""

    def __init__(self, metrics: ServerMetrics, contract: Contract) -> None:
        self._contract = contract
        self._metrics = metrics
        self._bounds = declared_bounds(contract)
        # Those of a node that was thrown away after an error would stay for ever.
        metrics.cluster_share.clear()
        metrics.cluster_centre.clear()
        metrics.cluster_event_at.clear()
        self._shares: defaultdict[str, _Series] = defaultdict(lambda: _Series(metrics.cluster_share))
        self._centres: defaultdict[str, _Series] = defaultdict(lambda: _Series(metrics.cluster_centre))
        self._events_at: defaultdict[str, _Series] = defaultdict(lambda: _Series(metrics.cluster_event_at))
        self._happened: defaultdict[str, dict[tuple[str, int], Happened]] = defaultdict(dict)
        """model -> (kind, identity) -> birth or end, in the order of time"""

    def clusters(self, model: str, view: ClusteringView, lineage: Lineage) -> None:
        """The known clusters of the newest snapshot of a model."""
        shown = sorted(lineage.known, key=lambda cluster: -cluster.recent_share)[:CLUSTERS_LABELLED_MAX]
        self._shares[model].show({_labels(model, cluster): cluster.recent_share for cluster in shown})
        self._centres[model].show(self._centres_of(model, view, lineage, shown))

    def happened(self, model: str, events: Iterable[Happened]) -> None:
        """What became of clusters; of each cluster the newest birth or end of a kind is shown."""
        kept = self._happened[model]
        for event in events:
            if event.event in BIRTHS_AND_ENDS:
                kept.pop((event.event, event.cluster), None)
                kept[event.event, event.cluster] = event
        for key in list(kept)[: max(0, len(kept) - EVENTS_LABELLED_MAX)]:
            del kept[key]
        self._events_at[model].show(
            {(model, event.event, str(event.cluster), event.text): event.at for event in kept.values()}
        )

    def counted(self, model: str, history: Iterable[HistoryBin | HistoryNames]) -> None:
        """The bins that have changed with a snapshot: the newest one shows how much falls to no known cluster."""
        newest = newest_fine_bin(history)
        if newest is None:
            return
        counts = dict(pairs(newest.clusters))
        if total := sum(counts.values()):
            self._metrics.unknown_share.labels(model=model).set(counts.get(NO_CLUSTER, 0) / total)

    def _centres_of(
        self, model: str, view: ClusteringView, lineage: Lineage, shown: Sequence[Cluster]
    ) -> dict[Labels, float]:
        """labels -> value in the unit of the feature, within its bounds, of each of these clusters that has nodes."""
        # Parts of a cluster that are not confirmed yet belong to it: the heaviest one says where it lies.
        heaviest: dict[int, int] = {}
        for number, identity in lineage.of_number.items():
            if number >= len(view.centres):
                # A rebuild keeps the identities of the snapshot before it until it has read as far.
                continue
            if identity not in heaviest or view.centre_mass[number] > view.centre_mass[heaviest[identity]]:
                heaviest[identity] = number
        there = [cluster for cluster in shown if cluster.identity in heaviest]
        centres = self._bounds.from_unit(view.centres[[heaviest[cluster.identity] for cluster in there]])
        features = self._contract.features[:FEATURES_LABELLED_MAX]
        return {
            (*_labels(model, cluster), feature.name, feature.unit): min(max(value, feature.low), feature.high)
            for cluster, centre in zip(there, centres.tolist(), strict=True)
            for feature, value in zip(features, centre, strict=False)
        }


def _labels(model: str, cluster: Cluster) -> Labels:
    return model, str(cluster.identity), cluster.name


class _Series:
    """Series of one metric whose labels change. Looking a series up costs more than setting it, so it is kept."""

    def __init__(self, metric: Gauge) -> None:
        self._metric = metric
        self._shown: dict[Labels, Gauge] = {}
        self._values: Mapping[Labels, float] = {}
        """as they were set last: most stay the same from one snapshot to the next"""

    def show(self, values: Mapping[Labels, float]) -> None:
        """Set these and remove all others."""
        for gone in self._shown.keys() - values.keys():
            self._metric.remove(*gone)
            del self._shown[gone]
        for labels, value in values.items():
            series = self._shown.get(labels)
            if series is None:
                series = self._shown[labels] = self._metric.labels(*labels)
            elif value == self._values[labels]:
                continue
            series.set(value)
        self._values = values
