"""`shoal picture`: pictures of a model for reports, from the data of the page: its newest snapshot
and its history."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from shoal.algorithms.view import ClusteringView, RegimeView
from shoal.cli.options import chosen_model, config_option, model_option
from shoal.config.contract import Feature
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import MessageRejected, SettingsError
from shoal.kernels.arrays import Floats
from shoal.protocol.history import BINS_KEPT, COARSE_S, FINE_S, NO_CLUSTER, HistoryBin, pairs
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import contract_in
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.history.changes import CHANCE, Changes
from shoal.server_node.history.store import decode_record
from shoal.server_node.outputs.changes_command import changes_figure, logged_changes
from shoal.server_node.outputs.figures import (
    LABEL_CHARS,
    QUIET,
    heading,
    saved,
    ticks,
    without_frame,
    wrapped,
)
from shoal.server_node.outputs.web.json_values import feature_label, view_of
from shoal.server_node.report.description import (
    WIDTH_MIN,
    Description,
    describe,
    distance_between,
    interval_width,
)
from shoal.server_node.report.lineage import stay_text
from shoal.transports.base import Log, latest

BARS_MAX = 96
"""bars of a band: of more bins several are one bar"""
UNTIL_S: Final = {FINE_S: 12 * 3600, COARSE_S: BINS_KEPT[COARSE_S] * COARSE_S}
"""width of bins -> how long a history is that is drawn in them; a longer one is drawn in days"""


@dataclass(frozen=True)
class PicturedCluster:
    """One known cluster."""

    identity: int
    title: str
    slot: int
    """number of its colour"""
    active: bool
    recent_share: float
    """share of the recent readings of all clusters"""
    number: int
    """number of the cluster in the view of the snapshot"""
    description: Description


@dataclass(frozen=True)
class Bands:
    """Division of the readings among clusters over time."""

    starts: Floats
    """(bars,) seconds since 1970, by the times in the updates"""
    width_s: float
    shares: dict[int, Floats]
    """identity -> (bars,) shares, 0 to 1; NaN where there were no readings at all"""


@dataclass(frozen=True)
class Picture:
    """Everything a picture may show of one model."""

    contract: ResolvedContract
    snapshot: Snapshot
    view: ClusteringView
    clusters: Sequence[PicturedCluster]
    """those with readings now first, then by share"""
    bands: Bands | None
    """None while the log has no history"""
    changes: Changes | None = None
    """changes between the two halves of the history; None where they were not requested"""

    def cluster(self, identity: int) -> PicturedCluster:
        """The known cluster with this identity. Raises `SettingsError`."""
        for cluster in self.clusters:
            if cluster.identity == identity:
                return cluster
        known = ", ".join(str(cluster.identity) for cluster in self.clusters) or "none"
        raise SettingsError(
            f"--cluster {identity}: {self.snapshot.model} has no such known cluster; it has {known}"
        )


def read_picture(log: Log, contract: ResolvedContract, model: str) -> Picture:
    """Read what is to be drawn; the log has the topics.

    Raises `SettingsError` before the first snapshot of the model, and as the log does.
    """
    record = latest(log, contract.contract.snapshots_topic).get(model.encode())
    try:
        snapshot = (
            None
            if record is None or record.value is None
            else Snapshot.decode(record.value, record.headers)
        )
    except MessageRejected as wrong:
        raise SettingsError(
            f"the newest snapshot of {model} cannot be read: {wrong.detail}"
        ) from None
    if snapshot is None:
        raise SettingsError(
            f"there is no snapshot of {model} yet; start `shoal server` and wait for one"
        )
    view = view_of(snapshot, contract)
    return Picture(
        contract,
        snapshot,
        view,
        _clusters(snapshot, view, contract),
        _bands(log, contract_in(log, contract), model),
    )


def _clusters(
    snapshot: Snapshot, view: ClusteringView, contract: ResolvedContract
) -> list[PicturedCluster]:
    described = describe(
        view, contract.contract, {one.number: one.time for one in snapshot.cluster_identities}
    )
    found: dict[int, PicturedCluster] = {}
    # Two groups may be shown as one cluster: the heavier comes later and describes it.
    for one in sorted(
        snapshot.cluster_identities, key=lambda one: float(view.centre_mass[one.number])
    ):
        if one.number in described:
            description = described[one.number]
            title = one.name or description.label
            values = (
                one.identity,
                f"{title} ({one.identity})",
                one.slot,
                one.active,
                one.recent_share,
                one.number,
            )
            found[one.identity] = PicturedCluster(*values, description)
    return sorted(
        found.values(),
        key=lambda cluster: (not cluster.active, -cluster.recent_share, cluster.identity),
    )


def _bands(log: Log, contract: ResolvedContract, model: str) -> Bands | None:
    bins: dict[int, list[HistoryBin]] = {width: [] for width in BINS_KEPT}
    for record in latest(log, contract.contract.history_topic).values():
        found = decode_record(record, contract)
        if (
            found is not None
            and isinstance(found.message, HistoryBin)
            and found.message.model == model
        ):
            bins[found.message.width_s].append(found.message)
    kept = {
        width: sorted(some, key=lambda one: one.start)
        for width, some in sorted(bins.items())
        if some
    }
    for width, some in kept.items():
        first = some[0].start
        last = some[-1].start
        is_whole = all(wider[0].start >= first // step * step for step, wider in kept.items())
        if is_whole and last - first < UNTIL_S.get(width, math.inf):
            return bands_of(some)
    return bands_of(kept[max(kept)]) if kept else None


def bands_of(bins: Sequence[HistoryBin]) -> Bands:
    """The bands of bins in the order of time, one at least; a bar is as long as most gaps between
    bins."""
    gaps = [float(after.start - before.start) for before, after in pairwise(bins)]
    span = bins[-1].start - bins[0].start + bins[0].width_s
    # A bar that is shorter than most gaps would leave white stripes where readings are rare.
    usual_gap = float(np.quantile(gaps, 0.75, method="lower")) if gaps else 0.0
    bin_s = bins[0].width_s
    width = bin_s * max(1, int(np.ceil(max(usual_gap, span / BARS_MAX) / bin_s)))
    number = max(1, int(np.ceil(span / width)))
    identities = sorted({identity for one in bins for identity, _ in pairs(one.clusters)})
    counts = np.zeros((number, len(identities)))
    for one in bins:
        # Rounding may put the end of the last bin beyond the last bar.
        bar = min(number - 1, int((one.start - bins[0].start) // width))
        for identity, readings in pairs(one.clusters):
            counts[bar, identities.index(identity)] += readings
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    starts = bins[0].start + width * np.arange(number, dtype=np.float64)
    columns = {
        identity: shares[:, j] for j, identity in enumerate(identities) if identity != NO_CLUSTER
    }
    return Bands(starts, width, columns)


COLOURS: Final = (
    *("#2f6fde", "#d9730d", "#21935a", "#8a4fd3", "#cf3645"),
    *("#0d94a3", "#cf4797", "#7d8413", "#95603c", "#5c7085"),
)
"""colours of clusters, the same as on the page"""
CLUSTERS_MAX = 12
"""clusters in one picture; the others are counted in its note"""
FEATURES_MAX = 6
"""features in one picture: those that set the clusters apart the most"""
TITLE_CHARS = 30
"""characters of a line of a cluster's title"""
ROW_IN = 0.44
"""inches of a cluster's row where features are compared"""
TITLE_LINES = 3
"""lines of the title beside the row of a cluster"""
BAND = 0.42
"""half the height of a row that a share of 100 % fills"""
THINNEST = 0.02
"""share of a row that is filled where a cluster got no readings"""
HISTOGRAM_BINS = 28


