"""The health check of containers: its exit code for a status of 200, for another, and without a
server."""

from __future__ import annotations

import os
import runpy
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import Any

import pytest

from tests.certificates import self_signed

HEALTH_CHECK = Path(__file__).parent.parent.parent / "deploy" / "health_check.py"


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        needs_token = self.path == "/guarded" and self.headers["authorization"] != "Bearer a-token"
        self.send_response(
            200 if self.path in ("/healthy", "/guarded") and not needs_token else 503
        )
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


def check(port: int, path: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-IS", str(HEALTH_CHECK), str(port), path]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment
    )
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


def test_it_sends_the_token_where_the_server_needs_one(port: int, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token\n", encoding="ascii")
    assert check(port, "/guarded")[0] == 1
    assert check(port, "/guarded", SHOAL_SERVER_TOKEN_FILE=str(tmp_path / "token"))[0] == 0
    assert check(port, "/guarded", SHOAL_SERVER_TOKEN_FILE=str(tmp_path / "missing"))[0] == 1


def test_it_connects_by_tls_where_the_server_has_a_certificate(tmp_path: Path) -> None:
    self_signed(tmp_path, "shoal.example")
    web = HTTPServer(("127.0.0.1", 0), Page)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    web.socket = context.wrap_socket(web.socket, server_side=True)
    Thread(target=web.serve_forever, daemon=True).start()
    given = {"SHOAL_SERVER_CERTIFICATE_FILE": str(tmp_path / "certificate.pem")}
    assert check(web.server_port, "/healthy", **given) == (0, "the reason")
    web.shutdown()
    web.server_close()


def ended(*words: str | Path) -> tuple[int, str]:
    command = [sys.executable, "-IS", str(HEALTH_CHECK), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


def test_a_file_that_is_written_is_a_sign_of_life(tmp_path: Path) -> None:
    file = tmp_path / "readings.db"
    assert ended("written", file, "60")[0] == 1
    file.write_bytes(b"")
    os.utime(file, (0, 0))
    code, reason = ended("written", file, "60")
    assert (code, "was not written for" in reason) == (1, True)
    (tmp_path / "readings.db-wal").write_bytes(b"")
    assert ended("written", file, "60") == (0, "")


def test_a_connection_counts_only_where_it_leaves_the_container() -> None:
    """Tables as /proc/net has them: of the loopback only, and of a broker at 172.18.0.2:9092."""
    namespace: dict[str, Any] = runpy.run_path(str(HEALTH_CHECK))
    with NamedTemporaryFile("w", suffix=".tcp") as table:
        for line, leaves in (
            ("0100007F:0016 0100007F:A0F2 01", False),
            ("030012AC:9C40 020012AC:2384 01", True),
            ("00000000:2238 00000000:0000 0A", False),
            ("030012AC:9C40 020012AC:2384 06", False),
        ):
            table.seek(0)
            table.truncate()
            table.write(f"  sl  local_address rem_address st\n   0: {line} 00000000:00000000\n")
            table.flush()
            assert namespace["has_connection"](table.name) is leaves, line
