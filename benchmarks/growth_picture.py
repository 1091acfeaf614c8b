"""Draws the growth of costs from the results of the benchmark. Needs the extra `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = {
    "client_s": ("#0b62a3", "clients, processor time"),
    "server_s": ("#c9701c", "server, processor time"),
    "memory_mib": ("#3a8a3a", "memory"),
    "client_bytes": ("#7a4fa3", "state of clients"),
    "server_bytes": ("#b03a5b", "state of the server"),
    "log_bytes": ("#8a8a8a", "federation's log"),
}
COLUMNS = 3


def draw(result: dict[str, Any], picture: Path) -> None:
    """One panel for each axis: each cost relative to the one at the smallest size, and a dashed
    line for as fast."""
    rows = -(-len(result["axes"]) // COLUMNS)
    figure = Figure(figsize=(10, 3 * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for panel, axis in zip(panels, result["axes"], strict=False):
        sizes = [point["size"] for point in axis["points"]]
        for cost, (colour, label) in COLOURS.items():
            costs = [point[cost] for point in axis["points"]]
            relative = [value / max(costs[0], 1e-9) for value in costs]
            panel.plot(
                sizes, relative, color=colour, label=label, marker="o", markersize=3, linewidth=1.5
            )
        panel.plot(
            sizes,
            [size / sizes[0] for size in sizes],
            color="black",
            linestyle=(0, (2, 3)),
            label="as the size",
        )
        panel.set(xscale="log", yscale="log", title=axis["axis"], xlabel=axis["axis"])
    for panel in panels[len(result["axes"]) :]:
        panel.set_visible(False)
    panels[0].set_ylabel("relative to the smallest size")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    figure.savefig(picture)
