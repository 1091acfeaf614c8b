"""The HTTP endpoints of a process without a page: /metrics, and /livez for a supervisor.

Prometheus reads the first; a supervisor restarts a process by the second.

Imported only where they are served: the libraries would be a sixth of the memory of a small
machine's client.
"""

from __future__ import annotations

from http.server import ThreadingHTTPServer
from threading import Thread

from prometheus_client import CollectorRegistry, MetricsHandler

from shoal.errors import SettingsError
from shoal.runtime.service import LIVE_S, Heartbeat


def serve(
    host: str, port: int, registry: CollectorRegistry, heartbeat: Heartbeat
) -> ThreadingHTTPServer:
    """Serve in a daemon thread until the process ends.

    Raises `SettingsError` when the address cannot be used.
    """

    class Answer(MetricsHandler):
        """/livez, and the metrics at every other path, as `MetricsHandler` does."""

        def do_GET(self) -> None:  # noqa: N802 - http.server requires this name
            if self.path != "/livez":
                super().do_GET()
                return
            if heartbeat.alive:
                status = 200
                text = "alive\n"
            else:
                status = 503
                text = f"no step for {LIVE_S:.0f} s\n"
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """No log line for every scrape."""

    Answer.registry = registry
    try:
        web = ThreadingHTTPServer((host, port), Answer)
    except OSError as taken:
        raise SettingsError(
            f"metrics at host {host}, port {port}: {taken.strerror}; choose others, or port 0 for "
            "none"
        ) from None
    web.daemon_threads = True
    Thread(target=web.serve_forever, name="metrics", daemon=True).start()
    return web
