"""The privacy mode and the bounds that a contract declares, and what a privacy unit costs in each model."""

from __future__ import annotations

import math
from typing import Any

from shoal.algorithms.registry import counting_algorithm, load_algorithm
from shoal.config.contract import Contract, Model
from shoal.privacy import Bounds, PrivacyMode, load_mode
from shoal.privacy.count_noise import CountNoise, certified_count_epsilon


def privacy_mode(contract: Contract) -> PrivacyMode:
    """The contract's privacy mode with its terms. Raises `SettingsError`."""
    privacy = contract.privacy
    shares = [feature.share for feature in contract.features]
    return load_mode(privacy.mode)(
        declared_bounds(contract), privacy.terms, shares, privacy.counts_epsilon, privacy.privacy_unit
    )


def declared_bounds(contract: Contract) -> Bounds:
    """The declared bounds of all features."""
    return Bounds([feature.low for feature in contract.features], [feature.high for feature in contract.features])


def learns_from_counts(model: Model) -> bool:
    """Whether the model learns from private counts; otherwise it learns from noisy rows."""
    return load_algorithm(model.algorithm).family.client_counts


def model_noise(contract: Contract, model: Model) -> CountNoise | None:
    """The noise of the counts of a model that learns from counts; None for none. Raises `SettingsError`."""
    return privacy_mode(contract).count_noise(_counts_epsilon(contract, model))


def count_stream(contract: Contract, model: Model) -> str:
    """The name of the stream of counts that a model learns from; the ledger charges streams.

    Models whose algorithms count alike, at the same epsilon, publish the same private counts: they share a stream.
    """
    stream = counting_algorithm(model.algorithm).stream
    if stream is None:
        return model.name
    epsilon = _counts_epsilon(contract, model)
    # No model has such a name.
    return f"{stream}:{'none' if epsilon is None else format(epsilon, 'g')}"


def model_options(contract: Contract, model: Model) -> dict[str, Any]:
    """The options of both halves of a streaming model: those of the contract, and for counts what their noise is."""
    if not learns_from_counts(model):
        return dict(model.options)
    noise = model_noise(contract, model)
    variance = 0.0 if noise is None else noise.variance
    return {**model.options, "noise_variance": variance, "window_readings": contract.privacy.window_readings}


def model_statement(contract: Contract, model: Model) -> dict[str, Any]:
    """The privacy statement that every message of this model carries. Raises `SettingsError`."""
    mode = privacy_mode(contract)
    if not learns_from_counts(model):
        return mode.statement()
    return mode.count_statement(_counts_epsilon(contract, model), contract.privacy.window_readings)


def model_epsilon(contract: Contract, model: Model) -> float | None:
    """The guaranteed epsilon of a privacy unit in what is published for a model; None without a guarantee.

    Models that share noisy rows, or a stream of counts, share their epsilon: it counts once in `total_epsilon`.
    """
    if learns_from_counts(model):
        return _counts_epsilon(contract, model)
    return privacy_mode(contract).epsilon_per_reading()


def total_epsilon(contract: Contract) -> float | None:
    """What a privacy unit costs in all that is published: each stream of counts, and noisy rows once.

    None without a guarantee.
    """
    parts = {
        count_stream(contract, model) if learns_from_counts(model) else "": model_epsilon(contract, model)
        for model in contract.models
    }
    known = [epsilon for epsilon in parts.values() if epsilon is not None]
    return math.fsum(known) if len(known) == len(parts) else None


def epsilon_spent(contract: Contract) -> tuple[float, float]:
    """Epsilon that a privacy unit really costs in all that is published, and that it may cost.

    Both are infinite without a guarantee. The first is computed from the noise tables themselves.
    """
    mode = privacy_mode(contract)
    if not mode.formal:
        return math.inf, math.inf
    rows = mode.epsilon_spent() if mode.epsilon_per_reading() is not None else (0.0, 0.0)
    noises = {
        count_stream(contract, model): model_noise(contract, model)
        for model in contract.models
        if learns_from_counts(model)
    }
    readings_max = mode.unit.readings_max
    spent = [certified_count_epsilon(noise, readings_max) for noise in noises.values() if noise is not None]
    return math.fsum([rows[0], *spent]), total_epsilon(contract) or 0.0


def model_spent(contract: Contract, model: Model) -> float | None:
    """Epsilon that a privacy unit really costs in a model, computed from the noise tables; None without a guarantee."""
    mode = privacy_mode(contract)
    if not mode.formal:
        return None
    if not learns_from_counts(model):
        return mode.epsilon_spent()[0]
    noise = model_noise(contract, model)
    return None if noise is None else certified_count_epsilon(noise, mode.unit.readings_max)


def _counts_epsilon(contract: Contract, model: Model) -> float | None:
    own = model.counts_epsilon
    return contract.privacy.counts_epsilon if own is None else own
