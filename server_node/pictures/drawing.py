"""Draws the pictures with matplotlib: an overview, clusters over time, or one cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from server_node.pictures.data import Bands, Picture, PicturedCluster
from server_node.web.units import feature_label
from shoal.config.contract import Feature
from shoal.config.privacy import declared_bounds
from shoal.errors import MissingExtra, SettingsError
from shoal.files import atomic_file

COLOURS: Final = (
    *("#2f6fde", "#d9730d", "#21935a", "#8a4fd3", "#cf3645"),
    *("#0d94a3", "#cf4797", "#7d8413", "#95603c", "#5c7085"),
)
"""as on the page"""
QUIET = "#566170"
CLUSTERS_MAX = 12
"""clusters in one picture; the others are counted in its note"""
FEATURES_MAX = 8
BAND = 0.42
"""half the height of a row that a share of 100 % fills"""
THINNEST = 0.02
"""of a row: where a cluster got no readings"""
HISTOGRAM_BINS = 28
FORMATS: Final = ("svg", "png", "pdf")


def draw(picture: Picture, what: str, cluster: int | None, path: Path) -> None:
    """Draw `what` ("overview", "timeline" or "cluster") to `path`, whose suffix is the format.

    Raises `SettingsError` for another suffix, a cluster that is not known, or a file that cannot be written, and
    `MissingExtra` without matplotlib.
    """
    if path.suffix.removeprefix(".").lower() not in FORMATS:
        raise SettingsError(f"--out {path}: the name must end in .svg, .png or .pdf")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("Drawing a picture", "plot")
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    make: Mapping[str, Callable[[], Any]] = {
        "overview": lambda: _overview(Figure, picture),
        "timeline": lambda: _timeline(Figure, picture),
        "cluster": lambda: _cluster(Figure, picture, picture.cluster(-1 if cluster is None else cluster)),
    }
    figure = make[what]()
    figure.supxlabel(_source(picture), x=0.99, ha="right", fontsize=7, color=QUIET)
    try:
        with atomic_file(path, replace=True) as file:
            figure.savefig(file, dpi=130, format=path.suffix.removeprefix(".").lower())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}") from None


def _overview(figure_type: Any, picture: Picture) -> Any:
    """Shares now, clusters over time, and how they differ in each feature."""
    clusters = picture.clusters[:CLUSTERS_MAX]
    features = picture.contract.features[:FEATURES_MAX]
    rows = max(3.0, 0.5 * len(clusters) + 1)
    figure = figure_type(figsize=(12, rows + 0.36 * len(clusters) + 2.2), layout="constrained")
    figure.suptitle(_headline(picture), fontsize=15, fontweight="bold")
    upper, lower = figure.subfigures(2, 1, height_ratios=(rows, 0.36 * max(2, len(clusters)) + 1.2))
    now, past = upper.subplots(1, 2, width_ratios=(2, 3))
    _shares_now(now, picture)
    _draw_bands(past, picture, picture.bands)
    charts = lower.subplots(1, len(features), sharey=True, squeeze=False)[0]
    for position, (chart, feature) in enumerate(zip(charts, features, strict=True)):
        _ranges(chart, picture, position, feature)
    return figure


def _timeline(figure_type: Any, picture: Picture) -> Any:
    """A band for each cluster."""
    rows = max(3.0, 0.5 * len(picture.clusters[:CLUSTERS_MAX]) + 1)
    figure = figure_type(figsize=(12, rows + 0.8), layout="constrained")
    figure.suptitle(_headline(picture), fontsize=15, fontweight="bold")
    _draw_bands(figure.subplots(), picture, picture.bands)
    return figure


def _cluster(figure_type: Any, picture: Picture, cluster: PicturedCluster) -> Any:
    """One cluster: what it is in words, its share over time, and where it lies in each feature beside all others."""
    features = picture.contract.features[:FEATURES_MAX]
    figure = figure_type(figsize=(12, 6.2), layout="constrained")
    figure.suptitle(f"{cluster.title}: {_state(cluster)}", fontsize=15, fontweight="bold")
    upper, lower = figure.subfigures(2, 1)
    past = upper.subplots()
    past.set_title(cluster.description.text(picture.contract), fontsize=10, loc="left")
    _draw_share(past, picture.bands, cluster)
    charts = lower.subplots(1, len(features), squeeze=False)[0]
    values = declared_bounds(picture.contract).from_unit(picture.view.nodes)
    own = picture.view.cluster == cluster.number
    for position, (chart, feature) in enumerate(zip(charts, features, strict=True)):
        shown = np.clip(values[:, position], feature.low, feature.high)
        low, high = float(shown.min()), float(shown.max())
        edges = np.linspace(low, high if high > low else low + 1.0, HISTOGRAM_BINS + 1)
        for member, colour, alpha in ((slice(None), "0.8", 1.0), (own, _colour(cluster), 0.85)):
            chart.hist(shown[member], edges, weights=picture.view.mass[member], color=colour, alpha=alpha)
        chart.axvline(cluster.description.intervals[position].middle, color="black", linewidth=1)
        chart.set(xlabel=feature_label(feature), yticks=[])
    return figure


def _shares_now(chart: Any, picture: Picture) -> None:
    clusters = picture.clusters[:CLUSTERS_MAX]
    places = np.arange(len(clusters))
    shares, colours = [each.recent_share for each in clusters], [_colour(each) for each in clusters]
    chart.barh(places, shares, height=0.6, color=colours)
    for place, cluster in zip(places, clusters, strict=True):
        chart.text(cluster.recent_share + 0.01, place, _state(cluster), va="center", fontsize=9)
    chart.set(yticks=places, yticklabels=[cluster.title for cluster in clusters], xlim=(0, 1.3), xticks=[])
    chart.set_title("share of the recent readings", fontsize=10, loc="left")
    _without_frame(chart)
    if len(clusters):
        chart.invert_yaxis()


def _draw_bands(chart: Any, picture: Picture, bands: Bands | None) -> None:
    """A row for each cluster, in which a band is as thick as its share of the readings was."""
    clusters = picture.clusters[:CLUSTERS_MAX]
    chart.set_title("clusters over time: thickness is the share of the readings", fontsize=10, loc="left")
    chart.set(yticks=np.arange(len(clusters)), yticklabels=[cluster.title for cluster in clusters])
    _without_frame(chart)
    if bands is None:
        chart.text(0.5, 0.5, "the log has no history yet", transform=chart.transAxes, ha="center", color=QUIET)
        return
    edges = _moments(np.append(bands.starts, bands.starts[-1] + bands.width_s))
    for place, cluster in enumerate(clusters):
        shares = bands.shares.get(cluster.identity)
        if shares is None:
            continue
        first = int(np.flatnonzero(np.nan_to_num(shares) > 0)[0])
        half = np.maximum(THINNEST, BAND * np.nan_to_num(shares))[first:]
        thickness = np.append(half, half[-1])
        below, above = place - thickness, place + thickness
        chart.fill_between(edges[first:], below, above, step="post", color=_colour(cluster), linewidth=0)
    chart.set(xlim=(edges[0], edges[-1]), ylim=(len(clusters) - 0.5, -0.5))
    chart.tick_params(axis="x", labelsize=8)


def _draw_share(chart: Any, bands: Bands | None, cluster: PicturedCluster) -> None:
    _without_frame(chart)
    shares = None if bands is None else bands.shares.get(cluster.identity)
    if bands is None or shares is None:
        chart.text(0.5, 0.5, "the log has no history of it yet", transform=chart.transAxes, ha="center", color=QUIET)
        return
    edges = _moments(np.append(bands.starts, bands.starts[-1] + bands.width_s))
    heights = 100 * np.append(shares, shares[-1])
    chart.fill_between(edges, np.nan_to_num(heights), step="post", color=_colour(cluster), alpha=0.85, linewidth=0)
    chart.set(xlim=(edges[0], edges[-1]), ylim=(0, None), ylabel="% of the readings")


def _ranges(chart: Any, picture: Picture, position: int, feature: Feature) -> None:
    """The middle 80 % of each cluster in one feature, and its middle."""
    clusters = picture.clusters[:CLUSTERS_MAX]
    for place, cluster in enumerate(clusters):
        interval = cluster.description.intervals[position]
        chart.barh(place, interval.high - interval.low, left=interval.low, height=0.5, color=_colour(cluster))
        chart.plot([interval.middle] * 2, [place - 0.38, place + 0.38], color="black", linewidth=1.2)
    chart.set(yticks=np.arange(len(clusters)), yticklabels=[cluster.title for cluster in clusters])
    chart.set(ylim=(len(clusters) - 0.5, -0.5))
    chart.set_xlabel(feature_label(feature), fontsize=9)
    chart.tick_params(labelsize=8)
    chart.margins(x=0.05)
    chart.use_sticky_edges = False
    chart.locator_params(axis="x", nbins=4)


def _without_frame(chart: Any) -> None:
    for side in ("top", "right", "left"):
        chart.spines[side].set_visible(False)
    chart.tick_params(axis="y", length=0)


def _moments(seconds: Any) -> list[datetime]:
    return [datetime.fromtimestamp(second, UTC) for second in seconds.tolist()]


def _colour(cluster: PicturedCluster) -> str:
    return COLOURS[cluster.slot % len(COLOURS)]


def _state(cluster: PicturedCluster) -> str:
    return f"{100 * cluster.recent_share:.0f} % now" if cluster.active else "quiet"


def _headline(picture: Picture) -> str:
    active = sum(cluster.active for cluster in picture.clusters)
    text = f"{picture.contract.federation}: {active} cluster{'s' * (active != 1)} now, {len(picture.clusters)} known"
    more = len(picture.clusters) - CLUSTERS_MAX
    return f"{text}; {more} not drawn" if more > 0 else text


def _source(picture: Picture) -> str:
    snapshot = picture.snapshot
    made = datetime.fromtimestamp(snapshot.made_at, UTC)
    return f"{snapshot.model}, snapshot {snapshot.version} of {made:%Y-%m-%d %H:%M} UTC, {snapshot.readings:,} readings"
