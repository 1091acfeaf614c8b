"""The picture as the page draws it: points on two axes, steady colours, and nothing the page does not show."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from server_node.status import HistoryPoint, ModelStatus, RoundStatus, ServerStatus
from server_node.web.clustering import Clustering, clustering_of
from server_node.web.privacy_text import privacy_text
from server_node.web.projection import Points, deciding, spread, steady_axes
from server_node.web.tables import clients_of, clusters_of
from server_node.web.units import in_units, named, rounded, told
from shoal import __version__
from shoal.config.contract import Contract
from shoal.config.privacy_terms import bounds_of
from shoal.protocol.messages import Snapshot

SILENT_AFTER_S = 30
NODES_MAX = 2000
"""nodes drawn, over all models; the most-won ones come first"""
NODES_PER_MODEL_MIN = 50
VALUES_MAX = 12
"""features whose values are shown of each node and cluster"""
HISTORY_MAX = 240
FEATURES_NAMED_MAX = 3
NO_SNAPSHOT = "No snapshot has been published yet."


class Drawing(NamedTuple):
    """What the page gets."""

    mark: str
    """differs whenever anything but the clock does"""
    body: bytes
    """JSON in one line"""


@dataclass
class PageRenderer:
    """Draws pictures one after the other and remembers what keeps them alike: the axes of each model."""

    page: str = ""
    """which page draws it: another one must be loaded anew"""
    _views: dict[str, View] = field(default_factory=dict)
    _last: tuple[ServerStatus, Drawing] | None = None

    def draw(self, picture: ServerStatus) -> Drawing:
        """The drawing of `picture`; the same picture is drawn once."""
        if self._last is None or self._last[0] is not picture:
            self._last = picture, self._drawn(picture)
        return self._last[1]

    def _drawn(self, picture: ServerStatus) -> Drawing:
        contract = picture.contract
        nodes_max = max(NODES_MAX // len(contract.models), NODES_PER_MODEL_MIN)
        models = []
        for agreed in contract.models:
            shown = picture.models.get(agreed.name) or ModelStatus(agreed.name, agreed.algorithm)
            view = self._views.setdefault(agreed.name, View())
            models.append(_model(shown, view.of(shown, contract, nodes_max)))
        known = [model.snapshot.clients for model in picture.models.values() if model.snapshot]
        seen = {
            "federation": contract.federation,
            "contract": contract.digest,
            "shoal": __version__,
            "page": self.page,
            "started_at": picture.started_at,
            "ready": picture.ready,
            "lag_records": picture.lag_records,
            "silent_after_s": SILENT_AFTER_S,
            "models": models,
            "clients": clients_of(picture.clients),
            "clients_total": max(len(picture.clients), *known, 0),
            "rejected": dict(sorted(picture.rejected.items())),
            "privacy": privacy_text(contract),
        }
        text = json.dumps(seen, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        mark = hashlib.sha256(text.encode()).hexdigest()[:16]
        return Drawing(mark, f'{{"now":{json.dumps(picture.now)},{text[1:]}'.encode())


class View:
    """One model as it was drawn last."""

    def __init__(self) -> None:
        self._axes: Points | None = None
        self._drawn: tuple[Snapshot, dict[str, Any]] | None = None

    def of(self, shown: ModelStatus, contract: Contract, nodes_max: int) -> dict[str, Any] | None:
        """The drawn clustering, None before there is one; the same snapshot is drawn once."""
        snapshot = shown.snapshot
        if snapshot is None:
            return None
        if self._drawn is None or self._drawn[0] is not snapshot:
            whole = clustering_of(snapshot, contract.width)
            self._drawn = snapshot, self._clustering(whole, shown, contract, nodes_max)
        return self._drawn[1]

    def _clustering(self, whole: Clustering, model: ModelStatus, contract: Contract, nodes_max: int) -> dict[str, Any]:
        points, axes, share = self._projected(whole, contract)
        shown = _features_shown(self._axes, contract)
        kept = np.sort(np.argsort(-whole.count, kind="stable")[:nodes_max])
        values = in_units(whole.weight[kept], contract, shown)
        return {
            "axes": axes,
            "spread_shown": share,
            "features": [told(contract.features[j]) for j in shown],
            "features_total": contract.width,
            "nodes": {
                "id": whole.node_id[kept].tolist(),
                "x": rounded(points[kept, 0]),
                "y": rounded(points[kept, 1]),
                "count": rounded(whole.count[kept]),
                "cluster": whole.cluster[kept].tolist(),
                "values": values,
            },
            "edges": _edges(whole.edge, kept, len(whole.weight)),
            **clusters_of(whole, model, contract, shown),
        }

    def _projected(self, whole: Clustering, contract: Contract) -> tuple[Points, list[str], float | None]:
        """Points to draw (n, 2), what each axis is, and the share of the spread that the axes show (None: all)."""
        names = [named(feature) for feature in contract.features]
        if contract.width <= 2:
            values = bounds_of(contract).from_unit(whole.weight)
            if contract.width == 1:
                values = np.column_stack([values, np.log10(np.maximum(whole.count, 1.0))])
                names.append("times won, powers of ten")
            return values, names, None
        decide = deciding(whole.weight, whole.count)
        self._axes = steady_axes(decide, self._axes)
        everything = float(np.square(decide - decide.mean(axis=0)).sum()) if len(decide) else 0.0
        share = spread(decide, self._axes) / everything if everything > 0 else 1.0
        return (whole.weight - 0.5) @ self._axes, [_mixture(axis, contract) for axis in self._axes.T], round(share, 3)


def _model(shown: ModelStatus, drawn: dict[str, Any] | None) -> dict[str, Any]:
    newest = shown.snapshot
    return {
        "name": shown.name,
        "algorithm": shown.algorithm,
        "waiting_for": shown.waiting_for or ("" if newest else NO_SNAPSHOT),
        "version": newest.version if newest else 0,
        "made_at": newest.made_at if newest else None,
        "readings": newest.readings if newest else 0,
        "updates": newest.updates if newest else 0,
        "nodes_total": newest.nodes if newest else 0,
        "clusters_total": newest.clusters if newest else 0,
        "history": turns(_found(shown)),
        "rounds": None if shown.rounds is None else _rounds(shown.rounds),
        "drawn": drawn,
    }


def _found(shown: ModelStatus) -> Sequence[HistoryPoint]:
    """The history of what was found: where a model in rounds starts anew, its first call comes before any cluster."""
    return shown.history if shown.rounds is None else [moment for moment in shown.history if moment.clusters]


def _rounds(seen: RoundStatus) -> dict[str, Any]:
    """Before a round has moved anything there is no shift to show."""
    return seen._asdict() | {"shift": float(f"{seen.shift:.3g}") if math.isfinite(seen.shift) else None}


def turns(history: Sequence[HistoryPoint]) -> list[list[float]]:
    """[time, clusters] of the first moment and of each where the number of clusters changed, bounded in length."""
    changed = [
        [moment.time, moment.clusters]
        for before, moment in zip([None, *history], history, strict=False)
        if before is None or before.clusters != moment.clusters
    ]
    if len(changed) <= HISTORY_MAX:
        return changed
    return [changed[j] for j in np.linspace(0, len(changed) - 1, HISTORY_MAX).astype(int)]


def _edges(edge: NDArray[np.int64], kept: NDArray[np.int64], n: int) -> list[int]:
    """The edges between kept nodes, as positions into these: one flat list, two numbers an edge."""
    place = np.full(n, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    ends = place[edge]
    flat: list[int] = ends[(ends >= 0).all(axis=1)].ravel().tolist()
    return flat


def _features_shown(axes: Points | None, contract: Contract) -> list[int]:
    """Features whose values are shown: all, or those that weigh most in the axes."""
    if contract.width <= VALUES_MAX or axes is None:
        return list(range(contract.width))
    weigh = np.square(axes).sum(axis=1)
    return sorted(np.argsort(-weigh, kind="stable")[:VALUES_MAX].tolist())


def _mixture(axis: NDArray[np.float64], contract: Contract) -> str:
    """What an axis is made of: its main features, and which of them grow along it."""
    order = np.argsort(-np.abs(axis), kind="stable")[:FEATURES_NAMED_MAX]
    main = [j for j in order.tolist() if abs(axis[j]) >= 0.4 * abs(axis[order[0]])]
    more = [contract.features[j].name for j in main if axis[j] > 0]
    less = [contract.features[j].name for j in main if axis[j] <= 0]
    parts = [f"{word} {', '.join(names)}" for word, names in (("more", more), ("less", less)) if names]
    return f"{', '.join(parts)} →"
