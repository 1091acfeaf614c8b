"""Files as people have them."""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tracemalloc
from collections import Counter
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidData, MissingExtra, SettingsError
from shoal.producers.files import csv_table, text_lines
from shoal.producers.files.csv_table import CsvTable
from shoal.producers.files.json_table import JsonTable
from shoal.producers.files.parsing import seconds_of, values_of
from shoal.producers.files.rows import NumberRows
from shoal.producers.files.tables import Table, open_table, require_columns


def rows_of(path: Path, *wanted: str) -> tuple[list[Any], Counter[str]]:
    faults: Counter[str] = Counter()
    return [
        None if row is None else list(row) for row in open_table(path, faults).rows(wanted)
    ], faults


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_an_array_of_objects_is_refused_with_what_makes_lines_of_it(tmp_path: Path) -> None:
    path = written(tmp_path / "a b.json", '\n[\n  {"a": 1},\n  {"a": 2}\n]\n')
    with pytest.raises(SettingsError, match=r"jq -c '\.\[\]' 'a b\.json' > 'a b\.jsonl'"):
        open_table(path, Counter())


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("content", ["", "\n", "\r\n\r\n", "\ufeff"])
def test_an_empty_file_has_no_columns_and_no_rows(tmp_path: Path, name: str, content: str) -> None:
    path = written(tmp_path / name, content)
    assert open_table(path, Counter()).columns == ()
    assert rows_of(path) == ([], Counter())


def test_a_header_alone_has_columns_and_no_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "t,a")
    assert open_table(path, Counter()).columns == ("t", "a")
    assert open_table(path, Counter()).count() == 0
    assert rows_of(path, "a") == ([], Counter())


def test_columns_are_found_by_name_in_the_order_they_are_wanted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "t,a,b\n1,2,3\n")
    assert rows_of(path, "b", "t", "b") == ([["3", "1", "3"]], Counter())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_byte_order_marks_quotes_and_blank_lines_are_no_matter(
    tmp_path: Path, end: str
) -> None:
    lines = ['"t, s",  a ', '"1,5","say ""x"""', "", '2,"3\n4"', ""]
    path = written(tmp_path / "a.csv", "\ufeff" + end.join(lines))
    assert rows_of(path, "t, s", "a") == ([["1,5", 'say "x"'], ["2", "3\n4"]], Counter())


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_the_one_of_the_header(tmp_path: Path, delimiter: str) -> None:
    path = written(
        tmp_path / "a.tsv", delimiter.join(['"x,;|"', "a", "b"]) + "\n" + delimiter.join("123")
    )
    assert rows_of(path, "b") == ([["3"]], Counter())


def test_a_ragged_row_is_broken(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "t,a\n1\n1,2\n1,2,3\n")
    assert rows_of(path, "t") == ([None, ["1"], None], Counter(ragged=2))


def test_a_quote_that_is_never_closed_costs_its_own_row_only(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 't,a\n1,"2\n' + "3,4\n" * 40_000 + "5,6\n")
    rows, faults = rows_of(path, "t")
    assert rows == [None, *[["3"]] * 40_000, ["5"]]
    assert faults == {"unclosed": 1}


@pytest.mark.parametrize(
    ("name", "line"), [("a.csv", "1," * 4_000_000), ("a.csv.gz", "0" * 12_000_000)]
)
def test_a_line_that_is_far_too_long_is_one_broken_row_and_does_not_fill_the_memory(
    tmp_path: Path, name: str, line: str
) -> None:
    content = f"t,a\n{line}\n1,2\n".encode()
    path = written(tmp_path / name, gzip.compress(content, 1) if name.endswith(".gz") else content)
    del content, line
    tracemalloc.start()
    try:
        rows, faults = rows_of(path, "a")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == [None, ["2"]]
    assert faults == Counter(ragged=1)
    assert peak < 8 * text_lines.LINE_CHARS_MAX


def test_a_line_without_end_is_looked_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.csv.gz"
    chars = 4 * text_lines.LINE_CHARS_MAX
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        file.write(f"a,b\n{'1' * chars}\n1,2\n")
    looked_at = 0

    def counting(text: str, newline: str) -> StringIO:
        nonlocal looked_at
        looked_at += len(text)
        return StringIO(text, newline)

    monkeypatch.setattr(text_lines, "StringIO", counting)
    assert list(text_lines.lines_of(path)) == ["a,b\n", text_lines.OVERLONG, "1,2\n"]
    assert looked_at < 1.1 * chars


