"""The Grafana dashboards: the committed JSON is up to date, and every panel has data from a running
federation."""

from __future__ import annotations

import json
import re
import struct
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import start_http_server

from deploy.grafana.clusters import CENTRES
from deploy.grafana.dashboards import DASHBOARDS, FOLDER
from deploy.grafana.panels import Dashboard, to_json
from shoal.config.settings import load_config
from shoal.onebox.federation import OneBox
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.topics import REJECTED
from shoal.transports import open_log
from shoal.transports.base import Log, Record, beginning
from tests.deploy.dashboard_queries import check_every_panel, empty_panels, queries, with_intervals
from tests.deploy.monitored_federation import (
    CLIENTS,
    MODELS,
    NAME,
    SECRET,
    SECRET_TEXT,
    MonitoredFederation,
    alerts,
    fetched,
    monitored_federation,
    numbers_in,
    publish_nonsense,
    scraped,
    until,
)
from tests.house.masked_federation import MaskedFederation
from tests.house.small_federation import CLIENTS as OF_STATES
from tests.house.small_federation import clock
from tests.house.test_states import federation_file, write_planted
from tests.kafka_broker import free_ports

TRANSFORMATIONS = {
    "organize": {"excludeByName", "indexByName", "renameByName"},
    "groupingToMatrix": {"rowField", "columnField", "valueField", "emptyValue"},
}
"""id -> its options"""
OF_CLUSTERS = {"ShoalClusterBorn", "ShoalClusterGone", "ShoalClusterQuiet", "ShoalClustersJumping"}
"""alerts that tell of what the readings show"""
COMMITTED = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.json")
}


@pytest.fixture(scope="module")
def federation(
    tmp_path_factory: pytest.TempPathFactory, prometheus: str
) -> Iterator[MonitoredFederation]:
    with monitored_federation(tmp_path_factory.mktemp("monitored"), prometheus) as federation:
        publish_nonsense(federation)
        yield federation


# The JSON for Grafana.


def test_exactly_these_dashboards_are_committed() -> None:
    assert set(COMMITTED) == set(DASHBOARDS)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_committed_json_is_up_to_date(name: str) -> None:
    committed = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert committed == to_json(DASHBOARDS[name]), "run python -m deploy.grafana.dashboards"


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS.keys())
def test_panels_do_not_overlap_and_have_descriptions(dashboard: Dashboard) -> None:
    panels = json.loads(to_json(dashboard))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    occupied = set()
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & occupied, panel["title"]
        occupied |= cells


def test_the_provisioned_data_source_is_the_one_the_dashboards_query() -> None:
    source = (FOLDER.parent / "provisioning" / "datasources" / "prometheus.yml").read_text(
        encoding="utf-8"
    )
    assert "uid: prometheus\n" in source
    for dashboard in COMMITTED.values():
        annotations = dashboard.get("annotations", {}).get("list", [])
        targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
        for part in (
            *dashboard["panels"],
            *targets,
            *dashboard["templating"]["list"],
            *annotations,
        ):
            assert part["datasource"] == {"type": "prometheus", "uid": "prometheus"}
    provider = (FOLDER.parent / "provisioning" / "dashboards" / "shoal.yml").read_text(
        encoding="utf-8"
    )
    assert "path: /etc/grafana/dashboards\n" in provider


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_transformations_and_annotations_are_of_kinds_that_grafana_has(name: str) -> None:
    dashboard = COMMITTED[name]
    for panel in dashboard["panels"]:
        assert panel["type"] in {"stat", "timeseries", "table"}
        steps = panel.get("transformations", [])
        assert bool(steps) == (panel["type"] == "table"), panel["title"]
        assert all(set(step["options"]) == TRANSFORMATIONS[step["id"]] for step in steps), panel[
            "title"
        ]
        # A table needs its labels as columns, and one row for each series.
        forms = {
            (target["format"], target["instant"])
            for target in panel["targets"]
            if "format" in target
        }
        assert forms == ({("table", True)} if panel["type"] == "table" else set()), panel["title"]
    for mark in dashboard.get("annotations", {}).get("list", []):
        assert mark["useValueForTime"] is True
        assert set(re.findall(r"{{(\w+)}}", mark["titleFormat"] + mark["textFormat"])) <= by_labels(
            mark["target"]["expr"]
        )


