"""The clusters and regimes of a model and its history as JSON: clusters, history, feeds, changes,
cycles under `/v1`.

Where clusters and regimes part the readings alike, people get one list: the clusters, with how long
each lasts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.algorithms.view import ClusteringView, RegimeView
from shoal.config.contract import Contract
from shoal.config.resolved import ResolvedContract
from shoal.errors import SettingsError
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.protocol.history import NO_CLUSTER
from shoal.server_node.history.changes import CHANCE, PastEvent, find_changes, spans_of
from shoal.server_node.history.cycles import cycles_json, find_cycles
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.history.summary import RecentHistory, recent_history
from shoal.server_node.outputs.web.history_json import asked_span, read_feeds, read_history
from shoal.server_node.outputs.web.json_values import (
    NO_SNAPSHOT,
    digits,
    feature_json,
    kind_json,
    parts_json,
    view_of,
)
from shoal.server_node.outputs.web.operations import (
    CHANGES,
    CLUSTERS,
    CYCLES,
    FEEDS,
    HISTOGRAMS,
    HISTORY,
    MODEL,
    SHARE,
    TEXT,
    Operation,
    Parameter,
)
from shoal.server_node.outputs.web.responses import conditional, in_thread, problem, tagged
from shoal.server_node.outputs.web.tables import history_fields
from shoal.server_node.report.description import (
    Description,
    Interval,
    describe,
    heaviest_numbers,
    places_of,
)
from shoal.server_node.report.lineage import Cluster, Lineage, dwells_of
from shoal.server_node.report.types import ModelStatus, ServerStatus, StatusBoard

FROM = Parameter("from", TEXT, "seconds since 1970, or a time of ISO 8601")
TO = Parameter("to", TEXT, "as from")
STEP = Parameter("step", TEXT, "seconds of a column: a multiple of 300 up to a week")
BEFORE_FROM = Parameter(
    "before_from", TEXT, "start of the span to compare with; default: as long before its end"
)
BEFORE_TO = Parameter("before_to", TEXT, "its end; by default from")
BELOW = Parameter("chance", SHARE, "what has moved is listed if its chance is below this")
OF = Parameter("of", TEXT, "clusters: leave the clients out")


def cluster_operations(board: StatusBoard, history: HistoryReader | None) -> list[Operation]:
    """The operations of clusters and their history. `history` None: there is no history."""

    async def clusters(request: Request) -> Response:
        """The known clusters of a model with what each is, in the units of the contract."""
        status = board.status
        model = requested_model(request, status)
        recent = None if history is None else recent_history(history, model.name)
        return tagged(request, clusters_json(model, status.contract, recent))

    async def past(request: Request) -> Response:
        """The bins of a model's history in a span of time; 404 where no history is kept."""
        model = requested_model(request, board.status)
        found = await read_history(kept(history), model.name, request.query_params)
        return conditional(request, found.etag, found.pieces)

    async def feeds(request: Request) -> Response:
        """Division of each client's readings among the clusters, in percent, in a span of time.

        The fine bins that start from `from` to `to`; the 200 clients with most readings, the eight
        largest clusters. `from` and `to` of the answer are the times that were counted, null
        without bins. 404 where no history is kept.
        """
        model = requested_model(request, board.status)
        return tagged(request, await read_feeds(kept(history), model.name, request.query_params))

    async def spread(request: Request) -> Response:
        """Histograms of a known cluster and of all others in each feature, in units."""
        status = board.status
        model = requested_model(request, status)
        return tagged(
            request, histograms_json(model, known_cluster(request, model), status.contract)
        )

    return [
        Operation("/v1/clusters", clusters, CLUSTERS, errors=(404,), etag=True),
        Operation(
            "/v1/clusters/{identity}/histograms", spread, HISTOGRAMS, errors=(404,), etag=True
        ),
        Operation(
            "/v1/history", past, HISTORY, (MODEL, FROM, TO, STEP, OF), errors=(400, 404), etag=True
        ),
        Operation("/v1/feeds", feeds, FEEDS, (MODEL, FROM, TO), errors=(400, 404), etag=True),
        _changes_operation(board, history),
        _cycles_operation(board, history),
    ]


