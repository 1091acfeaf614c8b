"""The report: everything that people and programs see of a federation, each field once.

`build` makes it from the newest status of the server. Page and API, metrics, terminal, pictures and
exports are views on it: they choose and round, and compute no number of their own. The JSON Schemas
of the API are made from these types, and the docstrings of the fields are its descriptions.

A *share* is a number from 0 to 1. Where a field is called `share`, it is of the readings that
clients have accepted and sent, each counted by the first snapshot that had learnt from it, or by
what the model has found since where it knows that, over the time that `Counted` names. Mass, which
an algorithm may cap, fade or add noise to, is never shown as a share of readings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar, dataclass_transform

from annotated_types import Ge, Le
from pydantic import ConfigDict, WithJsonSchema

from shoal.protocol.events import EVENT_KINDS

Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(0)]
Thousandths = Annotated[int, Ge(0)]
NumberOrNone = Annotated[
    int, WithJsonSchema({"type": "integer", "minimum": -1, "description": "-1: none"})
]
EventKindName = Annotated[str, WithJsonSchema({"type": "string", "enum": list(EVENT_KINDS)})]

_CONFIG: Final = ConfigDict(
    extra="forbid",
    use_attribute_docstrings=True,
    json_schema_serialization_defaults_required=True,
)
"""an object of a type has all its fields and no others, and their docstrings describe them in the
schema"""
Type = TypeVar("Type", bound=type)


@dataclass_transform(frozen_default=True)
def reported(cls: Type) -> Type:
    """Make a class a frozen dataclass of which pydantic makes JSON and its schema.

    pydantic only reads it: nothing is validated when the server itself makes one.
    """
    # Any: mypy follows neither an attribute that is set on a class, nor a decorator that is called.
    marked: Any = cls
    marked.__pydantic_config__ = _CONFIG
    make_dataclass: Any = dataclass(frozen=True)
    made: Type = make_dataclass(marked)
    return made


@reported
class FeatureView:
    """A feature of the contract, and how its values are shown."""

    name: str
    unit: str
    digits: Count
    """digits after the point that resolve a thousandth of the range between the bounds"""
    values: Sequence[str] | None = None
    """values of a category, in the order of their numbers from 0; null for other features"""
    period: float | None = None
    """period of a circular feature: after how much it begins again; null for other features"""


BoundSide = Literal["low", "high"]
"""a declared bound of a feature"""


@reported
class Interval:
    """The middle 80 % of the mass of a cluster in one feature, in its unit, within the bounds.

    That of a circular feature goes from `low` up to `high` around the circle, and may begin again
    at 0 on the way.
    """

    low: float
    """a tenth of the mass lies below"""
    middle: float
    """half of the mass lies below"""
    high: float
    """a tenth of the mass lies above"""
    beyond_bounds: bool = False
    """whether noise had put it, or part of it, outside the declared bounds"""


@reported
class Counted:
    """The readings that shares are of: all that clients have accepted and sent, as the history
    counts them."""

    start: int
    """start of the oldest day that the history has, seconds since 1970, by the times of readings"""
    end: int
    """end of the newest 5 minutes that it has"""
    readings: Count
    """readings in all, those that fell to no known cluster among them"""
    unknown_share: Share
    """part of them that fell to no known cluster of the first snapshot that had learnt from them:
    with the shares of the clusters, and of those that have ended, it makes 1"""


@reported
class Feed:
    """A client that feeds a cluster."""

    client: str
    share: Share
    """share of the newest readings of the cluster: of 12 bins of 5 minutes"""


@reported
class ShareByTime:
    """Shares of the readings of the history's newest four weeks, by the server's own time zone, in
    whole percents, .001 for less than half of one; null where there were none at such a time."""

    day: Share | None
    """share of those from 6 to 18 o'clock on Mondays to Fridays"""
    night: Share | None
    """share of those before 6 and from 22 o'clock on, on these days"""
    weekend: Share | None
    """share of those on Saturdays and Sundays"""


