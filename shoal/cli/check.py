"""`shoal check` prints what a federation file means, and all settings; `shoal kernels` compiles the
kernels."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, get_origin

import click
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.cli.options import json_option
from shoal.config.base import Settings, resolve_path
from shoal.config.changes import ContractChange, changed_text
from shoal.config.contract import Feature, Model, Privacy, Rounds
from shoal.config.extension_settings import (
    TRANSPORTS,
    resolve_address,
    sink_sections,
    source_sections,
)
from shoal.config.privacy_report import advice_on, hidden_presence_cost, needs_of, spent_in_a_day
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.sections import (
    ClientSettings,
    EventSettings,
    ReplicaSettings,
    ServerSettings,
    UpstreamSettings,
)
from shoal.config.settings import Config, LogSettings, ReadingsSettings, load_config
from shoal.config.upstream import Upstream, load_upstream
from shoal.errors import MessageRejected, SettingsError
from shoal.kernels.forms import Forms
from shoal.privacy import load_mode, mode_names
from shoal.protocol.messages import Snapshot
from shoal.protocol.model_state import model_state
from shoal.protocol.published_contract import CONTRACT_KEY, published_contracts
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.transports.base import Record, latest


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
    help="Read the newest snapshots in the log, and what state each model is in.",
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
    states = _model_states(config) if with_log else {}
    costs = _costs(contract, config.client.readings_per_day, clients)
    if as_json:
        models = contract.models.values()
        checked: dict[str, object] = {
            "digest": contract.digest,
            "privacy_statement": contract.statement,
        }
        checked["epsilon_per_model"] = {model.name: model.epsilon for model in models}
        checked["epsilon_total"] = contract.total_epsilon
        checked["advice"] = [one._asdict() for one in advice_on(contract)]
        checked |= costs
        checked["region_of"] = None if upstream is None else upstream.summary()
        checked["paper_only"] = [model.name for model in models if model.algorithm.paper_only]
        if with_log:
            checked["states"] = states
        checked |= config.model_dump(mode="json")
        click.echo(json.dumps(checked, indent=2, ensure_ascii=False))
    else:
        lines = [
            *_contract_lines(contract, everything),
            *_upstream_lines(upstream),
            *_setting_lines(config, file, everything),
            contract.mode.describe().text(),
            *_cost_lines(costs),
            *(f"advice      {model}  {text}" for model, text in advice_on(contract)),
            *(
                f"found       {model}  {text or NOTHING_REMARKABLE}"
                for model, text in states.items()
            ),
        ]
        click.echo("\n".join(lines))


NEEDS = "takes       until density_tree finds clusters that lie apart (adjusted Rand index .95 in simulations):"
NOTHING_REMARKABLE = "several clusters, none of them remarkable"


def _costs(
    contract: ResolvedContract, readings_per_day: float, clients: int | None
) -> dict[str, Any]:
    """Costs of privacy for a device in a day and of hidden presence, and what masked counts
    take."""
    day = spent_in_a_day(contract, readings_per_day)
    return {
        "day": None if day is None else day._asdict(),
        "hidden_presence": hidden_presence_cost(contract, readings_per_day),
        "needs": [one._asdict() for one in needs_of(contract, readings_per_day, clients)],
    }


def _cost_lines(costs: Mapping[str, Any]) -> list[str]:
    day = costs["day"]
    presence = costs["hidden_presence"]
    needs = costs["needs"]
    return [
        *([] if day is None else [f"in a day    {day['text']} ([client] readings_per_day)"]),
        *([] if presence is None else [f"presence    {presence}"]),
        *([NEEDS] if needs else []),
        *(f"takes       {need['text']}" for need in needs),
    ]


def _changes(config: Config) -> str:
    """What the file changes of the federation's contract. Raises `SettingsError` where it cannot,
    and as the log."""
    agreed = config.contract
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, agreed, config.log)
        chain = published_contracts(
            latest(log, agreed.snapshots_topic).get(CONTRACT_KEY), agreed.federation
        )
    if not chain:
        return "no server has published a contract yet"
    if chain[-1].digest == agreed.digest:
        return "nothing has changed"
    change = ContractChange(chain[-1], agreed)
    if refused := change.refused(chain[:-1]):
        raise SettingsError(changed_text(change, refused))
    return changed_text(change, ())


def _model_states(config: Config) -> dict[str, str]:
    """name -> the state of the model by its newest snapshot in the log. Raises as the log does."""
    contract = config.resolved
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        newest = latest(log, contract.contract.snapshots_topic)
    return {
        name: _state(model, newest.get(name.encode())) for name, model in contract.models.items()
    }


def _state(model: ResolvedModel, record: Record | None) -> str:
    try:
        snapshot = (
            None
            if record is None or record.value is None
            else Snapshot.decode(record.value, record.headers)
        )
    except MessageRejected as wrong:
        return f"The newest snapshot cannot be read: {wrong.detail}"
    return model_state(model, snapshot)


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
    for model in contract.models.values():
        algorithm = model.algorithm
        declared = model.declared
        baseline = "  (baseline of a paper, only for comparison)" if algorithm.paper_only else ""
        if model.experimental:
            baseline = "  (experimental)"
        source = f"from {algorithm.family.learns_from}"
        budget = (
            ""
            if model.epsilon is None
            else f"  epsilon {model.epsilon:g} per {unit.phrase}, {source}"
        )
        options: Mapping[str, Any] = declared.options
        if everything and model.rounds is not None:
            options = model.rounds.algorithm.options.defaults() | declared.options
        lines.append(
            f"model       {model.name}  {algorithm.name}  {_options(options)}{baseline}{budget}"
        )
        if model.experimental:
            lines.append(f"note        {model.name}  {model.experimental}")
        if model.target is not None:
            lines.append(
                f"predicts    {contract.features[model.target].name}  (other models learn it as "
                "any feature)"
            )
        if model.family.in_rounds:
            rounds = declared.rounds.model_dump(exclude_none=True, exclude_defaults=not everything)
            lines.append(f"rounds      {model.name}  {_options(rounds)}")
    if contract.total_epsilon is not None:
        lines.append(
            f"privacy     epsilon {contract.total_epsilon:g} per {unit.phrase} in all; noisy rows "
            "count once, so does each stream of counts"
        )
    return lines


def _upstream_lines(upstream: Upstream | None) -> list[str]:
    if upstream is None:
        return []
    contract = upstream.config.contract
    return [
        f"region of   {contract.federation}  (contract {contract.digest}), contributes to "
        f"{', '.join(upstream.models)}"
    ]


def _setting_lines(config: Config, file: Path, everything: bool) -> list[str]:
    """The settings that differ from their defaults; with `everything` all of them."""
    names = ("log", "readings", "client", "server", "replica", "upstream", "events")
    sections: dict[str, Settings] = {name: getattr(config, name) for name in names}
    sections |= config.sources | {
        f"events.{name}": section for name, section in config.sinks.items()
    }
    lines = [
        f"{name:<11} {setting} = "
        f"{'none' if value is None else json.dumps(value, ensure_ascii=False)}"
        for name, section in sections.items()
        for setting, value in section.model_dump(mode="json").items()
        if everything or _differs(section, setting, file)
    ]
    return (
        lines
        if everything
        else [*lines, "settings    all others have their defaults; --all prints them"]
    )


def _differs(section: Settings, setting: str, file: Path) -> bool:
    """Whether a setting has another value than its default, which a setting without one always
    has."""
    field = type(section).model_fields[setting]
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


@click.command()
@json_option
def kernels(as_json: bool) -> None:
    """Compile the kernels now, so that no process has to; a minute at most.

    Where Numba is installed (the extra `fast`, which `server` and `demo` bring), a process that
    learns many rows loads compiled kernels in the background, and learns with NumPy until they are
    there. Both give the same results. Compiled kernels are kept in the folder of shoal, or else in
    the user's cache; NUMBA_CACHE_DIR names another folder. Run this as the user of the processes.
    SHOAL_KERNELS=numpy leaves the compiled kernels out, SHOAL_KERNELS=compiled waits for them at
    once.
    """
    forms = Forms()
    forms.load()
    numba = version("numba")
    numpy = version("numpy")
    if as_json:
        click.echo(
            json.dumps({"compiled": True, "choice": forms.choice, "numba": numba, "numpy": numpy})
        )
    else:
        click.echo(f"compiled with Numba {numba} for NumPy {numpy}; SHOAL_KERNELS: {forms.choice}")


_SIGNS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def settings_table() -> str:
    """Markdown: section, setting, default, range, meaning."""
    lines = ["| section | setting | default | range | meaning |", "|---|---|---|---|---|"]
    for section, form in declared_sections():
        for name, field in form.model_fields.items():
            lines.append(
                _row(
                    section,
                    f"`{name}`",
                    _default(field),
                    _limits(field),
                    _meaning(form, name, field),
                )
            )
        if form is Privacy:
            lines += _terms_of_modes(section)
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _meaning(form: type[BaseModel], name: str, field: FieldInfo) -> str:
    meaning = field.description or ""
    if form is Privacy and name == "mode":
        meaning += ": " + "; ".join(
            f"`{mode.name}`: {mode.summary}" for mode in map(load_mode, mode_names())
        )
    return meaning


def _terms_of_modes(section: str) -> Iterator[str]:
    """Settings that each installed privacy mode needs besides `mode`."""
    for mode in map(load_mode, mode_names()):
        for name, term in mode.terms.items():
            limits = f"> {term.above:g}, ≤ {term.at_most:g}"
            default = (
                "required"
                if term.default is None
                else "none"
                if math.isinf(term.default)
                else f"`{term.default:g}`"
            )
            yield _row(f"{section} with `{mode.name}`", f"`{name}`", default, limits, term.meaning)


def declared_sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Sections in which settings are written, and their declarations. The keys of transports are in
    two sections."""
    yield "`[[features]]`", Feature
    yield "`[privacy]`", Privacy
    yield "`[[models]]`", Model
    yield "`[models.rounds]`", Rounds
    yield "`[log]`", LogSettings
    yield "`[readings]`", ReadingsSettings
    for name in TRANSPORTS.names():
        yield f"`[log]`, `[readings]` at `{name}:`", TRANSPORTS.load(name).settings
    yield "`[client]`", ClientSettings
    yield "`[server]`", ServerSettings
    yield "`[replica]`", ReplicaSettings
    yield "`[upstream]`", UpstreamSettings
    yield "`[events]`", EventSettings
    for name, form in (sink_sections() | source_sections()).items():
        yield f"`[{name}]`", form


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ("", {}, ()) or isinstance(value, BaseModel):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _limits(field: FieldInfo) -> str:
    parts = []
    counted = "entries" if get_origin(field.annotation) is tuple else "characters"
    for limit in field.metadata:
        if isinstance(limit, MinLen):
            parts.append(
                "not empty" if limit.min_length == 1 else f"at least {limit.min_length} {counted}"
            )
        elif isinstance(limit, MaxLen):
            parts.append(f"at most {limit.max_length} {counted}")
        elif type(limit) in _SIGNS:
            sign, name = _SIGNS[type(limit)]
            value = getattr(limit, name)
            short = f"{value:g}"
            parts.append(f"{sign} {short if float(short) == value else value}")
    return ", ".join(parts)