def _changes_operation(board: StatusBoard, history: HistoryReader | None) -> Operation:
    async def changed(request: Request) -> Response:
        """Changes between two spans of time, by default the halves of the history; 404 where none
        is kept."""
        status = board.status
        model = requested_model(request, status)
        given = kept(history), model, status.contract.contract, request.query_params
        return tagged(request, await in_thread(changes_json, *given))

    query = MODEL, FROM, TO, BEFORE_FROM, BEFORE_TO, BELOW
    return Operation("/v1/changes", changed, CHANGES, query, errors=(400, 404), etag=True)


def _cycles_operation(board: StatusBoard, history: HistoryReader | None) -> Operation:
    async def cycles(request: Request) -> Response:
        """Cycles of each feature over the day and the week, whether they are certain or not; 404
        where none is kept."""
        status = board.status
        model = requested_model(request, status)
        found = await in_thread(find_cycles, kept(history), status.contract.contract, model.name)
        return tagged(request, cycles_json(model.name, found))

    return Operation("/v1/cycles", cycles, CYCLES, errors=(404,), etag=True)


def changes_json(
    history: HistoryReader, model: ModelStatus, contract: Contract, asked: QueryParams
) -> dict[str, Any]:
    """The changes between the spans that the query asks for. Raises `HTTPException` (400) for spans
    that cannot be."""
    try:
        below = float(asked.get("chance") or CHANCE)
    except ValueError:
        below = math.nan
    if not 0 <= below <= 1:
        raise HTTPException(400, "chance is a number from 0 to 1")
    try:
        spans = spans_of(history, model.name, asked_span(asked), asked_span(asked, "before_"))
    except SettingsError as wrong:
        raise HTTPException(400, str(wrong)) from None
    events = [PastEvent(event.at, event.kind, event.cluster, event.other) for event in model.events]
    return find_changes(history, contract, model.name, spans, events).json(below)


def kept(history: HistoryReader | None) -> HistoryReader:
    """The history. Raises `HTTPException` (404) where there is none."""
    if history is None:
        raise HTTPException(404, "this server keeps no history")
    return history


def requested_model(
    request: Request, status: ServerStatus, default: str | None = None
) -> ModelStatus:
    """The model named in the query, by default `default` or the contract's first one. Raises
    `HTTPException`."""
    configured = status.contract.models
    name = request.query_params.get("model", default or next(iter(configured)))
    if name not in configured:
        raise HTTPException(404, f"no such model; this federation has {', '.join(configured)}")
    return status.models.get(name) or ModelStatus(name, configured[name].declared.algorithm)


def no_clustering(model: ModelStatus) -> Response:
    """404 with what a model waits for, before its first snapshot."""
    return problem(404, "no clustering yet", waiting_for=model.waiting_for or NO_SNAPSHOT)


def known_cluster(request: Request, model: ModelStatus) -> int:
    """The identity in the path. Raises `HTTPException` if no known cluster of the model has it."""
    asked = request.path_params["identity"]
    for cluster in model.lineage.known:
        if str(cluster.identity) == asked:
            return cluster.identity
    raise HTTPException(404, f"model {model.name} has no cluster with this identity")


def histograms_json(
    model: ModelStatus, identity: int, contract: ResolvedContract
) -> dict[str, Any]:
    """The histograms of a cluster, in thousandths; no feature where the newest snapshot has no node
    of it."""
    found: list[Histogram] = []
    if model.snapshot is not None:
        found = histograms(
            view_of(model.snapshot, contract), model.lineage, identity, contract.contract
        )
    return {
        "model": model.name,
        "identity": identity,
        "version": model.snapshot.version if model.snapshot else 0,
        "features": [
            {
                **feature_json(feature),
                "low": round(one.low, digits(feature)),
                "high": round(one.high, digits(feature)),
                "own": np.rint(1000 * one.own).astype(int).tolist(),
                "others": np.rint(1000 * one.others).astype(int).tolist(),
            }
            for feature, one in zip(contract.features, found, strict=False)
        ],
    }


