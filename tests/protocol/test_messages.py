"""Messages: an impossible one cannot be built, and impossible bytes are rejected with a reason,
never an error."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.contract import FEATURES_MAX
from shoal.config.limits import (
    EVENT_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    ORIGINAL_HEADERS_BYTES_MAX,
    RECORD_BYTES_MAX,
)
from shoal.config.settings import LogSettings
from shoal.errors import MessageRejected
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.checks import MOMENT_MAX
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import VERSION, Envelope, Snapshot, Update
from shoal.protocol.readings import Reading
from shoal.protocol.rejected import REASONS, Rejected
from shoal.protocol.topics import LOCAL_SETTINGS, READINGS_SETTINGS, declared_topics
from shoal.transports.base import CODEC, UNREADABLE
from shoal.transports.kafka.connection import configs_of
from tests.examples import examples
from tests.small_plant import a_snapshot, an_update, forged, parts_of, plant

CONTRACT = plant()
UPDATE = an_update(CONTRACT)
SNAPSHOT = a_snapshot(CONTRACT)
READING = Reading(1e9, np.array([20.0, 40.0]))
MESSAGES = pytest.mark.parametrize(
    "message", [READING, UPDATE, SNAPSHOT], ids=lambda message: message.TYPE
)


def decoded(message: Envelope, value: bytes | None, headers: Any = None) -> Envelope:
    return type(message).decode(value, message.headers() if headers is None else headers)


def reason_of(message: Envelope, value: bytes | None, headers: Any = None) -> str:
    with pytest.raises(MessageRejected) as rejected:
        decoded(message, value, headers)
    assert rejected.value.reason in REASONS
    assert "\n" not in str(rejected.value)
    return rejected.value.reason


@MESSAGES
def test_nothing_at_all_is_refused(message: Envelope) -> None:
    assert reason_of(message, None) == "malformed"
    assert reason_of(message, b"") == "malformed"
    assert reason_of(message, pack({})) == "malformed"
    assert reason_of(message, pack([])) == "malformed"
    assert reason_of(message, None, ()) == "type"


@MESSAGES
def test_a_message_comes_back_as_it_was(message: Envelope) -> None:
    back = decoded(message, message.encode())
    assert pack(parts_of(back)) == pack(parts_of(message))


@MESSAGES
def test_the_order_of_fields_does_not_matter(message: Envelope) -> None:
    turned = pack(dict(reversed(parts_of(message).items())))
    assert decoded(message, turned).encode() == message.encode()


@MESSAGES
def test_what_a_newer_sender_added_is_ignored(message: Envelope) -> None:
    assert decoded(message, forged(message, weather="fine")).encode() == message.encode()


@MESSAGES
def test_every_field_without_a_default_is_missed(message: Envelope) -> None:
    required = [
        part
        for part in fields(message)
        if part.default is MISSING and part.default_factory is MISSING
    ]
    for name in (part.name for part in required):
        with pytest.raises(MessageRejected) as rejected:
            decoded(message, forged(message, **{name: ...}))
        assert rejected.value.reason == "malformed"
        assert name in rejected.value.detail


@MESSAGES
def test_another_type_or_version_is_rejected_before_the_bytes_are_decoded(
    message: Envelope,
) -> None:
    version = str(VERSION).encode()
    kind = message.TYPE.encode()
    junk = b"\xc1"
    assert reason_of(message, junk, (("type", b"other"), ("v", version))) == "type"
    assert reason_of(message, junk, (("v", version),)) == "type"
    assert reason_of(message, junk, (("type", kind), ("v", b"2"))) == "version"
    assert reason_of(message, junk, (("type", kind), ("v", b""))) == "version"
    assert reason_of(message, junk, (("type", kind),)) == "version"
    assert reason_of(message, junk, (("v", version), ("type", kind))) == "malformed"


@MESSAGES
def test_a_message_beyond_the_limit_is_refused_unread(message: Envelope) -> None:
    assert reason_of(message, b"\xc1" * (MESSAGE_BYTES_MAX + 1)) == "oversized"
    assert reason_of(message, msgpack.packb({"x": [0] * 100_000})) == "oversized"


def test_a_message_that_no_reader_would_accept_is_not_sent() -> None:
    large = an_update(CONTRACT, arrays={"weight": np.zeros(MESSAGE_BYTES_MAX // 8)})
    with pytest.raises(MessageRejected, match=r"oversized.*fewer nodes"):
        large.encode()


def test_what_can_be_sent_fits_its_topic_with_key_and_headers() -> None:
    room = 64 * 1024
    updates, snapshots, events, _, rejected = declared_topics(CONTRACT, LogSettings()).values()
    assert events.record_bytes_max == EVENT_BYTES_MAX
    assert snapshots.record_bytes_max == RECORD_BYTES_MAX
    assert MESSAGE_BYTES_MAX + room <= RECORD_BYTES_MAX
    assert updates.record_bytes_max + ORIGINAL_HEADERS_BYTES_MAX + room <= rejected.record_bytes_max
    assert READINGS_SETTINGS.record_bytes_max + room <= LOCAL_SETTINGS.record_bytes_max


def test_a_record_of_updates_is_below_what_brokers_take_by_themselves() -> None:
    updates, *_ = declared_topics(CONTRACT, LogSettings()).values()
    by_themselves = 1_048_588
    assert int(configs_of(updates, 0)["max.message.bytes"]) <= by_themselves


BAD_NAMES = [
    "",
    "Attic",
    "a b",
    "a\nb",
    "a" * 65,
    "ätt",
    "../a",
    7,
    None,
    b"attic",
    ["attic"],
    np.zeros(2),
]
BAD_COUNTS = [-1, 1.0, True, None, "1", COUNT_MAX + 1, 2**64 - 1, float("nan"), [1], np.array(1)]
BAD_MOMENTS = [
    float("nan"),
    float("inf"),
    True,
    "now",
    MOMENT_MAX + 1,
    -1e300,
    2**63,
    [1e9],
    np.array(1e9),
]
BAD_TABLES: list[Any] = [
    None,
    [],
    "off",
    {"mode": np.zeros(2)},
    {"mode": [[1]]},
    {"mode": {"deeper": 1}},
    {"mode": b"off"},
]
BAD_ARRAYS: list[Any] = [
    None,
    [],
    np.zeros(2),
    {"weight": [1.0]},
    {"weight": None},
    {"weight": {"a": np.zeros(2)}},
]


def bad(names: str, values: list[Any], reason: str = "malformed") -> list[tuple[str, Any, str]]:
    return [(name, value, reason) for name in names.split() for value in values]


BAD_UPDATES = [
    *bad("federation contract model algorithm client", BAD_NAMES),
    *bad("readings", BAD_COUNTS),
    *bad("sequence", [0, *BAD_COUNTS], "sequence"),
    *bad("round", [value for value in BAD_COUNTS if value is not None]),
    *bad("made_at", [None, *BAD_MOMENTS]),
    *bad("newest_reading_at", BAD_MOMENTS),
    *bad("oldest_reading_at", [1e9, *BAD_MOMENTS]),
    *bad("privacy", BAD_TABLES),
    *bad("arrays", BAD_ARRAYS),
]
BAD_SNAPSHOTS = [
    *bad("federation contract model algorithm", BAD_NAMES),
    *bad("updates readings clients clusters nodes pooled", BAD_COUNTS),
    *bad("version", [0, *BAD_COUNTS], "sequence"),
    *bad(
        "positions", [None, 0, [0], [[0]], [[0, 1, 2]], [[0, -1]], [[0, 1.0]], [["0", 1]], {"0": 1}]
    ),
    *bad("made_at", [None, *BAD_MOMENTS]),
    *bad("privacy", BAD_TABLES),
    *bad("round_request", [table for table in BAD_TABLES if table is not None]),
    *bad("arrays", BAD_ARRAYS),
]


@pytest.mark.parametrize(("name", "value", "reason"), BAD_UPDATES)
def test_an_update_that_cannot_be_true_is_neither_built_nor_received(
    name: str, value: Any, reason: str
) -> None:
    with pytest.raises(MessageRejected) as rejected:
        Update(**parts_of(UPDATE) | {name: value})
    assert rejected.value.reason == reason
    assert reason_of(UPDATE, forged(UPDATE, **{name: value})) == reason


@pytest.mark.parametrize(("name", "value", "reason"), BAD_SNAPSHOTS)
def test_a_snapshot_that_cannot_be_true_is_neither_built_nor_received(
    name: str, value: Any, reason: str
) -> None:
    with pytest.raises(MessageRejected) as rejected:
        Snapshot(**parts_of(SNAPSHOT) | {name: value})
    assert rejected.value.reason == reason
    assert reason_of(SNAPSHOT, forged(SNAPSHOT, **{name: value})) == reason


@pytest.mark.parametrize("time", BAD_MOMENTS, ids=repr)
def test_a_reading_at_no_time_that_can_be_is_refused(time: Any) -> None:
    assert reason_of(READING, forged(READING, time=time)) == "malformed"


def test_a_reading_may_have_no_time_and_the_edges_of_the_calendar() -> None:
    for time in (None, 0, -MOMENT_MAX, MOMENT_MAX):
        assert isinstance(decoded(READING, forged(READING, time=time)), Reading)


def test_the_widest_honest_message_is_not_too_many_values() -> None:
    statement: dict[str, Any] = {"epsilon_per_feature": [0.1] * FEATURES_MAX}
    positions = [[partition, 2**40] for partition in range(1024)]
    wide = a_snapshot(CONTRACT, privacy=statement, positions=positions)
    back = Snapshot.decode(wide.encode(), Snapshot.headers())
    assert back.read_up_to == dict.fromkeys(range(1024), 2**40)
    assert Reading.decode(forged(READING, values=[1.5] * FEATURES_MAX), Reading.headers())


@settings(max_examples=examples(300))
@given(st.sampled_from([READING, UPDATE, SNAPSHOT]), st.data())
def test_flipped_bytes_are_a_message_or_refused(message: Envelope, data: st.DataObject) -> None:
    value = bytearray(message.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    reason = None
    try:
        decoded(message, bytes(value))
    except MessageRejected as rejected:
        reason = rejected.reason
    assert reason is None or reason in REASONS


@settings(max_examples=examples(300))
@given(st.sampled_from([UPDATE, SNAPSHOT]), st.data())
def test_any_value_in_any_field_is_a_message_or_refused(
    message: Envelope, data: st.DataObject
) -> None:
    leaf: st.SearchStrategy[Any] = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats()
        | st.text()
        | st.binary()
    )
    leaf |= st.sampled_from([np.zeros(2), np.zeros((0, 2))])
    value = st.recursive(
        leaf, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
    )
    name = data.draw(st.sampled_from(sorted(parts_of(message))))
    try:
        packed = forged(message, **{name: data.draw(value)})
    except TypeError:
        return  # lone surrogates and the like cannot be written at all
    reason = None
    try:
        decoded(message, packed)
    except MessageRejected as rejected:
        reason = rejected.reason
    assert reason is None or reason in REASONS


@given(st.sampled_from([READING, UPDATE, SNAPSHOT]), st.data())
def test_a_message_cut_short_is_refused(message: Envelope, data: st.DataObject) -> None:
    value = message.encode()
    assert reason_of(message, value[: data.draw(st.integers(0, len(value) - 1))]) == "malformed"


def test_a_record_that_the_log_cannot_read_is_refused_under_its_true_reason() -> None:
    for headers, detail in (
        (((UNREADABLE, b"CorruptRecordError"),), "the log cannot decode it"),
        (
            ((UNREADABLE, b"x"), (CODEC, b"snappy")),
            "compressed with snappy, which is not installed",
        ),
        # A header of a writer, which must not come into a message of ours.
        (((UNREADABLE, b"x"), (CODEC, b"evil\x1b[2J")), "the log cannot decode it"),
    ):
        with pytest.raises(MessageRejected, match=detail) as told:
            Update.decode(b"", headers)
        assert told.value.reason == "unreadable"
        assert "evil" not in str(told.value)


# What is set aside.


def rejected(**other: Any) -> Rejected:
    parts: dict[str, Any] = {
        "value": b"junk",
        "key": b"k",
        "reason": "type",
        "detail": "not marked as update",
    }
    return Rejected(**parts | {"topic": "plant.updates", "partition": 0, "offset": 7} | other)


def test_a_message_without_key_value_and_headers_can_be_set_aside() -> None:
    nothing = rejected(value=None, key=None)
    assert dict(nothing.headers)["key"] == b""
    assert nothing.record_key == b"plant.updates/0/7"


def test_the_same_message_is_set_aside_under_the_same_key() -> None:
    assert rejected().record_key == rejected(reason="version").record_key
    assert rejected(offset=8).record_key != rejected().record_key


def test_reason_and_origin_are_in_the_headers() -> None:
    headers = dict(rejected(original_headers=(("type", b"update"), ("x", b"\xff"))).headers)
    assert headers["reason"] == b"type"
    assert headers["origin"] == b"plant.updates/0/7"
    assert headers["original.type"] == b"update"
    assert headers["original.x"] == b"\xff"
    assert headers["type"] == b"rejected"


@pytest.mark.parametrize(
    "original",
    [
        (("x", b"y"),) * 1_000_000,
        (("x", b"y" * 10_000_000),),
        (("é" * 100_000, b""),),
        ((("x", b"y"),) * 3),
    ],
    ids=["many", "long", "long names", "few"],
)
def test_the_headers_of_what_is_set_aside_are_bounded(original: Any) -> None:
    headers = rejected(original_headers=original).headers
    assert (
        sum(len(name.encode()) + len(value) for name, value in headers)
        < ORIGINAL_HEADERS_BYTES_MAX + 1000
    )
    kept = [(name, value) for name, value in headers if name.startswith("original.")]
    assert (len(kept) == len(original)) != (headers[-1] == ("original_headers_cut", b"1"))


def test_a_decoded_update_is_the_readers_own() -> None:
    value = UPDATE.encode()
    back = Update.decode(value, Update.headers())
    back.arrays["weight"][:] = 0.0
    assert unpack(value)["arrays"]["weight"].any()
