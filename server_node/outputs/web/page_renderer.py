"""Renders the server's status to the JSON that the page shows: tables, texts, and a model's nodes
on two axes."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from shoal import __version__
from shoal.algorithms.view import ClusteringView
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.kernels.arrays import Floats
from shoal.protocol.history import COARSE_S, PLACES_S
from shoal.protocol.messages import Snapshot
from shoal.protocol.model_state import model_state
from shoal.server_node.history.cycles import CHANCE, Cycle, find_cycles
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.history.summary import recent_history, usual
from shoal.server_node.outputs.web.clusters import beside_json, regimes_json, regimes_of
from shoal.server_node.outputs.web.json_values import (
    NO_SNAPSHOT,
    UNCHANGED,
    as_json,
    change,
    feature_json,
    feature_label,
    parts_json,
    view_of,
)
from shoal.server_node.outputs.web.map import axis_sample, map_json, scatter, steady_axes
from shoal.server_node.outputs.web.predictions import rules_table
from shoal.server_node.outputs.web.tables import (
    CLIENTS_MAX,
    clients_note,
    clients_table,
    clusters_table,
    overview_json,
    privacy_text,
    spent_by_one,
)
from shoal.server_node.report.lineage import Lineage
from shoal.server_node.report.types import (
    HistoryPoint,
    ModelStatus,
    RoundStatus,
    ServerStatus,
    newest_clients,
)

RECENT_MAX = 8
"""statuses of each model that are kept, so that a page that has one of them is sent the changes
only"""
CHANGES_MAX = 64
VALUES_MAX = 12
"""features whose values are sent for each node and cluster"""
HISTORY_MAX = 240
REGIONS_MAX = 200
CYCLES_MAX = 12
FEATURES_NAMED_MAX = 3
"""features named in the label of an axis"""


class RenderedStatus(NamedTuple):
    """A status as the page gets it."""

    etag: str
    """changes whenever anything but the clock does"""
    now: float
    content: dict[str, Any]
    """all but the clock"""

    @property
    def body(self) -> bytes:
        """JSON in one line."""
        return as_json({"now": self.now, **self.content}).encode()


class RenderedNodes(NamedTuple):
    """The map of a model as the page gets it. Encoded, as the values of a thousand nodes take ten
    times as much."""

    etag: str
    body: bytes
    """JSON in one line"""


@dataclass
class PageRenderer:
    """Renders one status after the other; keeps the axes of each model so that its map does not
    jump."""

    page_version: str = ""
    """digest of the page's files; a browser that shows another version reloads"""
    history: HistoryReader | None = None
    _models: dict[str, ModelRenderer] = field(default_factory=dict)
    _newest: dict[str | None, tuple[ServerStatus, RenderedStatus]] = field(default_factory=dict)
    _recent: dict[str | None, deque[RenderedStatus]] = field(default_factory=dict)
    _change: dict[tuple[str, str], bytes] = field(default_factory=dict)
    _besides: dict[str, tuple[Snapshot, Snapshot, dict[str, Any] | None]] = field(
        default_factory=dict
    )
    _states: dict[str, tuple[Snapshot, str]] = field(default_factory=dict)

    def render(self, status: ServerStatus, shown: str | None = None) -> RenderedStatus:
        """`status` with the clustering of the model `shown`, or of all models; the same object is
        rendered once."""
        if shown not in self._newest or self._newest[shown][0] is not status:
            self._newest[shown] = status, self._render(status, shown)
            recent = self._recent.setdefault(shown, deque(maxlen=RECENT_MAX))
            if not recent or recent[-1].etag != self._newest[shown][1].etag:
                recent.append(self._newest[shown][1])
        return self._newest[shown][1]

    def recent(self, shown: str | None, etag: str) -> RenderedStatus | None:
        """A status with this etag among the `RECENT_MAX` newest; None if it is none of them."""
        return next((one for one in self._recent.get(shown, ()) if one.etag == etag), None)

    def change(self, before: RenderedStatus, after: RenderedStatus) -> bytes:
        """Changes from one status to another, as JSON in one line; the same for all who ask."""
        etags = before.etag, after.etag
        if etags not in self._change:
            if len(self._change) >= CHANGES_MAX:
                self._change.clear()
            changed = change(before.content, after.content)
            self._change[etags] = as_json({} if changed is UNCHANGED else changed).encode()
        return self._change[etags]

    def nodes(self, status: ServerStatus, shown: str) -> RenderedNodes | None:
        """The map of a model: its nodes on two axes; None before its first snapshot."""
        model = status.models.get(shown)
        if model is None or model.snapshot is None:
            return None
        return self._renderer(shown).nodes(model, status.contract)

    def _renderer(self, model: str) -> ModelRenderer:
        return self._models.setdefault(model, ModelRenderer(self.history))

    def _state(self, model: ResolvedModel, snapshot: Snapshot | None) -> str:
        """The state of a model, worked out once for each snapshot."""
        if snapshot is None:
            return ""
        if model.name not in self._states or self._states[model.name][0] is not snapshot:
            self._states[model.name] = snapshot, model_state(model, snapshot)
        return self._states[model.name][1]

    def _beside(self, status: ServerStatus, model: ModelStatus) -> dict[str, Any] | None:
        """The regimes that another model has found in the same readings, worked out once for each
        pair of snapshots."""
        contract = status.contract
        history = self.history
        if model.snapshot is None or history is None or regimes_of(model, contract) is not None:
            return None
        for other in status.models.values():
            if regimes_of(other, contract) is None or other.snapshot is None:
                continue
            kept = self._besides.get(model.name)
            if kept is None or kept[0] is not model.snapshot or kept[1] is not other.snapshot:
                recents = recent_history(history, model.name), recent_history(history, other.name)
                found = beside_json(model, other, contract, *recents)
                self._besides[model.name] = kept = model.snapshot, other.snapshot, found
            return kept[2]
        return None

    def _render(self, status: ServerStatus, shown: str | None) -> RenderedStatus:
        contract = status.contract
        models = []
        for name, configured in contract.models.items():
            model = status.models.get(name) or ModelStatus(name, configured.declared.algorithm)
            clustering = None
            if shown in (None, name):
                clustering = self._renderer(name).render(model, contract)
                if clustering is not None:
                    clustering = {**clustering, "beside": self._beside(status, model)}
            described = _model_json(model, clustering, configured.counts_places)
            models.append(described | {"state": self._state(configured, model.snapshot)})
        regions = {region.path for region in status.regions}
        # Chosen by time, listed by name: a row that jumped with each update could not be read.
        listed = newest_clients(status.clients, CLIENTS_MAX)
        devices = [client for client in listed if client.client not in regions]
        clients = [model.snapshot.clients for model in status.models.values() if model.snapshot]
        content = {
            "federation": contract.federation,
            "contract": contract.digest,
            "clients_note": clients_note(contract),
            "shoal": __version__,
            "page_version": self.page_version,
            "started_at": status.started_at,
            "ready": status.ready,
            "ended": status.ended,
            "lag_records": status.lag_records,
            "shown": shown,
            "models": models,
            "clients": clients_table(listed),
            "clients_total": max(len(status.clients), *clients, 0),
            "regions": [region._asdict() for region in status.regions[:REGIONS_MAX]],
            "quarantined": sorted({one.client for one in status.quarantined}),
            "rejected": dict(sorted(status.rejected.items())),
            "privacy": {
                **privacy_text(contract, spent_by_one(contract, devices)),
                "remark": status.remark,
            },
        }
        return RenderedStatus(
            hashlib.sha256(as_json(content).encode()).hexdigest()[:16], status.now, content
        )


