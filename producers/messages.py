"""Messages of sensors: JSON objects, or plain numbers, as values of features."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.producers.files.parsing import number_of, text_of, user_of
from shoal.producers.files.times import ORDERS, TimeOptions, TimeReader
from shoal.producers.quality import bad_quality_of
from shoal.producers.values import NoValues
from shoal.protocol.reading_faults import is_missing
from shoal.protocol.readings import Codes
from shoal.telemetry.events import log_event

TIMEZONE_MEANS: Final = (
    "zone of times that name none, as Europe/Berlin or UTC-05:00, where a message has a time; none:"
    " UTC"
)
DATE_FORMAT_MEANS: Final = (
    f"{', '.join(ORDERS)}, or strptime's codes, where a message has a time; none: ISO 8601, epochs"
    " and dates that can be read in one way"
)
PATH = re.compile(r'("[^"]+"|[^".]+)(\.("[^"]+"|[^".]+))*')
"""a field of a JSON object: `a.b` is b in a; a name with a point is quoted, `a."b.c"`"""
_PART = re.compile(r'"([^"]+)"|([^".]+)')
# A sensor that sends only faults must not write a line for each of them.
REPORT_EVERY_S = 10.0
SCHEMA_HEADER = b"\x00"
SCHEMA_HEADER_BYTES = 5
"""a zero byte and the number of the schema, which stand before a message where producers keep its
form in a schema registry (wire format of Confluent); JSON cannot begin with a zero byte"""


class MessageSettings(Protocol):
    """The settings that messages are read by."""

    @property
    def time(self) -> str: ...

    @property
    def user_id(self) -> str: ...

    @property
    def client_field(self) -> str:
        """Field with the client that a message is from; empty for none."""
        ...

    @property
    def timezone(self) -> str: ...

    @property
    def date_format(self) -> str: ...

    @property
    def na_values(self) -> tuple[str, ...]: ...

    @property
    def bad_quality(self) -> tuple[str, ...]: ...

    @property
    def ahead_s(self) -> float: ...

    @property
    def payload_bytes_max(self) -> int: ...


class SensorValues(NamedTuple):
    """The values in one message: of some features, all of one time."""

    time: float
    """event time, seconds since 1970"""
    values: Mapping[int, float]
    """index of a feature in the contract -> its value; at least one"""


class TopicField(NamedTuple):
    """The place of one feature in the messages of a topic."""

    feature: int
    """index of the feature in the contract"""
    field: str
    """JSON field that holds it; empty where the message is the number"""
    codes: Codes | None = None
    """its values, where it is a category"""
    quality: str = ""
    """JSON field that says how good it is; empty for none"""
    na_values: tuple[str, ...] = ()
    """what means "no value" for this feature alone"""


class ParsedPayload(NamedTuple):
    """The usable values of one message, and the reasons of the others."""

    values: SensorValues | None
    """usable values; None when there are none"""
    faults: Sequence[str]
    """reason, one of `FAULTS`, for each value that cannot be used, or for the whole message"""
    user: str | None = None
    """user id; None without one"""
    client: str = ""
    """name by which the message calls its client; empty without a name"""


DecodeMessage = Callable[[bytes], tuple[Any, str]]
"""a message in the form of a schema registry -> its fields, and why it has none ("": it has)"""


def parse_payload(
    payload: bytes,
    wanted: Sequence[TopicField],
    settings: MessageSettings,
    now: float,
    decode: DecodeMessage | None = None,
) -> ParsedPayload:
    """The values of a message that arrived at `now`, in seconds since 1970.

    `decode` reads messages in the form of a schema registry; without it they are a fault. Raises
    nothing but what `decode` raises.
    """
    no_values = _no_values(settings.na_values)
    fields, fault = _fields_of(payload, settings, decode)
    if not wanted[0].field and type(fields) is str:
        return _parsed(now, dict.fromkeys(wanted, fields.strip()), no_values)
    if type(fields) is str:
        fields = _object_of(fields)
    if not fault and not isinstance(fields, dict):
        fault = "not_json"
    if fault:
        return ParsedPayload(None, [fault])
    time: float | None = now
    if settings.time:
        read = time_reader_of(settings.timezone, settings.date_format)
        time = read([field_at(fields, settings.time)])
    if time is None or time > now + settings.ahead_s:
        return ParsedPayload(None, ["timeless" if time is None else "ahead"])
    cells = {field: field_at(fields, field.field) for field in wanted}
    parsed = _parsed(time, cells, no_values, _bad_fields(wanted, fields, settings))
    if settings.user_id:
        parsed = parsed._replace(user=user_of(field_at(fields, settings.user_id)))
    if settings.client_field:
        parsed = parsed._replace(client=text_of(field_at(fields, settings.client_field)))
    return parsed


def _fields_of(
    payload: bytes, settings: MessageSettings, decode: DecodeMessage | None
) -> tuple[Any, str]:
    """What a message has: fields where a schema tells them, else its text; and why it has
    nothing."""
    if decode is None or not has_schema_header(payload):
        text, fault = _text_of(payload, settings.payload_bytes_max)
        return (None if fault else text), fault
    if len(payload) > settings.payload_bytes_max:
        return None, "oversized"
    return decode(payload)


def _object_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # Nested a thousand times, JSON of a few bytes ends the recursion of the parser.
        return None


def _text_of(payload: bytes, bytes_max: int) -> tuple[str, str]:
    """The text of a message, and why it has none; "" for no fault."""
    if len(payload) > bytes_max:
        return "", "oversized"
    if has_schema_header(payload):
        return "", "of_a_schema"
    try:
        # Some programs begin a text with a byte order mark.
        return payload.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        return "", "not_text"


def has_schema_header(payload: bytes) -> bool:
    """Whether a message is in the form that a schema registry keeps: Avro, Protobuf or JSON."""
    return len(payload) > SCHEMA_HEADER_BYTES and payload.startswith(SCHEMA_HEADER)


def _bad_fields(
    wanted: Sequence[TopicField], fields: Mapping[str, Any], settings: MessageSettings
) -> list[TopicField]:
    """Those whose values are of bad quality, as their message says."""
    bad = []
    for field in wanted:
        if not field.quality:
            continue
        rules = bad_quality_of(settings.bad_quality)
        if rules.is_bad(field_at(fields, field.quality)):
            bad.append(field)
    return bad


@cache
def time_reader_of(timezone: str, date_format: str) -> TimeReader:
    """The reader of the times in messages, by two settings. Raises `SettingsError`."""
    options = TimeOptions(date_format or None, timezone or None)
    order = options.date_format if options.date_format in ORDERS else None
    if order is None and date_format and "%" not in date_format:
        raise SettingsError(
            f"date_format = {date_format!r}: write {', '.join(ORDERS)}, or codes such as"
            " %d.%m.%Y %H:%M"
        )
    # Messages of several clients, and late ones, come in no order of their times.
    return TimeReader(options, order, in_order=False)


@cache
def _no_values(written: tuple[str, ...]) -> NoValues:
    return NoValues(written)


def _parsed(
    time: float,
    cells: Mapping[TopicField, Any],
    no_values: NoValues,
    bad: Collection[TopicField] = (),
) -> ParsedPayload:
    """The values in the cells; those of the fields in `bad` are of bad quality."""
    values: dict[int, float] = {}
    faults: list[str] = []
    for field, cell in cells.items():
        number = number_of(cell)
        value = number if field.codes is None else field.codes.place(number)
        is_declared = field.codes is not None and value is not None
        # A word may be a declared value of a category.
        is_none = not is_declared and no_values.is_none(number, field.feature)
        if field.na_values and not is_declared:
            is_none = is_none or _no_values(field.na_values).is_none(number, field.feature)
        if is_none or is_missing(number):
            faults.append("missing")
        elif field in bad:
            faults.append("bad_quality")
        elif isinstance(value, float) and math.isfinite(value):
            values[field.feature] = value
        elif value is None:
            faults.append("undeclared")
        elif isinstance(value, float) and math.isinf(value):
            faults.append("infinite")
        else:
            faults.append("not_a_number")
    if not values:
        return ParsedPayload(None, faults)
    return ParsedPayload(SensorValues(time, values), faults)


def values_with_gaps(values: Mapping[int, float], width: int) -> Floats:
    """The values of features by position -> (d,) values, NaN where there is none."""
    return np.array([values.get(feature, math.nan) for feature in range(width)])


def field_at(fields: Mapping[str, Any], path: str) -> Any:
    """The field of that name, or, for `a.b`, b in a; None when there is none."""
    if path in fields:
        return fields[path]
    cell: Any = fields
    for name in _parts_of(path):
        if not isinstance(cell, dict):
            return None
        cell = cell.get(name)
    return cell


@cache
def _parts_of(path: str) -> tuple[str, ...]:
    return tuple(quoted or plain for quoted, plain in _PART.findall(path))


def quoted_path(parts: Sequence[str]) -> str:
    """The path with these parts, quoted where needed; one that has quotes cannot be named."""
    return ".".join(part if re.fullmatch(r'[^".]+', part) else f'"{part}"' for part in parts)


class RejectedMessages:
    """Counts what was not used, by reason, and logs it at intervals: where, and never a value."""

    def __init__(self, faults: Counter[str]) -> None:
        """`faults`: the totals by reason, which outlive this object."""
        self._faults = faults
        self._unreported: dict[tuple[str, str], tuple[int, Mapping[str, int]]] = {}
        self._reported_at = -math.inf

    def add(self, reason: str, topic: str, place: Mapping[str, int] | None = None) -> None:
        """Count a message of `topic`; `place` is where it is, if that can be said."""
        self._faults[reason] += 1
        number, first = self._unreported.get((reason, topic), (0, place or {}))
        self._unreported[reason, topic] = number + 1, first

    def report(self, now: float) -> None:
        """Log what was counted since the last report, if that is long ago.

        `now` is of a steady clock; inf logs at once.
        """
        if not self._unreported or now < self._reported_at + REPORT_EVERY_S:
            return
        self._reported_at = now
        for reason, topic in sorted(self._unreported):
            number, first = self._unreported[reason, topic]
            log_event(
                "messages_rejected",
                logging.WARNING,
                reason=reason,
                topic=topic,
                messages=number,
                **first,
            )
        self._unreported.clear()
