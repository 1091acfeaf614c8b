"""One federation of every streaming algorithm: numbers that two views show are the same in both, on
the server's page and on one that reads the log alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from shoal.algorithms.registry import streaming_names
from shoal.cli.main import shoal
from shoal.config.settings import Config, load_config
from shoal.onebox.federation import OneBox
from shoal.onebox.run_command import clusters_of as printed_clusters
from shoal.runtime.service import resumed
from shoal.server_node.history.store import HISTORY_FILE, HistoryReader
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.page.metrics import PageMetrics
from shoal.server_node.page.page_command import READ_ONLY, history_file, open_published
from shoal.server_node.report.build import Reports
from shoal.server_node.report.status import ServerStatus, StatusBoard
from tests.house.small_federation import CLIENTS, FILE, clock, write_readings
from tests.server_node.web_client import WebClient

STREAMING = streaming_names()
READINGS = {"attic": 1_200, "cellar": 600, "garden": 150}
"""readings of each client: their rates differ by a factor of eight"""
TRUE_SHARES = {35.0: 0.1, 20.0: 0.3, 5.0: 0.6}
"""temperature of a group -> part of the readings of every client that lie around it"""


def readings_of(n: int, seed: int) -> Any:
    """(n, 2) readings around three places far apart, of each its share, in a random order."""
    rng = np.random.default_rng(seed)
    damp = {35.0: 20.0, 20.0: 50.0, 5.0: 80.0}
    warm = np.concatenate([np.full(round(part * n), place) for place, part in TRUE_SHARES.items()])
    rng.shuffle(warm)
    places = np.column_stack([warm, [damp[place] for place in warm.tolist()]])
    return places + rng.normal(size=places.shape) * [1.0, 2.0]


def federation_file(folder: Path, publish_readings: int) -> Path:
    """A federation with a model of each streaming algorithm."""
    settings = {"name": "house", "batch_readings_max": 70, "pool_clients": 1}
    text = FILE.format(
        **settings,
        publish_readings=publish_readings,
        batch_updates_max=4,
        address="sqlite:federation.db",
    )
    text = text.replace('mode = "formal"\nepsilon_per_reading = 200', 'mode = "off"')
    models = "".join(f'[[models]]\nname = "{name}"\nalgorithm = "{name}"\n' for name in STREAMING)
    before, _, after = text.partition("[[models]]")
    path = folder / "federation.toml"
    path.write_text(f"{before}{models}[log]{after.partition('[log]')[2]}", encoding="utf-8")
    return path


@dataclass(frozen=True)
class Views:
    """What each view shows of one federation after its source has ended."""

    file: Path
    config: Config
    status: ServerStatus
    reports: Reports
    client: WebClient
    """the page of the server"""
    by_log: WebClient
    """the page that reads the log"""
    metrics: dict[str, list[tuple[dict[str, str], float]]]
    """name of a metric -> labels and value of each series"""

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, path
        return answer.json()

    def on_page(self, model: str) -> dict[str, Any]:
        """The model as the page gets it."""
        [shown] = [
            row for row in self.get(f"/v1/status?model={model}")["models"] if row["name"] == model
        ]
        found: dict[str, Any] = shown
        return found

    def metric(self, name: str, **labels: str) -> dict[str, float]:
        """cluster -> value of the series with these labels; "" where they have no cluster."""
        return {
            own.get("cluster", ""): value
            for own, value in self.metrics.get(name, [])
            if labels.items() <= own.items()
        }

    def exported(self, *arguments: str) -> str:
        ran = CliRunner().invoke(shoal, [*arguments, "--config", str(self.file)])
        assert ran.exception is None, ran.output
        return ran.stdout


@pytest.fixture(scope="module", params=[200, 7], ids=["usual", "small publish_readings"])
def views(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Views]:
    file = federation_file(tmp_path_factory.mktemp("one"), request.param)
    config = load_config(file)
    for seed, (name, n) in enumerate(READINGS.items()):
        write_readings(config, name, readings_of(n, seed))
    with ExitStack() as stack:
        box = stack.enter_context(OneBox(config, CLIENTS, clock=clock))
        box.run_until_idle()
        status = replace(box.server.status(), ended=True)
        history = HistoryReader(config.server.folder / HISTORY_FILE)
        registry = box.server.metrics.registry
        client = WebClient(create_app(StatusBoard(status), registry, predict, history=history))
        published = PageMetrics()
        path = history_file(config, None)
        page = stack.enter_context(resumed(open_published(config, path, published.server)))
        while page.step():
            pass
        board = StatusBoard(replace(page.status(), ended=True))
        reader = HistoryReader(path)
        app = create_app(board, published.registry, predict, history=reader, read_only=READ_ONLY)
        metrics: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(client.get("/metrics").text):
            for sample in family.samples:
                metrics.setdefault(sample.name, []).append((sample.labels, sample.value))
        yield Views(file, config, status, Reports(history), client, WebClient(app), metrics)


@pytest.mark.parametrize("model", STREAMING)
def test_page_api_metrics_history_terminal_and_exports_show_the_same_numbers(
    views: Views, model: str
) -> None:
    report = views.get(f"/v1/clusters?model={model}")
    page = views.on_page(model)
    sizes_agree(views, model, report, page)
    clusters = {cluster["identity"]: cluster for cluster in report["clusters"]}
    digits = [feature["digits"] for feature in page["clustering"]["features"]]
    shown = page["clustering"]["clusters"]
    assert set(shown) == {str(identity) for identity in clusters}
    for identity, cluster in clusters.items():
        own = shown[str(identity)]
        for name in cluster.keys() - {"centre", "spread", "trend", "fed_by"}:
            assert own[name] == cluster[name], name
        if cluster["centre"] is not None:
            rounded = [round(value, n) for value, n in zip(cluster["centre"], digits, strict=True)]
            assert own["centre"] == rounded
            for feature, value in zip(("warm", "damp"), cluster["centre"], strict=True):
                labelled = {"model": model, "feature": feature}
                found = views.metric("shoal_cluster_centre", **labelled)[str(identity)]
                assert found == pytest.approx(value)
        recent = views.metric("shoal_cluster_recent_share", model=model)[str(identity)]
        assert recent == pytest.approx(cluster["recent_share"], abs=5e-5)
    shares_agree(views, model, report)


def with_nodes(clusters: Any) -> Any:
    """The clusters that the newest snapshot has nodes of: it has nothing of the others, which only
    a server knows."""
    if isinstance(clusters, dict):
        return {key: cluster for key, cluster in clusters.items() if cluster["nodes"]}
    return [cluster for cluster in clusters if cluster["nodes"]]


@pytest.mark.parametrize("model", STREAMING)
def test_a_page_that_reads_the_log_shows_what_the_server_shows(views: Views, model: str) -> None:
    for path in ("clusters", "snapshot", "history", "changes"):
        asked = f"/v1/{path}?model={model}"
        if path == "history":
            asked += "&step=86400"
        by_log = views.by_log.get(asked)
        assert by_log.status_code == views.client.get(asked).status_code
        shown = [by_log.json(), views.client.get(asked).json()]
        if path == "clusters":
            shown = [{**report, path: with_nodes(report[path])} for report in shown]
        assert shown[0] == shown[1], path


def test_the_status_of_a_page_that_reads_the_log_is_that_of_the_server(views: Views) -> None:
    pages = [client.get("/v1/status").json() for client in (views.client, views.by_log)]
    for page in pages:
        for row in page["models"]:
            # A server notes the size of its first snapshot, which the log keeps no longer.
            row["history"] = row["history"][-1:]
            clustering = row["clustering"]
            clustering["clusters"] = with_nodes(clustering["clusters"])
    of_server, by_log = pages
    for name in ("models", "ready", "federation", "contract", "privacy", "clients_total"):
        assert by_log[name] == of_server[name], name
    assert by_log["history_read"] == 1


def test_metrics_of_a_page_that_reads_the_log_are_those_of_the_server(views: Views) -> None:
    of_server = set(views.client.get("/metrics").text.splitlines())
    lines = [line for line in views.by_log.get("/metrics").text.splitlines() if line[0] != "#"]
    of_process = ("process_", "shoal_build_info")
    shown = [line for line in lines if not line.startswith(of_process)]
    assert [line for line in shown if line not in of_server] == []
    assert {line.partition("{")[0] for line in shown} >= {"shoal_clusters", "shoal_cluster_centre"}


def test_a_page_that_reads_the_log_lists_the_clients_of_the_history_and_names_nothing(
    views: Views,
) -> None:
    of_server = {client["client"]: client for client in views.get("/v1/clients")["clients"]}
    listed = views.by_log.get("/v1/clients").json()["clients"]
    assert [client["client"] for client in listed] == list(of_server)
    for client in listed:
        assert 0 < client["readings"] <= of_server[client["client"]]["readings"]
    refused = views.by_log.post("/v1/clusters/0/name?model=fcac", json={"name": "warm"})
    assert (refused.status_code, refused.json()["detail"]) == (403, READ_ONLY)


def sizes_agree(views: Views, model: str, report: dict[str, Any], page: dict[str, Any]) -> None:
    """Numbers of clusters, nodes, readings and updates in every view."""
    snapshot = views.get(f"/v1/snapshot?model={model}")
    for name in ("version", "readings", "updates"):
        assert page[name] == snapshot[name], name
    assert report["version"] == page["version"]
    assert page["nodes_total"] == len(snapshot["nodes"])
    assert page["clusters_total"] == len(report["clusters"])
    active = sum(cluster["active"] for cluster in report["clusters"])
    assert page["clusters_active"] == active
    for name, value in {
        "shoal_clusters": page["clusters_total"],
        "shoal_clusters_active": active,
        "shoal_clusters_published": page["clusters_published"],
        "shoal_nodes": page["nodes_total"],
        "shoal_snapshot_version": page["version"],
    }.items():
        assert views.metric(name, model=model) == {"": value}, name


def shares_agree(views: Views, model: str, report: dict[str, Any]) -> None:
    """The share of each cluster in the report, the history, its export and the terminal; and its
    denominator."""
    counted = report["counted"]
    if counted is None:
        # A history begins with the first known cluster.
        assert not report["clusters"]
        return
    past = views.get(f"/v1/history?model={model}&step=86400")
    assert counted["readings"] == sum(past["readings"])
    of_cluster = {row["identity"]: sum(row["readings"]) for row in past["clusters"]}
    printed = printed_clusters(views.reports.clustering(views.status, model))
    in_terminal = {cluster["cluster"]: cluster["share"] for cluster in printed}
    export = views.exported(
        "history",
        "export",
        "--model",
        model,
        "--of",
        "clusters",
        "--step",
        "86400",
        "--format",
        "jsonl",
    )
    exported: dict[int, int] = {}
    for line in export.splitlines():
        row = json.loads(line)
        if row["cluster"] is not None:
            exported[row["cluster"]] = exported.get(row["cluster"], 0) + row["readings"]
    for cluster in report["clusters"]:
        identity = cluster["identity"]
        share = of_cluster.get(identity, 0) / counted["readings"]
        # fcac counts again, by the clusters of now, what the history counted by those of the time.
        if model != "fcac":
            assert cluster["share"] == pytest.approx(share, abs=5e-5)
        assert exported.get(identity, 0) == of_cluster.get(identity, 0)
        if identity in in_terminal:
            assert in_terminal[identity] == cluster["share"]
    total = sum(cluster["share"] for cluster in report["clusters"])
    assert total <= 1 + 1e-3
    if model == "fcac":
        assert total + counted["unknown_share"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("model", STREAMING)
def test_readings_of_the_clients_are_those_that_the_server_counts(views: Views, model: str) -> None:
    listed = {
        client["client"]: client["readings"] for client in views.get("/v1/clients")["clients"]
    }
    on_page = views.get("/v1/status")["clients"]
    assert dict(zip(on_page["client"], on_page["readings"], strict=True)) == listed
    past = views.get(f"/v1/history?model={model}&step=86400")
    assert sum(past["readings"]) <= sum(listed.values())


def test_a_share_is_near_the_truth_where_all_readings_are_counted(views: Views) -> None:
    report = views.get("/v1/clusters?model=cluster_tree")
    shares: dict[float, float] = {}
    for cluster in report["clusters"]:
        nearest = min(TRUE_SHARES, key=lambda place: abs(place - cluster["centre"][0]))
        shares[nearest] = shares.get(nearest, 0.0) + cluster["share"]
    assert shares == pytest.approx(TRUE_SHARES, abs=0.15)


def test_shares_of_fcac_are_those_of_the_readings_though_its_nodes_are_as_many_elsewhere(
    views: Views,
) -> None:
    clusters = views.get("/v1/clusters?model=fcac")["clusters"]
    # Of so few readings edges may still join the two smaller groups.
    cool = [cluster for cluster in clusters if cluster["centre"] and cluster["centre"][0] < 12.5]
    assert sum(cluster["share"] for cluster in cool) == pytest.approx(TRUE_SHARES[5.0], abs=0.01)
    # Of the newest 500 readings or so, which differ by chance from all.
    recent = sum(cluster["recent_share"] for cluster in cool)
    assert recent == pytest.approx(TRUE_SHARES[5.0], abs=0.06)
