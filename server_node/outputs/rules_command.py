"""`shoal rules`: prints the rules by which a model predicts a feature."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import click

from shoal.algorithms.regression import RuleBase, written
from shoal.cli.options import config_option
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.outputs.newest_snapshot import newest_snapshot
from shoal.server_node.outputs.regression import named_rules, rule_base, rules_json
from shoal.server_node.report.lineage_step import lineage_of


@click.command()
@config_option
@click.option(
    "--model", metavar="NAME", help="The model. [default: the first one that predicts a feature]"
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, with the numbers in full."
)
def rules(file: Path, model: str | None, as_json: bool) -> None:
    """Print the rules by which a model predicts a feature, as the newest snapshot in the log has
    them.

    The rule with most rows comes first. A word says in which fifth of the values the centre of a
    condition lies.
    """
    config = load_config(file)
    contract = config.resolved
    chosen = _predicting_model(contract, model)
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        snapshot = newest_snapshot(contract, log, chosen)
    base = rule_base(snapshot, contract)
    assert base is not None, "the model predicts a feature"
    if as_json:
        lineage = lineage_of(snapshot, contract.models[chosen].algorithm.view(snapshot.arrays))
        click.echo(json.dumps(rules_json(snapshot, base, lineage, contract), ensure_ascii=False))
        return
    for rule in named_rules(base, contract):
        click.echo(f"{rule.text}    ({rule.share:.0%} of the rows)")
    click.echo(_summary(base, contract))


def _predicting_model(contract: ResolvedContract, name: str | None) -> str:
    """The model of this name, or the first one that predicts a feature. Raises `SettingsError`."""
    predicting = [name for name, model in contract.models.items() if model.target is not None]
    if not predicting:
        raise SettingsError(
            'no model of this federation predicts a feature; add one with algorithm = "tsk"'
        )
    if name is None:
        return predicting[0]
    if name not in predicting:
        raise SettingsError(
            f"model {name!r} predicts no feature; these do: {', '.join(predicting)}"
        )
    return name


def _summary(base: RuleBase, contract: ResolvedContract) -> str:
    """The units, and how far predictions are off."""
    units = ", ".join(
        f"{feature.name} in {feature.unit}" for feature in contract.features if feature.unit
    )
    summary = units or "no units"
    if not base.settled:
        summary = (
            "The conditions are not found yet; until then all rules have one consequent. " + summary
        )
    if base.error is not None:
        target = contract.features[base.target]
        summary += f"; predictions are off by {written(base.error)} {target.unit}".rstrip()
    return summary
