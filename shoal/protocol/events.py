"""Events for other programs, as JSON: of clusters, for the federation, and of a site.

Cluster events tell what became of a known cluster, in the topic `<federation>.events`. They are
made from snapshots alone, so they reveal nothing that was not published. The schema is in
docs/reference/cluster-events.md.

Site events tell what a client finds in its own readings, in the topic `events` of its own log. They
are made from readings without noise, so they stay on the client's site, in its own log and with the
sinks that its own federation file names; only a client that publishes its labels publishes those of
states with them. They name features, sides and usual values of clusters, and no value of a
reading.

All are delivered at least once: a reader that must act once keeps the `id` of the events that it
has seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

from shoal.config.base import DAY_S
from shoal.config.limits import EVENT_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.protocol.checks import is_count, is_moment, is_name, is_number, is_text, require
from shoal.protocol.messages import envelope_headers
from shoal.text import counted
from shoal.transports.base import Headers

EVENT_KINDS: Final = (
    "birth",
    "parted",
    "merged",
    "quiet",
    "returned",
    "gone",
    "share_moved",
    "dwell_moved",
    "named",
    "confirmed",
    "muted",
    "unmuted",
    "unusual",
    "usual_again",
    "unlike_others",
    "like_others_again",
)
TEXT_CHARACTERS_MAX: Final = 1000
SCHEMA: Final = 1
HOUR_S: Final = 3600.0

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def duration(seconds: float) -> str:
    """A length of time in words: seconds, minutes, hours or days."""
    if seconds < 90:
        return counted(max(1, round(seconds)), "second")
    if seconds < HOUR_S:
        return counted(round(seconds / 60), "minute")
    # In hours up to two days: a day and a half would be "2 days".
    if seconds < 2 * DAY_S:
        return counted(round(seconds / HOUR_S), "hour")
    return counted(round(seconds / DAY_S), "day")


class JsonEvent:
    """Base of events that other programs read: a dataclass as JSON, with a version of the
    schema."""

    TYPE: ClassVar[str]

    def encode(self) -> bytes:
        """The value of the record, UTF-8."""
        table: dict[str, Any] = {"schema": SCHEMA}
        for event_field in fields(cast("DataclassInstance", self)):
            table[event_field.name] = getattr(self, event_field.name)
        # NaN is no JSON, and programs in other languages would fail at it: it fails here.
        return json.dumps(table, ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def headers(cls) -> Headers:
        """The headers of the record."""
        return envelope_headers(cls.TYPE)

    @classmethod
    def decode(cls, value: bytes | None) -> Self:
        """The event in a record. Fields that this version does not know are ignored.

        Raises `MessageRejected`.
        """
        if not value:
            raise MessageRejected("malformed", "an event has 1 to 65536 bytes")
        if len(value) > EVENT_BYTES_MAX:
            raise MessageRejected("oversized", "an event has 1 to 65536 bytes")
        try:
            table = json.loads(value)
        # Nested a thousand times, JSON of a few bytes ends the recursion of the parser.
        except (ValueError, RecursionError):
            raise MessageRejected("malformed", "not JSON") from None
        if not isinstance(table, dict) or table.get("schema") != SCHEMA:
            raise MessageRejected("version", f"not an event of schema {SCHEMA}")
        names = [event_field.name for event_field in fields(cast("type[DataclassInstance]", cls))]
        known = {name: table[name] for name in names if name in table}
        try:
            return cls(**known)
        except TypeError:
            raise MessageRejected("malformed", "fields are missing, or of other types") from None


@dataclass(frozen=True)
class ClusterEventMessage(JsonEvent):
    """One event of a cluster.

    A message that cannot be true cannot be built: raises `MessageRejected` ("malformed").
    """

    TYPE: ClassVar[str] = "cluster_event"

    id: str
    """`MODEL/VERSION/PLACE`: the same whenever the event is published again"""
    kind: str
    """one of `EVENT_KINDS`"""
    federation: str
    model: str
    version: int
    """version of the snapshot that it was found in"""
    readings: int
    """learnt by the model so far"""
    at: float
    """time at which that snapshot was made, seconds since 1970"""
    cluster: int
    """lasting identity of the cluster"""
    name: str = ""
    """the name that people gave it; empty without one"""
    label: str = ""
    """features that set it apart, such as "Light high" """
    text: str = ""
    """the whole event as a sentence"""
    other: int | None = None
    """the cluster that it parted from or merged into"""
    other_name: str = ""
    muted: bool = False
    """whether the cluster raises no alerts: it is confirmed as normal, or muted for a time"""
    share: float = 0.0
    """share of the recent readings of the model, 0 to 1"""
    share_before: float | None = None
    dwell: float | None = None
    """mean dwell in a state, in readings of a client, of an event that is of it"""
    dwell_before: float | None = None
    centre: Mapping[str, float | str] | None = None
    """feature -> value in its unit, of a category its name; None where the cluster has none any
    more"""
    units: Mapping[str, str] | None = None
    """feature -> unit"""
    known: int = 0
    """known clusters of the model after the event"""
    active: int = 0
    """those of them to which readings fall at present"""
    reading_at: float | None = None
    """time of the newest reading in that snapshot, seconds since 1970; when it was made where
    readings have no times"""
    client: str = ""
    """the client, of `unlike_others` and `like_others_again`; of `birth`, `parted` and `returned`
    the one of several from which nearly all readings of the cluster come; else empty"""
    first_reading_at: float | None = None
    """time of the first readings of a cluster that is new, to the span of an update, seconds since
    1970; None where it is not known, and of other events"""
    last_reading_at: float | None = None
    """time of the last ones; None where readings still came when it was found"""

    @property
    def found_at(self) -> float:
        """Time of the newest reading when it was found, seconds since 1970."""
        return self.at if self.reading_at is None else self.reading_at

    @property
    def happened_at(self) -> float:
        """Time at which it happened: of the first readings of a cluster that is new, else when it
        was found."""
        return self.found_at if self.first_reading_at is None else self.first_reading_at

    def __post_init__(self) -> None:
        require(self.kind in EVENT_KINDS, "malformed", "kind")
        for name in ("federation", "model"):
            require(is_name(getattr(self, name)), "malformed", name)
        for name in ("version", "readings", "cluster", "known", "active"):
            require(is_count(getattr(self, name)), "malformed", name)
        require(self.other is None or is_count(self.other), "malformed", "other")
        require(is_moment(self.at), "malformed", "at")
        for name in ("reading_at", "first_reading_at", "last_reading_at"):
            moment = getattr(self, name)
            require(moment is None or is_moment(moment), "malformed", name)
        require(isinstance(self.muted, bool), "malformed", "muted")
        for name in ("id", "name", "label", "text", "other_name", "client"):
            value = getattr(self, name)
            require(isinstance(value, str) and len(value) <= TEXT_CHARACTERS_MAX, "malformed", name)
        require(_is_share(self.share), "malformed", "share")
        require(
            self.share_before is None or _is_share(self.share_before), "malformed", "share_before"
        )
        for dwell in (self.dwell, self.dwell_before):
            require(dwell is None or (is_number(dwell) and dwell > 0), "malformed", "dwell")
        require(_is_mapping(self.centre, (int, float, str)), "malformed", "centre")
        require(_is_mapping(self.units, (str,)), "malformed", "units")


def _is_share(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= 1
        and math.isfinite(value)
    )


def _is_mapping(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether this maps names to values of these kinds, or is None."""
    if value is None:
        return True
    if not isinstance(value, Mapping):
        return False
    for name, entry in value.items():
        # To Python a truth value is a number.
        if not isinstance(name, str) or not isinstance(entry, kinds) or isinstance(entry, bool):
            return False
        if isinstance(entry, str) and not is_text(entry):
            return False
    return True


