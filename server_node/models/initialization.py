"""Starting points of a model in rounds: the clusters that its source has found, or the bounds of the contract."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from server_node.models.base import ServedModel
from shoal.algorithms.options import CRITERIA
from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.rounds.choice import Landmarks, choose_clusters
from shoal.config.resolved import ResolvedContract, ResolvedModel, RoundTerms
from shoal.kernels.arrays import Floats


def init_hint_for(
    contract: ResolvedContract, model: ResolvedModel, source: ServedModel | None, present: int | None = None
) -> InitHint | None:
    """The hint to start from now: the known clusters of the source, or those that the model's criterion chooses from
    the source's nodes. `present` is the number of clusters that the model has, if it has started.

    Other models of the contract have no part in it, so adding one changes no other. None while the model is to take
    over clusters and there are none yet.
    """
    assert model.rounds is not None, "only models in rounds start from a hint"
    low, high = np.zeros(contract.width), np.ones(contract.width)
    names = [feature.name for feature in contract.features]
    # The seed is a function of the names, so that a restart draws the same start.
    digest = hashlib.sha256(f"shoal start 1\n{contract.federation}\n{model.name}".encode()).digest()
    seed = int.from_bytes(digest[:4], "little")
    centres, mass = (np.empty((0, 0)), np.empty(0)) if source is None else known_clusters(source)
    if source is not None and len(centres):
        if model.rounds.clusters in CRITERIA:
            centres, mass = _chosen(model.rounds, model.options, source, seed, present)
        return InitHint(low, high, seed, centres, mass, names)
    return None if model.rounds.starts_from_another else InitHint(low, high, seed, features=names)


def _chosen(
    terms: RoundTerms, options: Mapping[str, Any], source: ServedModel, seed: int, present: int | None
) -> tuple[Floats, Floats]:
    """-> centres (k, d) and mass (k,) of the clusters that the model's criterion chooses from the nodes of `source`."""
    assert source.view is not None, "a model without a view has no known clusters"
    landmarks = Landmarks(source.view.nodes, source.view.mass.astype(np.float64))
    parsed = terms.algorithm.options.parse(options).as_dict()
    form = parsed.get("covariance", "full")
    return choose_clusters(parsed["clusters"], landmarks, parsed["clusters_max"], seed, form, present)


def known_clusters(source: ServedModel) -> tuple[Floats, Floats]:
    """-> centres (k, d) and mass (k,) of the known clusters in the newest snapshot, in the order of their identities.

    Only known clusters count: they are confirmed, so their number does not follow every group that comes and goes.
    """
    view = source.view
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for number, identity in source.lineage.of_number.items():
        numbers[identity].append(number)
    if view is None or not numbers:
        return np.empty((0, 0)), np.empty(0)
    centres, masses = [], []
    for identity in sorted(numbers):
        # A part that is not confirmed yet still counts as the cluster it parts from.
        mass = view.centre_mass[numbers[identity]]
        weight = mass if mass.sum() > 0 else np.ones(len(mass))
        centres.append(np.average(view.centres[numbers[identity]], axis=0, weights=weight))
        masses.append(mass.sum())
    return np.array(centres), np.array(masses)
