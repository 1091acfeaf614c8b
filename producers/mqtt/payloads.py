"""What a message of a sensor says: a plain number, or fields of a JSON object. What cannot be used has a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from producers.files.parsing import number_of, seconds_of
from producers.mqtt.alignment import Part
from shoal.config.contract import Contract
from shoal.config.mqtt_settings import MqttSettings
from shoal.errors import SettingsError

TOPIC_BYTES_MAX = 65535
"""of MQTT"""


class TopicField(NamedTuple):
    """One feature in the messages of a topic."""

    feature: int
    """its place in the contract"""
    field: str
    """the JSON field it is in; empty where the message is the number"""


class ParsedPayload(NamedTuple):
    """One message, understood."""

    part: Part | None
    """None when nothing of it can be used"""
    rejected: Sequence[str]
    """a reason, one of `report.FAULTS`, for each value that cannot be used, or for the message as a whole"""


def topics_of(settings: MqttSettings, contract: Contract, client: str) -> dict[str, list[TopicField]]:
    """topic -> the features in its messages. Raises `SettingsError` when there are none, or a topic cannot be."""
    if not settings.topics:
        raise SettingsError("--mqtt needs the section [mqtt.topics] in the federation file: a topic for each feature")
    wanted: dict[str, list[TopicField]] = {}
    for place, feature in enumerate(contract.features):
        topic, _, field = settings.topics[feature.name].replace("{client}", client).partition("#")
        if len(topic.encode()) > TOPIC_BYTES_MAX:
            raise SettingsError(f"[mqtt.topics] {feature.name}: a topic has at most {TOPIC_BYTES_MAX} bytes")
        wanted.setdefault(topic, []).append(TopicField(place, field))
    for topic, there in wanted.items():
        if len({field == "" for _, field in there}) > 1:
            raise SettingsError(f"[mqtt.topics] {topic}: its messages are plain numbers or JSON, not both")
    return wanted


def parse_payload(payload: bytes, wanted: Sequence[TopicField], settings: MqttSettings, now: float) -> ParsedPayload:
    """A message that arrived at `now` (seconds since 1970), by the rules of the settings. Never raises."""
    if len(payload) > settings.payload_bytes_max:
        return ParsedPayload(None, ["oversized"])
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return ParsedPayload(None, ["not_text"])
    if not wanted[0].field:
        return _said(now, {feature: text.strip() for feature, _ in wanted})
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return ParsedPayload(None, ["not_json"])
    time = seconds_of(_at(fields, settings.time)) if settings.time else now
    if time is None or time > now + settings.ahead_s:
        return ParsedPayload(None, ["timeless" if time is None else "ahead"])
    return _said(time, {feature: _at(fields, field) for feature, field in wanted})


def _said(time: float, cells: Mapping[int, Any]) -> ParsedPayload:
    values: dict[int, float] = {}
    rejected: list[str] = []
    for feature, cell in cells.items():
        value = number_of(cell)
        if isinstance(value, float) and math.isfinite(value):
            values[feature] = value
        elif value is None:
            rejected.append("missing")
        else:
            rejected.append("infinite" if isinstance(value, float) and math.isinf(value) else "not_a_number")
    return ParsedPayload(Part(time, values) if values else None, rejected)


def _at(fields: dict[str, Any], path: str) -> Any:
    """The field of that name, or, of `a.b`, b in a; None when it is not there."""
    if path in fields:
        return fields[path]
    found: Any = fields
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
