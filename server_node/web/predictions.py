"""The parts of HTTP answers of models that predict a feature: predictions of posted rows, and rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from server_node.regression import named_rules, predicted_values, rule_base, rules_json
from server_node.status import ModelStatus
from shoal.algorithms.regression import written
from shoal.config.contract import Contract
from shoal.config.models import target_of
from shoal.protocol.messages import Snapshot

NOT_YET = "No snapshot has been published yet."
RULES_MAX = 100
"""rules sent to the page: those with most rows"""


def predicted_feature(contract: Contract, model: str) -> int | None:
    """The position of the feature that a model predicts; None for the others."""
    configured = contract.model(model)
    return None if configured is None else target_of(configured, contract)


def first_predicting(contract: Contract) -> str | None:
    """The first model that predicts a feature, if there is one."""
    return next((model.name for model in contract.models if target_of(model, contract) is not None), None)


def predictions_json(
    target: int | None, snapshot: Snapshot | None, rows: NDArray[np.float64], contract: Contract
) -> dict[str, Any]:
    """What an answer to /predict has in addition; rows (n, d) are in unit coordinates. Null before there is a model."""
    if target is None:
        return {}
    feature = contract.features[target]
    values: list[float | None] = [None] * len(rows)
    if snapshot is not None:
        values = predicted_values(snapshot, rows, contract).tolist()
    return {"target": feature.name, "unit": feature.unit, "predictions": values}


def rules_response(model: ModelStatus, contract: Contract) -> JSONResponse:
    """The rules of a model as JSON; 404 for one that predicts no feature, and before the first snapshot."""
    if predicted_feature(contract, model.name) is None:
        raise HTTPException(404, f"model {model.name} predicts no feature, so it has no rules")
    snapshot = model.snapshot
    base = None if snapshot is None else rule_base(snapshot, contract)
    if snapshot is None or base is None:
        return JSONResponse({"error": "no rules yet", "waiting_for": model.waiting_for or NOT_YET}, 404)
    return JSONResponse(rules_json(snapshot, base, model.lineage, contract))


def rules_table(snapshot: Snapshot, contract: Contract) -> dict[str, Any] | None:
    """The rules as the page shows them; None for a model that predicts no feature."""
    base = rule_base(snapshot, contract)
    if base is None:
        return None
    target = contract.features[base.target]
    rules = named_rules(base, contract)
    return {
        "target": target.name,
        "unit": target.unit,
        "error": None if base.error is None else written(base.error),
        "conditions_found": base.settled,
        "total": len(rules),
        "rules": [{"cluster": rule.number, "share": rule.share, "text": rule.text} for rule in rules[:RULES_MAX]],
    }
