"""A collector of OpenTelemetry on the loopback."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


class Collector:
    """An OTLP/HTTP receiver on the loopback that keeps what it is sent."""

    def __init__(self) -> None:
        self.received: dict[str, list[Any]] = {path: [] for path in REQUESTS}
        collector = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.received[self.path].append(REQUESTS[self.path].FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Nothing on the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def metrics(self) -> dict[str, Any]:
        """name -> metric, of the newest request."""
        resource = self.received["/v1/metrics"][-1].resource_metrics[0]
        return {metric.name: metric for metric in resource.scope_metrics[0].metrics}

    def spans(self) -> list[Any]:
        """All spans."""
        return [span for _, span in self.spans_of_resources()]

    def spans_of_resources(self) -> list[tuple[dict[str, Any], Any]]:
        """(attributes of its resource, span) of all spans."""
        found = []
        for request in self.received["/v1/traces"]:
            for of_resource in request.resource_spans:
                attributes = attributes_of(of_resource.resource)
                for scope in of_resource.scope_spans:
                    found += [(attributes, span) for span in scope.spans]
        return found

    def resources(self) -> list[dict[str, Any]]:
        """Attributes of the resources whose metrics the newest request has."""
        newest = self.received["/v1/metrics"][-1]
        return [attributes_of(of.resource) for of in newest.resource_metrics]

    def close(self) -> None:
        """Receive no more."""
        self.server.shutdown()
        self.server.server_close()


def attributes_of(described: Any) -> dict[str, Any]:
    """The attributes of a span or of a resource."""
    found = {}
    for attribute in described.attributes:
        kind = attribute.value.WhichOneof("value")
        found[attribute.key] = getattr(attribute.value, kind)
    return found