def test_tables_name_only_columns_that_their_query_returns() -> None:
    tables = [
        panel
        for dashboard in COMMITTED.values()
        for panel in dashboard["panels"]
        if panel["type"] == "table"
    ]
    assert tables
    for panel in tables:
        there = by_labels(panel["targets"][0]["expr"]) | {"Value"}
        for step in panel["transformations"]:
            options = step["options"]
            if step["id"] == "groupingToMatrix":
                assert {options["rowField"], options["columnField"], options["valueField"]} == there
                there = {f"{options['rowField']}\\{options['columnField']}"}
            else:
                assert set(options["renameByName"]) == there, panel["title"]
                assert sorted(options["indexByName"].values()) == list(
                    range(len(options["indexByName"]))
                )
                headings = set(options["renameByName"].values())
        assert {
            column["displayName"] for column in panel.get("options", {}).get("sortBy", [])
        } <= headings


def by_labels(expr: str) -> set[str]:
    """The labels that an aggregation leaves."""
    found = re.match(r"\w+ by \(([\w, ]+)\)", expr)
    assert found is not None, expr
    return set(found[1].split(", "))


def test_the_dashboard_of_people_who_run_a_plant_is_the_first_that_grafana_shows() -> None:
    compose = (FOLDER.parent.parent.parent / "docker-compose.yml").read_text(encoding="utf-8")
    assert (
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH: /etc/grafana/dashboards/clusters.json"
        in compose
    )
    tags = {name: dashboard["tags"] for name, dashboard in COMMITTED.items()}
    assert tags == {
        name: ["shoal"] if name == "clusters" else ["shoal", "operations"] for name in COMMITTED
    }


def test_intervals_are_substituted_as_grafana_does() -> None:
    assert with_intervals("rate(a[$__rate_interval])", 15) == "rate(a[60s])"
    assert with_intervals("rate(a[$__rate_interval]) + max_over_time(b[$__range])", 0.1) == (
        "rate(a[2s]) + max_over_time(b[120s])"
    )


def test_every_value_of_every_variable_is_queried() -> None:
    panel = {"title": "t", "targets": [{"expr": 'a{m=~"$model", c="$c"} + b{m=~"$model"}'}]}
    found = list(
        queries("d", panel, {"model": ["x", "y.z", "(x|y\\.z)"], "c": ["1"], "other": ["9"]}, 1)
    )
    assert [query.expr for query in found][::2] == [
        'a{m=~"x", c="1"} + b{m=~"x"}',
        'a{m=~"(x|y\\\\.z)", c="1"} + b{m=~"(x|y\\\\.z)"}',
    ]
    group = {"title": "t", "targets": [{"expr": 'label_replace(a, "b", "$1", "c", "(.+)")'}]}
    assert len(list(queries("d", group, {}, 1))) == 1, "$1 is no variable"
    with pytest.raises(AssertionError, match="unknown variable"):
        list(queries("d", {"title": "t", "targets": [{"expr": "a[$missing]"}]}, {}, 1))


# A running federation.


@pytest.mark.needs("Prometheus")
def test_every_panel_of_a_running_federation_has_data(federation: MonitoredFederation) -> None:
    check_every_panel(federation.prometheus, FOLDER)


@pytest.mark.needs("Prometheus")
def test_the_table_of_centres_has_names_and_units_and_the_values_of_the_page(
    federation: MonitoredFederation,
) -> None:
    for model in MODELS:

        def agree(model: str = model) -> bool:
            rows = answered(federation, CENTRES.replace("$model", model))
            found = {(labels["title"], labels["column"]): value for labels, value in rows}
            clusters = json.loads(fetched(f"{federation.server}/v1/clusters?model={model}"))[
                "clusters"
            ]
            expected = {
                (cluster["name"] or f"cluster {cluster['identity']}", column): cluster["centre"][
                    place
                ]
                for cluster in clusters
                if cluster["centre"] is not None
                for place, column in enumerate(["warm in °C", "damp"])
            }
            return any(title == f"{NAME} {model}" for title, _ in found) and found == pytest.approx(
                expected, rel=0.05
            )

        until(agree, federation)


