"""Intake: valid readings are decoded, all others are rejected with a reason, and nothing raises."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client_nodes.intake import decode_batch
from shoal.protocol.codec import pack
from shoal.protocol.readings import Reading
from shoal.transports.base import Headers, Record

HEADERS = Reading.headers()
NAN = float("nan")
INF = float("inf")


def record(value: bytes | None, headers: Headers = HEADERS, offset: int = 0) -> Record:
    return Record("readings", 0, offset, 0, None, value, headers)


def of(values: Any, time: Any = 1e9) -> bytes:
    return pack({"time": time, "values": values})


def test_no_records_give_no_readings() -> None:
    intake = decode_batch([], 3)
    assert intake.values.shape == (0, 3)
    assert intake.values.dtype == np.float64
    assert (intake.places, intake.times, intake.rejected) == ([], [], [])


def test_rejected_records_alone_give_no_readings() -> None:
    intake = decode_batch([record(b"junk")], 3)
    assert intake.values.shape == (0, 3)
    assert len(intake.rejected) == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "malformed"),
        (b"", "malformed"),
        (b"junk", "malformed"),
        (pack([1.0, 2.0]), "malformed"),
        (pack({"time": 1e9}), "malformed"),
        (pack({"values": [1.0, 2.0]}), "malformed"),
        (of([1.0, 2.0], time="noon"), "malformed"),
        (of([1.0, 2.0], time=NAN), "malformed"),
        (of([1.0, 2.0], time=1.7e12), "malformed"),
        (of("1.0, 2.0"), "malformed"),
        (of(None), "malformed"),
        (of({"warm": 1.0}), "malformed"),
        (of(b"\0" * 16), "malformed"),
        (of(np.array([1, 2])), "malformed"),
        (of(np.array([1.0, 2.0], np.float32)), "malformed"),
        (of([]), "width"),
        (of([1.0]), "width"),
        (of([1.0, 2.0, 3.0]), "width"),
        (of([0.0] * 4096), "width"),
        (of([0.0] * 1_000_000), "malformed"),
        (of(np.zeros(1_000_000)), "width"),
        (of(np.zeros(1)), "width"),
        (of(np.array(1.0)), "width"),
        (of(np.zeros((1, 2))), "width"),
        (of(np.empty(0)), "width"),
        (of([1.0, None]), "missing"),
        (of([None, NAN]), "missing"),
        (of([1.0, "2.0"]), "not_a_number"),
        (of([1.0, ""]), "not_a_number"),
        (of([1.0, True]), "not_a_number"),
        (of([1.0, NAN]), "missing"),
        (of([1.0, [2.0]]), "not_a_number"),
        (of([1.0, {"a": 2.0}]), "not_a_number"),
        (of([1.0, b"2"]), "not_a_number"),
        (of([1.0, np.array(2.0)]), "not_a_number"),
        (of([[1.0, 2.0]]), "width"),
        (of([[1.0, 2.0], [3.0, 4.0]]), "not_a_number"),
        (of(np.array([NAN, INF])), "missing"),
        (of([1.0, INF]), "infinite"),
        (of([-INF, 1.0]), "infinite"),
        (of(np.array([INF, 1.0])), "infinite"),
        (msgpack.packb({"time": 1e9, "values": msgpack.Timestamp(1)}), "malformed"),
    ],
)
def test_an_invalid_record_is_rejected_with_its_reason_and_the_rest_is_decoded(
    value: bytes | None, reason: str
) -> None:
    good = of([1.0, 2.0])
    intake = decode_batch(
        [record(good, offset=4), record(value, offset=5), record(good, offset=6)], 2
    )
    assert intake.values.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert intake.places == [(0, 4), (0, 6)]
    assert intake.times == [1e9, 1e9]
    ((rejected, why, *_),) = intake.rejected
    assert why == reason
    assert rejected.value == value


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("type", b"reading"),),
        (("type", b"reading"), ("v", b"2")),
        (("type", b"update"), ("v", b"1")),
    ],
)
def test_records_of_another_type_or_version_are_rejected(headers: Headers) -> None:
    ((_, why, *_),) = decode_batch([record(of([1.0, 2.0]), headers)], 2).rejected
    assert why == "malformed"


def test_integers_and_large_numbers_are_accepted() -> None:
    values: list[Any] = [[1, 2], [0, -(2**63)], [2**64 - 1, 1e308], [-0.0, 5e-324]]
    intake = decode_batch([record(of(value)) for value in values], 2)
    assert intake.values.tolist() == [[float(a), float(b)] for a, b in values]


def test_a_list_and_an_array_of_the_same_numbers_are_the_same_reading() -> None:
    intake = decode_batch([record(of([1.5, 2.5])), record(of(np.array([1.5, 2.5])))], 2)
    assert intake.values[0].tobytes() == intake.values[1].tobytes()


def test_a_reading_without_a_time_is_accepted() -> None:
    intake = decode_batch([record(of([1.0, 2.0], time=None)), record(of([1.0, 2.0], time=5))], 2)
    assert intake.times == [None, 5]


@given(st.lists(st.binary(max_size=60) | st.none(), max_size=5))
def test_any_bytes_are_decoded_or_rejected(values: list[bytes | None]) -> None:
    intake = decode_batch([record(value, offset=n) for n, value in enumerate(values)], 2)
    assert len(intake.places) + len(intake.rejected) == len(values)


@given(st.data())
def test_flipped_bytes_are_decoded_to_finite_numbers_or_rejected(data: st.DataObject) -> None:
    value = bytearray(of(data.draw(st.sampled_from([[1.0, 2], np.array([1.0, 2.0])]))))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    intake = decode_batch([record(bytes(value))], 2)
    assert len(intake.places) + len(intake.rejected) == 1
    assert np.isfinite(intake.values).all()
