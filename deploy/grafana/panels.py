"""Builds the JSON of a dashboard for Grafana, with grafana-foundation-sdk (in the extra `dev`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    GridPos,
    VariableRefresh,
    VariableSort,
)

SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")
"""its uid in provisioning/datasources/prometheus.yml"""
WIDTH = 24
"""columns of Grafana's grid"""
STAT_HEIGHT, HEIGHT = 5, 8
"""rows of the grid"""
PER_SECOND, SECONDS, BYTES, NUMBER, SHARE = "ops", "s", "bytes", "short", "percentunit"


class Query(NamedTuple):
    """One query of a panel: one line, or one per label value."""

    expr: str
    legend: str


class Variable(NamedTuple):
    """A variable of a dashboard; its values are those of a label in Prometheus."""

    name: str
    label: str
    query: str
    multiple: bool = True


@dataclass(frozen=True)
class Panel:
    """One panel: a time series, or a `stat`, which shows only the newest value."""

    title: str
    unit: str
    description: str
    queries: Sequence[Query]
    stat: bool = False


@dataclass(frozen=True)
class Dashboard:
    """One dashboard: stats in one row, time series two in a row."""

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    panels: Sequence[Panel]


def stat_panel(title: str, unit: str, description: str, *queries: Query) -> Panel:
    """A panel of newest values."""
    return Panel(title, unit, description, queries, stat=True)


def time_series_panel(title: str, unit: str, description: str, *queries: Query) -> Panel:
    """A panel of values over time."""
    return Panel(title, unit, description, queries)


def quantiles(
    metric: str, by: str = "", selector: str = "", *, shares: Sequence[float] = (0.5, 0.95, 0.99)
) -> list[Query]:
    """Quantiles of a histogram, per value of the label `by`, of the series that match `selector`."""
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    rate = f"sum by ({labels}) (rate({metric}_bucket{selector}[$__rate_interval]))"
    return [Query(f"histogram_quantile({share}, {rate})", f"{legend}{share:.0%}") for share in shares]


def to_json(spec: Dashboard) -> str:
    """The JSON for Grafana."""
    made = (
        dashboard.Dashboard(spec.title)
        .uid(spec.uid)
        .description(spec.description)
        .tags(["shoal"])
        .editable()
        .timezone("browser")
        .time("now-30m", "now")
        .refresh("10s")
        .link(dashboard.DashboardLink("shoal").type(DashboardLinkType.DASHBOARDS).tags(["shoal"]).keep_time(True))
    )
    for variable in spec.variables:
        made = made.with_variable(_variable(variable))
    for number, (panel, position) in enumerate(zip(spec.panels, _positions(spec.panels), strict=True), 1):
        built = _stat(panel) if panel.stat else _time_series(panel)
        made = made.with_panel(built.id(number).grid_pos(position))
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(made.build()) + "\n"


def _positions(panels: Sequence[Panel]) -> list[GridPos]:
    """Stats first, side by side in one row; below them time series, two in a row."""
    stats = sum(panel.stat for panel in panels)
    edges = [WIDTH * i // stats for i in range(stats + 1)]
    row = [GridPos(h=STAT_HEIGHT, w=right - left, x=left, y=0) for left, right in pairwise(edges)]
    half = WIDTH // 2
    below = (divmod(i, 2) for i in range(len(panels) - stats))
    return row + [GridPos(h=HEIGHT, w=half, x=half * x, y=STAT_HEIGHT + HEIGHT * y) for y, x in below]


def _variable(variable: Variable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(variable.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    return made.multi(True).include_all(True) if variable.multiple else made


def _stat(panel: Panel) -> stat.Panel:
    built = stat.Panel().title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
    for ref, query in zip("ABCDEFGH", panel.queries, strict=False):
        built = built.with_target(_target(ref, query).instant())
    return built


def _time_series(panel: Panel) -> timeseries.Panel:
    built = timeseries.Panel().title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
    built = built.min(0).fill_opacity(8)
    for ref, query in zip("ABCDEFGH", panel.queries, strict=False):
        built = built.with_target(_target(ref, query).range())
    return built


def _target(ref: str, query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(ref).datasource(SOURCE).expr(query.expr).legend_format(query.legend)
