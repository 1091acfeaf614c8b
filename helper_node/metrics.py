"""The Prometheus metrics of a helper, and the endpoints that serve them: /metrics and /livez."""

from __future__ import annotations

import time
from http.server import ThreadingHTTPServer
from threading import Thread
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, MetricsHandler

from shoal.errors import SettingsError

LIVE_S: Final = 120.0
"""seconds without a step after which a helper does not live"""


class HelperMetrics:
    """The metrics of one helper."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.messages = Counter(
            "shoal_helper_messages", "Masked counts read, by result", ["result"], registry=self.registry
        )
        self.rounds = Counter(
            "shoal_helper_rounds", "Ends of rounds by result", ["model", "result"], registry=self.registry
        )
        self.clients = Gauge(
            "shoal_helper_clients", "Clients of the newest batch answered", ["model"], registry=self.registry
        )
        self.checkpoint_at = Gauge(
            "shoal_helper_checkpoint_timestamp_seconds", "When the newest checkpoint was saved", registry=self.registry
        )
        self._beat_at = time.monotonic()

    def beat(self) -> None:
        """Note that a step begins now."""
        self._beat_at = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the newest step began within the last `LIVE_S` seconds."""
        return time.monotonic() - self._beat_at < LIVE_S


def serve(host: str, port: int, metrics: HelperMetrics) -> ThreadingHTTPServer:
    """Serve in a daemon thread until the process ends. Raises `SettingsError` when the address cannot be used."""

    class Answer(MetricsHandler):
        """/livez, and the metrics at every other path, as `MetricsHandler` does."""

        def do_GET(self) -> None:  # noqa: N802 - http.server requires this name
            if self.path != "/livez":
                super().do_GET()
                return
            self.send_response(200 if metrics.alive else 503)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"alive\n" if metrics.alive else f"no step for {LIVE_S:.0f} s\n".encode())

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """No log line for every scrape."""

    Answer.registry = metrics.registry
    try:
        web = ThreadingHTTPServer((host, port), Answer)
    except OSError as taken:
        raise SettingsError(f"address {host}:{port}: {taken.strerror}; choose another --port, or none") from None
    web.daemon_threads = True
    Thread(target=web.serve_forever, name="metrics", daemon=True).start()
    return web