class ModelRenderer:
    """Renders the clustering of one model; keeps its axes and its newest result."""

    def __init__(self, history: HistoryReader | None = None) -> None:
        self._history = history
        self._axes: Floats | None = None
        self._cycles: tuple[int | None, list[Cycle]] | None = None
        self._last: tuple[Snapshot, Lineage, dict[str, Any], RenderedNodes] | None = None

    def render(self, model: ModelStatus, contract: ResolvedContract) -> dict[str, Any] | None:
        """The newest clustering as JSON values, without its nodes; None before the first. The same
        is rendered once."""
        return (
            None if model.snapshot is None else self._rendered(model.snapshot, model, contract)[0]
        )

    def nodes(self, model: ModelStatus, contract: ResolvedContract) -> RenderedNodes | None:
        """The map of the newest clustering; None before the first."""
        return (
            None if model.snapshot is None else self._rendered(model.snapshot, model, contract)[1]
        )

    def _rendered(
        self, snapshot: Snapshot, model: ModelStatus, contract: ResolvedContract
    ) -> tuple[dict[str, Any], RenderedNodes]:
        """The clustering, and its map.

        A cluster can get its name between two snapshots, and with it the model another lineage.
        """
        if (
            self._last is None
            or self._last[0] is not snapshot
            or self._last[1] is not model.lineage
        ):
            self._last = snapshot, model.lineage, *self._render(snapshot, model, contract)
        return self._last[2], self._last[3]

    def _render(
        self, snapshot: Snapshot, model: ModelStatus, contract: ResolvedContract
    ) -> tuple[dict[str, Any], RenderedNodes]:
        view = view_of(snapshot, contract)
        points, axes, explained = self._projected(view, contract)
        features = _features_shown(self._axes, contract)
        recent = None if self._history is None else recent_history(self._history, model.name)
        is_usual = None if self._history is None else usual(self._history, model.name)
        clustering = {
            "features": [feature_json(contract.features[j]) for j in features],
            "features_total": contract.width,
            **clusters_table(view, model, contract, features, recent),
            **overview_json(model, recent, is_usual),
            "cycles": [
                {**asdict(one), "text": one.text()}
                for one in self._certain_cycles(model.name, contract)
            ],
            "parts": parts_json(model, contract, features),
            "regimes": regimes_json(view, model.lineage, snapshot.reading_s),
            "rules": rules_table(snapshot, contract),
        }
        body = map_json(
            view, points, model.lineage, contract, features, axes, explained, snapshot
        ).encode()
        return clustering, RenderedNodes(hashlib.sha256(body).hexdigest()[:16], body)

    def _certain_cycles(self, model: str, contract: ResolvedContract) -> list[Cycle]:
        """The largest cycles that are hardly chance, looked for once in each of the history's
        longest bins."""
        if self._history is None:
            return []
        extent = self._history.extent(model, COARSE_S)
        newest = None if extent is None else extent[1] // PLACES_S
        if self._cycles is None or self._cycles[0] != newest:
            found = find_cycles(self._history, contract.contract, model)
            self._cycles = newest, [one for one in found if one.chance < CHANCE][:CYCLES_MAX]
        return self._cycles[1]

    def _projected(
        self, view: ClusteringView, contract: ResolvedContract
    ) -> tuple[Floats, list[str], float | None]:
        """Map coordinates (n, 2), the label of each axis, and the share of variance that both
        explain (None: all)."""
        labels = [feature_label(feature) for feature in contract.features]
        if contract.width <= 2:
            values = contract.bounds.shown(view.nodes)
            if contract.width == 1:
                values = np.column_stack([values, np.log10(np.maximum(view.mass, 1.0))])
                labels.append("times won, powers of ten")
            return values, labels, None
        sample = axis_sample(view.nodes, view.mass)
        self._axes = steady_axes(sample, self._axes)
        total = float(np.square(sample - sample.mean(axis=0)).sum()) if len(sample) else 0.0
        explained = scatter(sample, self._axes) / total if total > 0 else 1.0
        labels = [_axis_label(axis, contract) for axis in self._axes.T]
        return (view.nodes - 0.5) @ self._axes, labels, round(explained, 3)


