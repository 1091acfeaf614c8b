"""Makes the models of a contract, one class for each family of algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from server_node.history.recorder import NOTHING_PUBLISHED, PublishedHistory
from server_node.models.base import ServedModel
from server_node.models.rounds import RoundsModel
from server_node.models.streaming import StreamingModel
from shoal.algorithms.registry import is_in_rounds
from shoal.config.contract import Contract
from shoal.config.server_settings import ServerSettings
from shoal.protocol.validation import Validator

NO_FORMS: Final[Mapping[str, type[StreamingModel]]] = {}


def make_models(
    contract: Contract,
    settings: ServerSettings,
    validator: Validator,
    history: PublishedHistory = NOTHING_PUBLISHED,
    forms: Mapping[str, type[StreamingModel]] = NO_FORMS,
) -> dict[str, ServedModel]:
    """name -> model without any update yet, in the order of the contract; their histories go on from `history`.

    `forms`: the classes of those streaming models that are not plain ones.
    """
    streaming: dict[str, StreamingModel] = {
        model.name: forms.get(model.name, StreamingModel)(contract, model, settings, history)
        for model in contract.models
        if not is_in_rounds(model.algorithm)
    }
    sources = tuple(streaming.values())
    return {
        model.name: streaming.get(model.name) or RoundsModel(contract, model, settings, validator, sources, history)
        for model in contract.models
    }
