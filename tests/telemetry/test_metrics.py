"""The names of what is counted: as Prometheus wants them, and each where it belongs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from shoal.telemetry.metrics import ClientMetrics, ServerMetrics

TABLE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
CLIENT, SERVER, BOTH = {ClientMetrics}, {ServerMetrics}, {ClientMetrics, ServerMetrics}
PROMISED: dict[str, tuple[set[type[ClientMetrics | ServerMetrics]], str, str]] = {
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
"""names on which others build dashboards and alerts: who serves it, its type as Prometheus sees it, its labels"""
ALSO_BY = {"shoal_cluster_events_total": "model", "shoal_snapshot_version": "model"}
"""a federation has several models, and each has its own snapshots and clusters"""


def exposed(metrics: ClientMetrics | ServerMetrics) -> str:
    """The page of a process that has counted something of everything."""
    for name, metric in vars(metrics).items():
        if name in ("registry", "counted"):
            continue
        labels = dict.fromkeys(metric._labelnames, "x")
        one = metric.labels(**labels) if labels else metric
        act = getattr(one, "inc", None) or one.observe
        act(1)
    return generate_latest(metrics.registry).decode()


@pytest.mark.parametrize("kind", [ClientMetrics, ServerMetrics])
def test_a_process_that_did_nothing_has_a_page(kind: type[ClientMetrics | ServerMetrics]) -> None:
    assert "shoal_build_info" in generate_latest(kind().registry).decode()


@pytest.mark.parametrize("kind", [ClientMetrics, ServerMetrics])
def test_prometheus_finds_no_fault(kind: type[ClientMetrics | ServerMetrics], promtool: str) -> None:
    told = subprocess.run(
        [promtool, "check", "metrics"], input=exposed(kind()), capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_name_is_served_with_its_type_and_its_labels_by_whom_it_was_promised(name: str) -> None:
    processes, type_, labels = PROMISED[name]
    pages = {kind: exposed(kind()) for kind in (ClientMetrics, ServerMetrics)}
    assert {kind for kind, page in pages.items() if f"# TYPE {name} {type_}\n" in page} == processes
    wanted = {label for label in (*labels.split(","), ALSO_BY.get(name, "")) if label}
    for kind in processes:
        series = re.findall(rf"^{name}(?:_bucket|_count|_sum)?(?:{{(.*)}})? ", pages[kind], re.MULTILINE)
        assert series
        for one in series:
            assert set(re.findall(r'(\w+)="', one)) - {"le"} == wanted


@pytest.mark.parametrize("kind", [ClientMetrics, ServerMetrics])
def test_every_name_is_ours_and_explained(kind: type[ClientMetrics | ServerMetrics]) -> None:
    page = exposed(kind())
    names = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(names) == len(set(names))
    assert all(name.startswith(("shoal_", "process_")) for name in names)
    assert len(re.findall(r"^# HELP \S+ \S", page, re.MULTILINE)) == len(names)


@pytest.mark.parametrize("kind", [ClientMetrics, ServerMetrics])
def test_a_process_tells_what_it_takes_of_the_machine(kind: type[ClientMetrics | ServerMetrics]) -> None:
    value = kind().registry.get_sample_value
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds"):
        assert (value(name) or 0) > 0, name


@pytest.mark.parametrize("kind", [ClientMetrics, ServerMetrics])
def test_operators_read_of_every_metric_and_its_labels(kind: type[ClientMetrics | ServerMetrics]) -> None:
    told = {
        name: set(labels.split(",")) - {""} for name, labels in re.findall(r"`(shoal_\w+)(?:\{([\w,]*)\})?`", TABLE)
    }
    for family in kind().registry.collect():
        if family.name.startswith("process_"):
            continue
        ends = {"counter": "_total", "info": "_info"}
        assert family.name + ends.get(family.type, "") in told, family.name
    for name, metric in vars(kind()).items():
        if name not in ("registry", "counted"):
            shown = metric._name + ("_total" if metric._type == "counter" else "")
            assert set(metric._labelnames) == told[shown], shown


def test_operators_read_of_no_metric_that_is_not_there() -> None:
    there = {
        name
        for kind in (ClientMetrics, ServerMetrics)
        for name in re.findall(r"^# TYPE (\S+)", exposed(kind()), re.MULTILINE)
    }
    told = set(re.findall(r"`(shoal_\w+)(?:\{[\w,]*\})?`", TABLE))
    assert told <= there


def test_two_nodes_in_one_process_count_apart() -> None:
    first, second = ServerMetrics(), ServerMetrics()
    first.updates.labels(result="absorbed").inc()
    assert second.registry.get_sample_value("shoal_updates_total", {"result": "absorbed"}) is None


def test_what_is_derived_from_readings_alone_is_no_metric_of_the_server() -> None:
    server = set(re.findall(r"^# TYPE (\S+)", exposed(ServerMetrics()), re.MULTILINE))
    assert not server & {"shoal_event_time_lag_seconds", "shoal_privacy_epsilon_spent"}
