"""One file with the ledgers of many clients: each is as in a file of its own, and moves by what was
noted of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidState, LogUnavailable
from shoal.privacy.ledger import (
    Ledger,
    LedgerRow,
    LedgersFile,
    MaskedRelease,
    NoteRow,
    Release,
    client_of,
    read_spending,
)

OWNER = "client a of plant"
OTHER = "client b of plant"
WINDOW = 600.0
SPAN = 100 * WINDOW
BUDGET = 100
NANO = 10**9
Moved = dict[tuple[str, LedgerRow], LedgerRow | None]


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[LedgersFile]:
    with closing(LedgersFile(tmp_path / "ledgers.db", is_copy=True)) as file:
        file.restore([])
        yield file


def keep(moved: Moved) -> NoteRow:
    """What notes rows as a changelog has them: the newest of each key."""

    def note(table: str, key: LedgerRow, row: LedgerRow | None) -> None:
        moved[table, key] = row

    return note


def opened(ledgers: LedgersFile, owner: str = OWNER, note: NoteRow | None = None) -> Ledger:
    return Ledger(ledgers.path, owner, "0123", shared=ledgers, note=note)


def spend(ledger: Ledger) -> list[object]:
    """Charge of everything that a ledger knows, to the limit of its budgets; what it answers."""
    answers: list[object] = []
    masked = partial(MaskedRelease, "sums", places=10, rho=50)
    for number in range(3):
        ledger.charge([Release("tree", number, b"p" * 32, b"c" * 32, 10, 0.5)], float(number))
        ledger.charge_rows({0: (0, 10 * number + 5)}, 0.25)
        answers.append(ledger.pass_windows(number, number * WINDOW, WINDOW))
        answers.append(ledger.charge_masked(masked(number), number * WINDOW, SPAN, BUDGET))
        answers.append(ledger.claim(number * NANO, NANO, None))
    answers.append(ledger.charge_masked(masked(9), 1e6, None, None, is_published=True))
    ledger.mark_stored(2)
    answers += [ledger.spending(), ledger.row_stops(), ledger.windows("tree"), ledger.last_charge()]
    answers += [ledger.masked_windows("sums"), ledger.spent_by_others(None)]
    return answers


def test_a_client_spends_as_in_a_file_of_its_own_whatever_the_others_have_spent(
    tmp_path: Path, ledgers: LedgersFile
) -> None:
    with Ledger(tmp_path / "own.db", OWNER, "0123") as own:
        expected = spend(own)
    busy = opened(ledgers, OTHER)
    busy.pass_windows(0, 0.0, WINDOW)
    busy.pass_windows(50, 50 * WINDOW, WINDOW)
    assert busy.charge_masked(MaskedRelease("sums", 0, 10, BUDGET), 1e9, SPAN, BUDGET)
    assert busy.claim(NANO, NANO, None)
    assert spend(opened(ledgers)) == expected
    assert read_spending(ledgers.path)[OWNER] == read_spending(tmp_path / "own.db")[OWNER]


def test_what_was_noted_makes_the_same_ledgers_elsewhere(
    tmp_path: Path, ledgers: LedgersFile
) -> None:
    moved: Moved = {}
    for owner in (OWNER, OTHER):
        spend(opened(ledgers, owner, keep(moved)))
    with closing(LedgersFile(tmp_path / "moved.db", is_copy=True)) as elsewhere:
        elsewhere.restore((table, key, row) for (table, key), row in moved.items())
        assert elsewhere.has_account(OTHER)
        assert not elsewhere.has_account("client c of plant")
        for table in ("accounts", "releases", "noised", "masked", "budgets", "passed"):
            query = f"SELECT * FROM {table} ORDER BY 1, 2"
            rows = elsewhere.connection.execute(query).fetchall()
            assert rows == ledgers.connection.execute(query).fetchall()
        # What is charged again costs nothing, and is noted from now on.
        again: Moved = {}
        ledger = opened(elsewhere, OWNER, keep(again))
        ledger.charge([Release("tree", 2, b"p" * 32, b"c" * 32, 10, 0.5)], 9.0)
        assert not again
        ledger.charge([Release("tree", 3, b"p" * 32, b"c" * 32, 10, 0.5)], 9.0)
        assert [table for table, _ in again] == ["releases"]


def test_a_row_that_was_deleted_is_deleted_elsewhere(ledgers: LedgersFile) -> None:
    opened(ledgers)
    ledgers.restore([("accounts", (OWNER,), None)])
    assert not ledgers.has_account(OWNER)


def test_an_account_of_another_key_is_refused(ledgers: LedgersFile) -> None:
    opened(ledgers)
    with pytest.raises(InvalidState, match="another noise key"):
        Ledger(ledgers.path, OWNER, "4567", shared=ledgers)


@pytest.mark.parametrize(
    "row",
    [("about", ("format",), ("format", "0")), ("accounts", (OWNER,), (OWNER,))],
    ids=["of no charges", "too short"],
)
def test_rows_that_no_ledger_has_written_are_refused(
    ledgers: LedgersFile, row: tuple[str, LedgerRow, LedgerRow | None]
) -> None:
    with pytest.raises(InvalidState, match="no ledger that can be read"):
        ledgers.restore([row])


def test_a_charge_that_failed_is_not_noted(ledgers: LedgersFile) -> None:
    moved: Moved = {}
    ledger = opened(ledgers, note=keep(moved))
    moved.clear()
    first = Release("tree", 0, b"p" * 32, b"c" * 32, 10, 0.5)
    # SQLite has no form for such a value; the first row was written by then.
    no_value: Any = object()
    broken = first._replace(number=1, plan=no_value)
    with pytest.raises(sqlite3.ProgrammingError):
        ledger.charge([first, broken], 1.0)
    assert not moved
    ledger.charge([first], 1.0)
    assert [table for table, _ in moved] == ["releases"]


def test_the_client_of_an_account_is_known_by_its_federation() -> None:
    assert client_of("client a of plant", "plant") == "a"
    assert client_of("client a of other", "plant") is None
    assert client_of("host of plant", "plant") is None


def test_charges_together_are_in_the_file_at_the_end_and_none_where_that_raises(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledgers.db"
    with closing(LedgersFile(path)) as file:
        with file.together():
            first = opened(file)
            first.charge([release(0)], 1.0)
            opened(file, OTHER).charge([release(0)], 1.0)
            assert first.windows("tree") == 1
            assert read_spending(path) == {}
        assert [len(spent.models) for spent in read_spending(path).values()] == [1, 1]
        with pytest.raises(KeyError):
            charge_and_fail(file, first)
        assert first.windows("tree") == 1
        with file.together():
            pass
        # Outside, a charge is on the disk at once.
        first.charge([release(1)], 1.0)
        assert read_spending(path)[OWNER].models[0].windows == 2
    with closing(LedgersFile(path)) as again:
        assert opened(again).windows("tree") == 2


def charge_and_fail(file: LedgersFile, ledger: Ledger) -> None:
    with file.together():
        ledger.charge([release(1)], 1.0)
        raise KeyError


def release(number: int) -> Release:
    return Release("tree", number, b"p" * 32, b"c" * 32, 10, 0.5)


def test_what_one_client_could_not_charge_leaves_the_charges_of_others_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledgers.db"
    with closing(LedgersFile(path)) as file:
        with file.together():
            opened(file).charge([release(0)], 1.0)
            with pytest.raises(InvalidState, match="another noise key"):
                Ledger(path, OWNER, "another", shared=file)
            with pytest.raises(OverflowError):
                opened(file, OTHER).charge([release(1), release(2**70)], 1.0)
        spent = read_spending(path)
        assert spent[OWNER].models[0].windows == 1
        assert spent[OTHER].models == []


def test_charges_that_sqlite_has_rolled_back_by_itself_end_the_step(tmp_path: Path) -> None:
    path = tmp_path / "ledgers.db"
    with closing(LedgersFile(path)) as file:
        ledger = opened(file)
        other = opened(file, OTHER)
        with pytest.raises(LogUnavailable, match="are made again"):
            charge_with_a_loss(file, ledger, other)
        assert ledger.windows("tree") == other.windows("tree") == 0
        with file.together():
            ledger.charge([release(0)], 1.0)
        assert ledger.windows("tree") == 1


def charge_with_a_loss(file: LedgersFile, ledger: Ledger, other: Ledger) -> None:
    with file.together():
        ledger.charge([release(0)], 1.0)
        # As after an error of the disk.
        file.connection.execute("ROLLBACK")
        with pytest.raises(LogUnavailable, match="are made again"):
            other.charge([release(0)], 1.0)


def test_a_full_disk_takes_no_charge_from_the_file_that_was_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledgers.db"
    with closing(LedgersFile(path)) as file:
        ledger = opened(file)
        (pages,) = file.connection.execute("PRAGMA page_count").fetchone()
        file.connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        charged = 0
        with suppress(LogUnavailable), file.together():
            for number in range(1000):
                try:
                    ledger.charge([release(number)], 1.0)
                except LogUnavailable:
                    break
                charged += 1
        assert 0 < charged < 1000
        assert ledger.windows("tree") in (0, charged)


def test_a_file_that_is_damaged_or_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledgers.db"
    LedgersFile(path).close()
    with closing(sqlite3.connect(path)) as damaged:
        damaged.execute("UPDATE about SET value = '99' WHERE name = 'format'")
        damaged.commit()
    with pytest.raises(InvalidState, match="another version"):
        LedgersFile(path)
    path.unlink()
    LedgersFile(path).close()
    with closing(sqlite3.connect(path)) as damaged:
        (page,) = damaged.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'accounts'"
        ).fetchone()
        (size,) = damaged.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size] = 99
    path.write_bytes(content)
    with pytest.raises(InvalidState, match="no ledger that can be read"):
        LedgersFile(path)
    path.write_bytes(b"no ledger at all")
    with pytest.raises(InvalidState, match="no ledger that can be read"):
        LedgersFile(path)
