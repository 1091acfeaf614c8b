"""The metrics: names and labels by the conventions of Prometheus, each declared and observed
once."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from shoal.telemetry.metrics import ClientMetrics, ServerMetrics

TOP = Path(__file__).parents[2]
NO_METRICS = {"on_site", "registry", "put_off", "counted", "novel_counted", "rejected_counted"}
"""attributes of `ClientMetrics` and `ServerMetrics` that are not metrics"""
CLIENT = {ClientMetrics}
SERVER = {ServerMetrics}
BOTH = {ClientMetrics, ServerMetrics}
STABLE: dict[str, tuple[set[type[ClientMetrics | ServerMetrics]], str, str]] = {
    "shoal_readings_total": (BOTH, "counter", "result"),
    "shoal_updates_total": (BOTH, "counter", "result"),
    "shoal_cluster_events_total": (SERVER, "counter", "event"),
    "shoal_clusters": (SERVER, "gauge", "model"),
    "shoal_nodes": (BOTH, "gauge", "model"),
    "shoal_edges": (SERVER, "gauge", "model"),
    "shoal_snapshot_version": (SERVER, "gauge", ""),
    "shoal_client_last_seen_timestamp_seconds": (SERVER, "gauge", "client"),
    "shoal_consumer_lag_records": (BOTH, "gauge", "topic"),
    "shoal_privacy_epsilon_spent": (CLIENT, "gauge", ""),
    "shoal_privacy_epsilon_limit": (CLIENT, "gauge", ""),
    "shoal_privacy_guarantee_info": (CLIENT, "gauge", "mode,unit,mechanism"),
    "shoal_build_info": (BOTH, "gauge", "version,python,process"),
    "shoal_learn_duration_seconds": (BOTH, "histogram", ""),
    "shoal_end_to_end_latency_seconds": (SERVER, "histogram", ""),
    "shoal_round_duration_seconds": (SERVER, "histogram", "algorithm"),
}
"""names that dashboards and alerts may rely on: which process serves it, its Prometheus type, its
labels"""
MORE_LABELS = {"shoal_cluster_events_total": "model", "shoal_snapshot_version": "model"}
"""each model of a federation has its own snapshots and clusters"""


def exposed(metrics: ClientMetrics | ServerMetrics) -> str:
    """The metrics page of a process that has observed every metric."""
    for name, metric in vars(metrics).items():
        if name in NO_METRICS:
            continue
        labels = dict.fromkeys(metric._labelnames, "x")
        one = metric.labels(**labels) if labels else metric
        act = getattr(one, "inc", None) or one.observe
        act(1)
    return generate_latest(metrics.registry).decode()


@pytest.mark.parametrize("kind", [ClientMetrics, ServerMetrics])
def test_a_process_that_has_done_nothing_has_a_page(
    kind: type[ClientMetrics | ServerMetrics],
) -> None:
    assert "shoal_build_info" in generate_latest(kind().registry).decode()


@pytest.mark.parametrize("kind", [ClientMetrics, ServerMetrics])
def test_promtool_accepts_the_page(
    kind: type[ClientMetrics | ServerMetrics], promtool: str
) -> None:
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=exposed(kind()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize("name", STABLE)
def test_a_stable_name_is_served_by_its_process_with_its_type_and_labels(name: str) -> None:
    processes, type_, labels = STABLE[name]
    pages = {kind: exposed(kind()) for kind in (ClientMetrics, ServerMetrics)}
    assert {kind for kind, page in pages.items() if f"# TYPE {name} {type_}\n" in page} == processes
    expected = {label for label in (*labels.split(","), MORE_LABELS.get(name, "")) if label}
    for kind in processes:
        series = re.findall(
            rf"^{name}(?:_bucket|_count|_sum)?(?:{{(.*)}})? ", pages[kind], re.MULTILINE
        )
        assert series
        for series_of_metric in series:
            assert set(re.findall(r'(\w+)="', series_of_metric)) - {"le"} == expected


@pytest.mark.parametrize("kind", [ClientMetrics, ServerMetrics])
def test_every_name_has_a_known_prefix_and_a_help_text(
    kind: type[ClientMetrics | ServerMetrics],
) -> None:
    page = exposed(kind())
    names = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(names) == len(set(names))
    assert all(name.startswith(("shoal_", "process_")) for name in names)
    assert len(re.findall(r"^# HELP \S+ \S", page, re.MULTILINE)) == len(names)


@pytest.mark.parametrize("kind", [ClientMetrics, ServerMetrics])
def test_a_process_serves_its_memory_and_cpu_time(
    kind: type[ClientMetrics | ServerMetrics],
) -> None:
    value = kind().registry.get_sample_value
    for name in (
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_start_time_seconds",
    ):
        assert (value(name) or 0) > 0, name


@pytest.mark.parametrize(
    "name", sorted((vars(ClientMetrics()).keys() | vars(ServerMetrics()).keys()) - NO_METRICS)
)
def test_a_metric_is_declared_once_and_observed_in_one_module_of_a_process(name: str) -> None:
    declared = (TOP / "shoal/telemetry/metrics.py").read_text("utf-8")
    assert len(re.findall(rf"^        self\.{name} = ", declared, re.MULTILINE)) == 1
    for process, kind in (("client_nodes", ClientMetrics), ("server_node", ServerMetrics)):
        if not hasattr(kind(), name):
            continue
        observing = [
            path
            for path in (TOP / process).rglob("*.py")
            if re.search(rf"metrics\.{name}\.", path.read_text("utf-8"))
        ]
        assert len(observing) == 1, observing


def test_two_nodes_in_one_process_have_separate_metrics() -> None:
    first = ServerMetrics()
    second = ServerMetrics()
    first.updates.labels(result="absorbed").inc()
    assert second.registry.get_sample_value("shoal_updates_total", {"result": "absorbed"}) is None


def test_the_server_has_no_metric_that_needs_readings() -> None:
    server = set(re.findall(r"^# TYPE (\S+)", exposed(ServerMetrics()), re.MULTILINE))
    assert not server & {"shoal_event_time_lag_seconds", "shoal_privacy_epsilon_spent"}