@pytest.mark.needs("Prometheus")
def test_births_are_marked_at_their_times_with_what_happened(
    federation: MonitoredFederation,
) -> None:
    (mark,) = COMMITTED["clusters"]["annotations"]["list"]

    def marks_are_the_events() -> bool:
        rows = answered(federation, mark["target"]["expr"].replace("$model", MODELS[0]))
        events = [
            ClusterEventMessage.decode(record.value)
            for record in records_in(federation, federation.config.contract.events_topic)
        ]
        births = {
            (event.text, round(1000 * event.happened_at))
            for event in events
            if (event.model, event.kind) == (MODELS[0], "birth")
        }
        found = {
            (labels["text"], round(value)) for labels, value in rows if labels["event"] == "birth"
        }
        return bool(births) and found == births

    until(marks_are_the_events, federation)


@pytest.mark.needs("Prometheus")
def test_states_and_rounds_of_masked_counts_are_shown_by_series_of_their_own(
    tmp_path: Path, prometheus: str
) -> None:
    (tmp_path / "states").mkdir()
    config = load_config(federation_file(tmp_path / "states"))
    write_planted(config)
    masked = MaskedFederation(tmp_path, clients=3)
    masked.feed(2)
    port = free_ports(3)
    with ExitStack() as stack:
        box = stack.enter_context(OneBox(config, OF_STATES, clock=clock))
        box.run_until_idle()
        server = stack.enter_context(masked.server())
        nodes = [server, *(stack.enter_context(masked.client(name)) for name in masked.names)]
        for place, node in ((port + 1, box.server), (port + 2, server)):
            web, _ = start_http_server(place, "127.0.0.1", node.metrics.registry)
            stack.callback(web.server_close)
            stack.callback(web.shutdown)
        url = stack.enter_context(
            scraped(tmp_path, prometheus, port, port + 1, {"masked": port + 2})
        )
        found = MonitoredFederation(tmp_path, config, url, "", {}, [])
        # A first scrape before a round closes: an increase needs a value to increase from. The name
        # says of which server, because the other one has the series too and may be scraped first.
        at_first = 'shoal_masked_rounds_total{result="closed", client="masked"} == 0'
        until(lambda: answered(found, at_first) != [], found)

        def shown() -> bool:
            masked.clock.now += 6.0
            for node in nodes:
                node.step()
            server.status()
            closed, awaited, wrong = expressions("operations", "Rounds of masked counts")
            rounds = dict(name_and_value(answered(found, with_intervals(closed, 600)), "result"))
            assert answered(found, wrong) == [({}, 0.0)]
            return rounds.get("closed", 0) > 0 and answered(found, awaited) == [({}, 2.0)]

        until(shown, found)
        (dwells,) = expressions("clusters", "Dwells in states")
        of_each = dict(
            name_and_value(answered(found, dwells.replace("$model", "clusters")), "cluster")
        )
    assert of_each.keys() == {"0", "1"}
    assert all(70 < dwell < 170 for dwell in of_each.values()), (
        "and no value of the words that stand there without states"
    )


def expressions(dashboard: str, title: str) -> list[str]:
    """The queries of a panel."""
    (panel,) = (panel for panel in COMMITTED[dashboard]["panels"] if panel["title"] == title)
    return [target["expr"] for target in panel["targets"]]


def name_and_value(rows: list[tuple[dict[str, str], float]], label: str) -> list[tuple[str, float]]:
    return [(labels[label], value) for labels, value in rows]


