"""Builds the JSON of a dashboard for Grafana, with grafana-foundation-sdk (in the extra `dev`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    GridPos,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")
"""its uid in provisioning/datasources/prometheus.yml"""
WIDTH = 24
"""columns of Grafana's grid"""
STAT_HEIGHT = 5
HEIGHT = 8
"""rows of the grid"""
PER_SECOND = "ops"
SECONDS = "s"
BYTES = "bytes"
NUMBER = "short"
SHARE = "percentunit"
MOMENT = "dateTimeAsLocal"


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


class Annotation(NamedTuple):
    """Marks on all time series: one for each value, which is its time in milliseconds since
    1970."""

    name: str
    expr: str
    title: str
    text: str
    colour: str


@dataclass(frozen=True)
class Panel:
    """One panel. `stat` shows only the newest value of each query, `stacked` the parts of a whole
    over time."""

    title: str
    unit: str
    description: str
    queries: Sequence[Query]
    kind: Literal["stat", "time series", "stacked", "table"] = "time series"
    transformations: Sequence[DataTransformerConfig] = ()
    """columns of a table"""
    sort_by: str = ""
    """heading of the column of a table whose largest value comes first; empty: as Prometheus gives
    them"""


@dataclass(frozen=True)
class Dashboard:
    """One dashboard: stats in one row, all other panels two in a row."""

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    panels: Sequence[Panel]
    annotations: Sequence[Annotation] = ()
    tags: Sequence[str] = ("shoal", "operations")
    span: str = "30m"
    """time shown at first, until now"""
    refresh: str = "10s"


def stat_panel(title: str, unit: str, description: str, *queries: Query) -> Panel:
    """A panel of newest values."""
    return Panel(title, unit, description, queries, "stat")


def time_series_panel(title: str, unit: str, description: str, *queries: Query) -> Panel:
    """A panel of values over time."""
    return Panel(title, unit, description, queries)


def stacked_panel(title: str, unit: str, description: str, *queries: Query) -> Panel:
    """A panel of the parts of a whole over time, one upon the other."""
    return Panel(title, unit, description, queries, "stacked")


def list_panel(
    title: str,
    unit: str,
    description: str,
    expr: str,
    columns: Mapping[str, str],
    largest_first: str = "",
) -> Panel:
    """A table with a row for each series of a query. `columns`: label, or `Value`, -> heading, from
    left to right.

    `largest_first`: the heading of the column by which rows are sorted, the largest first.
    """
    organised = {
        "excludeByName": {"Time": True},
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": dict(columns),
    }
    steps = [DataTransformerConfig("organize", options=organised)]
    return Panel(title, unit, description, [Query(expr, "")], "table", steps, largest_first)


