"""What is found in the history as programs get it, over HTTP and from the commands: changes between
two spans of time, and cycles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from shoal.server_node.history.anomalies import Anomalies, listed, unseen_changes
from shoal.server_node.history.changes import Changes
from shoal.server_node.history.cycles import Cycle
from shoal.server_node.report.types import Count, CycleView, Feed, Share, reported


@reported
class ComparedSpan:
    """One of two spans of time that are compared."""

    start: float
    end: float
    readings: Count
    """readings of known clusters"""
    bins: Count


@reported
class BegunCluster:
    """A cluster with readings in the later span only."""

    cluster: Count
    title: str
    kind: str
    other: str
    share: Share
    """share of the readings of known clusters in the later span"""
    clients: Sequence[Feed]


@reported
class EndedCluster:
    """A cluster with readings in the earlier span only."""

    cluster: Count
    title: str
    kind: str
    other: str
    share: Share
    """share of the readings of known clusters in the earlier span"""


@reported
class MovedFeature:
    """A feature of a cluster that has another mean, in its unit."""

    cluster: Count
    title: str
    feature: str
    unit: str
    before: float
    after: float
    by: float
    chance: Share
    values: Sequence[str] | None


@reported
class ClientPart:
    """A part of each client's readings in the difference of shares."""

    client: str
    share: float


@reported
class MovedShare:
    """A cluster with readings in both spans, and its share of those of known clusters."""

    cluster: Count
    title: str
    before: Share
    after: Share
    by: float
    chance: Share
    clients: Sequence[ClientPart]


@reported
class ChangesView:
    """Changes between two spans of time."""

    model: str
    before: ComparedSpan
    after: ComparedSpan
    bin_s: Count
    compared: Count
    """features and shares that were compared, for which chances are corrected"""
    chance: Share
    """what has moved is listed if its chance is below this"""
    new: Sequence[BegunCluster]
    gone: Sequence[EndedCluster]
    moved: Sequence[MovedFeature]
    share_moved: Sequence[MovedShare]


def changes_view(changes: Changes, chance: float) -> ChangesView:
    """Changes for programs; of what has moved that whose chance is below `chance`."""
    before, after, width = changes.spans
    spans = []
    for span, readings, bins in zip((before, after), changes.readings, changes.bins, strict=True):
        spans.append(ComparedSpan(start=span.first, end=span.end, readings=readings, bins=bins))
    new = []
    for begun in changes.new:
        feeds = [Feed(client=client, share=share) for client, share in begun.clients]
        new.append(BegunCluster(**vars(begun) | {"clients": feeds}))
    share_moved = []
    for moved in changes.shares:
        if moved.chance < chance:
            parts = [ClientPart(client=client, share=share) for client, share in moved.clients]
            share_moved.append(MovedShare(**vars(moved) | {"clients": parts}))
    return ChangesView(
        model=changes.model,
        before=spans[0],
        after=spans[1],
        bin_s=width,
        compared=changes.compared,
        chance=chance,
        new=new,
        gone=[EndedCluster(**vars(ended)) for ended in changes.gone],
        moved=[MovedFeature(**vars(moved)) for moved in changes.moved if moved.chance < chance],
        share_moved=share_moved,
    )


@reported
class EarlierSpan:
    """A span of time."""

    start: float
    end: float


@reported
class UnusualClient:
    """The number of readings of a client, or its share in one state."""

    client: str
    cluster: Count | None
    """null with an empty title: its number of readings; null with a title: no known cluster"""
    title: str
    observed: float
    """readings, or the part of the client's readings that fell to the state, 0 to 1"""
    expected: float | None
    earlier: Count
    """earlier spans that have the figure"""
    chance: Share


@reported
class UnusualFeature:
    """The mean of a feature within a state, in its unit."""

    feature: str
    unit: str
    cluster: Count
    title: str
    observed: float
    expected: float | None
    earlier: Count
    chance: Share


