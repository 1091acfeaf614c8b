"""Draws the number of clusters that learners show over a stream, from the results of the
benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.steadiness.judge import STEP_ROWS
from benchmarks.steadiness.streams import changing, stationary

STREAMS = ("blobs K=10 d=2", "births", "class by class d=2")
COLOURS = {"FCAC": "#c9701c", "HDBSCAN, last 2 000 rows": "#8a8a8a", "cluster_tree": "#0b62a3"}
"""the learners drawn, the last one on top"""


@click.command()
@click.argument("result", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("picture", type=click.Path(path_type=Path, dir_okay=False))
def main(result: Path, picture: Path) -> None:
    """Draw PICTURE from RESULT, the steadiness.json of a run with all streams."""
    draw(json.loads(result.read_text(encoding="utf-8")), picture)


def draw(result: dict[str, Any], picture: Path) -> None:
    """One panel for each of `STREAMS`: what is true, dashed, and the number each learner showed at
    each check."""
    # Loaded here, so that the panels can be tested without the extra 'plot'.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - the extra plot
    from matplotlib.figure import Figure  # noqa: PLC0415 - the extra plot

    figure = Figure(figsize=(10, 3), layout="constrained")
    FigureCanvasAgg(figure)
    seed = result["judged"]["seeds"][0]
    for axes, name in zip(figure.subplots(1, len(STREAMS)), STREAMS, strict=True):
        lines, truth = panel(result, name, seed)
        rows = STEP_ROWS * np.arange(1, len(truth) + 1)
        for learner, counts in lines.items():
            axes.plot(rows, counts, color=COLOURS[learner], label=learner, linewidth=1.5)
        axes.plot(
            rows, truth, color="black", label="true so far", linewidth=1, linestyle=(0, (2, 3))
        )
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set(title=name, xlabel="rows", ylim=(0, None))
    figure.axes[0].set_ylabel("clusters shown")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
    )
    figure.savefig(picture, dpi=110)


def panel(result: dict[str, Any], name: str, seed: int) -> tuple[dict[str, list[int]], list[int]]:
    """The counts of each learner on a stream, and how many true clusters there have been, at every
    check.

    Raises `click.UsageError` if the result does not have the stream.
    """
    own = {
        verdict["learner"]: verdict
        for verdict in result["verdicts"]
        if (verdict["stream"], verdict["seed"]) == (name, seed)
    }
    lines = {learner: own[learner]["counts"] for learner in COLOURS if learner in own}
    if not lines:
        raise click.UsageError(
            f"the result has no verdict on {name!r}: run the benchmark with all streams"
        )
    first = next(iter(own.values()))
    truth = {**stationary(first["rows"]), **changing(first["rows"])}[name](seed).truth
    return lines, [
        len(np.unique(truth[:end])) for end in range(STEP_ROWS, len(truth) + 1, STEP_ROWS)
    ]


if __name__ == "__main__":
    main()
