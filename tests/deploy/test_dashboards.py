"""The dashboards: the JSON is what the script makes, and no panel of a running federation stays empty."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.grafana.dashboards import BOARDS, HERE
from deploy.grafana.panels import Board, written
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.topics import REJECTED
from shoal.transports import open_log
from shoal.transports.base import Log, Record, beginning
from tests.deploy.dashboard_queries import check_every_panel, empty_panels, queries, with_intervals
from tests.deploy.watched_house import (
    CLIENTS,
    SECRET,
    SECRET_WORD,
    WatchedHouse,
    alerts,
    fetched,
    numbers_in,
    send_nonsense,
    until,
    watched_house,
)

DASHBOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in HERE.glob("*.json")}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, prometheus: str) -> Iterator[WatchedHouse]:
    with watched_house(tmp_path_factory.mktemp("watched"), prometheus) as watched:
        send_nonsense(watched)
        yield watched


# What Grafana is given.


def test_every_dashboard_is_committed_and_no_other() -> None:
    assert set(DASHBOARDS) == set(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_what_the_script_makes(name: str) -> None:
    told = (HERE / f"{name}.json").read_text(encoding="utf-8")
    assert told == written(BOARDS[name]), "run python -m deploy.grafana.dashboards"


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())
def test_panels_stand_side_by_side_and_say_what_they_show(board: Board) -> None:
    panels = json.loads(written(board))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_what_is_provisioned_is_what_the_dashboards_ask() -> None:
    source = (HERE.parent / "provisioning" / "datasources" / "prometheus.yml").read_text(encoding="utf-8")
    assert "uid: prometheus\n" in source
    for dashboard in DASHBOARDS.values():
        for part in (*dashboard["panels"], *dashboard["templating"]["list"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "prometheus"}
    provider = (HERE.parent / "provisioning" / "dashboards" / "shoal.yml").read_text(encoding="utf-8")
    assert "path: /etc/grafana/dashboards\n" in provider


def test_intervals_are_filled_in_as_grafana_does() -> None:
    assert with_intervals("rate(a[$__rate_interval])", 15) == "rate(a[60s])"
    assert with_intervals("rate(a[$__rate_interval]) + max_over_time(b[$__range])", 0.1) == (
        "rate(a[2s]) + max_over_time(b[120s])"
    )


def test_every_value_of_every_variable_is_asked() -> None:
    panel = {"title": "t", "targets": [{"expr": 'a{m=~"$model", c="$c"} + b{m=~"$model"}'}]}
    asked = list(queries("d", panel, {"model": ["x", "y.z", "(x|y\\.z)"], "c": ["1"], "other": ["9"]}, 1))
    assert [query.expr for query in asked][::2] == [
        'a{m=~"x", c="1"} + b{m=~"x"}',
        'a{m=~"(x|y\\\\.z)", c="1"} + b{m=~"(x|y\\\\.z)"}',
    ]
    with pytest.raises(AssertionError, match="unknown variable"):
        list(queries("d", {"title": "t", "targets": [{"expr": "a[$missing]"}]}, {}, 1))


# A federation that runs.


@pytest.mark.needs("Prometheus")
def test_no_panel_of_a_running_federation_stays_empty(house: WatchedHouse) -> None:
    check_every_panel(house.prometheus, HERE)


@pytest.mark.needs("Prometheus")
def test_a_panel_that_nobody_can_fill_is_found(house: WatchedHouse) -> None:
    check_every_panel(house.prometheus, HERE)
    spoilt: dict[str, Any] = json.loads(json.dumps(DASHBOARDS))
    spoilt["client"]["panels"][5]["targets"][0]["expr"] = 'shoal_nodes{client="$client", model="gone"}'
    spoilt["operations"]["templating"]["list"][0]["query"] = "label_values(shoal_gone, instance)"
    spoilt["federation"]["panels"][2]["targets"][0]["expr"] = "shoal_clusters / 0 * 0"
    empty = empty_panels(house.prometheus, spoilt)
    assert "operations / variable instance" in empty
    assert [place.split(":")[0] for place in empty if place.startswith("client")] == [
        f"client / {DASHBOARDS['client']['panels'][5]['title']} ['{client}']" for client in CLIENTS
    ]
    assert any(place.startswith("federation / Readings per second") for place in empty), "NaN is no data"


@pytest.mark.needs("Prometheus")
def test_the_nonsense_that_was_sent_rings_and_nothing_else_does(house: WatchedHouse) -> None:
    check_every_panel(house.prometheus, HERE)
    # Only what comes after the first look of Prometheus is one more.
    send_nonsense(house)
    until(lambda: alerts(house) == {"ShoalUpdatesRejected"}, house)


@pytest.mark.needs("Prometheus")
def test_a_raw_value_is_in_no_log_no_metric_no_message_and_on_no_page(house: WatchedHouse) -> None:
    until(lambda: 'result="rejected"} 0.0' not in fetched(f"{house.clients[CLIENTS[0]]}/metrics"), house)
    until(lambda: "nonsense" in str(all_of(house, house.config.contract.rejected_topic)), house)
    pages = [fetched(f"{place}/metrics") for place in (house.server, *house.clients.values())]
    pages += [fetched(f"{house.server}/{page}") for page in ("picture", "snapshot", "snapshot?model=heaps", "privacy")]
    topics = [house.config.contract.updates_topic, house.config.contract.snapshots_topic]
    topics.append(house.config.contract.rejected_topic)
    records = [record for topic in topics for record in all_of(house, topic)]
    messages = b"".join(part for record in records for part in (record.key or b"", record.value or b""))
    assert {Update.TYPE, Snapshot.TYPE} <= {dict(record.headers)["type"].decode() for record in records}
    text = house.said() + "".join(pages)
    assert SECRET_WORD not in text
    assert SECRET_WORD.encode() not in messages
    for value in (SECRET, 1000 * SECRET, SECRET / 100):
        assert not {number for number in numbers_in(text) if abs(number - value) < 1e-7 * value}
        assert struct.pack("<d", value) not in messages
    aside = b"".join(record.value or b"" for client in CLIENTS for record in kept_by(house, client))
    assert SECRET_WORD.encode() in aside, "it was there to be found, in the client's own folder"


def all_of(house: WatchedHouse, topic: str) -> list[Record]:
    log = open_log(house.config.log)
    try:
        return everything(log, topic)
    finally:
        log.close()


def kept_by(house: WatchedHouse, client: str) -> list[Record]:
    log = open_log(f"sqlite:{house.config.client.folder / client / 'readings.db'}")
    try:
        return everything(log, REJECTED)
    finally:
        log.close()


def everything(log: Log, topic: str) -> list[Record]:
    found: list[Record] = []
    at = beginning(log, topic)
    while True:
        records, at = log.read(topic, at)
        if not records:
            return found
        found += records
