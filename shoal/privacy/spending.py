"""What a ledger holds, summed: for each model, for noisy rows, and for a person with any number of readings."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Final, NamedTuple

from shoal.errors import InvalidState

NANO: Final = 10**9
"""an epsilon of 1 in the ledger's whole numbers, which are rounded up, so that sums of millions of them are exact"""


class Spent(NamedTuple):
    """What the ledger holds of one model that learns from counts."""

    model: str
    windows: int
    """numbers of windows that were released"""
    releases: int
    """charged for them: more than windows where one was charged under two plans, before and after a kill"""
    places: int
    """readings in the windows, rejected ones included"""
    epsilon: float
    """of one reading, or of one user in a window: of the window that has cost most"""


class Noised(NamedTuple):
    """What the ledger holds of noisy rows, which all models that learn rows share."""

    places: int
    """readings that got noise, rejected ones included"""
    epsilon: float
    """of one reading"""


class Spending(NamedTuple):
    """What a client has spent in all that it has published."""

    models: list[Spent]
    """by name"""
    rows: Noised | None
    windows: list[tuple[int, int]]
    """(billionths of epsilon that a window has cost in all models, how often one person can spend that at most), the
    most costly first. All models count the same windows"""

    def of_person(self, readings: int | None = None) -> float:
        """Epsilon that a person with so many readings has spent at most; None: all readings of the client."""
        rows = Noised(0, 0.0) if self.rows is None else self.rows
        total = nano(rows.epsilon) * (rows.places if readings is None else min(readings, rows.places))
        left = readings
        for epsilon, units in self.windows:
            taken = units if left is None else min(left, units)
            total += epsilon * taken
            left = None if left is None else left - taken
        return total / NANO


def nano(epsilon: float) -> int:
    """Billionths of an epsilon as it is written in decimals, rounded up."""
    return int((Decimal(repr(float(epsilon))) * NANO).to_integral_value(rounding=ROUND_CEILING))


def read_spending(path: Path) -> Spending:
    """What a ledger holds, read without changing it. Raises `InvalidState` if there is none that can be read."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            return spending(file)
    except sqlite3.DatabaseError as damaged:
        raise unreadable(path, str(damaged)) from None


def spending(ledger: sqlite3.Connection) -> Spending:
    """What an open ledger holds. Raises as `sqlite3` does."""
    models = ledger.execute(
        "SELECT model, COUNT(*), SUM(releases), SUM(places), MAX(epsilon) FROM (SELECT model, COUNT(*) AS releases, "
        "MAX(places) AS places, SUM(epsilon) AS epsilon FROM releases GROUP BY model, number) GROUP BY model ORDER BY 1"
    ).fetchall()
    windows = ledger.execute(
        "SELECT epsilon, SUM(units) FROM (SELECT SUM(epsilon) AS epsilon, MAX(units) AS units FROM releases "
        "GROUP BY number) GROUP BY epsilon ORDER BY epsilon DESC"
    ).fetchall()
    places, epsilon = ledger.execute("SELECT SUM(places), MAX(epsilon) FROM noised").fetchone()
    return Spending(
        [Spent(model, windows, releases, places, most / NANO) for model, windows, releases, places, most in models],
        None if places is None else Noised(places, epsilon / NANO),
        [(cost, units) for cost, units in windows],
    )


def unreadable(path: Path, how: str) -> InvalidState:
    """The error for a ledger that is damaged, or no ledger at all."""
    return InvalidState(
        f"{path} is no ledger that can be read ({how}): restore it from a backup of the same moment as the checkpoint, "
        "or start under a new client name"
    )
