"""`shoal check` prints what a federation file means; `shoal kernels` which form of the kernels computes here."""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import click

from shoal.algorithms.registry import is_in_rounds, load_algorithm
from shoal.cli.main import json_option
from shoal.config.base import resolve_paths
from shoal.config.contract import Model
from shoal.config.models import check_models, target_of
from shoal.config.privacy import learns_from_counts, model_epsilon, privacy_mode, total_epsilon
from shoal.config.privacy_report import advice_on
from shoal.config.reference import settings_table
from shoal.config.settings import Config, load_config
from shoal.config.upstream import Upstream, load_upstream
from shoal.kernels.forms import Forms


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--example", is_flag=True, help="Print a federation file to start from, and do nothing else.")
@click.option("--settings", is_flag=True, help="Print a table of all settings, and do nothing else.")
@json_option
def check(file: Path | None, example: bool, settings: bool, as_json: bool) -> None:
    """Check a federation FILE and print its contract, its digest, its settings, and what its privacy means."""
    if example:
        click.echo(files("shoal.config").joinpath("example.toml").read_text(encoding="utf-8"), nl=False)
        return
    if settings:
        click.echo(settings_table())
        return
    if file is None:
        raise click.UsageError("name a federation FILE, or ask for --example")
    config = load_config(file)
    check_models(config.contract)
    upstream = load_upstream(config)
    # The mode also checks what depends on the number of features, such as the epsilon of each.
    privacy = privacy_mode(config.contract)
    if as_json:
        checked: dict[str, object] = {"digest": config.contract.digest, "privacy_statement": privacy.statement()}
        epsilons = {model.name: model_epsilon(config.contract, model) for model in config.contract.models}
        checked |= {"epsilon_per_model": epsilons, "epsilon_total": total_epsilon(config.contract)}
        paper_only = [model.name for model in config.contract.models if load_algorithm(model.algorithm).paper_only]
        checked["advice"] = [one._asdict() for one in advice_on(config.contract)]
        checked["region_of"] = None if upstream is None else upstream.summary()
        checked |= {"paper_only": paper_only, **config.model_dump(mode="json")}
        click.echo(json.dumps(checked, indent=2, ensure_ascii=False))
    else:
        lines = [
            *_contract_lines(config),
            *_upstream_lines(upstream),
            *_setting_lines(config, file),
            privacy.describe().text(),
            *_advice_lines(config),
        ]
        click.echo("\n".join(lines))


def _contract_lines(config: Config) -> list[str]:
    contract = config.contract
    epsilons = privacy_mode(contract).epsilon_per_feature() or [None] * contract.width
    unit = contract.privacy.privacy_unit
    lines = [f"federation  {contract.federation}  (contract {contract.digest})"]
    for feature, epsilon in zip(contract.features, epsilons, strict=True):
        budget = "" if epsilon is None else f"  epsilon {epsilon:g}"
        lines.append(f"feature     {feature.name}  {feature.low:g} to {feature.high:g} {feature.unit}{budget}")
    for model in contract.models:
        baseline = "  (baseline of a paper, only for comparison)" if load_algorithm(model.algorithm).paper_only else ""
        epsilon = model_epsilon(contract, model)
        budget = "" if epsilon is None else f"  epsilon {epsilon:g} per {unit.phrase}, {_source(model)}"
        lines.append(f"model       {model.name}  {model.algorithm}  {_options(model.options)}{baseline}{budget}")
        if (target := target_of(model, contract)) is not None:
            lines.append(f"predicts    {contract.features[target].name}  (other models learn it as any feature)")
        if is_in_rounds(model.algorithm):
            lines.append(f"rounds      {model.name}  {_options(model.rounds.model_dump(exclude_none=True))}")
    total = total_epsilon(contract)
    if total is not None:
        lines.append(
            f"privacy     epsilon {total:g} per {unit.phrase} in all; noisy rows count once, so does each stream of "
            "counts"
        )
    return lines


def _upstream_lines(upstream: Upstream | None) -> list[str]:
    if upstream is None:
        return []
    contract = upstream.config.contract
    return [
        f"region of   {contract.federation}  (contract {contract.digest}), contributes to {', '.join(upstream.models)}"
    ]


def _advice_lines(config: Config) -> list[str]:
    return [f"advice      {model}  {text}" for model, text in advice_on(config.contract)]


def _source(model: Model) -> str:
    return "from private counts" if learns_from_counts(model) else "from noisy rows"


def _setting_lines(config: Config, file: Path) -> list[str]:
    """All settings of the sections that every federation needs, and of those that the file or a variable changes."""
    optional = {
        "readings": config.readings,
        "replica": config.replica,
        "upstream": config.upstream,
        "events": config.events,
    }
    changed = {name: section for name, section in optional.items() if section != resolve_paths(type(section)(), file)}
    sections = {"log": config.log, "client": config.client, "server": config.server, **changed, **config.sources}
    return [
        f"{section:<11} {name} = {'none' if value is None else json.dumps(value, ensure_ascii=False)}"
        for section, settings in sections.items()
        for name, value in settings.model_dump(mode="json").items()
    ]


def _options(options: dict[str, bool | int | float | str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items()) or "default options"


@click.command()
@json_option
def kernels(as_json: bool) -> None:
    """Compile the kernels now, so that no process has to; a minute at most.

    Where Numba is installed (the extra `fast`, which `server` and `demo` bring), a process that learns many rows loads
    compiled kernels in the background, and learns with NumPy until they are there. Both give the same results. Compiled
    kernels are kept in the folder of shoal, or else in the user's cache; NUMBA_CACHE_DIR names another folder. Run this
    as the user of the processes. SHOAL_KERNELS=numpy leaves the compiled kernels out, SHOAL_KERNELS=compiled waits for
    them at once.
    """
    forms = Forms()
    forms.load()
    numba, numpy = version("numba"), version("numpy")
    if as_json:
        click.echo(json.dumps({"compiled": True, "choice": forms.choice, "numba": numba, "numpy": numpy}))
    else:
        click.echo(f"compiled with Numba {numba} for NumPy {numpy}; SHOAL_KERNELS: {forms.choice}")
