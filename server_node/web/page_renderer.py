"""Renders the server's status to the JSON that the page shows: nodes on two axes, colours, tables and texts."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from server_node.history.store import HistoryReader
from server_node.history.summary import lately
from server_node.history.usual import usual
from server_node.lineage import Lineage
from server_node.status import HistoryPoint, ModelStatus, RoundStatus, ServerStatus
from server_node.web.overview import overview_json
from server_node.web.predictions import rules_table
from server_node.web.privacy_text import privacy_text
from server_node.web.projection import Points, axis_sample, scatter, steady_axes
from server_node.web.snapshot_json import view_of
from server_node.web.tables import clients_table, clusters_table
from server_node.web.units import feature_json, feature_label, in_units, rounded
from shoal import __version__
from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds
from shoal.protocol.messages import Snapshot

INACTIVE_AFTER_S = 30
"""a client that has sent nothing for longer is shown as inactive"""
NODES_MAX = 2000
"""nodes sent to the page, over all models; those with the highest count are kept"""
NODES_PER_MODEL_MIN = 50
VALUES_MAX = 12
"""features whose values are sent for each node and cluster"""
HISTORY_MAX = 240
FEATURES_NAMED_MAX = 3
"""features named in the label of an axis"""
NO_SNAPSHOT = "No snapshot has been published yet."


class RenderedStatus(NamedTuple):
    """A status as the page gets it."""

    etag: str
    """changes whenever anything but the clock does"""
    body: bytes
    """JSON in one line"""


@dataclass
class PageRenderer:
    """Renders one status after the other; keeps the axes of each model so that its map does not jump."""

    page_version: str = ""
    """digest of the page's files; a browser that shows another version reloads"""
    history: HistoryReader | None = None
    _models: dict[str, ModelRenderer] = field(default_factory=dict)
    _last: tuple[ServerStatus, RenderedStatus] | None = None

    def render(self, status: ServerStatus) -> RenderedStatus:
        """`status` as JSON; the same object is rendered once."""
        if self._last is None or self._last[0] is not status:
            self._last = status, self._render(status)
        return self._last[1]

    def _render(self, status: ServerStatus) -> RenderedStatus:
        contract = status.contract
        nodes_max = max(NODES_MAX // len(contract.models), NODES_PER_MODEL_MIN)
        models = []
        for configured in contract.models:
            model = status.models.get(configured.name) or ModelStatus(configured.name, configured.algorithm)
            renderer = self._models.setdefault(configured.name, ModelRenderer(self.history))
            models.append(_model_json(model, renderer.render(model, contract, nodes_max)))
        clients = [model.snapshot.clients for model in status.models.values() if model.snapshot]
        rendered = {
            "federation": contract.federation,
            "contract": contract.digest,
            "shoal": __version__,
            "page_version": self.page_version,
            "started_at": status.started_at,
            "ready": status.ready,
            "lag_records": status.lag_records,
            "inactive_after_s": INACTIVE_AFTER_S,
            "models": models,
            "clients": clients_table(status.clients),
            "clients_total": max(len(status.clients), *clients, 0),
            "quarantined": sorted({one.client for one in status.quarantined}),
            "rejected": dict(sorted(status.rejected.items())),
            "privacy": {**privacy_text(contract), "remark": status.remark},
        }
        text = json.dumps(rendered, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        etag = hashlib.sha256(text.encode()).hexdigest()[:16]
        return RenderedStatus(etag, f'{{"now":{json.dumps(status.now)},{text[1:]}'.encode())


class ModelRenderer:
    """Renders the clustering of one model; keeps its axes and its newest result."""

    def __init__(self, history: HistoryReader | None = None) -> None:
        self._history = history
        self._axes: Points | None = None
        self._last: tuple[Snapshot, Lineage, dict[str, Any]] | None = None

    def render(self, model: ModelStatus, contract: Contract, nodes_max: int) -> dict[str, Any] | None:
        """The newest clustering as JSON values, None before the first. The same is rendered once.

        A cluster can get its name between two snapshots, and with it the model another lineage.
        """
        snapshot = model.snapshot
        if snapshot is None:
            return None
        if self._last is None or self._last[0] is not snapshot or self._last[1] is not model.lineage:
            self._last = snapshot, model.lineage, self._render(view_of(snapshot), model, contract, nodes_max)
        return self._last[2]

    def _render(self, view: ClusteringView, model: ModelStatus, contract: Contract, nodes_max: int) -> dict[str, Any]:
        points, axes, explained = self._projected(view, contract)
        features = _features_shown(self._axes, contract)
        kept = np.sort(np.argsort(-view.mass, kind="stable")[:nodes_max])
        recently = None if self._history is None else lately(self._history, model.name)
        is_usual = None if self._history is None else usual(self._history, model.name)
        return {
            "axes": axes,
            "explained_variance": explained,
            "features": [feature_json(contract.features[j]) for j in features],
            "features_total": contract.width,
            "nodes": {
                "id": view.node_id[kept].tolist(),
                "x": rounded(points[kept, 0]),
                "y": rounded(points[kept, 1]),
                "mass": rounded(view.mass[kept]),
                "cluster": view.cluster[kept].tolist(),
                "values": in_units(view.nodes[kept], contract, features),
            },
            "edges": _edges(view.edges, kept, len(view.nodes)),
            **clusters_table(view, model, contract, features, recently),
            **overview_json(model, recently, is_usual),
            "rules": None if model.snapshot is None else rules_table(model.snapshot, contract),
        }

    def _projected(self, view: ClusteringView, contract: Contract) -> tuple[Points, list[str], float | None]:
        """Map coordinates (n, 2), the label of each axis, and the share of variance that both explain (None: all)."""
        labels = [feature_label(feature) for feature in contract.features]
        if contract.width <= 2:
            values = declared_bounds(contract).from_unit(view.nodes)
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


def _model_json(model: ModelStatus, clustering: dict[str, Any] | None) -> dict[str, Any]:
    snapshot = model.snapshot
    return {
        "name": model.name,
        "algorithm": model.algorithm,
        "waiting_for": model.waiting_for or ("" if snapshot else NO_SNAPSHOT),
        "version": snapshot.version if snapshot else 0,
        "made_at": snapshot.made_at if snapshot else None,
        "readings": snapshot.readings if snapshot else 0,
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
    """The history to show: a model in rounds has no clusters before its first round, so those points are left out."""
    return model.history if model.rounds is None else [point for point in model.history if point.clusters]


def _rounds_json(rounds: RoundStatus) -> dict[str, Any]:
    """The shift is None before the first round has closed."""
    return rounds._asdict() | {"shift": float(f"{rounds.shift:.3g}") if math.isfinite(rounds.shift) else None}


def cluster_counts(history: Sequence[HistoryPoint]) -> list[list[float]]:
    """[time, clusters] of the first point and of each where the number changed, at most `HISTORY_MAX` of them."""
    changed = [
        [point.time, point.clusters]
        for before, point in zip([None, *history], history, strict=False)
        if before is None or before.clusters != point.clusters
    ]
    if len(changed) <= HISTORY_MAX:
        return changed
    return [changed[j] for j in np.linspace(0, len(changed) - 1, HISTORY_MAX).astype(int)]


def _edges(edges: NDArray[np.int64], kept: NDArray[np.int64], n: int) -> list[int]:
    """The edges between kept nodes, as positions among these: one flat list, two numbers per edge."""
    position = np.full(n, -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    ends = position[edges]
    flat: list[int] = ends[(ends >= 0).all(axis=1)].ravel().tolist()
    return flat


def _features_shown(axes: Points | None, contract: Contract) -> list[int]:
    """Features whose values are sent: all, or those with the largest loadings on the axes."""
    if contract.width <= VALUES_MAX or axes is None:
        return list(range(contract.width))
    loading = np.square(axes).sum(axis=1)
    return sorted(np.argsort(-loading, kind="stable")[:VALUES_MAX].tolist())


def _axis_label(axis: NDArray[np.float64], contract: Contract) -> str:
    """The main features of an axis (d,), and whether each grows or falls along it."""
    order = np.argsort(-np.abs(axis), kind="stable")[:FEATURES_NAMED_MAX]
    main = [j for j in order.tolist() if abs(axis[j]) >= 0.4 * abs(axis[order[0]])]
    more = [contract.features[j].name for j in main if axis[j] > 0]
    less = [contract.features[j].name for j in main if axis[j] <= 0]
    parts = [f"{word} {', '.join(names)}" for word, names in (("more", more), ("less", less)) if names]
    return f"{', '.join(parts)} →"