@given(
    st.lists(
        st.sampled_from(["a", "é€", "0123456789" * 3, "\n", "\r", "\r\n", "\u2028", "\x1c"]),
        max_size=12,
    ).map("".join),
    # As in use a piece has no more characters than the longest line: a line within one is not
    # overlong.
    st.sampled_from([1, 2, 3, 7, 40]),
    st.sampled_from(["utf-8-sig", "utf-16"]),
)
def test_lines_are_those_of_the_text_however_its_bytes_come(
    tmp_path_factory: Any, text: str, piece: int, encoding: str
) -> None:
    path = written(tmp_path_factory.getbasetemp() / "lines.csv", text.encode(encoding))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "PIECE_BYTES", piece)
        patch.setattr(text_lines, "LINE_CHARS_MAX", 40)
        found = list(text_lines.lines_of(path, encoding))
    with path.open(encoding=encoding, newline="") as file:
        assert found == [line if len(line) <= 40 else text_lines.OVERLONG for line in file]


def test_cells_of_nulls_are_cells_that_no_client_takes(tmp_path: Path) -> None:
    rows, faults = rows_of(written(tmp_path / "a.csv", "t,a\n1,2\n\0\0,\0\n3,4\n"), "t", "a")
    assert [rows[0], rows[-1]] == [["1", "2"], ["3", "4"]]
    assert len(rows) == 3
    assert not faults or rows[1] is None


def test_a_line_of_a_million_keys_is_one_broken_row_too(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.jsonl", '{"a": 1}\n{' + '"a": 1, ' * 1_000_000 + '"a": 2}\n{"a": 3}'
    )
    assert rows_of(path, "a") == ([[1], None, [3]], Counter(unreadable=1))


def test_a_header_of_a_million_columns_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", ",".join(f"c{number}" for number in range(1_000_000)))
    with pytest.raises(SettingsError, match="header is longer than"):
        open_table(path, Counter())


def test_bytes_that_are_no_utf_8_are_read_as_windows_1252(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b"t,a\n\xff\xfe\x00,1\n2,\xb0\n")
    rows, faults = rows_of(path, "a")
    assert rows == [["1"], ["°"]]
    assert not faults


def test_json_lines_that_are_no_object_are_broken_rows(tmp_path: Path) -> None:
    lines = [
        '{"a": 1.5, "b": null}',
        "[1]",
        "3",
        "{",
        '{"a": NaN}',
        "",
        '{"b": "x"}',
        "[" * 100_000,
        "9" * 5000,
    ]
    rows, faults = rows_of(written(tmp_path / "a.jsonl", "\n".join(lines)), "a", "b")
    assert repr(rows) == "[[1.5, None], None, None, None, [nan, None], [None, 'x'], None, None]"
    assert faults == Counter(unreadable=5)


def test_a_key_that_the_first_object_lacks_is_a_column_all_the_same(tmp_path: Path) -> None:
    table = open_table(written(tmp_path / "a.ndjson", '{"a": 1}\n{"b": 2}\n'), Counter())
    assert table.columns == ("a", "b")


@pytest.mark.parametrize("name", ["a.csv.gz", "a.JSONL.GZ"])
def test_compressed_files_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    content = "a,b\n1,2\n" if "csv" in name else '{"a": "1", "b": "2"}\n'
    path = written(tmp_path / name, gzip.compress(content.encode()))
    assert rows_of(path, "b") == ([["2"]], Counter())
    assert open_table(path, Counter()).count() == 1


