"""Pictures of a model for reports, drawn with matplotlib: what the page shows, on paper."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from shoal.algorithms.view import StatesView
from shoal.config.contract import Feature
from shoal.errors import SettingsError
from shoal.server_node.history.changes import CHANCE, Changes
from shoal.server_node.outputs.changes_command import changes_figure
from shoal.server_node.outputs.figures import (
    LABEL_CHARS,
    QUIET,
    heading,
    saved,
    ticks,
    without_frame,
    wrapped,
)
from shoal.server_node.outputs.picture_data import Bands, Picture, PicturedCluster
from shoal.server_node.report.description import WIDTH_MIN, distance_between, interval_width
from shoal.server_node.report.lineage.clusters import dwell_text
from shoal.server_node.report.units import feature_label

KINDS: Final = ("overview", "timeline", "states", "changes", "cluster")
COLOURS: Final = (
    "#2f6fde",
    "#d9730d",
    "#21935a",
    "#8a4fd3",
    "#cf3645",
    "#0d94a3",
    "#cf4797",
    "#7d8413",
    "#95603c",
    "#5c7085",
)
"""colours of clusters, the same as on the page"""
CLUSTERS_MAX: Final = 12
"""clusters in one picture; the others are counted in its note"""
FEATURES_MAX: Final = 6
"""features in one picture: those that set the clusters apart the most"""
TITLE_CHARS: Final = 30
"""characters of a line of a cluster's title"""
ROW_IN: Final = 0.44
"""inches of a cluster's row where features are compared"""
TITLE_LINES: Final = 3
"""lines of the title beside the row of a cluster"""
BAND: Final = 0.42
"""half the height of a row that a share of 100 % fills"""
THINNEST: Final = 0.02
"""share of a row that is filled where a cluster got no readings"""
HISTOGRAM_BINS: Final = 28


def draw(picture: Picture, what: str, cluster: int | None, path: Path) -> None:
    """Draw `what` (one of `KINDS`) to `path`, whose suffix is the format.

    Raises `SettingsError` for a cluster that is not known, and as `saved` does.
    """

    def make(figure_type: Any) -> Any:
        match what:
            case "timeline":
                return _timeline(figure_type, picture)
            case "states":
                return _states(figure_type, picture)
            case "changes":
                changes = _changes(picture)
                return changes_figure(figure_type, changes, picture.contract.contract, CHANCE)
            case "cluster":
                assert cluster is not None, "the command refuses it without one"
                return _cluster(figure_type, picture, picture.cluster(cluster))
        return _overview(figure_type, picture)

    saved(path, make, _source(picture))


def _changes(picture: Picture) -> Changes:
    if picture.changes is None:
        raise SettingsError(f"model {picture.snapshot.model} has no history yet")
    return picture.changes


def _overview(figure_type: Any, picture: Picture) -> Any:
    """Shares now, clusters over time, and how they differ in each feature."""
    clusters = picture.clusters[:CLUSTERS_MAX]
    features = distinct_features(picture)
    rows = max(3.0, 0.5 * len(clusters) + 1)
    figure = figure_type(figsize=(12, rows + ROW_IN * len(clusters) + 2.2), layout="constrained")
    heading(figure, _headline(picture))
    upper, lower = figure.subfigures(
        2, 1, height_ratios=(rows, ROW_IN * max(2, len(clusters)) + 1.2)
    )
    now, past = upper.subplots(1, 2, width_ratios=(2, 3))
    _shares_now(now, picture)
    _draw_bands(past, picture, picture.bands)
    charts = lower.subplots(1, len(features), sharey=True, squeeze=False)[0]
    for chart, position in zip(charts, features, strict=True):
        _ranges(chart, picture, position, picture.contract.features[position])
    return figure


def _timeline(figure_type: Any, picture: Picture) -> Any:
    """A band for each cluster."""
    rows = max(3.0, 0.5 * len(picture.clusters[:CLUSTERS_MAX]) + 1)
    figure = figure_type(figsize=(12, rows + 0.8), layout="constrained")
    heading(figure, _headline(picture))
    _draw_bands(figure.subplots(), picture, picture.bands)
    return figure


