"""What a client answers over HTTP, to its own premises: /metrics for Prometheus, /livez for whoever restarts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from threading import Thread

from prometheus_client import CollectorRegistry, MetricsHandler

from client_nodes.node import ClientNode
from shoal.errors import SettingsError

LIVE_S = 120.0
"""a step of a healthy client is over sooner, also when no broker answers: its longest waits are of 30 s"""


class Pulse:
    """When the client's loop last came round. `clock`: seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()

    def beat(self) -> None:
        """The loop has come round."""
        self._at = self._clock()

    @property
    def alive(self) -> bool:
        """Whether it did within `LIVE_S`."""
        return self._clock() - self._at < LIVE_S


class Beating:
    """A node whose steps are felt."""

    def __init__(self, node: ClientNode, pulse: Pulse) -> None:
        self._node, self._pulse = node, pulse
        pulse.beat()

    def step(self, timeout_s: float = 0.0) -> bool:
        """See `ClientNode.step`."""
        self._pulse.beat()
        return self._node.step(timeout_s)


def serve(host: str, port: int, registry: CollectorRegistry, pulse: Pulse) -> ThreadingHTTPServer:
    """Answer until the process ends, from a thread that keeps nobody waiting. Raises `SettingsError`: port taken."""

    class Answer(MetricsHandler):
        """/livez, and the metrics at every other address, as their library does."""

        def do_GET(self) -> None:  # noqa: N802 - the name http.server looks for
            if self.path != "/livez":
                super().do_GET()
                return
            self.send_response(200 if pulse.alive else 503)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"alive\n" if pulse.alive else f"no step for {LIVE_S:.0f} s\n".encode())

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
