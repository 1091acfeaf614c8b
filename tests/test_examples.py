"""Examples that need a server, a broker or an installation, run against the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from server_node.status import StatusBoard
from server_node.web import page_server
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_http_client_lists_clusters_and_predicts() -> None:
    contract = a_contract()
    web = page_server(
        StatusBoard(a_status(contract, [a_snapshot(contract, some_nodes(2, 3, 30))])), CollectorRegistry()
    )
    url = f"http://127.0.0.1:{web.start()}"
    try:
        words = [sys.executable, "-W", "error", str(EXAMPLES / "http_client.py"), url]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    finally:
        web.stop()
    assert ended.stdout.count("cluster ") == 3, ended.stderr
    assert "their centres fall to [" in ended.stdout
    assert "this server reads no log" in ended.stderr, "this server has no log for events"
