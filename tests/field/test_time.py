"""Times as files and messages have them: dates of digits, hours to 24, days of spreadsheets, zones
in headers, the hour that comes twice, and devices with local times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from shoal.errors import SettingsError
from shoal.producers.column_names import is_named
from shoal.producers.column_types import Sample, Understood
from shoal.producers.columns import understand
from shoal.producers.file_plan import plan_of
from shoal.producers.files.times import TimeOptions, TimeReader, time_reader
from shoal.producers.kafka.settings import KafkaSourceSettings
from shoal.producers.message_times import (
    Sampled,
    date_format_of,
    sentences_on_zone,
    time_path,
)
from shoal.producers.messages import TopicField, parse_payload, time_reader_of
from shoal.producers.mqtt.settings import MqttSettings
from tests.field.planted import CONTRACT, OPTIONS, planted, written

START = datetime(2024, 3, 1)


def moments(cells: Sequence[Sequence[Any]], zone: str | None = None, name: str = "time") -> Any:
    """The times of the rows, UTC, without a zone."""
    read = time_reader(lambda: cells, TimeOptions(None, zone), "t", [name])
    return [as_text(read(row)) for row in cells]


def as_text(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat(sep=" ")


def understood(columns: dict[str, Sequence[Any]]) -> Understood:
    rows = list(zip(*columns.values(), strict=True))
    return understand(Sample(list(columns), rows, len(rows)), TimeOptions())


@pytest.mark.parametrize(
    ("cells", "time"),
    [
        (["20240301", "1"], "2024-03-01 01:00:00"),
        (["20240301", "24"], "2024-03-02 00:00:00"),
        (["20240301", "24.0"], "2024-03-02 00:00:00"),
        ([20240301, 13], "2024-03-01 13:00:00"),
        (["2024-03-01", "5", "30"], "2024-03-01 05:30:00"),
        (["20240301", "1345"], "2024-03-01 13:45:00"),
        (["20240301", "930"], "2024-03-01 09:30:00"),
        (["20240301", "13:45"], "2024-03-01 13:45:00"),
        (["31.12.2024", "24"], "2025-01-01 00:00:00"),
        (["2024", "3", "1", "13"], "2024-03-01 13:00:00"),
        (["2024", "2", "29", "24"], "2024-03-01 00:00:00"),
        (["2024-02-29T24:00:00"], "2024-03-01 00:00:00"),
        (["2024-02-29 24:00"], "2024-03-01 00:00:00"),
        (["2024-02-29T24:00:00Z"], "2024-03-01 00:00:00"),
        (["20240301"], "2024-03-01 00:00:00"),
        ([20240301], "2024-03-01 00:00:00"),
        (["2024030113"], "2024-03-01 13:00:00"),
        (["45352.5"], "2024-03-01 12:00:00"),
        (["45352,5"], "2024-03-01 12:00:00"),
        (["Fri Mar  1 13:45:00 2024"], "2024-03-01 13:45:00"),
        (["Fri, 01 Mar 2024 13:45:00 GMT"], "2024-03-01 13:45:00"),
        (["Fri, 01 Mar 2024 13:45:00 +0100"], "2024-03-01 12:45:00"),
        ([45352.25], "2024-03-01 06:00:00"),
        ([45352], "2024-03-01 00:00:00"),
        (["1709251200"], "2024-03-01 00:00:00"),
        (["1709251200000000000"], "2024-03-01 00:00:00"),
        (["2024-03-01 13:45:00 UTC"], "2024-03-01 13:45:00"),
        (["2024-03-01 13:45:00 +0100"], "2024-03-01 12:45:00"),
        (["2024-03-01 13:45:00 UTC+1"], "2024-03-01 12:45:00"),
        (["2024-03-01 10:00 AEST"], "2024-03-01 00:00:00"),
        (["31.03.2024 13:45:00 CEST"], "2024-03-31 11:45:00"),
        (["Fri Mar  1 13:45:00 EST 2024"], "2024-03-01 18:45:00"),
        (["2024/03/01 13:45"], "2024-03-01 13:45:00"),
        (["2024.3.1 13:45:30"], "2024-03-01 13:45:30"),
        (["31.03.24", "12:05a"], "2024-03-31 00:05:00"),
        (["31.03.24", "1:05p"], "2024-03-31 13:05:00"),
        (["2024-03-01 13:45 +99"], None),
        (["01.03.2024", "13:45 Uhr"], "2024-03-01 13:45:00"),
        (["1. M\u00e4rz 2024 13:45"], "2024-03-01 13:45:00"),
        (["7 juil. 2024 13:45"], "2024-07-07 13:45:00"),
        (["1 ago 2024"], "2024-08-01 00:00:00"),
        (["2024/03/01T13:45:00z"], "2024-03-01 13:45:00"),
        (["2024-03-01_13-45-00"], "2024-03-01 13:45:00"),
        (["20240301", "25"], None),
        (["20240230", "1"], None),
    ],
)
def test_a_time_in_one_column_or_several_is_read(cells: list[Any], time: str | None) -> None:
    assert moments([cells, cells]) == [time, time]


@pytest.mark.parametrize(
    ("columns", "cells", "time"),
    [
        (("YEAR", "DOY", "HR"), ("2024", "61", "13"), "2024-03-01 13:00:00"),
        (("Year", "Julian Day", "HHMM"), ("2024", "61.0", "45"), "2024-03-01 00:45:00"),
        (("year", "doy"), (2024, 366), "2024-12-31 00:00:00"),
        (("year", "doy"), (2023, 366), None),
        (("Date", "Time"), ("20240301", "5"), "2024-03-01 00:05:00"),
        (("YEAR", "MO", "DY", "HHMM"), ("2024", "3", "1", "45"), "2024-03-01 00:45:00"),
    ],
)
def test_days_of_the_year_and_hours_with_minutes_are_read(
    columns: Sequence[str], cells: Sequence[Any], time: str | None
) -> None:
    # Another row of the file shows that its last column has hours and minutes, not hours.
    later = (*cells[:-1], "2355")
    rows = [cells, later if time and time[11:13] == "00" else cells]
    read = time_reader(lambda: rows, TimeOptions(), "t", columns)
    assert as_text(read(cells)) == time


def test_year_month_and_day_are_found_by_a_name_or_none() -> None:
    hours = [START + timedelta(hours=row) for row in range(600)]
    values = planted(600)
    stations = {
        "YEAR": [time.year for time in hours],
        "DOY": [time.timetuple().tm_yday for time in hours],
        "HR": [time.hour for time in hours],
        **values,
    }
    assert [column.name for column in understood(stations).of("time")] == ["YEAR", "DOY", "HR"]
    parts = [[getattr(time, part) for time in hours] for part in ("year", "month", "day", "hour")]
    found = understood(unnamed(*parts, *values.values()))
    assert len(found.of("time")) == 4
    assert found.interval_s == 3600
    days = [START + timedelta(days=row) for row in range(600)]
    parts = [[getattr(time, part) for time in days] for part in ("year", "month", "day")]
    whole = [round(float(value)) - 10 for value in values["temp"]]
    found = understood(unnamed(*parts, whole, values["hum"]))
    assert len(found.of("time")) == 3, "a temperature is no hour"


def test_days_alone_of_many_readings_are_told_with_the_option(tmp_path: Path) -> None:
    days = [f"2024-03-{1 + row // 48:02d}" for row in range(600)]
    half_hours = [f"period {row % 48}" for row in range(600)]
    columns = {"Date": days, "Period": half_hours, **planted(600)}
    plan = plan_of([written(tmp_path / "a.csv", columns)], OPTIONS)
    assert "--time-column Date --time-column" in " ".join(plan.sentences)
    assert plan.understood.interval_s == pytest.approx(1800, rel=0.1)
    daily = {"Date": [str(START.date() + timedelta(days=row)) for row in range(600)]}
    plan = plan_of([written(tmp_path / "a.csv", {**daily, **planted(600)})], OPTIONS)
    assert "days alone" not in " ".join(plan.sentences)


def unnamed(*columns: Sequence[Any]) -> dict[str, Sequence[Any]]:
    return {f"column-{place}": column for place, column in enumerate(columns, 1)}


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("Date Time, GMT-05:00", "2024-03-01 17:00:00"),
        ("Time (UTC+1)", "2024-03-01 11:00:00"),
        ("timestamp [Europe/Berlin]", "2024-03-01 11:00:00"),
        ("time_UTC", "2024-03-01 12:00:00"),
        ("Zeit (MEZ)", "2024-03-01 11:00:00"),
        ("Timestamp [EST]", "2024-03-01 17:00:00"),
        ("Datum/Zeit, CEST", "2024-03-01 10:00:00"),
        ("time", "2024-03-01 12:00:00"),
    ],
)
def test_a_zone_in_the_header_is_that_of_its_times(name: str, time: str) -> None:
    assert is_named("time", name)
    assert moments([["2024-03-01 12:00:00"]], name=name) == [time]
    assert moments([["2024-03-01 12:00:00"]], "Asia/Tokyo", name) == ["2024-03-01 03:00:00"]


@pytest.mark.parametrize("step_s", [60, 600, 1800, 3600])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_the_hour_that_comes_twice_comes_once_after_the_other(zone: str, step_s: int) -> None:
    turn = {"Europe/Berlin": 1_729_980_000, "America/New_York": 1_730_606_400}[zone]
    seconds = list(range(turn - 6 * 3600, turn + 12 * 3600, step_s))
    cells = []
    for moment in seconds:
        local = datetime.fromtimestamp(moment, ZoneInfo(zone))
        cells.append([local.strftime("%Y-%m-%d %H:%M:%S")])
    read = TimeReader(TimeOptions(None, zone), None)
    assert [read(cell) for cell in cells] == seconds
    # The next file, or the next client in it, begins before that hour.
    assert [read(cell) for cell in cells] == seconds


def test_rows_of_one_time_of_devices_that_take_turns_are_not_the_second_pass() -> None:
    zone = "Europe/Berlin"
    seconds = list(range(1_729_980_000 - 6 * 3600, 1_729_980_000 + 12 * 3600, 600))
    read = TimeReader(TimeOptions(None, zone), None)
    for moment in seconds:
        cell = [datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")]
        assert [read(cell), read(cell)] == [moment, moment]
    # A row that was stored twice within that hour is a repeat, and not the second pass.
    read = TimeReader(TimeOptions(None, zone), None)
    for moment in seconds:
        cell = [datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")]
        assert read(cell) == moment
        if moment == 1_729_980_000 + 8400:
            assert read(cell) == moment


@pytest.mark.parametrize("offset", ["UTC-05:00", "GMT-5", "-0500"])
def test_a_zone_may_be_an_offset(offset: str) -> None:
    assert moments([["2024-03-01 12:00"]], offset) == ["2024-03-01 17:00:00"]


def test_no_date_of_any_form_is_a_feature(tmp_path: Path) -> None:
    days = [START + timedelta(hours=hour) for hour in range(480)]
    forms = {
        "YYYYMMDD": [day.strftime("%Y%m%d") for day in days],
        "Datum": [day.strftime("%Y%m%d") for day in days],
        "day": [day.strftime("%Y-%m-%d") for day in days],
        "date": [f"{(day - datetime(1899, 12, 30)).days}" for day in days],
    }
    for name, dates in forms.items():
        for hour_name, first in (("HH", 1), ("hour", 0), ("column-2", 1)):
            hours = [str(first + day.hour) for day in days]
            file = written(tmp_path / "h.csv", {name: dates, hour_name: hours, **planted(480)})
            plan = plan_of([file], OPTIONS)
            features = [column.name for column in plan.understood.of("feature")]
            assert features == ["temp", "hum"], (name, hour_name)
            assert plan.settings["time_columns"] == [name, hour_name]
            assert plan.understood.interval_s == 3600.0


def test_numbers_that_rise_through_the_only_day_of_a_file_are_no_hours(tmp_path: Path) -> None:
    rows = 480
    columns = {
        "day": ["2024-03-01"] * rows,
        "column-2": [str(row // 20) for row in range(rows)],
        **planted(rows),
    }
    plan = plan_of([written(tmp_path / "one.csv", columns)], OPTIONS)
    assert [column.name for column in plan.understood.of("time")] == ["day"]


def test_codes_read_the_columns_of_a_time_as_they_are_written() -> None:
    for cells, codes in (
        (["01032024", "13"], "%d%m%Y %H"),
        (["240301", "130000"], "%y%m%d %H%M%S"),
        (["2024", "61", "13"], "%Y %j %H"),
    ):
        assert as_text(TimeReader(TimeOptions(codes), None)(cells)) == "2024-03-01 13:00:00"


def test_epochs_of_any_name_are_times_where_no_other_column_is() -> None:
    for units in (1, 1000, 10**9):
        epochs = [str((1_709_251_200 + 60 * row) * units) for row in range(200)]
        numbers = [f"{20 + row % 7}" for row in range(200)]
        found = understood({"t": epochs, "temp": numbers})
        assert [column.name for column in found.of("time")] == ["t"], units
        assert found.interval_s == 60.0
        # A number of that size that goes up and down is a value.
        found = understood({"t": epochs[::-1], "temp": numbers})
        assert not found.of("time")


def test_what_is_named_as_a_time_and_is_none_is_told_with_the_option() -> None:
    temp = [f"{20 + row % 7}" for row in range(200)]
    for cells, reason in (
        ([f"{1 + row % 28:02d}032024" for row in range(200)], "give --date-format"),
        ([f"day {row} of spring" for row in range(200)], "give --date-format"),
        ([f"{row // 60:02d}:{row % 60:02d}:00" for row in range(200)], "no column holds the date"),
    ):
        (left_out,) = understood({"time": cells, "temp": temp}).of("left out")
        assert reason in left_out.reason


def test_numbers_named_as_a_time_that_are_none_are_left_out_with_the_reason() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(20, 1, 200).round(2).tolist()
    found = understood({"time": rng.uniform(0, 900, 200).tolist(), "temp": values})
    assert [column.name for column in found.of("feature")] == ["temp"]
    (left_out,) = found.of("left out")
    assert "neither epochs nor dates" in left_out.reason


SETTINGS: tuple[Any, ...] = (MqttSettings, KafkaSourceSettings)
FIELDS = ("last_seen", "Time", "ts", "timestamp", "time", "updated_at", "date_time")


@pytest.mark.parametrize("settings", SETTINGS)
def test_messages_with_local_times_are_read_in_their_zone(settings: Any) -> None:
    now = datetime(2024, 7, 1, 12, tzinfo=UTC).timestamp()
    wanted = [TopicField(0, "temp")]
    for zone, text in (
        ("Europe/Berlin", "2024-07-01T14:00:00"),
        ("America/New_York", "2024-07-01T08:00:00"),
        ("UTC-05:00", "2024-07-01 07:00:00"),
        ("Europe/Berlin", "2024-07-01T12:00:00Z"),
        ("Europe/Berlin", str(int(now))),
        ("Europe/Berlin", f"{int(now)}000000000"),
    ):
        payload = json.dumps({"Time": text, "temp": 21.5}).encode()
        parsed = parse_payload(payload, wanted, settings(time="Time", timezone=zone), now)
        assert parsed.values is not None, (zone, text)
        assert parsed.values.time == now, (zone, text)


def test_dates_of_messages_may_be_as_people_write_them() -> None:
    settings = MqttSettings(time="t", date_format="day-first", timezone="Europe/Berlin")
    payload = json.dumps({"t": "01.07.2024 14:00", "temp": 1}).encode()
    parsed = parse_payload(payload, [TopicField(0, "temp")], settings, 1.8e9)
    assert parsed.values is not None
    assert as_text(parsed.values.time) == "2024-07-01 12:00:00"
    unknown = parse_payload(payload, [TopicField(0, "temp")], MqttSettings(time="t"), 1.8e9)
    assert unknown.faults == ["timeless"]


def sampled(field: str, ahead_h: float, form: str = "%Y-%m-%dT%H:%M:%S") -> list[Sampled]:
    messages = []
    for number in range(60):
        arrival = 1_709_294_400.0 + 10 * number
        local = datetime.fromtimestamp(arrival + 3600 * ahead_h, UTC)
        fields = {field: local.strftime(form), "temp": 20.0 + number % 3}
        messages.append(Sampled("", fields, arrival + 1.5))
    return messages


@pytest.mark.parametrize("field", FIELDS)
def test_the_time_of_messages_is_found_by_its_name(field: str) -> None:
    read = TimeReader(TimeOptions(), None)
    assert time_path(sampled(field, 0.0), read) == field


def test_a_date_without_a_time_of_day_is_no_time_of_messages() -> None:
    read = TimeReader(TimeOptions(), None)
    assert time_path(sampled("date", 0.0, "%Y-%m-%d"), read) == ""
    both = []
    for message in sampled("timestamp", 0.0):
        both.append(message._replace(fields={"date": "2024-03-01", **message.fields}))
    assert time_path(both, read) == "timestamp"


def test_a_field_of_any_name_that_is_near_the_arrival_is_the_time() -> None:
    read = TimeReader(TimeOptions(), None)
    messages = []
    for number, message in enumerate(sampled("when", 0.0, "%s")):
        fields = {"t": int(1000 * message.arrival) - 1500, "load": 1.7e9 + 10**7 * number}
        messages.append(message._replace(fields=fields))
    assert time_path(messages, read) == "t"
    assert time_path([message._replace(fields={"load": 3}) for message in messages], read) == ""
    assert is_named("time", "timestamp.seconds")


FORMS = {
    "%d.%m.%Y %H:%M:%S": "day-first",
    "%m/%d/%Y %I:%M:%S %p": "month-first",
    "%Y/%m/%d %H:%M:%S": "",
    "%Y%m%d%H%M%S": "%Y%m%d%H%M%S",
    "%Y%m%d%H%M": "%Y%m%d%H%M",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("field", ["zeitpunkt", "reading.stamp"])
def test_the_form_of_dates_in_messages_is_found_by_their_arrival(form: str, field: str) -> None:
    messages = []
    for message in sampled("zeitpunkt", 0.0, form):
        # Of a time in digits JSON makes a number as well.
        cell = message.fields["zeitpunkt"]
        cell = int(cell) if cell.isdigit() else cell
        messages.append(message._replace(fields={field: cell, "temp": 20.5}))
    expected = FORMS[form]
    if field != "zeitpunkt" and expected.startswith("%"):
        expected = ""  # a number of another name may be anything
    assert date_format_of(messages, "", "") == expected
    read = time_reader_of("", expected)
    assert time_path(messages, read) == ("" if field != "zeitpunkt" and "%Y%m" in form else field)
    # In another year the clock does not tell 03/01 from 01/03, and points are those of days first.
    later = [message._replace(arrival=message.arrival + 400 * 86_400) for message in messages]
    assert date_format_of(later, "", "") == expected.replace("month-first", "")


def test_numbers_that_have_lost_zeros_are_read_by_the_digits_of_their_form() -> None:
    for form, cells in {
        "%d%m%Y": [[1032024], ["1032024"], ["01032024"], [1032024.0]],
        "%y%m%d %H%M": [[240301, 0], ["240301", "0"], ["240301", "0000"]],
    }.items():
        read = TimeReader(TimeOptions(form), None)
        for texts in cells:
            assert as_text(read(texts)) == "2024-03-01 00:00:00", (form, texts)
    read = TimeReader(TimeOptions("%d.%m.%Y %H%M"), None)
    assert as_text(read(["1.3.2024", "100"])) == "2024-03-01 01:00:00"


def test_codes_find_the_column_that_they_read_and_are_refused_where_none_is(
    tmp_path: Path,
) -> None:
    days = [f"{START + timedelta(days=row):%d%m%Y}" for row in range(400)]
    file = written(tmp_path / "a.csv", {"Stichtag": days, **planted(400)})
    plan = plan_of([file], {**OPTIONS, "date_format": "%d%m%Y"})
    assert plan.settings["time_columns"] == ["Stichtag"]
    assert plan.understood.interval_s == 86_400
    named = {**OPTIONS, "date_format": "%d.%m.%y", "time_columns": ("Stichtag",)}
    with pytest.raises(SettingsError, match="no cell of Stichtag is a time"):
        plan_of([file], named)


def test_the_minute_that_a_meter_counted_last_is_no_time_of_messages() -> None:
    read = time_reader_of("", "")
    messages = []
    for message in sampled("x", 0.0):
        minute = int(message.arrival) // 60 * 60
        messages.append(message._replace(fields={"energy.minute": minute, "power": 20.5}))
    assert time_path(messages, read) == ""
    # A gateway sends the values of all its devices at once, with one time.
    at_once = []
    for message in messages:
        at_once.append(message._replace(arrival=1.0 + message.fields["energy.minute"]))
    assert time_path(at_once, read) == "energy.minute"


def test_init_compares_times_that_name_no_zone_with_the_clock() -> None:
    read = TimeReader(TimeOptions(), None)
    (ahead,) = sentences_on_zone(sampled("Time", 1.0), "Time", read)
    assert "1 h ahead of the clock and name no zone: give --timezone" in ahead
    (behind,) = sentences_on_zone(sampled("Time", -4.5), "Time", read)
    assert "4.5 h behind" in behind
    assert not sentences_on_zone(sampled("Time", 0.0), "Time", read)
    assert not sentences_on_zone(sampled("Time", 1.0, "%Y-%m-%dT%H:%M:%SZ"), "Time", read)
    assert not sentences_on_zone(sampled("Time", 1.0, "%s"), "Time", read)
    of_digits = TimeReader(TimeOptions("%Y%m%d%H%M%S"), None)
    assert sentences_on_zone(sampled("Time", 1.0, "%Y%m%d%H%M%S"), "Time", of_digits)
    in_zone = TimeReader(TimeOptions(None, "UTC+01:00"), None)
    assert not sentences_on_zone(sampled("Time", 1.0), "Time", in_zone)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_zone_that_is_not_there_is_refused_when_the_file_is_read(settings: Any) -> None:
    with pytest.raises(SettingsError, match="no such zone"):
        settings(time="t", timezone="Europe/Berlinn").check(CONTRACT)
    with pytest.raises(SettingsError, match="day-first"):
        settings(time="t", date_format="daily").check(CONTRACT)
