"""The table of all settings, which `shoal check --settings` prints and the documentation has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.config.contract import Feature, Model, Privacy, Rounds
from shoal.config.extension_settings import TRANSPORTS, sink_sections, source_sections
from shoal.config.sections import (
    ClientSettings,
    EventSettings,
    ReplicaSettings,
    ServerSettings,
    UpstreamSettings,
)
from shoal.config.settings import HostSettings, LogSettings, ReadingsSettings
from shoal.privacy import load_mode, mode_names

_SIGNS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def settings_table() -> str:
    """Markdown: section, setting, default, range, meaning."""
    lines = ["| section | setting | default | range | meaning |", "|---|---|---|---|---|"]
    for section, form in declared_sections():
        for name, field in form.model_fields.items():
            meaning = _meaning(form, name, field)
            lines.append(_row(section, f"`{name}`", _default(field), _limits(field), meaning))
        if form is Privacy:
            lines += _terms_of_modes(section)
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _meaning(form: type[BaseModel], name: str, field: FieldInfo) -> str:
    meaning = field.description or ""
    if form is Privacy and name == "mode":
        modes = map(load_mode, mode_names())
        meaning += ": " + "; ".join(f"`{mode.name}`: {mode.summary}" for mode in modes)
    return meaning


def _terms_of_modes(section: str) -> Iterator[str]:
    """Settings that each installed privacy mode needs besides `mode`."""
    for mode in map(load_mode, mode_names()):
        for name, term in mode.terms.items():
            limits = f"> {term.above:g}, ≤ {term.at_most:g}"
            if term.default is None:
                default = "required"
            elif math.isinf(term.default):
                # A limit that is infinite limits nothing.
                default = "none"
            else:
                default = f"`{term.default:g}`"
            yield _row(f"{section} with `{mode.name}`", f"`{name}`", default, limits, term.meaning)


def declared_sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Sections in which settings are written, and their declarations. The keys of transports are in
    two sections."""
    yield "`[[features]]`", Feature
    yield "`[privacy]`", Privacy
    yield "`[[models]]`", Model
    yield "`[models.rounds]`", Rounds
    yield "`[log]`", LogSettings
    yield "`[readings]`", ReadingsSettings
    yield "`[host]`", HostSettings
    for name in TRANSPORTS.names():
        yield f"`[log]`, `[readings]`, `[host]` at `{name}:`", TRANSPORTS.load(name).settings
    yield "`[client]`", ClientSettings
    yield "`[server]`", ServerSettings
    yield "`[replica]`", ReplicaSettings
    yield "`[upstream]`", UpstreamSettings
    yield "`[events]`", EventSettings
    for name, form in (sink_sections() | source_sections()).items():
        yield f"`[{name}]`", form


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ("", {}, ()) or isinstance(value, BaseModel):
        return "none"
    if isinstance(value, bool):
        # As TOML writes it.
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def _limits(field: FieldInfo) -> str:
    parts = []
    unit = "entries" if get_origin(field.annotation) is tuple else "characters"
    for limit in field.metadata:
        if isinstance(limit, MinLen) and limit.min_length == 1:
            parts.append("not empty")
        elif isinstance(limit, MinLen):
            parts.append(f"at least {limit.min_length} {unit}")
        elif isinstance(limit, MaxLen):
            parts.append(f"at most {limit.max_length} {unit}")
        elif type(limit) in _SIGNS:
            sign, name = _SIGNS[type(limit)]
            parts.append(f"{sign} {_shortest(getattr(limit, name))}")
    return ", ".join(parts)


def _shortest(value: float) -> str:
    """A limit in its short form, where that is the same number: 1e+09, but 4294967294."""
    short = f"{value:g}"
    if float(short) == value:
        return short
    return str(value)
