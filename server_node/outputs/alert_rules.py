"""Alert rules: which events are forwarded, and under what name.

A TOML file of `[[rule]]` tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import Field, field_validator

from shoal.config.base import Settings, parse_table, read_toml
from shoal.errors import SettingsError
from shoal.protocol.events import EVENT_KINDS, SITE_EVENT_KINDS, ClusterEventMessage, SiteEvent

Event = ClusterEventMessage | SiteEvent
ALL_KINDS: Final = (*EVENT_KINDS, *SITE_EVENT_KINDS)


class Rule(Settings):
    """One rule. An event matches when it meets every condition that the rule gives."""

    name: str = Field(min_length=1, max_length=100, description="what the alert is called")
    events: list[str] = Field(
        default_factory=list, description=f"kinds of event: {', '.join(ALL_KINDS)}; none: all"
    )
    model: str = Field(default="", description="only of this model")
    cluster: str = Field(default="", description="only of the cluster with this name or identity")
    share_min: float = Field(
        default=0.0, ge=0, le=1, description="only with at least this share of recent readings"
    )
    share_max: float = Field(
        default=1.0, ge=0, le=1, description="only with at most this share of recent readings"
    )
    muted: bool = Field(
        default=False, description="also of clusters that are confirmed as normal, or muted"
    )

    @field_validator("events")
    @classmethod
    def _known(cls, events: list[str]) -> list[str]:
        unknown = sorted(set(events) - set(ALL_KINDS))
        if unknown:
            raise ValueError(f"no event {unknown[0]!r}; there are {', '.join(ALL_KINDS)}")
        return events

    def matches(self, event: Event) -> bool:
        """Whether the event meets every condition."""
        return (
            (not self.events or event.kind in self.events)
            and self.model in ("", event.model)
            and self.cluster in ("", event.name, str(event.cluster))
            and self.share_min <= event.share <= self.share_max
            and (self.muted or not event.muted)
        )


class Rules(Settings):
    """A whole file of rules."""

    rule: list[Rule] = Field(default_factory=list)


EVERYTHING: Final = Rule(name="cluster event")
"""the rule without a file: every event is forwarded, but for those of clusters that raise no alerts
"""


def load_rules(path: Path | None) -> Sequence[Rule]:
    """The rules of a file; without one, `EVERYTHING`.

    Raises `SettingsError`, naming the place of the mistake.
    """
    if path is None:
        return (EVERYTHING,)
    rules = parse_table(Rules, read_toml(path), str(path)).rule
    # An empty file would forward nothing, silently, where somebody expects alerts.
    if not rules:
        raise SettingsError(f"{path}: no [[rule]] in it; remove the setting to forward every event")
    return rules
