"""The page's two tables: the clusters of a model, and the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from server_node.lineage import Lineage
from server_node.status import ClientStatus, ModelStatus
from server_node.web.units import in_units, rounded
from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract

CLUSTERS_MAX = 200
CLIENTS_MAX = 1000


def clusters_table(view: ClusteringView, model: ModelStatus, contract: Contract, features: list[int]) -> dict[str, Any]:
    """The identity and colour slot of every cluster by its number, and the rows of the heaviest clusters.

    `features` are the positions of those whose values are shown.
    """
    total = len(view.centres)
    members = np.bincount(view.cluster[view.cluster >= 0], minlength=total)
    identities = [model.lineage.of_cluster.get(number) for number in range(total)]
    slots = colour_slots(total, model.lineage)
    centres = in_units(view.centres, contract, features)
    heaviest = np.sort(np.argsort(-view.centre_mass, kind="stable")[:CLUSTERS_MAX]).tolist()
    return {
        "identities": identities,
        "slots": slots,
        "clusters_mass": float(f"{view.centre_mass.sum():.6g}"),
        "clusters": [
            {
                "number": number,
                "identity": identities[number],
                "since": None if (identity := identities[number]) is None else model.since.get(identity),
                "slot": slots[number],
                "nodes": int(members[number]),
                "mass": rounded(view.centre_mass[number : number + 1])[0],
                "centre": centres[number],
            }
            for number in heaviest
        ],
    }


def colour_slots(clusters: int, lineage: Lineage) -> list[int]:
    """The colour slot of each cluster by its number; centres without an identity take slots that are free."""
    taken = set(lineage.slots.values())
    free = (slot for slot in count() if slot not in taken)
    identities = (lineage.of_cluster.get(number) for number in range(clusters))
    return [next(free) if identity is None else lineage.slots[identity] for identity in identities]


def clients_table(clients: Sequence[ClientStatus]) -> Mapping[str, list[Any]]:
    """The clients by name, one list per column; where there are too many, those seen last."""
    newest = sorted(clients, key=lambda client: -client.last_seen)[:CLIENTS_MAX]
    listed = sorted(newest)
    return {
        "name": [client.client for client in listed],
        "last_seen": [round(client.last_seen, 1) for client in listed],
        "readings": [client.readings for client in listed],
        "readings_per_s": [round(client.readings_per_s, 2) for client in listed],
    }
