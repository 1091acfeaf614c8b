"""A small federation whose model learns from private counts, run step by step with clients and
server in turn."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import load_config
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from tests.house.small_federation import clock, write_readings

FILE = """
[federation]
name = "{name}"
[[features]]
name = "warm"
low = -10
high = 50
[[features]]
name = "damp"
low = 0
high = 100
[privacy]
mode = "{mode}"
{privacy}
window_readings = {window}
{models}
[log]
address = "{address}"
[client]
folder = "clients"
publish_readings = 50
publish_s = 86400
batch_readings_max = 70
label = true
[server]
folder = "server"
pool_clients = 2
pool_s = 86400
snapshot_updates = 3
snapshot_s = 86400
port = 0
"""
CLIENTS = ("attic", "cellar")


def rooms(n: int, seed: int) -> NDArray[np.float64]:
    """(n, 2) synthetic readings in three clusters."""
    generator = np.random.default_rng(seed)
    middle = np.array([[5.0, 80.0], [20.0, 50.0], [35.0, 20.0]])
    return middle[generator.integers(0, 3, n)] + generator.normal(size=(n, 2)) * [1.5, 3.0]


def create(  # noqa: PLR0913, PLR0917 - each test says what differs from the small federation
    folder: Path,
    readings: int,
    mode: str = "formal",
    privacy: str = "counts_epsilon = 4",
    window: int = 50,
    grow: int = 200,
    models: str = "",
    first: str = "density_tree",
    address: str = "sqlite:federation.db",
    clients: Sequence[str] = CLIENTS,
) -> Path:
    """Write the federation file and the readings of its clients; returns the file.

    `first`: the algorithm of the model "clusters", before further `models`. On a broker, which
    several tests share, the federation has a unique name.
    """
    file = folder / "federation.toml"
    options = f"options = {{ grow_readings = {grow} }}\n" if first == "density_tree" else ""
    text = FILE.format(
        name="house" if address.startswith("sqlite:") else f"house-{uuid.uuid4().hex}",
        address=address,
        mode=mode,
        privacy=privacy,
        window=window,
        models=f'[[models]]\nname = "clusters"\nalgorithm = "{first}"\n{options}{models}',
    )
    file.write_text(text, encoding="utf-8")
    for seed, client in enumerate(clients):
        write_readings(load_config(file), client, rooms(readings, seed))
    return file


def run(file: Path, clients: Sequence[str] = CLIENTS) -> None:
    """Let clients and server take steps in turn until all are idle."""
    config = load_config(file)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(resumed(open_client(config, client, clock=clock)))
            for client in clients
        ]
        server = stack.enter_context(resumed(open_server(config, clock=clock)))
        while any([*(node.step() for node in nodes), server.step()]):
            pass
