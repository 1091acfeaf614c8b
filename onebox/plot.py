"""A plot of a clustering, written to a PNG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_node.status import HistoryPoint
from server_node.web.snapshot_json import view_of
from server_node.web.units import feature_label
from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds
from shoal.errors import MissingExtra
from shoal.protocol.messages import Snapshot

SIZE_INCHES = (11, 4.6)
UNNAMED_COLOUR = "0.65"
"""the grey of nodes that belong to no known cluster"""
TICKS_MAX = 5
NAMES_MAX = 8
"""clusters in the legend, the heaviest ones"""


def plot(
    contract: Contract,
    snapshot: Snapshot,
    names: Mapping[int, str],
    history: Sequence[HistoryPoint],
    path: Path,
) -> None:
    """Plot the nodes of a snapshot over the two features that separate its clusters most, and the number of clusters
    over the readings learnt.

    `names`: number of each known cluster in the snapshot -> its name. Raises `MissingExtra` without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - plots are an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - the same
        from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415 - the same
    except ModuleNotFoundError:
        raise MissingExtra("A plot of the clustering", "plot") from None

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    chart, line = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_nodes(chart, contract, view_of(snapshot), names)
    chart.set_title(f"{snapshot.nodes} nodes, {snapshot.known} known clusters")
    line.step([point.readings for point in history], [point.clusters for point in history], where="post")
    line.set(title="clusters", xlabel="readings learnt", ylim=(0, None))
    line.xaxis.set_major_locator(MaxNLocator(TICKS_MAX))
    line.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    line.yaxis.set_major_locator(MaxNLocator(TICKS_MAX, integer=True))
    figure.suptitle(f"{contract.federation}: {snapshot.readings:,} readings of {snapshot.clients} clients")
    figure.savefig(path, dpi=120)


def _draw_nodes(chart: Any, contract: Contract, view: ClusteringView, names: Mapping[int, str]) -> None:
    """Nodes in the units of the contract, coloured by cluster, with a legend of the heaviest clusters."""
    # Noise can place nodes outside the declared bounds; they are drawn at the bound.
    values = declared_bounds(contract).from_unit(np.clip(view.nodes, 0.0, 1.0))
    across, up = separating_features(view, contract.width)
    points = np.column_stack([values[:, across], values[:, up] if up is not None else np.zeros(len(values))])
    size = 12 + 60 * np.sqrt(view.mass / view.mass.max())
    chart.plot(*points[view.edges].transpose(2, 1, 0), color="0.7", linewidth=0.8, zorder=1)
    known = np.isin(view.cluster, list(names))
    chart.scatter(*points[~known].T, s=size[~known], color=UNNAMED_COLOUR, zorder=2)
    heaviest = sorted(names, key=lambda number: (-view.centre_mass[number], number))
    for place, number in enumerate(heaviest):
        own = view.cluster == number
        label = names[number] if place < NAMES_MAX else None
        chart.scatter(*points[own].T, s=size[own], color=f"C{place % 10}", label=label, alpha=0.7, zorder=3)
    chart.set_xlabel(feature_label(contract.features[across]))
    chart.set_ylabel("" if up is None else feature_label(contract.features[up]))
    if heaviest:
        chart.legend(loc="best", fontsize="small", markerscale=0.7)


def separating_features(view: ClusteringView, width: int) -> tuple[int, int | None]:
    """Positions of the two features over which the clusters differ most, compared with the spread within them.

    None where there is only one feature. Of a single cluster, those of the largest spread.
    """
    member = view.cluster >= 0
    nodes, mass, cluster = view.nodes[member], view.mass[member], view.cluster[member]
    middle = np.average(nodes, axis=0, weights=mass) if len(nodes) else np.zeros(width)
    between, within = _variance(view.centres[cluster] - middle, mass), _variance(nodes - view.centres[cluster], mass)
    share = between / np.maximum(within, 1e-12) if (between > 0).any() else within
    order = np.argsort(-share, kind="stable").tolist()
    return order[0], order[1] if width > 1 else None


def _variance(gaps: NDArray[np.float64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, d) differences, (n,) masses -> (d,) mean square of each feature."""
    return mass @ gaps**2 / max(float(mass.sum()), 1e-12)
