"""Row F8: floods on `/v1` and `/metrics`, odd parameters, and scrapers that never read what they
asked for."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.hostile.served_page import ServedPage, serving
from tests.house.processes import wait_until

PATHS = (
    "/v1/changes?from=" + "9" * 5000,
    "/v1/changes?from=-1e308&to=1e308",
    "/v1/changes?from=0&to=4102444800",
    "/v1/anomalies?from=" + "9" * 5000,
    "/v1/anomalies?from=-1e308&to=1e308",
    "/v1/anomalies?from=0&to=4102444800",
    "/v1/history?limit=999999999999999999999",
    "/v1/history?limit=-1",
    "/v1/events?limit=1e9",
    "/v1/clusters?model=" + "%00" * 1000,
    "/v1/snapshot?model=../../etc/passwd",
    "/v1/" + "a" * 60_000,
    "/metrics?name[]=" + "x" * 8000,
    "/v1/status",
    "/metrics",
)
THREADS = 24
SECONDS = 4.0


def resident_mib(page: ServedPage) -> float:
    pages = int(Path(f"/proc/{page.process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def test_floods_and_odd_parameters_are_answered_or_refused_and_leave_the_page_as_it_was(
    tmp_path: Path,
) -> None:
    statuses: set[int] = set()
    with serving(tmp_path) as page, ExitStack() as unread:
        assert page.request("/v1/status").status == 200
        odd = {path[:60]: page.request(path).status for path in PATHS}
        assert {name for name, status in odd.items() if status == 500} == set(), odd
        assert odd["/v1/status"] == odd["/metrics"] == 200
        before = resident_mib(page)
        for _ in range(20):  # scrapers that ask and never read
            connection = unread.enter_context(page.socket())
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50)
        until = time.monotonic() + SECONDS

        def flood(first: int) -> None:
            number = first
            while time.monotonic() < until:
                with suppress(OSError):
                    statuses.add(page.request(PATHS[number % len(PATHS)]).status)
                number += 1

        threads = [threading.Thread(target=flood, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        unread.close()
        assert page.running()
        wait_until(lambda: page.request("/v1/status").status == 200)
        assert resident_mib(page) - before < 100
        assert 429 in statuses
        assert 500 not in statuses, sorted(statuses)
        assert "Traceback" not in page.log_text()
