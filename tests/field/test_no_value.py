"""What means "no value" means it at every door: files, MQTT, Kafka, HTTP and the library."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import shoal
from shoal.config.resolved import resolve
from shoal.errors import InvalidData
from shoal.estimators.base import as_table
from shoal.producers.files.form import FileForm
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import split_of
from shoal.producers.kafka.settings import KafkaSourceSettings
from shoal.producers.messages import TopicField, parse_payload
from shoal.producers.mqtt.settings import MqttSettings
from shoal.protocol.reading_faults import fault_of
from shoal.server_node.outputs.web.predictions import read_readings
from tests.field.planted import CONTRACT

WORDS = (
    "unavailable",
    "Unknown",
    "None",
    "NaN",
    "nan",
    "n/a",
    "N/A",
    "#N/A",
    "null",
    "Bad",
    "---",
    "-",
    "?",
    " ",
    "",
    "<NA>",
    "NaT",
    "No Data",
    "I/O Timeout",
    "1.#QNAN",
    "[unknown]",
    "[-11059] No Good Data For Calculation",
    "Arc Off-line",
    "[-255] I/O Timeout",
)
CELLS = (*WORDS, None, math.nan)
NUMBERS_OR_ELSE = ("wet", "12 apples", "[12] apples", "on", True, [1.0])
"""what is neither a number nor "no value" """


def by_file(cell: Any, folder: Path) -> list[float]:
    file = folder / "readings.jsonl"
    file.write_text(json.dumps({"warm": cell, "damp": 52.5}) + "\n")
    return replayed(file)


def by_csv(cell: Any, folder: Path) -> list[float]:
    file = folder / "readings.csv"
    text = "" if cell is None else str(cell)
    file.write_text(f'warm,damp\n1.0,2.0\n"{text}",52.5\n3.0,4.0\n')
    return replayed(file, 1)


def replayed(file: Path, place: int = 0) -> list[float]:
    form = FileForm(missing="learn", learns_gaps=True)
    source = Replay(
        [file], Columns(("warm", "damp")), split_of("round-robin", 1, 0, None), form=form
    )
    return usable(source.read(10).values[place])


def usable(row: Any) -> list[float]:
    """The row as a client learns it."""
    if fault_of(row, 2, gaps=True) is not None:
        raise InvalidData("the client rejects it")
    return [math.nan if value is None else value for value in row]


def by_message(settings: Any) -> Callable[[Any, Path], list[float]]:
    def door(cell: Any, _: Path) -> list[float]:
        payload = json.dumps({"warm": cell, "damp": 52.5}).encode()
        wanted = [TopicField(0, "warm"), TopicField(1, "damp")]
        values, faults, *_ = parse_payload(payload, wanted, settings, 1.7e9)
        if values is None or set(faults) - {"missing"}:
            raise InvalidData("not learnt")
        return [values.values.get(feature, math.nan) for feature in range(2)]

    return door


def by_http(cell: Any, _: Path) -> list[float]:
    body = json.dumps([[cell, 52.5]]).encode()
    return read_readings("application/json", body, resolve(CONTRACT)).tolist()[0]


def by_http_csv(cell: Any, _: Path) -> list[float]:
    body = f'warm,damp\n"{"" if cell is None else cell}",52.5\n'.encode()
    return read_readings("text/csv", body, resolve(CONTRACT)).tolist()[0]


def by_list(cell: Any, _: Path) -> list[float]:
    return as_table([[cell, 52.5]], gaps=True).tolist()[0]


def by_frame(cell: Any, _: Path) -> list[float]:
    return as_table(pd.DataFrame({"warm": [cell], "damp": [52.5]}), gaps=True).tolist()[0]


DOORS: dict[str, Callable[[Any, Path], list[float]]] = {
    "JSON lines": by_file,
    "CSV": by_csv,
    "MQTT": by_message(MqttSettings()),
    "Kafka": by_message(KafkaSourceSettings()),
    "HTTP": by_http,
    "CSV by HTTP": by_http_csv,
    "a list": by_list,
    "a DataFrame": by_frame,
}


@pytest.mark.parametrize("door", DOORS)
def test_what_means_no_value_leaves_the_other_values_of_its_reading(
    door: str, tmp_path: Path
) -> None:
    for cell in CELLS:
        first, second = DOORS[door](cell, tmp_path)
        assert math.isnan(first), cell
        assert second == 52.5, cell


@pytest.mark.parametrize("door", [name for name in DOORS if "CSV" not in name])
def test_any_other_text_is_no_number_and_no_missing_value_either(door: str, tmp_path: Path) -> None:
    for cell in NUMBERS_OR_ELSE:
        # NumPy has truths as numbers.
        if cell is True and door.startswith("a "):
            continue
        with pytest.raises(InvalidData):
            DOORS[door](cell, tmp_path)


@pytest.mark.parametrize("settings", [MqttSettings, KafkaSourceSettings])
def test_numbers_that_a_person_names_as_no_value_are_none_in_messages(settings: Any) -> None:
    door = by_message(settings(na_values=("-999", "faulty")))
    for cell in (-999, -999.0, "-999.00", "faulty"):
        assert math.isnan(door(cell, Path())[0]), cell


STREAMING = (shoal.ClusterTree, shoal.DensityTree, shoal.FCAC, shoal.States)
IN_ROUNDS = (shoal.FederatedKMeans, shoal.FederatedGMM, shoal.KFED, shoal.FederatedDBSCAN)
FRAME = pd.DataFrame(
    {
        "warm": np.repeat([14.0, 21.0, 28.0], 40) + np.tile([0.1, 0.2, 0.3, 0.4], 30),
        "damp": np.repeat([35.0, 52.0, 78.0], 40) + np.tile([0.3, 0.1, 0.5, 0.2], 30),
    }
)


def with_gap(missing: Any) -> Any:
    columns = {name: FRAME[name].astype(object).tolist() for name in FRAME}
    columns["warm"][5] = missing
    return pd.DataFrame(columns)


def masked() -> Any:
    values = FRAME.to_numpy().copy()
    values[5, 0] = 9999.0
    return np.ma.masked_values(values, 9999.0)


GAPS: tuple[Callable[[], Any], ...] = (
    lambda: with_gap(None),
    lambda: with_gap(pd.NA),
    lambda: with_gap(pd.NaT),
    lambda: with_gap("unavailable"),
    lambda: with_gap(pd.NA).astype("Float64"),
    masked,
)


@pytest.mark.parametrize("kind", [*STREAMING, *IN_ROUNDS])
def test_every_estimator_takes_all_ways_to_write_a_gap_as_it_takes_nan(kind: Any) -> None:
    def learnt(X: Any) -> Any:
        given = {"epsilon": None, "low": 0, "high": 100} if kind is shoal.DensityTree else {}
        return kind(**given).fit(X).labels_.tolist()

    if kind in IN_ROUNDS:
        for gap in GAPS:
            with pytest.raises(InvalidData, match="NaN or inf"):
                learnt(gap())
        return
    expected = learnt(with_gap(math.nan).astype(float))
    for gap in GAPS:
        assert learnt(gap()) == expected


@pytest.mark.parametrize("kind", [*STREAMING, *IN_ROUNDS, shoal.FederatedTSK])
def test_a_column_of_times_is_refused_by_its_name(kind: Any) -> None:
    arguments = (np.arange(120.0),) if kind is shoal.FederatedTSK else ()
    moment = datetime(2024, 3, 1, tzinfo=UTC)
    for column in (
        pd.date_range("2024-03-01", periods=120, freq="min"),
        pd.date_range("2024-03-01", periods=120, freq="min", tz="UTC"),
        pd.timedelta_range("1 min", periods=120),
        [moment] * 120,
        [moment.date()] * 120,
    ):
        with pytest.raises(InvalidData, match="holds times"):
            kind().fit(FRAME.assign(when=column), *arguments)


def test_a_frame_of_another_library_is_known_by_the_names_of_its_types() -> None:
    class Frame:
        """As polars has it: its times become whole numbers in an array."""

        columns = ("warm", "when")
        dtypes = ("Float64", "Datetime(time_unit='us', time_zone=None)")

        def __array__(self, *_: Any, **__: Any) -> Any:
            return np.array([[1.0, 1.7e15]] * 3)

    with pytest.raises(InvalidData, match="when holds times"):
        as_table(Frame())  # type: ignore[arg-type]  # only as far as is read


def test_what_is_no_cell_at_all_is_refused_without_its_contents() -> None:
    for cell in ({"secret": 1}, [1.0, 2.0], object()):
        table = np.empty((2, 2), dtype=object)
        table[:] = 1.0
        table[0, 0] = cell
        with pytest.raises(InvalidData) as refused:
            as_table(table)
        assert isinstance(refused.value, TypeError)
        assert "secret" not in str(refused.value)


def test_a_row_that_lacks_a_name_is_refused_with_what_to_give() -> None:
    model = shoal.ClusterTree()
    model.learn_one({"warm": 14.0, "damp": 35.0})
    with pytest.raises(InvalidData, match="give None for warm"):
        model.learn_one({"damp": 35.0})
    model.learn_one({"warm": None, "damp": 35.0})
