"""A federation of real processes with a model of every algorithm, whose clients learn canaries;
what it leaves."""

from __future__ import annotations

import secrets
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.registry import (
    counting_names,
    rounds_algorithm,
    rounds_names,
    streaming_names,
)
from shoal.config.settings import Config, load_config
from shoal.onebox.audit.canaries import canary_readings
from shoal.protocol.messages import Update
from shoal.protocol.topics import LABELS, ensure_topics
from shoal.runtime.logs import open_readings
from shoal.transports import open_log
from shoal.transports.base import latest
from tests.forked_python import nodes
from tests.house.processes import TIMEOUT_S, Process, kill_all, wait_until
from tests.house.small_federation import all_records
from tests.kafka_broker import free_ports

CLIENTS = ("attic", "cellar")
READINGS = 150
PAGES = (
    "/",
    "/metrics",
    "/v1/status",
    "/v1/status/stream",
    "/v1/privacy",
    "/v1/clusters",
    "/v1/events",
    "/v1/labels",
    "/v1/clients",
    "/v1/nodes",
    "/livez",
    "/readyz",
)
PAGES_OF_A_MODEL = ("/v1/snapshot?model={}", "/v1/history?model={}", "/v1/rules?model={}")
# Nothing that a process measures or counts is negative, so no other number in logs and metrics
# lies within these bounds, whatever clocks, memory and process ids are.
FILE = """
[federation]
name = "canaries"
[[features]]
name = "warm"
low = -2000
high = -1000
[[features]]
name = "damp"
low = -9000
high = -5000
[privacy]
{privacy}
window_readings = 40
{models}
[client]
folder = "clients"
publish_readings = 50
label = true
metrics_port = {port}
[server]
folder = "server"
pool_clients = 1
snapshot_updates = 1
port = {server_port}
[log]
address = "sqlite:federation.db"
"""
PRIVACY = {
    "off": 'mode = "off"',
    "formal": 'mode = "formal"\nepsilon_per_reading = 4\ncounts_epsilon = 4',
    "users": 'mode = "formal"\ncounts_epsilon = 4\nunit = "user"\nreadings_per_window_max = 2',
}
"""what stands in [privacy]"""
MODELS = {
    "off": ("cluster_tree", "kmeans"),
    "formal": (*streaming_names(), *rounds_names()),
    "users": counting_names(),
}
"""algorithms of the models; with "off" only one of each family, of which the search is to find
canaries"""


class Left(NamedTuple):
    """What a federation has left outside its clients."""

    config: Config
    canaries: NDArray[np.float64]
    user_ids: frozenset[bytes]
    """of the readings, where a user is the privacy unit"""
    records: dict[str, bytes]
    """topic -> all records"""
    files: dict[str, bytes]
    """everything in the folder but the clients' folders and what the producer read"""
    pages: dict[str, bytes]
    logs: dict[str, bytes]
    """what each process wrote, its totals at the end included"""
    metrics: dict[str, bytes]


def run_with_canaries(folder: Path, mode: str) -> Left:
    """Run it until every client has published for every model and labelled all readings; then stop
    the processes."""
    names = [*MODELS[mode]]
    first = free_ports(3)
    ports = dict(zip((*CLIENTS, "server"), range(first, first + 3), strict=True))
    for client in CLIENTS:
        text = FILE.format(
            privacy=PRIVACY[mode],
            models=_models(names),
            port=ports[client],
            server_port=ports["server"],
        )
        (folder / f"{client}.toml").write_text(text, encoding="utf-8")
    config = load_config(folder / "attic.toml")
    canaries = canary_readings(config.contract.bounds, 2 * READINGS, np.random.default_rng(5))
    users = [secrets.token_hex(12) for _ in range(2 * READINGS)] if mode == "users" else []
    _write_csv(folder / "site.csv", canaries, users)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract)
    processes: dict[str, Process] = {}
    try:
        processes["server"] = _Recorded(
            folder / "server.txt", "server", "--config", str(folder / "attic.toml")
        )
        producer = _Recorded(
            folder / "producer.txt",
            "producer",
            "--config",
            str(folder / "attic.toml"),
            str(folder / "site.csv"),
            "--split",
            "column:site",
            "--time-column",
            "time",
            "--speed",
            "max",
            *(("--user-column", "who") if users else ()),
        )
        producer.end()
        for name in CLIENTS:
            file = str(folder / f"{name}.toml")
            processes[name] = _Recorded(
                folder / f"{name}.txt", "client", "--config", file, "--name", name, "--verbose"
            )
        wait_until(
            lambda: (
                _is_done(config, set(names))
                or not all(process.running() for process in processes.values())
            )
        )
        assert all(process.running() for process in processes.values()), _logs(folder)
        pages = {path: _fetched(ports["server"], path) for path in _pages(names)}
        metrics = {name: _fetched(port, "/metrics") for name, port in ports.items()}
        assert [process.stop() for process in processes.values()] == [0, 0, 0]
    finally:
        kill_all(process for process in processes.values() if process.running())
    ids = frozenset(user.encode() for user in users)
    return Left(
        config,
        canaries,
        ids,
        _records(config),
        _files(config, folder),
        pages,
        _logs(folder),
        metrics,
    )


