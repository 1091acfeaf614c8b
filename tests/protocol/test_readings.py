"""Readings that are taken together are those, and are as, the decoder takes them one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from shoal.client_nodes.intake import Batch, decode_batch
from shoal.errors import MessageRejected
from shoal.protocol.checks import MOMENT_MAX
from shoal.protocol.codec import pack
from shoal.protocol.readings import Reading
from shoal.transports.base import Headers, Record, RecordBatch, RecordColumns
from shoal.transports.sqlite.log import SqliteLog
from shoal.transports.sqlite.records import _RecentlyUnpacked

WIDTH = 3
ROW = np.array([1.5, -2.0, 1e300])
OF_A_PRODUCER = (("source", b"abc"), ("number", b"17"))


def record(value: bytes | None, headers: Headers | None = None, offset: int = 0) -> Record:
    return Record(
        "readings", 0, offset, 0, None, value, Reading.headers() if headers is None else headers
    )


def decoded(one: Record, width: int = WIDTH) -> tuple[float | None, list[float]] | None:
    """What the decoder makes of it, if it is a row of finite numbers."""
    try:
        reading = Reading.decode(one.value, one.headers)
    except MessageRejected:
        return None
    values = reading.values
    if isinstance(values, list):
        plain = all(type(value) in (int, float) and math.isfinite(value) for value in values)
        return (
            (reading.time, [float(value) for value in values])
            if plain and len(values) == width
            else None
        )
    fits = (
        values.dtype == np.float64 and values.shape == (width,) and bool(np.isfinite(values).all())
    )
    return (reading.time, values.tolist()) if fits else None


def assert_taken_as_decoded(records: Sequence[Record]) -> Batch:
    intake = decode_batch(records, WIDTH)
    expected = [(record.offset, decoded(record)) for record in records]
    taken = [
        (offset, (time, row))
        for (_, offset), time, row in zip(
            intake.places, intake.times, intake.values.tolist(), strict=True
        )
    ]
    assert taken == [record for record in expected if record[1] is not None]
    assert [rejected.record.offset for rejected in intake.rejected] == [
        n for n, found in expected if found is None
    ]
    assert_taken_alike_from_a_log(records, intake)
    return intake


def assert_taken_alike_from_a_log(records: Sequence[Record], intake: Batch) -> None:
    """The embedded log gives records by column."""
    with TemporaryDirectory() as folder, closing(SqliteLog(Path(folder) / "readings.db")) as log:
        log.ensure("readings")
        for record in records:
            log.publish("readings", record.value, record.key, record.headers)
        log.flush()
        module = "shoal.transports.sqlite.records"
        with (
            patch(f"{module}.FEW_RECORDS", 10**6),
            patch(f"{module}._together", return_value=None),
            # What this read keeps of a packed row is not for the next one.
            patch(f"{module}._RECENT", _RecentlyUnpacked()),
        ):
            one_by_one, _ = log.read("readings", {0: 0}, 10_000)
        with patch(f"{module}.FEW_RECORDS", 0):
            stored, _ = log.read("readings", {0: 0}, 10_000)
        log.ensure("batches")
        for headers, same in groupby(records, lambda one: one.headers):
            log.publish_batch(
                "batches", batch_of([record.value or b"" for record in same], headers), 0
            )
        log.flush()
        in_batches, _ = log.read("batches", {0: 0}, 10_000)
    assert [(record.value, record.headers) for record in in_batches] == [
        (record.value or b"", record.headers) for record in one_by_one
    ]
    assert not isinstance(one_by_one, RecordColumns)
    assert list(stored) == list(one_by_one)
    assert isinstance(stored, RecordColumns) or not all(record.headers for record in records)
    together = Reading.decode_many(stored, WIDTH)
    apart = Reading.decode_many(list(stored), WIDTH)
    assert together.indices.tolist() == apart.indices.tolist()
    for found in (stored, in_batches):
        assert_the_same(decode_batch(found, WIDTH), intake)


def batch_of(values: Sequence[bytes], headers: Headers) -> RecordBatch:
    """Records with the same headers, the last of which may differ."""
    return RecordBatch(
        values, headers[:-1], [(name, [content] * len(values)) for name, content in headers[-1:]]
    )


def assert_the_same(again: Batch, intake: Batch) -> None:
    assert (again.places, again.times, again.record_times) == (
        intake.places,
        intake.times,
        intake.record_times,
    )
    assert again.values.tobytes() == intake.values.tobytes()
    assert [rejected.reason for rejected in again.rejected] == [
        rejected.reason for rejected in intake.rejected
    ]
    assert [rejected.record.offset for rejected in again.rejected] == [
        rejected.record.offset for rejected in intake.rejected
    ]


@pytest.mark.parametrize("timed", [(True,), (False,), (True, False, False)])
def test_readings_in_the_usual_form_are_all_taken_together(timed: tuple[bool, ...]) -> None:
    rows = np.random.default_rng(0).normal(size=(50, WIDTH))
    records = [
        record(
            Reading(1e9 + n if timed[n % len(timed)] else None, row).encode(),
            Reading.headers() + OF_A_PRODUCER * (n % 2),
            n,
        )
        for n, row in enumerate(rows)
    ]
    assert Reading.decode_many(records, WIDTH).indices.tolist() == list(range(50))
    intake = assert_taken_as_decoded(records)
    assert np.array_equal(intake.values, rows)


@pytest.mark.parametrize("time", [1e9, None])
def test_a_byte_changed_anywhere_is_noticed_as_the_decoder_notices_it(time: float | None) -> None:
    good = Reading(time, ROW).encode()
    changed = [
        good[:place] + bytes([byte]) + good[place + 1 :]
        for place in range(len(good))
        for byte in {0, 1, 0x7F, 0x80, 0xC0, 0xFF, good[place] ^ 1}
    ]
    assert_taken_as_decoded(
        [record(value, offset=number) for number, value in enumerate([good, *changed, good])]
    )


@pytest.mark.parametrize(
    "headers",
    [
        (),
        Reading.headers()[:1],
        Reading.headers()[::-1],
        (*Reading.headers(), ("type", b"update")),
        (*Reading.headers(), ("v", b"2")),
        (*Reading.headers(), ("type", b"reading")),
        (("type", b"update"), ("v", b"1")),
    ],
)
def test_headers_mean_what_they_mean_to_the_decoder(headers: Headers) -> None:
    good = Reading(1e9, ROW).encode()
    assert_taken_as_decoded([record(good), record(good, headers, 1), record(good, offset=2)])


def test_every_other_form_is_left_to_the_decoder_and_the_order_stays() -> None:
    values = [
        Reading(1e9, ROW).encode(),
        Reading(None, ROW).encode(),
        Reading(5, ROW).encode(),
        Reading(1e9, [1, 2.5, 3]).encode(),
        Reading(1e9, [1, "wet", 3]).encode(),
        Reading(1e9, np.array([1.0, np.nan, 2.0])).encode(),
        Reading(1e9, np.array([1.0, np.inf, 2.0])).encode(),
        Reading(1e9, ROW[:2]).encode(),
        pack({"values": ROW, "time": 1e9}),
        pack({"time": MOMENT_MAX * 2.0, "values": ROW}),
        pack({"time": math.nan, "values": ROW}),
        Reading(float(-MOMENT_MAX), ROW).encode(),
        None,
        b"",
        Reading(2e9, -ROW).encode(),
    ]
    intake = assert_taken_as_decoded(
        [record(value, offset=number) for number, value in enumerate(values)]
    )
    assert len(intake.places) == 7


def test_a_time_too_far_ahead_is_rejected_also_where_all_readings_are_in_the_usual_form() -> None:
    arrived_s = 1_000.0
    ahead_s = 60.0
    times = [arrived_s, arrived_s + ahead_s + 1, None, arrived_s + ahead_s]
    records = []
    for number, time in enumerate(times):
        stored = record(Reading(time, ROW).encode(), offset=number)
        records.append(stored._replace(timestamp_ms=int(1000 * arrived_s)))
    batch = decode_batch(records, WIDTH, ahead_s)
    assert [offset for _, offset in batch.places] == [0, 2, 3]
    assert [rejected.record.offset for rejected in batch.rejected] == [1]


def test_of_nothing_nothing_is_taken() -> None:
    assert decode_batch([], WIDTH).values.shape == (0, WIDTH)


@pytest.mark.parametrize("width", [1, 16, 31, 32, 4096])
def test_any_number_of_features_has_its_form(width: int) -> None:
    row = np.arange(float(width))
    intake = decode_batch([record(Reading(1e9, row).encode())], width)
    assert intake.values.tolist() == [row.tolist()]
    for time in (1e9, None):
        assert len(Reading.decode_many([record(Reading(time, row).encode())], width).indices) == 1


USUAL_ROWS = list(np.arange(4.0 * WIDTH).reshape(4, WIDTH))
UNUSUAL_ROW: list[Any] = [1.0, "wet", None]


@pytest.mark.parametrize(
    ("times", "values"),
    [
        ([], []),
        ([1e9, -5.0, 0.0, float(MOMENT_MAX)], USUAL_ROWS),
        ([None] * 4, USUAL_ROWS),
        ([1e9, None, 5, 2e9], USUAL_ROWS),
        ([1e9, 2e9], [ROW, UNUSUAL_ROW]),
        ([1e9, 2e9], [ROW, ROW[:2]]),
        ([1e9, 2e9], [ROW, np.zeros(WIDTH, dtype=np.float32)]),
        ([1e9, 2e9], [np.array([np.nan, np.inf, -0.0]), ROW]),
        ([1e9], [np.empty(0)]),
        ([1e9], [np.zeros((1, WIDTH))]),
    ],
)
def test_many_readings_have_the_bytes_that_each_has_alone(
    times: list[float | None], values: list[Any]
) -> None:
    assert Reading.encode_many(times, values) == [
        Reading(time, row).encode() for time, row in zip(times, values, strict=True)
    ]


@pytest.mark.parametrize("time", [math.nan, math.inf, MOMENT_MAX * 2.0])
def test_a_time_that_cannot_be_is_refused_among_many_readings_too(time: float) -> None:
    with pytest.raises(MessageRejected, match="time"):
        Reading.encode_many([1e9, time], [ROW, ROW])
