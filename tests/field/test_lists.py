"""Lists in messages, and fields that lie deep: named, with the way to have them read."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidData
from shoal.producers.kafka.settings import KafkaSourceSettings
from shoal.producers.messages import TopicField, parse_payload
from shoal.producers.mqtt.settings import MqttSettings
from shoal.producers.sampled_messages import (
    DEPTH_MAX,
    RECIPE,
    UNREAD_MAX,
    _fields_of,
    _refuse_unread,
    _sentences_on_unread,
)
from shoal.producers.source_type import FAULTS

PAGE = Path(__file__).parents[2] / "docs/reference/doors.md"
SENML = [
    {"bn": "urn:dev:1:", "bt": 1_700_000_000, "n": "temp", "u": "Cel", "v": 14.5},
    {"n": "hum", "u": "%RH", "v": 35},
]
KEPSERVER = {
    "timestamp": 1_700_000_000_000,
    "values": [{"id": "line.temp", "v": 14.5, "q": True}, {"id": "line.hum", "v": 35}],
}


def read(message: Any, unread: dict[str, str]) -> dict[str, Any] | None:
    return _fields_of(json.dumps(message).encode(), unread)


def test_a_topic_of_lists_is_said_to_be_one() -> None:
    unread: dict[str, str] = {}
    assert read(SENML, unread) is None
    with pytest.raises(InvalidData, match="of site/# are lists, which are not read") as told:
        _refuse_unread("site/#", unread)
    assert RECIPE in str(told.value)
    assert "14.5" not in str(told.value)
    # Where nothing came there is nothing to tell.
    _refuse_unread("site/#", {})


SCHEMA = b"\x00\x00\x00\x00\x07"
OTHERS = {
    "binary": (b"\xff\x01", "not_text"),
    "a text in quotes, which may hold JSON": (b'"{}"', "not_json"),
    "a text that is no JSON": (b"temp=14.5", "not_json"),
    "empty": (b"", "not_json"),
    "in the form of a schema registry": (SCHEMA + b'{"warm": 14.5}', "of_a_schema"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_messages_that_are_not_read_are_told_for_what_they_are(what: str) -> None:
    payload, fault = OTHERS[what]
    unread: dict[str, str] = {}
    assert _fields_of(payload, unread) is None
    with pytest.raises(InvalidData, match=f"the first of them is {what}"):
        _refuse_unread("plant", unread)
    for settings in (MqttSettings(), KafkaSourceSettings()):
        parsed = parse_payload(payload, [TopicField(0, "warm")], settings, 1.7e9)
        assert parsed.faults == [fault]
        assert fault in FAULTS


def test_sparkplug_is_named_with_the_page_that_has_its_recipe() -> None:
    unread: dict[str, str] = {}
    assert _fields_of(b"\x08\x95\xa0", unread, "spBv1.0/plant/DDATA/edge/press-1") is None
    with pytest.raises(InvalidData, match=r"are Sparkplug B \(protobuf\), .*telegraf\.md"):
        _refuse_unread("spBv1.0/#", unread)


def test_a_name_that_no_path_can_have_is_listed() -> None:
    unread: dict[str, str] = {}
    assert read({"air": {'6" pipe': 3.5, "": 1, "temp": 14.5}}, unread) == {"air.temp": 14.5}
    assert set(unread) == {'air.6" pipe', "air."}


def test_fields_that_are_not_read_are_named_with_the_reason() -> None:
    unread: dict[str, str] = {}
    assert read(KEPSERVER, unread) == {"timestamp": 1_700_000_000_000}
    deep: Any = 1.0
    for _ in range(DEPTH_MAX):
        deep = {"in": deep}
    path = ".".join(["in"] * DEPTH_MAX)
    assert read(deep, unread) == {path: 1.0}
    assert unread == {"values": "a list"}
    assert read({"in": deep}, unread) == {}
    assert _sentences_on_unread(unread) == [
        "not read: field values, a list",
        f"not read: field {path}, an object at depth 8",
        f"lists are not read: {RECIPE}",
    ]
    assert _sentences_on_unread({}) == []
    many = {f"field{number}": "a list" for number in range(UNREAD_MAX + 3)}
    assert "not read: 3 more fields" in _sentences_on_unread(many)


def test_the_recipe_makes_objects_of_lists(jq: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    of_long, of_senml = re.findall(r"jq -c --unbuffered '(.*?)'", page)
    (of_kepserver,) = re.findall(r"with `(\{time: .*)`", page)
    long = {"device": "d1", "sensor": "temp", "value": 14.5, "ts": 1_700_000_000}
    for recipe, message, expected in (
        (of_long, long, {"device": "d1", "ts": 1_700_000_000, "temp": 14.5}),
        (of_senml, SENML, {"client": "urn:dev:1:", "time": 1_700_000_000, "temp": 14.5, "hum": 35}),
        (of_kepserver, KEPSERVER, {"time": 1_700_000_000_000, "line.temp": 14.5, "line.hum": 35}),
    ):
        made = subprocess.run(
            [jq, "-c", recipe],
            input=json.dumps(message),
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(made.stdout) == expected
