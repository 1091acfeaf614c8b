"""A plot of a clustering, written to a PNG file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from server_node.status import HistoryPoint
from server_node.web.projection import Points, principal_axes
from server_node.web.snapshot_json import view_of
from server_node.web.units import feature_label
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds
from shoal.errors import MissingExtra
from shoal.protocol.messages import Snapshot

SIZE_INCHES = (11, 4.6)
SINGLE_COLOUR = "0.65"
"""the grey of nodes that share their cluster with no other"""


def plot(contract: Contract, snapshot: Snapshot, history: Sequence[HistoryPoint], path: Path) -> None:
    """Plot the nodes and edges of a snapshot on two axes, and the number of clusters over the readings learnt.

    Raises `MissingExtra` without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - plots are an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - the same
    except ModuleNotFoundError:
        raise MissingExtra("A plot of the clustering", "plot") from None

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    chart, line = figure.subplots(1, 2, width_ratios=(3, 2))
    view = view_of(snapshot)
    points, labels = _on_two_axes(contract, view.nodes)
    # Position 0 counts the nodes of no cluster, -1.
    members = np.bincount(view.cluster + 1)[view.cluster + 1]
    grouped = (view.cluster >= 0) & (members > 1)
    chart.plot(*points[view.edges].transpose(2, 1, 0), color="0.7", linewidth=0.8, zorder=1)
    size = 12 + 60 * np.sqrt(view.mass / view.mass.max())
    chart.scatter(*points[~grouped].T, s=size[~grouped], color=SINGLE_COLOUR, zorder=2)
    chart.scatter(*points[grouped].T, s=size[grouped], c=view.cluster[grouped], cmap="tab20", zorder=3)
    chart.set(title=f"{snapshot.nodes} nodes, {snapshot.known} known clusters", xlabel=labels[0], ylabel=labels[1])
    line.step([point.readings for point in history], [point.clusters for point in history], where="post")
    line.set(title="clusters", xlabel="readings learnt", ylim=(0, None))
    figure.suptitle(f"{contract.federation}: {snapshot.readings:,} readings of {snapshot.clients} clients")
    figure.savefig(path, dpi=120)


def _on_two_axes(contract: Contract, nodes: Points) -> tuple[Points, tuple[str, str]]:
    """nodes (n, d) in unit coordinates -> their positions (n, 2) and the labels of the axes."""
    if contract.width <= 2:
        labels = [*map(feature_label, contract.features), ""]
        values = declared_bounds(contract).from_unit(nodes)
        return np.column_stack([values, np.zeros(len(values))])[:, :2], (labels[0], labels[1])
    return (nodes - nodes.mean(axis=0)) @ principal_axes(nodes), ("first principal axis", "second principal axis")
