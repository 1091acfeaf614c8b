"""How the readings behind one cluster lie in each feature, beside those of all other clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server_node.description import places_of
from server_node.lineage import Lineage
from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds

BINS = 28


@dataclass(frozen=True)
class Histogram:
    """One feature: bins of equal width from the least to the largest value of all clusters, within the bounds."""

    low: float
    """of the first bin, in units"""
    high: float
    """end of the last bin; `low` where all values are the same"""
    own: NDArray[np.float64]
    """(BINS,) shares of the cluster's mass, 0 to 1"""
    others: NDArray[np.float64]
    """(BINS,) shares of the mass of all other clusters"""


def histograms(view: ClusteringView, lineage: Lineage, identity: int, contract: Contract) -> list[Histogram]:
    """One for each feature of the contract; none for a cluster that no node of the view belongs to.

    They are made of nodes and their mass, which snapshots publish, and so as coarse as the nodes are.
    """
    numbers = [number for number, of in lineage.of_number.items() if of == identity]
    places, mass, cluster = places_of(view, view.cluster >= 0)
    own = np.isin(cluster, numbers)
    if not own.any():
        return []
    values = declared_bounds(contract).from_unit(places)
    return [
        _histogram(np.clip(values[:, j], feature.low, feature.high), mass, own)
        for j, feature in enumerate(contract.features)
    ]


def _histogram(values: NDArray[np.float64], mass: NDArray[np.float64], own: NDArray[np.bool_]) -> Histogram:
    low, high = float(values.min()), float(values.max())
    width = (high - low) / BINS
    place = np.zeros(len(values), dtype=np.int64)
    if width > 0:
        place = np.minimum(((values - low) / width).astype(np.int64), BINS - 1)
    return Histogram(low, high, _shares(place[own], mass[own]), _shares(place[~own], mass[~own]))


def _shares(place: NDArray[np.int64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the mass in each bin; zeros where there is none at all."""
    counts = np.bincount(place, mass, minlength=BINS)
    return counts / (counts.sum() or 1.0)