def test_a_truncated_compressed_file_gives_its_rows_and_then_an_error(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{number},x\n" for number in range(100_000)).encode())
    path = written(tmp_path / "a.csv.gz", whole[: len(whole) // 2])
    rows = open_table(path, Counter()).rows(["0"])
    assert next(rows) == ["1"]
    with pytest.raises(InvalidData, match="cut short"):
        list(rows)


def test_a_missing_column_is_named_with_the_columns_there_are(tmp_path: Path) -> None:
    table = open_table(written(tmp_path / "a.csv", "t,a,b\n"), Counter())
    with pytest.raises(
        SettingsError, match=r"a\.csv: column 'x' is missing; the columns are 't', 'a', 'b'"
    ):
        require_columns(table, ["a", "x"])


def test_a_file_that_is_no_table_is_named_by_a_few_characters(tmp_path: Path) -> None:
    table = open_table(written(tmp_path / "a.csv", f"{'x' * 500},b\n"), Counter())
    with pytest.raises(SettingsError, match=rf"the columns are '{'x' * 61}\.\.\.', 'b'"):
        require_columns(table, ["a"])


def test_of_very_many_columns_only_some_are_named(tmp_path: Path) -> None:
    table = open_table(
        written(tmp_path / "a.csv", ",".join(f"c{n}" for n in range(50_000))), Counter()
    )
    with pytest.raises(SettingsError) as rejected:
        require_columns(table, ["x"])
    assert "and 49988 more" in str(rejected.value)
    assert len(str(rejected.value)) < 1000


def test_a_name_that_two_columns_have_is_refused_only_where_it_is_wanted(tmp_path: Path) -> None:
    table = open_table(written(tmp_path / "a.csv", "a,a,b\n"), Counter())
    require_columns(table, ["b"])
    with pytest.raises(SettingsError, match="column 'a' occurs 2 times"):
        require_columns(table, ["a"])


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        open_table(tmp_path / "a.csv", Counter())
    with pytest.raises(SettingsError, match=r"files of readings are \.csv"):
        open_table(written(tmp_path / "a.xlsx", "x"), Counter())


def test_rows_are_counted_without_reading_them(tmp_path: Path) -> None:
    assert (
        open_table(written(tmp_path / "a.csv", "a\n" + "1\n" * 1000 + "2"), Counter()).count()
        == 1001
    )
    assert open_table(written(tmp_path / "b.jsonl", '{"a": 1}\n' * 12), Counter()).count() == 12


cells = st.text(
    alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r"), max_size=20
)


@given(st.lists(st.tuples(cells, cells), max_size=20))
def test_whatever_a_csv_writer_writes_is_read_back(
    tmp_path_factory: Any, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("a", "b"), *rows])
    found = [
        None if row is None else tuple(row) for row in CsvTable(path, Counter()).rows(["a", "b"])
    ]
    assert found == rows


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.floats() | st.text() | st.none()), max_size=20
    )
)
def test_whatever_a_json_writer_writes_is_read_back(
    tmp_path_factory: Any, objects: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "table.jsonl"
    path.write_text("".join(json.dumps(found) + "\n" for found in objects))
    found = [list(row or []) for row in JsonTable(path, Counter()).rows(["a", "b"])]
    assert repr(found) == repr([[column.get("a"), column.get("b")] for column in objects])


def plain(features: Any) -> str:
    """Values of feature cells, converted or not."""
    return repr(list(features if isinstance(features, np.ndarray) else values_of(features)))


def assert_apart_as_together(table: Table, features: list[str], others: list[str]) -> None:
    together = list(table.rows([*features, *others]))
    apart = list(chain.from_iterable(table.blocks_apart(features, others)))
    assert [row is None for row in apart] == [row is None for row in together]
    for row, cells in zip(apart, together, strict=True):
        if row is not None and cells is not None:
            assert plain(row.features) == plain(cells[: len(features)])
            assert list(row.others) == list(cells[len(features) :])


csv_cells = st.floats().map(repr) | st.sampled_from(
    [
        "7",
        " 2.5 ",
        "",
        " ",
        "1_000",
        "\u0663",
        "0x1A",
        "1e400",
        "on",
        '"3"',
        '"a,b"',
        '"4\n5"',
        '"',
        "#",
        "+1.",
        "infinity",
    ]
)
ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n"])


@given(
    st.lists(st.tuples(csv_cells, csv_cells, csv_cells).map(",".join) | csv_cells, max_size=12),
    ends,
    st.sampled_from([(["a", "b", "c"], []), (["c", "a"], ["b"]), (["b"], []), (["a"], ["c", "c"])]),
)
def test_features_apart_are_those_of_whole_rows_whatever_a_block_of_lines_holds(
    tmp_path_factory: Any, lines: list[str], end: str, wanted: tuple[list[str], list[str]]
) -> None:
    path = written(tmp_path_factory.getbasetemp() / "apart.csv", "a,b,c" + end + end.join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_table, "BLOCK_LINES", 3)
        faults: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        assert_apart_as_together(CsvTable(path, faults[0]), *wanted)
        assert list(CsvTable(path, faults[1]).rows("abc")) is not None
    assert faults[0] == Counter({kind: 2 * number for kind, number in faults[1].items()})


def test_features_of_one_column_skip_blank_lines_and_keep_their_cells(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "a\n1\n\n2\n \nx\n")
    assert_apart_as_together(CsvTable(path, Counter()), ["a"], [])


def test_plain_lines_come_as_numbers_and_name_the_line_of_a_broken_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(
        tmp_path / "a.csv", "a,b\n" + "1,2\n" * 2 * csv_table.BLOCK_LINES + '3,4\n5,"6\n7,8\n'
    )
    rows = list(chain.from_iterable(CsvTable(path, Counter()).blocks_apart(["b", "a"], [])))
    assert all(
        isinstance(row.features, np.ndarray) for row in rows[: 2 * csv_table.BLOCK_LINES] if row
    )
    assert [
        None if row is None else [float(cell) for cell in row.features] for row in rows[-3:]
    ] == [
        [4.0, 3.0],
        None,
        [8.0, 7.0],
    ]
    broken = [
        vars(record)["fields"]
        for record in caplog.records
        if record.getMessage() == "row_unreadable"
    ]
    assert [column["line"] for column in broken] == [2 * csv_table.BLOCK_LINES + 3]


def test_features_of_parquet_files_come_as_numbers_where_all_are(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    path = tmp_path / "a.parquet"
    columns = {
        "a": pa.array([0.1, float("nan"), float("inf")], pa.float64()),
        "b": pa.array([0.1, 2.5, -1.0], pa.float32()),
        "gaps": pa.array([1.0, None, 3.0], pa.float64()),
        "whole": pa.array([1, 2, 2**53 + 1], pa.int64()),
        "label": pa.array(["x", None, "y"]),
    }
    parquet.write_table(pa.table(columns), path)
    table = open_table(path, Counter())
    assert_apart_as_together(table, ["b", "a"], ["label", "whole"])
    assert_apart_as_together(table, ["a", "gaps"], [])
    assert_apart_as_together(table, ["whole", "a"], ["label"])
    assert all(isinstance(block, NumberRows) for block in table.blocks_apart(["b", "a"], []))


def test_parquet_files_give_numbers_gaps_and_times(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    path = tmp_path / "a.parquet"
    times = pa.array([0, 1_500_000_000, None], pa.timestamp("ns", tz="Europe/Brussels"))
    parquet.write_table(
        pa.table({"t": times, "a": [1.5, None, float("nan")], "n": [1, 2, 3]}), path
    )
    table = open_table(path, Counter())
    assert table.columns == ("t", "a", "n")
    assert table.count() == 3
    rows = [list(row or []) for row in table.rows(["n", "a", "t"])]
    assert [seconds_of(row[2]) for row in rows] == [0.0, 1.5, None]
    assert repr([list(values_of(row[:2])) for row in rows]) == repr(
        [list(values_of([1, 1.5])), [2.0, None], list(values_of([3, float("nan")]))]
    )


def test_a_long_text_in_every_row_of_a_small_parquet_file_does_not_fill_the_memory(
    tmp_path: Path,
) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    text = "x" * 100_000
    rows = 1000
    places = pa.array(np.zeros(rows, dtype=np.int32))
    column = pa.DictionaryArray.from_arrays(places, pa.array([text]))
    for name, cells in (("a", column), ("b", column.cast(pa.string()))):
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(
            pa.table({"room": cells, "warm": np.ones(rows)}), path, compression="zstd"
        )
        del cells
        assert path.stat().st_size < 10_000
        tracemalloc.start()
        try:
            found = sum(
                row == (text, 1.0) for row in open_table(path, Counter()).rows(["room", "warm"])
            )
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found == rows
        assert peak < 20_000_000


def test_an_empty_parquet_file_has_columns_and_no_rows(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    parquet.write_table(pa.table({"a": pa.array([], pa.float64())}), tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.parquet", "a") == ([], Counter())


def test_what_only_calls_itself_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(InvalidData, match="not a Parquet file"):
        open_table(written(tmp_path / "a.parquet", "a,b\n1,2\n"), Counter())


def test_parquet_without_its_extra_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "shoal.producers.files.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[parquet\]'"):
        open_table(written(tmp_path / "a.parquet", "x"), Counter())
