"""Draws what an estimator has learnt with matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.errors import MissingExtra, SettingsError
from shoal.estimators.base import Table

NO_CLUSTER_COLOUR = "0.65"
SIZE_MIN, SIZE_MAX = 12.0, 90.0
"""area of the mark of the lightest and of the heaviest node, in square points"""
NAMED_MAX = 10
"""clusters in the legend, the heaviest ones"""


def draw_view(view: ClusteringView, nodes: Table, names: Sequence[str], features: Any = None, ax: Any = None) -> Any:
    """The nodes of a view, coloured by cluster, and its edges; returns the matplotlib Axes.

    `nodes` (n, d) are those of the view in the units in which they are drawn, `names` (d,) the axes' names, `features`
    two positions or names. Raises `MissingExtra` without matplotlib, and `SettingsError` for other features.
    """
    across, up = _positions(view, names, features)
    if ax is None:
        try:
            import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise MissingExtra("Drawing a clustering", "plot") from None
        ax = plt.subplots()[1]
    points = np.column_stack([nodes[:, across], nodes[:, up] if up is not None else np.zeros(len(nodes))])
    size = SIZE_MIN + (SIZE_MAX - SIZE_MIN) * np.sqrt(view.mass / max(float(view.mass.max(initial=0.0)), 1e-12))
    if len(view.edges):
        ax.plot(*points[view.edges].transpose(2, 1, 0), color="0.75", linewidth=0.8, zorder=1)
    alone = view.cluster == NO_CLUSTER
    ax.scatter(*points[alone].T, s=size[alone], color=NO_CLUSTER_COLOUR, zorder=2)
    heaviest = np.argsort(-view.centre_mass, kind="stable").tolist()
    for place, number in enumerate(heaviest):
        own = view.cluster == number
        label = str(number if view.identity is None else int(view.identity[number])) if place < NAMED_MAX else None
        ax.scatter(*points[own].T, s=size[own], color=f"C{place % 10}", label=label, alpha=0.75, zorder=3)
    ax.set(xlabel=names[across], ylabel="" if up is None else names[up])
    if heaviest:
        ax.legend(title="cluster", fontsize="small", markerscale=0.8)
    return ax


def _positions(view: ClusteringView, names: Sequence[str], features: Any) -> tuple[int, int | None]:
    """The positions of the two features to draw; None where there is only one."""
    if len(names) == 1:
        return 0, None
    if features is None:
        return separating_features(view)
    try:
        across, up = (names.index(one) if isinstance(one, str) else range(len(names))[one] for one in features)
    except (IndexError, TypeError, ValueError):
        known = ", ".join(names)
        raise SettingsError(f"features = {features!r} are not two positions or names of: {known}") from None
    return across, up


def separating_features(view: ClusteringView) -> tuple[int, int]:
    """The two features over which clusters differ most, compared with the spread within them; d >= 2.

    Of a single cluster, those of the largest spread.
    """
    member = view.cluster >= 0
    nodes, mass, cluster = view.nodes[member], view.mass[member], view.cluster[member]
    if not mass.sum() > 0:
        return 0, 1
    gaps = view.centres[cluster] - np.average(nodes, axis=0, weights=mass)
    between, within = _mean_square(gaps, mass), _mean_square(nodes - view.centres[cluster], mass)
    score = between / np.maximum(within, 1e-12) if (between > 1e-12).any() else within
    across, up = np.argsort(-score, kind="stable")[:2].tolist()
    return across, up


def _mean_square(gaps: NDArray[np.float64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, d) differences, (n,) masses -> (d,)."""
    means: NDArray[np.float64] = mass @ gaps**2 / max(float(mass.sum()), 1e-12)
    return means
