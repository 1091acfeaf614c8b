"""The clustering of one snapshot as people and programs see it: `types.Clustering`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Final

import numpy as np

from shoal.algorithms.view import ClusteringView, StatesView
from shoal.config.contract import within
from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import Floats
from shoal.protocol.history import NO_CLUSTER
from shoal.server_node.history.counted import CountedReadings
from shoal.server_node.history.cycles import Cycle
from shoal.server_node.history.day_times import DayTimes
from shoal.server_node.history.recent import RecentHistory
from shoal.server_node.history.shares import Shares
from shoal.server_node.history.usual import Usual
from shoal.server_node.report.description import Description, describe, heaviest_numbers
from shoal.server_node.report.lineage.clusters import Cluster as KnownCluster
from shoal.server_node.report.lineage.clusters import Lineage, dwells_of
from shoal.server_node.report.lineage.events import DatedEvent, brief_events
from shoal.server_node.report.regression import prediction_rules
from shoal.server_node.report.status import ModelStatus, RecentEvent
from shoal.server_node.report.types import (
    BoundSide,
    Cluster,
    Clustering,
    Counted,
    CycleView,
    Event,
    Feed,
    MostFrom,
    PartView,
    ShareByTime,
    States,
    Unlike,
    UsualRange,
    UsualView,
)
from shoal.server_node.report.units import feature_view, view_of

EVENTS_MAX: Final = 40
"""newest events of clusters that a report has"""
FEEDS_CLIENTS_MAX: Final = 200
"""clients whose clusters a report has: those with the most readings"""
CLUSTERS_PER_CLIENT_MAX: Final = 8
CLIENTS_FEEDING_MAX: Final = 10
LEAST_SHARE: Final = 0.001
"""what stands for a share that would be rounded to 0, and is not"""


@dataclass(frozen=True)
class Past:
    """What the history of a model says at one time; None and empty where none is kept, or before
    the first bin."""

    counted: CountedReadings | None = None
    recent: RecentHistory | None = None
    usual: Usual | None = None
    cycles: Sequence[Cycle] = ()
    """those that are hardly chance"""
    day_times: DayTimes | None = None


NO_PAST: Final = Past()
NO_NAMES: Final[Mapping[str, str]] = {}


def clustering_of(
    model: ModelStatus,
    contract: ResolvedContract,
    past: Past,
    client_names: Mapping[str, str] = NO_NAMES,
) -> Clustering:
    """The clustering of the newest snapshot; without clusters before the first one.

    `client_names` are those that sentences have in the place of clients.
    """
    snapshot = model.snapshot
    recent = past.recent
    clusters: list[Cluster] = []
    single_nodes = 0
    states = None
    rules = None
    counted = past.counted
    if snapshot is not None:
        view = view_of(snapshot, contract)
        if counted is not None and view.counted is not None:
            counted = counted.told_by(_counted_by_model(view.counted, model.lineage))
            past = replace(past, counted=counted)
        clusters = clusters_of(view, model.lineage, contract, past, client_names)
        single_nodes = _single_nodes(view, model.lineage)
        states = _states(view.states, model.lineage, snapshot.reading_s)
        rules = prediction_rules(snapshot, model.lineage, contract)
    return Clustering(
        model=model.name,
        version=0 if snapshot is None else snapshot.version,
        features=[feature_view(feature) for feature in contract.features],
        features_total=contract.width,
        counted=_counted(counted),
        trend_from=None if recent is None else recent.start,
        trend_step_s=None if recent is None else recent.step_s,
        clusters=clusters,
        single_nodes=single_nodes,
        events=_events(model.events),
        alarm=model.unusual,
        unlike=[Unlike(client=client, since=since) for client, since in model.unlike],
        usual=_usual(past.usual),
        most_from=_most_from(recent),
        feeds={} if recent is None else feeds_of(recent.by_client),
        cycles=[CycleView(**asdict(cycle), text=cycle.text()) for cycle in past.cycles],
        parts=_parts(model, contract),
        states=states,
        beside=None,
        rules=rules,
    )


def _events(events: Sequence[RecentEvent]) -> list[Event]:
    """The newest of these events."""
    dated = [DatedEvent(event.found_at, event.kind, event.cluster) for event in events]
    described = [
        Event(
            at=event.at,
            until=event.until,
            found_at=event.found_at,
            kind=event.kind,
            cluster=event.cluster,
            other=event.other,
            text=event.text,
            brief=brief,
        )
        for event, brief in zip(events, brief_events(dated), strict=True)
    ]
    return described[-EVENTS_MAX:]


def clusters_of(
    view: ClusteringView,
    lineage: Lineage,
    contract: ResolvedContract,
    past: Past = NO_PAST,
    client_names: Mapping[str, str] = NO_NAMES,
) -> list[Cluster]:
    """The known clusters of a snapshot, the heaviest first, of equal ones the oldest."""
    described = describe(view, contract.contract, lineage.times)
    number_of = heaviest_numbers(lineage, view, described)
    dwell_of = dwells_of(view.states, lineage)
    nodes_of = _nodes_of(view, lineage)
    known = sorted(lineage.known, key=lambda cluster: (-cluster.mass, cluster.identity))
    return [
        _cluster(
            cluster,
            described.get(number_of.get(cluster.identity, -1)),
            contract,
            past,
            client_names,
            dwell_of.get(cluster.identity),
            nodes_of[cluster.identity],
        )
        for cluster in known
    ]


def _cluster(
    cluster: KnownCluster,
    description: Description | None,
    contract: ResolvedContract,
    past: Past,
    client_names: Mapping[str, str],
    dwell: float | None,
    nodes: int,
) -> Cluster:
    identity = cluster.identity
    recent = past.recent
    feeding: Sequence[tuple[str, float]] = ()
    trend: Sequence[float | None] = ()
    if recent is not None:
        feeding = recent.feeding.get(identity, ())[:CLIENTS_FEEDING_MAX]
        trend = recent.shares.get(identity, ())
    return Cluster(
        identity=identity,
        name=cluster.name,
        label="" if description is None else description.label,
        text="" if description is None else description.text(contract.contract),
        active=cluster.active,
        confirmed=cluster.confirmed,
        muted_until=cluster.muted_until,
        share=None if past.counted is None else round(past.counted.share(identity), 4),
        now_share=_now_share(past.usual, identity),
        share_by_time=share_by_time(past.day_times, identity),
        recent_share=round(cluster.recent_share, 4),
        dwell=dwell,
        since=cluster.since,
        since_reading=cluster.since_reading,
        parent=cluster.parent,
        slot=0 if cluster.slot is None else cluster.slot,
        nodes=nodes,
        centre=None if description is None else description.centre,
        spread=None if description is None else description.intervals,
        at_bounds=_at_bounds(description, contract),
        trend=_trend(trend),
        trend_text="" if recent is None else recent.trend_text(identity),
        fed_by=[Feed(client=client, share=round(share, 3)) for client, share in feeding],
        fed_by_text="" if recent is None else recent.feeding_text(identity, client_names),
    )


def _at_bounds(description: Description | None, contract: ResolvedContract) -> dict[str, BoundSide]:
    if description is None:
        return {}
    return {
        contract.features[position].name: side for position, side in description.at_bounds.items()
    }


def _counted_by_model(counted: Floats, lineage: Lineage) -> dict[int, float]:
    """Readings (c,) that a model has counted to its clusters, by identity."""
    by_identity: Counter[int] = Counter()
    for number, readings in enumerate(counted.tolist()):
        by_identity[lineage.of_number.get(number, NO_CLUSTER)] += readings
    return dict(by_identity)


def share_by_time(times: DayTimes | None, identity: int) -> ShareByTime | None:
    """What a report says of one cluster; None where nothing is known of such times."""
    if times is None:
        return None

    def share(shares: Shares) -> float | None:
        if not shares:
            return None
        exact = shares.get(identity, 0.0)
        if exact == 0.0:
            return 0.0
        # Whole percents, which a half hour of four weeks seldom changes: pages are told of every
        # change.
        return max(LEAST_SHARE, round(exact, 2))

    return ShareByTime(day=share(times.day), night=share(times.night), weekend=share(times.weekend))


def _now_share(usual: Usual | None, identity: int) -> float | None:
    if usual is None or not usual.now:
        return None
    return round(usual.now.get(identity, 0.0), 4)


def centres_of(
    view: ClusteringView, lineage: Lineage, contract: ResolvedContract
) -> dict[int, list[float]]:
    """identity -> the centre of a known cluster per feature, in units, within the bounds.

    Parts of a cluster that are not confirmed yet belong to it: the heaviest one says where it lies.
    The same numbers as those of `clusters_of`, without the words, which take longer.
    """
    numbers = [number for number in lineage.of_number if number < len(view.centres)]
    by_mass = sorted(numbers, key=lambda number: float(view.centre_mass[number]))
    # The heaviest comes last and so replaces the others of its identity. A rebuild keeps the
    # identities of the snapshot before it, whose numbers may be larger, until it has read as far.
    heaviest = {lineage.of_number[number]: number for number in by_mass}
    centres = contract.bounds.shown(view.centres[list(heaviest.values())])
    return {
        identity: [
            within(value, feature) for value, feature in zip(centre, contract.features, strict=True)
        ]
        for identity, centre in zip(heaviest, centres.tolist(), strict=True)
    }


def _nodes_of(view: ClusteringView, lineage: Lineage) -> Counter[int]:
    """identity -> nodes that belong to it."""
    members = np.bincount(view.cluster[view.cluster >= 0], minlength=len(view.centres))
    nodes: Counter[int] = Counter()
    for number, identity in lineage.of_number.items():
        # A rebuild keeps the identities of the snapshot before it, whose numbers may be larger,
        # until it has read as far.
        if number < len(members):
            nodes[identity] += int(members[number])
    return nodes


def _single_nodes(view: ClusteringView, lineage: Lineage) -> int:
    """Nodes that no edge joins to a known cluster; 0 of an algorithm that joins none."""
    if not view.joins_nodes:
        return 0
    members = np.bincount(view.cluster[view.cluster >= 0], minlength=len(view.centres))
    single = set(np.flatnonzero(members == 1).tolist())
    return len(single - set(lineage.of_number))


def _trend(shares: Iterable[float | None]) -> list[int | None]:
    return [thousandths(share) for share in shares]


def thousandths(share: float | None) -> int | None:
    """A share from 0 to 1 in thousandths; None stays None."""
    return None if share is None else round(1000 * share)


def _parts(model: ModelStatus, contract: ResolvedContract) -> list[PartView]:
    """The parts of the only known cluster of a model."""
    if model.snapshot is None or len(model.lineage.known) != 1:
        return []
    parts = model.snapshot.cluster_parts
    if not parts:
        return []
    centres = contract.bounds.shown(np.array([part.centre for part in parts]))
    return [
        PartView(
            number=part.number,
            label=part.label,
            text=part.text,
            mass_share=round(part.share, 4),
            centre=centre,
        )
        for part, centre in zip(parts, centres.tolist(), strict=True)
    ]


def _states(states: StatesView | None, lineage: Lineage, reading_s: float | None) -> States | None:
    if states is None:
        return None
    return States(
        block=states.block,
        provisional=states.provisional,
        readings_needed=states.readings_needed,
        n_changes=states.n_changes,
        reading_s=reading_s,
        moves=moves_of(states, lineage),
    )


def moves_of(states: StatesView, lineage: Lineage) -> list[list[int]]:
    """[from, to, changes seen] of states by their identities; none of those that were never
    seen."""
    identity = lineage.of_number
    moves = []
    for before, after in np.argwhere(np.rint(states.changes) >= 1).tolist():
        if before != after and before in identity and after in identity:
            times = round(float(states.changes[before, after]))
            moves.append([identity[before], identity[after], times])
    return moves


def _most_from(recent: RecentHistory | None) -> MostFrom | None:
    if recent is None or recent.most_from is None:
        return None
    client, share = recent.most_from
    return MostFrom(client=client, percent=round(100 * share))


def _counted(counted: CountedReadings | None) -> Counted | None:
    if counted is None:
        return None
    return Counted(
        start=counted.start,
        end=counted.end,
        readings=counted.readings,
        unknown_share=round(counted.share(NO_CLUSTER), 4),
    )


def _usual(usual: Usual | None) -> UsualView | None:
    if usual is None:
        return None
    ranges = []
    for identity, (least, mean, most) in sorted(usual.ranges.items()):
        ends = (round(1000 * least), round(1000 * mean), round(1000 * most))
        ranges.append(UsualRange(identity=identity, range=ends))
    return UsualView(
        oldest=usual.oldest,
        newest=usual.newest,
        like_days=usual.like_days,
        weekend=usual.weekend,
        likeness=thousandths(usual.likeness),
        likeness_range=[round(1000 * likeness) for likeness in usual.likeness_range or ()],
        clusters=ranges,
        new=thousandths(usual.new),
        new_usual=thousandths(usual.new_usual),
    )


def feeds_of(by_client: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, list[list[int]]]:
    """Clusters that the readings of each client fell to, the largest first, with the percentage of
    each.

    `by_client` has shares, and the clients with the most readings first. Whole percents change less
    often than thousandths, and people are shown no more.
    """
    return {
        client: whole_percents(by_client[client])[:CLUSTERS_PER_CLIENT_MAX]
        for client in sorted(islice(by_client, FEEDS_CLIENTS_MAX))
    }


def whole_percents(shares: Sequence[tuple[int, float]]) -> list[list[int]]:
    """Shares by identity in whole percents that add up to that of their sum: the largest remainders
    are rounded up."""
    # By largest remainders: percents that are rounded one by one can add up to 99 or 101.
    exact: Floats = np.array([100.0 * share for _, share in shares])
    whole = np.floor(exact).astype(int)
    missing = round(float(exact.sum())) - int(whole.sum())
    # Stable: of equal remainders the first, so that the page does not flicker between two.
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return [
        [identity, percent] for (identity, _), percent in zip(shares, whole.tolist(), strict=True)
    ]
