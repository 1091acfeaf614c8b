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
from shoal.config.sections import ClientSettings
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.federation_file import EPSILON_OF_PEOPLE, Plan, federation_file
from shoal.producers.subjects import USER_WINDOWS
from shoal.text import counted

if TYPE_CHECKING:
    from shoal.config.privacy_report import Need, UserSpending
    from shoal.config.resolved import ResolvedContract

COUNTED_NEEDED: Final = 6_000
"""readings counted of all clients together, in `USER_WINDOWS` windows of each at
`EPSILON_OF_PEOPLE`, until density_tree found five Gaussian clusters that lie apart in 2 and in 8
features: an adjusted Rand index of .95 (python -m benchmarks privacy.users --choosing)"""
COUNTED_TIMES_USERS: Final = 240_000
"""the same times the users of a client in a window, from which on noise does not hide them: that of
a window is the same, however few users it has"""
PEOPLE_OF_A_SHEET: Final = 100
"""persons of a client in a window where nothing says how many there are"""
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
    spending = _user_spending(plan)
    if not spending.advised:
        raise SettingsError(f"{spending.text}; {NO_FILE}")
    remarks = [
        f"Protected are all readings of a {whose}, of which one is counted in a window of"
        f" {_days(window.lasts_s / DAY_S)}. {spending.text}",
    ]
    if plan.people.clients > 1:
        raise SettingsError(
            f"one person has readings at {plan.people.clients} clients, and each of them spends"
            f" epsilon {spending.epsilon:g} on the person: leave the column of clients out of the"
            f" data, so that all rows are of one client, which sees whose they are; {NO_FILE}"
        )
    people = plan.people.per_window
    if people is None:
        # A sheet names no persons, nor how often they come.
        least = _people_needed(PEOPLE_OF_A_SHEET)
        return [
            *remarks,
            f"How many persons a window has is not known: in {counted(USER_WINDOWS, 'window')}"
            f" clusters show from about {least:,} of all clients together on, where each client"
            f" has {PEOPLE_OF_A_SHEET} and more.",
        ]
    clients = plan.expected_clients
    least = _people_needed(people)
    if people * clients < least:
        raise SettingsError(_refusal(plan, people * clients, least))
    if not plan.user_is_named:
        raise SettingsError(_without_user(plan))
    remarks.append(
        f"Clusters show after {counted(USER_WINDOWS, 'window')} of"
        f" {counted(clients, 'client')} with about {people:.3g} such readings in each: it takes"
        f" {least:,} in a window of all clients together."
    )
    if plan.subjects.kind == "client" and clients >= _clients_for_masks(plan):
        remarks.append(
            f"Masked counts would go on after that, with all readings of"
            f" {_days_of_budget(plan)} at epsilon {EPSILON_OF_PEOPLE:g}: `shoal keys helper FILE`"
            " at another party makes a key, and --helper-key takes what it prints"
            " (experimental; docs/how-to/masked.md)."
        )
    return remarks


def _user_spending(plan: Plan) -> UserSpending:
    """What a user spends with the file of this plan, by the judgement of `shoal check`."""
    from shoal.config.privacy_report import (  # noqa: PLC0415 - a producer needs no algorithm
        spent_by_user,
    )

    values = tomllib.loads(federation_file(plan))
    config = Config(
        contract=parse_contract(values, plan.name),
        client=ClientSettings.model_validate(values["client"]),
    )
    spending = spent_by_user(
        config.resolved, config.client.epsilon_max, config.client.person_readings
    )
    assert spending is not None, "a user is the unit"
    return spending


def _people_needed(people: float) -> int:
    """Users in a window of all clients together until clusters show, where a client has `people`
    of them."""
    counted = COUNTED_NEEDED
    if people > 0:
        counted = max(counted, math.ceil(COUNTED_TIMES_USERS / people))
    return math.ceil(counted / USER_WINDOWS)


def _refusal(plan: Plan, people: float, least: int) -> str:
    """Why no unit gives a useful result, and what would.

    `people`: those of one window of all clients together; `least`: as many as it takes.
    """
    epsilon = EPSILON_OF_PEOPLE * USER_WINDOWS
    why = (
        f"what a {'client' if plan.subjects.kind == 'client' else 'person'} spends adds up over"
        f" windows, and {counted(USER_WINDOWS, 'window')} cost epsilon {epsilon:g}, more than which"
        f" `shoal check` advises against"
    )
    if plan.subjects.kind == "client":
        masks = _clients_for_masks(plan)
        return (
            f"with {_clients_of(plan)}, each a person or a household, no privacy unit gives a"
            f" useful result: {why}, so that it takes {least:,} clients to show clusters; masked"
            f" counts (--helper-key) take {_or_more(masks)}. --clients N where more will take"
            f" part; {NO_FILE}"
        )
    return (
        f"with about {people:.3g} persons in a window of all clients together, no privacy unit"
        f" gives a useful result: {why}, so that it takes {least:,} persons to show clusters."
        " --clients N where more clients will take part; --concerns client with --helper-key"
        f" protects all persons of a client together, from {_or_more(_clients_for_masks(plan))}"
        f" on; {NO_FILE}"
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
    need = _need(_resolved(plan), plan, plan.expected_clients)
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


def _resolved(plan: Plan) -> ResolvedContract:
    return Config(contract=_contract(plan)).resolved


def _need(contract: ResolvedContract, plan: Plan, clients: int) -> Need:
    """What masked counts of this many clients take, by the judgement of `shoal check`."""
    from shoal.config.privacy_report import (  # noqa: PLC0415 - a producer needs no algorithm
        needs_of,
    )

    (need,) = needs_of(contract, plan.readings_per_day, clients)
    return need


def _is_useful(need: Need) -> bool:
    return need.advised and need.within_budget


def _clients_for_masks(plan: Plan) -> int:
    """The least number of clients for which masked counts are useful; `CLIENTS_MAX` where none
    below is."""
    contract = _resolved(plan)
    low = 1
    high = CLIENTS_MAX
    # More clients never need more windows, so bisection finds the least.
    while low < high:
        middle = (low + high) // 2
        if _is_useful(_need(contract, plan, middle)):
            high = middle
        else:
            low = middle + 1
    return low


def _or_more(clients: int) -> str:
    return f"{clients:,} clients or more"


def _clients_of(plan: Plan) -> str:
    """The number of clients, and why it is 1 where no column names them."""
    text = counted(plan.expected_clients, "client")
    if plan.subjects.clients is None and not plan.understood.clients:
        text += " (none is named: --client-column COLUMN names them)"
    return text


def _days(number: float) -> str:
    text = f"{number:.3g}"
    return f"{text} day" + "s" * (text != "1")
