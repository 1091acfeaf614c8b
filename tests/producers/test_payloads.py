"""What messages say, and what is no message: numbers, JSON, times, and everything else a network
can bring."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shoal.config.contract import Contract, parse_contract
from shoal.errors import SettingsError
from shoal.producers.messages import ParsedPayload, SensorValues, TopicField, parse_payload
from shoal.producers.mqtt.settings import MqttSettings
from shoal.producers.mqtt.topics import TopicTable, topics_of
from shoal.producers.source_type import FAULTS

NOW = 1_700_000_000.0
PLAIN = [TopicField(0, "")]
JSON = [TopicField(0, "warm"), TopicField(2, "air.damp")]


def contract(*names: str) -> Contract:
    features = [{"name": name, "low": 0, "high": 1} for name in names]
    models = [{"name": "m", "algorithm": "fcac"}]
    return parse_contract(
        {
            "federation": {"name": "t"},
            "features": features,
            "privacy": {"mode": "off"},
            "models": models,
        }
    )


def parsed(payload: str | bytes, wanted: list[TopicField] = JSON, **settings: Any) -> ParsedPayload:
    raw = payload.encode() if isinstance(payload, str) else payload
    return parse_payload(raw, wanted, MqttSettings(**settings), NOW)


@pytest.mark.parametrize("text", ["21.5", " 21.5\n", "2.15e1", "+21.5"])
def test_a_plain_number_is_of_the_time_it_arrives(text: str) -> None:
    assert parsed(text, PLAIN) == ParsedPayload(SensorValues(NOW, {0: 21.5}), [])


def test_fields_of_an_object_are_found_by_name_and_inside_one_another() -> None:
    assert parsed('{"warm": 21, "air": {"damp": "40.5"}, "more": [1]}') == ParsedPayload(
        SensorValues(NOW, {0: 21.0, 2: 40.5}), []
    )


def test_a_field_whose_name_has_a_point_is_found_by_its_name() -> None:
    assert parsed('{"warm": 1, "air.damp": 2}').values == SensorValues(NOW, {0: 1.0, 2: 2.0})
    quoted = [TopicField(0, 'air."damp.in %"')]
    assert parsed('{"air": {"damp.in %": 3}}', quoted).values == SensorValues(NOW, {0: 3.0})


@pytest.mark.parametrize(
    ("written", "time"),
    [
        ("1699999999.5", 1_699_999_999.5),
        ("1699999999500", 1_699_999_999.5),
        ('"2023-11-14T22:13:19Z"', 1_699_999_999.0),
        ('"2023-11-14T23:13:19+01:00"', 1_699_999_999.0),
    ],
)
def test_the_time_is_the_messages_own(written: str, time: float) -> None:
    assert parsed(
        f'{{"warm": 1, "air": {{"damp": 2}}, "t": {written}}}', time="t"
    ).values == SensorValues(time, {0: 1.0, 2: 2.0})


@pytest.mark.parametrize(
    "written", ["null", '"yesterday"', "true", "[]", "{}", "1e30", "NaN", "1" + "0" * 400]
)
def test_a_time_that_is_none_makes_a_message_of_no_use(written: str) -> None:
    assert parsed(f'{{"warm": 1, "t": {written}}}', time="t") == ParsedPayload(None, ["timeless"])
    assert parsed('{"warm": 1}', time="t") == ParsedPayload(None, ["timeless"])


def test_a_time_in_the_future_is_rejected() -> None:
    message = json.dumps({"warm": 1, "air": {"damp": 2}, "t": NOW + 61})
    assert parsed(message, time="t") == ParsedPayload(None, ["ahead"])
    assert parsed(message, time="t", ahead_s=61).values is not None


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not_json"),
        (b"\xff\xfe", "not_text"),
        (b"21.5", "not_json"),
        (b"[1, 2]", "not_json"),
        (b'{"warm": 1', "not_json"),
        (b"[" * 60_000, "not_json"),
        (b"9" * 5000, "not_json"),
        (b" " * 65_537, "oversized"),
    ],
)
def test_what_is_no_object_is_refused_with_a_reason(payload: bytes, reason: str) -> None:
    assert parsed(payload) == ParsedPayload(None, [reason])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("null", "missing"),
        ('""', "missing"),
        ("true", "not_a_number"),
        ('"wet"', "not_a_number"),
        ("[1]", "not_a_number"),
        ("NaN", "missing"),
        ("Infinity", "infinite"),
        ("-1e999", "infinite"),
        ("1" + "0" * 400, "infinite"),
    ],
)
def test_a_value_that_is_no_number_is_refused_and_the_others_are_used(
    value: str, reason: str
) -> None:
    assert parsed(f'{{"warm": {value}, "air": {{"damp": 2}}}}') == ParsedPayload(
        SensorValues(NOW, {2: 2.0}), [reason]
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "missing"), ("wet", "not_a_number"), ("nan", "missing"), ("inf", "infinite")],
)
def test_a_plain_message_that_is_no_number_is_refused(text: str, reason: str) -> None:
    assert parsed(text, PLAIN) == ParsedPayload(None, [reason])


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists)
)
def test_any_payload_is_parsed_and_every_fault_has_a_description(payload: Any) -> None:
    raw = (
        payload
        if isinstance(payload, bytes)
        else json.dumps({"warm": payload, "t": payload, "air": payload}).encode()
    )
    for wanted in (PLAIN, JSON):
        for settings in (MqttSettings(), MqttSettings(time="t"), MqttSettings(user_id="warm")):
            found = parse_payload(raw, wanted, settings, NOW)
            assert found.values is not None or found.faults
            assert set(found.faults) <= set(FAULTS)


def test_several_features_may_be_of_one_topic() -> None:
    settings = MqttSettings(topics={"a": "hall#warm", "b": "roof", "c": "hall#damp"})
    assert topics_of(settings, contract("a", "b", "c"), "x") == {
        "hall": [TopicField(0, "warm"), TopicField(2, "damp")],
        "roof": [TopicField(1, "")],
    }


def test_one_file_serves_all_clients() -> None:
    settings = MqttSettings(topics={"a": "rooms/{client}/a"})
    assert list(topics_of(settings, contract("a"), "attic")) == ["rooms/attic/a"]


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a/b", "a/c", False),
        ("a/+/c", "a/b/c", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "b/a", False),
        ("+/b", "a/+", True),
        ("#", "a/b", True),
    ],
)
def test_filters_that_match_one_topic_are_refused_since_its_messages_could_come_twice(
    one: str, other: str, overlap: bool
) -> None:
    places = {"a": f"{one}#x", "b": f"{other}#y"}
    with pytest.raises(SettingsError, match="match the same topics") if overlap else nullcontext():
        table = TopicTable(topics_of(MqttSettings(topics=places), contract("a", "b"), "x"))
        assert table.find(other) == [TopicField(1, "y")]
        assert table.find("elsewhere") is None


@pytest.mark.parametrize(
    ("client", "place", "why"),
    [
        ("{topic.1}", "a/b/+#x", "level 1 of a/b/+, counted from 0, is 'b'"),
        ("{topic.3}", "a/+#x", "not there"),
        ("{room}", "a/+#x", "write {topic.1} for a level"),
        ("room", "a/+", "names no client"),
        ("{topic.1}", "a/{client}#x", "write + in place of"),
        ("", "a/b+#x", "whole levels"),
    ],
)
def test_what_cannot_name_a_client_is_refused(client: str, place: str, why: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(why)):
        MqttSettings(client=client, topics={"a": place})


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        ({}, r"needs the section \[mqtt.topics\]"),
        ({"a": "hall", "b": "hall#damp"}, "hall: its messages are plain numbers or JSON, not both"),
        ({"a": "x" * 65_536, "b": "y"}, "at most 65535 bytes"),
    ],
)
def test_impossible_topics_are_named(topics: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        topics_of(MqttSettings(topics=topics), contract("a", "b"), "x")
