"""Alert rules: which cluster events are forwarded, and under which name. A TOML file of `[[rule]]` tables."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, field_validator

from shoal.config.base import Settings, parse_table
from shoal.errors import SettingsError
from shoal.protocol.cluster_events import EVENT_KINDS, ClusterEventMessage


class Rule(Settings):
    """One rule. An event matches when it meets every condition that the rule gives."""

    name: str = Field(min_length=1, max_length=100, description="what the alert is called")
    events: list[str] = Field(default_factory=list, description=f"kinds of event: {', '.join(EVENT_KINDS)}; none: all")
    model: str = Field(default="", description="only of this model")
    cluster: str = Field(default="", description="only of the cluster with this name or identity")
    share_min: float = Field(default=0.0, ge=0, le=1, description="only with at least this share of recent readings")
    share_max: float = Field(default=1.0, ge=0, le=1, description="only with at most this share of recent readings")

    @field_validator("events")
    @classmethod
    def _known(cls, events: list[str]) -> list[str]:
        if unknown := sorted(set(events) - set(EVENT_KINDS)):
            raise ValueError(f"no event {unknown[0]!r}; there are {', '.join(EVENT_KINDS)}")
        return events

    def matches(self, event: ClusterEventMessage) -> bool:
        """Whether the event meets every condition."""
        return (
            (not self.events or event.kind in self.events)
            and self.model in ("", event.model)
            and self.cluster in ("", event.name, str(event.cluster))
            and self.share_min <= event.share <= self.share_max
        )


class Rules(Settings):
    """A whole file of rules."""

    rule: list[Rule] = Field(default_factory=list)


EVERYTHING = Rule(name="cluster event")
"""the rule without a file: every event is forwarded"""


def load_rules(path: Path | None) -> Sequence[Rule]:
    """The rules of a file; without one, `EVERYTHING`. Raises `SettingsError`, naming the place of the mistake."""
    if path is None:
        return (EVERYTHING,)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        raise SettingsError(f"{path}: rules cannot be read: {wrong}") from None
    rules = parse_table(Rules, tables, str(path)).rule
    if not rules:
        raise SettingsError(f"{path}: no [[rule]] in it; remove the setting to forward every event")
    return rules
