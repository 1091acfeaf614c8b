"""`shoal check` prints what a federation file means."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from shoal.cli.options import json_option
from shoal.cli.privacy import description_lines
from shoal.cli.settings_table import settings_table
from shoal.config.base import Settings, resolve_path
from shoal.config.contract import Feature
from shoal.config.extension_settings import (
    resolve_address,
)
from shoal.config.privacy_report import (
    advice_on,
    counted_once,
    hidden_presence_cost,
    needs_of,
    spent_by_user,
    spent_in_a_day,
)
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.sections import ClientSettings
from shoal.config.settings import Config, load_config
from shoal.config.upstream import Upstream, load_upstream
from shoal.privacy.base import Times


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option(
    "--example", is_flag=True, help="Print a federation file to start from, and do nothing else."
)
@click.option(
    "--settings", is_flag=True, help="Print a table of all settings, and do nothing else."
)
@click.option(
    "--all", "everything", is_flag=True, help="Print settings that have their defaults, too."
)
@click.option(
    "--log",
    "with_log",
    is_flag=True,
    help="Read the newest snapshots in the log, and what state each model is in; and the topic that"
    " hosts of a group share.",
)
@click.option(
    "--changes",
    is_flag=True,
    help="Read the contract of the federation in the log, and say what the file changes.",
)
@click.option(
    "--clients",
    type=click.IntRange(min=1),
    help="Say what masked counts find with this many clients.",
)
@json_option
def check(
    file: Path | None,
    example: bool,
    settings: bool,
    everything: bool,
    with_log: bool,
    changes: bool,
    clients: int | None,
    as_json: bool,
) -> None:
    """Check a federation FILE and print its contract, what differs from the defaults, and what its
    privacy means.

    Advice says where a choice is poor, and what to take instead. With --log, it also says which
    model has found one cluster, many specks or nothing, and why. With --json everything is printed.
    """
    if example:
        click.echo(
            files("shoal.config").joinpath("example.toml").read_text(encoding="utf-8"), nl=False
        )
        return
    if settings:
        click.echo(settings_table())
        return
    if file is None:
        raise click.UsageError("name a federation FILE, or ask for --example")
    config = load_config(file)
    if changes:
        click.echo(_changes(config))
        return
    contract = config.resolved
    upstream = load_upstream(config)
    states = _states(config) if with_log else {}
    group = _group(config, with_log)
    costs = _costs(contract, config.client, clients)
    if as_json:
        checked = _as_values(contract, upstream, costs)
        checked["group"] = None if group is None else group._asdict()
        if with_log:
            checked["states"] = states
        checked |= config.as_json()
        click.echo(json.dumps(checked, indent=2, ensure_ascii=False))
        return
    lines = _contract_lines(contract, everything)
    lines += _upstream_lines(upstream)
    if group is not None:
        lines.append(f"group       {group.name}  {_shared_by(group, with_log)}")
    lines += _setting_lines(config, file, everything)
    lines += description_lines(contract.mode.describe())
    lines += _cost_lines(costs)
    lines += [f"advice      {model}  {text}" for model, text in advice_on(contract)]
    for model, text in states.items():
        lines.append(f"found       {model}  {text or NOTHING_REMARKABLE}")
    click.echo("\n".join(lines))


NEEDS = (
    "takes       until density_tree finds clusters that lie apart (adjusted Rand index .95 in"
    " simulations):"
)
NOTHING_REMARKABLE = "several clusters, none of them remarkable"


def _as_values(
    contract: ResolvedContract, upstream: Upstream | None, costs: Mapping[str, Any]
) -> dict[str, Any]:
    """What follows from the contract, for --json."""
    models = contract.models.values()
    return {
        "digest": contract.digest,
        "privacy_statement": contract.statement,
        "epsilon_per_model": {model.name: model.epsilon for model in models},
        "epsilon_total": contract.total_epsilon,
        "advice": [advice._asdict() for advice in advice_on(contract)],
        **costs,
        "region_of": None if upstream is None else upstream.summary(),
        "paper_only": [model.name for model in models if model.algorithm.paper_only],
    }


def _costs(
    contract: ResolvedContract, client: ClientSettings, clients: int | None
) -> dict[str, Any]:
    """What privacy costs a device in a day, a user in all, and hidden presence, and what masked
    counts take."""
    readings_per_day = client.readings_per_day
    day = spent_in_a_day(contract, readings_per_day)
    user = spent_by_user(contract, client.epsilon_max, client.person_readings)
    needs = needs_of(contract, readings_per_day, clients)
    return {
        "day": None if day is None else day._asdict(),
        "user": None if user is None else user._asdict(),
        "hidden_presence": hidden_presence_cost(contract, readings_per_day),
        "needs": [need._asdict() for need in needs],
    }


def _cost_lines(costs: Mapping[str, Any]) -> list[str]:
    lines = []
    if costs["day"] is not None:
        lines.append(f"in a day    {costs['day']['text']} ([client] readings_per_day)")
    if costs["user"] is not None:
        lines.append(f"in all      {costs['user']['text']}")
    if costs["hidden_presence"] is not None:
        lines.append(f"presence    {costs['hidden_presence']}")
    if costs["needs"]:
        lines.append(NEEDS)
        lines += [f"takes       {need['text']}" for need in costs["needs"]]
    return lines


def _changes(config: Config) -> str:
    # Logs, checkpoints and messages are an eighth of what a check would load, and most do not need
    # them.
    from shoal.cli.check_log import changes_in_log  # noqa: PLC0415 - loads logs and messages

    return changes_in_log(config)


def _states(config: Config) -> dict[str, str]:
    from shoal.cli.check_log import states_in_log  # noqa: PLC0415 - loads logs and messages

    return states_in_log(config)


class SharedTopic(NamedTuple):
    """The topic of readings that hosts of a group share."""

    name: str
    """the group"""
    topic: str
    partitions: int | None
    """None where the topic is not there, or was not asked for"""


def _group(config: Config, with_log: bool) -> SharedTopic | None:
    host = config.host
    if not host.group:
        return None
    partitions = None
    if with_log:
        # It loads the transports, and `shoal check` of a file alone is to answer at once.
        from shoal.cli.check_log import partitions_of_site  # noqa: PLC0415 - with --log only

        partitions = partitions_of_site(config)
    return SharedTopic(host.group, host.topic, partitions)


def _shared_by(group: SharedTopic, with_log: bool) -> str:
    """How many hosts can share the topic."""
    if not with_log:
        return f"a host for each partition of {group.topic} at most; --log counts them"
    if group.partitions is None:
        return (
            f"{group.topic} is not there: make it, with a partition for each host that you may ever"
            " want, as a host would make it with one"
        )
    if group.partitions == 1:
        return f"{group.topic} has 1 partition: 1 host at a time, and any other one waits"
    return f"{group.topic} has {group.partitions} partitions: up to {group.partitions} hosts"


def _range(feature: Feature) -> str:
    """The values that a feature can have."""
    if feature.kind == "circular":
        return f"begins again after {feature.period:g} {feature.unit}".rstrip()
    return ", ".join(feature.values) or f"{feature.low:g} to {feature.high:g} {feature.unit}"


def _contract_lines(contract: ResolvedContract, everything: bool) -> list[str]:
    epsilons = contract.mode.epsilon_per_feature() or [None] * contract.width
    unit = contract.mode.unit
    lines = [f"federation  {contract.federation}  (contract {contract.digest})"]
    for feature, epsilon in zip(contract.features, epsilons, strict=True):
        budget = "" if epsilon is None else f"  epsilon {epsilon:g}"
        lines.append(f"feature     {feature.name}  {_range(feature)}{budget}")
    promise = contract.mode.describe().guarantee
    if contract.mode.masked and promise is not None:
        # Before the cost of one window, which by itself is not what is promised.
        lines.append(f"promise     {promise.duration}")
    for model in contract.models.values():
        lines += _model_lines(contract, model, everything)
    if contract.total_epsilon is not None:
        lines.append(
            f"privacy     epsilon {contract.total_epsilon:g} per {unit.phrase} in all"
            f"{counted_once(contract)}"
        )
    stated = contract.stated_times
    if stated is not None:
        lines.append(f"times       {stated}: {TIMES_STATED[stated]}")
    return lines


TIMES_STATED: Final[Mapping[Times, str]] = {
    "public": (
        "updates state when readings were taken, in whole seconds, which no epsilon covers; history"
        " and cycles are those of the readings"
    ),
    "arrival": (
        "updates state when the client's own log took readings in; history and cycles are those of"
        " the arrival"
    ),
}


def _model_lines(
    contract: ResolvedContract, model: ResolvedModel, everything: bool
) -> Iterator[str]:
    """What a model is, what it costs, and what it predicts."""
    algorithm = model.algorithm
    options: Mapping[str, Any] = model.declared.options
    if everything and model.rounds is not None:
        options = model.rounds.algorithm.options.defaults() | model.declared.options
    line = f"model       {model.name}  {algorithm.name}  {_options(options)}"
    if model.experimental:
        line += "  (experimental)"
    elif algorithm.paper_only:
        line += "  (baseline of a paper, only for comparison)"
    if model.epsilon is not None:
        unit = contract.mode.unit.phrase
        line += f"  epsilon {model.epsilon:g} per {unit}, from {algorithm.family.learns_from}"
    yield line
    if model.counts is not None:
        yield f"counts      {model.name}  {model.counts.algorithm.counted}"
    if model.experimental:
        yield f"note        {model.name}  {model.experimental}"
    if model.target is not None:
        target = contract.features[model.target].name
        yield f"predicts    {target}  (other models learn it as any feature)"
    if model.family.in_rounds:
        rounds = model.declared.rounds.model_dump(
            exclude_none=True, exclude_defaults=not everything
        )
        yield f"rounds      {model.name}  {_options(rounds)}"


def _upstream_lines(upstream: Upstream | None) -> list[str]:
    if upstream is None:
        return []
    contract = upstream.config.contract
    return [
        f"region of   {contract.federation}  (contract {contract.digest}), contributes to"
        f" {', '.join(upstream.models)}"
    ]


def _setting_lines(config: Config, file: Path, everything: bool) -> list[str]:
    """The settings that differ from their defaults; with `everything` all of them."""
    names = ("log", "readings", "host", "client", "server", "replica", "upstream", "events")
    sections: dict[str, Settings] = {name: getattr(config, name) for name in names}
    sections |= config.sources
    sections |= {f"events.{name}": section for name, section in config.sinks.items()}
    lines = []
    for name, section in sections.items():
        for setting, value in section.model_dump(mode="json").items():
            if everything or _differs(section, setting, file):
                text = "none" if value is None else json.dumps(value, ensure_ascii=False)
                lines.append(f"{name:<11} {setting} = {text}")
    if not everything:
        lines.append("settings    all others have their defaults; --all prints them")
    return lines


def _differs(section: Settings, setting: str, file: Path) -> bool:
    """Whether a setting has another value than its default; a setting without one always has."""
    field = type(section).model_fields[setting]
    # It has no default that it could be compared with.
    if field.is_required():
        return True
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Path):
        default = resolve_path(default, file)
    elif setting == "address" and default:
        default = resolve_address(default, file)
    return bool(getattr(section, setting) != default)


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items()) or "default options"
