"""Whether private counts that protect people show clusters of somebody's data, judged before a
federation file is written.

A unit that protects single readings is never a way out: one person's readings add up. Where nothing
useful is left, no file is written, since one that finds nothing, or protects less than it seems,
would be taken for a solution.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from shoal.config.base import DAY_S
from shoal.config.contract import HELPER_KEY_DIGITS, Contract, parse_contract
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.federation_file import EPSILON_OF_PEOPLE, Plan, federation_file

if TYPE_CHECKING:
    from shoal.config.privacy_report import Need

COUNTED_NEEDED: Final = 12_000
"""readings counted of all clients together until density_tree found five Gaussian clusters that
lie apart (adjusted Rand index of .99 and more, 2 and 8 features, epsilon 4, windows of 1 to 100
counted readings; with half as many .77)"""
DAYS_MAX: Final = 365.0
"""days after which no result is useful any more"""
CLIENTS_MAX: Final = 10_000
"""most clients for which masked counts are tried"""
_NO_KEY: Final = "1" * HELPER_KEY_DIGITS
"""stands for a helper's key where a contract is only judged"""
NO_FILE: Final = (
    "no file is written: one that protects single readings would not protect a person, whose"
    " readings add up"
)


def remarks_on_people(plan: Plan) -> list[str]:
    """What a person spends with the file of this plan, and when it shows clusters.

    Empty where nobody, or a device, is concerned. Raises `SettingsError` where the result would not
    be useful, or where the source lacks what the privacy unit needs.
    """
    if not plan.subjects.are_people:
        return []
    if plan.subjects.masked:
        return _on_masked(plan)
    return _on_users(plan)


def _on_users(plan: Plan) -> list[str]:
    whose = "client" if plan.subjects.kind == "client" else "person"
    window = plan.window
    people = plan.persons_per_window
    if people is None:
        # A sheet names no persons, nor how often they come.
        return [
            f"Protected are all readings of a {whose} in a window, of which one is counted. How"
            " many persons a window has is not known: clusters show after about"
            f" {COUNTED_NEEDED:,} counted readings of all clients together."
        ]
    clients = plan.expected_clients
    least = COUNTED_NEEDED * window.lasts_s / (DAYS_MAX * DAY_S)
    if people * clients < least:
        raise SettingsError(_refusal(plan, people * clients, least))
    windows = math.ceil(COUNTED_NEEDED / (people * clients))
    days = windows * window.lasts_s / DAY_S
    if not plan.user_is_named:
        raise SettingsError(_without_user(plan))
    remarks = [
        f"Protected are all readings of a {whose} in a window of"
        f" {_days(window.lasts_s / DAY_S)}, of which one is counted, at epsilon"
        f" {EPSILON_OF_PEOPLE:g} a window: what several windows cost adds up.",
        f"Clusters show after about {COUNTED_NEEDED:,} counted readings: with"
        f" {_count(clients, 'client')} and about {people:.3g} such readings in a window of each,"
        f" {_count(windows, 'window')}, {_days(days)}, in which a {whose} spends epsilon"
        f" {EPSILON_OF_PEOPLE * windows:,g} at most.",
    ]
    if plan.subjects.kind == "client" and clients >= _clients_for_masks(plan):
        remarks.append(
            f"Masked counts protect more with as many clients, all readings of"
            f" {_days_of_budget(plan)} at epsilon {EPSILON_OF_PEOPLE:g}: `shoal keys helper FILE`"
            " at another party makes a key, and --helper-key takes what it prints"
            " (experimental; docs/how-to/masked.md)."
        )
    return remarks


def _refusal(plan: Plan, people: float, least: float) -> str:
    """Why no unit gives a useful result, and what would.

    `people`: those of one window of all clients together; `least`: as many as it takes.
    """
    if plan.subjects.kind == "client":
        masks = _clients_for_masks(plan)
        return (
            f"with {_clients_of(plan)}, each a person or a household, no"
            f" privacy unit gives a useful result: one reading of a client and window is counted,"
            f" which takes {math.ceil(least):,} clients to show clusters within a year, and masked"
            f" counts (--helper-key) take {_or_more(masks)}. --clients N where more will take"
            f" part; {NO_FILE}"
        )
    return (
        f"with about {people:.3g} persons in a window of all clients together, none gives a useful"
        f" result: one reading of a person and window is counted, which takes"
        f" {math.ceil(least):,} persons to show clusters within a year. --clients N where more"
        f" clients will take part; --concerns client protects all persons of a client together;"
        f" {NO_FILE}"
    )


def _without_user(plan: Plan) -> str:
    """Why the client cannot be the user of each reading."""
    if plan.source == "files":
        return (
            "each reading has to say whose it is, and no column names the client: name one with"
            " --client-column, or give the keys of helpers with --helper-key, as masked counts need"
            " none"
        )
    return (
        "each message has to say whose it is in a field, and none names the client: masked counts"
        " need none; give the keys of helpers with --helper-key"
    )


def _on_masked(plan: Plan) -> list[str]:
    clients = plan.expected_clients
    need = _need(plan, clients)
    if not _is_useful(need):
        least = _clients_for_masks(plan)
        raise SettingsError(
            f"with {_clients_of(plan)} masked counts give no useful result: with this many"
            f" features take {_or_more(least)}. --clients N where more will take part; {NO_FILE}"
        )
    return [
        f"Protected are all readings of a client in {_days_of_budget(plan)}, at epsilon"
        f" {EPSILON_OF_PEOPLE:g}, as long as one helper keeps its secret (experimental).",
        f"Clusters show after about: {need.text}.",
    ]


def _days_of_budget(plan: Plan) -> str:
    return f"any {_contract(plan).privacy.terms['budget_days']:g} days"


def _contract(plan: Plan) -> Contract:
    """The contract of masked counts for this plan, with made-up helpers where it has none."""
    keys = plan.subjects.helper_keys or (_NO_KEY,)
    masked = replace(plan, subjects=replace(plan.subjects, kind="client", helper_keys=keys))
    return parse_contract(tomllib.loads(federation_file(masked)), plan.name)


def _need(plan: Plan, clients: int) -> Need:
    """What masked counts of this many clients take, by the judgement of `shoal check`."""
    from shoal.config.privacy_report import (  # noqa: PLC0415 - a producer needs no algorithm
        needs_of,
    )

    config = Config(contract=_contract(plan))
    (need,) = needs_of(config.resolved, plan.readings_per_day, clients)
    return need


def _is_useful(need: Need) -> bool:
    return need.advised and need.within_budget


def _clients_for_masks(plan: Plan) -> int:
    """The least number of clients for which masked counts are useful; `CLIENTS_MAX` where none
    below is."""
    low = 1
    high = CLIENTS_MAX
    # More clients never need more windows, so bisection finds the least.
    while low < high:
        middle = (low + high) // 2
        if _is_useful(_need(plan, middle)):
            high = middle
        else:
            low = middle + 1
    return low


def _or_more(clients: int) -> str:
    return f"{clients:,} clients or more"


def _clients_of(plan: Plan) -> str:
    """The number of clients, and why it is 1 where no column names them."""
    text = _count(plan.expected_clients, "client")
    if plan.subjects.clients is None and not plan.understood.clients:
        text += " (none is named: --client-column COLUMN names them)"
    return text


def _days(number: float) -> str:
    text = f"{number:.3g}"
    return f"{text} day" + "s" * (text != "1")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)
