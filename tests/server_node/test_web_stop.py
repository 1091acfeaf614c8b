"""Stopping a real server while browsers hold its event stream: the log of its operator stays
clean."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

from tests.noisy_rows import noisy_rows_file

TIMEOUT_S = 120
BUSY_SERVER = """
import sys
import shoal.server_node.outputs.web.page
from shoal.cli.main import main
shoal.server_node.outputs.web.page.INTERVAL_S = 3600.0
sys.argv = ["shoal", "server", "--config", "federation.toml"]
main()
"""
"""a server whose event streams do not notice for an hour that it stops, as under a load that leaves
them no time"""


def lines_up_to(server: subprocess.Popen[str], pattern: str) -> str:
    """The lines of its log up to the first one with the pattern."""
    assert server.stderr is not None
    lines = ""
    for line in server.stderr:
        lines += line
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"the server ended:\n{lines}")


def an_open_stream(port: str) -> HTTPResponse:
    """An event stream whose first event has come."""
    connection = HTTPConnection("127.0.0.1", int(port), timeout=TIMEOUT_S)
    connection.request("GET", "/v1/status/stream")
    answer = connection.getresponse()
    while not answer.readline().startswith(b"data: "):
        pass
    return answer


def test_a_server_that_stops_while_event_streams_are_open_logs_no_error(tmp_path: Path) -> None:
    text = noisy_rows_file("gaussians") + "\n[server]\nport = 0\n"
    (tmp_path / "federation.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", BUSY_SERVER]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        try:
            log = lines_up_to(server, address := r"http://127\.0\.0\.1:(\d+)")
            streams = [an_open_stream(re.findall(address, log)[-1]) for _ in range(3)]
            server.send_signal(signal.SIGTERM)
            log += server.communicate(timeout=TIMEOUT_S)[1]
        finally:
            server.kill()
    for stream in streams:
        stream.close()
    assert server.returncode == 0, log
    assert not re.search("Traceback|error|exception|cancel", log, re.IGNORECASE), log