def _states(figure_type: Any, picture: Picture) -> Any:
    """States on a ring with the changes between them, how long each lasts, and their shares over
    time.

    Raises `SettingsError` for a model whose clusters are places.
    """
    states = picture.view.states
    if states is None:
        raise SettingsError(
            f"the clusters of {picture.snapshot.model} are no states; --model names a model of them"
        )
    clusters = picture.clusters[:CLUSTERS_MAX]
    figure = figure_type(figsize=(9.6, 4.6 + ROW_IN * len(clusters)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3.6, 1 + ROW_IN * len(clusters)))
    text = f"{picture.contract.federation}: {states.n_changes} changes between states seen"
    if states.provisional:
        text += "; provisional"
    heading(figure, text)
    ring, legend = above.subplots(1, 2)
    _draw_changes(ring, clusters, states)
    legend.axis("off")
    for place, cluster in enumerate(clusters):
        dwell = float(states.dwell[cluster.number])
        duration = "for good"
        if dwell:
            duration = f"about {dwell_text(dwell, picture.snapshot.reading_s)} at a stretch"
        line = f"{wrapped(cluster.title, TITLE_CHARS)}\n{duration}"
        height = 1 - (place + 0.5) / max(3, len(clusters))
        legend.text(0.04, height, line, transform=legend.transAxes, va="center", fontsize=9)
        legend.plot(
            [0.0], [height], "o", color=_colour(cluster), transform=legend.transAxes, clip_on=False
        )
    _draw_bands(below.subplots(), picture, picture.bands)
    return figure


def _draw_changes(chart: Any, clusters: Sequence[PicturedCluster], states: StatesView) -> None:
    """Arrows between states, as thick as the changes seen are many; each with their number."""
    from matplotlib.patches import FancyArrowPatch  # noqa: PLC0415 - an extra

    angles = np.pi - 2 * np.pi * np.arange(len(clusters)) / max(1, len(clusters))
    spots = np.column_stack([np.cos(angles), np.sin(angles)])
    most = max(1.0, float(states.changes.max(initial=0.0)))
    for i, source in enumerate(clusters):
        for j, target in enumerate(clusters):
            times = round(float(states.changes[source.number, target.number]))
            if i == j or not times:
                continue
            arrow = FancyArrowPatch(
                spots[i],
                spots[j],
                shrinkA=16,
                shrinkB=16,
                lw=0.8 + 3.2 * times / most,
                color=_colour(source),
                connectionstyle="arc3,rad=0.22",
                arrowstyle="-|>",
                mutation_scale=14,
            )
            chart.add_patch(arrow)
            # The number stands beside the middle of its arrow, on the side to which it bends.
            along = spots[j] - spots[i]
            beside = (spots[i] + spots[j]) / 2 + 0.17 * np.array([along[1], -along[0]])
            chart.text(*beside, times, fontsize=8, ha="center")
    for spot, cluster in zip(spots, clusters, strict=True):
        chart.plot(*spot, "o", markersize=24, color=_colour(cluster))
        chart.text(*spot, cluster.identity, color="white", ha="center", va="center", weight="bold")
    chart.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
    chart.axis("off")


def _cluster(figure_type: Any, picture: Picture, cluster: PicturedCluster) -> Any:
    """One cluster: what it is in words, its share over time, and where it lies in each feature
    beside all others."""
    features = distinct_features(picture, cluster)
    figure = figure_type(figsize=(12, 6.2), layout="constrained")
    heading(figure, f"{cluster.title}: {_state(cluster)}")
    upper, lower = figure.subfigures(2, 1)
    past = upper.subplots()
    past.set_title(
        wrapped(cluster.description.text(picture.contract.contract), 130), fontsize=10, loc="left"
    )
    _draw_share(past, picture.bands, cluster)
    charts = lower.subplots(1, len(features), squeeze=False)[0]
    values = picture.contract.bounds.shown(picture.view.nodes)
    own = picture.view.cluster == cluster.number
    for chart, position in zip(charts, features, strict=True):
        feature = picture.contract.features[position]
        shown = values[:, position]
        if feature.kind != "circular":
            # Noise can put nodes outside of the bounds, where no value can be.
            shown = np.clip(shown, feature.low, feature.high)
        low = float(shown.min())
        high = float(shown.max())
        # Where all values are equal.
        if high <= low:
            high = low + 1.0
        edges = np.linspace(low, high, HISTOGRAM_BINS + 1)
        mass = picture.view.mass
        chart.hist(shown, edges, weights=mass, color="0.8")
        chart.hist(shown[own], edges, weights=mass[own], color=_colour(cluster), alpha=0.85)
        chart.axvline(cluster.description.intervals[position].middle, color="black", linewidth=1)
        chart.set(xlabel=wrapped(feature_label(feature), LABEL_CHARS), yticks=[])
        ticks(chart, feature)
    return figure


