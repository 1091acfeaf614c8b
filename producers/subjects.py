"""Whom the readings concern, and the privacy unit and windows that follow from it."""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

import click

from shoal.config.base import DAY_S
from shoal.config.contract import HELPER_KEY_DIGITS
from shoal.errors import SettingsError
from shoal.privacy.base import UnitName
from shoal.producers.column_types import Sample

Concerns = Literal["nobody", "device", "client", "persons"]
CONCERNS: Final[tuple[Concerns, ...]] = get_args(Concerns)
QUESTION: Final = """Whom do the readings concern?
  nobody   the data are public
  device   a machine or a room: single readings are protected
  client   each client is a person or a household
  persons  several persons, named by a column"""

SPAN_DAYS: Final = 30
"""days of the budget of masked counts (docs/how-to/masked.md)"""
MASKED_WINDOW_S: Final = 21_600.0
USER_WINDOW_S: Final = DAY_S
"""seconds in which one reading of a user is counted: with more users in a window, fewer windows
show clusters"""
USER_WINDOWS: Final = 2
"""windows of a user that are counted, in all: what they cost adds up, and more would cost more than
`shoal check` advises"""
READINGS_PER_DAY: Final = 1440.0
"""readings a day of a client whose readings have no times: the default of `[client]`"""
WINDOW_READINGS_MIN: Final = 100
"""fewest readings of a window that `shoal check` does not advise against"""
WINDOW_READINGS_MAX: Final = 10**6
"""most readings of a window of a contract"""
WINDOW_S_MAX: Final = 604_800.0
"""longest window of a contract, in seconds"""


@dataclass(frozen=True)
class Subjects:
    """The data subjects: whom the readings concern."""

    kind: Concerns = "device"
    person_column: str = ""
    """column, or field, that names the person, of the kind `persons`"""
    helper_keys: tuple[str, ...] = ()
    """public keys of the helpers of masked counts, of the kind `client`"""
    clients: int | None = None
    """clients that will take part; None: those in the data"""

    @property
    def private(self) -> bool:
        """Whether anybody needs to be protected."""
        return self.kind != "nobody"

    @property
    def are_people(self) -> bool:
        """Whether several readings concern one person, who is to be protected in all of them."""
        return self.kind in ("client", "persons")

    @property
    def masked(self) -> bool:
        """Whether counts are masked, and helpers unmask their sums."""
        return bool(self.helper_keys)

    @property
    def unit(self) -> UnitName:
        """The privacy unit."""
        if not self.are_people:
            return "reading"
        return "client" if self.masked else "user"


def subjects_of(options: Mapping[str, Any]) -> Subjects:
    """The data subjects, by the options of `shoal init` or by the answers on a terminal.

    Without both they are devices. Raises `SettingsError` for options that contradict each other.
    """
    declared = _declared_kind(options)
    column = options["person_column"] or ""
    kind: Concerns = declared or "device"
    if declared is None and not options["private"] and _on_a_terminal():
        click.echo(QUESTION)
        kind = click.prompt("Concerned", type=click.Choice(CONCERNS), default="device")
    if kind == "persons" and not column:
        if not _on_a_terminal():
            raise SettingsError(
                "--concerns persons needs --person-column COLUMN: the column that names the person"
            )
        column = click.prompt("Column that names the person")
    helper_keys = tuple(options["helpers"])
    if helper_keys and kind != "client":
        raise SettingsError(
            "--helper-key is for masked counts, which protect a client: it goes with"
            " --concerns client"
        )
    for key in helper_keys:
        if not re.fullmatch(f"[0-9a-f]{{{HELPER_KEY_DIGITS}}}", key):
            raise SettingsError(
                f"--helper-key: a public key has {HELPER_KEY_DIGITS} hexadecimal digits, as"
                " `shoal keys helper` prints them"
            )
    if options["clients"] is not None and kind not in ("client", "persons"):
        raise SettingsError("--clients goes with --concerns client or --concerns persons")
    return Subjects(kind, column, helper_keys, options["clients"])


