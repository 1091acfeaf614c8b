"""The ledger: what was spent of the privacy of a readings log, on the disk before it is published.

There is one ledger for each readings log. Every client that reads the log, one for each federation
of the site, has an account in it, so that what a person has spent is the sum of all of them.

A release of counts is one row for each window and model. One that is computed again after a kill
has the same window, plan and counts, hence the same noise, and costs nothing more. If the plan has
changed meanwhile, the second release is charged as well although the first was never published: the
ledger may exceed what was spent, and is never below it. Noisy rows are charged by place: the same
reading at the same place gets the same noise, so that a repeat costs nothing.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import ROUND_CEILING, Decimal
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from shoal.errors import CheckpointInUse, InvalidState, LogUnavailable
from shoal.files import make_private, sqlite_errors, writing
from shoal.privacy.base import UnitName
from shoal.read_only import read_unchanged

NANO: Final = 10**9
"""an epsilon of 1 in the ledger's whole numbers, which are rounded up, so that sums of millions of
them are exact"""
MASKED_DELTA: Final = 1e-6
"""delta at which the epsilon of masked counts is told"""


class Spent(NamedTuple):
    """The ledger's entry of one model that learns from counts."""

    model: str
    windows: int
    """numbers of windows that were released"""
    releases: int
    """charged for them: more than windows where one was charged under two plans, before and after a
    kill"""
    places: int
    """readings in the windows, rejected ones included"""
    epsilon: float
    """epsilon of one reading, or of one user in a window, in the window that has cost most"""


class Noised(NamedTuple):
    """The ledger's entry of noisy rows, which all models that learn rows share."""

    places: int
    """readings that got noise, rejected ones included"""
    epsilon: float
    """epsilon of one reading"""


class SpentMasked(NamedTuple):
    """The ledger's entry of masked counts of one model."""

    model: str
    windows: int
    places: int
    rho: int
    """billionths of rho of everything that the client has published in all these windows"""


class Spending(NamedTuple):
    """Spending of a client in all that it has published: one account of the ledger."""

    models: list[Spent]
    """models in the order of their names"""
    rows: Noised | None
    windows: list[tuple[int, int]]
    """(billionths of epsilon that a window has cost in all models, how often one person can spend
    that at most), the most costly first. All models count the same windows"""
    masked: Sequence[SpentMasked] = ()
    """models that learn from masked counts, in the order of their names"""

    def of_person(self, readings: int | None = None) -> float:
        """Largest epsilon that a person with this number of readings has spent.

        None: all readings of the client. Masked counts count whole, at the delta that is the
        default of their mode.
        """
        readings_left = math.inf if readings is None else readings
        total = 0
        if self.rows is not None:
            total += nano(self.rows.epsilon) * int(min(readings_left, self.rows.places))
        # Rows and counts are made from the same readings, so those of the rows are not used up. The
        # most costly windows come first: a person with few readings may have had them there.
        for epsilon, units in self.windows:
            taken = int(min(readings_left, units))
            total += epsilon * taken
            readings_left -= taken
        return total / NANO + self.of_masked

    @property
    def of_masked(self) -> float:
        """Epsilon of everything published in masked counts of all models, at a delta of 1e-6."""
        if not self.masked:
            return 0.0
        # Loaded only where counts are masked: the tables of a client need its memory.
        from shoal.privacy.gaussian import epsilon_of  # noqa: PLC0415 - for masked counts only

        # Rhos add up, whatever was learnt from the windows before; epsilons would overstate.
        rho = sum(entry.rho for entry in self.masked)
        return epsilon_of(rho / NANO, MASKED_DELTA)


def nano(epsilon: float) -> int:
    """Billionths of an epsilon, taken from its decimals and rounded up."""
    # The float nearest to .1 is a little more than that: rounded up as it is, it would cost one
    # more.
    return int((Decimal(repr(float(epsilon))) * NANO).to_integral_value(rounding=ROUND_CEILING))


def read_spending(path: Path) -> dict[str, Spending]:
    """The accounts of a ledger by owner, read without changing it.

    Raises `InvalidState` if there is no ledger that can be read.
    """

    def read(file: sqlite3.Connection) -> dict[str, Spending]:
        # Before any other table is read: in another format it may have other columns.
        if "about" in _tables(file) and _about(file).get("format") != FORMAT:
            raise _of_another_version(path)
        return {owner: _spending(file, owner) for owner in _owners(file)}

    try:
        return read_unchanged(path, read)
    except sqlite3.DatabaseError as damaged:
        raise unreadable(path, str(damaged)) from None


def _tables(ledger: sqlite3.Connection) -> set[str]:
    rows = ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows}


def _about(ledger: sqlite3.Connection) -> dict[str, str]:
    return dict(ledger.execute("SELECT name, value FROM about"))


