"""The report as the page gets it: trimmed to what a page shows, and as changes where it has most
already."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

from shoal.server_node.outputs.encoding import as_json, plain
from shoal.server_node.outputs.web.changes import UNCHANGED, change
from shoal.server_node.outputs.web.map import Map, MapRenderer
from shoal.server_node.report.build import Reports
from shoal.server_node.report.status import ServerStatus
from shoal.server_node.report.types import (
    Client,
    Cluster,
    Clustering,
    FeatureView,
    Federation,
    Interval,
    PartView,
    Rules,
)

RECENT_MAX = 8
"""statuses of each model that are kept, so that a page that has one of them is sent the changes
only"""
CHANGES_MAX = 64
CLUSTERS_MAX: Final = 200
COMPARED_MAX: Final = 12
"""clusters that the page compares by feature: those with the most mass"""


RULES_MAX: Final = 100
"""rules sent to the page: those with most rows"""


class RenderedStatus(NamedTuple):
    """A report as the page gets it."""

    etag: str
    """changes whenever anything but the clock does"""
    now: float
    content: dict[str, Any]
    """all but the clock"""

    @property
    def body(self) -> bytes:
        """JSON in one line."""
        return as_json({"now": self.now, **self.content}).encode()


@dataclass
class PageRenderer:
    """Renders one status after the other."""

    page_version: str = ""
    """digest of the page's files; a browser that shows another version reloads"""
    reports: Reports = field(default_factory=Reports)
    _maps: dict[str, MapRenderer] = field(default_factory=dict)
    _newest: dict[str | None, tuple[ServerStatus, RenderedStatus]] = field(default_factory=dict)
    _recent: dict[str | None, deque[RenderedStatus]] = field(default_factory=dict)
    _change: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def render(self, status: ServerStatus, shown: str | None = None) -> RenderedStatus:
        """`status` with the clustering of the model `shown`, or of all models; the same object is
        rendered once."""
        if shown not in self._newest or self._newest[shown][0] is not status:
            rendered = self._render(status, shown)
            self._newest[shown] = status, rendered
            recent = self._recent.setdefault(shown, deque(maxlen=RECENT_MAX))
            if not recent or recent[-1].etag != rendered.etag:
                recent.append(rendered)
        return self._newest[shown][1]

    def recent(self, shown: str | None, etag: str) -> RenderedStatus | None:
        """A status with this etag among the `RECENT_MAX` newest; None if it is none of them."""
        for rendered in self._recent.get(shown, ()):
            if rendered.etag == etag:
                return rendered
        return None

    def change(self, before: RenderedStatus, after: RenderedStatus) -> bytes:
        """Changes from one status to another, as JSON in one line; the same for all who ask."""
        etags = before.etag, after.etag
        if etags not in self._change:
            if len(self._change) >= CHANGES_MAX:
                # All at once: only changes to the newest status are asked for again, and these are
                # made anew.
                self._change.clear()
            changed = change(before.content, after.content)
            self._change[etags] = as_json({} if changed is UNCHANGED else changed).encode()
        return self._change[etags]

    def nodes(self, status: ServerStatus, shown: str) -> Map | None:
        """The map of a model: its nodes on two axes; None before its first snapshot."""
        model = status.models.get(shown)
        if model is None or model.snapshot is None:
            return None
        return self._map(shown).render(model.snapshot, model.lineage, status.contract)

    def _map(self, model: str) -> MapRenderer:
        return self._maps.setdefault(model, MapRenderer())

    def _render(self, status: ServerStatus, shown: str | None) -> RenderedStatus:
        report = self.reports.federation(status, None if shown is None else {shown})
        content = {
            "page_version": self.page_version,
            "shown": shown,
            **_keyed(plain(self._trimmed(status, report))),
        }
        # Without the clock, or a status in which nothing has changed would be sent again.
        etag = hashlib.sha256(as_json(content).encode()).hexdigest()[:16]
        return RenderedStatus(etag, status.now, content)

    def _trimmed(self, status: ServerStatus, report: Federation) -> Federation:
        """The report with what a page shows of it."""
        models = []
        for model in report.models:
            snapshot = status.models[model.name].snapshot if model.clustering else None
            if model.clustering is None or snapshot is None:
                models.append(model)
                continue
            lineage = status.models[model.name].lineage
            # The features that the map shows best, but in the order of the contract, as
            # everywhere on the page.
            features = self._map(model.name).features(snapshot, lineage, status.contract)
            models.append(replace(model, clustering=trimmed(model.clustering, features)))
        return replace(report, models=models)


def trimmed(clustering: Clustering, features: Sequence[int]) -> Clustering:
    """A clustering with the values of some features, rounded as they are shown, and of very many
    clusters the heaviest."""
    shown = [clustering.features[j] for j in features]
    clusters = []
    for place, cluster in enumerate(clustering.clusters[:CLUSTERS_MAX]):
        clusters.append(_trimmed_cluster(cluster, features, shown, place < COMPARED_MAX))
    parts = [_trimmed_part(part, features, shown) for part in clustering.parts]
    rules = None if clustering.rules is None else _trimmed_rules(clustering.rules)
    return replace(clustering, features=shown, clusters=clusters, parts=parts, rules=rules)


def _trimmed_rules(rules: Rules) -> Rules:
    """The rules with most rows, as sentences."""
    listed = [replace(rule, conditions=(), consequent=None) for rule in rules.rules[:RULES_MAX]]
    return replace(rules, rules=listed)


def _trimmed_cluster(
    cluster: Cluster, features: Sequence[int], shown: Sequence[FeatureView], compared: bool
) -> Cluster:
    centre = None
    spread = None
    if cluster.centre is not None:
        centre = _rounded(cluster.centre, features, shown)
    if compared and cluster.spread is not None:
        spread = [
            _rounded_interval(cluster.spread[j], feature.digits)
            for j, feature in zip(features, shown, strict=True)
        ]
    # The page reads longer spans of them from the history, and the words say the rest.
    return replace(cluster, centre=centre, spread=spread, trend=(), fed_by=())


def _trimmed_part(
    part: PartView, features: Sequence[int], shown: Sequence[FeatureView]
) -> PartView:
    return replace(part, centre=_rounded(part.centre, features, shown))


def _rounded(
    values: Sequence[float], features: Sequence[int], shown: Sequence[FeatureView]
) -> list[float]:
    return [round(values[j], feature.digits) for j, feature in zip(features, shown, strict=True)]


def _rounded_interval(interval: Interval, digits: int) -> Interval:
    return replace(
        interval,
        low=round(interval.low, digits),
        middle=round(interval.middle, digits),
        high=round(interval.high, digits),
    )


def _keyed(content: dict[str, Any]) -> dict[str, Any]:
    """Clusters by identity, and clients in columns: so the change between two reports is short when
    clusters come and go, and when every client has sent something."""
    for model in content["models"]:
        if model["clustering"] is not None:
            clusters = model["clustering"]["clusters"]
            model["clustering"]["clusters"] = {
                str(cluster["identity"]): cluster for cluster in clusters
            }
    clients = content["clients"]
    names = [field.name for field in fields(Client)]
    content["clients"] = {name: [client[name] for client in clients] for name in names}
    return content