def matrix_panel(
    title: str, unit: str, description: str, expr: str, rows: tuple[str, str], column: str
) -> Panel:
    """A table with a row for each value of one label (`rows`: it and its heading) and a column for
    each of another."""
    row, heading = rows
    options = {"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "null"}
    # Grafana heads the column of rows with the names of both labels.
    renamed = {
        "excludeByName": {},
        "indexByName": {},
        "renameByName": {f"{row}\\{column}": heading},
    }
    steps = [DataTransformerConfig("groupingToMatrix", options=options)]
    steps.append(DataTransformerConfig("organize", options=renamed))
    return Panel(title, unit, description, [Query(expr, "")], "table", steps)


def quantiles(
    metric: str, by: str = "", selector: str = "", *, shares: Sequence[float] = (0.5, 0.95, 0.99)
) -> list[Query]:
    """Quantiles of a histogram, per value of the label `by`, of the series that match
    `selector`."""
    labels = "le"
    legend = ""
    if by:
        labels = f"le, {by}"
        # Grafana puts the value of the label in the place of {{label}}.
        legend = f"{{{{{by}}}}} "
    rate = f"sum by ({labels}) (rate({metric}_bucket{selector}[$__rate_interval]))"
    return [
        Query(f"histogram_quantile({share}, {rate})", f"{legend}{share:.0%}") for share in shares
    ]


def to_json(spec: Dashboard) -> str:
    """The JSON for Grafana."""
    builder = (
        dashboard.Dashboard(spec.title)
        .uid(spec.uid)
        .description(spec.description)
        .tags(list(spec.tags))
        .editable()
        .timezone("browser")
        .time(f"now-{spec.span}", "now")
        .refresh(spec.refresh)
        .link(
            dashboard.DashboardLink("shoal")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["shoal"])
            .keep_time(True)
        )
    )
    for variable in spec.variables:
        builder = builder.with_variable(_variable(variable))
    placed = zip(spec.panels, _positions(spec.panels), strict=True)
    for number, (panel, position) in enumerate(placed, 1):
        builder = builder.with_panel(_BUILDERS[panel.kind](panel).id(number).grid_pos(position))
    content = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()))
    if spec.annotations:
        annotations = [_annotation(annotation) for annotation in spec.annotations]
        content["annotations"] = {"list": annotations}
    return json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def _positions(panels: Sequence[Panel]) -> list[GridPos]:
    """Panels before the first stat in full width, the stats side by side in one row, and below them
    all others, two in a row."""
    is_stat = [panel.kind == "stat" for panel in panels]
    leading = is_stat.index(True)
    stats = sum(is_stat)
    positions = [GridPos(h=HEIGHT, w=WIDTH, x=0, y=HEIGHT * place) for place in range(leading)]
    top = HEIGHT * leading
    edges = [WIDTH * place // stats for place in range(stats + 1)]
    for left, right in pairwise(edges):
        positions.append(GridPos(h=STAT_HEIGHT, w=right - left, x=left, y=top))
    top += STAT_HEIGHT
    half = WIDTH // 2
    for place in range(len(panels) - leading - stats):
        row, column = divmod(place, 2)
        positions.append(GridPos(h=HEIGHT, w=half, x=half * column, y=top + HEIGHT * row))
    return positions


def _variable(variable: Variable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(variable.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if variable.multiple:
        made = made.multi(True).include_all(True)
    return made


def _stat(panel: Panel) -> stat.Panel:
    built = (
        stat.Panel()
        .title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .datasource(SOURCE)
    )
    for ref, query in zip("ABCDEFGH", panel.queries, strict=False):
        built = built.with_target(_target(ref, query).instant())
    return built


def _time_series(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .datasource(SOURCE)
    )
    built = built.min(0).fill_opacity(8)
    for ref, query in zip("ABCDEFGH", panel.queries, strict=False):
        built = built.with_target(_target(ref, query).range())
    return built


def _stacked(panel: Panel) -> timeseries.Panel:
    stacking = common.StackingConfig().mode(StackingMode.NORMAL)
    return _time_series(panel).stacking(stacking).fill_opacity(60).max(1)


def _table(panel: Panel) -> table.Panel:
    (query,) = panel.queries
    built = (
        table.Panel()
        .title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .datasource(SOURCE)
    )
    built = built.with_target(_target("A", query).instant().format(PromQueryFormat.TABLE))
    if panel.sort_by:
        built = built.sort_by(
            [common.TableSortByFieldState().display_name(panel.sort_by).desc(True)]
        )
    for step in panel.transformations:
        built = built.with_transformation(step)
    return built


_BUILDERS: Final[Mapping[str, Callable[[Panel], stat.Panel | timeseries.Panel | table.Panel]]] = {
    "stat": _stat,
    "time series": _time_series,
    "stacked": _stacked,
    "table": _table,
}


def _annotation(annotation: Annotation) -> dict[str, object]:
    """Annotations of Prometheus, written by hand: the library has no class for them."""
    return {
        "name": annotation.name,
        "datasource": {"type": SOURCE.type_val, "uid": SOURCE.uid},
        "enable": True,
        "hide": False,
        "iconColor": annotation.colour,
        "target": {"refId": "Anno", "expr": annotation.expr, "interval": ""},
        "titleFormat": annotation.title,
        "textFormat": annotation.text,
        "useValueForTime": True,
    }


def _target(ref: str, query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(ref)
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
    )
