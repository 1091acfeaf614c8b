"""A clustering as a picture file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from server_node.status import HistoryPoint
from server_node.web.projection import principal_axes
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds
from shoal.errors import MissingExtra
from shoal.protocol.messages import Snapshot

SIZE_INCHES = (11, 4.6)
ALONE = "0.65"
"""the grey of nodes that are joined to none"""


def draw(contract: Contract, snapshot: Snapshot, history: Sequence[HistoryPoint], path: Path) -> None:
    """Nodes, edges and clusters on two axes, and the number of clusters over time. Raises `MissingExtra`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - pictures are an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - the same
    except ModuleNotFoundError:
        raise MissingExtra("A picture of the clustering", "plot") from None

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    chart, line = figure.subplots(1, 2, width_ratios=(3, 2))
    points, labels = _on_two_axes(contract, snapshot)
    edges, cluster = snapshot.arrays["edge"], snapshot.arrays["cluster"]
    joined = np.bincount(cluster, minlength=1)[cluster] > 1
    chart.plot(*points[edges].transpose(2, 1, 0), color="0.7", linewidth=0.8, zorder=1)
    size = 12 + 60 * np.sqrt(snapshot.arrays["count"] / snapshot.arrays["count"].max())
    chart.scatter(*points[~joined].T, s=size[~joined], color=ALONE, zorder=2)
    chart.scatter(*points[joined].T, s=size[joined], c=cluster[joined], cmap="tab20", zorder=3)
    chart.set(title=f"{snapshot.nodes} nodes in {snapshot.clusters} clusters", xlabel=labels[0], ylabel=labels[1])
    line.step([moment.readings for moment in history], [moment.clusters for moment in history], where="post")
    line.set(title="clusters", xlabel="readings learnt", ylim=(0, None))
    figure.suptitle(f"{contract.federation}: {snapshot.readings:,} readings of {snapshot.clients} clients")
    figure.savefig(path, dpi=120)


def _on_two_axes(contract: Contract, snapshot: Snapshot) -> tuple[np.ndarray, tuple[str, str]]:
    """(n, 2) positions of the nodes and what the axes are."""
    unit = snapshot.arrays["weight"]
    names = [f"{feature.name} ({feature.unit})" if feature.unit else feature.name for feature in contract.features]
    if contract.width <= 2:
        values = declared_bounds(contract).from_unit(unit)
        padded = np.column_stack([values, np.zeros(len(values))])[:, :2]
        return padded, (names[0], names[1] if contract.width == 2 else "")
    return (unit - unit.mean(axis=0)) @ principal_axes(unit), ("first principal axis", "second principal axis")
