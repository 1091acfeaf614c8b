"""The states of one model beside the clusters of another one that learns from the same readings.

Where clusters and states part the readings alike, people get one list: the clusters, with how long
each lasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from shoal.algorithms.view import StatesView
from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import Floats
from shoal.protocol.history import NO_CLUSTER
from shoal.server_node.history.recent import RecentHistory
from shoal.server_node.report.clusters import thousandths
from shoal.server_node.report.description import describe, heaviest_numbers
from shoal.server_node.report.lineage.clusters import dwells_of
from shoal.server_node.report.status import ModelStatus
from shoal.server_node.report.types import Beside, BesideState
from shoal.server_node.report.units import view_of

AGREE_MIN: Final = 0.9
"""part of the readings of each step of time that clusters and states share out alike, from which
on they are one"""
STEPS_MIN: Final = 12
"""steps of time with readings that are compared, at least"""
# Each row has its own trend of 48 steps.
STATES_MAX: Final = 64


def states_of(model: ModelStatus | None, contract: ResolvedContract) -> StatesView | None:
    """What the newest snapshot of a model has of states; None for clusters that are places."""
    if model is None or model.snapshot is None:
        return None
    return view_of(model.snapshot, contract).states


def beside_of(
    other: ModelStatus,
    contract: ResolvedContract,
    recent: RecentHistory | None,
    recent_other: RecentHistory | None,
) -> Beside | None:
    """The states of the model `other`, beside the clusters of the model that `recent` is of; None
    before it has several.

    With the share of each over time, and, if both part the readings alike, the dwell of each
    cluster.
    """
    if other.snapshot is None or recent_other is None:
        return None
    view = view_of(other.snapshot, contract)
    dwell_of = dwells_of(view.states, other.lineage)
    if len(dwell_of) < 2:
        return None
    described = describe(view, contract.contract)
    numbers = heaviest_numbers(other.lineage, view, described)
    rows = []
    for identity in sorted(dwell_of)[:STATES_MAX]:
        cluster = other.lineage.clusters[identity]
        number = numbers.get(identity, -1)
        trend = recent_other.shares.get(identity, ())
        rows.append(
            BesideState(
                identity=identity,
                name=cluster.name,
                label=described[number].label if number in described else "",
                slot=0 if cluster.slot is None else cluster.slot,
                dwell=dwell_of[identity],
                trend=[thousandths(share) for share in trend],
            )
        )
    same = {} if recent is None else same_as(recent, recent_other, sorted(dwell_of))
    return Beside(
        model=other.name,
        reading_s=other.snapshot.reading_s,
        start=recent_other.start,
        step_s=recent_other.step_s,
        states=rows,
        same={str(cluster): dwell_of[state] for cluster, state in same.items()},
    )


def same_as(recent: RecentHistory, other: RecentHistory, states: Sequence[int]) -> dict[int, int]:
    """cluster -> the state that it is, where both part the readings alike in every step of time;
    else none."""
    clusters, mine = _table(recent)
    theirs = _table(other, states)[1]
    if recent.step_s != other.step_s or len(clusters) != len(states):
        return {}
    first = (other.start - recent.start) // recent.step_s
    steps = np.arange(max(0, first), min(len(mine), len(theirs) + first))
    mine = mine[steps]
    theirs = theirs[steps - first]
    known = ~(np.isnan(mine).any(axis=1) | np.isnan(theirs).any(axis=1))
    mine = mine[known]
    theirs = theirs[known]
    if len(mine) < STEPS_MIN:
        return {}
    shared = np.minimum(mine[:, :, None], theirs[:, None, :]).sum(axis=0)
    partner = shared.argmax(axis=1)
    # Two clusters with the same best state: neither is that state.
    if len(set(partner.tolist())) < len(clusters):
        return {}
    # The overlap of two distributions in one step: 1 where they are the same, 0 where they have
    # nothing in common.
    alike = float(np.minimum(mine, theirs[:, partner]).sum(axis=1).mean())
    # Shares that never move agree whatever each reading is.
    moves = float(np.abs(theirs - theirs.mean(axis=0)).sum(axis=1).mean() / 2)
    if alike < AGREE_MIN or moves < 1 - AGREE_MIN:
        return {}
    return {
        cluster: states[place] for cluster, place in zip(clusters, partner.tolist(), strict=True)
    }


def _table(
    recent: RecentHistory, identities: Sequence[int] | None = None
) -> tuple[list[int], Floats]:
    """Identities that had any readings, or those given, and their shares (steps, identities); NaN
    without readings."""
    shares: Mapping[int, Sequence[float | None]] = recent.shares
    if identities is None:
        identities = [
            identity
            for identity, own in sorted(shares.items())
            if identity != NO_CLUSTER and any(own)
        ]
    steps = max(map(len, shares.values()), default=0)
    columns = []
    for identity in identities:
        own = shares.get(identity, [0.0] * steps)
        columns.append([np.nan if share is None else share for share in own])
    return list(identities), np.array(columns, dtype=np.float64).reshape(len(columns), steps).T