def answered(federation: MonitoredFederation, expr: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each series that Prometheus gives for a query now."""
    query = urllib.parse.urlencode({"query": expr})
    response = json.loads(fetched(f"{federation.prometheus}/api/v1/query?{query}"))
    return [
        (series_of_metric["metric"], float(series_of_metric["value"][1]))
        for series_of_metric in response["data"]["result"]
    ]


@pytest.mark.needs("Prometheus")
def test_a_panel_without_data_is_found(federation: MonitoredFederation) -> None:
    check_every_panel(federation.prometheus, FOLDER)
    broken: dict[str, Any] = json.loads(json.dumps(COMMITTED))
    broken["client"]["panels"][5]["targets"][0]["expr"] = (
        'shoal_nodes{client="$client", model="gone"}'
    )
    broken["operations"]["templating"]["list"][0]["query"] = "label_values(shoal_gone, instance)"
    broken["federation"]["panels"][2]["targets"][0]["expr"] = "shoal_clusters / 0 * 0"
    broken["clusters"]["annotations"]["list"][0]["target"]["expr"] = "shoal_gone"
    empty = empty_panels(federation.prometheus, broken)
    assert "clusters / annotation Births and ends of clusters []: shoal_gone" in empty
    assert "operations / variable instance" in empty
    assert [place.split(":")[0] for place in empty if place.startswith("client")] == [
        f"client / {COMMITTED['client']['panels'][5]['title']} ['{client}']" for client in CLIENTS
    ]
    assert any(place.startswith("federation / Readings per second") for place in empty), (
        "NaN is no data"
    )


@pytest.mark.needs("Prometheus")
def test_an_invalid_message_raises_its_alert_and_no_other(federation: MonitoredFederation) -> None:
    check_every_panel(federation.prometheus, FOLDER)
    # An increase needs a sample before it, so the message must come after the first scrape.
    publish_nonsense(federation)
    # FCAC may join or lose a cluster on any stream, which rightly raises an alert of its own.
    until(lambda: alerts(federation) - OF_CLUSTERS == {"ShoalUpdatesRejected"}, federation)


@pytest.mark.needs("Prometheus")
def test_a_raw_value_is_in_no_log_metric_message_or_page(federation: MonitoredFederation) -> None:
    until(
        lambda: (
            'result="rejected"} 0.0' not in fetched(f"{federation.clients[CLIENTS[0]]}/metrics")
        ),
        federation,
    )
    until(
        lambda: (
            "nonsense" in str(records_in(federation, federation.config.contract.rejected_topic))
        ),
        federation,
    )
    pages = [
        fetched(f"{place}/metrics") for place in (federation.server, *federation.clients.values())
    ]
    pages += [
        fetched(f"{federation.server}/{page}")
        for page in ("v1/status", "v1/snapshot", "v1/snapshot?model=three", "v1/privacy")
    ]
    topics = [federation.config.contract.updates_topic, federation.config.contract.snapshots_topic]
    topics.append(federation.config.contract.rejected_topic)
    records = [record for topic in topics for record in records_in(federation, topic)]
    messages = b"".join(
        part for record in records for part in (record.key or b"", record.value or b"")
    )
    assert {Update.TYPE, Snapshot.TYPE} <= {
        dict(record.headers)["type"].decode() for record in records
    }
    text = federation.output() + "".join(pages)
    assert SECRET_TEXT not in text
    assert SECRET_TEXT.encode() not in messages
    for value in (SECRET, 1000 * SECRET, SECRET / 100):
        assert not {number for number in numbers_in(text) if abs(number - value) < 1e-7 * value}
        assert struct.pack("<d", value) not in messages
    rejected = b"".join(
        record.value or b""
        for client in CLIENTS
        for record in rejected_readings_of(federation, client)
    )
    assert SECRET_TEXT.encode() in rejected, "the client itself keeps what it rejected"


def records_in(federation: MonitoredFederation, topic: str) -> list[Record]:
    log = open_log(federation.config.log)
    try:
        return read_all(log, topic)
    finally:
        log.close()


def rejected_readings_of(federation: MonitoredFederation, client: str) -> list[Record]:
    log = open_log(f"sqlite:{federation.config.client.folder / client / 'readings.db'}")
    try:
        return read_all(log, REJECTED)
    finally:
        log.close()


def read_all(log: Log, topic: str) -> list[Record]:
    found: list[Record] = []
    at = beginning(log, topic)
    while True:
        records, at = log.read(topic, at)
        if not records:
            return found
        found += records
