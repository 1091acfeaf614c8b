"""A small federation in a folder: its file, its clients' readings, and its nodes run in a fixed
order until idle."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.client_nodes.bootstrap import open_client
from shoal.config.settings import Config, load_config
from shoal.protocol.codec import pack
from shoal.protocol.messages import Update
from shoal.protocol.readings import NUMBER, Reading, number_contents
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.transports import open_log
from shoal.transports.base import Record, beginning
from shoal.transports.sqlite.log import SqliteLog
from tests.federation_text import federation_text

CLIENTS = ("attic", "cellar", "garden")
FILE = """
[federation]
name = "{name}"
[[features]]
name = "warm"
unit = "°C"
low = -10
high = 50
[[features]]
name = "damp"
unit = "%"
low = 0
high = 100
[privacy]
mode = "formal"
epsilon_per_reading = 200
[[models]]
name = "clusters"
algorithm = "fcac"
[log]
address = "{address}"
[client]
folder = "clients"
publish_readings = {publish_readings}
publish_s = 86400
batch_readings_max = {batch_readings_max}
label = true
[server]
folder = "server"
pool_clients = {pool_clients}
pool_s = 86400
snapshot_updates = 3
snapshot_s = 86400
batch_updates_max = {batch_updates_max}
port = 0
"""


def write_federation(
    folder: Path,
    publish_readings: int = 50,
    batch_readings_max: int = 70,
    pool_clients: int = 3,
    batch_updates_max: int = 4,
    address: str = "sqlite:federation.db",
) -> Path:
    """Write a federation file. On a broker, which several tests share, the federation has a unique
    name."""
    path = folder / "federation.toml"
    text = federation_text(
        "house" if address.startswith("sqlite:") else f"house-{uuid.uuid4().hex}",
        features=[
            {"name": "warm", "unit": "°C", "low": -10, "high": 50},
            {"name": "damp", "unit": "%", "low": 0, "high": 100},
        ],
        privacy={"mode": "formal", "epsilon_per_reading": 200},
        log={"address": address},
        client={
            "folder": "clients",
            "publish_readings": publish_readings,
            "publish_s": 86400,
            "batch_readings_max": batch_readings_max,
            "label": True,
        },
        server={
            "folder": "server",
            "pool_clients": pool_clients,
            "pool_s": 86400,
            "snapshot_updates": 3,
            "snapshot_s": 86400,
            "batch_updates_max": batch_updates_max,
            "port": 0,
        },
    )
    path.write_text(text, encoding="utf-8")
    return path


def weather(n: int, seed: int) -> NDArray[np.float64]:
    """(n, 2) synthetic readings in three clusters, one of them only in the second half."""
    rng = np.random.default_rng(seed)
    kinds = np.array([[5.0, 80.0], [20.0, 50.0], [35.0, 20.0]])
    kind = np.where(np.arange(n) < n // 2, rng.integers(0, 2, n), rng.integers(0, 3, n))
    return kinds[kind] + rng.normal(size=(n, 2)) * [1.5, 3.0]


def write_readings(
    config: Config,
    client: str,
    readings: NDArray[np.float64],
    started_at: float = 1e9,
    log_clock: Callable[[], float] | None = None,
    notes_times: bool = False,
) -> None:
    """Append readings to a client's own log, with invalid ones among them.

    `log_clock`: when the log takes them in, by default its own time. `notes_times`: as a producer,
    note the time of a reading beside it too, for a contract whose times are public.
    """
    folder = config.client.folder / client
    folder.mkdir(parents=True, exist_ok=True)
    with closing(SqliteLog(folder / "readings.db", clock=log_clock)) as log:
        log.ensure(READINGS, READINGS_SETTINGS)
        for number, reading in enumerate(readings):
            headers = Reading.headers()
            if notes_times:
                [content] = number_contents([number], [started_at + number])
                headers = (*headers, (NUMBER, content))
            log.publish(READINGS, Reading(started_at + number, reading).encode(), headers=headers)
            if number % 60 == 0:
                log.publish(
                    READINGS,
                    Reading(started_at + number, [1.0, "wet"]).encode(),
                    headers=Reading.headers(),
                )
        log.flush()


def create_federation(
    folder: Path, clients: Sequence[str] = CLIENTS, readings: int = 400, **settings: Any
) -> Path:
    """Write the file and the clients' readings of a federation that has learnt nothing; returns the
    file."""
    file = write_federation(folder, **settings)
    config = load_config(file)
    for seed, client in enumerate(clients):
        write_readings(config, client, weather(readings, seed))
    return file


def give_noise_keys(
    folder: Path, clients: Sequence[str], *, of_host: bool = False, federation: str = "house"
) -> None:
    """Give clients of a federation that have learnt nothing fixed noise keys, so that their noise
    is the same after every power cut. `of_host`: they are of a host that takes their readings from
    one log."""
    for client in clients:
        client_folder = folder / "clients" / client
        owner = f"client {client} of {federation}"
        if of_host:
            path = folder / "clients" / "checkpoints.db"
            Checkpoint(path, owner, process=f"host of {federation}").close()
            client_folder.mkdir(parents=True, exist_ok=True)
        else:
            Checkpoint(client_folder / "checkpoint.db", owner).close()
        (client_folder / "noise.key").write_bytes(client.encode().ljust(32, b"k"))
        (client_folder / "noise.key").chmod(0o600)


def run_to_end(file: Path, clients: Sequence[str] = CLIENTS) -> None:
    """Run one client after the other, then the server, each until idle, so that the order of the
    log is fixed."""
    config = load_config(file)
    for client in clients:
        with resumed(open_client(config, client, clock=clock)) as node:
            while node.step():
                pass
    with resumed(open_server(config, clock=clock)) as server:
        while server.step():
            pass


def clock() -> float:
    """A clock that stands still, as results must not depend on time."""
    return 1e9


def model_bytes(server: ServerNode) -> bytes:
    """The state of the server's model, encoded."""
    return pack(server.models()["clusters"].state()["half"])


def final_model(file: Path) -> bytes:
    """The model in the server's checkpoint, encoded."""
    with resumed(open_server(load_config(file), clock=clock)) as server:
        return model_bytes(server)


def all_records(address: str, topic: str) -> list[Record]:
    """Every record of a topic."""
    with closing(open_log(address)) as log:
        at = beginning(log, topic)
        found = list[Record]()
        while True:
            records, at = log.read(topic, at)
            if not records:
                return found
            found += records


def updates_by_client(config: Config) -> dict[str, dict[int, list[Update]]]:
    """client -> sequence number -> every update in the log with that number."""
    found: dict[str, dict[int, list[Update]]] = {}
    for record in all_records(config.log.address, config.contract.updates_topic):
        update = Update.decode(record.value, record.headers)
        found.setdefault(update.client, {}).setdefault(update.sequence, []).append(update)
    return found


def contents(update: Update) -> bytes:
    """An update encoded without the time it was made."""
    parts: dict[str, Any] = {
        name: value for name, value in vars(update).items() if name != "made_at"
    }
    return pack(parts)
