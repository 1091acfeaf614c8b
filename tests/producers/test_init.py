"""`shoal init` on files with other people's habits: what it understands, what it writes, what it
refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal.config.base import client_name_of
from shoal.config.settings import load_config
from shoal.errors import InvalidData, SettingsError, ShoalError
from shoal.privacy.imperfect import step_of
from shoal.producers.column_types import Sample
from shoal.producers.columns import understand
from shoal.producers.features import bounds_of, unit_of
from shoal.producers.files.source import FILES, PLAIN_REPLAY, FilesSettings, with_settings
from shoal.producers.files.times import TimeOptions
from shoal.producers.init_command import init_command
from shoal.producers.producer_command import producer

Write = Callable[[str], Path]
SECRET = "21,73"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(init_command, arguments)
    if result.exception and not isinstance(result.exception, ShoalError | SystemExit):
        raise result.exception
    return result


def german_file(path: Path, rows: int = 1500, seed: int = 3) -> None:
    """Two rooms, semicolons, decimal commas, dates in two columns, a code for no value, a constant,
    a text."""
    generator = np.random.default_rng(seed)
    with path.open("w", encoding="cp1252", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(
            ["Datum", "Uhrzeit", "Raum", "Temp (°C)", "rF [%]", "CO2_ppm", "Gerät", "Bemerkung", ""]
        )
        for n in range(rows):
            day, minute = divmod(n, 1440)
            warm = 21 + 4 * generator.standard_normal()
            cells = [
                f"{warm:.2f}",
                f"{min(99, max(1, 45 + 9 * generator.standard_normal())):.1f}",
                "-999",
            ]
            if n % 50:
                cells[2] = f"{450 + 300 * generator.random():.0f}"
            writer.writerow(
                [
                    f"{14 + day:02d}.03.2024",
                    f"{minute // 60:02d}.{minute % 60:02d}.00",
                    "Büro" if n % 2 else "Flur",
                    *(cell.replace(".", ",") for cell in cells),
                    "7",
                    "ok",
                    "",
                ]
            )


def test_one_command_understands_a_file_and_writes_one_that_runs(folder: Path) -> None:
    german_file(folder / "Werk Süd.csv")
    result = run("Werk Süd.csv")
    assert result.exit_code == 0, result.output
    config = load_config(folder / "Werk Süd.toml")
    contract = config.contract
    files = config.source("files")
    assert contract.federation == "werk-sud"
    assert [(feature.name, feature.unit) for feature in contract.features] == [
        ("Temp (°C)", "°C"),
        ("rF [%]", "%"),
        ("CO2_ppm", "ppm"),
    ]
    assert (contract.features[1].low, contract.features[1].high) == (0.0, 100.0)
    assert contract.features[2].low >= 0, "the code for no value is no bound"
    assert contract.privacy.mode == "formal", "private without a terminal"
    assert contract.models[0].algorithm == "density_tree"
    assert files.model_dump(exclude_defaults=True) == {
        "time_columns": ("Datum", "Uhrzeit"),
        "split": "column:Raum",
        "date_format": "day-first",
        "na_values": ("-999",),
    }
    for said in (
        "delimiter ';', decimal sign ',', encoding cp1252",
        "the same value everywhere",
        "text",
        "PROPOSALS",
    ):
        assert said in result.output
    assert "'Büro' is buro-" in result.output
    assert config.server.client_names == {
        client_name_of("Büro"): "Büro",
        client_name_of("Flur"): "Flur",
    }
    assert "shoal host --config 'Werk Süd.toml'   # at the site of Flur, Büro\n" in result.output


def test_times_are_proposed_as_public_where_a_column_holds_them(folder: Path) -> None:
    german_file(folder / "a.csv")
    result = run("a.csv")
    assert load_config(folder / "a.toml").contract.privacy.times == "public"
    assert result.output.count('times = "public" lets history') == 1
    (folder / "b.csv").write_text(
        "warm,damp\n" + "".join(f"{20 + n % 7},{40 + n % 5}\n" for n in range(300))
    )
    result = run("b.csv")
    assert load_config(folder / "b.toml").contract.privacy.times == "arrival"
    assert "times =" not in result.output
    assert "times =" not in (folder / "b.toml").read_text()


@pytest.mark.parametrize(
    ("columns", "option", "models"),
    [
        ("time", "--public", ["cluster_tree", "states"]),
        ("time", "--private", ["density_tree"]),
        ("time,room", "--public", ["cluster_tree"]),
        ("", "--public", ["cluster_tree"]),
    ],
)
def test_states_are_proposed_for_one_source_in_the_order_of_time(
    folder: Path, columns: str, option: str, models: list[str]
) -> None:
    begin = datetime(2024, 3, 4, tzinfo=UTC)
    lines = [f"warm,damp,{columns}".strip(",")]
    for number in range(400):
        cells = [f"{20 + number % 7 / 3}", f"{40 + number % 5 / 7}"]
        if columns:
            cells.append(f"{begin + timedelta(minutes=number):%Y-%m-%dT%H:%M:%SZ}")
        if "room" in columns:
            cells.append("hall" if number % 2 else "yard")
        lines.append(",".join(cells))
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    result = run("a.csv", option)
    assert result.exit_code == 0, result.output
    contract = load_config(folder / "a.toml").contract
    assert [model.algorithm for model in contract.models] == models
    # Also where it is not proposed, a reader learns of it.
    assert result.output.count("readings are of one source") == (columns == "time")


@pytest.mark.parametrize(("minutes", "window"), [(1, 360), (5, 100), (1 / 60, 400), (120, 84)])
def test_windows_of_counts_are_short_enough_to_show_the_day(
    folder: Path, minutes: float, window: int
) -> None:
    begin = datetime(2024, 3, 4, tzinfo=UTC)
    lines = ["time,warm,damp"]
    for number in range(600):
        moment = begin + timedelta(minutes=minutes) * number
        lines.append(f"{moment:%Y-%m-%dT%H:%M:%SZ},{20 + number % 7 / 3},{40 + number % 5 / 7}")
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    result = run("a.csv")
    assert result.exit_code == 0, result.output
    privacy = load_config(folder / "a.toml").contract.privacy
    assert privacy.window_readings == window
    if window < 400:
        assert privacy.window_s >= window * minutes * 60, "a live sensor fills it in time"


def test_cells_are_shown_on_a_terminal_only(folder: Path) -> None:
    german_file(folder / "a.csv")
    first = (folder / "a.csv").read_text(encoding="cp1252").splitlines()[1].split(";")[3]
    assert first not in run("a.csv").output
    assert first not in (folder / "a.toml").read_text()


def test_the_file_of_a_person_is_never_overwritten(folder: Path) -> None:
    german_file(folder / "a.csv")
    assert run("a.csv", "--public").exit_code == 0
    mine = (folder / "a.toml").read_text().replace("low = 0.0", "low = -1.0", 1)
    (folder / "a.toml").write_text(mine)
    result = run("a.csv", "--public")
    assert isinstance(result.exception, SettingsError)
    assert "--diff" in str(result.exception)
    changed = run("a.csv", "--public", "--diff")
    assert "-low = -1.0" in changed.output
    assert "+low = 0.0" in changed.output
    assert (folder / "a.toml").read_text() == mine


@pytest.mark.parametrize(
    ("text", "said", "error"),
    [
        ("", "empty", InvalidData),
        ("a,b\n", "no rows", InvalidData),
        ("1,2\n3,4\n", "header", InvalidData),
        ("a,b\nx,y\nz,w\n", "nothing to cluster", InvalidData),
        ("a;b\n1,234;2\n3,456;1\n", "--decimal", SettingsError),
        ("date,a\n01/02/2024,1\n02/02/2024,5\n", "--date-format", SettingsError),
    ],
)
def test_what_is_not_understood_is_refused_with_the_cause(
    folder: Path, text: str, said: str, error: type[ShoalError]
) -> None:
    (folder / "a.csv").write_text(text)
    result = run("a.csv")
    assert isinstance(result.exception, error)
    assert said in str(result.exception)
    assert not (folder / "a.toml").exists()


def test_many_columns_are_one_command(folder: Path) -> None:
    generator = np.random.default_rng(5)
    header = ",".join(["engine", "cycle", *(f"s{n}" for n in range(43))])
    rows = [
        ",".join(
            [
                str(1 + n // 40),
                str(1 + n % 40),
                *(f"{value:.4f}" for value in generator.normal(n % 3, 1, 43)),
            ]
        )
        for n in range(400)
    ]
    (folder / "engines.csv").write_text("\n".join([header, *rows]) + "\n")
    result = run("engines.csv", "--public")
    contract = load_config(folder / "engines.toml").contract
    assert contract.width == 43
    assert "engine" not in [feature.name for feature in contract.features]
    command = "shoal host --config engines.toml   # at the site of 1, 2, 3 and 7 more\n"
    assert command in result.output


@pytest.mark.parametrize(
    ("column", "name", "unit"),
    [
        ("Temp (°C)", "Temp", "°C"),
        ("pm2.5 [ug/m3]", "pm2.5", "ug/m3"),
        ("CO2_ppm", "CO2", "ppm"),
        ("temp degC", "temp", "°C"),
        ("ppm", "ppm", ""),
        ("position", "position", ""),
    ],
)
def test_units_are_read_from_names(column: str, name: str, unit: str) -> None:
    assert unit_of(column) == (name, unit)


@pytest.mark.parametrize("seed", range(20))
def test_bounds_are_outside_of_the_values_and_not_far(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(generator.uniform(-1e4, 1e4), 10 ** generator.uniform(-3, 4), 3000)
    low, high = bounds_of(values, "")
    assert low < values.min()
    assert values.max() < high
    assert high - low < 2 * np.ptp(values)
    assert not {low, high} & set(values.tolist()), "a bound is no value of somebody's reading"


def test_a_gross_error_of_a_sensor_does_not_make_the_bounds() -> None:
    values = np.append(np.random.default_rng(0).normal(20, 2, 5000), 7e5)
    assert bounds_of(values, "°C")[1] < 100


def test_a_column_of_zeros_and_ones_has_them_as_bounds(folder: Path) -> None:
    assert bounds_of(np.array([0.0, 1.0, 1.0]), "") == (0.0, 1.0)
    for others in ([0.0, 2.0], [0.0, 0.5, 1.0], [1.0], [0.0]):
        assert bounds_of(np.array(others), "")[1] > max(others), others
    (folder / "a.csv").write_text(
        "warm,open\n" + "".join(f"{7 * n % 17}.5,{n // 50 % 2}\n" for n in range(400))
    )
    assert run("a.csv", "--private").exit_code == 0
    feature = load_config(folder / "a.toml").contract.features[1]
    assert (feature.kind, feature.low, feature.high, feature.step) == ("number", 0.0, 1.0, 0.0)


def test_a_number_in_use_for_no_value_is_a_value_where_others_are_near() -> None:
    generator = np.random.default_rng(0)
    rows = [
        [f"{cold:.0f}", f"{warm:.0f}"]
        for cold, warm in generator.normal([-200, 5], [50, 1], (900, 2))
    ]
    rows[10:20] = [["-200", "-999"]] * 10
    found = understand(Sample(["a", "b"], rows, 900), TimeOptions())
    assert found.na_values == ("-999",)


def test_long_and_odd_names_become_short_ones_that_differ_and_the_columns_are_still_read(
    folder: Path,
) -> None:
    columns = [
        f"line {n // 2} / pump station {n % 2} / {'outlet ' * 9}flow, 15 min {n % 3} (l/min)"
        for n in range(4)
    ]
    columns += ["a\u00a0b", "温度 (°C)"]
    generator = np.random.default_rng(5)
    rows = [[f"{value:.2f}" for value in row] for row in generator.random((300, 6))]
    with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    assert run("a.csv").exit_code == 0
    config = load_config(folder / "a.toml")
    names = [feature.name for feature in config.contract.features]
    assert len(set(names)) == 6
    assert names[0].startswith("line 0 / pump station 0 / outlet")
    assert names[4:] == ["a b", "温度 (°C)"]
    source = FILES.open(
        config.contract, with_settings({**PLAIN_REPLAY, "files": (folder / "a.csv",)}, config)
    )
    np.testing.assert_allclose(
        np.array(source.read(300).values, dtype=float), np.array(rows, dtype=float)
    )


@pytest.mark.parametrize("step", [1, 3])
def test_a_number_that_grows_alike_from_row_to_row_is_no_feature(step: int, folder: Path) -> None:
    lines = [f"{1000 + step * n},{7 * n % 23}.5" for n in range(300)]
    (folder / "a.csv").write_text("\n".join(["id,x", *lines]), encoding="utf-8")
    assert "id  left out" in run("a.csv").output


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Schall dB(A)", ("Schall", "dB(A)")),
        ("Luft [dB(C)]", ("Luft", "dB(C)")),
        ("Volumenstrom m3/h", ("Volumenstrom", "m3/h")),
        ("Battery Monitor [256]", ("Battery Monitor [256]", "")),
    ],
)
def test_a_unit_in_a_name_is_found(name: str, found: tuple[str, str]) -> None:
    assert unit_of(name) == found


def test_a_column_without_a_value_is_no_column_of_texts(folder: Path) -> None:
    rows = "".join(
        f"2024-01-01 00:{n:02},{n % 7},NaN,,{'on' if n == 9 else ''}\n" for n in range(40)
    )
    (folder / "a.csv").write_text(f"when,warm,broken,empty,note\n{rows}", encoding="utf-8")
    said = [line.split(maxsplit=1) for line in run("a.csv").output.splitlines()]
    found = {
        name: why
        for name, why in (line for line in said if len(line) == 2)
        if why.startswith("left out")
    }
    assert found == {
        "broken": "left out: no cell has a value",
        "empty": "left out: no cell has a value",
        "note": "left out: text",
    }


def test_files_of_one_folder_share_no_state(folder: Path) -> None:
    for name in ("a", "b"):
        german_file(folder / f"{name}.csv")
        assert run(f"{name}.csv").exit_code == 0
    first, second = (load_config(folder / f"{name}.toml") for name in ("a", "b"))
    for file in (first, second):
        folders = {file.client.folder, file.server.folder, file.events.folder}
        assert len(folders) == 3
    assert not {first.events.folder, first.server.folder} & {
        second.events.folder,
        second.server.folder,
    }


def test_words_among_numbers_that_repeat_stand_for_no_value(folder: Path) -> None:
    words = {0: "-", 1: "n/a"}
    cells = [
        [words.get(n % 40, f"{n % 17}.5"), "1.5 bar" if n == 9 else str(n % 5)] for n in range(400)
    ]
    with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["flow", "pressure"], *cells])
    assert "-, n/a taken for no value" in run("a.csv").output
    config = load_config(folder / "a.toml")
    files = config.source("files")
    assert isinstance(files, FilesSettings)
    assert files.na_values == ("-", "n/a")
    assert config.contract.learns_gaps


def test_an_export_of_a_spreadsheet_is_understood(folder: Path) -> None:
    scrap = ["#DIV/0!" if n % 50 == 0 else f"{3 * n % 7}" for n in range(400)]
    cells = [
        f"{5 * n % 17}.5,{5 * n % 6}.25,{7 * n % 23}%,{scrap[n]},{1 + n % 9}/{13 + n % 9}/2024"
        " 2:05 PM"
        for n in range(400)
    ]
    header = 'Oil Temp (\u00b0C),Oil Temp (\u00b0C),Load,Scrap,"Time\nStamp"'
    (folder / "a.csv").write_text("\n".join(["sep=,", header, *cells]), encoding="utf-8")
    output = run("a.csv").output
    assert "header in line 2" in output
    assert "Time Stamp" in output
    config = load_config(folder / "a.toml")
    features = [(feature.name, feature.unit) for feature in config.contract.features]
    assert features[:3] == [
        ("Oil Temp (\u00b0C) #1", "\u00b0C"),
        ("Oil Temp (\u00b0C) #2", "\u00b0C"),
        ("Load", "%"),
    ]
    files = config.source("files")
    assert isinstance(files, FilesSettings)
    assert (files.na_values, files.time_columns) == (("#DIV/0!",), ("Time\nStamp",))
    source = FILES.open(
        config.contract, with_settings({**PLAIN_REPLAY, "files": (folder / "a.csv",)}, config)
    )
    assert [list(row)[:3] for row in source.read(2).values] == [[0.5, 0.25, 0.0], [5.5, 5.25, 7.0]]


def test_a_logger_with_units_below_its_header_and_addresses_of_devices_is_understood(
    folder: Path,
) -> None:
    lines = [
        f"{1735700000000 + 2000 * n}\t70b3d5499{n % 3:07x}\t{7 * n % 17}.5\t{n % 5}\t{{}}"
        for n in range(600)
    ]
    header = (
        "# trace V2\n# station 4\n#\nZeit\tDevEUI\tDruck\tWeg\tRest\n[ms]\t[-]\t[bar]\t[mm]\t[-]"
    )
    (folder / "a.tsv").write_text("\r\n".join([header, *lines]), encoding="utf-8")
    output = run("a.tsv", "--private").output
    assert "names 3 clients" in output
    assert "left out: JSON" in output
    contract = load_config(folder / "a.toml").contract
    assert [(feature.name, feature.unit) for feature in contract.features] == [
        ("Druck [bar]", "bar"),
        ("Weg [mm]", "mm"),
    ]


@pytest.mark.parametrize(
    ("text", "value", "name"),
    [
        (
            "entity_id,state,last_changed\n{0}sensor.warm,21.{1},{2}Z\nsensor.damp,4{1},{2}Z\n",
            "state",
            "entity_id",
        ),
        (
            "#datatype,long,dateTime,double,string\n#default,,,,\n,table,_time,_value,_field\n"
            "{0},0,{2}Z,3.{1},cpu\n,1,{2}Z,2{1},mem\n",
            "_value",
            "_field",
        ),
        (
            "ts;Messgröße;Wert;Status\n{0}{2};Druck;1,{1}5;ok\n{2};Drehzahl;29{1}0;ok\n",
            "Wert",
            "Messgröße",
        ),
    ],
)
def test_a_table_with_a_row_for_each_value_is_refused_with_what_to_do(
    text: str, value: str, name: str, folder: Path
) -> None:
    header, rows = text.split("{0}")
    times = [f"2025-03-01T{minute // 60:02d}:{minute % 60:02d}:00" for minute in range(300)]
    long = "".join(rows.format("", minute % 7, time) for minute, time in enumerate(times))
    (folder / "long.csv").write_text(header + long, encoding="utf-8")
    told = run("long.csv", "--public").exception
    assert isinstance(told, SettingsError)
    assert f"a row has one value, in {value}, of what {name} names" in str(told)
    assert not (folder / "long.toml").exists()
    assert run("long.csv", "--public", "--client-column", name).exit_code == 0, (
        "several devices that measure the same"
    )


def test_notes_of_a_file_stand_above_its_header_and_one_with_a_hash_is_a_header(
    folder: Path,
) -> None:
    rows = "".join(
        f",2025-03-01T00:{n // 60:02d}:{n % 60:02d}Z,{n % 7},{3 + n % 5 / 10}\n" for n in range(600)
    )
    (folder / "notes.csv").write_text(
        f"#datatype,dateTime,double,double\n#default,,,\n,_time,cpu,mem\n{rows}"
    )
    assert "header in line 3" in run("notes.csv", "--public").output
    (folder / "hash.csv").write_text(f"#row,time,cpu,mem\n{rows}")
    assert [feature.name for feature in load_config(folder / "notes.toml").contract.features] == [
        "cpu",
        "mem",
    ]
    run("hash.csv", "--public")
    assert [feature.name for feature in load_config(folder / "hash.toml").contract.features] == [
        "cpu",
        "mem",
    ]


def test_a_word_with_a_point_stands_for_no_value_in_a_file_of_decimal_commas(folder: Path) -> None:
    lines = [f"{'k.A.' if n % 40 == 0 else f'{n % 17},5'};{n % 5},25" for n in range(400)]
    (folder / "a.csv").write_text("\n".join(["Druck;Strom", *lines]), encoding="utf-8")
    assert run("a.csv").exit_code == 0
    files = load_config(folder / "a.toml").source("files")
    assert isinstance(files, FilesSettings)
    assert files.na_values == ("k.A.",)


def test_the_producer_prints_the_same_file(folder: Path) -> None:
    german_file(folder / "a.csv")
    assert run("a.csv").exit_code == 0
    printed = CliRunner().invoke(producer, ["a.csv", "--print-federation"])
    assert printed.exception is None
    assert printed.stdout == (folder / "a.toml").read_text()


@pytest.mark.parametrize(
    ("step", "proposed"), [(1.0, 1.0), (0.5, 0.5), (0.2, 0.2), (0.0, 0.0), (0.001, 0.0), (8.0, 0.0)]
)
def test_a_step_is_proposed_for_coarse_values_and_for_no_others(
    step: float, proposed: float
) -> None:
    values = np.random.default_rng(1).normal(20.0, 4.0, 3000)
    assert step_of(np.rint(values / step) * step if step else values) == proposed


def test_states_have_no_step() -> None:
    generator = np.random.default_rng(1)
    assert step_of(generator.integers(0, 5, 1000).astype(np.float64)) == 0.0
    codes = np.array([1, 2, 3, 10, 20, 50, 60, 80, 90, 120, 200.0])
    assert step_of(generator.choice(codes, 1000)) == 0.0


def test_values_written_with_few_digits_have_their_step() -> None:
    half_hours = np.round(np.random.default_rng(1).integers(0, 48, 3000) / 47, 6)
    assert step_of(half_hours) == pytest.approx(1 / 47, rel=1e-4)


def test_a_step_is_written_into_the_file(folder: Path) -> None:
    warm = np.rint(np.random.default_rng(2).normal(20.0, 4.0, 500))
    (folder / "hall.csv").write_text(
        "warm,fine\n"
        + "".join(f"{file:g},{file + n % 499 / 499:.4f}\n" for n, file in enumerate(warm))
    )
    result = run("hall.csv", "--public")
    assert "in steps of 1" in result.output
    assert [feature.step for feature in load_config(folder / "hall.toml").contract.features] == [
        1.0,
        0.0,
    ]


def cells_run(*arguments: str) -> Any:
    """What clients get of the file that `shoal init` has looked at: (n, d) values, missing ones as
    NaN."""
    assert CliRunner().invoke(init_command, [*arguments, "--private"]).exit_code == 0
    file = Path(arguments[0])
    config = load_config(file.with_suffix(".toml"))
    source = FILES.open(config.contract, with_settings({**PLAIN_REPLAY, "files": (file,)}, config))
    values = source.read(10_000).values
    assert not source.faults
    return np.array(
        [[np.nan if cell is None else cell for cell in row] for row in values], dtype=np.float64
    )


def test_a_number_for_no_value_is_found_however_the_file_writes_it(folder: Path) -> None:
    rows = [f"{n},{20 + n % 7}.25,{-999 if n % 10 == 3 else 400 + n % 50}.00" for n in range(2000)]
    (folder / "a.csv").write_text("\n".join(["n,warm,co2", *rows]), encoding="utf-8")
    assert int(np.isnan(cells_run("a.csv")[:, -1]).sum()) == 200
    lines = [
        {"warm": 20.0 + n % 7, "co2": -999.0 if n % 10 == 3 else 400.0 + n % 50}
        for n in range(2000)
    ]
    (folder / "b.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert int(np.isnan(cells_run("b.jsonl")[:, -1]).sum()) == 200


def test_truths_are_a_category_whose_values_are_read_again(folder: Path) -> None:
    lines = [{"warm": 20.0 + n % 7, "open": n % 3 == 0} for n in range(300)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert set(cells_run("a.jsonl")[:, 1]) == {0.0, 1.0}


def test_fields_of_objects_within_objects_are_columns(folder: Path) -> None:
    lines = [
        {"at": n * 60, "device": {"id": f"d{n % 2}"}, "state": {"warm": {"value": n % 7}}}
        for n in range(300)
    ]
    lines[7]["state"] = {}
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    values = cells_run("a.jsonl")
    assert load_config(Path("a.toml")).contract.features[0].name == "state.warm.value"
    assert np.isnan(values[7]).all()
    assert list(values[:3, 0]) == [0.0, 1.0, 2.0]
    config = load_config(Path("a.toml"))
    source = FILES.open(
        config.contract, with_settings({**PLAIN_REPLAY, "files": (Path("a.jsonl"),)}, config)
    )
    assert FILES.clients(source) == ["d0", "d1"]
