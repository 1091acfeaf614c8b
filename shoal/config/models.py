"""Checks the models of a contract against the algorithms that they name."""

from __future__ import annotations

from typing import Any

from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.options import needs_another_model
from shoal.algorithms.registry import (
    is_in_rounds,
    load_algorithm,
    rounds_algorithm,
    streaming_algorithm,
    streaming_names,
)
from shoal.algorithms.rounds.policies import Policy
from shoal.config.contract import Contract, Model
from shoal.config.privacy import learns_from_counts, model_noise, model_options
from shoal.errors import SettingsError
from shoal.privacy.base import load_mode

GIVEN_BY_PRIVACY = ("noise_variance", "window_readings")
"""options of algorithms that learn from counts which a federation takes from [privacy]"""


def check_models(contract: Contract) -> None:
    """Raises `SettingsError` when a model names an unknown algorithm, or options that the algorithm does not take."""
    for model in contract.models:
        try:
            _check_privacy(model, contract)
            if is_in_rounds(model.algorithm):
                _check_rounds(model, contract)
            else:
                _check_streaming(model, contract)
        except SettingsError as error:
            raise SettingsError(f"models.{model.name}: {error}") from None


def round_policy(model: Model) -> Policy:
    """What counts besides the answers of a round, for a model in rounds. Raises `SettingsError`."""
    rounds, algorithm = model.rounds, rounds_algorithm(model.algorithm)
    kind = rounds.between or ("decay" if algorithm.additive else "cache")
    policy = Policy(kind, rounds.decay, rounds.cache_rounds, rounds.late_rounds, rounds.robust)
    policy.check(algorithm, model.options)
    return policy


def requested_clusters(model: Model) -> Any:
    """The option `clusters` of a model in rounds: a number, "auto", a criterion, or None if its algorithm has none."""
    defaults = rounds_algorithm(model.algorithm).options.defaults()
    return model.options.get("clusters", defaults.get("clusters"))


def target_of(model: Model, contract: Contract) -> int | None:
    """The position of the feature that a model predicts; None for one that predicts none. Raises `SettingsError`."""
    regression = load_algorithm(model.algorithm).regression
    if regression is None:
        return None
    if contract.width < 2:
        raise SettingsError(f"{model.algorithm} predicts one feature from others, and there is only one")
    return regression.target(model.options, contract.width, [feature.name for feature in contract.features])


def starts_from_another(model: Model) -> bool:
    """Whether a model in rounds waits for the clusters of another model: it takes them over, or chooses from nodes."""
    return needs_another_model(requested_clusters(model))


def _check_privacy(model: Model, contract: Contract) -> None:
    privacy = contract.privacy
    if learns_from_counts(model):
        model_noise(contract, model)
        if privacy.window_readings > model.readings_max:
            raise SettingsError(f"readings_max must be at least window_readings, {privacy.window_readings}")
        return
    if privacy.unit == "user":
        raise SettingsError(
            f'{model.algorithm} learns from noisy rows, which protect readings one by one: with unit = "user" take '
            "models that learn from counts, such as density_tree"
        )
    if model.counts_epsilon is not None:
        raise SettingsError(
            f"{model.algorithm} learns from noisy rows, which all such models share; its epsilon is "
            "epsilon_per_reading of [privacy]"
        )
    load_mode(privacy.mode).check_terms(privacy.terms)


def _check_rounds(model: Model, contract: Contract) -> None:
    rounds_algorithm(model.algorithm).check(model.options)
    rounds_algorithm(model.algorithm).check_features(contract.width)
    target_of(model, contract)
    round_policy(model)
    clusters = requested_clusters(model)
    if starts_from_another(model) and all(is_in_rounds(other.algorithm) for other in contract.models):
        finders = ", ".join(streaming_names())
        raise SettingsError(
            f'clusters = "{clusters}" starts from the clusters of another model: add one of {finders}, or give a number'
        )


def _check_streaming(model: Model, contract: Contract) -> None:
    if "rounds" in model.model_fields_set:
        raise SettingsError(f"{model.algorithm} has no rounds; leave out [models.rounds]")
    algorithm, options = streaming_algorithm(model.algorithm), model_options(contract, model)
    for name in GIVEN_BY_PRIVACY:
        if learns_from_counts(model) and name in model.options:
            raise SettingsError(f"{name} follows from [privacy]; leave it out")
    algorithm.server(options, contract.width)
    if isinstance(algorithm, CountingAlgorithm):
        algorithm.counter(options, contract.width)
    else:
        algorithm.client(options, contract.width)