def draw(picture: Picture, what: str, cluster: int | None, path: Path) -> None:
    """Draw `what` (one of `KINDS`) to `path`, whose suffix is the format.

    Raises `SettingsError` for a cluster that is not known, and as `saved` does.
    """
    make: Mapping[str, Callable[[Any], Any]] = {
        "overview": lambda figure_type: _overview(figure_type, picture),
        "timeline": lambda figure_type: _timeline(figure_type, picture),
        "regimes": lambda figure_type: _regimes(figure_type, picture),
        "cluster": lambda figure_type: _cluster(
            figure_type, picture, picture.cluster(-1 if cluster is None else cluster)
        ),
        "changes": lambda figure_type: changes_figure(
            figure_type, _changes(picture), picture.contract.contract, CHANCE
        ),
    }
    saved(path, make[what], _source(picture))


def _changes(picture: Picture) -> Changes:
    if picture.changes is None:
        raise SettingsError(f"model {picture.snapshot.model} has no history yet")
    return picture.changes


def _overview(figure_type: Any, picture: Picture) -> Any:
    """Shares now, clusters over time, and how they differ in each feature."""
    clusters = picture.clusters[:CLUSTERS_MAX]
    features = telling_features(picture)
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


def _regimes(figure_type: Any, picture: Picture) -> Any:
    """Regimes on a ring with the changes between them, how long each lasts, and their shares over
    time.

    Raises `SettingsError` for a model whose clusters are places.
    """
    regimes = picture.view.regimes
    if regimes is None:
        raise SettingsError(
            f"the clusters of {picture.snapshot.model} are no regimes; --model names a model of them"
        )
    clusters = picture.clusters[:CLUSTERS_MAX]
    figure = figure_type(figsize=(9.6, 4.6 + ROW_IN * len(clusters)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3.6, 1 + ROW_IN * len(clusters)))
    certain = "; provisional" if regimes.provisional else ""
    heading(
        figure,
        f"{picture.contract.federation}: {regimes.n_changes} changes between regimes seen{certain}",
    )
    ring, words = above.subplots(1, 2)
    _draw_changes(ring, clusters, regimes)
    words.axis("off")
    stays = [(cluster, float(regimes.dwell[cluster.number])) for cluster in clusters]
    step = picture.snapshot.reading_s
    lasting = [
        f"about {stay_text(stay, step)} at a stretch" if stay else "for good" for _, stay in stays
    ]
    lines = [
        f"{wrapped(one.title, TITLE_CHARS)}\n{lasts}"
        for (one, _), lasts in zip(stays, lasting, strict=True)
    ]
    for place, (cluster, line) in enumerate(zip(clusters, lines, strict=True)):
        height = 1 - (place + 0.5) / max(3, len(clusters))
        words.text(0.04, height, line, transform=words.transAxes, va="center", fontsize=9)
        words.plot(
            [0.0], [height], "o", color=_colour(cluster), transform=words.transAxes, clip_on=False
        )
    _draw_bands(below.subplots(), picture, picture.bands)
    return figure


