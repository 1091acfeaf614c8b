"""What the page lists: clusters by who they are, and clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from server_node.lineage import Lineage
from server_node.status import ClientStatus, ModelStatus
from server_node.web.clustering import Clustering
from server_node.web.units import in_units, rounded
from shoal.config.contract import Contract

CLUSTERS_MAX = 200
CLIENTS_MAX = 1000


def clusters_of(whole: Clustering, shown: ModelStatus, contract: Contract, features: list[int]) -> dict[str, Any]:
    """The heaviest clusters one by one, and of all of them by number: who each is, and what it is drawn as."""
    total = max(len(whole.centre), int(whole.cluster.max(initial=-1)) + 1)
    members = np.bincount(whole.cluster[whole.cluster >= 0], minlength=total)
    weight = np.full(total, np.nan)
    weight[: len(whole.centre_weight)] = whole.centre_weight
    identities = [shown.lineage.of_cluster.get(number) for number in range(total)]
    slots = colours(total, shown.lineage)
    centres = in_units(whole.centre, contract, features)
    # What has no weight comes last.
    heaviest = np.sort(np.argsort(-np.nan_to_num(weight, nan=-1.0), kind="stable")[:CLUSTERS_MAX]).tolist()
    return {
        "identities": identities,
        "slots": slots,
        "clusters_weight": float(f"{np.nansum(weight):.6g}"),
        "clusters": [
            {
                "number": number,
                "identity": identities[number],
                "since": None if (known := identities[number]) is None else shown.since.get(known),
                "slot": slots[number],
                "nodes": int(members[number]),
                "weight": None if np.isnan(weight[number]) else rounded(weight[number : number + 1])[0],
                "centre": centres[number] if number < len(centres) else None,
            }
            for number in heaviest
        ],
    }


def colours(clusters: int, lineage: Lineage) -> list[int]:
    """The colour slot of each cluster by its number; centres that are no cluster yet take what is left."""
    taken = set(lineage.slots.values())
    free = (slot for slot in count() if slot not in taken)
    known = (lineage.of_cluster.get(number) for number in range(clusters))
    return [next(free) if identity is None else lineage.slots[identity] for identity in known]


def clients_of(clients: Sequence[ClientStatus]) -> Mapping[str, list[Any]]:
    """The clients in columns, by name; those heard last where they are too many."""
    newest = sorted(clients, key=lambda client: -client.last_seen)[:CLIENTS_MAX]
    listed = sorted(newest)
    return {
        "name": [client.client for client in listed],
        "last_seen": [round(client.last_seen, 1) for client in listed],
        "readings": [client.readings for client in listed],
        "readings_per_s": [round(client.readings_per_s, 2) for client in listed],
    }
