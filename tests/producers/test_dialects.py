"""Files as other people write them: each dialect gives the readings and times that were written, or
is refused."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.config.contract import parse_contract
from shoal.errors import SettingsError
from shoal.privacy.base import Missing
from shoal.producers.files.csv_table import CsvTable
from shoal.producers.files.dialect import (
    Dialect,
    DialectOptions,
    encoding_of,
    preamble_of,
    units_below,
)
from shoal.producers.files.form import AS_FOUND, FileForm
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import split_of
from shoal.producers.files.times import TimeOptions
from shoal.producers.source import SourceReadings
from shoal.producers.values import HELD_MAX, missing_of

ROWS = 3000
FEATURES = ("Température (°C)", "pm2.5 [µg/m³]", "count")


class Written(NamedTuple):
    """One way of writing a file."""

    delimiter: str
    encoding: str
    number: Callable[[float], str]
    time: Callable[[datetime], tuple[str, ...]]
    zone: str | None = None
    before: str = ""
    """lines before the header"""


def comma(value: float) -> str:
    return f"{value:.3f}".replace(".", ",")


def grouped(sign: str) -> Callable[[float], str]:
    return lambda value: f"{value:,.2f}".replace(",", "t").replace(".", ",").replace("t", sign)


DIALECTS = {
    "german": Written(
        ";", "cp1252", comma, lambda t: (t.strftime("%d.%m.%Y %H:%M:%S"),), "Europe/Berlin"
    ),
    "excel, utf-16": Written(
        "\t", "utf-16", comma, lambda t: (t.strftime("%d.%m.%Y"), t.strftime("%H.%M.%S"))
    ),
    "french": Written(
        ";", "utf-8", grouped("\u202f"), lambda t: (t.strftime("%d/%m/%y %H:%M:%S"),)
    ),
    "quoted groups": Written(
        ",", "utf-8-sig", grouped("."), lambda t: (t.strftime("%Y/%m/%d %H:%M:%S"),)
    ),
    "american": Written(
        "|", "utf-8", lambda v: f"{v:,.2f}", lambda t: (t.strftime("%m/%d/%Y %I:%M:%S %p"),)
    ),
    "columns of a date": Written(
        ",",
        "latin-1",
        repr,
        lambda t: tuple(str(n) for n in (t.year, t.month, t.day, t.hour, t.minute, t.second)),
    ),
    "export with titles": Written(
        ";",
        "cp1252",
        comma,
        lambda t: (
            f"{('Mo', 'Di', 'Mi', 'Do', 'Fr', 'Sa', 'So')[t.weekday()]}, {t:%d.%m.%Y %H:%M:%S}",
        ),
        before="Kl\u00e4ranlage S\u00fcd;Export\r\nam;12.06.2023 08:14\r\n\r\n",
    ),
    "spreadsheet with percent": Written(
        ",",
        "utf-8-sig",
        lambda v: f"{v:,.2f} %",
        lambda t: (t.strftime("%d-%b-%Y %H:%M:%S"),),
        before="sep=,\r\n",
    ),
    "compact": Written(";", "utf-16-le", comma, lambda t: (t.strftime("%Y%m%d%H%M%S"),)),
}


def written(
    path: Path, way: Written, values: NDArray[np.float64], times: list[datetime]
) -> tuple[str, ...]:
    """Writes the file; returns the names of its time columns."""
    columns = tuple(f"t{place}" for place in range(len(way.time(times[0]))))
    text = io.StringIO()
    text.write(way.before)
    writer = csv.writer(text, delimiter=way.delimiter)
    writer.writerow([*columns, *FEATURES])
    for row, time in zip(values, times, strict=True):
        writer.writerow([*way.time(time), *map(way.number, row.tolist())])
    path.write_bytes(text.getvalue().encode(way.encoding, "replace"))
    return columns


def features_of(way: Written) -> tuple[str, ...]:
    return tuple(name.encode(way.encoding, "replace").decode(way.encoding) for name in FEATURES)


def all_of(source: Replay) -> SourceReadings:
    return source.read(10**6)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("way", DIALECTS.values(), ids=DIALECTS)
def test_what_was_written_is_what_is_read(way: Written, seed: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(seed)
    values = np.round(generator.normal(0, [1.0, 100.0, 100_000.0], (ROWS, 3)), 2)
    zone = UTC if way.zone is None else ZoneInfo(way.zone)
    start = datetime(2023, int(generator.integers(1, 13)), 3, tzinfo=UTC)
    moments = [start + timedelta(minutes=17 * n) for n in range(ROWS)]
    # A clock shows one hour twice in autumn; without a zone in the file nobody can tell the passes
    # apart.
    once = [moment for moment in moments if moment.astimezone(zone).fold == 0]
    times = [moment.astimezone(zone).replace(tzinfo=None) for moment in once]
    columns = written(tmp_path / "a.csv", way, values[: len(times)], times)
    form = FileForm(times=TimeOptions(timezone=way.zone))
    source = Replay(
        [tmp_path / "a.csv"],
        Columns(features_of(way), columns),
        split_of("round-robin", 1, 0),
        form=form,
    )
    found = all_of(source)
    np.testing.assert_allclose(
        np.array([list(row) for row in found.values]), values[: len(times)], atol=1e-9
    )
    assert list(found.times) == [moment.timestamp() for moment in once]
    assert source.faults == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a;b\n1,234;2\n5,678;3\n", "--decimal"),
        ("a;b\n1,5;2.5\n", "--decimal"),
        ("t;a\n01/02/2024;1\n03/04/2024;2\n", "--date-format"),
        ("t;a\n13/02/2024;1\n03/24/2024;2\n", "--date-format"),
    ],
)
def test_what_may_be_two_things_is_refused_with_the_option_to_set(
    text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(text)
    columns = Columns(("a", "b"), ()) if text[0] == "a" else Columns(("a",), ("t",))
    with pytest.raises(SettingsError, match=f"a.csv: .*{said}"):
        Replay([tmp_path / "a.csv"], columns, split_of("round-robin", 1, 0))


def test_an_option_settles_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t;a\n01/02/2024;1,234\n03/04/2024;5,678\n")
    read = {
        (sign, order): all_of(
            Replay(
                [tmp_path / "a.csv"],
                Columns(("a",), ("t",)),
                split_of("round-robin", 1, 0),
                form=FileForm(DialectOptions(decimal=sign), TimeOptions(order)),
            )
        )
        for sign in ".,"
        for order in ("day-first", "%m/%d/%Y")
    }
    assert [row[0] for row in read[",", "day-first"].values] == [1.234, 5.678]
    assert [row[0] for row in read[".", "day-first"].values] == [1234.0, 5678.0]
    assert read[".", "day-first"].times[0] == datetime(2024, 2, 1, tzinfo=UTC).timestamp()
    assert read[".", "%m/%d/%Y"].times[0] == datetime(2024, 1, 2, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("dialect", "cell", "read"),
    [
        (Dialect(decimal=","), "1.5", "<1.5>"),
        (Dialect(decimal=",", thousands="."), "1.5", "<1.5>"),
        (Dialect(decimal=",", thousands="."), "1.234,5", "1234.5"),
        (Dialect(decimal=",", thousands="."), "0.123", "<0.123>"),
        (Dialect(thousands=","), "1,23", "<1,23>"),
        (Dialect(thousands="'"), "-12'345.5", "-12345.5"),
        (Dialect(na_values=frozenset({"-200"})), "-200", None),
    ],
)
def test_a_number_is_never_guessed(dialect: Dialect, cell: str, read: str | None) -> None:
    assert dialect.number_text(cell) == read


def test_a_later_number_of_another_form_is_rejected_not_misread(tmp_path: Path) -> None:
    rows = "".join(f"{n},5;{n}\n" for n in range(3000))
    (tmp_path / "a.csv").write_text(f"a;b\n{rows}1.5;3\n")
    found = all_of(Replay([tmp_path / "a.csv"], Columns(("a", "b")), split_of("round-robin", 1, 0)))
    assert found.values[2999][0] == 2999.5
    assert list(found.values[3000]) == ["<1.5>", 3.0]


def test_a_header_that_is_repeated_is_no_reading_and_no_client(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("who,a,b\nx,1,2\ny,3,4\nwho,a,b\ny,5,6\nz,7\n")
    source = Replay([tmp_path / "a.csv"], Columns(("a", "b")), split_of("column:who", 1, 0))
    found = all_of(source)
    assert [list(row) for row in found.values] == [[1.0, 2.0], [3.0, 4.0], [], [5.0, 6.0], []]
    assert (list(found.clients), source.faults) == (
        ["x", "y", "y", "y", "y"],
        {"header": 1, "ragged": 1},
    )


def test_a_first_row_of_numbers_is_not_taken_for_a_header_below_a_title() -> None:
    assert preamble_of(["a,b\n", "1,2,3\n", "4,5,6\n", "7,8,9\n"]) == 0
    assert preamble_of(["title\n", "a,b,c\n", "4,5,6\n", "7,8,9\n"]) == 1
    assert (
        preamble_of(
            ["a,b,c\n", *(3 * ["1\n"]), *(3 * ["1,2,3\n"]), '"\n', ",,\n", "1,2,3\n", "4,5,6\n"]
        )
        == 0
    ), "a row without names"


def test_a_unit_behind_all_numbers_of_a_column_and_the_typographic_minus_are_understood(
    tmp_path: Path,
) -> None:
    rows = [
        "\u22121,5 \u00b0C;\u22121.234,5;3E5",
        "2 \u00b0C;7,25;4E5",
        "3 \u00b0C;1;0x1A",
        "n/a;1,5 bar;1,2E+03",
    ]
    (tmp_path / "a.csv").write_text("\n".join(["a;b;c", *rows]), encoding="utf-8")
    source = Replay([tmp_path / "a.csv"], Columns(("a", "b", "c")), split_of("round-robin", 1, 0))
    assert [list(row) for row in all_of(source).values] == [
        [-1.5, -1234.5, 3e5],
        [2.0, 7.25, 4e5],
        [3.0, 1.0, "0x1A"],
        [None, "1.5 bar", 1200.0],
    ]
    assert "units behind numbers: \u00b0C" in source.sentences()[0]


def test_a_column_with_percent_in_some_cells_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n5%,1\n0.05,2\n")
    found = all_of(Replay([tmp_path / "a.csv"], Columns(("a", "b")), split_of("round-robin", 1, 0)))
    assert [list(row) for row in found.values] == [["5%", 1.0], [0.05, 2.0]]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("grün;1", "utf-8-sig"),
        ("grün;1", "cp1252"),
        ("a;1;2;3", "utf-16-le"),
        ("a;1;2;3", "utf-16-be"),
        ("a;1;2;3", "utf-16"),
    ],
)
def test_an_encoding_is_found(text: str, encoding: str) -> None:
    assert encoding_of(text.encode(encoding)) == encoding


def test_a_character_at_the_end_of_the_head_is_not_taken_for_another_encoding() -> None:
    assert encoding_of("gr\u00fc".encode()[:-1]) == "utf-8-sig"


def test_an_unknown_encoding_or_zone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,a\n2024-01-01,1\n")
    for form in (
        FileForm(DialectOptions("utf-9")),
        FileForm(times=TimeOptions(timezone="Berlin/Europe")),
    ):
        with pytest.raises(SettingsError, match=r"--encoding|--timezone"):
            Replay(
                [tmp_path / "a.csv"],
                Columns(("a",), ("t",)),
                split_of("round-robin", 1, 0),
                form=form,
            )


def test_hold_fills_with_the_last_values_of_the_client_and_not_for_ever(tmp_path: Path) -> None:
    rows = ["x,1,10", "y,2,20", "x,,11", "y,NA,21", *["x,,12"] * HELD_MAX, "x,3,13", "x,-200,14"]
    (tmp_path / "a.csv").write_text("who,a,b\n" + "\n".join(rows) + "\n")

    def opened() -> Replay:
        form = FileForm(DialectOptions(na_values=("NA", "-200")), missing="hold")
        return Replay(
            [tmp_path / "a.csv"], Columns(("a", "b")), split_of("column:who", 1, 0), form=form
        )

    source = opened()
    found = [list(row) for row in all_of(source).values]
    assert found[2:4] == [[1.0, 11.0], [2.0, 21.0]]
    assert found[3 + HELD_MAX] == [None, 12.0]  # the last values have been held too long
    assert found[-1] == [3.0, 14.0]
    assert source.faults["filled"] == HELD_MAX + 2
    resumed = opened()
    resumed.skip(3)
    assert [list(row) for row in all_of(resumed).values] == found[3:]


@pytest.mark.parametrize("odd", ["inf", "abc"])
def test_a_value_that_the_client_rejects_is_not_held(odd: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"a,b\n1,10\n{odd},11\n,12\n")
    found = all_of(
        Replay(
            [tmp_path / "a.csv"],
            Columns(("a", "b")),
            split_of("round-robin", 1, 0),
            form=FileForm(missing="hold"),
        )
    )
    assert [list(row) for row in found.values][2] == [1.0, 12.0]


def test_the_same_file_read_in_another_way_is_another_source(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n1,234;2\n")
    split = split_of("round-robin", 1, 0)
    forms = (FileForm(DialectOptions(decimal=sign)) for sign in ".,")
    assert (
        len(
            {
                Replay([tmp_path / "a.csv"], Columns(("a", "b")), split, form=form).identity
                for form in forms
            }
        )
        == 2
    )
    (tmp_path / "b.csv").write_text("a;b\n1;2\n")
    plain = Replay([tmp_path / "b.csv"], Columns(("a", "b")), split, form=AS_FOUND)
    assert plain.sentences() == ["b.csv: delimiter ';', decimal sign '.', encoding utf-8"]


def test_gaps_leave_a_file_as_the_contract_and_the_source_say(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,10\n,11\n2,\n,\n3,abc\n4,14\n")

    def read(missing: Missing, learns: bool) -> list[Any]:
        form = FileForm(missing=missing, learns_gaps=learns)
        source = Replay(
            [tmp_path / "a.csv"], Columns(("a", "b")), split_of("round-robin", 1, 0), form=form
        )
        return [list(row) for row in all_of(source).values]

    nan = np.nan
    assert read("drop", False) == [
        [1.0, 10.0],
        [None, 11.0],
        [2.0, None],
        [None, None],
        [3.0, "abc"],
        [4.0, 14.0],
    ]
    np.testing.assert_equal(
        read("learn", True),
        [[1.0, 10.0], [nan, 11.0], [2.0, nan], [nan, nan], [3.0, "abc"], [4.0, 14.0]],
    )
    # What the client rejects, as it may be learnt by others: a reading without any value.
    np.testing.assert_equal(read("drop", True)[1:4], [[nan, nan]] * 3)
    assert read("hold", True)[1:4] == [[1.0, 11.0], [2.0, 10.0], [1.0, 10.0]]


def test_a_source_gives_gaps_only_where_the_contract_lets_them_be_learnt() -> None:
    tables: dict[str, Any] = {
        "federation": {"name": "plant"},
        "features": [{"name": "a", "low": 0, "high": 1}],
        "privacy": {"mode": "off"},
        "models": [{"name": "clusters", "algorithm": "cluster_tree"}],
    }
    drop = parse_contract(tables)
    learn = parse_contract(tables | {"privacy": {"mode": "off", "missing": "learn"}})
    assert [missing_of(told, drop) for told in ("", None, "hold")] == ["drop", "drop", "hold"]
    assert [missing_of(told, learn) for told in ("", "learn", "drop")] == ["learn", "learn", "drop"]
    with pytest.raises(SettingsError, match=r'needs missing = "learn" in \[privacy\]'):
        missing_of("learn", drop)
    assert drop.digest != learn.digest


def written_days(rows: int, minutes: int) -> list[datetime]:
    """Times from the second to the twelfth day of some month, in which no date tells days from
    months."""
    begin = datetime(2024, 8, 2, 9, 7)
    return [begin + timedelta(minutes=minutes * place) for place in range(rows)]


@pytest.mark.parametrize("order", ["%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M %p"])
def test_days_and_months_are_told_apart_by_the_row_after_midnight(
    order: str, tmp_path: Path
) -> None:
    path = tmp_path / "days.csv"
    moments = written_days(900, 15)
    path.write_text(
        "when,a\n" + "".join(f"{moment.strftime(order)},{n}\n" for n, moment in enumerate(moments))
    )
    found = all_of(Replay([path], Columns(("a",), ("when",)), split_of("round-robin", 1, 0)))
    assert list(found.times) == [moment.replace(tzinfo=UTC).timestamp() for moment in moments]


@pytest.mark.parametrize("minutes", [1440, 1500])
def test_rows_that_do_not_follow_each_other_over_midnight_leave_it_open(
    minutes: int, tmp_path: Path
) -> None:
    path = tmp_path / "days.csv"
    rows = "".join(
        f"{m.strftime('%d/%m/%Y %H:%M')},{n}\n" for n, m in enumerate(written_days(8, minutes))
    )
    path.write_text(f"when,a\n{rows}")
    with pytest.raises(SettingsError, match="day-first or month-first"):
        Replay([path], Columns(("a",), ("when",)), split_of("round-robin", 1, 0))


def test_a_row_of_units_below_the_header_gives_units_and_is_no_reading(tmp_path: Path) -> None:
    for number, units in enumerate(("[h]\t[bar]\t[-]", "UTC\t°C\t%")):
        path = tmp_path / f"{number}.tsv"
        rows = "2024010207\t1.5\t2\n2024010208\t2.5\t3\n" * 3
        path.write_text(f"# logger\n# of the press\nwhen\ta\tb\n{units}\n{rows}", encoding="utf-8")
        columns = Columns((f"a [{('bar', '°C')[number]}]",), (("when [h]", "when [UTC]")[number],))
        source = Replay([path], columns, split_of("round-robin", 1, 0))
        found = all_of(source)
        assert [list(row) for row in found.values] == [[1.5], [2.5]] * 3
        assert found.times[0] == datetime(2024, 1, 2, 7, tzinfo=UTC).timestamp()
        assert source.faults == {}
        table = CsvTable(path, Counter())
        assert (table.count(), list(table.row_lines())) == (6, list(range(5, 11)))
    numbers = [["1", "2"]] * 3
    assert units_below(["a", "b"], [["°C", "-"], *numbers])
    assert units_below(
        ["when", "a", "b"],
        [["", "bar", "l/min"], *([f"{day}.1.2024", "1,5", "2"] for day in "123")],
    )
    gaps = [["1.1.2024", "---", ""], ["2.1.2024", "1,5", "2"], ["3.1.2024", "1,6", ""]]
    assert units_below(["when", "a", "b"], [["", "°C", "%"], *gaps]), "no value yet"
    assert not units_below(
        ["when", "a"], [["", "bar"], *([f"{day}.1.2024", "bar"] for day in "123")]
    ), "texts"
    for first in (["n/a", "n/a"], ["2024-01-01", "12 %"], ["", ""], ["bar", "off"], ["-", "-"]):
        assert not units_below(["a", "b"], [first, *numbers])
    assert not units_below(["a", "b"], [["°C", "-"], *numbers[1:]]), "too few rows to know"
