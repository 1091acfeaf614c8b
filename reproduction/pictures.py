"""Common parts of the pictures of experiments: the library that draws them, panels, and small files."""

from __future__ import annotations

import importlib.util
from io import BytesIO
from pathlib import Path
from typing import Any

from shoal.errors import MissingExtra

COLOURS = 64
"""colours of a PNG of the gallery: few, so that ten pictures add little to a repository"""
TABLE = {"cmap": "tab10", "vmin": 0, "vmax": 9}


def require_matplotlib() -> None:
    """Raise `MissingExtra` unless matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("drawing", "plot")


def panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """(figure, its axes (rows, columns)) with shared limits; `size` in inches. Raises `MissingExtra`."""
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra that is needed for drawing only

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, sharex=True, sharey=True)


def save_small(figure: Any, path: Path) -> None:
    """Write a PNG of few colours."""
    from PIL import Image  # noqa: PLC0415 - installed with matplotlib

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=75)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
