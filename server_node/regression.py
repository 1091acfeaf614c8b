"""What models that predict a feature say, in the units of the contract: rules, predictions, and their error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_node.lineage import Lineage
from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.regression import Rule, RuleBase, rules_of
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds
from shoal.protocol.messages import Snapshot


def rule_base(snapshot: Snapshot, contract: Contract) -> RuleBase | None:
    """The rules of a snapshot in units; None for a model that predicts no feature."""
    regression = load_algorithm(snapshot.algorithm).regression
    if regression is None:
        return None
    bounds = declared_bounds(contract)
    return regression.rules(snapshot.arrays).in_units(bounds.low, bounds.high)


def prediction_error(snapshot: Snapshot, contract: Contract) -> float | None:
    """How far predictions are off, in the unit of the target: root of the mean squared error over the rows behind the
    newest answers. None before consequents were fitted, and for a model that predicts no feature."""
    base = rule_base(snapshot, contract)
    return None if base is None else base.error


def predicted_values(snapshot: Snapshot, rows: NDArray[np.float64], contract: Contract) -> NDArray[np.float64]:
    """rows (n, d) in unit coordinates -> (n,) predictions in the unit of the target. The model predicts a feature."""
    regression = load_algorithm(snapshot.algorithm).regression
    assert regression is not None, "only asked of models that predict a feature"
    feature = contract.features[regression.rules(snapshot.arrays).target]
    values = regression.predict(snapshot.arrays, rows)
    return np.asarray(feature.low + values * (feature.high - feature.low))


def rules_json(snapshot: Snapshot, base: RuleBase, lineage: Lineage, contract: Contract) -> dict[str, Any]:
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
            _rule_json(rule, lineage.of_number.get(rule.number), contract) for rule in named_rules(base, contract)
        ],
    }


def named_rules(base: RuleBase, contract: Contract) -> list[Rule]:
    """The rules in words, with the names of the contract."""
    return rules_of(base, [feature.name for feature in contract.features])


def _rule_json(rule: Rule, identity: int | None, contract: Contract) -> dict[str, Any]:
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
