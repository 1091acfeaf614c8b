"""Models that predict a feature: rules, predictions and error in the units of the contract."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.regression import Rule, RuleBase, rules_of, written
from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import Floats
from shoal.protocol.messages import Snapshot
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.types import (
    Condition,
    Consequent,
    PredictionRule,
    Rules,
    Target,
)


def rule_base(snapshot: Snapshot, contract: ResolvedContract) -> RuleBase | None:
    """The rules of a snapshot in units; None for a model that predicts no feature."""
    regression = contract.models[snapshot.model].algorithm.regression
    if regression is None:
        return None
    bounds = contract.bounds
    return regression.rules(snapshot.arrays).in_units(bounds.low, bounds.high)


def prediction_error(snapshot: Snapshot, contract: ResolvedContract) -> float | None:
    """Error of predictions, in the unit of the target: root of the mean squared error over the rows
    behind the newest answers.

    None before consequents were fitted, and for a model that predicts no feature.
    """
    base = rule_base(snapshot, contract)
    return None if base is None else base.error


def predicted_values(snapshot: Snapshot, rows: Floats, contract: ResolvedContract) -> Floats:
    """rows (n, d) in unit coordinates -> (n,) predictions in the unit of the target.

    The model predicts a feature.
    """
    regression = contract.models[snapshot.model].algorithm.regression
    assert regression is not None, "only asked of models that predict a feature"
    feature = contract.features[regression.rules(snapshot.arrays).target]
    values = regression.predict(snapshot.arrays, rows)
    return np.asarray(feature.low + values * (feature.high - feature.low))


def named_rules(base: RuleBase, contract: ResolvedContract) -> list[Rule]:
    """The rules in words, with the names of the contract."""
    return rules_of(base, [feature.name for feature in contract.features])


def prediction_rules(
    snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract
) -> Rules | None:
    """The rules of a snapshot, the one with most rows first; None for a model that predicts no
    feature."""
    base = rule_base(snapshot, contract)
    if base is None:
        return None
    target = contract.features[base.target]
    named = named_rules(base, contract)
    rules = []
    for rule in named:
        rules.append(_prediction_rule(rule, lineage.of_number.get(rule.number), contract))
    return Rules(
        federation=snapshot.federation,
        model=snapshot.model,
        version=snapshot.version,
        made_at=snapshot.made_at,
        target=Target(name=target.name, unit=target.unit),
        conditions_found=base.settled,
        error=base.error,
        error_text="" if base.error is None else written(base.error),
        total=len(rules),
        rules=rules,
    )


def _prediction_rule(
    rule: Rule, identity: int | None, contract: ResolvedContract
) -> PredictionRule:
    conditions = []
    coefficients = {}
    for condition, coefficient in zip(rule.conditions, rule.coefficients, strict=True):
        feature = contract.features[condition.feature]
        conditions.append(
            Condition(
                feature=feature.name,
                unit=feature.unit,
                word=condition.word,
                centre=condition.centre,
                width=condition.width,
            )
        )
        coefficients[feature.name] = coefficient
    return PredictionRule(
        cluster=rule.number,
        identity=identity,
        rows_share=rule.share,
        text=rule.text,
        conditions=conditions,
        consequent=Consequent(constant=rule.constant, coefficients=coefficients),
    )
