"""The health check of containers: its exit code for a status of 200, for another, and without a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

HEALTH_CHECK = Path(__file__).parent.parent.parent / "deploy" / "health_check.py"


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthy" else 503)
        self.end_headers()
        self.wfile.write(b"the reason\n")

    def log_request(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    web = HTTPServer(("127.0.0.1", 0), Page)
    Thread(target=web.serve_forever, daemon=True).start()
    yield web.server_port
    web.shutdown()
    web.server_close()


def check(port: int, path: str) -> tuple[int, str]:
    command = [sys.executable, "-IS", str(HEALTH_CHECK), str(port), path]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not ended.stderr
    return ended.returncode, ended.stdout.strip()


def test_only_a_status_of_200_is_healthy(port: int) -> None:
    assert check(port, "/healthy") == (0, "the reason")
    assert check(port, "/unhealthy") == (1, "the reason")


def test_without_a_server_it_is_unhealthy(port: int) -> None:
    web = HTTPServer(("127.0.0.1", 0), Page)
    web.server_close()
    code, output = check(web.server_port, "/healthy")
    assert (code, "refused" in output) == (1, True)
