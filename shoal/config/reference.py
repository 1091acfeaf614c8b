"""The table of all settings, made from where they are declared; `docs/reference/settings.md` holds the same one."""

from __future__ import annotations

from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.config.contract import Feature, Model, Privacy, Rounds
from shoal.config.mqtt_settings import MqttSettings
from shoal.config.settings import ClientSettings, LogSettings, ReadingsSettings, ServerSettings

SECTIONS: dict[str, type[BaseModel]] = {
    "[[features]]": Feature,
    "[privacy]": Privacy,
    "[[models]]": Model,
    "[models.rounds]": Rounds,
    "[log]": LogSettings,
    "[client]": ClientSettings,
    "[readings]": ReadingsSettings,
    "[server]": ServerSettings,
    "[mqtt]": MqttSettings,
}
_SIGNS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def settings_table() -> str:
    """Markdown: section, setting, default, range, meaning."""
    lines = ["| section | setting | default | range | meaning |", "|---|---|---|---|---|"]
    for section, form in SECTIONS.items():
        for name, field in form.model_fields.items():
            cells = (f"`{section}`", f"`{name}`", _default(field), _range(field), field.description or "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