def _shares_now(chart: Any, picture: Picture) -> None:
    clusters = picture.clusters[:CLUSTERS_MAX]
    places = np.arange(len(clusters))
    shares = [cluster.recent_share for cluster in clusters]
    colours = [_colour(cluster) for cluster in clusters]
    chart.barh(places, shares, height=0.6, color=colours)
    for place, cluster in zip(places, clusters, strict=True):
        chart.text(cluster.recent_share + 0.01, place, _state(cluster), va="center", fontsize=9)
    chart.set(
        yticks=places,
        yticklabels=[axis_title(cluster) for cluster in clusters],
        xlim=(0, 1.3),
        xticks=[],
    )
    chart.set_title("share of the recent readings", fontsize=10, loc="left")
    without_frame(chart)
    if len(clusters):
        chart.invert_yaxis()


def _draw_bands(chart: Any, picture: Picture, bands: Bands | None) -> None:
    """A row for each cluster, in which a band is as thick as its share of the readings was."""
    clusters = picture.clusters[:CLUSTERS_MAX]
    chart.set_title(
        "clusters over time: thickness is the share of the readings", fontsize=10, loc="left"
    )
    chart.set(
        yticks=np.arange(len(clusters)), yticklabels=[axis_title(cluster) for cluster in clusters]
    )
    without_frame(chart)
    if bands is None:
        _note(chart, "the log has no history yet")
        return
    edges = _moments(np.append(bands.starts, bands.starts[-1] + bands.width_s))
    for place, cluster in enumerate(clusters):
        shares = bands.shares.get(cluster.identity)
        if shares is None:
            continue
        # There is one: a cluster is among the shares only if some bin has readings of it.
        first = int(np.flatnonzero(np.nan_to_num(shares) > 0)[0])
        half = np.maximum(THINNEST, BAND * np.nan_to_num(shares))[first:]
        # A step at each edge needs a value for the last one, too.
        thickness = np.append(half, half[-1])
        below = place - thickness
        above = place + thickness
        chart.fill_between(
            edges[first:], below, above, step="post", color=_colour(cluster), linewidth=0
        )
    chart.set(xlim=(edges[0], edges[-1]), ylim=(len(clusters) - 0.5, -0.5))
    _dates(chart)


def _draw_share(chart: Any, bands: Bands | None, cluster: PicturedCluster) -> None:
    without_frame(chart)
    shares = None if bands is None else bands.shares.get(cluster.identity)
    if bands is None or shares is None:
        _note(chart, "the log has no history of it yet")
        return
    edges = _moments(np.append(bands.starts, bands.starts[-1] + bands.width_s))
    heights = 100 * np.append(shares, shares[-1])
    chart.fill_between(
        edges, np.nan_to_num(heights), step="post", color=_colour(cluster), alpha=0.85, linewidth=0
    )
    chart.set(xlim=(edges[0], edges[-1]), ylim=(0, None), ylabel="% of the readings")
    _dates(chart)


