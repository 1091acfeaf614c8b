"""The ledger: never below what was spent, exact over millions of releases, and refused where it
does not fit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.errors import InvalidState, LogUnavailable
from shoal.privacy.ledger import Ledger, MaskedRelease, Release, nano, read_spending

PLAN = b"p" * 32
OTHER_PLAN = b"q" * 32
COUNTS = b"c" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger(path, "client a of plant", "0123") as opened:
        yield opened


def test_a_repeated_release_costs_nothing_and_one_under_another_plan_costs_again(
    ledger: Ledger,
) -> None:
    release = Release("clusters", 0, PLAN, COUNTS, 400, 4.0)
    for _ in range(3):
        ledger.charge([release], 1.0)
    assert ledger.spending().of_person(1) == 4.0
    ledger.charge([release._replace(plan=OTHER_PLAN)], 2.0)
    (spent,) = ledger.spending().models
    assert (spent.windows, spent.releases, spent.places, spent.epsilon) == (1, 2, 400, 8.0)


def test_a_person_has_spent_the_most_costly_windows_in_all_models_and_the_noisy_rows(
    ledger: Ledger,
) -> None:
    for number, epsilon in ((0, 4.0), (1, 1.0)):
        ledger.charge(
            [
                Release("a", number, PLAN, COUNTS, 10, epsilon),
                Release("b", number, PLAN, COUNTS, 10, 0.5),
            ],
            1,
        )
    spending = ledger.spending()
    assert [spending.of_person(readings) for readings in (1, 10, 11, 20, 30, None)] == [
        4.5,
        45,
        46.5,
        60,
        60,
        60,
    ]
    ledger.charge_rows({0: (0, 15), 1: (5, 10)}, 200.0)
    assert ledger.spending().of_person(2) == 2 * 4.5 + 2 * 200
    assert ledger.spending().of_person() == 60 + 20 * 200


def test_in_the_unit_of_a_source_a_window_costs_a_person_once(ledger: Ledger) -> None:
    for number in range(3):
        ledger.charge([Release("a", number, PLAN, COUNTS, 400, 2.0, "source")], 1)
    assert [ledger.spending().of_person(readings) for readings in (1, 2, 1000, None)] == [
        2,
        4,
        6,
        6,
    ]


def test_noisy_rows_are_charged_by_place_so_that_reading_them_again_costs_nothing(
    ledger: Ledger,
) -> None:
    for first, stop in ((0, 100), (50, 80), (0, 100), (100, 130)):
        ledger.charge_rows({0: (first, stop)}, 8.0)
    rows = ledger.spending().rows
    assert rows is not None
    assert (rows.places, rows.epsilon) == (130, 8.0)


def test_sums_of_many_releases_are_exact_and_an_epsilon_is_rounded_up(ledger: Ledger) -> None:
    ledger.charge([Release("a", number, PLAN, COUNTS, 1, 0.1) for number in range(10_000)], 1.0)
    assert ledger.spending().of_person() == 1000.0
    assert nano(0.1) == 10**8
    assert nano(1e-10) == 1


def test_a_charge_is_in_the_file_when_charge_returns(ledger: Ledger, path: Path) -> None:
    ledger.charge([Release("a", 0, PLAN, COUNTS, 400, 4.0)], 1.0)
    ledger.charge_rows({0: (0, 5)}, 8.0)
    (other,) = read_spending(path).values()
    assert other == ledger.spending()
    assert other.of_person(1) == 12.0


def test_charges_outlive_the_process(path: Path) -> None:
    with Ledger(path, "client a of plant", "0123") as first:
        first.charge([Release("a", 0, PLAN, COUNTS, 400, 4.0)], 1.0)
    with Ledger(path, "client a of plant", "0123") as second:
        assert second.windows("a") == 1


def test_an_account_of_another_key_is_refused(path: Path) -> None:
    Ledger(path, "client a of plant", "0123").close()
    with pytest.raises(InvalidState, match="start under a new client name"):
        Ledger(path, "client a of plant", "4567")


def test_federations_that_share_a_ledger_have_accounts_of_their_own(
    path: Path, ledger: Ledger
) -> None:
    release = Release("clusters", 0, PLAN, COUNTS, 400, 4.0)
    with Ledger(path, "client a of office", "4567") as other:
        assert other.identity == ledger.identity
        before = other.version()
        ledger.charge([release], 1.0)
        ledger.charge_rows({0: (0, 100)}, 8.0)
        ledger.mark_stored(1)
        assert other.version() != before
        assert (other.spending().models, other.windows("clusters")) == ([], 0)
        other.check_windows(["clusters"], 0)
        other.charge([release._replace(epsilon=1.0)], 1.0)
        other.charge_rows({0: (0, 50)}, 8.0)
        assert other.spent_by_others(1) == nano(12.0)
    assert ledger.spending().of_person(1) == 12.0
    assert {owner: account.of_person(1) for owner, account in read_spending(path).items()} == {
        "client a of plant": 12.0,
        "client a of office": 9.0,
    }


def test_of_two_accounts_that_claim_at_once_one_gets_the_rest_of_the_limit(
    path: Path, ledger: Ledger
) -> None:
    with Ledger(path, "client a of office", "4567") as other:
        assert ledger.claim(6, 10, None)
        assert not other.claim(5, 10, None)
        assert other.claim(4, 10, None)
        assert not ledger.claim(7, 10, None)
        assert ledger.claim(5, 10, None), "less than was claimed before"
        assert other.spent_by_others(None) == 6, "what was claimed stays so"
        ledger.charge([Release("clusters", 0, PLAN, COUNTS, 1, 4.0)], 1.0)
        assert other.spent_by_others(None) == nano(4.0), "more was charged than claimed"


def test_a_ledger_of_another_version_is_refused(path: Path) -> None:
    Ledger(path, "client a of plant", "0123").close()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE about SET value = '99' WHERE name = 'format'")
    with pytest.raises(InvalidState, match="another version"):
        Ledger(path, "client a of plant", "0123")


@pytest.mark.parametrize("table", ["about", "accounts", "releases", "noised"])
def test_a_ledger_without_one_of_its_tables_is_damaged_and_not_new(path: Path, table: str) -> None:
    Ledger(path, "client a of plant", "0123").close()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(f"DROP TABLE {table}")
    with pytest.raises(InvalidState, match="no ledger that can be read"):
        Ledger(path, "client a of plant", "0123")


def test_a_ledger_behind_its_checkpoint_is_refused_for_windows_and_for_rows(ledger: Ledger) -> None:
    ledger.charge([Release("a", 0, PLAN, COUNTS, 400, 4.0)], 1.0)
    ledger.charge_rows({0: (0, 100)}, 8.0)
    ledger.check_windows(["a"], 1)
    ledger.check_rows({0: 100})
    with pytest.raises(InvalidState, match="missing or older than the checkpoint"):
        ledger.check_windows(["a"], 2)
    with pytest.raises(InvalidState, match="missing or older than the checkpoint"):
        ledger.check_rows({0: 101})
    with pytest.raises(InvalidState, match="missing or older than the checkpoint"):
        ledger.check_rows({1: 1})


def test_a_checkpoint_older_than_the_ledger_is_refused(ledger: Ledger) -> None:
    for number in range(3):
        ledger.charge([Release("a", number, PLAN, COUNTS, 400, 4.0)], 1.0)
    ledger.mark_stored(2)
    ledger.mark_stored(1)
    ledger.check_windows(["a"], 2)
    with pytest.raises(InvalidState, match="older than the ledger"):
        ledger.check_windows(["a"], 1)


def test_a_ledger_that_another_process_holds_is_waited_for_and_ends_no_client(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = Release("clusters", 0, PLAN, COUNTS, 400, 4.0)
    monkeypatch.setattr("shoal.privacy.ledger._WAIT_S", 0.0)
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as other,
        # Opened after the limit was changed.
        Ledger(path, "client a of plant", "0123") as waiting,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogUnavailable, match="has held its lock") as held:
            waiting.charge([release], 1.0)
        assert held.value.retriable
        other.execute("ROLLBACK")
        waiting.charge([release], 1.0)
    assert ledger.spending().of_person(1) == 4.0


DAY = 86_400.0
SPAN = 30 * DAY
WINDOW = DAY / 4
"""seconds; a span has 120 of them"""


def charged(ledger: Ledger, number: int, now: float) -> bool:
    """Whether the budget of two windows in a span lets this one be charged."""
    return ledger.charge_masked(MaskedRelease("clusters", number, 10, 50), now, SPAN, 100)


def test_the_budget_of_masked_counts_is_that_of_all_federations_on_the_readings(
    path: Path,
) -> None:
    with (
        Ledger(path, "client a of plant", "0123") as one,
        Ledger(path, "client a of other", "4567") as other,
    ):
        assert charged(one, 0, 0.0)
        assert charged(other, 0, 1.0)
        assert not charged(one, 1, 2.0)
        assert not charged(other, 1, 3.0)
        assert charged(one, 0, 4.0), "what is charged stays charged"


@pytest.mark.parametrize("budget", [(None, None), (SPAN, 10**9)], ids=["none", "larger"])
def test_a_budget_holds_for_a_federation_that_has_none_or_a_larger_one(
    path: Path, budget: tuple[float | None, int | None]
) -> None:
    with (
        Ledger(path, "client a of careful", "0123") as careful,
        Ledger(path, "client a of other", "4567") as other,
    ):
        assert charged(careful, 0, 0.0)
        assert other.charge_masked(MaskedRelease("clusters", 0, 10, 50), 1.0, *budget)
        assert not other.charge_masked(MaskedRelease("clusters", 1, 10, 50), 2.0, *budget)
        lost = MaskedRelease("clusters", 1, 10, 50)
        assert other.charge_masked(lost, 3.0, None, None, is_published=True), "it is spent already"
        assert not charged(careful, 1, 4.0)


def test_a_clock_that_is_set_ahead_frees_no_budget(ledger: Ledger) -> None:
    ledger.pass_windows(0, 0.0, WINDOW)
    assert charged(ledger, 0, 0.0)
    assert charged(ledger, 1, 0.0)
    assert ledger.pass_windows(0, 31 * DAY, WINDOW) == pytest.approx(31 * DAY - WINDOW)
    assert not charged(ledger, 2, 31 * DAY)
    assert ledger.pass_windows(0, 1.0, WINDOW) == 0.0, "and set back again"
    assert not charged(ledger, 2, 1.0)


@pytest.mark.parametrize("is_closed", [False, True])
def test_budget_is_free_again_when_windows_and_clock_have_passed_and_not_by_either_alone(
    ledger: Ledger, is_closed: bool
) -> None:
    ledger.pass_windows(0, 0.0, WINDOW)
    assert charged(ledger, 0, 0.0)
    assert charged(ledger, 1, 0.0)
    for window in range(1, 120):
        assert ledger.pass_windows(window if is_closed else 0, window * WINDOW, WINDOW) == 0.0
    assert not charged(ledger, 2, SPAN), "119 windows"
    ledger.pass_windows(120 if is_closed else 0, SPAN, WINDOW)
    assert not charged(ledger, 2, SPAN - 1.0), "a second is missing"
    assert charged(ledger, 2, SPAN)


def test_an_account_that_begins_later_does_not_make_time_pass_faster(path: Path) -> None:
    with (
        Ledger(path, "client a of plant", "0123") as one,
        Ledger(path, "client a of other", "4567") as other,
    ):
        one.pass_windows(0, 0.0, WINDOW)
        assert charged(one, 0, 0.0)
        assert charged(one, 1, 0.0)
        for window in range(61):
            one.pass_windows(window, window * WINDOW, WINDOW)
            other.pass_windows(window, window * WINDOW, WINDOW)
        assert not charged(other, 0, SPAN)
