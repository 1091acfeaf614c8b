"""Replay: all rows of all files, in order, again and again the same."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InvalidData, SettingsError
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import split_of
from tests.producers.running_producer import all_of, comparable, csv_of, plain_rows, replay

RULES = ["column:label", "round-robin", "blocks", "label-skew:label", "dirichlet:label:0.3"]


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """100 rows in three files, one of them without any and one with its columns in another
    order."""
    rows = plain_rows(100)
    first = csv_of(tmp_path / "a.csv", rows[:40])
    empty = csv_of(tmp_path / "b.csv", [])
    last = csv_of(
        tmp_path / "c.csv", [(label, b, a, t) for t, a, b, label in rows[40:]], header="label,b,a,t"
    )
    return [first, empty, last]


@pytest.mark.parametrize("content", ["", "t,a,b,label\n"])
def test_files_without_rows_give_none_looped_or_not(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    for loop in (False, True):
        source = replay(path, loop=loop)
        assert not source.read(10)
        source.skip(5)
        assert not source.read(10)


def test_one_row_is_a_reading_with_its_client_time_and_label(tmp_path: Path) -> None:
    [row] = all_of(replay(csv_of(tmp_path / "a.csv", [("1970-01-01 00:00:07", 1.5, 2, "x")])))
    assert (row.client, row.time, list(row.values), row.label) == ("client-1", 7.0, [1.5, 2.0], "x")
    assert isinstance(row.values, np.ndarray)


@pytest.mark.parametrize(
    ("time", "label"), [(("t",), "label"), ((), "label"), (("t",), None), ((), None)]
)
def test_a_column_holds_the_user_of_a_reading(
    tmp_path: Path, time: tuple[str, ...], label: str | None
) -> None:
    rows = [
        (1, 1.5, 2, "x", "anna"),
        (2, 1.5, 2, "x", " "),
        (3, 1.5, 2, "x", "b" * 300),
        (4, 1.5, 2, "x", "b" * 299),
    ]
    path = csv_of(tmp_path / "a.csv", rows, header="t,a,b,label,who")
    split = split_of("column:label", 1, 0, None)
    source = Replay([path], Columns(("a", "b"), time, label, "who"), split)
    first, none, long, other = all_of(source)
    assert (first.user, first.client, first.label, list(first.values)) == (
        "anna",
        "x",
        label and "x",
        [1.5, 2.0],
    )
    assert none.user is None
    assert long.user is not None
    assert other.user not in {None, long.user}, "all of a long id counts"
    assert len(long.user) < 300


def test_rows_come_in_the_order_of_the_files_with_columns_by_name(three: list[Path]) -> None:
    source = replay(*three)
    assert source.total == 100
    rows = all_of(source)
    assert [row.values[0] for row in rows] == list(range(100))
    assert [row.time for row in rows] == list(range(100))
    assert source.position == 100


def test_an_empty_file_lacks_no_column_but_a_missing_column_is_named(
    tmp_path: Path, three: list[Path]
) -> None:
    nothing = tmp_path / "nothing.csv"
    nothing.touch()
    assert len(all_of(replay(nothing, *three))) == 100
    with pytest.raises(
        SettingsError, match=r"column 'z' is missing; the columns are 't', 'a', 'b', 'label'"
    ):
        Replay(three, Columns(("a", "z")), split_of("round-robin", 1, 0))
    with pytest.raises(SettingsError, match="column 'room' is missing"):
        Replay(three, Columns(("a",)), split_of("column:room", 1, 0))


def test_what_is_no_number_and_what_is_no_time_is_passed_on_and_counted(tmp_path: Path) -> None:
    path = csv_of(
        tmp_path / "a.csv",
        [(0, "", "n/a", "x"), ("noon", 1, 2, "x"), (1, 2), (2, "nan", "inf", "")],
    )
    source = replay(path)
    rows = all_of(source)
    assert comparable(rows) == [
        ("client-1", 0.0, "[None, None]", "x"),
        ("client-2", None, "[1.0, 2.0]", "x"),
        ("client-1", None, "[]", None),
        ("client-2", 2.0, "[nan, inf]", ""),
    ]
    assert source.faults == {"no_time": 1, "ragged": 1}


def test_a_row_that_is_counted_beforehand_is_not_faulty_twice(tmp_path: Path) -> None:
    source = replay(
        csv_of(tmp_path / "a.csv", [(1, 2), (1, 2, 3, "x")]), split=split_of("blocks", 2, 0)
    )
    assert [row.client for row in all_of(source)] == ["client-1", "client-2"]
    assert source.faults == {"ragged": 1}


def test_without_a_time_column_there_is_no_time_and_no_fault(three: list[Path]) -> None:
    source = Replay(three, Columns(("a", "b")), split_of("round-robin", 1, 0))
    assert not source.timed
    assert {row.time for row in all_of(source)} == {None}
    assert not source.faults


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_gives_each_row_once_and_the_same_the_second_time(
    three: list[Path], rule: str, shuffle: bool
) -> None:
    def opened() -> Replay:
        return replay(*three, split=split_of(rule, 4, 5), shuffle=shuffle, seed=5)

    rows = comparable(all_of(opened(), 9))
    assert sorted(row[2] for row in rows) == sorted(f"[{number}.0, 0.5]" for number in range(100))
    assert comparable(all_of(opened(), 13)) == rows


@pytest.mark.parametrize("rule", RULES)
def test_shuffling_changes_the_order_and_not_whose_a_row_is(three: list[Path], rule: str) -> None:
    plain, shuffled, other = (
        comparable(
            all_of(
                replay(*three, split=split_of(rule, 4, 5), shuffle=seed is not None, seed=seed or 0)
            )
        )
        for seed in (None, 1, 2)
    )
    assert sorted(plain) == sorted(shuffled) == sorted(other)
    assert len({str(rows) for rows in (plain, shuffled, other)}) == 3
    assert not replay(*three, shuffle=True).timed


@settings(deadline=None)
@given(
    skips=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=8),
    rule=st.sampled_from(RULES),
    loop=st.booleans(),
    shuffle=st.booleans(),
)
def test_skipping_is_the_same_as_reading(
    tmp_path_factory: Any, skips: list[tuple[int, int]], rule: str, loop: bool, shuffle: bool
) -> None:
    path = csv_of(tmp_path_factory.getbasetemp() / "skip.csv", plain_rows(23))

    def opened() -> Replay:
        return replay(path, split=split_of(rule, 3, 1), loop=loop, shuffle=shuffle, seed=1)

    whole = comparable(opened().read(1000))
    source = opened()
    at = 0
    for skip, take in skips:
        source.skip(skip)
        at += skip
        assert source.position == at
        found = comparable(source.read(take))
        assert found == whole[at : at + take]
        at += len(found)


def test_a_loop_repeats_the_rows_with_later_times_one_usual_gap_on(three: list[Path]) -> None:
    source = replay(*three, loop=True)
    assert source.total is None
    rows = source.read(250)
    assert [row.values[0] for row in rows] == [number % 100 for number in range(250)]
    assert [row.time for row in rows] == pytest.approx(range(250))
    assert [row.client for row in rows[:100]] == [row.client for row in rows[100:200]]


def test_a_shuffled_loop_has_another_order_each_time(three: list[Path]) -> None:
    rows = [row.values[0] for row in replay(*three, loop=True, shuffle=True).read(200)]
    assert sorted(rows[:100]) == sorted(rows[100:])
    assert rows[:100] != rows[100:]


def test_a_loop_over_one_moment_goes_on_by_seconds(tmp_path: Path) -> None:
    path = csv_of(tmp_path / "a.csv", [(5, 1, 1, "x"), (5, 2, 2, "x")])
    assert [row.time for row in replay(path, loop=True).read(5)] == [5, 5, 6, 6, 7]


def test_skipping_far_into_a_loop_does_not_read_all_that_lies_between(three: list[Path]) -> None:
    source = replay(*three, loop=True)
    source.skip(10**12 + 42)
    [row] = source.read(1)
    assert row.values[0] == 42
    assert row.time == 10**12 + 42


@pytest.mark.integration
@pytest.mark.long
def test_a_large_file_takes_no_more_memory_than_what_is_read_at_once(tmp_path: Path) -> None:
    path = csv_of(tmp_path / "a.csv", plain_rows(100_000))
    source = replay(path, loop=True)
    tracemalloc.start()
    try:
        for _ in range(110):
            source.read(1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 2


def test_rows_before_a_damaged_place_are_read_and_then_every_read_raises(tmp_path: Path) -> None:
    text = "t,a,b,label\n" + "".join(f"{n},{n},{n * n},x\n" for n in range(50_000))
    packed = gzip.compress(text.encode())
    path = tmp_path / "a.csv.gz"
    path.write_bytes(packed[: len(packed) // 2])
    source = replay(path)
    rows = len(source.read(100_000))
    assert 10_000 < rows < 50_000
    assert source.position == rows
    for _ in range(2):
        with pytest.raises(InvalidData, match="cut short"):
            source.read(1)


def test_names_of_clients_are_known_as_soon_as_there_can_be_no_others(tmp_path: Path) -> None:
    text = "t,a,b,label\n" + "".join(f"{n},{n},{n * n},{'xyz'[n % 3]}\n" for n in range(50_000))
    packed = gzip.compress(text.encode())
    path = tmp_path / "a.csv.gz"
    path.write_bytes(packed[: len(packed) // 2])
    assert replay(path, split=split_of("round-robin", 3, 0)).clients() == [
        "client-1",
        "client-2",
        "client-3",
    ]
    with pytest.raises(InvalidData, match="cut short"):
        replay(path, split=split_of("column:label", 1, 0)).clients()
    path.write_bytes(packed)
    assert replay(path, split=split_of("column:label", 1, 0)).clients() == ["x", "y", "z"]
    blocks = replay(path, split=split_of("blocks", 2, 0))
    assert blocks.clients() == ["client-1", "client-2"]
    assert {reading.client for reading in all_of(blocks)} == {"client-1", "client-2"}
    few = replay(csv_of(tmp_path / "b.csv", plain_rows(2)), split=split_of("round-robin", 3, 0))
    assert few.clients() == ["client-1", "client-2"], "clients without a row take no part"


def test_a_source_is_known_by_its_files_columns_and_rule(tmp_path: Path, three: list[Path]) -> None:
    identities = [
        replay(*three).identity,
        replay(*reversed(three)).identity,
        replay(*three, shuffle=True).identity,
        replay(*three, shuffle=True, seed=1).identity,
        Replay(three, Columns(("b", "a"), ("t",), "label"), split_of("round-robin", 2, 0)).identity,
        *(replay(*three, split=split_of(rule, 3, 0)).identity for rule in RULES),
    ]
    assert len(set(identities)) == len(identities)
    assert replay(*three).identity == identities[0]


def test_a_file_that_grew_is_the_same_source_and_one_that_was_replaced_is_not(
    tmp_path: Path,
) -> None:
    path = csv_of(tmp_path / "a.csv", plain_rows(3))
    before = replay(path).identity
    csv_of(path, plain_rows(30))
    assert replay(path).identity == before
    csv_of(path, plain_rows(30)[1:])
    assert replay(path).identity != before


def test_a_column_that_is_not_read_needs_no_decimal_sign_for_its_file_to_be_known(
    tmp_path: Path,
) -> None:
    # 1,100 alone may be a number of four digits or one with three decimals.
    path = csv_of(tmp_path / "a.csv", [(n, f'"1,{100 + n}"') for n in range(5)], header="a,price")
    source = Replay([path], Columns(("a",)), split_of("round-robin", 1, 0))
    assert source.identity
    assert len(all_of(source)) == 5


def test_a_broken_first_row_is_counted_once_though_its_file_is_known_by_it(tmp_path: Path) -> None:
    path = csv_of(tmp_path / "a.csv", [("1", "2", "3", "x", "one more"), *plain_rows(3)])
    source = replay(path)
    assert source.identity == replay(path).identity
    assert len(all_of(source)) == 4
    assert source.faults == {"ragged": 1}


def test_where_the_number_of_rows_decides_a_file_that_grew_is_another_source(
    tmp_path: Path,
) -> None:
    def identity() -> str:
        return replay(path, split=split_of("blocks", 2, 0)).identity

    path = csv_of(tmp_path / "a.csv", plain_rows(3))
    before = identity()
    csv_of(path, plain_rows(30))
    assert identity() != before


def test_a_label_of_too_many_classes_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = csv_of(tmp_path / "a.csv", [(n, n, n, n) for n in range(10_001)])
    with pytest.raises(SettingsError, match="more than 10000 classes"):
        replay(path, split=split_of("label-skew:label", 2, 0))
