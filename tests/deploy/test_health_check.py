"""The question that health checks ask: whether a process answers 200, told by the exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

ANSWERS = Path(__file__).parent.parent.parent / "deploy" / "health_check.py"


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/well" else 503)
        self.end_headers()
        self.wfile.write(b"and why not\n")

    def log_request(self, *said: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    web = HTTPServer(("127.0.0.1", 0), Page)
    Thread(target=web.serve_forever, daemon=True).start()
    yield web.server_port
    web.shutdown()
    web.server_close()


def asked(port: int, path: str) -> tuple[int, str]:
    words = [sys.executable, "-IS", str(ANSWERS), str(port), path]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not ended.stderr
    return ended.returncode, ended.stdout.strip()


def test_two_hundred_is_well_and_all_else_is_not(port: int) -> None:
    assert asked(port, "/well") == (0, "and why not")
    assert asked(port, "/ill") == (1, "and why not")


def test_nobody_there_is_not_well(port: int) -> None:
    web = HTTPServer(("127.0.0.1", 0), Page)
    web.server_close()
    code, said = asked(web.server_port, "/well")
    assert (code, "refused" in said) == (1, True)
