"""Regimes as the page and `/v1/clusters` show them: stays, changes, and whether they agree with clusters beside them.

Where clusters and regimes part the readings alike, people get one list: the clusters, with how long each lasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from server_node.clusters.description import describe, heaviest_numbers
from server_node.clusters.history.summary import RecentHistory
from server_node.clusters.lineage import Lineage, stays_of
from server_node.status import ModelStatus
from server_node.web.json_values import view_of
from shoal.algorithms.view import ClusteringView, RegimeView
from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import Floats
from shoal.protocol.history import NO_CLUSTER

AGREE_MIN: Final = 0.9
"""part of the readings of each step of time that clusters and regimes share out alike, from which on they are one"""
STEPS_MIN: Final = 12
"""steps of time with readings that are compared, at least"""
# Changes between regimes are a square table: 64 of them are already 4 096 numbers.
REGIMES_MAX: Final = 64


def regimes_of(model: ModelStatus | None, contract: ResolvedContract) -> RegimeView | None:
    """What the newest snapshot of a model has of regimes; None for clusters that are places."""
    if model is None or model.snapshot is None:
        return None
    return view_of(model.snapshot, contract).regimes


def moves_of(regimes: RegimeView, lineage: Lineage) -> list[list[int]]:
    """[from, to, changes seen] of regimes by their identities; none of those that were never seen."""
    identity = lineage.of_number
    pairs = np.argwhere(np.rint(regimes.changes) >= 1).tolist()
    known = [(one, other) for one, other in pairs if one != other and one in identity and other in identity]
    return [[identity[one], identity[other], round(float(regimes.changes[one, other]))] for one, other in known]


def regimes_json(view: ClusteringView, lineage: Lineage) -> dict[str, Any] | None:
    """Stays and changes of a model's regimes; None for clusters that are places."""
    regimes = view.regimes
    if regimes is None:
        return None
    return {
        "block": regimes.block,
        "provisional": regimes.provisional,
        "n_changes": regimes.n_changes,
        "stays": {str(identity): stay for identity, stay in stays_of(regimes, lineage).items()},
        "moves": moves_of(regimes, lineage),
    }


def beside_json(
    model: ModelStatus,
    other: ModelStatus,
    contract: ResolvedContract,
    recent: RecentHistory | None,
    recent_other: RecentHistory | None,
) -> dict[str, Any] | None:
    """The regimes of the model `other`, beside the clusters of `model`; None before it has several.

    With the share of each over time, and, if both part the readings alike, the stay of each cluster.
    """
    if other.snapshot is None or recent_other is None:
        return None
    view = view_of(other.snapshot, contract)
    stays = stays_of(view.regimes, other.lineage)
    if len(stays) < 2:
        return None
    described = describe(view, contract.contract)
    numbers = heaviest_numbers(other.lineage, view, described)
    rows = []
    for identity in sorted(stays)[:REGIMES_MAX]:
        cluster, number = other.lineage.clusters[identity], numbers.get(identity, -1)
        trend = recent_other.shares.get(identity, ())
        rows.append(
            {
                "identity": identity,
                "name": cluster.name,
                "label": described[number].label if number in described else "",
                "slot": cluster.slot,
                "stay": stays[identity],
                "trend": [None if share is None else round(1000 * share) for share in trend],
            }
        )
    same = {} if recent is None else same_as(recent, recent_other, sorted(stays))
    alike = {str(cluster): stays[regime] for cluster, regime in same.items()}
    return {
        "model": other.name,
        "from": recent_other.start,
        "step_s": recent_other.step_s,
        "regimes": rows,
        "same": alike,
    }


def same_as(recent: RecentHistory, other: RecentHistory, regimes: Sequence[int]) -> dict[int, int]:
    """cluster -> the regime that it is, where both part the readings alike in every step of time; else none."""
    clusters, mine = _table(recent)
    theirs = _table(other, regimes)[1]
    if recent.step_s != other.step_s or len(clusters) != len(regimes):
        return {}
    first = (other.start - recent.start) // recent.step_s
    steps = np.arange(max(0, first), min(len(mine), len(theirs) + first))
    mine, theirs = mine[steps], theirs[steps - first]
    known = ~(np.isnan(mine).any(axis=1) | np.isnan(theirs).any(axis=1))
    mine, theirs = mine[known], theirs[known]
    if len(mine) < STEPS_MIN:
        return {}
    shared = np.minimum(mine[:, :, None], theirs[:, None, :]).sum(axis=0)
    partner = shared.argmax(axis=1)
    if len(set(partner.tolist())) < len(clusters):
        return {}
    alike = float(np.minimum(mine, theirs[:, partner]).sum(axis=1).mean())
    # Shares that never move agree whatever each reading is.
    moves = float(np.abs(theirs - theirs.mean(axis=0)).sum(axis=1).mean() / 2)
    if alike < AGREE_MIN or moves < 1 - AGREE_MIN:
        return {}
    return {cluster: regimes[place] for cluster, place in zip(clusters, partner.tolist(), strict=True)}


def _table(recent: RecentHistory, identities: Sequence[int] | None = None) -> tuple[list[int], Floats]:
    """Identities that had any readings, or those given, and their shares (steps, identities); NaN without readings."""
    shares: Mapping[int, Sequence[float | None]] = recent.shares
    if identities is None:
        identities = [one for one, own in sorted(shares.items()) if one != NO_CLUSTER and any(own)]
    steps = max(map(len, shares.values()), default=0)
    columns = [[np.nan if share is None else share for share in shares.get(one, [0.0] * steps)] for one in identities]
    return list(identities), np.array(columns, dtype=np.float64).reshape(len(columns), steps).T
