"""Site events: what a client finds in its own readings, as JSON in the topic `events` of its own log.

They are made from readings without noise, so they stay on the client's site, in its own log and with the sinks that
its own federation file names; they are never in `<federation>.events`. They name features, sides and usual values of
clusters, and no value of a reading. They are delivered at least once: `id` is the same whenever one is written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from shoal.protocol.checks import is_count, is_moment, is_name, is_text, require
from shoal.protocol.cluster_events import TEXT_CHARACTERS_MAX, JsonEvent

SITE_EVENT_KINDS: Final = ("novel_streak", "novel_streak_ended")


@dataclass(frozen=True)
class SiteEvent(JsonEvent):
    """One event. A message that cannot be true cannot be built: raises `MessageRejected` ("malformed")."""

    TYPE: ClassVar[str] = "site_event"
    share: ClassVar[float] = 0.0
    """a rule on shares of recent readings is for cluster events"""
    muted: ClassVar[bool] = False

    id: str
    """`MODEL/PARTITION/OFFSET/KIND` of the reading at which it was found"""
    kind: str
    """one of `SITE_EVENT_KINDS`"""
    federation: str
    client: str
    model: str
    version: int
    """version of the newest snapshot"""
    readings: int
    """novel readings of the streak so far"""
    at: float | None
    """event time of the reading at which it was found, seconds since 1970; None without one"""
    cluster: int | None = None
    """lasting identity of the cluster that the readings were compared with"""
    name: str = ""
    """the name that people gave it; empty without one"""
    outside: dict[str, str] | None = None
    """feature -> "above" or "below" its usual values in that cluster, the most frequent first; empty: no single one"""
    text: str = ""
    """the whole event as a sentence"""

    def __post_init__(self) -> None:
        require(self.kind in SITE_EVENT_KINDS, "malformed", "kind")
        for name in ("federation", "client", "model"):
            require(is_name(getattr(self, name)), "malformed", name)
        for name in ("version", "readings"):
            require(is_count(getattr(self, name)), "malformed", name)
        require(self.at is None or is_moment(self.at), "malformed", "at")
        require(self.cluster is None or is_count(self.cluster), "malformed", "cluster")
        require(is_text(self.id) and is_text(self.name), "malformed", "name")
        require(isinstance(self.text, str) and len(self.text) <= TEXT_CHARACTERS_MAX, "malformed", "text")
        sides = self.outside
        require(
            sides is None or (isinstance(sides, dict) and set(sides.values()) <= {"above", "below"}),
            "malformed",
            "outside",
        )
