"""What an answer costs a whole client node: with a readings log, a checkpoint and an outbox of its
own."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import spread
from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.node import ClientNode
from shoal.config.settings import Config, load_config
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS
from shoal.runtime.logs import open_readings
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode

D = 16
K = 10
SEED = 3
ALGORITHM = "kmeans"


def measured_clients(clients: int, rows: int, rounds: int) -> dict[str, Any]:
    """Processor microseconds of a client node for an answer, with `rows` rows in its window."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        config = _config(Path(folder), clients, rows)
        generator = np.random.default_rng(SEED)
        centres = generator.uniform(0.2, 0.8, size=(K, D))
        nodes: list[ClientNode] = []
        for number in range(clients):
            noise = generator.normal(0, 0.05, (rows, D))
            _write_readings(
                config,
                f"client-{number}",
                np.clip(centres[generator.integers(K, size=rows)] + noise, 0, 1),
            )
            nodes.append(stack.enter_context(resumed(open_client(config, f"client-{number}"))))
        server = stack.enter_context(resumed(open_server(config)))
        while not all(node.up_to_date and len(node.window) == rows for node in nodes):
            _round(nodes, server)
        _round(nodes, server)  # not timed: it also makes the clients known to the server
        used = [_round(nodes, server) / clients for _ in range(rounds)]
    found = {"algorithm": ALGORITHM, "clients": clients, "rows": rows, "K": K, "d": D}
    return found | {"answer_us": spread([1e6 * seconds for seconds in used])}


def _round(nodes: list[ClientNode], server: ServerNode) -> float:
    """Processor seconds of one step of each client, after which the server takes in what they have
    published."""
    began = time.thread_time()
    for node in nodes:
        node.step()
    used = time.thread_time() - began
    while server.step():
        pass
    return used


def _write_readings(
    config: Config, client: str, rows: np.ndarray[Any, np.dtype[np.float64]]
) -> None:
    (config.client.folder / client).mkdir(parents=True)
    with closing(open_readings(config, client)) as log:
        for number, row in enumerate(rows):
            log.publish(READINGS, Reading(float(number), row).encode(), None, Reading.headers())
        log.flush()


def _config(folder: Path, clients: int, rows: int) -> Config:
    features = "".join(f'[[features]]\nname = "x{n}"\nlow = 0.0\nhigh = 1.0\n' for n in range(D))
    file = folder / "federation.toml"
    file.write_text(
        f'[federation]\nname = "measured"\n{features}[privacy]\nmode = "off"\n[[models]]\nname ='
        f' "clusters"\nalgorithm = "{ALGORITHM}"\noptions = {{ clusters = {K}'
        " }\n[models.rounds]\nquorum = 1.0\ndeadline_s = 86400\ntolerance = 0.0\nrounds_max ="
        ' 10000\n[log]\naddress = "sqlite:federation.db"\n[client]\nfolder ='
        f' "clients"\nwindow_rows = {rows}\nbatch_readings_max = {rows}\n[server]\nfolder ='
        f' "server"\npool_clients = {clients}\npool_s = 86400\n',
        encoding="utf-8",
    )
    return load_config(file)