def _model_json(
    model: ModelStatus, clustering: dict[str, Any] | None, places: bool
) -> dict[str, Any]:
    """`places`: its readings are counted with rejected ones."""
    snapshot = model.snapshot
    return {
        "name": model.name,
        "algorithm": model.algorithm,
        "waiting_for": model.waiting_for or ("" if snapshot else NO_SNAPSHOT),
        "version": snapshot.version if snapshot else 0,
        "made_at": snapshot.made_at if snapshot else None,
        "newest_reading_at": snapshot.reading_time if snapshot else None,
        "readings": snapshot.readings if snapshot else 0,
        "counts_places": places,
        "updates": snapshot.updates if snapshot else 0,
        "nodes_total": snapshot.nodes if snapshot else 0,
        "clusters_total": snapshot.known if snapshot else 0,
        "clusters_active": snapshot.active if snapshot else 0,
        "clusters_published": snapshot.clusters if snapshot else 0,
        "history": cluster_counts(_clustered(model)),
        "rounds": None if model.rounds is None else _rounds_json(model.rounds),
        "clustering": clustering,
    }


def _clustered(model: ModelStatus) -> Sequence[HistoryPoint]:
    """The history to show: a model in rounds has no clusters before its first round, so those
    points are left out."""
    return (
        model.history
        if model.rounds is None
        else [point for point in model.history if point.clusters]
    )


def _rounds_json(rounds: RoundStatus) -> dict[str, Any]:
    """The shift is None before the first round has closed."""
    return rounds._asdict() | {
        "shift": float(f"{rounds.shift:.3g}") if math.isfinite(rounds.shift) else None
    }


def cluster_counts(history: Sequence[HistoryPoint]) -> list[list[float]]:
    """[time, clusters] of the first point and of each where the number changed, at most
    `HISTORY_MAX` of them."""
    changed = [
        [point.time, point.clusters]
        for before, point in zip([None, *history], history, strict=False)
        if before is None or before.clusters != point.clusters
    ]
    if len(changed) <= HISTORY_MAX:
        return changed
    return [changed[j] for j in np.linspace(0, len(changed) - 1, HISTORY_MAX).astype(int)]


def _features_shown(axes: Floats | None, contract: ResolvedContract) -> list[int]:
    """Features whose values are sent: all, or those with the largest loadings on the axes."""
    if contract.width <= VALUES_MAX or axes is None:
        return list(range(contract.width))
    loading = np.square(axes).sum(axis=1)
    # The features that the map shows best, but in the order of the contract, as everywhere on the
    # page.
    return sorted(np.argsort(-loading, kind="stable")[:VALUES_MAX].tolist())


def _axis_label(axis: Floats, contract: ResolvedContract) -> str:
    """The main features of an axis (d,), and whether each grows or falls along it."""
    order = np.argsort(-np.abs(axis), kind="stable")[:FEATURES_NAMED_MAX]
    # A feature with less than two fifths of the largest part would name the axis for what it hardly
    # is.
    main = [j for j in order.tolist() if abs(axis[j]) >= 0.4 * abs(axis[order[0]])]
    more = [contract.features[j].name for j in main if axis[j] > 0]
    less = [contract.features[j].name for j in main if axis[j] <= 0]
    parts = [
        f"{word} {', '.join(names)}" for word, names in (("more", more), ("less", less)) if names
    ]
    return f"{', '.join(parts)} →"
