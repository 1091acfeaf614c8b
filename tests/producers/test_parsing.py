"""What is a number, what is a time."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.producers.files.parsing import (
    CELL_CHARS_MAX,
    number_of,
    seconds_of,
    text_of,
    values_of,
    values_of_rows,
)
from shoal.producers.files.plain_lines import LineForm, decimals_of
from shoal.protocol.codec import pack, unpack


def test_no_cells_are_an_array_of_nothing() -> None:
    values = values_of([])
    assert isinstance(values, np.ndarray)
    assert values.shape == (0,)


def test_numbers_become_an_array_and_anything_else_a_list_with_the_cell_as_it_is() -> None:
    numbers = values_of(["1.5", " -2e3 ", 7, Decimal("0.25")])
    assert isinstance(numbers, np.ndarray)
    assert numbers.tolist() == [1.5, -2000.0, 7.0, 0.25]
    assert values_of(["1.5", "", "n/a"]) == [1.5, None, "n/a"]


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-Infinity"])
def test_what_is_no_finite_number_is_still_passed_on_for_the_client_to_refuse(text: str) -> None:
    assert not math.isfinite(number_of(text))


@pytest.mark.parametrize("cell", [None, "", "   "])
def test_an_empty_cell_is_none(cell: Any) -> None:
    assert number_of(cell) is None


@pytest.mark.parametrize("cell", ["1_000", "1,5", "on", True, False])
def test_what_python_or_a_person_might_take_for_a_number_is_none(cell: Any) -> None:
    assert (number_of(cell), type(number_of(cell))) == (cell, type(cell))


def test_a_cell_longer_than_any_number_is_cut() -> None:
    assert number_of("x" * 10_000) == "x" * CELL_CHARS_MAX


def test_an_integer_beyond_all_floats_is_infinite() -> None:
    assert number_of(-(10**400)) == -math.inf


json_cells = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(json_cells | st.text(alphabet="0123456789.eE+-_ \ud800n")))
def test_whatever_a_cell_holds_the_values_can_be_packed_and_come_back(cells: list[Any]) -> None:
    values = values_of(cells)
    back = unpack(pack(values if isinstance(values, np.ndarray) else list(values)))
    assert len(back) == len(cells)
    assert repr(back) == repr(values)


numbers_as_text = st.floats().map(repr) | st.sampled_from(
    ["1_000", " 7 ", "\u0663", "nan", "", "on"]
)


@given(
    st.lists(st.tuples(numbers_as_text, numbers_as_text))
    | st.lists(st.tuples(st.floats(), st.floats()))
)
def test_many_rows_have_the_values_that_each_has_alone(rows: list[tuple[Any, Any]]) -> None:
    together = values_of_rows(rows)
    alone = [values_of(cells) for cells in rows]
    assert [type(values) for values in together] == [type(values) for values in alone]
    assert repr([list(values) for values in together]) == repr([list(values) for values in alone])


@pytest.mark.parametrize(
    ("cell", "seconds"),
    [
        ("1970-01-01", 0.0),
        ("1970-01-01 00:01:00", 60.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
        ("1970-01-01T00:00:00.250Z", 0.25),
        ("12.5", 12.5),
        (1_700_000_000, 1.7e9),
        (1_700_000_000_123, 1_700_000_000.123),
        ("1700000000123456", 1_700_000_000.123456),
        (1_700_000_000_000_000_000, 1.7e9),
        (Decimal("3.5"), 3.5),
        (date(1970, 1, 2), 86400.0),
        (datetime(1970, 1, 1, 0, 0, 5), 5.0),
    ],
)
def test_times_are_read_in_their_usual_forms_and_are_utc_without_a_zone(
    cell: Any, seconds: float
) -> None:
    assert seconds_of(cell) == seconds


@pytest.mark.parametrize(
    "cell", [None, "", "yesterday", "2015-13-01", "nan", "inf", "1e300", True, [], math.nan]
)
def test_what_is_no_time_is_none(cell: Any) -> None:
    assert seconds_of(cell) is None


@given(st.datetimes(timezones=st.just(UTC)))
def test_any_instant_written_in_iso_8601_is_read_back(instant: datetime) -> None:
    seconds = seconds_of(instant.isoformat())
    assert seconds is not None
    assert abs(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds) - instant) < timedelta(
        milliseconds=1
    )


def test_a_class_is_the_text_of_its_cell_without_blanks_around() -> None:
    assert [text_of(cell) for cell in (None, " a b ", 3, "")] == ["", "a b", "3", ""]


@pytest.mark.parametrize(
    "cell", [10**400, -(10**400), "1" + "0" * 400, "9999-12-31T23:59:59-14:00"]
)
def test_a_time_beyond_the_calendar_is_none(cell: Any) -> None:
    assert seconds_of(cell) is None


number_cells = st.one_of(
    st.from_regex(r"-?[0-9]{0,8}\.?[0-9]{0,8}", fullmatch=True),
    st.decimals(-(10**6), 10**6, places=2).map(str),
    st.text("0123456789.-+e x\u0663_", max_size=6),
)


def bits(numbers: Any) -> bytes:
    return np.asarray(numbers, dtype=np.float64).tobytes()


@given(
    st.lists(st.tuples(number_cells, number_cells), min_size=1, max_size=8),
    st.sampled_from(["\n", "\r\n"]),
)
def test_decimals_of_a_block_are_what_float_makes_of_each_bit_for_bit(
    rows: list[tuple[str, str]], end: str
) -> None:
    found = decimals_of([f"{row};{two}{end}" for row, two in rows], LineForm(";", 2, [1, 0], []))
    cells = [cell for row, two in rows for cell in (two, row)]
    if all(
        re.fullmatch(r"-?(?=\.?[0-9])[0-9]*\.?[0-9]*", cell, re.ASCII) for cell in cells
    ) and all(len(cell.replace(".", "")) <= 15 for cell in cells):
        assert found is not None
    if found is not None:
        assert bits(found) == bits([float(cell) for cell in cells])


@pytest.mark.parametrize(
    "cell",
    ["", ".", "-", "-.", "--1", "1-", "1.2.3", "+1", "1e3", "nan", " 1", "1 ", "9" * 16, "٣"],
)
@pytest.mark.parametrize("beside", ["5", "-5", "12345", "1.25", "-.5"])
def test_a_cell_that_is_no_plain_decimal_is_left_to_others(cell: str, beside: str) -> None:
    form = LineForm(",", 2, [0, 1], [])
    for row in ((cell, beside), (beside, cell)):
        assert decimals_of([f"{beside},{beside}\n", ",".join(row) + "\n"], form) is None


@pytest.mark.parametrize(
    "lines",
    [
        ["1,2\n", "3\n"],
        ["1,2,3\n", "4\n"],
        ["1,2\n", "\n"],
        ["1\n", "2,3,4\n"],
        ["1,2\r", "3,4\r"],
        ['"1",2\n'],
    ],
)
def test_lines_that_are_not_whole_are_left_to_others(lines: list[str]) -> None:
    assert decimals_of(lines, LineForm(",", 2, [0, 1], [])) is None


def test_columns_that_are_no_features_may_have_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    form = LineForm(",", 3, [2], [0])
    found = decimals_of(["Küche,,1.5\n", "x,٣,-2\n", "°C,nan,3"], form)
    assert found is not None
    assert found.tolist() == [[1.5], [-2.0], [3.0]]
    monkeypatch.setattr("csv.field_size_limit", lambda: 10)
    assert decimals_of(["Küche,,1.5\n", "a long text,,1.5\n"], form) is None