class _Recorded(Process):
    """A process whose standard output is kept as well."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.arguments = [*arguments, "--json"]
        self._log = log
        log.touch()
        self._process = nodes().start(self.arguments, log, log, log.parent)


def _models(names: list[str]) -> str:
    """The tables of a model of each algorithm; those in rounds are asked often."""
    tables = []
    for name in names:
        table = f'[[models]]\nname = "{name.replace("_", "-")}"\nalgorithm = "{name}"\n'
        if name in rounds_names():
            asked = "clusters = 3" if rounds_algorithm(name).takes("clusters") else ""
            table += (
                f"options = {{ {asked} }}\nrounds = {{ rows_min = 5, deadline_s = 2.0, wake_s = 5.0"
                " }\n"
            )
        elif name == "states_from_counts":
            table += "options = { block_readings = 4 }\n"
        tables.append(table)
    return "".join(tables)


def _write_csv(path: Path, canaries: NDArray[np.float64], users: list[str]) -> None:
    """The canaries of both clients in turn, each of a user of its own if there are any."""
    lines = [
        f"{1e9 + number},{CLIENTS[number % 2]},{warm!r},{damp!r},{users[number] if users else ''}"
        for number, (warm, damp) in enumerate(canaries.tolist())
    ]
    path.write_text("\n".join(["time,site,warm,damp,who", *lines]) + "\n", encoding="utf-8")


def _is_done(config: Config, algorithms: set[str]) -> bool:
    """Whether each client has published for every model, and labelled its readings."""
    published: dict[str, set[str]] = {client: set() for client in CLIENTS}
    for record in all_records(config.log.address, config.contract.updates_topic):
        update = Update.decode(record.value, record.headers)
        published[update.client].add(update.algorithm)
    return all(
        published[client] == algorithms and _labels(config, client) >= READINGS
        for client in CLIENTS
    )


def _labels(config: Config, client: str) -> int:
    with closing(open_readings(config, client)) as log:
        return len(latest(log, LABELS))


def _pages(names: list[str]) -> list[str]:
    models = [name.replace("_", "-") for name in names]
    return [*PAGES, *(page.format(model) for page in PAGES_OF_A_MODEL for model in models)]


def _fetched(port: int, path: str) -> bytes:
    """The body, also of an error: it must not have a reading either."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_S) as answer:
            # The stream of the page never ends: its first message has the whole status.
            return bytes(answer.read1(2**22) if path == "/v1/status/stream" else answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.read()


def _records(config: Config) -> dict[str, bytes]:
    contract = config.contract
    topics = [contract.updates_topic, contract.snapshots_topic, contract.events_topic]
    topics += [contract.history_topic, contract.rejected_topic]
    return {
        topic: b"\0".join(record.value or b"" for record in all_records(config.log.address, topic))
        for topic in topics
    }


def _files(config: Config, folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and config.client.folder not in path.parents and path.name != "site.csv"
    }


def _logs(folder: Path) -> dict[str, bytes]:
    return {
        name: (folder / f"{name}.txt").read_bytes() for name in (*CLIENTS, "server", "producer")
    }
