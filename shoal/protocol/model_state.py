"""The state of a model in a sentence, from its newest snapshot.

It says why the model has found nothing, one cluster, or specks.
"""

from __future__ import annotations

from typing import Final

from shoal.algorithms.view import ClusteringView
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
    """What people must know of the model before they believe it, with the page to read.

    Empty where nothing is.
    """
    text = _state(model, snapshot)
    if not text:
        return ""
    return f"{text} See {GUIDE}."


def _state(model: ResolvedModel, snapshot: Snapshot | None) -> str:
    if snapshot is None:
        # Updates may be on their way, or the server may be down: the log does not tell.
        return (
            "There is no snapshot yet: no client has published an update, or no server has read "
            f"one. {WHERE_REJECTED}"
        )
    if not snapshot.readings:
        return f"The newest snapshot counts no reading. {WHERE_REJECTED}"
    plural = "" if snapshot.readings == 1 else "s"
    so_far = f"after {snapshot.readings:,} reading{plural}"
    if not snapshot.known:
        return _nothing_known(model, snapshot, so_far)
    if model.rounds is not None and not model.rounds.algorithm.leaves_noise:
        # It has as many clusters as somebody has chosen.
        return ""
    return _state_of_clusters(model.algorithm.view(snapshot.arrays), snapshot, so_far)


def _state_of_clusters(view: ClusteringView, snapshot: Snapshot, so_far: str) -> str:
    """Whether the clusters that were found are as many as there are."""
    if view.unresolved:
        return (
            f"Readings lie in about {view.unresolved} places with gaps between them, and the "
            f"memory at its limit tells {snapshot.known} clusters apart {so_far}: raise the option "
            "growth_max of the model."
        )
    if snapshot.known == 1:
        what = "Edges connect all nodes to one cluster"
        if not view.joins_nodes:
            what = "One cluster and no valley"
        return f"{what} {so_far}."
    return _specks(view, snapshot)


def _nothing_known(model: ResolvedModel, snapshot: Snapshot, so_far: str) -> str:
    """Whether a cluster can be known yet, and what private counts hide.

    A rejected reading keeps its place in its window, and is counted.
    """
    nothing = f"Nothing is significant {so_far}"
    if model.counts is None:
        return f"{nothing}."
    needed = readings_needed(model)
    if needed is not None and snapshot.readings < needed:
        nothing = f"Too early for clusters {so_far}: it takes about {needed:,} accepted ones"
    elif needed is not None:
        nothing += f", though about {needed:,} accepted ones may show a cluster"
    return f"{nothing}. Private counts hide how many were rejected. {WHERE_REJECTED}"


def _specks(view: ClusteringView, snapshot: Snapshot) -> str:
    """A sentence where many of the known clusters are specks, else nothing."""
    masses = []
    for identity in snapshot.cluster_identities:
        if 0 <= identity.number < len(view.centre_mass):
            masses.append(float(view.centre_mass[identity.number]))
    speck_below = SPECK_SHARE * sum(masses)
    specks = sum(mass < speck_below for mass in masses)
    if specks > SPECKS_SHARE * snapshot.known:
        return (
            f"{specks} of {snapshot.known} clusters are specks, with less than 1 % of the "
            "readings each."
        )
    return ""


def readings_needed(model: ResolvedModel) -> int | None:
    """About how many readings the counts of a model need to exceed their noise; None: not known."""
    if model.counts is None or model.counts.algorithm.readings_to_exceed_noise is None:
        return None
    return model.counts.algorithm.readings_to_exceed_noise(model.options, model.mode.bounds.d)
