"""Files as loggers, weather services and spreadsheets of other countries write them: each is read
with its time, its quantities and nothing else, or refused with the option to give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import SettingsError
from shoal.producers.federation_file import Plan
from shoal.producers.file_plan import plan_of
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import split_of
from tests.field.planted import OPTIONS, planted

ROWS = 120
FIRST = datetime(2024, 1, 12, 10)
TIMES = [FIRST + timedelta(hours=row) for row in range(ROWS)]
CELLS = list(zip(TIMES, *planted(ROWS).values(), strict=True))
DECIMAL_COMMAS = [
    (time, temp.replace(".", ","), hum.replace(".", ",")) for time, temp, hum in CELLS
]


def plan_of_lines(folder: Path, lines: list[str], encoding: str = "utf-8") -> Plan:
    file = folder / "a.csv"
    file.write_bytes("\r\n".join([*lines, ""]).encode(encoding))
    return plan_of([file], OPTIONS)


def features_of(plan: Plan) -> list[str]:
    return [column.name for column in plan.understood.of("feature")]


def _half(time: datetime, am: str, pm: str) -> str:
    return am if time.hour < 12 else pm


def _hour(time: datetime) -> int:
    return time.hour % 12 or 12


DATES = {
    "Chinese": [f"{t.year}年{t.month}月{t.day}日 {t:%H:%M:%S}" for t in TIMES],
    "Chinese, of parts": [f"{t.year}年{t.month}月{t.day}日 {t.hour}时{t.minute}分" for t in TIMES],
    "Taiwanese": [f"{t:%Y/%m/%d} {_half(t, '上午', '下午')} {_hour(t):02d}:00:00" for t in TIMES],
    "Korean": [
        f"{t.year}. {t.month}. {t.day}. {_half(t, '오전', '오후')} {_hour(t)}:00:00" for t in TIMES
    ],
    "Spanish": [f"{t:%d/%m/%Y} {_hour(t)}:00 {_half(t, 'a. m.', 'p. m.')}" for t in TIMES],
    "Czech": [f"{t.day}. {t.month}. {t.year} {t:%H:%M}" for t in TIMES],
    "Hungarian": [f"{t:%Y. %m. %d. %H:%M}" for t in TIMES],
    "Polish": [f"{t.day} sty 2024 {t:%H:%M}" for t in TIMES],
    "Russian": [f"{t.day} янв. 2024 {t:%H:%M}" for t in TIMES],
    "of a browser": [f'"{t:%m/%d/%Y}, {_hour(t)}:00:00\u202f{t:%p}"' for t in TIMES],
}


@pytest.mark.parametrize("country", DATES)
def test_dates_of_other_countries_are_the_time(country: str, tmp_path: Path) -> None:
    lines = ["x;temp;hum"]
    for date, (_, temp, hum) in zip(DATES[country], CELLS, strict=True):
        lines.append(f"{date};{temp};{hum}")
    plan = plan_of_lines(tmp_path, lines)
    assert plan.settings["time_columns"] == ["x"]
    assert plan.understood.interval_s == 3600
    assert features_of(plan) == ["temp", "hum"]
    source = Replay(
        [tmp_path / "a.csv"],
        Columns(("temp", "hum"), time=("x",)),
        split_of("round-robin", 1, 0, None),
    )
    times = np.array(source.read(ROWS + 1).times, dtype=np.float64)
    assert (times[:15] - times[0]).tolist() == [3600 * row for row in range(15)]
    # Midnight and noon are where half days go wrong.
    assert times[0] == FIRST.replace(tzinfo=UTC).timestamp()


def test_a_czech_month_of_four_letters_in_common_with_another_is_itself(tmp_path: Path) -> None:
    for month, number in (("června", 6), ("července", 7), ("września", 9), ("března", 3)):
        dates = [datetime(2024, number, 1 + row // 24, row % 24) for row in range(60)]
        lines = ["čas;temp;hum"]
        for date, (_, temp, hum) in zip(dates, CELLS, strict=False):
            lines.append(f"{date.day}. {month} 2024 {date:%H:%M};{temp};{hum}")
        plan = plan_of_lines(tmp_path, lines)
        assert plan.understood.interval_s == 3600
        source = Replay(
            [tmp_path / "a.csv"],
            Columns(("temp",), time=("čas",)),
            split_of("round-robin", 1, 0, None),
        )
        [first] = np.array(source.read(1).times, dtype=np.float64)
        assert datetime.fromtimestamp(first, UTC).month == number


HEADS: dict[str, tuple[list[str], str, list[str]]] = {
    "sep= and a slash": (
        ["sep=;", "Datum/Uhrzeit;Temperatur;Feuchte"],
        "{t:%d.%m.%Y %H:%M};{a};{b}",
        ["Temperatur", "Feuchte"],
    ),
    "an inverter": (
        [
            "sep=;",
            "Version CSV1|Tool SE",
            "",
            ";SN: 2000123;SN: 2000123",
            ";SB 5;SB 5",
            ";2000123;2000123",
            ";Temp;Hum",
            ";Analog;Analog",
            "dd/MM/yyyy HH:mm;°C;%",
        ],
        "{t:%d/%m/%Y %H:%M};{a};{b}",
        ["Temp [°C]", "Hum [%]"],
    ),
    "forms in brackets": (
        ["Date and time;Temp | X;Hum | X", "[dd.MM.yyyy HH:mm];[°C];[%]"],
        "{t:%d.%m.%Y %H:%M};{a};{b}",
        ["Temp | X [°C]", "Hum | X [%]"],
    ),
    "a time of day with its zone": (
        ["REGIAO:;CO", "DATA DE FUNDACAO:;07/05/00", "Data;Hora UTC;AR (°C);UMIDADE (%);"],
        "{t:%Y/%m/%d};{t:%H%M} UTC;{a};{b};",
        ["AR (°C)", "UMIDADE (%)"],
    ),
    "a date in parts, and a time of day": (
        ["Year;Month;Day;Time;Temp;RH"],
        "{t:%Y;%m;%d;%H:%M};{a};{b}",
        ["Temp", "RH"],
    ),
    "a date in parts, and whole": (
        ["Date/Time (LST);Year;Month;Day;Time (LST);Temp;RH"],
        "{t:%Y-%m-%d %H:%M};{t:%Y;%m;%d;%H:%M};{a};{b}",
        ["Temp", "RH"],
    ),
    "a second date": (
        ["UTC_DATE;UTC_TIME;LST_DATE;LST_TIME;Temp;RH"],
        "{t:%Y%m%d;%H%M;%Y%m%d;%H%M};{a};{b}",
        ["Temp", "RH"],
    ),
    "no cell where all rows have none": (
        ["Store;Time;Temp(°C);Hum(%rh);Serial Number", "1;12/01/2024 09:00:00;14,1;35;0100"],
        "1;{t:%d/%m/%Y %H:%M:%S};{a};{b}",
        ["Temp(°C)", "Hum(%rh)"],
    ),
    "a delimiter more than names": (
        ["Time;Temp;RH"],
        "{t:%Y-%m-%dT%H:%M:%S};{a};{b};",
        ["Temp", "RH"],
    ),
    "row names of R": (
        ['"Time";"Temp";"RH"'],
        '"{t:%j%H}";"{t:%Y-%m-%d %H:%M:%S}";{a};{b}',
        ["Temp", "RH"],
    ),
    "headers of headers": (
        [
            "Measurement",
            "Version\t2",
            "***End***",
            "",
            "Channels\t2",
            "Date\t2024/01/12\t2024/01/12",
            "X0\t0\t0",
            "***End***",
            "Time\tTemp\tHum\tComment",
        ],
        "{t:%Y-%m-%dT%H:%M:%S}\t{a}\t{b}",
        ["Temp", "Hum"],
    ),
    "units right behind": (
        ["Time;Temperature°C;Humidity%RH"],
        "{t:%Y-%m-%dT%H:%M:%S};{a};{b}",
        ["Temperature°C", "Humidity%RH"],
    ),
}


@pytest.mark.parametrize("habit", HEADS)
def test_heads_and_rows_of_loggers_are_read(habit: str, tmp_path: Path) -> None:
    head, row, names = HEADS[habit]
    lines = [*head, *(row.format(t=time, a=a, b=b) for time, a, b in DECIMAL_COMMAS)]
    plan = plan_of_lines(tmp_path, lines, "cp1252")
    assert features_of(plan) == names
    assert plan.understood.interval_s == 3600
    if "°" in names[0]:
        assert [column.unit for column in plan.understood.of("feature")] == ["°C", "%"]
    source = Replay(
        [tmp_path / "a.csv"], Columns(tuple(names)), split_of("round-robin", 1, 0, None)
    )
    values = np.array(source.read(ROWS + 9).values, dtype=np.float64)
    assert values[-ROWS:].tolist() == [[float(a), float(b)] for _, a, b in CELLS]
    assert not source.faults


SCRIPTS = {
    "cp1251": "Дата;Температура;Влажность",
    "gb18030": "时间;温度;湿度",
    "cp932": "日時;温度;湿度",
    "cp949": "일시;기온;습도",
}


@pytest.mark.parametrize("encoding", SCRIPTS)
def test_names_in_another_script_are_asked_about_and_never_garbled(
    encoding: str, tmp_path: Path
) -> None:
    rows = [f"{time:%d.%m.%Y %H:%M};{temp};{hum}" for time, temp, hum in CELLS]
    with pytest.raises(SettingsError, match="--encoding") as refused:
        plan_of_lines(tmp_path, [SCRIPTS[encoding], *rows], encoding)
    assert f" in {encoding}" in str(refused.value)
    plan = plan_of([tmp_path / "a.csv"], {**OPTIONS, "encoding": encoding})
    assert features_of(plan) == SCRIPTS[encoding].split(";")[1:]
    # Accents and signs of Latin texts stand alone.
    plan = plan_of_lines(tmp_path, ["Zeit;Außenluft °C;Précipitação", *rows], "cp1252")
    assert features_of(plan) == ["Außenluft °C", "Précipitação"]


def test_what_reads_like_a_time_and_is_none_is_told_with_the_option(tmp_path: Path) -> None:
    rows = [f"week 3 of 2024 {time:%H:%M};{temp};{hum}" for time, temp, hum in CELLS]
    plan = plan_of_lines(tmp_path, ["stamp;temp;hum", *rows])
    assert "--date-format" in plan.understood.columns[0].reason
    # The remedy is offered for what it helps with alone.
    rows = [f"{time:%s};{time:%Y-%m-%d %H:%M};{temp};{hum}" for time, temp, hum in CELLS]
    plan = plan_of_lines(tmp_path, ["ts;received_at;temp;hum", *rows])
    assert plan.understood.columns[1].reason == (
        "another time; that of the readings is read from ts"
    )


def test_a_table_of_a_historian_with_two_times_is_told_as_a_long_one(tmp_path: Path) -> None:
    lines = ['"VarName";"TimeString";"VarValue";"Validity";"Time_ms"']
    for row, (time, temp, hum) in enumerate(DECIMAL_COMMAS):
        end = f"1;{45303416666.6667 + 41666666.6667 * row:.4f}".replace(".", ",")
        lines.append(f'"Tank";"{time:%d.%m.%Y %H:%M:%S}";{temp};{end}')
        lines.append(f'"Pump";"{time:%d.%m.%Y %H:%M:%S}";{hum};{end}')
    with pytest.raises(SettingsError, match="VarValue, of what VarName names"):
        plan_of_lines(tmp_path, lines)


def test_quality_is_known_in_other_languages_and_forms(tmp_path: Path) -> None:
    bad = {3, 40, 77}
    kinds = {
        "T.Wert;T.Status": ("OK", "Fehler"),
        "T;T_Gültig": ("1", "0"),
        "T_val;T_qualite": ("bonne", "mauvaise"),
        "T;T_status": ("0x00000000", "0x80050000"),
        "T;T.Status": ("OK", "Störung: Fühlerbruch"),
    }
    for names, (good_cell, bad_cell) in kinds.items():
        lines = [f"zeit;{names};hum"]
        for row, (time, temp, hum) in enumerate(DECIMAL_COMMAS):
            quality = bad_cell if row in bad else good_cell
            lines.append(f"{time:%d.%m.%Y %H:%M};{temp};{quality};{hum}")
        plan = plan_of_lines(tmp_path, lines)
        value, of_value = names.split(";")
        assert plan.settings["quality"] == {value: of_value}, names
        assert plan.understood.missing == len(bad) / ROWS, names
    rows = []
    for row, (time, temp, hum) in enumerate(CELLS):
        rows.append(f"{time:%Y%m%d%H};{temp};{1 + row % 2};{hum};1")
    plan = plan_of_lines(tmp_path, ["AAAAMMJJHH;T;QT;U;QU", *rows])
    assert features_of(plan) == ["T", "U"]
    assert "--bad-quality" in plan.understood.columns[2].reason