@reported
class UnusualState:
    """The share of a state in all readings."""

    cluster: Count | None
    title: str
    observed: Share
    expected: Share | None
    earlier: Count
    chance: Share


@reported
class UnusualHour:
    """A part of the span, and the state whose share was least likely in it."""

    start: float
    seconds: Count
    cluster: Count | None
    title: str
    observed: Share
    expected: Share | None
    earlier: Count
    chance: Share


@reported
class ApartView:
    """A state that is not compared with all of the earlier spans, as its readings were not told
    apart from those of others before it was found."""

    cluster: Count
    title: str
    since: float
    """time from which on they are told apart"""
    earlier: Count
    """earlier spans since then, with which it is compared; none where the span is before that"""


@reported
class UnseenView:
    """The smallest change of the state of a client that is seen."""

    client: str
    readings: Count
    """readings of the client, in the bins of six hours that the span touches"""
    least: Count
    """readings of these that must be counted in another state than usual to be listed; above
    `readings` where no change of them would be"""


@reported
class AnomaliesView:
    """What was unusual in a span, each list with the least likely first."""

    model: str
    start: float
    end: float
    wide_start: float
    """the bins of six hours that the span touches, of which states of clients and features are"""
    wide_end: float
    readings: Count
    earlier: Sequence[EarlierSpan]
    """the spans that it is compared with"""
    compared: Count
    """figures that were compared, for which chances are corrected"""
    chance: Share
    """listed is what has a chance below this"""
    has_clients: bool
    """whether the history has the states of each client"""
    clients: Sequence[UnusualClient]
    features: Sequence[UnusualFeature]
    states: Sequence[UnusualState]
    hours: Sequence[UnusualHour]
    apart: Sequence[ApartView]
    """states that are not compared with all of the earlier spans"""
    unseen: Sequence[UnseenView]
    """smallest changes that are seen, of each client, the largest first: less than that cannot be
    told from how much its earlier spans vary, with the noise of private counts"""


def anomalies_view(anomalies: Anomalies, chance: float) -> AnomaliesView:
    """Anomalies for programs, those whose chance is below `chance`."""
    earlier = [EarlierSpan(start=span.first, end=span.end) for span in anomalies.earlier]
    return AnomaliesView(
        model=anomalies.model,
        start=anomalies.span.first,
        end=anomalies.span.end,
        wide_start=anomalies.wide.first,
        wide_end=anomalies.wide.end,
        readings=anomalies.readings,
        earlier=earlier,
        compared=anomalies.compared,
        chance=chance,
        has_clients=anomalies.has_clients,
        clients=[UnusualClient(**vars(of)) for of in listed(anomalies.clients, chance)],
        features=[UnusualFeature(**vars(of)) for of in listed(anomalies.features, chance)],
        states=[UnusualState(**vars(of)) for of in listed(anomalies.states, chance)],
        hours=[UnusualHour(**vars(of)) for of in listed(anomalies.hours, chance)],
        apart=[ApartView(**vars(state)) for state in anomalies.apart],
        unseen=[UnseenView(**vars(of)) for of in unseen_changes(anomalies, chance)],
    )


@reported
class HiddenPeriod:
    """A period of which nothing can be known, as the readings of an update span more than a phase
    of it."""

    period: str
    update_s: Count
    """seconds that they span, as a rule"""


@reported
class CyclesView:
    """Cycles of each feature over the day and the week, whether they are certain or not."""

    model: str
    cycles: Sequence[CycleView]
    hidden: Sequence[HiddenPeriod]
    """periods that are not looked at"""


def cycles_view(model: str, cycles: Iterable[Cycle], hidden: Mapping[str, int]) -> CyclesView:
    """The cycles of a model for programs; `hidden` as in `hidden_periods`."""
    periods = [HiddenPeriod(period=period, update_s=span) for period, span in hidden.items()]
    views = [CycleView(**asdict(cycle), text=cycle.text()) for cycle in cycles]
    return CyclesView(model=model, cycles=views, hidden=periods)
