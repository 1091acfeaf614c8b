"""The text of a small federation file: what a test does not name is that of a plant with two
features, without noise, and one fcac model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Section = Mapping[str, Any]

WARM: Final = {"name": "warm", "low": -10, "high": 50}
DAMP: Final = {"name": "damp", "low": 0, "high": 100}
WITHOUT_NOISE: Final = {"mode": "off"}
CLUSTERS: Final = {"name": "clusters", "algorithm": "fcac"}


def federation_text(
    name: str = "plant",
    *,
    features: Sequence[Section] = (WARM, DAMP),
    privacy: Section = WITHOUT_NOISE,
    models: Sequence[Section] = (CLUSTERS,),
    **sections: Section,
) -> str:
    """TOML text of the contract, and of further `sections` of processes in the order given, such as
    `log={"address": "sqlite:federation.db"}`. A line is `key = value`, so that tests can replace
    one."""
    parts = [_table("[federation]", {"name": name})]
    for feature in features:
        parts.append(_table("[[features]]", feature))
    parts.append(_table("[privacy]", privacy))
    for model in models:
        parts.append(_table("[[models]]", model))
    for title, section in sections.items():
        parts.append(_table(f"[{title}]", section))
    return "".join(parts)


def _table(heading: str, entries: Section) -> str:
    lines = [f"{key} = {_value(value)}\n" for key, value in entries.items()]
    return f"{heading}\n{''.join(lines)}"


def _value(value: Any) -> str:
    """A value in TOML. Its texts, numbers and lists of them are written as in JSON; tables within a
    table are not."""
    if isinstance(value, Mapping):
        pairs = [f"{json.dumps(key)} = {_value(inner)}" for key, inner in value.items()]
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(inner) for inner in value)}]"
    return json.dumps(value, ensure_ascii=False)
