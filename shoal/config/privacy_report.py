"""What a contract guarantees, as plain values, and advice where a model would learn little from what privacy leaves."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from shoal.algorithms.from_counts.grid import FEATURES_MAX
from shoal.algorithms.registry import counting_algorithm
from shoal.config.contract import Contract, Model
from shoal.config.privacy import (
    epsilon_spent,
    learns_from_counts,
    model_epsilon,
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


ROWS_EPSILON_MIN: Final = 100.0
"""per reading: with less, noise on rows hides clusters of several features"""
WEAK_EPSILON: Final = 10.0
"""per reading: beyond, there is hardly any protection"""
WINDOW_READINGS_MIN: Final = 100
"""for each reading that a user may have in one: in smaller windows there is more noise than readings"""


class Advice(NamedTuple):
    """What is poor about one model, and what to do."""

    model: str
    text: str


def advice_on(contract: Contract) -> list[Advice]:
    """Advice on each model, in their order; none without a guarantee, where noise is no matter of an epsilon."""
    if not privacy_mode(contract).formal:
        return []
    return [Advice(model.name, text) for model in contract.models for text in _on_model(contract, model)]


def _on_model(contract: Contract, model: Model) -> list[str]:
    epsilon = model_epsilon(contract, model)
    assert epsilon is not None, "a formal mode has an epsilon for every model"
    return _on_counts(contract, model, epsilon) if learns_from_counts(model) else _on_rows(contract, epsilon)


def _on_rows(contract: Contract, epsilon: float) -> list[str]:
    found = []
    if epsilon < ROWS_EPSILON_MIN:
        grid = ", or cluster_tree_from_counts for clusters of any shape" if contract.width <= FEATURES_MAX else ""
        found.append(
            f"noisy rows at epsilon {epsilon:g} per reading show hardly any clusters: take density_tree{grid}, which "
            f"find them in private counts at an epsilon of 1 to 4, or an epsilon of {ROWS_EPSILON_MIN:g} and more"
        )
    counted = [other.name for other in contract.models if learns_from_counts(other)]
    if counted and epsilon > WEAK_EPSILON:
        found.append(
            f"noisy rows at epsilon {epsilon:g} give away what the counts of {', '.join(counted)} protect: without "
            "models that learn from rows, a reading would cost only what counts cost"
        )
    return found


def _on_counts(contract: Contract, model: Model, epsilon: float) -> list[str]:
    found = []
    window, unit = contract.privacy.window_readings, contract.privacy.privacy_unit
    least = counting_algorithm(model.algorithm).epsilon_advised * unit.readings_max
    if epsilon < least:
        found.append(
            f"{model.algorithm} at epsilon {epsilon:g} needs very many readings until it finds clusters: take "
            f"density_tree, or an epsilon of {least:g} and more"
        )
    if WINDOW_READINGS_MIN <= window < WINDOW_READINGS_MIN * unit.readings_max:
        found.append(
            f"noise for {unit.readings_max} readings of a user is more than the readings of a window of {window}: take "
            "a smaller readings_per_window_max, or window_readings of "
            f"{WINDOW_READINGS_MIN * unit.readings_max} and more"
        )
    if window < WINDOW_READINGS_MIN:
        found.append(
            f"windows of {window} readings have more noise than readings: take window_readings of "
            f"{WINDOW_READINGS_MIN} and more, 400 if readings come fast enough"
        )
    return found