@reported
class Cluster:
    """A known cluster."""

    identity: Count
    """the same in every snapshot"""
    name: str
    """name that people have given it; empty for none"""
    label: str
    """what sets it apart, such as "Light high"; empty while the snapshot has no node of it"""
    text: str
    """the same in a sentence, in the units of the contract"""
    active: bool
    """whether readings fall to it at present"""
    confirmed: bool
    """whether an operator has confirmed it as normal: it raises no alerts"""
    muted_until: float
    """time until which it raises no alerts, seconds since 1970"""
    share: Share | None
    """part of the readings counted (`Counted`) that fell to it, by the first snapshot that had
    learnt from them; of density_tree and fcac with those that came before the cluster was found.
    Null where no history is kept"""
    now_share: Share | None
    """part of the readings of the newest hour of the history, by their times, that fell to it;
    null where no history is kept"""
    share_by_time: ShareByTime | None
    """part of the readings by day, at night and at weekends that fell to it; null before the
    history has three working days and a weekend"""
    recent_share: Share
    """part of the recent readings of all clusters; a reading counts less the more came after it.
    Each step of the model adds the shares of what it learnt, which fade to 1/e in 2,000 readings.
    An algorithm that counts recent readings itself gives the shares of those: of the newest 500 or
    so (cluster_tree, fcac) or 4,000 (density_tree), however many a step has learnt"""
    dwell: float | None
    """mean dwell of a cluster that is a state: readings of a client that fall to it one after the
    other, on average; null for others and while there is one"""
    since: float
    """time at which it was first seen, seconds since 1970"""
    since_reading: Count
    """readings that the model had learnt then"""
    parent: int | None
    """the cluster that its nodes were part of before; null for none"""
    slot: Count
    """number of its colour, which no other known cluster of the model has"""
    nodes: Count
    """nodes of the newest snapshot that belong to it"""
    centre: Sequence[float] | None
    """per feature, in units, within the bounds; null while the newest snapshot has no node of it"""
    spread: Sequence[Interval] | None
    """per feature; null as `centre`, and on the page for all but the 12 heaviest clusters"""
    at_bounds: Mapping[str, BoundSide] = field(default_factory=dict)
    """feature -> the declared bound at which all of the spread lies: what is beyond a bound counts
    as it, so the true values are at most that of a low bound, and at least that of a high one"""
    trend: Sequence[Thousandths | None] = ()
    """thousandths of the readings of each step of time that fell to it, the newest step last; null
    where there were no readings at all"""
    trend_text: str = ""
    """the movement of the trend in words; empty where it is not known"""
    fed_by: Sequence[Feed] = ()
    """the clients from which its readings of the last hour of readings came, the largest first, at
    most 10; shares are of these readings"""
    fed_by_text: str = ""
    """the same in words"""


@reported
class PartView:
    """A part of the only cluster of a model, for orientation: it is no cluster."""

    number: Count
    label: str
    text: str
    mass_share: Share
    """part of the mass of the nodes"""
    centre: Sequence[float]
    """per feature, in units"""


@reported
class States:
    """What a model knows of states besides their places, of a model whose clusters they are."""

    block: Count
    """readings of the blocks by which they are told apart; 0 while there is one"""
    provisional: bool
    """whether too little was seen to rely on it"""
    readings_needed: Count
    """readings of all clients until states show in most streams; 0: not known"""
    n_changes: Count
    """changes from one state to another that were seen"""
    reading_s: float | None
    """seconds between two readings; null where they have no times"""
    moves: Sequence[Sequence[Count]]
    """[from, to, changes seen], by identities"""


@reported
class BesideState:
    """A state of another model."""

    identity: Count
    name: str
    label: str
    slot: Count
    dwell: float
    """the same as of a cluster"""
    trend: Sequence[Thousandths | None]
    """the same as of a cluster"""


@reported
class Beside:
    """The states that another model has found in the same readings."""

    model: str
    reading_s: float | None
    """seconds between two readings; null where they have no times"""
    start: int
    """start of the first step of the trends, seconds since 1970"""
    step_s: Count
    states: Sequence[BesideState]
    same: Mapping[str, float]
    """cluster -> dwell of the state that it is, where both part the readings alike; else empty"""


