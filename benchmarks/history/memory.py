"""Resident memory of a process with a model, alone or with its history and its page.

python -m benchmarks.history.memory alone|whole        prints MiB
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks.history.plant import CLIENTS, CONTRACT, MODEL, Plant
from benchmarks.process import ONE_THREAD, footprint_of
from server_node.history.store import HISTORY_FILE, HistoryReader
from server_node.status import ClientStatus, ServerStatus, StatusBoard

STEPS, UPDATES_PER_STEP = 30, 20
PATHS = ("", "page.css", "page.js", "status", "nodes", "v1/history?step=300", "v1/history")
"""what a browser reads of the page"""


def measured_memory() -> dict[str, float]:
    """MiB of a process that only learns, of one with history and page as well, and what these two add."""
    found = {}
    for which in ("alone", "whole"):
        command = [sys.executable, "-m", "benchmarks.history.memory", which]
        ended = subprocess.run(command, env=ONE_THREAD, check=True, capture_output=True, text=True)
        found[which] = float(ended.stdout)
    return {"alone_mib": found["alone"], "whole_mib": found["whole"], "added_mib": found["whole"] - found["alone"]}


def learn(folder: Path | None) -> Plant:
    """A model after all clients have sent updates several times."""
    plant = Plant(folder)
    for _ in range(STEPS):
        plant.step(plant.updates(UPDATES_PER_STEP))
    return plant


def read_the_page(folder: Path, plant: Plant) -> None:
    """Serve the page of the model, and read it as a browser does."""
    from server_node.web import page_server  # noqa: PLC0415 - its memory is part of what is measured

    now = plant.now
    clients = tuple(ClientStatus(f"client-{i:03}", now, 1, 600, 60.0) for i in range(CLIENTS))
    status = ServerStatus(CONTRACT, now, now, True, {MODEL: plant.status}, clients)
    web = page_server(StatusBoard(status), CollectorRegistry(), history=HistoryReader(folder / HISTORY_FILE))
    port = web.start()
    try:
        for path in PATHS * 3:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
                answer.read()
    finally:
        web.stop()


def main(which: str) -> None:
    """Print the resident memory of this process at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        if which == "whole":
            read_the_page(Path(scratch), learn(Path(scratch)))
        else:
            learn(None)
        print(json.dumps(footprint_of(os.getpid()).resident_mib))


if __name__ == "__main__":
    main(sys.argv[1])
