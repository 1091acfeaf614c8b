"""Makes the models of a contract, one class for each family of algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from server_node.clusters.history.recorder import NOTHING_PUBLISHED, PublishedHistory
from server_node.models.base import ServedModel
from server_node.models.rounds import RoundsModel
from server_node.models.streaming import StreamingModel
from shoal.algorithms.registry import is_in_rounds
from shoal.config.contract import Contract
from shoal.config.sections import ServerSettings
from shoal.protocol.validation import Validator


class ModelForms(NamedTuple):
    """name -> class of the models that are not plain ones."""

    streaming: Mapping[str, type[StreamingModel]] = {}
    rounds: Mapping[str, type[RoundsModel]] = {}


PLAIN: Final = ModelForms()


def make_models(
    contract: Contract,
    settings: ServerSettings,
    validator: Validator,
    history: PublishedHistory = NOTHING_PUBLISHED,
    forms: ModelForms = PLAIN,
) -> dict[str, ServedModel]:
    """name -> model without any update yet, in the order of the contract; their histories go on from `history`."""
    streaming: dict[str, StreamingModel] = {
        model.name: forms.streaming.get(model.name, StreamingModel)(contract, model, settings, history)
        for model in contract.models
        if not is_in_rounds(model.algorithm)
    }
    sources = tuple(streaming.values())
    rounds = {
        model.name: forms.rounds.get(model.name, RoundsModel)(contract, model, settings, validator, sources, history)
        for model in contract.models
        if is_in_rounds(model.algorithm)
    }
    made: dict[str, ServedModel] = {**streaming, **rounds}
    return {model.name: made[model.name] for model in contract.models}
