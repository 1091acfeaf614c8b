"""Values as JSON: numbers in the units of the contract, snapshots, and changes between two values.

The change of an object is an object with the changes of its members; `REMOVED` lists the members
that it has no more. The change of an array of the same length may be an object too, with the
changes of its elements by their positions. Any other value replaces what was there. The page's
`status.js` applies changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Feature
from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import AnyArray, Floats
from shoal.protocol.messages import Snapshot
from shoal.server_node.report.lineage import Lineage
from shoal.server_node.report.types import ModelStatus


def in_units(points: Floats, contract: ResolvedContract, shown: list[int]) -> list[list[float]]:
    """points (n, d) in unit coordinates -> values (n, k) of the k features shown, rounded for
    display."""
    values = contract.bounds.shown(points)
    columns = [np.round(values[:, j], digits(contract.features[j])) for j in shown]
    rows: list[list[float]] = np.column_stack(columns).tolist()
    return rows


def rounded(numbers: Floats) -> list[float]:
    """Each number to six digits; NaN becomes 0 and an infinity the largest float."""
    return [float(f"{number:.6g}") for number in np.nan_to_num(numbers).tolist()]


def feature_json(feature: Feature) -> dict[str, Any]:
    """A feature as the page gets it: `kind_json`, and digits after the point."""
    return {**kind_json(feature), "digits": digits(feature)}


def kind_json(feature: Feature) -> dict[str, Any]:
    """Name and unit of a feature, the values of a category in the order of their numbers, the
    period of a circle."""
    values = {"values": list(feature.values)} if feature.values else {}
    return {
        "name": feature.name,
        "unit": feature.unit,
        **values,
        **({"period": feature.period} if feature.period else {}),
    }


def feature_label(feature: Feature) -> str:
    """A feature's name, with its unit if it has one that the name does not end with, as columns of
    files often do."""
    name = feature.name
    unit = feature.unit
    return (
        f"{name} ({unit})"
        if unit and not name.endswith((f"({unit})", f"[{unit}]", f" {unit}"))
        else name
    )


def digits(feature: Feature) -> int:
    """Digits after the point that resolve a thousandth of the range between the feature's bounds."""
    return min(12, max(0, math.ceil(3 - math.log10(feature.high - feature.low))))


NO_SNAPSHOT = "No snapshot has been published yet."


def view_of(snapshot: Snapshot, contract: ResolvedContract) -> ClusteringView:
    """The clustering in `snapshot`, as its algorithm reads it."""
    return contract.models[snapshot.model].algorithm.view(snapshot.arrays)


def parts_json(
    model: ModelStatus, contract: ResolvedContract, features: Iterable[int]
) -> list[dict[str, Any]]:
    """The parts of the only known cluster of a model, with their centres over these features, in
    units."""
    if model.snapshot is None or len(model.lineage.known) != 1:
        return []
    parts = model.snapshot.cluster_parts
    shown = contract.bounds.shown(np.array([one.centre for one in parts])) if parts else ()
    return [
        {
            "number": part.number,
            "label": part.label,
            "text": part.text,
            "share": round(part.share, 4),
            "centre": [round(float(centre[j]), digits(contract.features[j])) for j in features],
        }
        for part, centre in zip(parts, shown, strict=True)
    ]


def snapshot_json(
    snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract
) -> dict[str, Any]:
    """All of a snapshot as JSON values. `bandwidth` is None for algorithms that have none."""
    bounds = contract.bounds
    view = view_of(snapshot, contract)
    bandwidths = [None] * len(view.nodes) if view.bandwidth is None else as_lists(view.bandwidth)
    nodes = zip(
        view.node_id.tolist(),
        as_lists(bounds.shown(view.nodes)),
        as_lists(view.mass),
        bandwidths,
        view.cluster.tolist(),
        strict=True,
    )
    clusters = zip(as_lists(bounds.shown(view.centres)), as_lists(view.centre_mass), strict=True)
    return {
        "federation": snapshot.federation,
        "model": snapshot.model,
        "algorithm": snapshot.algorithm,
        "version": snapshot.version,
        "contract": snapshot.contract,
        "positions": snapshot.positions,
        "privacy": snapshot.privacy,
        "updates": snapshot.updates,
        "readings": snapshot.readings,
        "made_at": snapshot.made_at,
        "features": [kind_json(feature) for feature in contract.features],
        "nodes": [
            {
                "id": node_id,
                "position": position,
                "mass": mass,
                "bandwidth": bandwidth,
                "cluster": cluster,
            }
            for node_id, position, mass, bandwidth, cluster in nodes
        ],
        "edges": view.edges.tolist(),
        "clusters": [
            {
                "cluster": number,
                "identity": lineage.of_number.get(number),
                "centre": centre,
                "mass": mass,
            }
            for number, (centre, mass) in enumerate(clusters)
        ],
    }


def as_lists(array: AnyArray) -> list[Any]:
    """`array` as nested lists for JSON; numbers that are not finite become None."""
    plain = array.astype(object)
    if np.issubdtype(array.dtype, np.floating):
        plain[~np.isfinite(array)] = None
    nested: list[Any] = plain.tolist()
    return nested


REMOVED = ""
"""no member of a status has this name"""
UNCHANGED = object()


def change(before: Any, after: Any) -> Any:
    """The change that makes `after` of `before`; `UNCHANGED` if there is none."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _object_change(before, after)
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return _array_change(before, after)
    if isinstance(after, dict) and isinstance(before, list):
        raise TypeError(
            "an object cannot replace an array: it would be taken for the change of the array"
        )
    # True equals 1, and they are two values in JSON.
    return UNCHANGED if before == after and type(before) is type(after) else after


def as_json(value: Any) -> str:
    """`value` as JSON in one line, without spaces."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _object_change(before: dict[str, Any], after: dict[str, Any]) -> Any:
    changes = {
        name: change(before[name], value) if name in before else value
        for name, value in after.items()
    }
    changed = {name: value for name, value in changes.items() if value is not UNCHANGED}
    if removed := [name for name in before if name not in after]:
        changed[REMOVED] = removed
    return changed or UNCHANGED


def _array_change(before: list[Any], after: list[Any]) -> Any:
    """The changes of the elements by position, or the whole array where that is shorter."""
    changes = ((str(i), change(*pair)) for i, pair in enumerate(zip(before, after, strict=True)))
    changed = {position: value for position, value in changes if value is not UNCHANGED}
    if not changed:
        return UNCHANGED
    return changed if len(as_json(changed)) < len(as_json(after)) else after
