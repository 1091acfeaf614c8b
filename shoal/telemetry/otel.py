"""Metrics and spans to OpenTelemetry: OTLP over HTTP, by the official SDK and its variables.

The metrics are those of the registry that Prometheus reads, under the same names: a number has one
source. The SDK has no way to take a histogram from elsewhere, so its data points are made here and
given to its exporter.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event, Thread
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from shoal import __version__
from shoal.errors import MissingExtra
from shoal.telemetry.events import log_event
from shoal.telemetry.resource import Telemetry
from shoal.telemetry.spans import Span, SpanReceivers

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Span as RecordedSpan
    from opentelemetry.trace import Status, StatusCode, set_span_in_context
except ImportError:
    raise MissingExtra("OpenTelemetry", "otel") from None

INTERVAL_MS: Final = 60_000.0
"""milliseconds between two exports of metrics, unless OTEL_METRIC_EXPORT_INTERVAL says otherwise"""
UNITS: Final = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}
"""end of a metric's name -> its unit (UCUM)"""
LAST_EXPORT_S: Final = 3.0
"""seconds for which the end of a process waits for the last exports: the SDK tries for ten and more
where the collector is away, and a process that is told to stop must not be killed meanwhile"""
SCOPE: Final = InstrumentationScope("shoal", __version__)
NOT_KEPT: Final[Any] = None
"""the least and the greatest value of a histogram, optional in the protocol: Prometheus has none"""
NANO: Final = 1_000_000_000
Labels = tuple[tuple[str, str], ...]


class Export:
    """Exports until it is closed: spans as they end, metrics at an interval and at the end."""

    def __init__(
        self, process: str, federations: Sequence[Telemetry], signals: Sequence[str]
    ) -> None:
        _report_failures_to(_Failures(logging.WARNING))
        resources = [_resource(process, federation.attributes) for federation in federations]
        self._metrics = None
        if "metrics" in signals:
            registries = [federation.registry for federation in federations]
            self._metrics = _PeriodicMetrics(list(zip(registries, resources, strict=True)))
        self._traces: list[_Traces] = []
        self._processor = None
        if "traces" in signals:
            # One for all: each would have a thread, and a connection of its own.
            self._processor = BatchSpanProcessor(OTLPSpanExporter())
            for federation, resource in zip(federations, resources, strict=True):
                self._traces.append(_Traces(federation.spans, resource, self._processor))

    def close(self) -> None:
        """Export what is left, and stop; what does not arrive within `LAST_EXPORT_S` is lost."""
        ends: list[Callable[[], None]] = []
        for traces in self._traces:
            traces.close()
        if self._processor is not None:
            ends.append(self._processor.shutdown)
        if self._metrics is not None:
            ends.append(self._metrics.close)
        # Daemons: the end of the process waits for none that still tries.
        threads = [Thread(target=end, name="otel-end", daemon=True) for end in ends]
        for thread in threads:
            thread.start()
        until = time.monotonic() + LAST_EXPORT_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        # What still tries fails after the end: that is no event of this process any more.
        _report_failures_to(logging.NullHandler())


class _Traces:
    """Passes the spans of one federation on to the exporter, as those of its resource."""

    def __init__(
        self, spans: SpanReceivers, resource: Resource, processor: BatchSpanProcessor
    ) -> None:
        # It ends with the others, in time.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("shoal", __version__)
        self._spans = spans
        spans.add(self._pass_on)

    def close(self) -> None:
        """Pass on no more."""
        self._spans.remove(self._pass_on)

    def _pass_on(self, span: Span) -> None:
        self._record(span, None)

    def _record(self, span: Span, parent: RecordedSpan | None) -> None:
        context = None if parent is None else set_span_in_context(parent)
        recorded = self._tracer.start_span(
            span.name, context, attributes=dict(span.attributes), start_time=_nano(span.start)
        )
        if span.error:
            recorded.set_status(Status(StatusCode.ERROR, span.error))
        for part in span.parts:
            self._record(part, recorded)
        recorded.end(_nano(span.end))


