"""Predictions over HTTP: the readings posted to /predict, what models that predict a feature add, and their rules.

Posted readings are checked, never stored and never quoted in an error.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import numpy as np
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from server_node.clusters.regression import named_rules, predicted_values, rule_base, rules_json
from server_node.status import ModelStatus
from shoal.algorithms.regression import written
from shoal.config.resolved import ResolvedContract
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats
from shoal.protocol.messages import Snapshot

ROWS_BYTES_MAX = 4 * 1024 * 1024
ROWS_MAX = 10_000


def parse_rows(body: bytes, width: int, target: int | None = None) -> Floats:
    """The body of a request, `{"rows": [[...], ...]}` or `[[...], ...]` -> readings (n, width), all finite.

    For a model that predicts the feature at position `target`, rows may lack its value or have null in its place, and
    readings have 0 there.

    Raises `InvalidData`; its message is one line, states what to send and quotes nothing of the body.
    """
    try:
        parsed = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidData('the body is not JSON; send {"rows": [[...], ...]} with finite numbers') from None
    rows = parsed.get("rows") if isinstance(parsed, dict) else parsed
    if not isinstance(rows, list):
        raise InvalidData('there are no rows; send {"rows": [[...], ...]}, or [[...], ...]')
    if len(rows) > ROWS_MAX:
        raise InvalidData(f"{len(rows)} rows; send at most {ROWS_MAX} at a time")
    readings = np.empty((len(rows), width))
    for i, row in enumerate(rows):
        readings[i] = _checked_row(row if target is None else _with_target(row, width, target), i, width)
    return readings


def _with_target(row: Any, width: int, target: int) -> Any:
    """A row without the target, or with null there, with 0 in its place; anything else unchanged."""
    if not isinstance(row, list):
        return row
    if len(row) == width - 1:
        return [*row[:target], 0.0, *row[target:]]
    return [*row[:target], 0.0, *row[target + 1 :]] if len(row) == width and row[target] is None else row


def _checked_row(row: Any, i: int, width: int) -> list[float]:
    if not isinstance(row, list):
        raise InvalidData(f"row {i} is not a list of numbers")
    if len(row) != width:
        raise InvalidData(f"row {i} has {len(row)} values; this federation has {width} features")
    for j, value in enumerate(row):
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise InvalidData(f"row {i}, value {j}: not a finite number")
    return row


def _is_finite(value: float) -> bool:
    # An integer too large for a float raises instead.
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _refuse_constant(name: str) -> NoReturn:
    """NaN and the infinities, which Python's parser would accept, are not JSON."""
    raise ValueError(name)


NOT_YET = "No snapshot has been published yet."
RULES_MAX = 100
"""rules sent to the page: those with most rows"""


def predicted_feature(contract: ResolvedContract, model: str) -> int | None:
    """The position of the feature that a model predicts; None for the others."""
    return contract.models[model].target


def first_predicting(contract: ResolvedContract) -> str | None:
    """The first model that predicts a feature, if there is one."""
    return next((name for name, model in contract.models.items() if model.target is not None), None)


def predictions_json(
    target: int | None, snapshot: Snapshot | None, rows: Floats, contract: ResolvedContract
) -> dict[str, Any]:
    """Further fields of an answer to /predict; rows (n, d) are in unit coordinates. Null before there is a model."""
    if target is None:
        return {}
    feature = contract.features[target]
    values: list[float | None] = [None] * len(rows)
    if snapshot is not None:
        values = predicted_values(snapshot, rows, contract).tolist()
    return {"target": feature.name, "unit": feature.unit, "predictions": values}


def rules_response(model: ModelStatus, contract: ResolvedContract) -> JSONResponse:
    """The rules of a model as JSON; 404 for one that predicts no feature, and before the first snapshot."""
    if predicted_feature(contract, model.name) is None:
        raise HTTPException(404, f"model {model.name} predicts no feature, so it has no rules")
    snapshot = model.snapshot
    base = None if snapshot is None else rule_base(snapshot, contract)
    if snapshot is None or base is None:
        return JSONResponse({"error": "no rules yet", "waiting_for": model.waiting_for or NOT_YET}, 404)
    return JSONResponse(rules_json(snapshot, base, model.lineage, contract))


def rules_table(snapshot: Snapshot, contract: ResolvedContract) -> dict[str, Any] | None:
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
