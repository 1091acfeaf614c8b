"""The three pictures of docs/how-to/states.md. Needs the extra `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.states_streams import autoregressive, dwells
from shoal.estimators.states import States
from shoal.kernels.arrays import Floats, Ints

COLOURS: Final = ("#0b62a3", "#c9701c", "#3a8a3a", "#7a4fa3")
STRIP: Final = 0.12
"""height of a strip of states, as a part of a panel"""


def draw(folder: Path) -> list[Path]:
    """Make the pictures, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    # Names of parts from a fixed salt and no date: the same figures give the same file.
    with mpl.rc_context({"svg.hashsalt": "states", "svg.fonttype": "none", "font.size": 9}):
        return [_rhythm(folder), _levels(folder), _none(folder)]


def _rhythm(folder: Path) -> Path:
    """Segments: two speeds of the same mean and spread."""
    rng = np.random.default_rng(0)
    fast = (np.arange(9_000) // 1_500) % 3 == 1
    speed = np.where(fast, 1 / 13, 1 / 31)
    rows = np.sin(2 * np.pi * np.cumsum(speed)) + 0.3 * rng.normal(size=9_000)
    model = States().fit(rows[:, None])
    shown = slice(1_350, 1_800)
    figure, panels = _figure(1)
    _panel(panels[0], rows[shown], {"found": model.labels_[shown]}, shown.start)
    periods = " and ".join(f"{period:.0f}" for period in model.periods_)
    panels[0].set_title(f"Two rhythms: periods of {periods} rows, around a change at row 1500")
    return _saved(figure, folder / "states-rhythm.svg")


def _levels(folder: Path) -> Path:
    """Returns: two levels that overlap, told by their jumps."""
    rng = np.random.default_rng(4)
    truth = dwells(rng, 6_000, 2, 150)
    rows = autoregressive(rng, 6_000, 2, 0.9) + np.sqrt(2) * truth[:, None]
    labels = States().fit(rows).labels_
    # Numbers of states are arbitrary: the true ones are numbered as those found.
    if np.mean(labels == truth) < 0.5:
        truth = 1 - truth
    shown = slice(4_000, 5_500)
    figure, panels = _figure(1)
    strips = {"true": truth[shown], "found": labels[shown]}
    _panel(panels[0], rows[shown].mean(axis=1), strips, shown.start)
    panels[0].set_title(
        "Two levels two deviations apart in noise that is autocorrelated by .9: mean of two columns"
    )
    return _saved(figure, folder / "states-levels.svg")


def _none(folder: Path) -> Path:
    """One state: a cycle, and a random walk."""
    rng = np.random.default_rng(2)
    streams = {
        "A cycle": np.sin(2 * np.pi * np.arange(4_000) / 60) + 0.3 * rng.normal(size=4_000),
        "A random walk": np.cumsum(rng.normal(size=4_000)),
    }
    figure, panels = _figure(2)
    for panel, (name, rows) in zip(panels, streams.items(), strict=True):
        model = States().fit(rows[:, None])
        _panel(panel, rows[:1_000], {"found": model.labels_[:1_000]}, 0)
        number = "one state" if model.n_states_ == 1 else f"{model.n_states_} states"
        period = model.periods_[0]
        tail = "" if np.isnan(period) else f", with a period of {period:.0f} rows"
        panel.set_title(f"{name}: {number}{tail}")
    return _saved(figure, folder / "states-one.svg")


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8, 2.4 * panels), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(panels, 1, squeeze=False).ravel())


def _panel(panel: Axes, values: Floats, strips: dict[str, Ints], first: int) -> None:
    """Values (n,) in grey, and below them a strip of the states (n,) of each kind."""
    rows = first + np.arange(len(values))
    panel.plot(rows, values, color="#555555", linewidth=0.7)
    low = float(values.min())
    height = STRIP * float(values.max() - low)
    for number, (name, states) in enumerate(strips.items()):
        top = low - (0.5 + 1.3 * number) * height
        edges = np.concatenate([[0], np.flatnonzero(np.diff(states)) + 1, [len(states)]])
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            colour = COLOURS[int(states[begin]) % len(COLOURS)]
            panel.fill_between([first + begin, first + end], top - height, top, color=colour)
        panel.text(first + len(values) * 1.005, top - height / 2, name, va="center")
    panel.set(xlim=(first, first + len(values)), xlabel="row", yticks=[])


def _saved(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None})
    return path