def _ranges(chart: Any, picture: Picture, position: int, feature: Feature) -> None:
    """The middle 80 % of each cluster in one feature, and its middle."""
    clusters = picture.clusters[:CLUSTERS_MAX]
    for place, cluster in enumerate(clusters):
        interval = cluster.description.intervals[position]
        ends = [(interval.low, interval.high)]
        if interval.high < interval.low:
            ends = [(0.0, interval.high), (interval.low, feature.period)]
        for low, high in ends:
            chart.barh(place, high - low, left=low, height=0.5, color=_colour(cluster))
        chart.plot(
            [interval.middle] * 2, [place - 0.38, place + 0.38], color="black", linewidth=1.2
        )
    chart.set(
        yticks=np.arange(len(clusters)), yticklabels=[axis_title(cluster) for cluster in clusters]
    )
    chart.set(ylim=(len(clusters) - 0.5, -0.5))
    chart.set_xlabel(wrapped(feature_label(feature), LABEL_CHARS), fontsize=9)
    chart.tick_params(labelsize=8)
    chart.margins(x=0.05)
    # Bars stick to 0, which would take the margin away there.
    chart.use_sticky_edges = False
    ticks(chart, feature)


def _note(chart: Any, text: str) -> None:
    """A text in the middle of a chart that has nothing to show."""
    chart.text(0.5, 0.5, text, transform=chart.transAxes, ha="center", color=QUIET)


def distinct_features(picture: Picture, cluster: PicturedCluster | None = None) -> list[int]:
    """Positions of the features to draw, `FEATURES_MAX` at most.

    Those that set `cluster` apart come first. Then those in which the middles of clusters lie apart
    the most, in widths of their intervals; where nothing lies apart, the widest.
    """
    own: list[int] = []
    if cluster is not None:
        own = [distinction.feature for distinction in cluster.description.distinctions]

    def order(j: int) -> tuple[int, float, float, int]:
        feature = picture.contract.features[j]
        span = feature.high - feature.low
        intervals = [pictured.description.intervals[j] for pictured in picture.clusters]
        middles = [interval.middle for interval in intervals]
        distances = (distance_between(*pair, feature) for pair in combinations(middles, 2))
        between = max(distances, default=0.0)
        widths = sum(interval_width(interval, feature) for interval in intervals)
        within = widths / max(1, len(intervals))
        apart = between / max(within, WIDTH_MIN * span)
        rank = own.index(j) if j in own else len(own)
        return (rank, -apart, -within / span, j)

    return sorted(range(len(picture.contract.features)), key=order)[:FEATURES_MAX]


def axis_title(cluster: PicturedCluster) -> str:
    """The title beside the row of a cluster, which has room for `TITLE_LINES`.

    The end of a longer one is left out, but not the identity.
    """
    lines = wrapped(cluster.title, TITLE_CHARS).splitlines()
    if len(lines) <= TITLE_LINES:
        return "\n".join(lines)
    end = f" … ({cluster.identity})"
    last = lines[TITLE_LINES - 1][: TITLE_CHARS - len(end)].rstrip(" ,")
    return "\n".join([*lines[: TITLE_LINES - 1], f"{last}{end}"])


def _dates(chart: Any) -> None:
    """Few dates, each with what differs from the one before, so that none covers another."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415 - an extra

    # matplotlib has no types of these two.
    locator = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]  # untyped
    formatter = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]  # untyped
    chart.xaxis.set_major_locator(locator)
    chart.xaxis.set_major_formatter(formatter)
    chart.tick_params(axis="x", labelsize=8)


def _moments(seconds: Any) -> list[datetime]:
    return [datetime.fromtimestamp(second, UTC) for second in seconds.tolist()]


def _colour(cluster: PicturedCluster) -> str:
    return COLOURS[cluster.slot % len(COLOURS)]


def _state(cluster: PicturedCluster) -> str:
    if cluster.active:
        return f"{100 * cluster.recent_share:.0f} % now"
    return "quiet"


def _headline(picture: Picture) -> str:
    active = sum(cluster.active for cluster in picture.clusters)
    plural = "" if active == 1 else "s"
    known = len(picture.clusters)
    text = f"{picture.contract.federation}: {active} cluster{plural} now, {known} known"
    if known > CLUSTERS_MAX:
        text += f"; {known - CLUSTERS_MAX} not drawn"
    return text


def _source(picture: Picture) -> str:
    snapshot = picture.snapshot
    made = datetime.fromtimestamp(snapshot.made_at, UTC)
    return (
        f"{snapshot.model}, snapshot {snapshot.version} of {made:%Y-%m-%d %H:%M} UTC, "
        f"{snapshot.readings:,} readings"
    )
