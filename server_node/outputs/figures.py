"""Common parts of all pictures of matplotlib: their heading, their source, and a file that appears
whole."""

from __future__ import annotations

import importlib.util
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from shoal.config.contract import Feature
from shoal.errors import MissingExtra, SettingsError
from shoal.files import atomic_file

QUIET: Final = "#566170"
HEADING_CHARS: Final = 90
"""characters of a line of the heading"""
LABEL_CHARS: Final = 18
"""characters of a line of the label of a feature, and of a value of a category"""
VALUES_MAX: Final = 5
"""values of a category that are named along a chart: of more every second or third one, and so on
"""
FORMATS: Final = ("svg", "png", "pdf")


def saved(path: Path, make: Callable[[Any], Any], source: str) -> None:
    """Save the figure that `make` makes, with `source` below, to `path`, whose suffix is the
    format.

    `make` gets matplotlib's `Figure`. Raises `SettingsError` for another suffix, or a file that
    cannot be written, and `MissingExtra` without matplotlib.
    """
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise SettingsError(f"--out {path}: the name must end in .svg, .png or .pdf")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("Drawing a picture", "plot")
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = make(Figure)
    figure.supxlabel(source, x=0.99, ha="right", fontsize=7, color=QUIET)
    try:
        with atomic_file(path, replace=True) as file, warnings.catch_warnings():
            # One for each character that no font of this machine has, with the line of this file.
            warnings.filterwarnings("ignore", message="Glyph")
            figure.savefig(file, dpi=130, format=form)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}") from None


def heading(figure: Any, text: str) -> None:
    """The heading of a figure."""
    figure.suptitle(wrapped(text, HEADING_CHARS), fontsize=15, fontweight="bold")


def without_frame(chart: Any) -> None:
    """Leave out what frames a chart."""
    for side in ("top", "right", "left"):
        chart.spines[side].set_visible(False)
    chart.tick_params(axis="y", length=0)


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most `width` characters, unless a word is longer."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False)) or text


def ticks(chart: Any, feature: Feature) -> None:
    """Few ticks along a feature; for a category the names of its values, each at its place."""
    if not feature.values:
        chart.locator_params(axis="x", nbins=3)
        return
    number = len(feature.values)
    shown = range(0, number, -(-number // VALUES_MAX))
    names = [
        textwrap.shorten(feature.values[place], LABEL_CHARS, placeholder="…") for place in shown
    ]
    chart.set_xlim(-0.5, number - 0.5)
    chart.set_xticks(shown, names, rotation=30, ha="right")