FEATURE_EVENT_KINDS: Final = ("stuck", "stuck_ended", "drift", "level_shift")
"""kinds of site events that are of one feature"""
SENSOR_EVENT_KINDS: Final = ("stuck", "stuck_ended")
"""those that no model has a part in"""
SITE_EVENT_KINDS: Final = (
    "novel_streak",
    "novel_streak_ended",
    "new_here",
    "state_changed",
    "unseen_change",
    "unusual_dwell",
    "usual_elsewhere",
    *FEATURE_EVENT_KINDS,
)


@dataclass(frozen=True)
class SiteEvent(JsonEvent):
    """One event of a site.

    A message that cannot be true cannot be built: raises `MessageRejected` ("malformed").
    """

    TYPE: ClassVar[str] = "site_event"
    share: ClassVar[float] = 0.0
    """a rule on shares of recent readings is for cluster events"""
    muted: ClassVar[bool] = False

    id: str
    """`MODEL/PARTITION/OFFSET/KIND` of the reading at which it was found; of an event of a feature
    with `/FEATURE`, its place in the contract"""
    kind: str
    """one of `SITE_EVENT_KINDS`"""
    federation: str
    client: str
    model: str
    """empty for `SENSOR_EVENT_KINDS`"""
    version: int
    """version of the newest snapshot; 0 without a model"""
    readings: int
    """novel readings of the streak, readings in a row of a cluster that is new here, readings of
    the dwell in a state, readings with the repeated value, or those from which a drift was found,
    so far"""
    at: float | None
    """event time of the reading at which it was found, seconds since 1970; None without one"""
    cluster: int | None = None
    """lasting identity of the cluster that the readings were compared with, or the state that they
    are of"""
    name: str = ""
    """the name that people gave it; empty without one"""
    other: int | None = None
    """the state before a change, or in which the readings are usual"""
    outside: dict[str, str] | None = None
    """feature -> "above" or "below" its usual values in that cluster, the most frequent first;
    empty: no single one"""
    text: str = ""
    """the whole event as a sentence"""
    feature: str = ""
    """the feature that is stuck or drifts; empty for other kinds"""

    def __post_init__(self) -> None:
        require(self.kind in SITE_EVENT_KINDS, "malformed", "kind")
        for name in ("federation", "client"):
            require(is_name(getattr(self, name)), "malformed", name)
        if self.kind in SENSOR_EVENT_KINDS:
            require(self.model == "" and self.version == 0, "malformed", "model")
        else:
            require(is_name(self.model), "malformed", "model")
        is_of_feature = self.kind in FEATURE_EVENT_KINDS
        require(is_text(self.feature), "malformed", "feature")
        require(bool(self.feature) == is_of_feature, "malformed", "feature")
        for name in ("version", "readings"):
            require(is_count(getattr(self, name)), "malformed", name)
        require(self.at is None or is_moment(self.at), "malformed", "at")
        for state in (self.cluster, self.other):
            require(state is None or is_count(state), "malformed", "cluster")
        require(is_text(self.id) and is_text(self.name), "malformed", "name")
        require(
            isinstance(self.text, str) and len(self.text) <= TEXT_CHARACTERS_MAX,
            "malformed",
            "text",
        )
        sides = self.outside
        require(
            sides is None
            or (isinstance(sides, dict) and set(sides.values()) <= {"above", "below"}),
            "malformed",
            "outside",
        )
