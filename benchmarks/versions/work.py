"""What is timed: clients learn and publish, then servers absorb their updates, all in this process.

It is started as a script in this version and in the other one, so it uses only what both have. It prints JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import shoal
from client_nodes.bootstrap import open_client
from server_node.bootstrap import open_server
from shoal.config.settings import Config, load_config
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS
from shoal.runtime.readings_log import open_readings

MODEL = "clusters"
CLIENTS = 4
DIMENSIONS = 8
CENTRES = 20
SPREAD = 0.01
UPDATE_READINGS = 100
SERVERS = {"batches": "", "single": "batch_updates_max = 1\nsnapshot_updates = 1\n"}
"""name -> settings: with the defaults, and with a checkpoint and a snapshot for every update"""


class Node(Protocol):
    """A client or a server."""

    def step(self) -> bool: ...


def measure(folder: Path, updates: int) -> dict[str, Any]:
    """Processor seconds of all clients, and of a server with each of `SERVERS` on the updates that they published."""
    config, clients = _config(folder, "clients", ""), 0.0
    for number in range(CLIENTS):
        _write_readings(config, f"client-{number}", number, updates // CLIENTS * UPDATE_READINGS)
        with open_client(config, f"client-{number}", clock=_clock) as client:
            clients += _seconds(client)
    servers = {}
    for name, settings in SERVERS.items():
        shutil.copy(folder / "clients.db", folder / f"{name}.db")
        with open_server(_config(folder, name, settings), clock=_clock) as server:
            servers[name] = _seconds(server)
            snapshot = server.models()[MODEL].snapshot
    tree, absorbed = Path(shoal.__file__).parent.parent, 0 if snapshot is None else snapshot.updates
    return {"tree": str(tree), "absorbed": absorbed, "client": clients, **servers}


def _clock() -> float:
    """Always the same, so that nothing happens by time."""
    return 1_700_000_000.0


def _seconds(node: Node) -> float:
    """Processor time until nothing is left to do."""
    began = time.process_time()
    while node.step():
        pass
    return time.process_time() - began


def _config(folder: Path, name: str, server: str) -> Config:
    """A federation file whose log is `name`.db."""
    features = "".join(f'[[features]]\nname = "x{n}"\nlow = 0.0\nhigh = 1.0\n' for n in range(DIMENSIONS))
    file = folder / f"{name}.toml"
    file.write_text(
        f'[federation]\nname = "measured"\n{features}'
        f'[privacy]\nmode = "formal"\nepsilon_per_reading = {20.0 * DIMENSIONS}\n'
        f'[[models]]\nname = "{MODEL}"\nalgorithm = "fcac"\n[log]\naddress = "sqlite:{name}.db"\n'
        f'[client]\nfolder = "clients"\npublish_readings = {UPDATE_READINGS}\nbatch_readings_max = {UPDATE_READINGS}\n'
        f'[server]\nfolder = "{name}"\npool_clients = {CLIENTS}\n{server}',
        encoding="utf-8",
    )
    return load_config(file)


def _write_readings(config: Config, client: str, seed: int, readings: int) -> None:
    """Readings around the same centres for all clients."""
    centres = np.random.default_rng(CENTRES).uniform(size=(CENTRES, DIMENSIONS))
    generator = np.random.default_rng(seed)
    rows = centres[generator.integers(CENTRES, size=readings)] + generator.normal(0, SPREAD, (readings, DIMENSIONS))
    (config.client.folder / client).mkdir(parents=True)
    with closing(open_readings(config, client)) as log:
        for number, row in enumerate(rows):
            log.publish(READINGS, Reading(float(number), row).encode(), None, Reading.headers())
        log.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(measure(Path(scratch), int(sys.argv[1]))))
