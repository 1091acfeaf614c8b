"""Figures 7 to 9 of the FCAC paper in one picture: client 1, client 2 and server after each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import MissingExtra
from shoal.evaluation.continual import SCHEDULE, Round

THINNED = 5
"""one of so many points is drawn behind the nodes"""


def draw(rounds: Sequence[Round], subsets: Mapping[str, NDArray[np.float64]], path: Path) -> None:
    """Write the picture of one run; the ending of `path` says the format. Raises `MissingExtra`."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only who draws needs it
    except ImportError:
        raise MissingExtra("drawing", "plot") from None
    figure = Figure(figsize=(11, 10.5), layout="constrained")
    grid = figure.subplots(len(rounds), 3, sharex=True, sharey=True)
    for row, shares, axes in zip(rounds, SCHEDULE, grid, strict=True):
        for number, (nodes, names, axis) in enumerate(zip(row.clients, shares, axes[:2], strict=True), start=1):
            _points(axis, np.concatenate([subsets[name] for name in names]))
            axis.scatter(*nodes.T, s=9, color="#1f4e79")
            axis.set_title(f"round {row.number}: client {number}, {'+'.join(names)}, {len(nodes)} nodes")
        _points(axes[2], np.concatenate([subsets[name] for names in shares for name in names]))
        _network(axes[2], row)
        axes[2].set_title(f"round {row.number}: server, {row.nodes} nodes, {row.clusters} clusters")
    figure.savefig(path, dpi=90)


def _points(axis: Any, rows: NDArray[np.float64]) -> None:
    axis.scatter(*rows[::THINNED].T, s=1, color="#d5d5d5")
    axis.set_aspect("equal")
    axis.set_xlim(-0.02, 1.02)
    axis.set_ylim(-0.02, 1.02)
    axis.title.set_fontsize(9)


def _network(axis: Any, row: Round) -> None:
    weight, cluster = row.server["weight"], row.server["cluster"]
    for a, b in row.server["edge"]:
        axis.plot(*weight[[a, b]].T, color="#606060", linewidth=0.8)
    axis.scatter(*weight.T, s=16, c=cluster % 10, cmap="tab10", vmin=0, vmax=9, zorder=2)
