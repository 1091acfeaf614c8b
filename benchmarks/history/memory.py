"""Resident memory of a process with a model, alone or with its history and its page.

Alone it is as `shoal server --no-page` would be without a history: the same modules, and a
checkpoint that it saves. Modules are compiled beforehand, as they are where shoal is installed.

python -m benchmarks.history.memory alone|whole FOLDER        prints MiB
python -m benchmarks.history.memory past FOLDER               writes the history that `whole` reads
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from statistics import median

import numpy as np
from prometheus_client import CollectorRegistry

import shoal.server_node.server_command  # noqa: F401 - what every server imports
from benchmarks.history.plant import CLIENT_NAMES, CLIENTS, CLUSTERS, CONTRACT, MODEL, START, Plant
from benchmarks.process import ONE_THREAD, footprint_of
from shoal.config.resolved import resolve
from shoal.protocol.history import BINS_KEPT, COARSE_S, FINE_S, HistoryBin, HistoryNames
from shoal.server_node.history.store import (
    HISTORY_FILE,
    HistoryReader,
    HistoryRecord,
    HistoryStore,
)
from shoal.server_node.report.status import ClientStatus, ServerStatus, StatusBoard

STEPS = 30
UPDATES_PER_STEP = 20
PATHS = ("", "page.css", "page.js", "v1/status", "v1/nodes", "v1/history?step=300", "v1/history")
"""what a browser reads of the page"""
PAST_BINS = {FINE_S: BINS_KEPT[FINE_S] - 1, COARSE_S: 1440}
"""bins before those of the process: two days and a month"""


def measured_memory(runs: int = 5) -> dict[str, float]:
    """MiB of a process that only learns, of one with history and page as well, and what these two
    add; medians."""
    alone = []
    whole = []
    with tempfile.TemporaryDirectory() as compiled:
        _run_in_new_folder("whole", compiled)
        for _ in range(runs):
            alone.append(float(_run_in_new_folder("alone", compiled)))
            whole.append(float(_run_in_new_folder("whole", compiled)))
    added = [more - less for more, less in zip(whole, alone, strict=True)]
    return {"alone_mib": median(alone), "whole_mib": median(whole), "added_mib": median(added)}


def _run_in_new_folder(which: str, compiled: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        if which == "whole":
            _run("past", folder, compiled)
        return _run(which, folder, compiled)


def _run(which: str, folder: str, compiled: str) -> str:
    """What it prints. `compiled` is the folder of Python's compiled modules."""
    command = [sys.executable, "-m", "benchmarks.history.memory", which, folder]
    environment = {**ONE_THREAD, "PYTHONPYCACHEPREFIX": compiled}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


def write_past(folder: Path) -> None:
    """Write the history of two days and a month before the plant begins, in which all clients feed
    all clusters."""
    rng = np.random.default_rng(2)
    origin = (CONTRACT.federation, CONTRACT.digest, MODEL)
    store = HistoryStore(resolve(CONTRACT), folder / HISTORY_FILE)
    clusters: list[list[int | str]] = [
        [i, f"cluster number {i}", "light high"] for i in range(CLUSTERS)
    ]
    messages: list[HistoryBin | HistoryNames] = [HistoryNames(*origin, CLIENT_NAMES, clusters)]
    for width, number in PAST_BINS.items():
        for start in range(int(START) - number * width, int(START), width):
            of_clusters, of_clients = (
                np.column_stack([np.arange(n), rng.poisson(100 * width / n, n)])
                for n in (CLUSTERS, CLIENTS)
            )
            messages.append(
                HistoryBin.of(
                    *origin,
                    width,
                    start,
                    0,
                    of_clusters.ravel().tolist(),
                    of_clients.ravel().tolist(),
                    [],
                )
            )
    store.apply([HistoryRecord(message.record_key, message) for message in messages])
    store.close()


def learn(folder: Path, with_history: bool) -> Plant:
    """A model after all clients have sent updates several times."""
    plant = Plant(folder, with_history)
    for _ in range(STEPS):
        plant.step(plant.updates(UPDATES_PER_STEP))
    return plant


def read_the_page(folder: Path, plant: Plant) -> None:
    """Serve the page of the model, and read it as a browser does."""
    # Its memory is part of what is measured.
    from shoal.server_node.outputs.web import page_server  # noqa: PLC0415 - measured

    now = plant.now
    clients = tuple(ClientStatus(f"client-{i:03}", now, 1, 600, 60.0) for i in range(CLIENTS))
    status = ServerStatus(resolve(CONTRACT), now, now, True, {MODEL: plant.status}, clients)
    web = page_server(
        StatusBoard(status), CollectorRegistry(), history=HistoryReader(folder / HISTORY_FILE)
    )
    port = web.start()
    try:
        for path in PATHS * 3:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
                while answer.read(4096):  # in pieces, as this process is not the browser
                    pass
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/v1/status/stream", timeout=60
        ) as answer:
            answer.readline()
    finally:
        web.stop()


def main(which: str, folder: Path) -> None:
    """Print the resident memory of this process at the end, or write the past."""
    if which == "past":
        write_past(folder)
        return
    if which == "whole":
        read_the_page(folder, learn(folder, with_history=True))
    else:
        learn(folder, with_history=False)
    print(json.dumps(footprint_of(os.getpid()).resident_mib))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