def _of_another_version(path: Path) -> InvalidState:
    return InvalidState(f"{path} was written by another version of shoal; run that version")


def _owners(ledger: sqlite3.Connection) -> list[str]:
    return [str(owner) for (owner,) in ledger.execute("SELECT owner FROM accounts ORDER BY owner")]


def _spending(ledger: sqlite3.Connection, owner: str) -> Spending:
    """The account of `owner`. Raises as `sqlite3` does."""
    models = ledger.execute(
        "SELECT model, COUNT(*), SUM(releases), SUM(places), MAX(epsilon) FROM (SELECT model, "
        "COUNT(*) AS releases, MAX(places) AS places, SUM(epsilon) AS epsilon FROM releases WHERE "
        "owner = ? GROUP BY model, number) GROUP BY model ORDER BY 1",
        (owner,),
    ).fetchall()
    windows = ledger.execute(
        "SELECT epsilon, SUM(units) FROM (SELECT SUM(epsilon) AS epsilon, MAX(units) AS units "
        "FROM releases WHERE owner = ? GROUP BY number) GROUP BY epsilon ORDER BY epsilon DESC",
        (owner,),
    ).fetchall()
    noised = ledger.execute(
        "SELECT SUM(places), MAX(epsilon) FROM noised WHERE owner = ?", (owner,)
    ).fetchone()
    masked = ledger.execute(
        "SELECT model, COUNT(*), SUM(places), SUM(rho) FROM masked WHERE owner = ? GROUP BY model "
        "ORDER BY model",
        (owner,),
    ).fetchall()
    spent = []
    for model, numbers, releases, places, epsilon in models:
        spent.append(Spent(model, numbers, releases, places, epsilon / NANO))
    rows = None
    places, epsilon = noised
    # Sums over no rows of a table are NULL.
    if places is not None:
        rows = Noised(places, epsilon / NANO)
    return Spending(spent, rows, windows, [SpentMasked(*entry) for entry in masked])


def unreadable(path: Path, how: str) -> InvalidState:
    """The error for a ledger that is damaged, or no ledger at all."""
    return InvalidState(
        f"{path} is no ledger that can be read ({how}): restore it from a backup of the same "
        "moment as the checkpoint, or start under a new client name"
    )


LEDGER: Final = "ledger.db"
"""the file beside a client's readings log"""


def account(client: str, federation: str) -> str:
    """The owner of the account of a client."""
    return f"client {client} of {federation}"


def client_of(owner: str, federation: str) -> str | None:
    """The client of an account in this federation; None for another account."""
    client = owner.removeprefix("client ").removesuffix(f" of {federation}")
    return client if owner == account(client, federation) else None


FORMAT: Final = "6"
IDENTITY_BYTES: Final = 16
_WAIT_S: Final = 30.0
"""wait for the charge of another process"""
_TABLES: Final = frozenset(
    {"about", "accounts", "releases", "noised", "masked", "budgets", "passed"}
)
_SCHEMA: Final = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE accounts (owner TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, stored INTEGER NOT "
    "NULL, claimed INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE releases (owner TEXT NOT NULL, model TEXT NOT NULL, number INTEGER NOT NULL, "
    "plan BLOB NOT NULL, counts BLOB NOT NULL, places INTEGER NOT NULL, units INTEGER NOT NULL, "
    "epsilon INTEGER NOT NULL, charged_at REAL NOT NULL, PRIMARY KEY (owner, model, number, plan, "
    "counts)) WITHOUT ROWID",
    "CREATE TABLE noised (owner TEXT NOT NULL, partition INTEGER NOT NULL, stop INTEGER NOT NULL, "
    "places INTEGER NOT NULL, epsilon INTEGER NOT NULL, PRIMARY KEY (owner, partition)) WITHOUT "
    "ROWID",
    "CREATE TABLE masked (owner TEXT NOT NULL, model TEXT NOT NULL, number INTEGER NOT NULL, "
    "places INTEGER NOT NULL, rho INTEGER NOT NULL, charged_at REAL NOT NULL, passed REAL NOT "
    "NULL, PRIMARY KEY (owner, model, number)) WITHOUT ROWID",
    "CREATE TABLE budgets (owner TEXT PRIMARY KEY, span_s REAL NOT NULL, rho INTEGER NOT NULL) "
    "WITHOUT ROWID",
    "CREATE TABLE passed (owner TEXT PRIMARY KEY, window INTEGER NOT NULL, seen_at REAL NOT NULL, "
    "seconds REAL NOT NULL) WITHOUT ROWID",
)


