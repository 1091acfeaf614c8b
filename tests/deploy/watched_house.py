"""A real federation of processes with a real Prometheus that watches it, on this machine's loopback."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.config.settings import Config, load_config
from shoal.protocol.messages import Update
from shoal.transports import open_log
from tests.house.processes import Process, none_left_over

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
CLIENTS = ("client-1", "client-2")
PATIENCE_S = 90.0
SECRET = 31.41592653589793
"""a reading's value that is looked for everywhere, and must be nowhere but in the client's own folder"""
SECRET_WORD = "thirty-one-and-a-bit"
"""what a broken sensor says instead of a number"""
FEDERATION = """
[federation]
name = "watched"
[[features]]
name = "warm"
low = 0
high = 100
[[features]]
name = "damp"
low = 0
high = 100
[privacy]
mode = "formal"
epsilon_per_reading = 400.0
[[models]]
name = "clusters"
algorithm = "fcac"
[[models]]
name = "heaps"
algorithm = "kmeans"
options = {{ clusters = 3 }}
rounds = {{ wake_s = 1.0, deadline_s = 5.0 }}
[client]
metrics_port = {port}
publish_readings = 50
label = true
[server]
port = {server_port}
snapshot_updates = 4
snapshot_s = 1.0
"""


@dataclass
class WatchedHouse:
    """A federation that runs, and who watches it."""

    folder: Path
    config: Config
    prometheus: str
    """http://127.0.0.1:port"""
    server: str
    clients: dict[str, str]
    """name -> where its metrics are"""
    processes: list[Process]

    def said(self) -> str:
        """Everything all processes wrote to standard error."""
        return "".join(process.said() for process in self.processes)


@contextmanager
def watched_house(folder: Path, prometheus: str) -> Iterator[WatchedHouse]:
    """Two clients, a server, a producer that goes on and on, and `prometheus` (the program) asking every second."""
    server_port, prometheus_port, *client_ports = free_ports(2 + len(CLIENTS))
    files = {
        client: _written(folder / f"{client}.toml", FEDERATION.format(port=port, server_port=server_port))
        for client, port in zip(CLIENTS, client_ports, strict=True)
    }
    first = files[CLIENTS[0]]
    processes: list[Process] = []
    with ExitStack() as stack:
        stack.enter_context(none_left_over(processes))
        for client, file in files.items():
            processes.append(Process(["client", "--config", str(file), "--name", client, "--json"], folder / client))
        processes.append(Process(["server", "--config", str(first), "--json"], folder / "server.log"))
        _write_readings(folder / "readings.csv")
        feed = ["producer", "--config", str(first), str(folder / "readings.csv")]
        pace = ["--time-column", "time", "--loop", "--rate", "300/s", "--clients", str(len(CLIENTS))]
        processes.append(Process([*feed, *pace], folder / "producer.log"))
        url = stack.enter_context(_prometheus(folder, prometheus, prometheus_port, server_port, client_ports))
        places = {client: f"http://127.0.0.1:{port}" for client, port in zip(CLIENTS, client_ports, strict=True)}
        server = f"http://127.0.0.1:{server_port}"
        house = WatchedHouse(folder, load_config(first), url, server, places, processes)
        until(lambda: "shoal_round " in (page := fetched(f"{server}/metrics")) or "shoal_round{" in page, house)
        yield house


def send_nonsense(house: WatchedHouse) -> None:
    """Something in the updates that no server can accept."""
    with closing(open_log(house.config.log)) as log:
        log.publish(house.config.contract.updates_topic, b"nonsense", b"clusters", Update.headers())
        log.flush()


def until(holds: Callable[[], bool], house: WatchedHouse) -> None:
    """Wait for a condition while all processes run."""
    end = time.monotonic() + PATIENCE_S
    while True:
        dead = [process for process in house.processes if not process.running()]
        assert not dead, dead[0].said()
        try:
            if holds():
                return
        except OSError:
            # Not listening yet, or too busy to answer in time.
            pass
        assert time.monotonic() < end, house.said()[-3000:]
        time.sleep(0.1)


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def free_ports(number: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on just now."""
    with ExitStack() as stack:
        taken = [stack.enter_context(closing(socket.socket())) for _ in range(number)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _write_readings(path: Path) -> None:
    """Three heaps; now and then, at each client in turn, the secret, one out of bounds, one that is no number."""
    chance = random.Random(5)
    rows = ["time,warm,damp"]
    began = time.time()
    for number in range(600):
        warm, damp = chance.choice([(20.0, 80.0), (50.0, 30.0), (80.0, 70.0)])
        row = f"{chance.gauss(warm, 3)},{chance.gauss(damp, 3)}"
        odd = {5: f"{SECRET!r},{SECRET!r}", 15: f"{1000 * SECRET!r},50", 25: f"{SECRET_WORD},{SECRET!r}"}
        rows.append(f"{began + number / 300:.3f},{odd.get(number % 39, row)}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@contextmanager
def _prometheus(folder: Path, program: str, port: int, server: int, clients: list[int]) -> Iterator[str]:
    """The shipped standalone configuration on other ports, asking every second."""
    home = folder / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", home)
    text = (home / "standalone.yml").read_text(encoding="utf-8")
    assert "127.0.0.1:8765" in text
    text = text.replace("127.0.0.1:8765", f"127.0.0.1:{server}").replace("_interval: 15s", "_interval: 1s")
    (home / "standalone.yml").write_text(text, encoding="utf-8")
    targets = [
        {"targets": [f"127.0.0.1:{place}"], "labels": {"client": client}}
        for client, place in zip(CLIENTS, clients, strict=True)
    ]
    # Of YAML, JSON is a part.
    (home / "clients.yml").write_text(json.dumps(targets), encoding="utf-8")
    with (folder / "prometheus.log").open("wb") as said:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={home / 'standalone.yml'}",
                f"--storage.tsdb.path={folder / 'prometheus-data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def alerts(house: WatchedHouse) -> set[str]:
    """Names of the alerts that wait or fire."""
    told = json.loads(fetched(f"{house.prometheus}/api/v1/alerts"))
    return {alert["labels"]["alertname"] for alert in told["data"]["alerts"]}


def numbers_in(text: str) -> set[float]:
    """Every number that stands in a text."""
    return {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)}
