"""`shoal check`: is this federation file right, and what does it promise?"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import click

from shoal.algorithms.registry import is_in_rounds
from shoal.config.models import check_models
from shoal.config.privacy import privacy_mode
from shoal.config.reference import settings_table
from shoal.config.settings import Config, load_config


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--example", is_flag=True, help="Print a federation file to start from, and stop.")
@click.option("--settings", is_flag=True, help="Print a table of every setting there is, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(file: Path | None, example: bool, settings: bool, as_json: bool) -> None:
    """Check a federation FILE and print what it agrees on, its digest, and what its privacy means."""
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
    if as_json:
        click.echo(json.dumps(_as_json(config), indent=2, ensure_ascii=False))
    else:
        click.echo(_in_words(config))


def _as_json(config: Config) -> dict[str, object]:
    return {
        "digest": config.contract.digest,
        "privacy_statement": privacy_mode(config.contract).statement(),
        **config.model_dump(mode="json"),
    }


def _in_words(config: Config) -> str:
    contract = config.contract
    shares = privacy_mode(contract).statement()["epsilon_per_feature"] or [None] * contract.width
    lines = [f"federation  {contract.federation}  (contract {contract.digest})"]
    for feature, epsilon in zip(contract.features, shares, strict=True):
        budget = "" if epsilon is None else f"  epsilon {epsilon:g}"
        lines.append(f"feature     {feature.name}  {feature.low:g} to {feature.high:g} {feature.unit}{budget}")
    for model in contract.models:
        lines.append(f"model       {model.name}  {model.algorithm}  {_options(model.options)}")
        if is_in_rounds(model.algorithm):
            lines.append(f"rounds      {model.name}  {_options(model.rounds.model_dump(exclude_none=True))}")
    sections = {"log": config.log, "client": config.client, "server": config.server, **config.sources}
    for section, settings in sections.items():
        lines += [f"{section:<11} {name} = {value}" for name, value in settings]
    return "\n".join([*lines, privacy_mode(contract).describe().text()])


def _options(options: dict[str, bool | int | float | str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items()) or "default options"
