"""Columns and fields that say how good values are: used, so that a bad value is no value; where it
is not known what they mean, left out with the option that says so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.producers.federation_file import Plan, federation_file
from shoal.producers.file_plan import plan_of
from shoal.producers.files.source import FILES, PLAIN_REPLAY, with_settings
from shoal.producers.kafka.settings import KafkaSourceSettings
from shoal.producers.message_times import Sampled
from shoal.producers.messages import TopicField, parse_payload
from shoal.producers.mqtt.settings import MqttSettings
from shoal.producers.mqtt.topics import topics_of
from shoal.producers.quality import BadQuality
from shoal.producers.sampled_messages import Stream, _plan
from shoal.protocol.readings import RowsOfValues
from tests.field.planted import CONTRACT, OPTIONS, planted, written

ROWS = 600
FAULTY = 30
"""rows whose temperature is of bad quality, and 99.9"""


def cells(good: Any, bad: Any, uncertain: Any = None) -> list[Any]:
    """(ROWS,) cells of quality, bad in the first rows but one."""
    column = [good] * ROWS
    column[1 : 1 + FAULTY] = [bad] * FAULTY
    if uncertain is not None:
        column[100:110] = [uncertain] * 10
    return column


def file_of(folder: Path, beside: Mapping[str, Sequence[Any]]) -> Path:
    columns = planted(ROWS)
    columns["temp"][1 : 1 + FAULTY] = ["99.9"] * FAULTY
    return written(folder / "a.csv", {"temp": columns["temp"], **beside, "hum": columns["hum"]})


def replayed(plan: Plan, file: Path) -> tuple[RowsOfValues, Mapping[str, int]]:
    """The readings that a producer makes of a file by the federation file of a plan."""
    out = file.with_suffix(".toml")
    out.write_text(federation_file(plan), encoding="utf-8")
    config = load_config(out)
    options = with_settings({**PLAIN_REPLAY, "files": (file,)}, config)
    source = FILES.open(config.contract, options)
    return source.read(ROWS + 1).values, source.faults


USED: dict[str, Mapping[str, Sequence[Any]]] = {
    "words": {"temp.Quality": cells("Good", "Bad", "Uncertain")},
    "longer words": {"temp_status": cells("Good", "BadNoCommunication", "UncertainLastUsable")},
    "OPC": {"temp quality": cells(192, 24, 64)},
    "OPC as decimals": {"tempQuality": cells("192.0", "8.0")},
    "OPC UA": {"temp.StatusCode": cells(0, 2_150_891_520, 1_083_179_008)},
    "OPC UA, signed": {"temp.StatusCode": cells(0, -2_144_075_776)},
    "one letter": {"temp_q": cells(192, 0)},
    "flag of oceanography": {"temp_qc_flag": cells(1, 4, 2)},
    "flag": {"flag_temp": cells(0, 1)},
    "truth": {"temp_valid": cells("true", "false")},
    "raised flag": {"temp_error": cells(0, 1)},
    "the sensor of the row": {"sensor_ok": cells(1, 0)},
    "number of truth": {"temp_ok": cells(1, 0)},
    "of the row": {"status": cells("OK", "Fault")},
    "qc of the row": {"qc_flag": cells(1, 4)},
    "in base 16": {"temp.StatusCode": cells("Good", "BadTimeout")},
}


@pytest.mark.parametrize("kind", USED)
def test_a_value_of_bad_quality_is_missing_and_the_others_of_its_row_are_not(
    kind: str, tmp_path: Path
) -> None:
    beside = USED[kind]
    file = file_of(tmp_path, beside)
    plan = plan_of([file], OPTIONS)
    described = {column.name: column for column in plan.understood.columns}
    (name,) = beside
    assert described[name].kind == "quality"
    assert f"{FAULTY / ROWS:.2%} of the rows" in described[name].reason
    assert [column.name for column in plan.understood.of("feature")] == ["temp", "hum"]
    assert described["temp"].high < 60, "bounds are those of good values"
    values, faults = replayed(plan, file)
    is_of_row = "of the row" in kind
    for row, reading in enumerate(values):
        missing = [value is None or math.isnan(value) for value in reading]
        is_bad = 1 <= row <= FAULTY
        assert missing == [is_bad, is_bad and is_of_row], row
    assert faults == {"bad_quality": FAULTY * (1 + is_of_row)}


def test_codes_of_no_known_list_are_named_and_used_once_a_person_says_what_is_bad(
    tmp_path: Path,
) -> None:
    for name in ("temp Approval", "temp_cd"):
        plan = plan_of([file_of(tmp_path, {name: cells("A", "P")})], OPTIONS)
        assert "how good the values of temp are" in plan.understood.of("left out")[0].reason
    file = file_of(tmp_path, {"temp_qc": cells("A", "P")})
    (column,) = plan_of([file], OPTIONS).understood.of("left out")
    assert "codes of no known list (a, p): name those that mean bad with --bad-quality" in (
        column.reason
    )
    plan = plan_of([file], {**OPTIONS, "bad_quality": ("P",)})
    _, faults = replayed(plan, file)
    assert faults == {"bad_quality": FAULTY}
    for texts in ([row % 5 for row in range(ROWS)], [1.5 * (row % 3) for row in range(ROWS)]):
        plan = plan_of([file_of(tmp_path, {"temp_quality": texts})], OPTIONS)
        assert plan.understood.of("left out")[0].name == "temp_quality"
        assert not plan.understood.quality
    plan = plan_of([file_of(tmp_path, {"temp_flags": cells("V", "I")})], OPTIONS)
    assert "how good the values of temp are" in plan.understood.of("left out")[0].reason
    plan = plan_of([file_of(tmp_path, {"QA": cells("A", "X")})], OPTIONS)
    assert "how good all values of its row are" in plan.understood.of("left out")[0].reason


NONE: dict[str, Sequence[Any]] = {
    "status": [("run", "idle")[row // 7 % 2] for row in range(ROWS)],
    "temp_status": [("run", "idle")[row // 7 % 2] for row in range(ROWS)],
    "air_quality": np.random.default_rng(1).integers(0, 300, ROWS).tolist(),
    "flag": [row // 7 % 2 for row in range(ROWS)],
    "temp_error": np.random.default_rng(1).integers(-2, 3, ROWS).tolist(),
    "vacuum": np.random.default_rng(1).integers(0, 9, ROWS).tolist(),
}


@pytest.mark.parametrize("name", NONE)
def test_a_state_of_a_machine_is_no_quality(name: str, tmp_path: Path) -> None:
    plan = plan_of([file_of(tmp_path, {name: NONE[name]})], OPTIONS)
    assert [column.name for column in plan.understood.of("feature")] == ["temp", name, "hum"]
    assert not plan.understood.quality


def test_columns_of_one_name_are_each_about_the_one_before(tmp_path: Path) -> None:
    columns = planted(ROWS)
    lines = ["temp,Quality,hum,Quality"]
    for row, (temp, hum) in enumerate(zip(*columns.values(), strict=True)):
        lines.append(f"{temp},Good,{hum},{'Bad' if row % 20 == 0 else 'Good'}")
    file = tmp_path / "a.csv"
    file.write_text("\n".join(lines) + "\n")
    plan = plan_of([file], OPTIONS)
    assert plan.settings["quality"] == {"temp": "Quality #1", "hum": "Quality #2"}
    _, faults = replayed(plan, file)
    assert faults == {"bad_quality": ROWS / 20}


def test_a_list_that_another_column_contradicts_is_not_used(tmp_path: Path) -> None:
    beside = {"temp_qc": cells(0, 1), "hum_valid": cells(1, 0)}
    understood = plan_of([file_of(tmp_path, beside)], OPTIONS).understood
    assert understood.quality == {"temp": "temp_qc"}
    assert "means good in another column" in understood.of("left out")[0].reason


def test_cells_that_mean_bad_are_compared_as_people_write_them() -> None:
    rules = BadQuality(("bad*", "no signal", "4", "0..63", "0x80000000"))
    for bad in ("Bad", " BADTIMEOUT", "No Signal", "4.0", 4, 0.0, 63, "0x80000000", 2**31):
        assert rules.is_bad(bad), bad
    for good in (None, "", "good", "no signal yet", 64, "192", 63.5, True, math.nan, "-1"):
        assert not rules.is_bad(good), good
    assert BadQuality(()).is_bad("invalid")
    assert not BadQuality(()).is_bad("0")
    for text in ("*", " "):
        with pytest.raises(SettingsError, match="would be any cell"):
            BadQuality((text,))


SETTINGS: tuple[Any, ...] = (MqttSettings, KafkaSourceSettings)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_field_of_quality_says_which_value_of_a_message_is_missing(settings: Any) -> None:
    rules = settings(quality={"warm": "q.warm"}, bad_quality=("0..63",))
    rules.check(CONTRACT)
    wanted = [TopicField(0, "warm", quality="q.warm"), TopicField(1, "damp")]
    for quality, faults in ((192, []), (24, ["bad_quality"]), (None, []), ("24", ["bad_quality"])):
        payload = json.dumps({"warm": 20.5, "damp": 50, "q": {"warm": quality}}).encode()
        parsed = parse_payload(payload, wanted, rules, 1.7e9)
        assert parsed.values is not None
        assert parsed.faults == faults
        assert set(parsed.values.values) == ({1} if faults else {0, 1})
    for wrong in (settings(quality={"cold": "q"}), settings(bad_quality=("*",))):
        with pytest.raises(SettingsError):
            wrong.check(CONTRACT)


def test_the_topics_of_a_broker_carry_the_field_of_quality() -> None:
    topics = {"warm": "a/+#t", "damp": "a/+#h"}
    settings = MqttSettings(topics=topics, quality={"warm": "t_q"})
    (fields,) = topics_of(settings, CONTRACT, "").values()
    assert [field.quality for field in fields] == ["t_q", ""]
    with pytest.raises(ValueError, match="a plain number has none"):
        MqttSettings(topics={"warm": "a", "damp": "b"}, quality={"warm": "q"})


@pytest.mark.parametrize("kind", ["kafka", "mqtt"])
def test_init_writes_the_fields_of_quality_of_messages_and_what_means_no_value(
    kind: str, tmp_path: Path
) -> None:
    columns = planted(ROWS)
    rows = []
    for row, (temp, hum) in enumerate(zip(*columns.values(), strict=True)):
        is_bad = row % 20 == 3
        own = -999 if row % 50 == 4 else float(hum)
        rows.append([99.9 if is_bad else float(temp), "Bad" if is_bad else "Good", own])
    names = ["io.temp", "io.temp_quality", "io.hum"]
    place = "plant/+#" if kind == "mqtt" else ""
    places = {name: f"{place}{name}" for name in names}
    stream = Stream(names, rows, places, "", {"time": ""}, 1.0)
    messages = [Sampled("plant/a", dict(zip(names, row, strict=True)), 1.7e9) for row in rows]
    plan = _plan(kind, "plant", stream, messages, OPTIONS, {})
    assert plan.settings["quality"] == {"temp": "io.temp_quality"}
    assert plan.settings["na_values"] == ["-999"]
    out = tmp_path / "a.toml"
    out.write_text(federation_file(plan), encoding="utf-8")
    source = load_config(out).source(kind)
    assert isinstance(source, SETTINGS)
    assert source.quality == {"temp": "io.temp_quality"}
    assert source.na_values == ("-999",)
    assert plan.understood.of("feature")[0].high < 60
