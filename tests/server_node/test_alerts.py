"""Clusters that an operator has confirmed as normal, or muted: they raise no alerts, and their
identity keeps that."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import closing
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from shoal.algorithms.registry import load_algorithm
from shoal.errors import MessageRejected
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.messages import ClusterAlerts
from shoal.server_node.outputs.alert_rules import EVERYTHING, Rule
from shoal.server_node.outputs.cluster_commands import confirm, mute
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.report.lineage.clusters import Cluster
from shoal.server_node.report.lineage.published import lineage_of
from shoal.server_node.report.status import StatusBoard
from shoal.transports import open_log
from shoal.transports.base import beginning
from tests.server_node.server_fixture import ServerFixture, updates_of
from tests.server_node.test_forwarding import configured, event
from tests.server_node.test_web_naming import CONTRACT, HERE, LEARNT
from tests.server_node.web_client import WebClient


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


MOMENTS = itertools.count(1_000_000_000.0)


def ask(site: ServerFixture, identity: int, action: str, until: float = 0.0) -> None:
    agreed = site.contract.federation, site.contract.digest
    message = ClusterAlerts(*agreed, "clusters", identity, action, until, made_at=next(MOMENTS))
    site.publish(("clusters", message.encode(), ClusterAlerts.headers()))


def run(site: ServerFixture, *, rebuild: bool = False) -> dict[int, Cluster]:
    with site.server(rebuild=rebuild) as node:
        while node.step():
            pass
        return {
            cluster.identity: cluster for cluster in node.status().models["clusters"].lineage.known
        }


def events(site: ServerFixture) -> list[ClusterEventMessage]:
    return [
        ClusterEventMessage.decode(record.value)
        for record in site.records_in(site.contract.events_topic)
    ]


def test_what_was_confirmed_and_muted_stays_with_the_identity_and_marks_its_events(
    site: ServerFixture,
) -> None:
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 7))))
    first, second = list(run(site))[:2]
    ask(site, first, "confirm")
    ask(site, second, "mute", 4e9)
    ask(site, 999, "confirm")
    known = run(site)
    assert (known[first].confirmed, known[second].muted_until) == (True, 4e9)
    assert [known[first].muted(1e12), known[second].muted(3e9), known[second].muted(5e9)] == [
        True,
        True,
        False,
    ]
    marked = {event.kind: event for event in events(site) if event.muted}
    assert {kind: mark.cluster for kind, mark in marked.items()} == {
        "confirmed": first,
        "muted": second,
    }
    assert not any(event.muted for event in events(site) if event.kind == "birth")
    site.delete_checkpoint()
    known = run(site, rebuild=True)
    assert (known[first].confirmed, known[second].muted_until) == (True, 4e9)
    snapshot = site.snapshots()[-1]
    lost = lineage_of(snapshot, load_algorithm(snapshot.algorithm).view(snapshot.arrays)).clusters
    assert (lost[first].confirmed, lost[second].muted_until) == (True, 4e9), (
        "and where only a snapshot is left"
    )
    ask(site, first, "alert")
    assert not run(site)[first].confirmed
    assert [event.kind for event in events(site) if event.cluster == first][-1] == "unmuted"


def test_alerts_leave_muted_clusters_out_unless_a_rule_asks_for_them(site: ServerFixture) -> None:
    ordinary = event(1)
    muted = event(2, muted=True)
    assert (EVERYTHING.matches(ordinary), EVERYTHING.matches(muted)) == (True, False)
    assert Rule(name="all", muted=True).matches(muted)
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 7))))
    first = next(iter(run(site)))
    with site.server() as node:
        before = node.metrics.registry.get_sample_value
        ask(site, first, "confirm")
        while node.step():
            pass
        counted = before("shoal_cluster_events_total", {"model": "clusters", "event": "confirmed"})
    assert counted == 0, "Prometheus' alerts count only events of clusters that raise alerts"


@pytest.mark.parametrize(
    "wrong",
    [
        ("silence", 0.0),
        ("mute", 0.0),
        ("confirm", 5.0),
        ("mute", -1.0),
        ("mute", 1e99),
        ("mute", "soon"),
    ],
)
def test_a_request_that_cannot_be_is_refused(wrong: tuple[str, float]) -> None:
    with pytest.raises(MessageRejected):
        ClusterAlerts("plant", "0" * 32, "clusters", 0, *wrong, made_at=1.0)


def test_the_commands_publish_requests(tmp_path: Path) -> None:
    config = configured(tmp_path, "")
    file = str(tmp_path / "office.toml")

    def invoke(command: click.Command, *words: str) -> Result:
        return CliRunner().invoke(command, ["--config", file, *words])

    assert "cluster 3 of rooms\n" in invoke(confirm, "3").output
    assert json.loads(invoke(confirm, "3", "--undo", "--json").output)["action"] == "alert"
    assert invoke(mute, "3", "--hours", "2").exit_code == 0
    assert invoke(mute, "3", "--until", "2096-01-01T00:00Z").exit_code == 2, (
        "the format of a time is named"
    )
    assert invoke(mute, "3", "--until", "2096-01-01").exit_code == 0
    assert "has passed" in invoke(mute, "3", "--until", "2001-01-01").output
    assert "one of" in invoke(mute, "3").output
    with closing(open_log(config.log)) as log:
        topic = config.contract.updates_topic
        records, _ = log.read(topic, beginning(log, topic))
    asked = [ClusterAlerts.decode(record.value, record.headers) for record in records]
    assert [request.action for request in asked] == ["confirm", "alert", "mute", "mute"]
    assert abs(asked[2].until - time.time() - 7200) < 600
    assert asked[3].until == 3_976_214_400


def test_over_http_as_by_command() -> None:
    asked: list[ClusterAlerts] = []
    web = WebClient(
        create_app(StatusBoard(LEARNT), CollectorRegistry(), predict, asked.append),
        address="127.0.0.1",
    )

    def post(content: str) -> int:
        return web.post(
            "/v1/clusters/2/alerts?model=fcac", content=content, headers=HERE
        ).status_code

    assert post('{"action": "mute", "until": 4000000000}') == 202
    assert post('{"action": "confirm"}') == 202
    expected = (CONTRACT.federation, CONTRACT.digest, "fcac", 2)
    assert asked[0] == ClusterAlerts(*expected, "mute", 4e9, made_at=asked[0].made_at)
    assert [
        post(body) for body in ("", "[]", '{"action": []}', '{"action": "mute"}', '{"until": 1}')
    ] == [400] * 5
    assert len(asked) == 2
