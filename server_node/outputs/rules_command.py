"""`shoal rules`: prints the rules by which a model predicts a feature."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from shoal.cli.options import config_option
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.outputs.encoding import as_json as json_line
from shoal.server_node.outputs.encoding import plain
from shoal.server_node.outputs.newest_snapshot import newest_snapshot
from shoal.server_node.report.lineage.published import lineage_of
from shoal.server_node.report.regression import prediction_rules
from shoal.server_node.report.types import Rules
from shoal.server_node.report.units import view_of


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
    with closing(open_federation_log(config, read_only=True)) as log:
        ensure_topics(log, config.contract, config.log)
        snapshot = newest_snapshot(contract, log, chosen)
    lineage = lineage_of(snapshot, view_of(snapshot, contract))
    predicted = prediction_rules(snapshot, lineage, contract)
    assert predicted is not None, "the model predicts a feature"
    if as_json:
        click.echo(json_line(plain(predicted)))
        return
    for rule in predicted.rules:
        click.echo(f"{rule.text}    ({rule.rows_share:.0%} of the rows)")
    click.echo(_summary(predicted, contract))


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


def _summary(rules: Rules, contract: ResolvedContract) -> str:
    """The units, and how far predictions are off."""
    units = ", ".join(
        f"{feature.name} in {feature.unit}" for feature in contract.features if feature.unit
    )
    summary = units or "no units"
    if not rules.conditions_found:
        summary = (
            "The conditions are not found yet; until then all rules have one consequent. " + summary
        )
    if rules.error_text:
        summary += f"; predictions are off by {rules.error_text} {rules.target.unit}".rstrip()
    return summary