class _PeriodicMetrics:
    """Exports the metrics of registries, each of a resource, from a thread of its own."""

    def __init__(self, registries: Sequence[tuple[CollectorRegistry, Resource]]) -> None:
        self._registries = registries
        self._exporter = OTLPMetricExporter()
        self._start = time.time_ns()
        interval_ms = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or INTERVAL_MS)
        self._interval_s = interval_ms / 1000
        self._closed = Event()
        self._thread = Thread(target=self._run, name="otel-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Export once more, and stop."""
        self._closed.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        while True:
            ends = self._closed.wait(self._interval_s)
            # The exporter logs what fails and tries again; the next export has all numbers anyway.
            self._exporter.export(self._data())
            if ends:
                return

    def _data(self) -> MetricsData:
        now = time.time_ns()
        of_resources = []
        for registry, resource in self._registries:
            metrics = list(metrics_of(registry, self._start, now))
            scope = ScopeMetrics(SCOPE, metrics, "")
            of_resources.append(ResourceMetrics(resource, [scope], ""))
        return MetricsData(of_resources)


def metrics_of(registry: CollectorRegistry, start: int, now: int) -> Iterator[Metric]:
    """The families of a registry as metrics of OpenTelemetry, under the names that Prometheus
    shows; `start` and `now` in nanoseconds since 1970."""
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if data := _data_of(family, start, now):
            yield Metric(name, family.documentation, _unit(family.name), data)


def _data_of(family: Family, start: int, now: int) -> Sum | Gauge | Histogram | None:
    if family.type == "histogram":
        points = list(_histogram_points(family.samples, start, now))
        return Histogram(points, AggregationTemporality.CUMULATIVE) if points else None
    # A counter also has a sample with the moment at which it began.
    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    if not samples:
        return None
    numbers = [
        NumberDataPoint(sample.labels, start, now, float(sample.value)) for sample in samples
    ]
    if family.type == "counter":
        return Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Gauge(numbers)


def _histogram_points(
    samples: Sequence[Sample], start: int, now: int
) -> Iterator[HistogramDataPoint]:
    """One point for each set of labels: Prometheus counts up to each bound, OpenTelemetry between
    two."""
    cumulative: dict[Labels, dict[float, float]] = {}
    sums: dict[Labels, float] = {}
    for sample in samples:
        labels = tuple(pair for pair in sample.labels.items() if pair[0] != "le")
        if sample.name.endswith("_bucket"):
            cumulative.setdefault(labels, {})[float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, up_to in cumulative.items():
        bounds = sorted(up_to)
        counts: list[int] = []
        for bound in bounds:
            counts.append(int(up_to[bound]) - sum(counts))
        # The last bound, infinity, is not written down.
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=start,
            time_unix_nano=now,
            count=sum(counts),
            sum=sums[labels],
            bucket_counts=counts,
            explicit_bounds=bounds[:-1],
            min=NOT_KEPT,
            max=NOT_KEPT,
        )


class _Failures(logging.Handler):
    """What the SDK logs, an endpoint that is away above all, as an event of this process."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        log_event("telemetry_export_failed", logging.WARNING, reason=record.getMessage())


def _report_failures_to(handler: logging.Handler) -> None:
    logger = logging.getLogger("opentelemetry")
    logger.handlers[:] = [handler]
    logger.propagate = False


def _resource(process: str, attributes: Mapping[str, str]) -> Resource:
    own = {"service.version": __version__, **attributes}
    named = "OTEL_SERVICE_NAME" in os.environ
    if not named and f"{SERVICE_NAME}=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        own[SERVICE_NAME] = f"shoal-{process}"
    return Resource.create(own)


def _unit(name: str) -> str:
    for ending, unit in UNITS.items():
        if name.endswith(ending):
            return unit
    return "1"


def _nano(seconds: float) -> int:
    return int(seconds * NANO)