def clusters_json(
    model: ModelStatus, contract: ResolvedContract, recent: RecentHistory | None
) -> dict[str, Any]:
    """The known clusters of a model, heaviest first; none before the first snapshot."""
    described: dict[int, Description] = {}
    numbers: dict[int, int] = {}
    regimes = None
    if model.snapshot is not None:
        view = view_of(model.snapshot, contract)
        described = describe(view, contract.contract, model.lineage.times)
        numbers = heaviest_numbers(model.lineage, view, described)
        regimes = regimes_json(view, model.lineage, model.snapshot.reading_s)
    dwells = {} if regimes is None else regimes["dwells"]
    places = range(contract.width)
    known = sorted(model.lineage.known, key=lambda cluster: (-cluster.mass, cluster.identity))
    return {
        "model": model.name,
        "version": model.snapshot.version if model.snapshot else 0,
        "features": [kind_json(feature) for feature in contract.features],
        "trend_from": recent.start if recent else None,
        "trend_step_s": recent.step_s if recent else None,
        "clusters": [
            _cluster_json(cluster, described.get(numbers.get(cluster.identity, -1)), contract)
            | history_fields(cluster.identity, recent)
            | {
                "dwell": dwells.get(str(cluster.identity)),
                "parts": parts_json(model, contract, places),
            }
            for cluster in known
        ],
        "regimes": regimes,
    }


def _cluster_json(
    cluster: Cluster, description: Description | None, contract: ResolvedContract
) -> dict[str, Any]:
    return {
        "identity": cluster.identity,
        "name": cluster.name,
        "label": "" if description is None else description.label,
        "text": "" if description is None else description.text(contract.contract),
        "active": cluster.active,
        "confirmed": cluster.confirmed,
        "muted_until": cluster.muted_until,
        "share": cluster.share,
        "recent_share": cluster.recent_share,
        "since": cluster.since,
        "since_reading": cluster.since_reading,
        "parent": cluster.parent,
        "centre": None if description is None else list(description.centre),
        "spread": None
        if description is None
        else [_interval_json(each) for each in description.intervals],
    }


def _interval_json(interval: Interval) -> dict[str, Any]:
    return {
        "low": interval.low,
        "middle": interval.middle,
        "high": interval.high,
        "beyond_bounds": interval.beyond_bounds,
    }


BINS = 28


@dataclass(frozen=True)
class Histogram:
    """One feature: bins of equal width from the least to the largest value of all clusters, within
    the bounds."""

    low: float
    """start of the first bin, in units"""
    high: float
    """end of the last bin; `low` where all values are the same"""
    own: Floats
    """(BINS,) shares of the cluster's mass, 0 to 1"""
    others: Floats
    """(BINS,) shares of the mass of all other clusters"""


def histograms(
    view: ClusteringView, lineage: Lineage, identity: int, contract: Contract
) -> list[Histogram]:
    """One for each feature of the contract; none for a cluster that no node of the view belongs to.

    They are made of nodes and their mass, which snapshots publish, and so as coarse as the nodes
    are.
    """
    numbers = [number for number, of in lineage.of_number.items() if of == identity]
    places, mass, cluster = places_of(view, view.cluster >= 0)
    own = np.isin(cluster, numbers)
    if not own.any():
        return []
    values = contract.bounds.shown(places)
    return [
        _histogram(
            values[:, j] if feature.period else np.clip(values[:, j], feature.low, feature.high),
            mass,
            own,
        )
        for j, feature in enumerate(contract.features)
    ]


def _histogram(values: Floats, mass: Floats, own: Bools) -> Histogram:
    low = float(values.min())
    high = float(values.max())
    width = (high - low) / BINS
    place = np.zeros(len(values), dtype=np.int64)
    if width > 0:
        place = np.minimum(((values - low) / width).astype(np.int64), BINS - 1)
    return Histogram(low, high, _shares(place[own], mass[own]), _shares(place[~own], mass[~own]))


def _shares(place: Ints, mass: Floats) -> Floats:
    """Share of the mass in each bin; zeros where there is none at all."""
    counts = np.bincount(place, mass, minlength=BINS)
    return counts / (counts.sum() or 1.0)


