"""What a contract guarantees, as plain values: for `shoal privacy report`, the page and `GET /privacy`."""

from __future__ import annotations

import math
from typing import Any

from shoal.config.contract import Contract, Model
from shoal.config.privacy import (
    epsilon_spent,
    learns_from_counts,
    model_spent,
    model_statement,
    privacy_mode,
    total_epsilon,
)


def privacy_report(contract: Contract) -> dict[str, Any]:
    """The guarantee of the federation, of each of its models, and what it does not cover. Raises `SettingsError`.

    `epsilon`, of a `unit`, is the sum over all models, of which noisy rows count once and each stream of counts once;
    None without a guarantee. `epsilon_spent` is what the noise tables really cost, which is at most that.
    """
    mode = privacy_mode(contract)
    spent, _ = epsilon_spent(contract)
    description = mode.describe()
    return {
        "mode": mode.name,
        "formal": mode.formal,
        "title": description.title,
        "sentences": list(description.sentences),
        **mode.unit.statement(),
        "epsilon": total_epsilon(contract),
        "epsilon_spent": spent if math.isfinite(spent) else None,
        "bounds": [
            {"name": feature.name, "low": feature.low, "high": feature.high, "unit": feature.unit}
            for feature in contract.features
        ],
        "models": [
            {**one, "epsilon_spent": model_spent(contract, model)}
            for one, model in zip(models_report(contract), contract.models, strict=True)
        ],
        "not_covered": list(description.not_covered),
    }


def models_report(contract: Contract) -> list[dict[str, Any]]:
    """Of each model: the statement of its messages, what it learns from, and how its windows close."""
    return [_model_report(contract, model) for model in contract.models]


def _model_report(contract: Contract, model: Model) -> dict[str, Any]:
    counted = learns_from_counts(model)
    return {
        "name": model.name,
        "algorithm": model.algorithm,
        "learns_from": "counts" if counted else "rows",
        **model_statement(contract, model),
        "window_readings": contract.privacy.window_readings if counted else None,
        "window_s": contract.privacy.window_s if counted else None,
    }