def _declared_kind(options: Mapping[str, Any]) -> Concerns | None:
    """The kind that the options declare; None where they declare none. Raises `SettingsError`."""
    kind: Concerns | None = options["concerns"]
    if options["person_column"]:
        if kind not in (None, "persons"):
            raise SettingsError(
                f"--person-column goes with --concerns persons, not with --concerns {kind}"
            )
        kind = "persons"
    if options["private"] is None:
        return kind
    if options["private"] and kind == "nobody":
        raise SettingsError(
            "--private protects readings, and --concerns nobody says that nobody needs it: leave"
            " one of them out"
        )
    if not options["private"] and kind not in (None, "nobody"):
        raise SettingsError(
            f"--public protects nobody, and --concerns {kind} says who needs it: leave one of them"
            " out"
        )
    return kind if options["private"] else "nobody"


def _on_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


class CountingWindow(NamedTuple):
    """A window of the counts that protect people."""

    readings: int
    """places; the clock closes it before they are full"""
    seconds: float
    """seconds after which it is counted"""
    lasts_s: float
    """seconds that it lasts at the rate of the data"""


def counting_window(unit: UnitName, interval_s: float | None) -> CountingWindow:
    """The window for `unit` of a client with a reading every `interval_s` seconds; None: no times.

    It is long, since people spend an epsilon once a window; longer still where a sensor is so slow
    that noise would exceed the readings of a window.
    """
    goal_s = MASKED_WINDOW_S if unit == "client" else USER_WINDOW_S
    interval = interval_s or DAY_S / READINGS_PER_DAY
    readings = round(goal_s / interval)
    readings = max(WINDOW_READINGS_MIN, min(WINDOW_READINGS_MAX, readings))
    lasts_s = min(WINDOW_S_MAX, readings * interval)
    # A little longer than its readings take, so that a live sensor fills it.
    seconds = min(WINDOW_S_MAX, float(math.ceil(1.1 * readings * interval)))
    return CountingWindow(readings, seconds, lasts_s)


class People(NamedTuple):
    """What the data show of the people whom they concern."""

    per_window: float | None = None
    """persons of one client in a window, about; None where it is not known or matters not"""
    clients: int = 1
    """the most clients at which one person has readings"""


NO_PEOPLE: Final = People()


def persons_per_window(sample: Sample, person: str, client: str, readings: int) -> float:
    """About how many persons a window of `readings` of one client has: the mean over its windows
    in the rows that follow each other.

    `person` and `client` are columns; an empty `client`: all rows are of one. Where no window is
    full, those of the rows that are there, of whom a full one has no fewer.
    """
    person_place = sample.names.index(person)
    client_place = sample.names.index(client) if client else None
    of_clients: dict[str, list[str]] = defaultdict(list)
    for row in sample.rows[: sample.head]:
        name = "" if client_place is None else str(row[client_place])
        cell = row[person_place]
        of_clients[name].append("" if cell is None else str(cell).strip())
    full = []
    partial = []
    for people in of_clients.values():
        for begin in range(0, len(people), readings):
            window = people[begin : begin + readings]
            # A reading that names nobody is not counted.
            number = len(set(window) - {""})
            if len(window) == readings:
                full.append(number)
            else:
                partial.append(number)
    numbers = full or partial
    return sum(numbers) / max(1, len(numbers))


def clients_of_a_person(sample: Sample, person: str, client: str) -> int:
    """The most clients at which one person has readings, of the rows that were looked at.

    `person` and `client` are columns; an empty `client`: all rows are of one.
    """
    if not client:
        return 1
    person_place = sample.names.index(person)
    client_place = sample.names.index(client)
    clients: dict[str, set[str]] = defaultdict(set)
    for row in sample.rows:
        cell = row[person_place]
        name = "" if cell is None else str(cell).strip()
        if name:
            clients[name].add(str(row[client_place]))
    return max(map(len, clients.values()), default=1)
