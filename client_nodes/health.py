"""What a client answers over HTTP, to its own premises: /metrics for Prometheus, /livez for whoever restarts it.

Loaded only by a client that is asked to answer: on a small machine the libraries it takes are a sixth of its memory.
"""

from __future__ import annotations

from http.server import ThreadingHTTPServer
from threading import Thread

from prometheus_client import CollectorRegistry, MetricsHandler

from client_nodes.heartbeat import LIVE_S, Heartbeat
from shoal.errors import SettingsError


def serve(host: str, port: int, registry: CollectorRegistry, heartbeat: Heartbeat) -> ThreadingHTTPServer:
    """Answer until the process ends, from a thread that keeps nobody waiting. Raises `SettingsError`: port taken."""

    class Answer(MetricsHandler):
        """/livez, and the metrics at every other address, as their library does."""

        def do_GET(self) -> None:  # noqa: N802 - the name http.server looks for
            if self.path != "/livez":
                super().do_GET()
                return
            self.send_response(200 if heartbeat.alive else 503)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"alive\n" if heartbeat.alive else f"no step for {LIVE_S:.0f} s\n".encode())

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Nobody needs a line for every scrape."""

    Answer.registry = registry
    try:
        web = ThreadingHTTPServer((host, port), Answer)
    except OSError as taken:
        raise SettingsError(
            f"metrics_host {host}, metrics_port {port}: {taken.strerror}; choose others, or port 0 for none"
        ) from None
    web.daemon_threads = True
    Thread(target=web.serve_forever, name="metrics", daemon=True).start()
    return web
