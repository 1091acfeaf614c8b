"""The models of a contract checked against the algorithms they name."""

from __future__ import annotations

from typing import Any

from shoal.algorithms.registry import (
    is_in_rounds,
    rounds_algorithm,
    streaming_algorithm,
    streaming_names,
)
from shoal.algorithms.rounds.policies import Policy
from shoal.config.contract import Contract, Model
from shoal.errors import SettingsError


def check_models(contract: Contract) -> None:
    """Raises `SettingsError` when a model names an unknown algorithm or gives it options it does not take."""
    for model in contract.models:
        try:
            if is_in_rounds(model.algorithm):
                _check_rounds(model, contract)
            else:
                _check_streaming(model, contract)
        except SettingsError as wrong:
            raise SettingsError(f"models.{model.name}: {wrong}") from None


def round_policy(model: Model) -> Policy:
    """What a model in rounds does between rounds. Raises `SettingsError`."""
    agreed, algorithm = model.rounds, rounds_algorithm(model.algorithm)
    kind = agreed.between or ("decay" if algorithm.additive else "cache")
    policy = Policy(kind, agreed.decay, agreed.cache_rounds, agreed.late_rounds)
    policy.check(algorithm)
    return policy


def requested_clusters(model: Model) -> Any:
    """How many clusters a model in rounds looks for, if it says: a number, or "auto"."""
    option = rounds_algorithm(model.algorithm).options.get("clusters")
    return model.options.get("clusters", None if option is None else option.default)


def _check_rounds(model: Model, contract: Contract) -> None:
    rounds_algorithm(model.algorithm).check(model.options)
    round_policy(model)
    if requested_clusters(model) == "auto" and all(is_in_rounds(other.algorithm) for other in contract.models):
        finders = " or ".join(streaming_names())
        raise SettingsError(
            f'clusters = "auto" takes over what another model finds: add one of {finders}, or give a number'
        )


def _check_streaming(model: Model, contract: Contract) -> None:
    if "rounds" in model.model_fields_set:
        raise SettingsError(f"{model.algorithm} has no rounds; leave out [models.rounds]")
    streaming_algorithm(model.algorithm).server(model.options, contract.width)
    streaming_algorithm(model.algorithm).client(model.options, contract.width)
