"""What a model in rounds starts from: clusters that another model has found, or the bounds of the contract."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from server_node.models.base import ServedModel
from shoal.algorithms.rounds.base import InitHint
from shoal.config.contract import Contract, Model
from shoal.config.models import requested_clusters


def init_hint_for(contract: Contract, model: Model, sources: Sequence[ServedModel]) -> InitHint | None:
    """The hint to start from now, of the first of `sources` that has found clusters.

    None while the model is to take over clusters of another one and there are none yet.
    """
    low, high = np.zeros(contract.width), np.ones(contract.width)
    # The seed is a function of the names, so that a restart draws the same start.
    digest = hashlib.sha256(f"shoal start 1\n{contract.federation}\n{model.name}".encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    for source in sources:
        if source.snapshot is not None and source.snapshot.clusters and source.view is not None:
            return InitHint(low, high, seed, source.view.centres, source.view.centre_mass)
    return None if requested_clusters(model) == "auto" else InitHint(low, high, seed)
