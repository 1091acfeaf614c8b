"""Runs every query of a folder of Grafana dashboards against a real Prometheus, as Grafana
would."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

RANGE_S = 120
STEP_S = 1
"""step of range queries"""
LABEL_VALUES = re.compile(r"label_values\((?P<series>.+), *(?P<label>\w+)\)")


class FilledQuery(NamedTuple):
    """One query with all variables replaced."""

    panel: str
    """dashboard / panel [values of the variables]"""
    expr: str
    instant: bool


def check_every_panel(
    url: str, folder: Path, timeout_s: float = 60.0, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Wait until every query returns data for every value of every variable; `AssertionError` if
    some never do.

    `url` is that of Prometheus, `folder` holds the dashboards' JSON. No series, or series of NaN
    only, are no data. `meanwhile` is called while some have none.
    """
    dashboards = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    }
    assert dashboards, f"no dashboards in {folder}"
    until = time.monotonic() + timeout_s
    while True:
        try:
            empty = empty_panels(url, dashboards)
        except OSError as error:
            empty = [f"{url} does not respond: {error}"]
        if not empty:
            return
        assert time.monotonic() < until, "no data for:\n" + "\n".join(empty)
        meanwhile()
        time.sleep(0.5)


def empty_panels(url: str, dashboards: Mapping[str, Any]) -> list[str]:
    """The panels and variables that return nothing at the moment."""
    scrape_s = _scrape_s(url)
    empty = []
    for name, dashboard in dashboards.items():
        values = {}
        for variable in dashboard["templating"]["list"]:
            values[variable["name"]] = values_of(url, variable)
            if not values[variable["name"]]:
                empty.append(f"{name} / variable {variable['name']}")
        assert dashboard["panels"], f"{name} has no panels"
        # An annotation is a query too, over the time that the dashboard shows.
        marks = [
            {"title": f"annotation {annotation['name']}", "targets": [annotation["target"]]}
            for annotation in dashboard.get("annotations", {}).get("list", [])
        ]
        shown = [*dashboard["panels"], *marks]
        filled = [query for panel in shown for query in queries(name, panel, values, scrape_s)]
        empty += [f"{query.panel}: {query.expr}" for query in filled if not has_data(url, query)]
    return empty


def values_of(url: str, variable: Mapping[str, Any]) -> list[str]:
    """The choices of a variable: each value, and all of them together where the dashboard offers
    that."""
    query = LABEL_VALUES.fullmatch(variable["query"])
    assert query is not None, (
        f"variable {variable['name']}: only label_values(series, label) is known here"
    )
    match = urllib.parse.urlencode({"match[]": query["series"]})
    values: list[str] = _get(url, f"/api/v1/label/{query['label']}/values?{match}")
    if variable.get("includeAll") and len(values) > 1:
        # As Grafana writes several values where a pattern is query.
        values.append("(" + "|".join(re.escape(value) for value in values) + ")")
    return values


def queries(
    dashboard: str, panel: Mapping[str, Any], values: Mapping[str, list[str]], scrape_s: float
) -> Iterator[FilledQuery]:
    """The queries of a panel, one for each combination of values of its variables."""
    assert panel["targets"], f"{dashboard} / {panel['title']}: a panel without a query"
    for target in panel["targets"]:
        expr = with_intervals(target["expr"], scrape_s)
        named = [name for name in values if re.search(rf"\${name}\b", expr)]
        for chosen in product(*(values[name] for name in named)):
            filled = expr
            for name, value in zip(named, chosen, strict=True):
                # In a pattern of PromQL a backslash is written twice.
                written = value.replace("\\", "\\\\")
                # And twice again in the replacement that `re.sub` takes.
                replacement = written.replace("\\", "\\\\")
                filled = re.sub(rf"\${name}\b", replacement, filled)
            # $1 is the first group of the pattern of a label_replace.
            assert not re.search(r"\$(?!\d)", filled), (
                f"{dashboard} / {panel['title']}: unknown variable in {filled}"
            )
            yield FilledQuery(
                f"{dashboard} / {panel['title']} {list(chosen)}",
                filled,
                bool(target.get("instant")),
            )


def with_intervals(expr: str, scrape_s: float) -> str:
    """Substitute intervals as Grafana does; the rate interval is step + scrape interval, or four
    scrape intervals."""
    rate_s = max(STEP_S + scrape_s, 4 * scrape_s)
    known = {"$__rate_interval": rate_s, "$__interval": max(STEP_S, scrape_s), "$__range": RANGE_S}
    for name, seconds in known.items():
        expr = expr.replace(name, f"{math.ceil(seconds)}s")
    return expr


def has_data(url: str, query: FilledQuery) -> bool:
    """Whether the response has a number."""
    now = time.time()
    if query.instant:
        answer = _get(
            url, "/api/v1/query?" + urllib.parse.urlencode({"query": query.expr, "time": now})
        )
        points = [series["value"] for series in answer["result"]]
    else:
        parameters = {"query": query.expr, "start": now - RANGE_S, "end": now, "step": STEP_S}
        answer = _get(url, "/api/v1/query_range?" + urllib.parse.urlencode(parameters))
        points = [point for series in answer["result"] for point in series["values"]]
    return any(math.isfinite(float(value)) for _, value in points)


def _scrape_s(url: str) -> float:
    """The shortest scrape interval of this Prometheus."""
    response = _get(url, "/api/v1/status/config")["yaml"]
    found = re.findall(r"scrape_interval: (?:(\d+)m)?(?:(\d+)s)?$", response, re.MULTILINE)
    return min(60.0 * int(minutes or 0) + int(seconds or 0) for minutes, seconds in found)


def _get(url: str, path: str) -> Any:
    try:
        with urllib.request.urlopen(url + path, timeout=900) as answer:
            response = json.load(answer)
    except urllib.error.HTTPError as rejected:
        if rejected.code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise ConnectionError("Prometheus is starting") from None
        raise AssertionError(
            f"{urllib.parse.unquote_plus(path)}: {rejected.read().decode()}"
        ) from None
    assert response["status"] == "success", response
    return response["data"]
