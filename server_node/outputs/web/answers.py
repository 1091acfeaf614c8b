"""The bodies of the API besides the report: one type for each, of which the JSON Schema is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from annotated_types import MaxLen

from shoal.server_node.report.types import (
    Client,
    Count,
    EventKindName,
    NumberOrNone,
    Share,
    Thousandths,
    reported,
)

ROWS_MAX = 10_000


@reported
class Problem:
    """An error as in RFC 9457."""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    """what is wrong, and what to do"""
    waiting_for: str = ""
    """why there is no clustering yet; not there for other errors"""


@reported
class FeatureHistogram:
    """One feature of the contract: bins of equal width from `low` to `high`."""

    name: str
    unit: str
    digits: Count
    """digits after the point that resolve a thousandth of the range between the bounds"""
    values: Sequence[str] | None
    """values of a category, in the order of their numbers from 0; null for other features"""
    period: float | None
    """period of a circular feature: after how much it begins again; null for other features"""
    low: float
    high: float
    own: Sequence[Thousandths]
    """thousandths of the mass of the cluster in each bin"""
    others: Sequence[Thousandths]
    """thousandths of the mass of all other clusters in each bin"""


@reported
class Histograms:
    """Histograms of the nodes of a cluster in each feature; none where the newest snapshot has no
    node of it."""

    model: str
    identity: Count
    version: Count
    features: Sequence[FeatureHistogram]


@reported
class Predictions:
    """The clusters of posted readings, and of a model that predicts a feature its predictions."""

    model: str
    version: Count
    clusters: Sequence[NumberOrNone]
    """numbers in this version"""
    identities: Sequence[NumberOrNone]
    """the same over all versions"""
    target: str | None = None
    """name of the feature that a model predicts"""
    unit: str | None = None
    predictions: Sequence[float | None] | None = None
    """values of the target, in its unit"""


@reported
class Clients:
    """Some clients by name."""

    clients: Sequence[Client]
    total: Count
    """clients that the server knows"""
    next: str | None
    """value of `after` of the next request; null: these are the last"""


@reported
class ClusterEvent:
    """An event as in the events topic; see the reference of cluster events."""

    schema: Literal[1]
    id: str
    """the same whenever the event is published again"""
    kind: EventKindName
    federation: str
    model: str
    version: Count
    readings: Count
    at: float
    cluster: Count
    name: str
    label: str
    text: str
    other: int | None
    other_name: str
    muted: bool
    share: Share
    """part of the recent readings, as `recent_share` of a cluster"""
    share_before: Share | None
    dwell: float | None
    dwell_before: float | None
    centre: Mapping[str, float | str] | None
    """a text is the value of a category"""
    units: Mapping[str, str] | None
    known: Count
    active: Count
    reading_at: float | None
    client: str
    """the client, of an event that is of one; else empty"""
    first_reading_at: float | None
    """time of the first readings of a cluster that is new"""
    last_reading_at: float | None


@reported
class Events:
    """Cluster events from a place in their topic on."""

    events: Sequence[ClusterEvent]
    first: Count
    """the place of the oldest record that the log still has"""
    next: Count
    """value of `after` of the next request"""
    end: Count
    """the place behind the newest record"""


@reported
class PublishedLabel:
    """The label of one reading, as in the labels topic."""

    schema: Literal[1]
    federation: str
    client: str
    model: str
    time: float | None
    cluster: int | None
    name: str
    novelty: Share | None
    version: Count
    outside: Mapping[str, Literal["above", "below"]]


@reported
class Labels:
    """Published labels from a place in their topic on."""

    labels: Sequence[PublishedLabel]
    first: Count
    """the place of the oldest record that the log still has"""
    next: Count
    """value of `after` of the next request"""
    end: Count
    """the place behind the newest record"""


@reported
class ClusterColumn:
    """The readings of a cluster in each column; without an identity those of no known cluster."""

    identity: int | None
    name: str | None
    label: str | None
    readings: Sequence[Count]


@reported
class ClientColumn:
    """The readings of a client in each column."""

    client: str
    readings: Sequence[Count]


@reported
class History:
    """The readings of a model in columns of equal length."""

    model: str
    step_s: Count
    kept_s: Count
    """seconds for which bins of this length are kept"""
    starts: Sequence[int]
    """start of each column, seconds since 1970"""
    readings: Sequence[Count]
    """readings in each column"""
    clusters: Sequence[ClusterColumn]
    clients: Sequence[ClientColumn]
    """none where only clusters were asked for"""
    more_from: float | None
    """start of the next column, where there are more than fit into an answer"""


@reported
class Feeds:
    """Which clusters the readings of each client fell to in a span of time."""

    model: str
    start: float | None
    """seconds since 1970; null where the span has no readings"""
    end: float | None
    clients: Mapping[str, Sequence[Sequence[Count]]]
    """client -> [identity, percent], the largest first"""


@reported
class RequestedName:
    """A name that was requested."""

    model: str
    cluster: Count
    name: str


@reported
class RequestedAlerts:
    """What was requested of the alerts of a cluster."""

    model: str
    cluster: Count
    action: str
    until: float


@reported
class NewName:
    """A name for a cluster."""

    name: Annotated[str, MaxLen(60)]
    """one line; empty takes the name away"""


@reported
class NewAlerts:
    """What to do with the alerts of a cluster."""

    action: Literal["confirm", "mute", "alert"]
    until: float = 0.0
    """time until which a muted cluster raises no alerts, seconds since 1970"""


Value = float | str | bool | None
Rows = Annotated[
    Sequence[Sequence[Value] | Mapping[str, Value]],
    MaxLen(ROWS_MAX),
]


@reported
class Readings:
    """Readings in the units of the contract: lists of all features in its order, or objects of
    features by name. A category is one of its values; null and a missing value for the predicted
    feature, and where the contract says `missing = "learn"`."""

    rows: Rows
