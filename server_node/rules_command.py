"""`shoal rules`: prints the rules by which a model predicts a feature."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import click

from server_node.lineage import lineage_of
from server_node.regression import named_rules, rule_base, rules_json
from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.regression import RuleBase, written
from shoal.config.contract import Contract
from shoal.config.models import check_models, target_of
from shoal.config.settings import load_config
from shoal.errors import LogError, MessageRejected, SettingsError
from shoal.protocol.messages import Snapshot
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.runtime.signed_snapshots import open_federation_log
from shoal.transports.base import Log, latest


@click.command()
@click.option(
    "--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The federation file."
)
@click.option("--model", metavar="NAME", help="The model. [default: the first one that predicts a feature]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the numbers in full.")
def rules(file: Path, model: str | None, as_json: bool) -> None:
    """Print the rules by which a model predicts a feature, as the newest snapshot in the log has them.

    The rule with most rows comes first. A word says in which fifth of the values the centre of a condition lies.
    """
    config = load_config(file)
    check_models(config.contract)
    chosen = predicting_model(config.contract, model)
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        snapshot = newest_snapshot(config.contract, log, chosen)
    base = rule_base(snapshot, config.contract)
    assert base is not None, "the model predicts a feature"
    lineage = lineage_of(snapshot, load_algorithm(snapshot.algorithm).view(snapshot.arrays))
    if as_json:
        click.echo(json.dumps(rules_json(snapshot, base, lineage, config.contract), ensure_ascii=False))
    else:
        click.echo("\n".join([*rule_lines(base, config.contract), summary_line(base, config.contract)]))


def predicting_model(contract: Contract, name: str | None) -> str:
    """The model of this name, or the first one that predicts a feature. Raises `SettingsError`."""
    predicting = [model.name for model in contract.models if target_of(model, contract) is not None]
    if not predicting:
        raise SettingsError('no model of this federation predicts a feature; add one with algorithm = "tsk"')
    if name is not None and name not in predicting:
        raise SettingsError(f"model {name!r} predicts no feature; these do: {', '.join(predicting)}")
    return name or predicting[0]


def newest_snapshot(contract: Contract, log: Log, model: str) -> Snapshot:
    """The newest snapshot of a model in the log. Raises `SettingsError` if there is none, `LogError` for a bad one."""
    record = latest(log, contract.snapshots_topic).get(model.encode())
    if record is None:
        raise SettingsError(f"model {model} has published no snapshot yet; run `shoal server` and clients first")
    try:
        snapshot = Snapshot.decode(record.value, record.headers)
        Validator(contract).check_snapshot(snapshot)
    except MessageRejected as rejected:
        raise LogError(f"the newest snapshot of {model} in the log is not valid: {rejected}") from None
    return snapshot


def rule_lines(base: RuleBase, contract: Contract) -> list[str]:
    """One line for each rule, with its share of the rows."""
    return [f"{rule.text}    ({rule.share:.0%} of the rows)" for rule in named_rules(base, contract)]


def summary_line(base: RuleBase, contract: Contract) -> str:
    """The units, and how far predictions are off."""
    target = contract.features[base.target]
    units = ", ".join(f"{feature.name} in {feature.unit}" for feature in contract.features if feature.unit)
    error = "" if base.error is None else f"; predictions are off by {written(base.error)} {target.unit}".rstrip()
    found = "" if base.settled else "The conditions are not found yet; until then all rules have one consequent. "
    return f"{found}{units or 'no units'}{error}"
