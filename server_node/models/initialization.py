"""What a model in rounds starts from: what another model of the federation has found, or the box of the contract."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from server_node.models.streaming import StreamingModel
from shoal.algorithms.rounds.base import InitHint
from shoal.config.contract import Contract, Model
from shoal.config.models import clusters_wanted


def init_hint_for(contract: Contract, model: Model, finders: Sequence[StreamingModel]) -> InitHint | None:
    """The hint to start from now; None while the model is to take over clusters that nobody has found yet."""
    low, high = np.zeros(contract.width), np.ones(contract.width)
    # Whatever is drawn at the start is drawn alike after every restart.
    drawn = hashlib.sha256(f"shoal start 1\n{contract.federation}\n{model.name}".encode()).digest()
    seed = int.from_bytes(drawn[:4], "little")
    for finder in finders:
        found = finder.snapshot
        if found is not None and found.clusters:
            return InitHint(low, high, seed, found.arrays["centre"], found.arrays["centre_weight"])
    return None if clusters_wanted(model) == "auto" else InitHint(low, high, seed)