_KEY_COLUMNS: Final = {
    "accounts": 1,
    "releases": 5,
    "noised": 2,
    "masked": 3,
    "budgets": 1,
    "passed": 1,
}
"""table of charges -> how many of its columns, the first ones, are its key"""
_ONE_ROW_EACH: Final = ("about", "accounts", "noised", "budgets", "passed")
"""tables with a row or few of each client. The others grow with every window: of thousands of
clients they are read where a client is opened, and not as a whole at a start"""
LedgerRow = tuple[Any, ...]
_Written = tuple[str, LedgerRow, bool]
"""a table, a row of it that was written, and whether it is there"""
NoteRow = Callable[[str, LedgerRow, LedgerRow | None], None]
"""gets a table, the key of a row, and the row; None for one that was deleted"""


class Release(NamedTuple):
    """Charge for one window of one model."""

    model: str
    number: int
    """number of the window, from 0"""
    plan: bytes
    """digest of the plan under which it was counted"""
    counts: bytes
    """digest of its private counts"""
    places: int
    epsilon: float
    unit: UnitName = "reading"

    @property
    def units(self) -> int:
        """How often one person can spend the epsilon.

        Once for each reading, or once as a user of the window.
        """
        if self.unit == "reading":
            return self.places
        return 1


class MaskedRelease(NamedTuple):
    """Charge for one window of masked counts of one model, once, whatever rounds it is sent for."""

    model: str
    number: int
    """number of the window, from 0"""
    places: int
    rho: int
    """billionths, rounded up"""


