"""The map of a model as JSON: its nodes on two axes, with their values, and the edges between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_node.lineage import Lineage
from server_node.web.changes import as_json
from server_node.web.projection import Points
from server_node.web.tables import colour_slots
from server_node.web.units import feature_json, in_units, rounded
from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract

NODES_MAX = 2000
"""nodes sent of a model; those with the highest count are kept"""


def map_json(
    view: ClusteringView,
    points: Points,
    lineage: Lineage,
    contract: Contract,
    features: Sequence[int],
    axes: Sequence[str],
    explained: float | None,
    version: int,
) -> str:
    """JSON in one line. `points` (n, 2) are the places of the nodes, `features` those whose values are sent."""
    kept = np.sort(np.argsort(-view.mass, kind="stable")[:NODES_MAX])
    total = len(view.centres)
    head = {
        "version": version,
        "axes": axes,
        "explained_variance": explained,
        "identities": [lineage.of_number.get(number) for number in range(total)],
        "slots": colour_slots(total, lineage),
        "features": [feature_json(contract.features[j]) for j in features],
    }

    def nodes() -> Iterator[tuple[str, Any]]:
        yield "id", view.node_id[kept].tolist()
        yield "x", rounded(points[kept, 0])
        yield "y", rounded(points[kept, 1])
        yield "mass", rounded(view.mass[kept])
        yield "cluster", view.cluster[kept].tolist()
        yield "values", in_units(view.nodes[kept], contract, list(features))

    # One list of numbers after the other, as all of them, and json's texts for each, take a megabyte for 1000 nodes.
    columns = ",".join(f"{as_json(name)}:{as_json(values)}" for name, values in nodes())
    edges = as_json(_edges(view.edges, kept, len(view.nodes)))
    return f'{as_json(head)[:-1]},"nodes":{{{columns}}},"edges":{edges}}}'


def _edges(edges: NDArray[np.int64], kept: NDArray[np.int64], n: int) -> list[int]:
    """The edges between kept nodes, as positions among these: one flat list, two numbers per edge."""
    position = np.full(n, -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    ends = position[edges]
    flat: list[int] = ends[(ends >= 0).all(axis=1)].ravel().tolist()
    return flat
