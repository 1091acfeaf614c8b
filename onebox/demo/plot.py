"""A picture of what the models of the demo have found, written to a PNG file.

It shows the readings of the office, which are public, in the colours of the clusters that each
model puts them into, and below them the sixteen days: the clusters of each model beside the hours
in which somebody was in the room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.contract import Contract
from shoal.errors import MissingExtra
from shoal.kernels.arrays import Bools, Dates, Floats, Ints
from shoal.onebox.demo.findings import Office, Result
from shoal.server_node.report.units import feature_label
from shoal.text import counted

WIDTH_INCHES = 12.0
MAPS_INCHES = 3.4
NAMES_INCHES = 0.9
DAY_ROW_INCHES = 0.34
COLOURS = 10
"""colours of the largest clusters"""
OTHER_COLOUR = "0.75"
"""colour of readings in other clusters or in none"""
PRESENT_COLOUR = "0.2"
SHOWN_EVERY = 4
"""every n-th reading is drawn in a map; the days show all"""
NAMES_MAX = 6
MINUTE = np.timedelta64(60, "s")
GAP_MAX = np.timedelta64(15, "m")
"""longest gap between two readings of one stretch of time"""


def plot(
    contract: Contract,
    office: Office,
    compared: Sequence[Result],
    names: Mapping[int, str],
    title: str,
    path: Path,
) -> None:
    """Draw a map for each model over the two features that set apart the clusters of the first one,
    and the days.

    `names`: identity of each cluster of the first model -> its name. Raises `MissingExtra` without
    matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import (  # noqa: PLC0415 - plots are an extra
            FigureCanvasAgg,
        )
        from matplotlib.figure import Figure  # noqa: PLC0415 - the same
    except ModuleNotFoundError:
        raise MissingExtra("A plot of the clustering", "plot") from None

    days_inches = DAY_ROW_INCHES * (len(compared) + 2)
    heights = (MAPS_INCHES + NAMES_INCHES, days_inches)
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    [[above], [below]] = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)
    across, up = separating_features(contract.bounds.to_unit(office.rows), compared[0].labels)
    maps = above.subplots(1, len(compared), sharex=True, sharey=True, squeeze=False)[0]
    for chart, result in zip(maps, compared, strict=True):
        _draw_map(chart, office.rows[:, [across, up]], result)
        chart.set_xlabel(feature_label(contract.features[across]))
    maps[0].set_ylabel(feature_label(contract.features[up]))
    _draw_names(above, compared[0], names)
    _draw_days(below.subplots(), office, compared)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)


def separating_features(rows: Floats, labels: Ints) -> tuple[int, int]:
    """(n, d) rows in unit coordinates, (n,) labels -> the two features over which the clusters
    differ most, compared with the spread within them. Of a single cluster, those of the largest
    spread; of a single feature, that one twice.
    """
    centres = np.zeros_like(rows)
    for cluster in np.unique(labels):
        centres[labels == cluster] = rows[labels == cluster].mean(axis=0)
    between = centres.var(axis=0)
    within = ((rows - centres) ** 2).mean(axis=0)
    # The floor divides by no zero where each cluster is a point.
    share = within
    if (between > 0).any():
        share = between / np.maximum(within, 1e-12)
    order = np.argsort(-share, kind="stable").tolist()
    return order[0], order[min(1, len(order) - 1)]


def colours(labels: Ints) -> dict[int, str]:
    """Identity of each of the largest clusters -> its colour; the largest one comes first."""
    identity, size = np.unique(labels[labels >= 0], return_counts=True)
    # Stable: of clusters of equal size the lower identity comes first, in every run.
    order = np.argsort(-size, kind="stable")[:COLOURS].tolist()
    return {int(identity[place]): f"C{rank}" for rank, place in enumerate(order)}


def stretches(chosen: Bools, time: Dates) -> list[tuple[float, float]]:
    """(n,) which readings, (n,) their times -> (begin, length) in days since 1970 of the times that
    they fill."""
    place = np.flatnonzero(chosen)
    if not len(place):
        return []
    ends = (np.diff(place) > 1) | (np.diff(time[place]) > GAP_MAX)
    first = place[np.concatenate([[True], ends])]
    last = place[np.concatenate([ends, [True]])]
    day = np.timedelta64(1, "D")
    begin = (time[first] - np.datetime64("1970-01-01")) / day
    length = (time[last] - time[first] + MINUTE) / day
    return list(zip(begin.tolist(), length.tolist(), strict=True))


def _draw_map(chart: Any, points: Floats, result: Result) -> None:
    points = points[::SHOWN_EVERY]
    labels = result.labels[::SHOWN_EVERY]
    colour_of = colours(result.labels)
    colour = [colour_of.get(label, OTHER_COLOUR) for label in labels.tolist()]
    chart.scatter(*points.T, s=5, c=colour, linewidths=0, alpha=0.6)
    clusters = counted(result.clusters, "cluster")
    price = "" if result.epsilon is None else f", epsilon {result.epsilon:g}"
    chart.set_title(
        f"{result.model} ({result.algorithm}): {clusters}\n{result.learns_from}{price}",
        fontsize="medium",
    )


def _draw_names(figure: Any, result: Result, names: Mapping[int, str]) -> None:
    """A legend of the largest clusters of a model."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - plots are an extra

    named = [
        (identity, colour)
        for identity, colour in colours(result.labels).items()
        if identity in names
    ]
    dots = [
        Line2D([], [], linestyle="", marker="o", color=colour) for _, colour in named[:NAMES_MAX]
    ]
    texts = [f"{result.model}: {names[identity]}" for identity, _ in named[:NAMES_MAX]]
    if dots:
        figure.legend(
            dots, texts, loc="outside lower center", ncols=2, fontsize="small", frameon=False
        )


def _draw_days(chart: Any, office: Office, compared: Sequence[Result]) -> None:
    """A row of time for each model, in the colours of its clusters, below the hours in which
    somebody was there."""
    chart.broken_barh(
        stretches(office.occupied == 1, office.time), (0.1, 0.8), facecolor=PRESENT_COLOUR
    )
    for row, result in enumerate(compared, start=1):
        for identity, colour in colours(result.labels).items():
            chart.broken_barh(
                stretches(result.labels == identity, office.time),
                (row + 0.1, 0.8),
                facecolor=colour,
            )
    labels = ["somebody was there", *(result.model for result in compared)]
    chart.set(ylim=(len(labels), 0), yticks=np.arange(len(labels)) + 0.5, yticklabels=labels)
    chart.xaxis_date()
    chart.set_title(
        "The sixteen days: each reading in the colour of its cluster", fontsize="medium"
    )