@reported
class Event:
    """An event of a known cluster, as people read it."""

    at: float
    """time at which it happened, seconds since 1970: of a cluster that is new that of its first
    readings, to the span of an update; else, and where that is not known, when it was found"""
    until: float | None
    """time of the last readings of a cluster that is new; null where they still came when it was
    found, and of other events"""
    found_at: float
    """time of the newest reading when it was found"""
    kind: EventKindName
    cluster: Count
    """its identity"""
    other: int | None
    """the cluster that it parted from or merged into"""
    text: str
    """the event as a sentence"""
    brief: bool = False
    """whether it is the begin or the end of a cluster that there was for less than a minute, which
    is no headline"""


@reported
class UsualRange:
    """Usual shares of one cluster at this time of day."""

    identity: Count
    range: tuple[Thousandths, Thousandths, Thousandths]
    """the smallest, the mean and the largest on earlier days of this kind, in thousandths of the
    readings of half an hour"""


@reported
class UsualView:
    """The readings now compared with this time of earlier days. Shares are in thousandths."""

    oldest: int
    """start of the oldest bin of the history, seconds since 1970"""
    newest: int
    """start of the newest bin of 5 minutes: what counts as now, also in a replay of the past"""
    like_days: Count
    """earlier days of the same kind that have readings of the same clients at this time of day"""
    weekend: bool
    """whether today is a Saturday or a Sunday"""
    likeness: Thousandths | None
    """part of the shares of clusters that is as on those days; null with too few of them"""
    likeness_range: Sequence[Thousandths]
    """the smallest and the largest likeness of one of those days to the mean of the others"""
    clusters: Sequence[UsualRange]
    new: Thousandths | None
    """the readings of the newest hour that fell to no known cluster"""
    new_usual: Thousandths | None
    """what half hours before it rarely exceeded"""


@reported
class CycleView:
    """A cycle of a feature over the day or the week that is hardly chance."""

    feature: str
    unit: str
    period: str
    profile: Sequence[float]
    """the mean of the feature in each phase"""
    spread: Sequence[float]
    """how far single days or weeks lie from it"""
    share: Share
    """part of the variance that the cycle explains"""
    periods: Count
    """days or weeks that were seen"""
    chance: Share
    """the chance of so large a cycle where there is none"""
    text: str


@reported
class Condition:
    """A condition of a rule: how high one feature is."""

    feature: str
    unit: str
    word: str
    """such as "high\""""
    centre: float
    width: float


@reported
class Consequent:
    """What a rule predicts: a constant and a coefficient for each feature."""

    constant: float
    coefficients: Mapping[str, float]


@reported
class PredictionRule:
    """A rule by which a model predicts a feature."""

    cluster: Count
    """number in this snapshot"""
    identity: int | None
    """identity of the known cluster that it is shown as"""
    rows_share: Share
    """part of the rows behind the newest answers that it has"""
    text: str
    """the rule as a sentence"""
    conditions: Sequence[Condition] = ()
    """per feature; none on the page, which shows the sentence"""
    consequent: Consequent | None = None
    """null on the page"""


@reported
class Target:
    """The feature that a model predicts."""

    name: str
    unit: str


@reported
class Rules:
    """The rules by which a model predicts a feature, that with most rows first."""

    federation: str
    model: str
    version: Count
    made_at: float
    target: Target
    conditions_found: bool
    error: float | None
    """root of the mean squared error, in the unit of the target; null before it is known"""
    error_text: str
    """the same as it is written; empty before it is known"""
    total: Count
    """rules that there are"""
    rules: Sequence[PredictionRule]


@reported
class MostFrom:
    """The client of several that supplies most of the newest readings."""

    client: str
    percent: Count
    """share of the readings of the newest 12 bins of 5 minutes"""


@reported
class Unlike:
    """A client whose shares of clusters differ from those of all others at present."""

    client: str
    since: float
    """start of the first day (UTC) on which they did, seconds since 1970"""


