"""The line protocol of InfluxDB: `measurement,tag=a field=1.5,other=2i 1700000000000000000`.

As InfluxDB's reference has it: commas, spaces and equal signs in names are escaped by a backslash,
texts are quoted, whole numbers end in i or u, and comments begin with #.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

PRECISIONS: Mapping[str, int] = {
    "ns": 1,
    "n": 1,
    "us": 10**3,
    "u": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
"""units of times, as the parameter `precision` of a write names them -> nanoseconds"""
_LINE = re.compile(
    r"(?P<series>(?:\\.|[^\\ ]|\\(?= ))+) +"
    r'(?P<fields>(?:"(?:\\.|[^"\\])*"|\\.|[^" ])+)(?: +(?P<time>-?\d{1,19}))? *',
    re.DOTALL,
)
_SERIES = re.compile(r"(?:\\.|[^\\,]|\\)+")
_TAG = re.compile(r"(?P<key>(?:\\.|[^\\=])+)=(?P<value>.+)", re.DOTALL)
_FIELD = re.compile(
    r'(?P<key>(?:\\.|[^\\=,])+)=(?P<value>"(?:\\.|[^"\\])*"|[^",]+)(?:,(?=.)|$)', re.DOTALL
)
_ESCAPED = re.compile(r"\\([,= ])")
_ESCAPED_IN_TEXT = re.compile(r'\\(["\\])')
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WHOLE = re.compile(r"(-?\d{1,20})[iu]")
_TRUTHS = {
    **dict.fromkeys(("t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("f", "F", "false", "False", "FALSE"), False),
}


class Point(NamedTuple):
    """One line."""

    measurement: str
    tags: Mapping[str, str]
    fields: Mapping[str, float | int | str | bool]
    time_ns: int | None
    """nanoseconds since 1970; None where the line has no time"""


def point_of(line: str, unit_ns: int = 1) -> Point | None:
    """The point of a line, whose time is in units of `unit_ns` nanoseconds; None for a line that is
    none."""
    parts = _LINE.fullmatch(line.strip("\r\n\t "))
    if parts is None:
        return None
    measurement, *pairs = _SERIES.findall(parts["series"])
    tags = {}
    for pair in pairs:
        tag = _TAG.fullmatch(pair)
        if tag is None:
            return None
        tags[_plain(tag["key"])] = _plain(tag["value"])
    fields = {}
    end = 0
    for field in _FIELD.finditer(parts["fields"]):
        value = _value_of(field["value"])
        if field.start() != end or value is None:
            return None
        fields[_plain(field["key"])] = value
        end = field.end()
    if not fields or end != len(parts["fields"]):
        return None
    time_ns = None if parts["time"] is None else int(parts["time"]) * unit_ns
    return Point(_plain(measurement), tags, fields, time_ns)


def is_comment(line: str) -> bool:
    """Whether a line has no point on purpose: an empty one, or a comment."""
    return not line.strip() or line.startswith("#")


def cells_of(point: Point) -> dict[str, Any]:
    """The tags and fields of a point by their names, fields also as `measurement.field`.

    A field counts before a tag of its name.
    """
    cells: dict[str, Any] = {"measurement": point.measurement, **point.tags, **point.fields}
    for name, value in point.fields.items():
        cells[f"{point.measurement}.{name}"] = value
    return cells


def _plain(name: str) -> str:
    return _ESCAPED.sub(r"\1", name)


def _value_of(text: str) -> float | int | str | bool | None:
    if text.startswith('"'):
        return _ESCAPED_IN_TEXT.sub(r"\1", text[1:-1])
    if text in _TRUTHS:
        return _TRUTHS[text]
    whole = _WHOLE.fullmatch(text)
    if whole is not None:
        return int(whole[1])
    return float(text) if _NUMBER.fullmatch(text) else None
