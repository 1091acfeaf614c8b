"""Rows and messages with one quantity each: refused, with the way to make columns or fields of
them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import SettingsError
from shoal.producers.column_types import Sample
from shoal.producers.columns import understand
from shoal.producers.file_plan import plan_of
from shoal.producers.files.times import TimeOptions
from shoal.producers.message_times import Sampled
from shoal.producers.messages import time_reader_of
from shoal.producers.sampled_messages import Stream, _plan, _stream_of_topics
from tests.field.planted import OPTIONS, planted, written

ROWS = 400
PAGE = Path(__file__).parents[2] / "docs/reference/doors.md"


def long(names: Sequence[str], device: str | None = "device") -> list[dict[str, Any]]:
    """Messages of two devices; `names`: the fields of the quantity and of its value."""
    quantity, value = names
    messages = []
    for row, (temp, hum) in enumerate(zip(*planted(ROWS).values(), strict=True)):
        for called, number in (("temp", temp), ("hum", hum)):
            message: dict[str, Any] = {quantity: called, value: float(number), "ts": 1.7e9 + row}
            if device is not None:
                message = {device: f"d{row % 2}", **message}
            messages.append(message)
    return messages


LONG: Mapping[str, list[dict[str, Any]]] = {
    "a gateway": long(("sensor", "value")),
    "a historian": long(("tag_name", "v")),
    "a database": long(("type", "reading"), "station_id"),
    "without a device": long(("sensor_id", "value"), None),
    "a historian of tags": long(("Tag", "Value")),
    "a box of sensors": long(("phenomenon", "value"), "sensorId"),
    "raw and scaled": [
        {"value_raw": 10 * message["value"], **message}
        for message in long(("parameter", "value"), None)
    ],
    "deep": long(("data.kind", "data.val"), "dev.name"),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("door", ["kafka", "mqtt", "files"])
def test_one_quantity_a_message_is_told_with_the_recipe(
    kind: str, door: str, tmp_path: Path
) -> None:
    messages = LONG[kind]
    names = list(messages[0])
    value = names[-2]
    expected = rf"has one value, in {re.escape(value)}, of what {re.escape(names[-3])} names"
    if door == "files":
        file = written(tmp_path / "a.csv", {name: [m[name] for m in messages] for name in names})
        with pytest.raises(SettingsError, match=f"a row {expected}.*Long tables"):
            plan_of([file], OPTIONS)
        return
    sampled = [Sampled("gw/data", message, 1.7e9 + row) for row, message in enumerate(messages)]
    if door == "kafka":
        rows = [list(message.values()) for message in messages]
        stream = Stream(names[:-1], rows, {name: name for name in names}, "", {"time": "ts"}, 1.0)
    else:
        stream = _stream_of_topics(sampled, {}, time_reader_of("", ""))
    with pytest.raises(SettingsError, match=f"a message {expected}.*Messages of one quantity"):
        _plan(door, "gw/data", stream, sampled, OPTIONS, {})
    assert "## Messages of one quantity" in PAGE.read_text()


def understood(messages: Sequence[Mapping[str, Any]], client: str | None = None) -> list[str]:
    names = list(messages[0])
    rows = [list(message.values()) for message in messages]
    found = understand(Sample(names, rows, len(rows)), TimeOptions(), (), client)
    return [column.name for column in found.of("feature")]


def test_devices_that_measure_the_same_are_no_quantities() -> None:
    messages = LONG["a gateway"]
    assert understood(messages, "sensor") == ["device", "value"]
    alike = [{**message, "sensor": f"s{row % 3}"} for row, message in enumerate(messages)]
    assert understood(alike) == ["sensor", "value"]
    without_device = [
        {name: message[name] for name in ("sensor", "value", "ts")} for message in alike
    ]
    assert understood(without_device) == ["value"]
    # Several values in a message are columns already.
    wide = [{**message, "other": 2.5 * message["value"]} for message in alike]
    assert understood(wide)[-2:] == ["value", "other"]
    # A quantity by its name is no value of just anything.
    named = [{**message, "level_m": message["value"]} for message in alike]
    for message in named:
        del message["value"]
    assert understood(named)[-1] == "level_m"