@reported
class Clustering:
    """The newest snapshot of a model in the units of the contract, with its history."""

    model: str
    version: Count
    """version of the snapshot; 0 before the first"""
    features: Sequence[FeatureView]
    """those that centres and spreads have values of, in their order"""
    features_total: Count
    """features of the contract"""
    counted: Counted | None
    """the readings that the shares of the clusters are of; null where no history is kept"""
    trend_from: int | None
    """start of the first step of the trends, seconds since 1970; null where no history is kept"""
    trend_step_s: Count | None
    clusters: Sequence[Cluster]
    """the known clusters, the heaviest first"""
    single_nodes: Count
    """nodes beside them that no edge joins to a cluster"""
    events: Sequence[Event]
    """the newest last"""
    alarm: bool
    """whether the shares of clusters have been unusual for so long that an event said so"""
    unlike: Sequence[Unlike]
    """clients whose shares differ from those of all others more than usual, by their names"""
    usual: UsualView | None
    most_from: MostFrom | None
    feeds: Mapping[str, Sequence[Sequence[int]]]
    """client -> [identity, percent] of its newest readings: of 12 bins of 5 minutes"""
    cycles: Sequence[CycleView]
    parts: Sequence[PartView]
    states: States | None
    """null for clusters that are places"""
    beside: Beside | None
    rules: Rules | None
    """null for a model that predicts no feature"""


@reported
class RoundsView:
    """Progress of a model in rounds."""

    round: Count
    phase: str
    counted: Count
    """answers counted in the newest round that closed"""
    received: Count
    """answers to the open round so far"""
    shift: float | None
    """distance by which that round moved the model, in its own measure; null before the first"""
    expected: Count
    """clients that the open round asks and waits for, of those that have answered before"""


@reported
class Model:
    """One model of the contract."""

    name: str
    algorithm: str
    waiting_for: str
    """why there is no clustering yet, in plain words; empty when there is one"""
    state: str
    """what people must know of the model before they believe it; empty where nothing is"""
    version: Count
    """number of the newest snapshot; 0 before the first, as all sizes"""
    made_at: float | None
    """time at which the server made it, seconds since 1970"""
    newest_reading_at: float | None
    """time of the newest reading in it, seconds since 1970"""
    readings: Count
    """readings that the model has learnt since it began"""
    counts_places: bool
    """whether these are counted with rejected ones, which private counts hide"""
    updates: Count
    """updates that they came in"""
    nodes_total: Count
    clusters_total: Count
    """known clusters"""
    clusters_active: Count
    """known clusters to which readings fall at present"""
    clusters_published: Count
    """clusters of the snapshot, those that are not known yet among them"""
    history: Sequence[tuple[float, int]]
    """[time, known clusters] of the first snapshot and of each where the number changed"""
    rounds: RoundsView | None
    """null for a model without rounds"""
    clustering: Clustering | None
    """null before the first snapshot, and of models that were not asked for"""


@reported
class Client:
    """A client as the server knows it: from its updates alone."""

    client: str
    title: str
    """name that people are shown: the one its owner gave it (`[server.client_names]`), else
    `client`"""
    last_seen: float
    """time at which its newest update came, seconds since 1970, by the server's clock"""
    updates: Count
    """updates since its first start"""
    readings: Count
    """readings in these"""
    readings_per_s: float
    """over the last minute or so"""
    interval_s: float
    """seconds that usually pass at most between two of its updates"""
    inactive_after_s: Count
    """seconds without an update from which on it is inactive"""
    rejected: Count | None
    """readings that it has rejected or withheld since its first start; null if it does not say"""
    quarantined: Sequence[str]
    """models that absorb nothing of it"""


@reported
class RegionView:
    """A region below this federation."""

    path: str
    clients: Count
    """clients in it"""


@reported
class Federation:
    """The whole server at one instant."""

    federation: str
    contract: str
    """digest of the contract"""
    clients_note: str
    """remark about the table of clients; empty for none"""
    shoal: str
    """version of shoal"""
    started_at: float
    """seconds since 1970, as `now`"""
    ready: bool
    """whether every update that was in the log at the start has been read"""
    ended: bool
    """whether the source of all readings has ended, and they are learnt"""
    lag_records: Count | None
    """updates in the log that are not read yet; null on a page that reads no updates"""
    history_read: float
    """the share that is there of a history that is made again from the log, 0 to 1; below 1, what
    is of the history is left out"""
    models: Sequence[Model]
    """placed in the order of the contract"""
    clients: Sequence[Client]
    """keyed by name"""
    clients_total: Count
    """clients that any model knows"""
    regions: Sequence[RegionView]
    quarantined: Sequence[str]
    """clients that a model absorbs nothing of, those that are not listed among them"""
    rejected: Mapping[str, int]
    """reason -> messages rejected since the start"""
    privacy: Mapping[str, Any]
    """the privacy panel"""
