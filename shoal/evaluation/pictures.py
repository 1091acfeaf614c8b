"""The pictures of the documentation: the continual scenario, and every algorithm on the same data."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import MissingExtra
from shoal.evaluation.experiments.continual import Round
from shoal.evaluation.experiments.gallery import Clustering, DataSet

COLOURS = 64
"""of a PNG of the gallery: few, so that ten pictures add little to a repository"""
NO_CLUSTER_COLOUR = "#c8c8c8"
POINT_STEP = 5
"""one of so many points is drawn behind the nodes of the continual scenario"""
TABLE = {"cmap": "tab10", "vmin": 0, "vmax": 9}


def require_matplotlib() -> None:
    """Raise `MissingExtra` unless matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("drawing", "plot")


def draw_rounds(
    rounds: Sequence[Round],
    subsets: Mapping[str, NDArray[np.float64]],
    schedule: Sequence[Sequence[Sequence[str]]],
    path: Path,
) -> None:
    """Figures 7 to 9 of the FCAC paper in one: client 1, client 2 and server after each round of one run.

    The suffix of `path` gives the format. Raises `MissingExtra`.
    """
    figure, grid = _panels(len(rounds), 3, (11, 10.5))
    for after, shares, axes in zip(rounds, schedule, grid, strict=True):
        for number, (nodes, names, axis) in enumerate(zip(after.clients, shares, axes[:2], strict=True), start=1):
            _points(axis, np.concatenate([subsets[name] for name in names]))
            axis.scatter(*nodes.T, s=9, color="#1f4e79")
            axis.set_title(f"round {after.number}: client {number}, {'+'.join(names)}, {len(nodes)} nodes")
        _points(axes[2], np.concatenate([subsets[name] for names in shares for name in names]))
        _network(axes[2], after)
        axes[2].set_title(f"round {after.number}: server, {after.nodes} nodes, {after.clusters} clusters")
    figure.savefig(path, dpi=90)


def draw_data(data: Sequence[DataSet], path: Path) -> None:
    """The rows of each data set, coloured by client, as a PNG. Raises `MissingExtra`."""
    figure, axes = _panels(1, len(data), (4.2 * len(data), 3.6))
    for axis, each in zip(axes, data, strict=True):
        _rows(axis, each, each.owner)
        axis.set_title(f"{each.name}: colours are clients")
    _save(figure, path)


def draw_clusterings(data: Sequence[DataSet], clusterings: Sequence[Clustering], path: Path) -> None:
    """The clusters that one algorithm finds in each data set, as a PNG. Raises `MissingExtra`."""
    figure, axes = _panels(1, len(data), (4.2 * len(data), 3.6))
    for axis, each, clustering in zip(axes, data, clusterings, strict=True):
        _rows(axis, each, clustering.labels)
        nodes, edges = clustering.view.nodes, clustering.view.edges
        for pair in edges:
            axis.plot(*nodes[pair].T, color="black", linewidth=0.7)
        if len(edges):
            axis.scatter(*nodes.T, s=5, c="black", marker="o", zorder=3)
        else:
            axis.scatter(*clustering.view.centres.T, s=70, c="black", marker="x", zorder=3)
        clusters = len(np.unique(clustering.labels[clustering.labels >= 0]))
        rounds = "" if clustering.rounds is None else f", {clustering.rounds} round{'s' * (clustering.rounds > 1)}"
        if clustering.curve is None:
            axis.set_title(f"{each.name}: {clusters} clusters{rounds}, ARI {clustering.ari:.2f}")
        else:
            axis.plot(*clustering.curve.T, color="black", linewidth=1.5)
            axis.set_title(f"{each.name}: {clusters} rules{rounds}")
    _save(figure, path)


def _panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra that is needed for drawing only

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, sharex=True, sharey=True)


def _save(figure: Any, path: Path) -> None:
    """Write a PNG of few colours."""
    from PIL import Image  # noqa: PLC0415 - installed with matplotlib

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=75)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def _rows(axis: Any, data: DataSet, labels: NDArray[np.int64]) -> None:
    known = labels >= 0
    axis.scatter(*data.rows[~known].T, s=4, color=NO_CLUSTER_COLOUR, linewidths=0)
    axis.scatter(*data.rows[known].T, s=4, c=labels[known] % 10, **TABLE, linewidths=0)
    axis.set_aspect("equal")
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
    axis.title.set_fontsize(10)


def _points(axis: Any, rows: NDArray[np.float64]) -> None:
    axis.scatter(*rows[::POINT_STEP].T, s=1, color="#d5d5d5")
    axis.set_aspect("equal")
    axis.set_xlim(-0.02, 1.02)
    axis.set_ylim(-0.02, 1.02)
    axis.title.set_fontsize(9)


def _network(axis: Any, after: Round) -> None:
    weight, cluster = after.server["weight"], after.server["cluster"]
    for a, b in after.server["edge"]:
        axis.plot(*weight[[a, b]].T, color="#606060", linewidth=0.8)
    axis.scatter(*weight.T, s=16, c=cluster % 10, **TABLE, zorder=2)
