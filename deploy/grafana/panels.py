"""From what a dashboard is to show to the JSON for Grafana, by grafana-foundation-sdk (in the extra `dev`)."""

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
"""as provisioning/datasources/prometheus.yml names it"""
WIDTH = 24
"""columns of Grafana's grid"""
NUMBER_HEIGHT, HEIGHT = 5, 8
"""rows of it"""
PER_SECOND, SECONDS, BYTES, NUMBER, SHARE = "ops", "s", "bytes", "short", "percentunit"


class Query(NamedTuple):
    """One line, or several, of a panel."""

    expr: str
    legend: str


class Variable(NamedTuple):
    """What a dashboard lets one choose; its values are what Prometheus knows."""

    name: str
    label: str
    query: str
    several: bool = True


@dataclass(frozen=True)
class Shown:
    """One panel. A `number` shows only the newest value, large."""

    title: str
    unit: str
    about: str
    queries: Sequence[Query]
    number: bool = False


@dataclass(frozen=True)
class Board:
    """One dashboard: numbers in one row, curves two in a row."""

    uid: str
    title: str
    about: str
    variables: Sequence[Variable]
    panels: Sequence[Shown]


def numbers(title: str, unit: str, about: str, *queries: Query) -> Shown:
    """A panel of numbers."""
    return Shown(title, unit, about, queries, number=True)


def curves(title: str, unit: str, about: str, *queries: Query) -> Shown:
    """A panel of curves over time."""
    return Shown(title, unit, about, queries)


def quantiles(
    metric: str, by: str = "", chosen: str = "", *, shares: Sequence[float] = (0.5, 0.95, 0.99)
) -> list[Query]:
    """Quantiles of a histogram; `by` is a label to tell apart, `chosen` a selector."""
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    rate = f"sum by ({labels}) (rate({metric}_bucket{chosen}[$__rate_interval]))"
    return [Query(f"histogram_quantile({share}, {rate})", f"{legend}{share:.0%}") for share in shares]


def written(board: Board) -> str:
    """The JSON that Grafana is given."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["shoal"])
        .editable()
        .timezone("browser")
        .time("now-30m", "now")
        .refresh("10s")
        .link(dashboard.DashboardLink("shoal").type(DashboardLinkType.DASHBOARDS).tags(["shoal"]).keep_time(True))
    )
    for variable in board.variables:
        made = made.with_variable(_variable(variable))
    for number, (shown, place) in enumerate(zip(board.panels, _places(board.panels), strict=True), 1):
        panel = _number(shown) if shown.number else _curves(shown)
        made = made.with_panel(panel.id(number).grid_pos(place))
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(made.build()) + "\n"


def _places(panels: Sequence[Shown]) -> list[GridPos]:
    """Numbers first, as wide as they fit in one row; below them curves, two in a row."""
    first = sum(shown.number for shown in panels)
    edges = [WIDTH * place // first for place in range(first + 1)]
    row = [GridPos(h=NUMBER_HEIGHT, w=right - left, x=left, y=0) for left, right in pairwise(edges)]
    half = WIDTH // 2
    below = (divmod(place, 2) for place in range(len(panels) - first))
    return row + [GridPos(h=HEIGHT, w=half, x=half * x, y=NUMBER_HEIGHT + HEIGHT * y) for y, x in below]


def _variable(variable: Variable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(variable.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    return made.multi(True).include_all(True) if variable.several else made


def _number(shown: Shown) -> stat.Panel:
    panel = stat.Panel().title(shown.title).description(shown.about).unit(shown.unit).datasource(SOURCE)
    for ref, query in zip("ABCDEFGH", shown.queries, strict=False):
        panel = panel.with_target(_target(ref, query).instant())
    return panel


def _curves(shown: Shown) -> timeseries.Panel:
    panel = timeseries.Panel().title(shown.title).description(shown.about).unit(shown.unit).datasource(SOURCE)
    panel = panel.min(0).fill_opacity(8)
    for ref, query in zip("ABCDEFGH", shown.queries, strict=False):
        panel = panel.with_target(_target(ref, query).range())
    return panel


def _target(ref: str, query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(ref).datasource(SOURCE).expr(query.expr).legend_format(query.legend)