AGREE_MIN: Final = 0.9
"""part of the readings of each step of time that clusters and regimes share out alike, from which
on they are one"""
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
    """[from, to, changes seen] of regimes by their identities; none of those that were never
    seen."""
    identity = lineage.of_number
    pairs = np.argwhere(np.rint(regimes.changes) >= 1).tolist()
    known = [
        (one, other)
        for one, other in pairs
        if one != other and one in identity and other in identity
    ]
    return [
        [identity[one], identity[other], round(float(regimes.changes[one, other]))]
        for one, other in known
    ]


def regimes_json(
    view: ClusteringView, lineage: Lineage, reading_s: float | None
) -> dict[str, Any] | None:
    """Dwells and changes of a model's regimes, `reading_s` seconds a reading; None for clusters
    that are places."""
    regimes = view.regimes
    if regimes is None:
        return None
    return {
        "block": regimes.block,
        "provisional": regimes.provisional,
        "readings_needed": regimes.readings_needed,
        "n_changes": regimes.n_changes,
        "reading_s": reading_s,
        "dwells": {str(identity): dwell for identity, dwell in dwells_of(regimes, lineage).items()},
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

    With the share of each over time, and, if both part the readings alike, the dwell of each
    cluster.
    """
    if other.snapshot is None or recent_other is None:
        return None
    view = view_of(other.snapshot, contract)
    dwells = dwells_of(view.regimes, other.lineage)
    if len(dwells) < 2:
        return None
    described = describe(view, contract.contract)
    numbers = heaviest_numbers(other.lineage, view, described)
    rows = []
    for identity in sorted(dwells)[:REGIMES_MAX]:
        cluster = other.lineage.clusters[identity]
        number = numbers.get(identity, -1)
        trend = recent_other.shares.get(identity, ())
        rows.append(
            {
                "identity": identity,
                "name": cluster.name,
                "label": described[number].label if number in described else "",
                "slot": cluster.slot,
                "dwell": dwells[identity],
                "trend": [None if share is None else round(1000 * share) for share in trend],
            }
        )
    same = {} if recent is None else same_as(recent, recent_other, sorted(dwells))
    alike = {str(cluster): dwells[regime] for cluster, regime in same.items()}
    return {
        "model": other.name,
        "reading_s": other.snapshot.reading_s,
        "from": recent_other.start,
        "step_s": recent_other.step_s,
        "regimes": rows,
        "same": alike,
    }


def same_as(recent: RecentHistory, other: RecentHistory, regimes: Sequence[int]) -> dict[int, int]:
    """cluster -> the regime that it is, where both part the readings alike in every step of time;
    else none."""
    clusters, mine = _table(recent)
    theirs = _table(other, regimes)[1]
    if recent.step_s != other.step_s or len(clusters) != len(regimes):
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
    if len(set(partner.tolist())) < len(clusters):
        return {}
    alike = float(np.minimum(mine, theirs[:, partner]).sum(axis=1).mean())
    # Shares that never move agree whatever each reading is.
    moves = float(np.abs(theirs - theirs.mean(axis=0)).sum(axis=1).mean() / 2)
    if alike < AGREE_MIN or moves < 1 - AGREE_MIN:
        return {}
    return {
        cluster: regimes[place] for cluster, place in zip(clusters, partner.tolist(), strict=True)
    }


def _table(
    recent: RecentHistory, identities: Sequence[int] | None = None
) -> tuple[list[int], Floats]:
    """Identities that had any readings, or those given, and their shares (steps, identities); NaN
    without readings."""
    shares: Mapping[int, Sequence[float | None]] = recent.shares
    if identities is None:
        identities = [one for one, own in sorted(shares.items()) if one != NO_CLUSTER and any(own)]
    steps = max(map(len, shares.values()), default=0)
    columns = [
        [np.nan if share is None else share for share in shares.get(one, [0.0] * steps)]
        for one in identities
    ]
    return list(identities), np.array(columns, dtype=np.float64).reshape(len(columns), steps).T
