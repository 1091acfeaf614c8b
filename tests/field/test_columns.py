"""What `shoal init` makes of columns that are no measured quantity: each is listed, with the
reason, and none is a feature."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.settings import load_config
from shoal.errors import InvalidData, SettingsError
from shoal.producers.column_names import is_named
from shoal.producers.federation_file import Plan, federation_file
from shoal.producers.file_plan import plan_of
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.source import FILES, PLAIN_REPLAY, with_settings
from shoal.producers.files.split import split_of
from shoal.producers.kafka.settings import KafkaSourceSettings
from shoal.producers.messages import TopicField, parse_payload
from shoal.producers.mqtt.settings import MqttSettings
from tests.field.planted import CONTRACT, OPTIONS, planted, written

ROWS = 600


def features_of(plan: Plan) -> list[str]:
    return [column.name for column in plan.understood.of("feature")]


def reason_of(plan: Plan, name: str) -> str:
    (column,) = [column for column in plan.understood.columns if column.name == name]
    assert column.kind == "left out", name
    return column.reason


def plan_beside(folder: Path, beside: dict[str, Sequence[Any]], **options: Any) -> Plan:
    """The plan of a file that has these columns before the planted ones."""
    file = written(folder / "a.csv", {**beside, **planted(len(next(iter(beside.values()))))}, ";")
    return plan_of([file], {**OPTIONS, **options})


RNG = np.random.default_rng(3)
TURNS = [f"{101 + row % 3}" for row in range(ROWS)]
"""devices that take turns"""
BESIDE: dict[str, tuple[dict[str, Sequence[Any]], str]] = {
    "lat": ({"sensor_id": TURNS, "lat": [48.7 + row % 3 for row in range(ROWS)]}, "same within"),
    "firmware": (
        {"device": TURNS, "firmware": [1 + row % 3 for row in range(ROWS)]},
        "same within",
    ),
    "longitude": ({"longitude": RNG.normal(9, 1, ROWS).round(3)}, "a place"),
    "fcnt": ({"device": TURNS, "fcnt": [7 + row // 3 + 50 * (row % 3) for row in range(ROWS)]}, ""),
    "n": ({"n": [7 + row // 3 + 5000 * (row % 3) for row in range(ROWS)]}, "3 devices in turn"),
    "energy": ({"energy": np.cumsum(RNG.uniform(0, 1, ROWS)).round(3)}, "a counter"),
    "total_kwh": (
        {"total_kwh": (1000 * (np.arange(ROWS) % 2) + 0.13 * np.arange(ROWS)).round(2)},
        "2 devices in turn",
    ),
    "voltage": ({"voltage": 3000 - np.arange(ROWS) // 20}, "falls all the time"),
    "Altitude (m)": ({"Altitude (m)": RNG.normal(500, 1, ROWS).round(1)}, "a place"),
    "Satellites": ({"Satellites": RNG.integers(4, 12, ROWS)}, "state of the device"),
    "movement_counter": ({"movement_counter": RNG.integers(0, 9, ROWS)}, "a counter, by its name"),
    "blocks": (
        {"device": TURNS, "blocks": [row // 60 + 70 * (row % 3) for row in range(ROWS)]},
        "",
    ),
    "SF": ({"SF": RNG.integers(7, 13, ROWS)}, "state of the device"),
    "ENERGY.Today": (
        {"ENERGY.Today": [row**2 % 48 for row in range(ROWS)]},
        "a counter, by its name",
    ),
    "device.battery.percent": (
        {"device.battery.percent": RNG.integers(70, 99, ROWS)},
        "state of the device",
    ),
    "tx.frequency": ({"tx.frequency": RNG.choice([868.1e6, 868.3e6], ROWS)}, "its link"),
    "PartitionId": ({"PartitionId": RNG.integers(0, 4, ROWS)}, "an identifier"),
    "heap": ({"heap": RNG.integers(19000, 21000, ROWS)}, "state of the device"),
    "reading": ({"reading": [f"{row % 30} C" for row in range(ROWS - 1)] + ["5 F"]}, "with a unit"),
    "temp_f": (
        {"temp_f": [round(1.8 * float(temp) + 32, 1) for temp in planted(ROWS)["temp"]]},
        "temp once more, in °F",
    ),
    "Batteriespannung": ({"Batteriespannung": RNG.normal(3.1, 0.01, ROWS)}, "state of the device"),
    "pressures": ({"pressures": [f"{120 + row % 9}/80" for row in range(ROWS)]}, "several values"),
    "WND": ({"WND": [f"{row % 360:03d},1,N,00{row % 9}5,1" for row in range(ROWS)]}, "several"),
    "aenergy.total": (
        {"aenergy.total": RNG.integers(0, 9000, ROWS)},
        "a counter, by its name",
    ),
    "checksum": ({"checksum": [f"{row * 7919 % 65536:04X}" for row in range(ROWS)]}, "no number"),
    "device": (
        {"device": [f"d{row % 2}" if row % 9 else "" for row in range(ROWS)]},
        "11% of its cells are empty",
    ),
    "batch": ({"batch": [row // 200 for row in range(ROWS)]}, "counts blocks"),
    "battery": ({"battery": (100 - np.arange(ROWS) / 50).round()}, "state of the device"),
    "linkquality": ({"linkquality": RNG.integers(20, 200, ROWS)}, "state of the device"),
    "RSSI": ({"RSSI": RNG.integers(-90, -40, ROWS)}, "state of the device"),
    "crc16": ({"crc16": RNG.integers(0, 65536, ROWS)}, "state of the device"),
    "unit": ({"unit": ["ugm-3" if row % 5 else "" for row in range(ROWS)]}, "text"),
    "column-1": ({"": ["" for _ in range(ROWS)]}, "no cell has a value"),
    "time": ({"time": RNG.uniform(0, 900, ROWS)}, "neither epochs nor dates"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_no_measured_quantity_is_left_out_with_the_reason(
    name: str, tmp_path: Path
) -> None:
    beside, reason = BESIDE[name]
    plan = plan_beside(tmp_path, beside)
    assert features_of(plan) == ["temp", "hum"]
    assert reason in reason_of(plan, name)
    assert len(plan.understood.columns) == len(beside) + 2, "nothing vanishes"
    assert not plan.understood.na_values, "12E7 of a checksum is no number for no value"


KEPT: dict[str, Sequence[Any]] = {
    "speed": RNG.integers(0, 3000, ROWS),
    "state": RNG.choice(["run", "idle", "off"], ROWS),
    "status": RNG.choice(["run", "idle"], ROWS),
    "valve": RNG.integers(0, 2, ROWS),
    "frequency": RNG.normal(50, 0.02, ROWS).round(3),
    "grid": RNG.normal(230, 2, ROWS).round(1),
    "temp_out_f": (1.8 * RNG.normal(20, 5, ROWS) + 32).round(1),
    "pressure": np.cumsum(RNG.normal(0, 1, ROWS)).round(2),
    "cooling": (30 - np.arange(ROWS) / 50 + RNG.normal(0, 1, ROWS)).round(2),
    "trend": (np.arange(ROWS) / 100 + RNG.normal(0, 1, ROWS)).round(2),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_may_be_one_stays_a_feature(name: str, tmp_path: Path) -> None:
    assert features_of(plan_beside(tmp_path, {name: KEPT[name]})) == [name, "temp", "hum"]


def test_a_copy_of_a_column_counts_once(tmp_path: Path) -> None:
    columns = planted(ROWS)
    file = written(tmp_path / "a.csv", {**columns, "temp_copy": columns["temp"]})
    plan = plan_of([file], OPTIONS)
    assert features_of(plan) == ["temp", "hum"]
    assert reason_of(plan, "temp_copy") == "the same as temp in every row"


def test_clients_are_several_and_every_row_is_of_one(tmp_path: Path) -> None:
    assert plan_beside(tmp_path, {"device": TURNS}).understood.clients == ("101", "102", "103")
    for texts in (["a"] * ROWS, ["a" if row % 3 else "" for row in range(ROWS)]):
        assert not plan_beside(tmp_path, {"device": texts}).understood.clients
    for name in ("unit", "units"):
        assert not plan_beside(tmp_path, {name: TURNS}).understood.clients


def test_devices_are_known_by_their_names_in_other_languages(tmp_path: Path) -> None:
    names = ["appareil", "Capteur n°", "Dispositivo", "Macchina ID", "Urządzenie", "Датчик"]
    names += ["设备编号", "设备", "装置名", "장비번호", "src"]
    assert [name for name in names if not is_named("client", name)] == []
    assert plan_beside(tmp_path, {"设备编号": TURNS}).understood.clients == ("101", "102", "103")
    for name in ("设备温度", "local", "source", "linear", "датчик температуры"):
        assert not is_named("client", name)


def test_a_column_without_a_name_is_called_by_its_place(tmp_path: Path) -> None:
    columns = planted(ROWS)
    file = written(tmp_path / "a.csv", {"warm": columns["temp"], "": columns["hum"]})
    plan = plan_of([file], OPTIONS)
    assert features_of(plan) == ["warm", "column-2"]
    source = Replay([file], Columns(("warm", "column-2")), split_of("round-robin", 1, 0, None))
    assert len(source.read(ROWS + 1)) == ROWS


@pytest.mark.parametrize(("suffix", "delimiter"), [("dat", "  "), ("asc", " "), ("prn", "\t ")])
@pytest.mark.parametrize("has_header", [True, False])
def test_runs_of_spaces_separate_cells(
    suffix: str, delimiter: str, has_header: bool, tmp_path: Path
) -> None:
    columns = {"t": [f"{1_700_000_000 + 60 * row}" for row in range(ROWS)], **planted(ROWS)}
    file = written(tmp_path / f"a.{suffix}", columns, delimiter, has_header)
    file.write_text("".join(f"   {line}  \n" for line in file.read_text().splitlines()))
    plan = plan_of([file], OPTIONS)
    names = ["temp", "hum"] if has_header else ["column-2", "column-3"]
    assert features_of(plan)[-2:] == names
    source = Replay([file], Columns(tuple(names)), split_of("round-robin", 1, 0, None))
    readings = source.read(ROWS + 1)
    assert len(readings) == ROWS
    assert np.array(readings.values)[-1].tolist() == [
        float(columns["temp"][-1]),
        float(columns["hum"][-1]),
    ]


# The day of the second ones is no month: they are dates with the month first alone.
@pytest.mark.parametrize("date", ["2024-03-{:02d}", "03/{:02d}/2024"])
def test_a_first_line_of_numbers_and_dates_is_a_reading(tmp_path: Path, date: str) -> None:
    columns = {
        "date": [date.format(13 + row // 24) for row in range(456)],
        "hour": [1 + row % 24 for row in range(456)],
        **planted(456),
    }
    plan = plan_of([written(tmp_path / "a.csv", columns, header=False)], OPTIONS)
    assert plan.settings["time_columns"] == ["column-1", "column-2"]
    assert features_of(plan) == ["column-3", "column-4"]
    assert plan.understood.rows == 456
    assert plan.understood.interval_s == 3600.0


def test_numbers_that_pandas_gives_as_names_are_names(tmp_path: Path) -> None:
    columns = planted(ROWS)
    file = written(tmp_path / "a.csv", {"0": columns["temp"], "1": columns["hum"]})
    assert features_of(plan_of([file], OPTIONS)) == ["0", "1"]


@pytest.mark.parametrize("decimal", [None, ","])
def test_a_cell_of_two_values_is_never_one_number(decimal: str | None, tmp_path: Path) -> None:
    rows = planted(ROWS)
    cells = [f'"+{round(10 * float(value)):04d},1"' for value in rows["temp"]]
    cells[5] = '"+9999,9"'
    file = written(tmp_path / "a.csv", {"TMP": cells, "hum": rows["hum"]})
    if decimal is not None:
        # The other column has decimal points, so that nothing is left.
        with pytest.raises(InvalidData, match="no column of changing numbers"):
            plan_of([file], {**OPTIONS, "decimal": decimal})
        return
    plan = plan_of([file], OPTIONS)
    assert "two values in a cell" in reason_of(plan, "TMP")
    assert features_of(plan) == ["hum"]


LINES = planted(ROWS)
MINUTES = [
    f"2024-03-{1 + row // 200:02d} {row % 200 // 60:02d}:{row % 60:02d}" for row in range(ROWS)
]
HEADERS: dict[str, tuple[str, list[str]]] = {
    "units and processing": (
        "TIMESTAMP,AirTC,RH\nTS,Deg C,%\n,Avg,Smp\n",
        ["AirTC [Deg C]", "RH [%]"],
    ),
    "processing": ("time,temp,hum\n,Avg,Max\n", ["temp", "hum"]),
    "two units and processing": ("TS,BattV_Min,RH\nTS,Volts,%\n,Min,Smp\n", ["RH [%]"]),
    "notes of a station": ("Indoor,Office,\nLat,Long,\nTime,Temp,Hum\n", ["Temp", "Hum"]),
    "its place": ("Name,Long,Lat\nroof,5.5,47.3\nTime,Temp,Hum\n", ["Temp", "Hum"]),
    "names below merged cells": (",Hall 1,\nTime,Temp,Hum\n", ["Hall 1 Temp", "Hall 1 Hum"]),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_may_have_several_lines_and_none_of_them_is_a_reading(
    kind: str, tmp_path: Path
) -> None:
    head, names = HEADERS[kind]
    file = tmp_path / "a.csv"
    rows = [",".join(row) for row in zip(MINUTES, LINES["temp"], LINES["hum"], strict=True)]
    file.write_text(head + "\n".join(rows) + "\n")
    plan = plan_of([file], OPTIONS)
    assert features_of(plan) == names
    assert plan.understood.rows == ROWS
    source = Replay([file], Columns(tuple(names)), split_of("round-robin", 1, 0, None))
    readings = source.read(ROWS + 9)
    assert len(readings) == ROWS
    first = [float(LINES["temp"][0]), float(LINES["hum"][0])]
    assert np.array(readings.values)[0].tolist() == first[-len(names) :]


def test_signs_of_one_letter_are_the_units_they_look_like(tmp_path: Path) -> None:
    rows = planted(ROWS)
    wind = np.random.default_rng(2).integers(0, 360, ROWS)
    columns = {"Out (\u2103)": rows["temp"], "In, \u00baC": rows["hum"], "Wind (\u00ba)": wind}
    plan = plan_of([written(tmp_path / "a.csv", columns, ";")], OPTIONS)
    features = plan.understood.of("feature")
    assert [column.unit for column in features] == ["\u00b0C", "\u00b0C", "\u00b0"]
    assert features[2].period == 360


def test_words_for_no_value_in_the_first_rows_are_no_header(tmp_path: Path) -> None:
    columns = planted(ROWS)
    for row in range(2):
        columns["temp"][row] = columns["hum"][row] = "unavailable"
    columns["mode"] = ["auto"] * ROWS
    assert plan_of([written(tmp_path / "a.csv", columns)], OPTIONS).understood.rows == ROWS


def test_a_first_line_with_a_date_and_a_decimal_is_a_reading_whatever_texts_are_beside(
    tmp_path: Path,
) -> None:
    beside = {"time": MINUTES, "device": [f"s{row % 2}" for row in range(ROWS)]}
    file = written(tmp_path / "a.csv", {**beside, **LINES}, header=False)
    assert plan_of([file], OPTIONS).understood.rows == ROWS
    decimals = [[cell.replace(".", ",") for cell in column] for column in LINES.values()]
    german = {"time": MINUTES, "temp": decimals[0], "hum": decimals[1]}
    plan = plan_of([written(tmp_path / "b.csv", german, ";", header=False)], OPTIONS)
    assert features_of(plan) == ["column-2", "column-3"]
    assert plan.understood.rows == ROWS
    # Years and wavelengths are names.
    named = {"region": ["a", "b"] * (ROWS // 2), "2020.5": LINES["temp"], "2021.5": LINES["hum"]}
    plan = plan_of([written(tmp_path / "c.csv", named)], OPTIONS)
    assert features_of(plan) == ["region", "2020.5", "2021.5"]


def test_runs_of_spaces_separate_a_date_and_a_time_of_day_too(tmp_path: Path) -> None:
    lines = ["date time temp hum"]
    for moment, temp, hum in zip(MINUTES, *LINES.values(), strict=True):
        lines.append(f"{moment}  {temp}   {hum}")
    file = tmp_path / "a.asc"
    file.write_text("\n".join(lines) + "\n")
    plan = plan_of([file], OPTIONS)
    assert features_of(plan) == ["temp", "hum"]
    assert plan.settings["time_columns"] == ["date", "time"]


def test_what_is_below_the_range_of_an_instrument_is_no_value_and_a_category_stays(
    tmp_path: Path,
) -> None:
    columns = {**planted(ROWS), "mode": [("on", "off")[row // 30 % 2] for row in range(ROWS)]}
    for row in range(0, ROWS, 5):
        columns["hum"][row] = "<5" if row % 10 else "off"
    plan = plan_of([written(tmp_path / "a.csv", columns)], OPTIONS)
    assert plan.settings["na_values"] == ["<5"]
    assert features_of(plan) == ["temp", "hum", "mode"]


def test_a_number_that_is_a_value_of_another_column_is_no_value_of_one_alone(
    tmp_path: Path,
) -> None:
    columns = planted(ROWS)
    rng = np.random.default_rng(4)
    columns["pressure"] = rng.normal(1000, 8, ROWS).round(0).tolist()
    columns["pressure"][3:6] = [999.0] * 3
    for row in (7, 90, 300, 500):
        columns["temp"][row] = "999.0"
        columns["hum"][row] = "9.969209968386869e+36"
    plan = plan_of([written(tmp_path / "a.csv", columns)], OPTIONS)
    assert plan.settings["na_values"] == ["9.969209968386869e+36"]
    assert plan.settings["na_values_of"] == {"temp": ["999"]}
    out = tmp_path / "a.toml"
    out.write_text(federation_file(plan), encoding="utf-8")
    config = load_config(out)
    options = with_settings({**PLAIN_REPLAY, "files": (tmp_path / "a.csv",)}, config)
    values = FILES.open(config.contract, options).read(ROWS).values
    missing = [[cell is None or np.isnan(cell) for cell in row] for row in values]
    assert np.flatnonzero(np.array(missing)[:, 0]).tolist() == [7, 90, 300, 500]
    assert np.flatnonzero(np.array(missing)[:, 1]).tolist() == [7, 90, 300, 500]
    assert not np.array(missing)[:, 2].any()
    for settings in (MqttSettings, KafkaSourceSettings):
        rules: Any = settings(na_values_of={"warm": ["999"]})
        rules.check(CONTRACT)
        wanted = [TopicField(0, "warm", na_values=("999",)), TopicField(1, "damp")]
        parsed = parse_payload(b'{"warm": 999.0, "damp": 999}', wanted, rules, 1.7e9)
        assert parsed.values is not None
        assert parsed.values.values == {1: 999.0}
        with pytest.raises(SettingsError, match="cold"):
            settings(na_values_of={"cold": ["1"]}).check(CONTRACT)


@pytest.mark.parametrize("fill", [-99.9, 99.99, 9999, 65535, 32767, -32768, -999.9, 1e20, -3.4e38])
def test_a_fill_value_far_from_all_others_is_proposed_as_no_value(
    fill: float, tmp_path: Path
) -> None:
    columns = planted(3000)
    for row in (400, 2100):
        columns["temp"][row] = f"{fill:g}"
    plan = plan_of([written(tmp_path / "a.csv", columns)], OPTIONS)
    assert plan.settings["na_values"] == [f"{fill:g}"]
    column = plan.understood.of("feature")[0]
    assert column.low > 5
    assert column.high < 40


def test_updates_of_a_slow_sensor_are_no_longer_than_a_part_of_a_day(tmp_path: Path) -> None:
    for step_s, expected in ((300, 72), (60, 75), (3600, 20)):
        times = [f"{1_700_000_000 + step_s * row}" for row in range(3000)]
        file = written(tmp_path / "a.csv", {"ts": times, **planted(3000)})
        text = federation_file(plan_of([file], OPTIONS))
        found = re.search(r"publish_readings = (\d+)", text)
        assert found is not None
        assert int(found[1]) == expected


def test_serial_numbers_of_a_logger_are_no_part_of_a_name(tmp_path: Path) -> None:
    rows = planted(ROWS)
    serial = "(LGR S/N: 10234567, SEN S/N: 10234567)"
    columns = {f"Temp, \u00b0F {serial}": rows["temp"], f"RH, % {serial}": rows["hum"]}
    plan = plan_of([written(tmp_path / "a.csv", columns, ";")], OPTIONS)
    assert features_of(plan) == ["Temp", "RH"]
    assert [column.unit for column in plan.understood.of("feature")] == ["\u00b0F", "%"]


VENDORS: dict[str, tuple[tuple[str, str], list[str]]] = {
    "a historian": (
        ("\\\\PLANT01\\Area1.Unit3.TI101.PV", "\\\\PLANT01\\Area1.Unit3.MI7.PV"),
        ["TI101", "MI7"],
    ),
    "a building": (
        ("Tower B - Hall 3 - Supply Air (°C)", "Tower B - Hall 3 - Relative Humidity (%)"),
        ["Supply Air (°C)", "Relative Humidity (%)"],
    ),
    "OPC UA": (
        ("ns=2;s=Channel1.Device1.Temp", "ns=2;s=Channel1.Device1.Hum"),
        ["Temp", "Hum"],
    ),
    "a logger": (
        ("Temp, °C (LGR S/N: 7, SEN S/N: 1, LBL: Top)", "Temp, °C (LGR S/N: 7, LBL: Low)"),
        ["Temp Top", "Temp Low"],
    ),
    "numbers alone": (("sensors/hall/north/101", "sensors/hall/north/102"), []),
    "names that only begin alike": (("temperature_of_the_room_a", "temperature_of_the_wall"), []),
}


@pytest.mark.parametrize("vendor", VENDORS)
def test_long_names_are_shortened_to_the_part_in_which_they_differ(
    vendor: str, tmp_path: Path
) -> None:
    long_names, short_names = VENDORS[vendor]
    columns = dict(zip(long_names, planted(ROWS).values(), strict=True))
    file = written(tmp_path / "a.csv", columns, "\t")
    plan = plan_of([file], OPTIONS)
    names = short_names or list(long_names)
    assert features_of(plan) == names
    out = tmp_path / "a.toml"
    out.write_text(federation_file(plan), encoding="utf-8")
    config = load_config(out)
    options = with_settings({**PLAIN_REPLAY, "files": (file,)}, config)
    readings = FILES.open(config.contract, options).read(ROWS + 1)
    assert len(readings) == ROWS
    assert np.array(readings.values)[0].tolist() == [float(own[0]) for own in columns.values()]
