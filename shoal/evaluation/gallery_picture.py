"""One picture for each algorithm, two panels each."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import MissingExtra
from shoal.evaluation.gallery import DataSet, Found

COLOURS = 64
NOWHERE = "#c8c8c8"
"""of a row that no cluster is near"""


def draw_data(data: Sequence[DataSet], path: Path) -> None:
    """What each client holds. Raises `MissingExtra`."""
    figure, axes = _panels(len(data))
    for axis, each in zip(axes, data, strict=True):
        _scatter(axis, each, each.owner)
        axis.set_title(f"{each.name}: colours are clients")
    _save(figure, path)


def draw_found(data: Sequence[DataSet], found: Sequence[Found], path: Path) -> None:
    """What one algorithm makes of each data set. Raises `MissingExtra`."""
    figure, axes = _panels(len(data))
    for axis, each, clustering in zip(axes, data, found, strict=True):
        _scatter(axis, each, clustering.labels)
        for pair in clustering.edges:
            axis.plot(*clustering.centres[pair].T, color="black", linewidth=0.7)
        nodes = len(clustering.edges) > 0
        axis.scatter(*clustering.centres.T, s=5 if nodes else 70, c="black", marker="o" if nodes else "x", zorder=3)
        clusters = len(np.unique(clustering.labels[clustering.labels >= 0]))
        rounds = "" if clustering.rounds is None else f", {clustering.rounds} round{'s' * (clustering.rounds > 1)}"
        axis.set_title(f"{each.name}: {clusters} clusters{rounds}, ARI {clustering.ari:.2f}")
    _save(figure, path)


def _panels(number: int) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only who draws needs it
    except ImportError:
        raise MissingExtra("drawing", "plot") from None
    figure = Figure(figsize=(4.2 * number, 3.6), layout="constrained")
    return figure, figure.subplots(1, number, sharex=True, sharey=True)


def _save(figure: Any, path: Path) -> None:
    """With few colours, so that ten pictures are no burden to a repository."""
    from PIL import Image  # noqa: PLC0415 - matplotlib brings it along

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=75)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def _scatter(axis: Any, data: DataSet, labels: NDArray[np.int64]) -> None:
    known = labels >= 0
    axis.scatter(*data.rows[~known].T, s=4, color=NOWHERE, linewidths=0)
    axis.scatter(*data.rows[known].T, s=4, c=labels[known] % 10, cmap="tab10", vmin=0, vmax=9, linewidths=0)
    axis.set_aspect("equal")
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
    axis.title.set_fontsize(10)