def _draw_changes(chart: Any, clusters: Sequence[PicturedCluster], regimes: RegimeView) -> None:
    """Arrows between regimes, as thick as the changes seen are many; each with their number."""
    from matplotlib.patches import FancyArrowPatch  # noqa: PLC0415 - an extra

    angles = np.pi - 2 * np.pi * np.arange(len(clusters)) / max(1, len(clusters))
    spots = np.column_stack([np.cos(angles), np.sin(angles)])
    most = max(1.0, float(regimes.changes.max(initial=0.0)))
    for i, source in enumerate(clusters):
        for j, target in enumerate(clusters):
            times = round(float(regimes.changes[source.number, target.number]))
            if i == j or not times:
                continue
            style: dict[str, Any] = {
                "connectionstyle": "arc3,rad=0.22",
                "arrowstyle": "-|>",
                "mutation_scale": 14,
            }
            width = 0.8 + 3.2 * times / most
            chart.add_patch(
                FancyArrowPatch(
                    spots[i],
                    spots[j],
                    shrinkA=16,
                    shrinkB=16,
                    lw=width,
                    color=_colour(source),
                    **style,
                )
            )
            along = spots[j] - spots[i]
            chart.text(
                *((spots[i] + spots[j]) / 2 + 0.17 * np.array([along[1], -along[0]])),
                times,
                fontsize=8,
                ha="center",
            )
    for spot, cluster in zip(spots, clusters, strict=True):
        chart.plot(*spot, "o", markersize=24, color=_colour(cluster))
        chart.text(*spot, cluster.identity, color="white", ha="center", va="center", weight="bold")
    chart.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
    chart.axis("off")


def _cluster(figure_type: Any, picture: Picture, cluster: PicturedCluster) -> Any:
    """One cluster: what it is in words, its share over time, and where it lies in each feature
    beside all others."""
    features = telling_features(picture, cluster)
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
            shown = np.clip(shown, feature.low, feature.high)
        low = float(shown.min())
        high = float(shown.max())
        edges = np.linspace(low, high if high > low else low + 1.0, HISTOGRAM_BINS + 1)
        for member, colour, alpha in ((slice(None), "0.8", 1.0), (own, _colour(cluster), 0.85)):
            chart.hist(
                shown[member], edges, weights=picture.view.mass[member], color=colour, alpha=alpha
            )
        chart.axvline(cluster.description.intervals[position].middle, color="black", linewidth=1)
        chart.set(xlabel=wrapped(feature_label(feature), LABEL_CHARS), yticks=[])
        ticks(chart, feature)
    return figure


