"""The table of all settings, made from their declarations; `docs/reference/settings.md` contains the same table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.config.contract import Feature, Model, Privacy, Rounds
from shoal.config.mqtt_settings import MqttSettings
from shoal.config.settings import ClientSettings, LogSettings, ReadingsSettings, ServerSettings
from shoal.config.transports import TRANSPORTS

_SIGNS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def settings_table() -> str:
    """Markdown: section, setting, default, range, meaning."""
    lines = ["| section | setting | default | range | meaning |", "|---|---|---|---|---|"]
    for section, form in _sections():
        for name, field in form.model_fields.items():
            cells = (section, f"`{name}`", _default(field), _range(field), field.description or "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Where settings are written, and their declarations. The keys of transports are in two sections."""
    yield "`[[features]]`", Feature
    yield "`[privacy]`", Privacy
    yield "`[[models]]`", Model
    yield "`[models.rounds]`", Rounds
    yield "`[log]`", LogSettings
    yield "`[readings]`", ReadingsSettings
    for name in TRANSPORTS.names():
        yield f"`[log]`, `[readings]` at `{name}:`", TRANSPORTS.load(name).settings
    yield "`[client]`", ClientSettings
    yield "`[server]`", ServerSettings
    yield "`[mqtt]`", MqttSettings


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ("", {}) or isinstance(value, BaseModel):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _range(field: FieldInfo) -> str:
    parts = []
    for limit in field.metadata:
        if isinstance(limit, MinLen | MaxLen):
            wanted = "at least" if isinstance(limit, MinLen) else "at most"
            parts.append(f"{wanted} {limit.min_length if isinstance(limit, MinLen) else limit.max_length} characters")
        elif type(limit) in _SIGNS:
            sign, name = _SIGNS[type(limit)]
            value = getattr(limit, name)
            short = f"{value:g}"
            parts.append(f"{sign} {short if float(short) == value else value}")
    return ", ".join(parts)