class Ledger:
    """An SQLite file beside the readings log, and one account in it.

    Several processes may have it open. Every charge is flushed to the disk before `charge` returns,
    unless the file is shared: see `LedgersFile.together`.
    Every method raises `InvalidState` for a damaged file, `SettingsError` when this user may not
    write it, and `LogUnavailable` when the disk is full or fails.
    """

    def __init__(
        self,
        path: Path,
        owner: str,
        fingerprint: str,
        *,
        shared: LedgersFile | None = None,
        watch: Callable[[Path], AbstractContextManager[None]] = lambda file: nullcontext(),
        note: NoteRow | None = None,
    ) -> None:
        """`owner` names the account, "client a of plant"; `fingerprint` the noise key of that
        client.

        `shared`: the open file in which it is, with those of other clients; None: the one at
        `path`, of its own. `watch` surrounds each write of the file. `note` gets every row that was
        written, or None for one that was deleted, once it is in the file. An owner without an
        account gets one. Raises `InvalidState` for an account of another key.
        """
        self._path = path
        self._watch = watch
        self._owner = owner
        self.fingerprint = fingerprint
        self._note = note
        self._shared = shared
        self._written: list[_Written] = []
        """what the transaction that is open has written"""
        self._connection: sqlite3.Connection | None = None
        self._scope = ""
        """condition on `:owner` of queries over all accounts of the same readings"""
        if shared is not None:
            self._written = shared.written
            self._connection = shared.connection
            self._scope = " WHERE owner = :owner"
        with self._opened():
            self.identity = self._open() if shared is None else shared.identity_of(owner)
            """a random name, given when the file was created; a copy has the same"""
            self._open_account()

    def charge(self, releases: Sequence[Release], now: float) -> None:
        """Charge releases, unless they are charged already.

        They are on the disk when this returns.
        """
        rows = []
        for release in releases:
            rows.append(
                (
                    self._owner,
                    release.model,
                    release.number,
                    release.plan,
                    release.counts,
                    release.places,
                    release.units,
                    nano(release.epsilon),
                    now,
                )
            )
        with self._transaction() as file:
            # After a kill the same window is made again, to the bit: it has been charged.
            file.executemany(
                "INSERT OR IGNORE INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )

    def charge_rows(self, places: Mapping[int, tuple[int, int]], epsilon: float) -> None:
        """Charge the noisy rows of these places as far as they are new.

        They are on the disk when this returns. `places`: partition of the readings log -> the first
        offset, and the one after the last.
        """
        rows = [
            (self._owner, partition, stop, stop - first, nano(epsilon))
            for partition, (first, stop) in places.items()
        ]
        with self._transaction() as file:
            # After a kill the same places come again with more behind them: new is what lies beyond
            # the last stop.
            file.executemany(
                "INSERT INTO noised VALUES (?, ?, ?, ?, ?) ON CONFLICT (owner, partition) DO "
                "UPDATE SET places = places + MAX(0, MIN(excluded.places, excluded.stop - stop)), "
                "stop = MAX(stop, excluded.stop), epsilon = MAX(epsilon, excluded.epsilon)",
                rows,
            )

    def pass_windows(self, window: int, now: float, window_s: float) -> float:
        """Note that the windows before this one have passed, each of `window_s` seconds.

        Where no window was closed, one has passed when the clock is `window_s` later. A clock that
        is later still has been set ahead, or this client was away: that is one window as well, and
        the seconds beyond it are returned; otherwise 0.
        """
        with self._transaction() as file:
            row = file.execute(
                "SELECT window, seen_at FROM passed WHERE owner = ?", (self._owner,)
            ).fetchone()
            if row is None:
                # The windows of all accounts are one measure: a new one begins where the others
                # are.
                file.execute(
                    "INSERT INTO passed VALUES (?, ?, ?, ?)",
                    (self._owner, window, now, self._seconds_passed(file)),
                )
                return 0.0
            before, seen_at = row
            passed = max(0, window - before)
            later = now - seen_at
            if not passed and 0.0 <= later < window_s:
                return 0.0
            if not passed and later >= window_s:
                passed = 1
            file.execute(
                "UPDATE passed SET window = MAX(window, ?), seen_at = ?, seconds = seconds + ? "
                "WHERE owner = ?",
                (window, now, passed * window_s, self._owner),
            )
            return max(0.0, later - window_s) if later >= 2.0 * window_s else 0.0

    def charge_masked(
        self,
        release: MaskedRelease,
        now: float,
        span_s: float | None,
        most: int | None,
        *,
        is_published: bool = False,
    ) -> bool:
        """Charge a window of masked counts, unless it is charged already.

        `span_s`, `most`: the budget of this account, billionths of rho in any span of so many
        seconds; None: it has none. It is on the disk when this returns. False, and nothing is
        charged, where some account's budget would then be exceeded by all accounts of the ledger
        together: rhos of all that is made from the same readings add up, and each budget is a
        promise on all of them, whichever account spends. `is_published`: charge it in any case. A
        charge leaves a span when the clock says so and as many windows have passed
        (`pass_windows`): a clock that was set ahead frees nothing.
        """
        with self._transaction() as file:
            known = file.execute(
                "SELECT 1 FROM masked WHERE owner = ? AND model = ? AND number = ?",
                (self._owner, release.model, release.number),
            ).fetchone()
            if known is not None:
                return True
            # A clock that was set back must not make a span longer than it is: charges before it
            # would count as later ones, and those after it would not see them.
            own = {"owner": self._owner}
            newest = file.execute(
                f"SELECT MAX(charged_at) FROM masked{self._scope}", own
            ).fetchone()[0]
            at = now if newest is None else max(now, newest)
            passed = self._seconds_passed(file)
            if not is_published:
                self._declare_budget(file, span_s, most)
                budgets = file.execute(
                    f"SELECT DISTINCT span_s, rho FROM budgets{self._scope}", own
                ).fetchall()
                for span, rho_most in budgets:
                    spent = file.execute(
                        "SELECT SUM(rho) FROM (SELECT rho, charged_at, passed FROM"
                        f" masked{self._scope}) WHERE charged_at > :since OR passed > :after",
                        own | {"since": at - span, "after": passed - span},
                    ).fetchone()[0]
                    if (spent or 0) + release.rho > rho_most:
                        return False
            file.execute(
                "INSERT INTO masked VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._owner, *release, at, passed),
            )
        return True

    def _declare_budget(
        self, file: sqlite3.Connection, span_s: float | None, most: int | None
    ) -> None:
        """Let this account's budget hold for charges of all accounts from now on."""
        if span_s is None or most is None:
            file.execute("DELETE FROM budgets WHERE owner = ?", (self._owner,))
            return
        file.execute("INSERT OR REPLACE INTO budgets VALUES (?, ?, ?)", (self._owner, span_s, most))

    def last_charge(self) -> float | None:
        """Time of the newest charge of a window in this account, seconds since 1970."""
        with self._opened():
            (newest,) = self._file.execute(
                "SELECT MAX(charged_at) FROM (SELECT charged_at FROM releases WHERE owner = ?"
                " UNION ALL SELECT charged_at FROM masked WHERE owner = ?)",
                (self._owner, self._owner),
            ).fetchone()
        return None if newest is None else float(newest)

    def masked_windows(self, model: str) -> int:
        """One more than the number of the newest window of masked counts charged for a model.

        0 without any.
        """
        return self._next_window("masked", model)

    def check_masked(self, windows: Mapping[str, int], closed: int) -> None:
        """Raises `InvalidState` unless the ledger continues a checkpoint with these windows.

        `windows`: model -> windows that the checkpoint has charged for it. `closed`: windows that
        every model has done with.
        """
        # A window that is answered again costs nothing as long as helpers remember it, which those
        # that were restored with the checkpoint do not.
        self._check_stored(closed)
        for model, windows_stored in windows.items():
            windows_charged = self.masked_windows(model)
            if windows_charged < windows_stored:
                raise self._behind(
                    f"{windows_charged} windows of model {model}", f"{windows_stored}"
                )

    def windows(self, model: str) -> int:
        """One more than the number of the newest window charged for a model; 0 without any."""
        return self._next_window("releases", model)

    def _next_window(self, table: str, model: str) -> int:
        with self._opened():
            newest = self._file.execute(
                f"SELECT MAX(number) FROM {table} WHERE owner = ? AND model = ?",
                (self._owner, model),
            ).fetchone()[0]
        if newest is None:
            return 0
        return int(newest) + 1

    def spending(self) -> Spending:
        """Charges to this account, summed."""
        with self._opened():
            return _spending(self._file, self._owner)

    def spent_by_others(self, readings: int | None) -> int:
        """Billionths of epsilon that a person has spent by all other accounts at most.

        What an account has claimed counts as spent. `readings`: see `Spending.of_person`.
        """
        with self._opened():
            return self._of_others(readings)

    def claim(self, epsilon: int, most: int, readings: int | None) -> bool:
        """Claim that this account spends this much in all, in billionths.

        It is on the disk when this returns. False, and nothing is claimed, where a person would
        then have spent more than `most` by all accounts together: of two clients that would both
        pass the limit, one gets the rest of it.
        """
        with self._transaction() as file:
            if epsilon + self._of_others(readings) > most:
                return False
            file.execute(
                "UPDATE accounts SET claimed = MAX(claimed, ?) WHERE owner = ?",
                (epsilon, self._owner),
            )
        return True

    def _of_others(self, readings: int | None) -> int:
        if self._shared is not None:
            # Its readings are no other account's.
            return 0
        accounts = self._file.execute(
            "SELECT owner, claimed FROM accounts WHERE owner <> ?", (self._owner,)
        ).fetchall()
        total = 0
        for owner, claimed in accounts:
            spent = nano(_spending(self._file, owner).of_person(readings))
            # The claim where it is more: that account may spend it at any moment.
            total += max(claimed, spent)
        return total

    def version(self) -> int:
        """A number that changes with every charge of another process.

        To read it costs less than the sums of charges.
        """
        if self._shared is not None:
            # One process has the file.
            return 0
        with self._opened():
            return int(self._file.execute("PRAGMA data_version").fetchone()[0])

    def mark_stored(self, windows: int) -> None:
        """Note that a checkpoint which has released `windows` windows is on the disk."""
        if windows > self._stored():
            with self._transaction() as file:
                file.execute(
                    "UPDATE accounts SET stored = ? WHERE owner = ?", (windows, self._owner)
                )

    def check_windows(self, models: Sequence[str], windows: int) -> None:
        """Raises `InvalidState` unless the ledger fits a checkpoint that has released `windows`.

        A kill after a charge leaves the ledger ahead of the checkpoint, but never behind it, and
        the ledger has never seen a later checkpoint.
        """
        for model in models:
            charged = self.windows(model)
            if charged < windows:
                raise self._behind(f"{charged} windows of model {model}", f"{windows}")
        self._check_stored(windows)

    def row_stops(self) -> dict[int, int]:
        """Partition of the readings log -> the first place whose noisy row is not charged."""
        with self._opened():
            noised = self._file.execute(
                "SELECT partition, stop FROM noised WHERE owner = ?", (self._owner,)
            )
            return dict(noised.fetchall())

    def check_rows(self, stops: Mapping[int, int]) -> None:
        """Raises `InvalidState` unless every place with noise in the checkpoint is charged.

        `stops`: partition of the readings log -> the first place without noise.
        """
        charged = self.row_stops()
        for partition, stop in stops.items():
            charged_stop = charged.get(partition, 0)
            if charged_stop < stop:
                raise self._behind(
                    f"noisy rows up to place {charged_stop} of the readings log", f"up to {stop}"
                )

    def close(self) -> None:
        """Close the file, unless others have it, too."""
        if self._shared is None and self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> str:
        """Create what is missing, and check the rest; returns the identity."""
        with self._transaction() as file:
            # In one transaction: two processes may open a new ledger at once, and after a kill a
            # file is empty or whole.
            if not file.execute("SELECT 1 FROM sqlite_master").fetchall():
                _make_tables(file)
        identity = _checked_identity(self._file, self._path)
        self._note_rows(self._file)
        return identity

    def _open_account(self) -> None:
        """Make the account where there is none. Raises `InvalidState` for one of another key."""
        known = self._account()
        if known is None:
            with self._transaction() as file:
                file.execute(
                    "INSERT OR IGNORE INTO accounts VALUES (?, ?, 0, 0)",
                    (self._owner, self.fingerprint),
                )
            # Another process may have been faster.
            known = self._account()
        if known != (self.fingerprint,):
            raise InvalidState(
                f"{self._path} has charges of {self._owner} under another noise key: restore the "
                "key that belongs to this folder, or start under a new client name"
            )

    def _account(self) -> tuple[Any, ...] | None:
        """The fingerprint of the account's key; None without an account."""
        row: tuple[Any, ...] | None = self._file.execute(
            "SELECT fingerprint FROM accounts WHERE owner = ?", (self._owner,)
        ).fetchone()
        return row

    def _seconds_passed(self, file: sqlite3.Connection) -> float:
        """Seconds of the windows that have passed, by the account for which most have."""
        (seconds,) = file.execute(
            f"SELECT MAX(seconds) FROM passed{self._scope}", {"owner": self._owner}
        ).fetchone()
        return float(seconds or 0.0)

    def _check_stored(self, windows: int) -> None:
        """Raises `InvalidState` where a later checkpoint than one with `windows` was on the
        disk."""
        stored = self._stored()
        if stored > windows:
            raise InvalidState(
                f"{self._path} knows a checkpoint with {stored} windows, this one has {windows}: "
                "the checkpoint is older than the ledger, and going on would publish the same "
                "readings with other noise. Restore both from one moment, or start under a new "
                "client name"
            )

    def _stored(self) -> int:
        with self._opened():
            row = self._file.execute(
                "SELECT stored FROM accounts WHERE owner = ?", (self._owner,)
            ).fetchone()
        if row is None or not isinstance(row[0], int):
            raise unreadable(self._path, "what it knows of the checkpoint is gone")
        return row[0]

    def _behind(self, charged: str, checkpoint: str) -> InvalidState:
        return InvalidState(
            f"{self._path} has {charged}, the checkpoint {checkpoint}: the ledger is missing or "
            "older than the checkpoint. Restore both from one moment, or start under a new client "
            "name"
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._written.clear()
        with self._opened(), self._watch(self._path), self._one_write():
            yield self._file
        # Only what was committed: after an error none of it is in the file.
        if self._note is not None:
            for table, row, is_there in self._written:
                self._note(table, row[: _KEY_COLUMNS[table]], row if is_there else None)
        self._written.clear()

    def _one_write(self) -> AbstractContextManager[None]:
        if self._shared is None:
            return writing(self._file)
        return self._shared.writing()

    def _note_rows(self, file: sqlite3.Connection) -> None:
        """Have every row that this connection writes noted."""
        if self._note is not None:
            _watch_rows(file, self._written)

    @property
    def _file(self) -> sqlite3.Connection:
        assert self._connection is not None, "it is used within `_opened`"
        return self._connection

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """The file is open inside; errors of SQLite are those of this class."""
        with (
            self._waiting(),
            sqlite_errors(self._path, "this client", partial(unreadable, self._path)),
        ):
            opens = self._connection is None
            try:
                if opens:
                    self._connection = self._connected()
                yield
            except BaseException:
                # `close` is not called for a ledger whose constructor has raised.
                if opens and self._connection is not None:
                    self._connection.close()
                    self._connection = None
                raise

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """A lock that another process holds for long ends no client: nothing is published until it
        is free, and then all is."""
        try:
            yield
        except CheckpointInUse:
            raise LogUnavailable(
                f"{self._path}: another process has held its lock for {_WAIT_S:.0f} s; find that"
                " process"
            ) from None

    def _connected(self) -> sqlite3.Connection:
        make_private(self._path)
        # Without sqlite3's own transactions, which begin only with the first change: a check
        # before it would be outside.
        file = sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)
        try:
            file.execute("PRAGMA journal_mode = WAL")
            # A charge that a power cut takes away would be spent a second time.
            file.execute("PRAGMA synchronous = FULL")
            # A new file has no tables yet: `_open` makes them first.
            if _tables(file) >= _TABLES:
                self._note_rows(file)
        except BaseException:
            file.close()
            raise
        return file


class LedgersFile:
    """One file with the ledgers of many clients of a host, each of which is alone with its
    readings, so that its account is its whole ledger.

    The charges of a step of many clients are one transaction (`together`). One process has the
    file to itself, but for readers of a report. It raises as `Ledger` does.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_copy: bool = False,
        watch: Callable[[Path], AbstractContextManager[None]] = lambda file: nullcontext(),
    ) -> None:
        """`is_copy`: a working copy, of which there is no file yet, and which is made anew after a
        power cut, so that no charge waits for the disk. `watch` surrounds each wait for the
        disk. Raises `InvalidState` for a damaged file."""
        self.path = path
        self.is_copy = is_copy
        self.written: list[_Written] = []
        """what the transaction that is open has written"""
        self._watch = watch
        self._together = False
        self._has_begun = False
        """whether something was charged since `together` has begun"""
        self._adopted: list[Path] = []
        """files whose rows are in this one once its transaction has ended"""
        make_private(path, syncs=not is_copy)
        with self.errors():
            self.connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
            try:
                # Readers of a report must not wait for the host, nor the host for them.
                self.connection.execute("PRAGMA journal_mode = WAL")
                self.connection.execute(f"PRAGMA synchronous = {'OFF' if is_copy else 'FULL'}")
                with writing(self.connection):
                    if not self.connection.execute("SELECT 1 FROM sqlite_master").fetchall():
                        _make_tables(self.connection)
                self.identity = _checked_identity(self.connection, path, _ONE_ROW_EACH)
                """see `Ledger.identity`"""
            except BaseException:
                self.connection.close()
                raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that is charged inside is on the disk once this ends, with one wait for it; none of
        it where this raises. In a working copy each charge is by itself."""
        if self.is_copy:
            yield
            return
        self._together = True
        try:
            yield
            if self._has_begun:
                self._commit()
        except BaseException:
            # What was to be taken over is not here.
            self._adopted = []
            raise
        finally:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            self._together = False
            self._has_begun = False
        self._delete_adopted()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One charge, whole or not at all."""
        if not self._together:
            with writing(self.connection):
                yield
            return
        if self._has_begun:
            self._check_begun()
        else:
            self.connection.execute("BEGIN IMMEDIATE")
            self._has_begun = True
        self.connection.execute("SAVEPOINT one_charge")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK TO one_charge")
                self.connection.execute("RELEASE one_charge")
            raise
        self.connection.execute("RELEASE one_charge")

    def _commit(self) -> None:
        with self.errors(), self._watch(self.path):
            self._check_begun()
            self.connection.execute("COMMIT")

    def _check_begun(self) -> None:
        """Raises `LogUnavailable` where SQLite has rolled back by itself, as after an error of the
        disk: charges of clients that know nothing of it are lost, so none of them may publish."""
        if not self.connection.in_transaction:
            raise LogUnavailable(
                f"{self.path}: cannot be written: the charges of this step are lost, and are made"
                " again; make room or repair the disk"
            )

    def adopt(self, owner: str, path: Path) -> None:
        """Take over the ledger that a client had in a file of its own, before this host kept all in
        one; the file is deleted once its charges are on the disk here.

        Nothing where there is no such file. Raises `InvalidState` where it has charges that this
        file lacks though the client has an account here, or accounts of others.
        """
        if not path.exists():
            return
        rows = _rows_of(path, owner)
        with self.errors():
            if self.has_account(owner):
                self._check_has(owner, rows, path)
            else:
                with self.writing():
                    for table, row in rows:
                        places = ", ".join("?" * len(row))
                        self.connection.execute(f"INSERT INTO {table} VALUES ({places})", row)
        self._adopted.append(path)
        if not self._together:
            self._delete_adopted()

    def identity_of(self, owner: str) -> str:
        """The identity of a client's ledger, which it keeps when it is taken over."""
        with self.errors():
            row = self.connection.execute(
                "SELECT value FROM about WHERE name = ?", (_identity_name(owner),)
            ).fetchone()
        return self.identity if row is None else str(row[0])

    def _check_has(self, owner: str, rows: Sequence[tuple[str, LedgerRow]], path: Path) -> None:
        """Raises `InvalidState` unless each of these rows is in this file, or one that has spent
        more."""
        for table, row in rows:
            keys = row[: _KEY_COLUMNS.get(table, 1)]
            columns = _columns(self.connection, table)
            where = " AND ".join(f"{column} = ?" for column in columns[: len(keys)])
            known = self.connection.execute(f"SELECT * FROM {table} WHERE {where}", keys).fetchone()
            if known is None or not _has_spent(table, known, row):
                raise InvalidState(
                    f"{path} has charges of {owner} that {self.path} lacks: one of them is older"
                    " than the other. Restore both from one moment, or start under a new client"
                    " name"
                )

    def _delete_adopted(self) -> None:
        """Delete the files whose charges are on the disk here by now."""
        for path in self._adopted:
            # The ledger itself first: what SQLite keeps beside it is nothing without it.
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
        self._adopted = []

    def errors(self) -> AbstractContextManager[None]:
        """Turns errors of SQLite inside into those of `Ledger`."""
        return sqlite_errors(self.path, "this host", partial(unreadable, self.path))

    def restore(self, rows: Iterable[tuple[str, LedgerRow, LedgerRow | None]]) -> None:
        """Write these rows, each as `Ledger` notes them; from then on those that are written are
        noted.

        Raises `InvalidState` for rows that are none of a ledger.
        """
        with self.errors(), writing(self.connection):
            for table, key, row in rows:
                if table not in _KEY_COLUMNS:
                    raise unreadable(self.path, "a row of no table")
                if row is None:
                    columns = _columns(self.connection, table)[: _KEY_COLUMNS[table]]
                    where = " AND ".join(f"{column} = ?" for column in columns)
                    self.connection.execute(f"DELETE FROM {table} WHERE {where}", key)
                    continue
                places = ", ".join("?" * len(row))
                self.connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({places})", row)
        with self.errors():
            _watch_rows(self.connection, self.written)

    def has_account(self, owner: str) -> bool:
        """Whether a client has an account."""
        with self.errors():
            row = self.connection.execute("SELECT 1 FROM accounts WHERE owner = ?", (owner,))
            return row.fetchone() is not None

    def close(self) -> None:
        """Close the file. Closing twice has no effect."""
        self.connection.close()


def _make_tables(file: sqlite3.Connection) -> None:
    """Make the tables of a new ledger, with a random identity."""
    for table in _SCHEMA:
        file.execute(table)
    named = [("format", FORMAT), ("identity", secrets.token_hex(IDENTITY_BYTES))]
    file.executemany("INSERT INTO about VALUES (?, ?)", named)


def _checked_identity(file: sqlite3.Connection, path: Path, checked: Iterable[str] = ("1",)) -> str:
    """The identity of a ledger. `checked`: tables whose pages are looked at; by default all, up to
    the first error. Raises `InvalidState` for one that is damaged or of another version."""
    for part in checked:
        if file.execute(f"PRAGMA quick_check({part})").fetchall() != [("ok",)]:
            raise unreadable(path, "its pages are inconsistent")
    tables = _tables(file)
    about = _about(file) if "about" in tables else {}
    if about.get("format", FORMAT) != FORMAT:
        raise _of_another_version(path)
    if tables != _TABLES or "identity" not in about:
        raise unreadable(path, "not all of its tables are there")
    return str(about["identity"])


def _identity_name(owner: str) -> str:
    return f"identity of {owner}"


def _rows_of(path: Path, owner: str) -> list[tuple[str, LedgerRow]]:
    """All that a ledger of one client has, as rows of a file with those of many. Raises
    `InvalidState` where it cannot be read, or has accounts of others."""

    def read(file: sqlite3.Connection) -> list[tuple[str, LedgerRow]]:
        if not _tables(file):
            # A kill has left it at its beginning.
            return []
        identity = _checked_identity(file, path)
        if set(_owners(file)) - {owner}:
            raise InvalidState(
                f"{path} has accounts of others than {owner}, and a host has its clients' readings"
                " to itself: restore the ledger that belongs to this folder"
            )
        rows: list[tuple[str, LedgerRow]] = [("about", (_identity_name(owner), identity))]
        for table in _KEY_COLUMNS:
            for row in file.execute(f"SELECT * FROM {table}"):
                rows.append((table, tuple(row)))
        return rows

    try:
        return read_unchanged(path, read)
    except sqlite3.DatabaseError as damaged:
        raise unreadable(path, str(damaged)) from None


def _has_spent(table: str, known: LedgerRow, row: LedgerRow) -> bool:
    """Whether a row of a table says at least what another one of its key says was spent, and which
    states were stored."""
    if table == "accounts":
        # The same key of noise; windows stored and claims, which only grow.
        is_same_key = known[1] == row[1]
        return is_same_key and all(
            now >= before for now, before in zip(known[2:], row[2:], strict=True)
        )
    if table == "noised":
        # Where the noise ends, and how many places it has cost at which epsilon.
        return all(now >= before for now, before in zip(known[2:], row[2:], strict=True))
    if table in ("budgets", "passed"):
        # What is allowed, and the time that has passed: no charges.
        return True
    return known == row


def _columns(file: sqlite3.Connection, table: str) -> list[str]:
    rows = file.execute("SELECT name FROM pragma_table_info(?)", (table,))
    return [str(name) for (name,) in rows]


def _watch_rows(file: sqlite3.Connection, written: list[_Written]) -> None:
    """Have every row that this connection writes added to `written`."""

    def note(table: str, is_there: int, *row: Any) -> None:
        written.append((table, row, bool(is_there)))

    file.create_function("note_row", -1, note)
    for table in _KEY_COLUMNS:
        names = _columns(file, table)
        for event, version in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            columns = ", ".join(f"{version}.{name}" for name in names)
            # Of this connection alone, and no part of the file.
            file.execute(
                f"CREATE TEMP TRIGGER IF NOT EXISTS note_{table}_{event} AFTER {event} ON"
                f" {table} BEGIN SELECT note_row('{table}', {int(version == 'NEW')},"
                f" {columns}); END"
            )
