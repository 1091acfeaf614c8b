"""What the page shows about privacy: the words of the federation's mode, and the epsilon of each model and feature."""

from __future__ import annotations

import math
from typing import Any

from shoal.config.contract import Contract
from shoal.config.privacy import privacy_mode, total_epsilon
from shoal.config.privacy_report import models_report

FEATURES_MAX = 64
"""features whose epsilon is listed one by one"""


def privacy_text(contract: Contract) -> dict[str, Any]:
    """The privacy panel as plain values: title and tone (good, warn, bad), sentences, what is not covered, epsilons.

    `epsilon` is the sum over all models, `per` what it is of in words; None when the mode has no epsilons. With
    `nominal` they guarantee nothing. `noise` is how far a feature is moved on average, in its own unit, or None if that
    is not known.
    """
    mode = privacy_mode(contract)
    description, statement = mode.describe(), mode.statement()
    epsilons, noises = mode.epsilon_per_feature(), mode.noise_per_feature()
    return {
        "mode": mode.name,
        "formal": mode.formal,
        "adds_noise": mode.adds_noise,
        "title": description.title,
        "tone": description.tone,
        "sentences": list(description.sentences),
        "not_covered": list(description.not_covered),
        "epsilon": math.fsum(epsilons) if statement["nominal"] else total_epsilon(contract),
        "per": mode.unit.phrase,
        "nominal": statement["nominal"],
        "models": [
            {name: model[name] for name in ("name", "learns_from", "unit", "epsilon", "window_readings")}
            for model in models_report(contract)
        ],
        "features_total": contract.width,
        "epsilon_per_feature": [
            {
                "name": feature.name,
                "epsilon": epsilon,
                "low": feature.low,
                "high": feature.high,
                "unit": feature.unit,
                "noise": None if noises is None else (feature.high - feature.low) * noises[j],
            }
            for j, (feature, epsilon) in enumerate(zip(contract.features[:FEATURES_MAX], epsilons, strict=False))
        ],
    }