def _shares_now(chart: Any, picture: Picture) -> None:
    clusters = picture.clusters[:CLUSTERS_MAX]
    places = np.arange(len(clusters))
    shares = [each.recent_share for each in clusters]
    colours = [_colour(each) for each in clusters]
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
        chart.text(
            0.5,
            0.5,
            "the log has no history yet",
            transform=chart.transAxes,
            ha="center",
            color=QUIET,
        )
        return
    edges = _moments(np.append(bands.starts, bands.starts[-1] + bands.width_s))
    for place, cluster in enumerate(clusters):
        shares = bands.shares.get(cluster.identity)
        if shares is None:
            continue
        first = int(np.flatnonzero(np.nan_to_num(shares) > 0)[0])
        half = np.maximum(THINNEST, BAND * np.nan_to_num(shares))[first:]
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
        chart.text(
            0.5,
            0.5,
            "the log has no history of it yet",
            transform=chart.transAxes,
            ha="center",
            color=QUIET,
        )
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
    chart.use_sticky_edges = False
    ticks(chart, feature)


def telling_features(picture: Picture, cluster: PicturedCluster | None = None) -> list[int]:
    """Positions of the features to draw, the most telling first: in which the middles of clusters
    lie apart, in widths of their intervals. Those that set `cluster` apart come before. Where
    nothing lies apart, the widest.
    """
    described = [each.description for each in picture.clusters]
    own = [] if cluster is None else [each.feature for each in cluster.description.distinctions]

    def order(j: int) -> tuple[int, float, float, int]:
        feature = picture.contract.features[j]
        intervals = [each.intervals[j] for each in described]
        middles = [interval.middle for interval in intervals]
        between = max(
            (distance_between(*pair, feature) for pair in combinations(middles, 2)), default=0.0
        )
        within = sum(interval_width(interval, feature) for interval in intervals) / max(
            1, len(intervals)
        )
        apart = between / max(within, WIDTH_MIN * (feature.high - feature.low))
        return (
            own.index(j) if j in own else len(own),
            -apart,
            -within / (feature.high - feature.low),
            j,
        )

    return sorted(range(len(picture.contract.features)), key=order)[:FEATURES_MAX]


def axis_title(cluster: PicturedCluster) -> str:
    """The title beside the row of a cluster, which has room for `TITLE_LINES`: the end of a longer
    one is left out."""
    lines = wrapped(cluster.title, TITLE_CHARS).splitlines()
    if len(lines) <= TITLE_LINES:
        return "\n".join(lines)
    end = f" … ({cluster.identity})"
    last = lines[TITLE_LINES - 1][: TITLE_CHARS - len(end)].rstrip(" ,")
    return "\n".join([*lines[: TITLE_LINES - 1], f"{last}{end}"])


def _dates(chart: Any) -> None:
    """Few dates, each with what differs from the one before, so that none covers another."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415 - an extra

    locator = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]  # matplotlib's own omission
    chart.xaxis.set_major_locator(locator)
    chart.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # as above
    chart.tick_params(axis="x", labelsize=8)


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


KINDS = ("overview", "timeline", "regimes", "changes", "cluster")


@click.command()
@config_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file; its name ends in .svg, .png or .pdf.",
)
@model_option
@click.option(
    "--of",
    "what",
    type=click.Choice(KINDS),
    default="overview",
    show_default=True,
    help="Everything at first sight, clusters over time, regimes with their stays and changes, changes between the "
    "halves of the history, or one cluster.",
)
@click.option(
    "--cluster",
    type=click.IntRange(min=0),
    metavar="ID",
    help="The cluster to draw, by its identity.",
)
def picture(file: Path, out: Path, model: str | None, what: str, cluster: int | None) -> None:
    """Draw the clusters of a model from its newest snapshot and its history, as the page shows
    them.

    With --cluster, one cluster: what it is in words, its share over time, and where it lies in each
    feature. It reads the log, on any machine that reaches it; a server may run meanwhile. Needs the
    extra `plot`.
    """
    config = load_config(file)
    contract = config.resolved
    if what == "cluster" and cluster is None:
        raise SettingsError(
            "--of cluster needs --cluster ID; the page and `shoal events list` have the identities"
        )
    chosen = chosen_model(model, contract.models, file)
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        found = read_picture(log, contract, chosen)
        if what == "changes":
            found = replace(found, changes=logged_changes(log, contract, chosen))
    draw(found, what if cluster is None else "cluster", cluster, out)
    click.echo(f"{out}: {chosen}, snapshot {found.snapshot.version}", err=True)
