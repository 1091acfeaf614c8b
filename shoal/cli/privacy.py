"""`shoal privacy`: what a federation guarantees, and what its clients have spent."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shoal.cli.options import CLIENT_NAME, config_option, json_option
from shoal.config.privacy_report import counted_once, privacy_report
from shoal.config.settings import load_config
from shoal.errors import InvalidState
from shoal.privacy.base import Description, PrivacyUnit
from shoal.privacy.ledger import LEDGER, NANO, Spending, account, client_of, read_spending
from shoal.runtime.client_folders import PARTITION_FOLDERS


@click.group()
def privacy() -> None:
    """What a federation guarantees about its readings, and what has been spent."""


@privacy.command()
@config_option
@click.option(
    "--name",
    type=CLIENT_NAME,
    metavar="NAME",
    help="Only this client's ledger; otherwise all here.",
)
@click.option(
    "--readings",
    type=click.IntRange(min=1),
    help="Print what a person with this many readings has spent at most; otherwise one with all "
    "of a client.",
)
@click.option(
    "--windows",
    type=click.IntRange(min=1),
    help="Print what a person has spent at most whose readings all lie in this many windows in a "
    "row.",
)
@json_option
def report(
    file: Path, name: str | None, readings: int | None, windows: int | None, as_json: bool
) -> None:
    """Print the guarantee of each model and their sum, what is not covered, and what the ledgers
    here hold.

    A ledger is in the folder of its client, so this prints what was spent only where clients run.
    """
    config = load_config(file)
    contract = config.resolved
    if readings and windows:
        raise click.UsageError(
            "--readings and --windows are two ways to say how many readings a person has; give one"
        )
    guarantee = privacy_report(contract)
    unit = contract.mode.unit
    window_readings = config.contract.privacy.window_readings
    if windows:
        # A user spends once for each window, however many readings are in it.
        readings = windows if unit.is_user else windows * window_readings
    federation = config.contract.federation
    ledgers = _ledgers(config.readings_folder, name, federation)
    if as_json:
        clients = {}
        for client, accounts in ledgers.items():
            clients[client] = _spent(accounts, account(client, federation), readings)
        click.echo(json.dumps({**guarantee, "clients": clients}, indent=2, ensure_ascii=False))
        return
    if windows:
        whose = f"{_number(windows, 'window')} in a row"
    elif readings is None:
        whose = "all these readings"
    else:
        whose = _number(readings, "reading")
    lines = _guarantee_lines(guarantee, unit, counted_once(contract))
    lines += _ledger_lines(ledgers, federation, readings, whose, unit)
    click.echo("\n".join(lines))


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _ledgers(folder: Path, name: str | None, federation: str) -> dict[str, dict[str, Spending]]:
    """client -> the accounts of its ledger, of the one that is asked for or of all in the folder.
    Raises `InvalidState` for none."""
    place = f"{name or '*'}/{LEDGER}"
    ledgers = {}
    for path in folder.glob(place):
        if not path.parent.match(PARTITION_FOLDERS):
            ledgers[path.parent.name] = read_spending(path)
    # A host that takes readings from one log has those of all clients in one file, and one of a
    # group those of the clients of each partition. What a client had before is taken over there.
    for path in (*folder.glob(LEDGER), *folder.glob(f"{PARTITION_FOLDERS}/{LEDGER}")):
        for owner, spending in read_spending(path).items():
            client = client_of(owner, federation)
            if client is not None and name in (None, client):
                ledgers[client] = {owner: spending}
    if name is not None and not ledgers:
        raise InvalidState(
            f"there is no {folder / place}: run this on the machine of the client. A client has a "
            "ledger from its first start in a mode with a guarantee"
        )
    return dict(sorted(ledgers.items()))


def _spent(accounts: Mapping[str, Spending], own: str, readings: int | None) -> dict[str, Any]:
    """The spending of one client in this federation, and of a person in all that share its
    readings."""
    none = Spending([], None, [])
    others = {owner: _account(spending) for owner, spending in accounts.items() if owner != own}
    return {
        **_account(accounts.get(own, none)),
        "others": others,
        "person_readings": readings,
        "person_epsilon": _of_person(accounts, readings),
    }


def _account(spending: Spending) -> dict[str, Any]:
    return {
        "models": [model._asdict() for model in spending.models],
        "rows": None if spending.rows is None else spending.rows._asdict(),
        "masked": [model._asdict() for model in spending.masked],
    }


def _of_person(accounts: Mapping[str, Spending], readings: int | None) -> float:
    # fsum rounds once: the printed total is that of the ledger in every order of accounts.
    return math.fsum(spending.of_person(readings) for spending in accounts.values())


def _guarantee_lines(
    guarantee: Mapping[str, Any], unit: PrivacyUnit, counts_once: str
) -> list[str]:
    lines = title_lines(guarantee["title"], guarantee["guarantee"], guarantee["sentences"])
    for feature in guarantee["bounds"]:
        ends = f"{feature['low']:g} to {feature['high']:g} {feature['unit']}"
        lines.append(f"bounds      {feature['name']}  {ends}".rstrip())
    for model in guarantee["models"]:
        lines.append(_model_line(model))
        if model["counted"] is not None:
            lines.append(f"counts      {model['name']}  {model['counted']}")
    if guarantee["epsilon"] is not None:
        lines.append(
            f"sum         epsilon {guarantee['epsilon']:g} per {unit.phrase} in all models, by the "
            f"noise tables {guarantee['epsilon_spent']:.6g}{counts_once}"
        )
    if unit.is_user:
        lines.append(
            f"unit        user: at most {_number(unit.readings_max, 'reading')} of one counted in "
            "a window"
        )
    return lines + not_covered_lines(guarantee["not_covered"])


def description_lines(description: Description) -> list[str]:
    """What a mode guarantees, a row a line."""
    lines = title_lines(description.title, description.rows(), description.sentences)
    return lines + not_covered_lines(description.not_covered)


def title_lines(title: str, rows: Iterable[Sequence[str]], sentences: Iterable[str]) -> list[str]:
    """The lines above those of what is not covered."""
    lines = [f"privacy     {title}"]
    lines += [f"            {heading}: {text}" for heading, text in rows]
    lines += [f"            {sentence}" for sentence in sentences]
    return lines


def not_covered_lines(facts: Iterable[str]) -> list[str]:
    """A line for each."""
    return [f"not covered {fact}" for fact in facts]


def _model_line(model: Mapping[str, Any]) -> str:
    learns = f"from {model['learns_from']}  mechanism {model['mechanism']}"
    line = f"model       {model['name']}  {model['algorithm']}  {learns}"
    if model["epsilon"] is not None:
        kind = "nominal epsilon" if model["nominal"] else "epsilon"
        line += f"  {kind} {model['epsilon']:g} per {model['unit']}"
    if model["window_readings"] is not None:
        line += f"  windows of {model['window_readings']} readings, or {model['window_s']:g} s"
    return line


def _ledger_lines(
    ledgers: Mapping[str, Mapping[str, Spending]],
    federation: str,
    readings: int | None,
    whose: str,
    unit: PrivacyUnit,
) -> list[str]:
    lines = []
    for client, accounts in ledgers.items():
        for owner, spending in accounts.items():
            # An account of another federation has the name of that.
            is_own = owner == account(client, federation)
            lines += _account_lines(client if is_own else owner, spending, unit)
        also = f" in {len(accounts)} accounts" if len(accounts) > 1 else ""
        lines.append(
            f"person      {client}  with {whose}: epsilon {_of_person(accounts, readings):g} at "
            f"most{also}"
        )
    return lines or [
        "spent       no ledger here: a ledger is in the folder of its client, on the client's "
        "machine"
    ]


def _account_lines(name: str, spending: Spending, unit: PrivacyUnit) -> list[str]:
    protected = "one user in a window" if unit.is_user else "one"
    lines = []
    for model in spending.models:
        lines.append(
            f"spent       {name}  {model.model}  {model.windows} windows, {model.releases} "
            f"releases, {model.places} readings, epsilon {model.epsilon:g} at most for {protected}"
        )
    if spending.rows is not None:
        rows = spending.rows
        lines.append(
            f"spent       {name}  noisy rows  {rows.places} readings, epsilon {rows.epsilon:g} "
            "for one"
        )
    for masked in spending.masked:
        lines.append(
            f"spent       {name}  {masked.model}  {masked.windows} windows of masked counts, rho "
            f"{masked.rho / NANO:g}"
        )
    if spending.masked:
        lines.append(
            f"spent       {name}  masked counts  epsilon {spending.of_masked:.3g} at delta 1e-6 "
            "in all"
        )
    return lines
