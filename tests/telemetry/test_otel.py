"""OpenTelemetry: what a collector gets over OTLP is what Prometheus reads, and a trace of each
snapshot."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from shoal.client_nodes.client_command import make_metrics
from shoal.config.sections import ClientSettings
from shoal.onebox.run_command import run_command
from shoal.producers.init_command import init_command
from shoal.telemetry.export import exported_signals, exporting, leave_the_machine
from shoal.telemetry.metrics import ServerMetrics
from shoal.telemetry.resource import Telemetry
from shoal.telemetry.spans import SPANS, Span, SpanReceivers
from tests.hostile.attacked_rounds import AttackedRounds, step_all
from tests.server_node.server_fixture import ServerFixture
from tests.small_plant import an_update

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
from tests.telemetry.collector import Collector, attributes_of


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    receiver = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    yield receiver
    receiver.close()


def shown(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, labels) -> value of every sample that Prometheus reads."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def numbers(metric: Any) -> Iterator[tuple[tuple[tuple[str, str], ...], Any]]:
    """The data points of a metric with their labels."""
    for point in getattr(metric, metric.WhichOneof("data")).data_points:
        labels = ((label.key, label.value.string_value) for label in point.attributes)
        yield tuple(sorted(labels)), point


def test_a_collector_gets_the_numbers_of_prometheus_and_a_trace_of_each_snapshot(
    tmp_path: Path, collector: Collector
) -> None:
    fixture = ServerFixture(tmp_path)
    metrics = ServerMetrics()
    fixture.send(an_update(fixture.contract), an_update(fixture.contract, "cellar"))
    fixture.publish(("rooms", b"no update", ()))
    with exporting("server", Telemetry(metrics.registry, {"shoal.federation": "plant"})):
        with fixture.server(metrics=metrics) as server:
            while server.step():
                pass
        expected = shown(metrics.registry)
    compared = 0
    for name, metric in collector.metrics().items():
        # The process goes on between the two: its own time and memory differ.
        if name.startswith(("process_", "python_")):
            continue
        for labels, point in numbers(metric):
            if metric.WhichOneof("data") == "histogram":
                assert point.count == expected[f"{name}_count", labels], name
                assert point.sum == expected[f"{name}_sum", labels], name
                up_to = 0
                for bound, count in zip(point.explicit_bounds, point.bucket_counts, strict=False):
                    up_to += count
                    le = tuple(sorted((*labels, ("le", str(bound)))))
                    assert up_to == expected[f"{name}_bucket", le]
            else:
                suffix = "_info" if (f"{name}_info", labels) in expected else ""
                assert point.as_double == expected[name + suffix, labels], name
            compared += 1
    assert compared > 30
    updates = collector.metrics()["shoal_updates_total"]
    assert updates.sum.is_monotonic
    assert dict(numbers(updates))[(("result", "absorbed"),)].as_double == 2
    resource = collector.received["/v1/metrics"][0].resource_metrics[0].resource
    assert attributes_of(resource)["service.name"] == "shoal-server"
    assert attributes_of(resource)["shoal.federation"] == "plant"

    spans = collector.spans()
    roots = [span for span in spans if span.name == "snapshot"]
    assert [attributes_of(root)["shoal.snapshot.version"] for root in roots] == [1]
    parts = [span for span in spans if span.parent_span_id == roots[0].span_id]
    assert sorted(span.name for span in parts) == ["learn", "update", "update"]
    assert {span.trace_id for span in parts} == {roots[0].trace_id}
    clients = {attributes_of(span).get("shoal.client") for span in parts if span.name == "update"}
    assert clients == {"attic", "cellar"}
    for part in parts:
        assert roots[0].start_time_unix_nano <= part.start_time_unix_nano
        assert part.start_time_unix_nano <= part.end_time_unix_nano
        assert part.end_time_unix_nano <= roots[0].end_time_unix_nano
    (rejected,) = [span for span in spans if span.status.message]
    assert (rejected.name, rejected.parent_span_id) == ("update", b"")


def test_a_replica_exports_each_of_its_regions_as_of_its_federation(collector: Collector) -> None:
    north, south = (
        Telemetry(ServerMetrics().registry, {"shoal.federation": name}, SpanReceivers())
        for name in ("north", "south")
    )
    with exporting("replica", north, south):
        south.spans.end(Span("snapshot", 1.0, 2.0))
    assert [resource["shoal.federation"] for resource in collector.resources()] == [
        "north",
        "south",
    ]
    ((resource, span),) = collector.spans_of_resources()
    assert (resource["service.name"], resource["shoal.federation"]) == ("shoal-replica", "south")
    assert span.name == "snapshot"


def test_a_run_exports_its_metrics_and_traces(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_SERVER_PORT", "0")
    Path("a.csv").write_text("warm,wet\n" + "20.5,40\n21.5,60\n" * 30, encoding="utf-8")
    commands = CliRunner()
    assert commands.invoke(init_command, ["a.csv", "--public"]).exit_code == 0
    assert commands.invoke(run_command, ["a.toml", "a.csv", "--no-wait"]).exit_code == 0
    (resource,) = collector.resources()
    assert (resource["service.name"], resource["shoal.federation"]) == ("shoal-run", "a")
    assert collector.metrics()["shoal_updates_total"].sum.data_points
    assert "snapshot" in {span.name for span in collector.spans()}


def test_the_trace_of_a_snapshot_has_the_round_that_it_closes(tmp_path: Path) -> None:
    site = AttackedRounds(tmp_path)
    ended: list[Span] = []
    SPANS.add(ended.append)
    try:
        with site.server() as node:
            step_all(node)
            site.run_round(node)
    finally:
        SPANS.remove(ended.append)
    last = [span for span in ended if span.name == "snapshot"][-1]
    (closed,) = [part for part in last.parts if part.name == "round"]
    assert closed.attributes["shoal.round.answers"] == 3
    assert closed.attributes["shoal.round.expected"] == 3
    assert last.start <= closed.start <= closed.end <= last.end


def test_a_collector_that_is_away_is_said_and_ends_no_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    with exporting("server", Telemetry(ServerMetrics().registry, {})):
        SPANS.end(Span("snapshot", 1.0, 2.0))
    names = [record.getMessage() for record in caplog.records]
    assert set(names) == {"telemetry_export_failed"}
    assert not SPANS.wanted, "nothing is collected for it any more"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ()),
        ({"OTEL_SERVICE_NAME": "x"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ("metrics", "traces")),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, ("traces",)),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
            ("metrics",),
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, ()),
    ],
)
def test_variables_say_what_is_exported(
    environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert exported_signals(environment) == expected


@pytest.mark.parametrize(
    ("url", "leaves"),
    [("http://localhost:4318", False), ("http://[::1]:4318", False), ("http://10.0.0.7", True)],
)
def test_counts_of_raw_readings_go_to_no_collector_on_another_machine(
    monkeypatch: pytest.MonkeyPatch, url: str, leaves: bool
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    assert leave_the_machine() == leaves
    assert make_metrics(ClientSettings()).on_site == (not leaves)
    assert make_metrics(ClientSettings(metrics_on_site=True)).on_site


def test_a_protocol_that_is_not_exported_is_said_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    with exporting("server", Telemetry(CollectorRegistry(), {})):
        pass
    (record,) = caplog.records
    assert record.getMessage() == "telemetry_not_exported"
    assert "http/protobuf" in json.dumps(record.__dict__["fields"])
