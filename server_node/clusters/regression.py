"""Models that predict a feature: their rules, predictions and error in the units of the contract,
and `shoal rules`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import numpy as np

from shoal.algorithms.regression import Rule, RuleBase, rules_of, written
from shoal.cli.options import config_option
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import LogError, MessageRejected, SettingsError
from shoal.kernels.arrays import Floats
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import CONTRACT_KEY, with_earlier
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.runtime.logs import open_federation_log
from shoal.server_node.clusters.lineage import Lineage
from shoal.server_node.clusters.lineage_step import lineage_of
from shoal.transports.base import Log, latest


def rule_base(snapshot: Snapshot, contract: ResolvedContract) -> RuleBase | None:
    """The rules of a snapshot in units; None for a model that predicts no feature."""
    regression = contract.models[snapshot.model].algorithm.regression
    if regression is None:
        return None
    bounds = contract.bounds
    return regression.rules(snapshot.arrays).in_units(bounds.low, bounds.high)


def prediction_error(snapshot: Snapshot, contract: ResolvedContract) -> float | None:
    """Error of predictions, in the unit of the target: root of the mean squared error over the rows
    behind the newest answers. None before consequents were fitted, and for a model that predicts no
    feature."""
    base = rule_base(snapshot, contract)
    return None if base is None else base.error


def predicted_values(snapshot: Snapshot, rows: Floats, contract: ResolvedContract) -> Floats:
    """rows (n, d) in unit coordinates -> (n,) predictions in the unit of the target. The model
    predicts a feature."""
    regression = contract.models[snapshot.model].algorithm.regression
    assert regression is not None, "only asked of models that predict a feature"
    feature = contract.features[regression.rules(snapshot.arrays).target]
    values = regression.predict(snapshot.arrays, rows)
    return np.asarray(feature.low + values * (feature.high - feature.low))


def rules_json(
    snapshot: Snapshot, base: RuleBase, lineage: Lineage, contract: ResolvedContract
) -> dict[str, Any]:
    """The rules as JSON values, the one with most rows first; `base` is that of `rule_base`."""
    target = contract.features[base.target]
    return {
        "federation": snapshot.federation,
        "model": snapshot.model,
        "version": snapshot.version,
        "made_at": snapshot.made_at,
        "target": {"name": target.name, "unit": target.unit},
        "conditions_found": base.settled,
        "error": base.error,
        "rules": [
            _rule_json(rule, lineage.of_number.get(rule.number), contract)
            for rule in named_rules(base, contract)
        ],
    }


def named_rules(base: RuleBase, contract: ResolvedContract) -> list[Rule]:
    """The rules in words, with the names of the contract."""
    return rules_of(base, [feature.name for feature in contract.features])


def _rule_json(rule: Rule, identity: int | None, contract: ResolvedContract) -> dict[str, Any]:
    features = contract.features
    return {
        "cluster": rule.number,
        "identity": identity,
        "share": rule.share,
        "text": rule.text,
        "if": [
            {
                "feature": features[each.feature].name,
                "unit": features[each.feature].unit,
                "is": each.word,
                "centre": each.centre,
                "width": each.width,
            }
            for each in rule.conditions
        ],
        "then": {
            "constant": rule.constant,
            "coefficients": {
                features[each.feature].name: coefficient
                for each, coefficient in zip(rule.conditions, rule.coefficients, strict=True)
            },
        },
    }


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
    chosen = predicting_model(contract, model)
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        snapshot = newest_snapshot(contract, log, chosen)
    base = rule_base(snapshot, contract)
    assert base is not None, "the model predicts a feature"
    lineage = lineage_of(snapshot, contract.models[chosen].algorithm.view(snapshot.arrays))
    if as_json:
        click.echo(json.dumps(rules_json(snapshot, base, lineage, contract), ensure_ascii=False))
    else:
        click.echo("\n".join([*rule_lines(base, contract), summary_line(base, contract)]))


def predicting_model(contract: ResolvedContract, name: str | None) -> str:
    """The model of this name, or the first one that predicts a feature. Raises `SettingsError`."""
    predicting = [name for name, model in contract.models.items() if model.target is not None]
    if not predicting:
        raise SettingsError(
            'no model of this federation predicts a feature; add one with algorithm = "tsk"'
        )
    if name is not None and name not in predicting:
        raise SettingsError(
            f"model {name!r} predicts no feature; these do: {', '.join(predicting)}"
        )
    return name or predicting[0]


def newest_snapshot(contract: ResolvedContract, log: Log, model: str) -> Snapshot:
    """The newest snapshot of a model in the log. Raises `SettingsError` if there is none,
    `LogError` for a bad one."""
    newest = latest(log, contract.contract.snapshots_topic)
    record = newest.get(model.encode())
    if record is None:
        raise SettingsError(
            f"model {model} has published no snapshot yet; run `shoal server` and clients first"
        )
    try:
        snapshot = Snapshot.decode(record.value, record.headers)
        Validator(with_earlier(contract, newest.get(CONTRACT_KEY))).check_snapshot(snapshot)
    except MessageRejected as rejected:
        raise LogError(
            f"the newest snapshot of {model} in the log is not valid: {rejected}"
        ) from None
    return snapshot


def rule_lines(base: RuleBase, contract: ResolvedContract) -> list[str]:
    """One line for each rule, with its share of the rows."""
    return [
        f"{rule.text}    ({rule.share:.0%} of the rows)" for rule in named_rules(base, contract)
    ]


def summary_line(base: RuleBase, contract: ResolvedContract) -> str:
    """The units, and how far predictions are off."""
    target = contract.features[base.target]
    units = ", ".join(
        f"{feature.name} in {feature.unit}" for feature in contract.features if feature.unit
    )
    error = (
        ""
        if base.error is None
        else f"; predictions are off by {written(base.error)} {target.unit}".rstrip()
    )
    found = (
        ""
        if base.settled
        else "The conditions are not found yet; until then all rules have one consequent. "
    )
    return f"{found}{units or 'no units'}{error}"
