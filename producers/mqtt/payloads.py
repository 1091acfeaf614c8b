"""Parsing of MQTT messages: a plain number, or fields of a JSON object. Each value that cannot be used has a reason."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from producers.files.parsing import number_of, seconds_of, user_of
from producers.mqtt.alignment import SensorValues
from producers.mqtt.settings import MqttSettings
from shoal.config.contract import Contract
from shoal.errors import SettingsError

TOPIC_BYTES_MAX = 65535
"""of MQTT"""


class TopicField(NamedTuple):
    """Where one feature is in the messages of a topic."""

    feature: int
    """its index in the contract"""
    field: str
    """the JSON field it is in; empty where the message is the number"""


class ParsedPayload(NamedTuple):
    """The usable values of one message, and the reasons of the others."""

    values: SensorValues | None
    """None when no value can be used"""
    faults: Sequence[str]
    """a reason, one of `report.FAULTS`, for each value that cannot be used, or for the message as a whole"""
    user: str | None = None
    """user id; None without one"""


def topics_of(settings: MqttSettings, contract: Contract, client: str) -> dict[str, list[TopicField]]:
    """topic -> the features in its messages. Raises `SettingsError` without topics, or for an impossible one."""
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
    """The values of a message that arrived at `now`, in seconds since 1970. Never raises."""
    if len(payload) > settings.payload_bytes_max:
        return ParsedPayload(None, ["oversized"])
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return ParsedPayload(None, ["not_text"])
    if not wanted[0].field:
        return _parsed(now, {feature: text.strip() for feature, _ in wanted})
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return ParsedPayload(None, ["not_json"])
    time = seconds_of(_at(fields, settings.time)) if settings.time else now
    if time is None or time > now + settings.ahead_s:
        return ParsedPayload(None, ["timeless" if time is None else "ahead"])
    parsed = _parsed(time, {feature: _at(fields, field) for feature, field in wanted})
    return parsed._replace(user=user_of(_at(fields, settings.user_id))) if settings.user_id else parsed


def _parsed(time: float, cells: Mapping[int, Any]) -> ParsedPayload:
    values: dict[int, float] = {}
    faults: list[str] = []
    for feature, cell in cells.items():
        value = number_of(cell)
        if isinstance(value, float) and math.isfinite(value):
            values[feature] = value
        elif value is None:
            faults.append("missing")
        else:
            faults.append("infinite" if isinstance(value, float) and math.isinf(value) else "not_a_number")
    return ParsedPayload(SensorValues(time, values) if values else None, faults)


def _at(fields: dict[str, Any], path: str) -> Any:
    """The field of that name, or, for `a.b`, b in a; None when there is none."""
    if path in fields:
        return fields[path]
    found: Any = fields
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
