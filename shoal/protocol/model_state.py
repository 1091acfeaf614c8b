"""The state of a model in a sentence, from its newest snapshot: why it has found nothing, one
cluster, or specks."""

from __future__ import annotations

import math
from typing import Final

from shoal.algorithms.density_tree.clusters import MASS_SIGNIFICANCE
from shoal.algorithms.density_tree.leaf import BINS
from shoal.config.resolved import ResolvedModel
from shoal.protocol.messages import Snapshot

GUIDE: Final = "docs/how-to/believe.md"
SPECK_SHARE: Final = 0.01
"""share of the mass of all clusters below which a cluster is a speck"""
SPECKS_SHARE: Final = 1 / 3
"""share of the known clusters from which specks are remarkable"""

WHERE_REJECTED: Final = (
    "Clients count the readings that they reject, with the reasons, in their summary and metrics."
)


def model_state(model: ResolvedModel, snapshot: Snapshot | None) -> str:
    """What people must know of the model before they believe it, with the page to read; empty where
    nothing is."""
    text = _state(model, snapshot)
    return f"{text} See {GUIDE}." if text else ""


def _state(model: ResolvedModel, snapshot: Snapshot | None) -> str:
    if snapshot is None:
        # Updates may be on their way, or the server may be down: the log does not tell.
        return (
            "There is no snapshot yet: no client has published an update, or no server has read "
            f"one. {WHERE_REJECTED}"
        )
    if not snapshot.readings:
        return f"The newest snapshot counts no reading. {WHERE_REJECTED}"
    so_far = f"after {snapshot.readings:,} reading{'' if snapshot.readings == 1 else 's'}"
    if not snapshot.known:
        return f"Nothing is significant {so_far}.{_hidden(model)}"
    if model.rounds is not None and not model.rounds.algorithm.leaves_noise:
        # It has as many clusters as somebody has chosen.
        return ""
    return _found(model, snapshot, so_far)


def _found(model: ResolvedModel, snapshot: Snapshot, so_far: str) -> str:
    """Whether the clusters that were found are as many as there are."""
    if unresolved := model.algorithm.view(snapshot.arrays).unresolved:
        return (
            f"Readings lie in about {unresolved} places with gaps between them, and the memory at "
            f"its limit tells {snapshot.known} clusters apart {so_far}: raise the option "
            "growth_max of the model."
        )
    if snapshot.known == 1:
        return f"{_one_cluster(model)} {so_far}."
    return _specks(model, snapshot)


def _hidden(model: ResolvedModel) -> str:
    """What private counts take and hide: a rejected reading keeps its place in its window, and is
    counted."""
    if model.counts is None:
        return ""
    needed = readings_needed(model)
    takes = f" It takes about {needed:,} accepted ones." if needed else ""
    return f"{takes} Private counts hide how many were rejected. {WHERE_REJECTED}"


def _one_cluster(model: ResolvedModel) -> str:
    return (
        "Edges connect all nodes to one cluster"
        if model.algorithm.name == "fcac"
        else "One cluster and no valley"
    )


def _specks(model: ResolvedModel, snapshot: Snapshot) -> str:
    """A sentence where many of the known clusters are specks, else nothing."""
    mass = model.algorithm.view(snapshot.arrays).centre_mass
    held = [
        float(mass[one.number])
        for one in snapshot.cluster_identities
        if 0 <= one.number < len(mass)
    ]
    specks = sum(each < SPECK_SHARE * sum(held) for each in held)
    if specks > SPECKS_SHARE * snapshot.known:
        return (
            f"{specks} of {snapshot.known} clusters are specks, with less than 1 % of the "
            "readings each."
        )
    return ""


def readings_needed(model: ResolvedModel) -> int | None:
    """About how many readings the counts of a density_tree need to exceed their noise, one window
    at least.

    None for other models: their counts have as many cells as the data fill.
    """
    if model.counts is None or model.algorithm.name != "density_tree":
        return None
    window = int(model.options["window_readings"])
    variance = float(model.options["noise_variance"])
    # Mass must exceed `MASS_SIGNIFICANCE` deviations; every window adds the noise of the bins of
    # each feature.
    noise = variance * BINS * len(model.mode.bounds.low) / window
    return max(window, math.ceil(MASS_SIGNIFICANCE**2 * (noise + 1)))
