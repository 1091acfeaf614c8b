"""The models of the demo side by side: what each learns from, what that costs, and what it has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebox.findings import Office, labels_of
from server_node.models.base import ServedModel
from shoal.config.contract import Contract, Model
from shoal.config.privacy import learns_from_counts, model_epsilon, total_epsilon
from shoal.errors import MissingExtra
from shoal.evaluation.scores import scores

HEADINGS = ("model", "algorithm", "learns from", "epsilon", "clusters", "agreement")


@dataclass(frozen=True)
class Result:
    """What one model has found, and at which price."""

    model: str
    algorithm: str
    learns_from: str
    epsilon: float | None
    """of one reading"""
    clusters: int
    """known at the end"""
    agreement: float | None
    """adjusted Rand index of its clusters with the occupancy of the room; None without scikit-learn"""
    labels: NDArray[np.int64]
    """(n,) identity of the cluster of each reading of the office, -1 for none"""

    def as_json(self) -> dict[str, Any]:
        """All but the labels."""
        return {name: value for name, value in asdict(self).items() if name != "labels"}


def results(models: Mapping[str, ServedModel], contract: Contract, office: Office) -> list[Result]:
    """One for each model, in the order of the contract."""
    return [_result(model, models[model.name], contract, office) for model in contract.models]


def _result(model: Model, served: ServedModel, contract: Contract, office: Office) -> Result:
    labels = labels_of(served, contract, office)
    return Result(
        model.name,
        model.algorithm,
        "private counts" if learns_from_counts(model) else "noisy rows",
        model_epsilon(contract, model),
        len(served.lineage.known),
        _agreement(office.occupied, labels),
        labels,
    )


def _agreement(occupied: NDArray[np.int64], labels: NDArray[np.int64]) -> float | None:
    try:
        return round(scores(occupied, labels)["ari"], 3)
    except MissingExtra:
        return None


def table(compared: list[Result]) -> list[str]:
    """A line of headings, and a line for each model."""
    rows = [HEADINGS, *(_cells(one) for one in compared)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    is_number = [False, False, False, True, True, True]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in rows
    ]


def _cells(result: Result) -> tuple[str, ...]:
    epsilon = "none" if result.epsilon is None else f"{result.epsilon:g}"
    agreement = "" if result.agreement is None else f"{result.agreement:.2f}"
    return result.model, result.algorithm, result.learns_from, epsilon, str(result.clusters), agreement


def price(contract: Contract) -> str:
    """What a reading costs in each model and in all, in one or two sentences."""
    total = total_epsilon(contract)
    assert total is not None, "the demo has a guarantee"
    counted = [model for model in contract.models if learns_from_counts(model)]
    noisy = [model for model in contract.models if not learns_from_counts(model)]
    parts = [f"{model_epsilon(contract, model):g} in the private counts of {model.name}" for model in counted]
    if noisy:
        names = ", ".join(model.name for model in noisy)
        parts.append(f"{model_epsilon(contract, noisy[0]):g} in the noisy rows that {names} share")
    if len(parts) == 1:
        return f"A reading costs epsilon {parts[0]}, and nothing else is published."
    return f"A reading costs epsilon {total:g} in all: {' and '.join(parts)}."
