"""Histograms of the nodes of a cluster in each feature, beside those of all other clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract, Feature
from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.server_node.outputs.web.answers import FeatureHistogram, Histograms
from shoal.server_node.report.description import places_of
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.status import ModelStatus
from shoal.server_node.report.units import feature_view, view_of

BINS = 28


@dataclass(frozen=True)
class Histogram:
    """One feature: bins of equal width from the least to the largest value of all clusters, within
    the bounds."""

    low: float
    """start of the first bin, in units"""
    high: float
    """end of the last bin; `low` where all values are the same"""
    own: Floats
    """(BINS,) shares of the cluster's mass, 0 to 1"""
    others: Floats
    """(BINS,) shares of the mass of all other clusters"""


def histograms_of(model: ModelStatus, identity: int, contract: ResolvedContract) -> Histograms:
    """The histograms of a known cluster, by the newest snapshot."""
    features: list[FeatureHistogram] = []
    version = 0
    if model.snapshot is not None:
        version = model.snapshot.version
        view = view_of(model.snapshot, contract)
        drawn = histograms(view, model.lineage, identity, contract.contract)
        for feature, histogram in zip(contract.features, drawn, strict=False):
            features.append(_rounded(feature, histogram))
    return Histograms(model=model.name, identity=identity, version=version, features=features)


def _rounded(feature: Feature, histogram: Histogram) -> FeatureHistogram:
    shown = feature_view(feature)
    return FeatureHistogram(
        name=shown.name,
        unit=shown.unit,
        digits=shown.digits,
        values=shown.values,
        period=shown.period,
        low=round(histogram.low, shown.digits),
        high=round(histogram.high, shown.digits),
        own=np.rint(1000 * histogram.own).astype(int).tolist(),
        others=np.rint(1000 * histogram.others).astype(int).tolist(),
    )


def histograms(
    view: ClusteringView, lineage: Lineage, identity: int, contract: Contract
) -> list[Histogram]:
    """One for each feature of the contract; none for a cluster that no node of the view belongs to.

    They are made of nodes and their mass, which snapshots publish, and so as coarse as the nodes
    are.
    """
    numbers = [number for number, owner in lineage.of_number.items() if owner == identity]
    places, mass, cluster = places_of(view, view.cluster >= 0)
    own = np.isin(cluster, numbers)
    if not own.any():
        return []
    values = contract.bounds.shown(places)
    drawn = []
    for j, feature in enumerate(contract.features):
        column = values[:, j]
        if not feature.period:
            # Noise can put nodes outside of the bounds, where no value can be.
            column = np.clip(column, feature.low, feature.high)
        drawn.append(_histogram(column, mass, own))
    return drawn


def _histogram(values: Floats, mass: Floats, own: Bools) -> Histogram:
    low = float(values.min())
    high = float(values.max())
    width = (high - low) / BINS
    place = np.zeros(len(values), dtype=np.int64)
    if width > 0:
        # The largest value is the end of the last bin, and belongs to it.
        place = np.minimum(((values - low) / width).astype(np.int64), BINS - 1)
    return Histogram(low, high, _shares(place[own], mass[own]), _shares(place[~own], mass[~own]))


def _shares(place: Ints, mass: Floats) -> Floats:
    """Share of the mass in each bin; zeros where there is none at all."""
    counts = np.bincount(place, mass, minlength=BINS)
    return counts / (counts.sum() or 1.0)
