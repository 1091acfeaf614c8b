"""Makes the models of a contract, one class for each family of algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.sections import ServerSettings
from shoal.protocol.validation import Validator
from shoal.server_node.history.sources import NOTHING_PUBLISHED, PublishedHistory
from shoal.server_node.models.base import ServedModel
from shoal.server_node.models.rounds import RoundsModel
from shoal.server_node.models.streaming import MaskedModel, StreamingBase, StreamingModel


class StreamingForm(Protocol):
    """A class of streaming models, or a function that makes them."""

    def __call__(
        self,
        contract: ResolvedContract,
        model: ResolvedModel,
        settings: ServerSettings,
        history: PublishedHistory,
    ) -> StreamingBase: ...


class ModelForms(NamedTuple):
    """name -> class of the models that follow those of an upstream federation."""

    streaming: Mapping[str, StreamingForm] = {}
    rounds: Mapping[str, type[RoundsModel]] = {}


PLAIN: Final = ModelForms()


def make_models(
    contract: ResolvedContract,
    settings: ServerSettings,
    validator: Validator,
    history: PublishedHistory = NOTHING_PUBLISHED,
    forms: ModelForms = PLAIN,
) -> dict[str, ServedModel]:
    """name -> model without any update yet, in the order of the contract; their histories go on
    from `history`."""
    streaming: dict[str, StreamingBase] = {}
    rounds: dict[str, RoundsModel] = {}
    for name, model in contract.models.items():
        if not model.family.in_rounds:
            plain = MaskedModel if contract.mode.masked else StreamingModel
            streaming[name] = forms.streaming.get(name, plain)(contract, model, settings, history)
    # A source may stand anywhere in the contract, so streaming models are made first.
    for model in contract.in_rounds:
        form = forms.rounds.get(model.name, RoundsModel)
        source = None if model.declared.source is None else streaming[model.declared.source]
        rounds[model.name] = form(contract, model, settings, validator, source, history)
    made: dict[str, ServedModel] = {**streaming, **rounds}
    return {name: made[name] for name in contract.models}
