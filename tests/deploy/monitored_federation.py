"""A real federation of processes, monitored by a real Prometheus, on this machine's loopback."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.config.settings import Config, load_config
from shoal.protocol.messages import Update
from shoal.transports import open_log
from tests.house.processes import Process, killed_on_exit
from tests.kafka_broker import free_ports

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
CLIENTS = ("client-1", "client-2")
MODELS = ("clusters", "three")
NAME = "first of"
TIMEOUT_S = 300.0
SECRET = 31.41592653589793
"""a value of a reading; it must be nowhere but in the client's own folder"""
SECRET_TEXT = "thirty-one-and-a-bit"
"""the value that a broken sensor sends instead of a number"""
FEDERATION = """
[federation]
name = "monitored"
[[features]]
name = "warm"
unit = "°C"
low = 0
high = 100
[[features]]
name = "damp"
low = 0
high = 100
[privacy]
mode = "formal"
epsilon_per_reading = 400.0
missing = "learn"
[[models]]
name = "clusters"
algorithm = "fcac"
[[models]]
name = "three"
algorithm = "kmeans"
source = "clusters"
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
class MonitoredFederation:
    """A running federation and its Prometheus."""

    folder: Path
    config: Config
    prometheus: str
    """http://127.0.0.1:port"""
    server: str
    clients: dict[str, str]
    """name -> URL of its metrics"""
    processes: list[Process]

    def output(self) -> str:
        """Everything that all processes wrote to standard error."""
        return "".join(process.log_text() for process in self.processes)


@contextmanager
def monitored_federation(folder: Path, prometheus: str) -> Iterator[MonitoredFederation]:
    """Two clients, a server, an endless producer, and `prometheus` (the program) that scrapes every
    second."""
    first_port = free_ports(2 + len(CLIENTS))
    server_port, prometheus_port, *client_ports = range(first_port, first_port + 2 + len(CLIENTS))
    files = {
        client: _write(
            folder / f"{client}.toml", FEDERATION.format(port=port, server_port=server_port)
        )
        for client, port in zip(CLIENTS, client_ports, strict=True)
    }
    first = files[CLIENTS[0]]
    processes: list[Process] = []
    with ExitStack() as stack:
        stack.enter_context(killed_on_exit(processes))
        for client, file in files.items():
            processes.append(
                Process(
                    ["client", "--config", str(file), "--name", client, "--json"], folder / client
                )
            )
        processes.append(
            Process(["server", "--config", str(first), "--json"], folder / "server.log")
        )
        _write_readings(folder / "readings.csv")
        producer = ["producer", "--config", str(first), str(folder / "readings.csv")]
        options = [
            "--time-column",
            "time",
            "--loop",
            "--rate",
            "300/s",
            "--clients",
            str(len(CLIENTS)),
        ]
        processes.append(Process([*producer, *options], folder / "producer.log"))
        ports = dict(zip(CLIENTS, client_ports, strict=True))
        url = stack.enter_context(scraped(folder, prometheus, prometheus_port, server_port, ports))
        urls = {
            client: f"http://127.0.0.1:{port}"
            for client, port in zip(CLIENTS, client_ports, strict=True)
        }
        server = f"http://127.0.0.1:{server_port}"
        federation = MonitoredFederation(folder, load_config(first), url, server, urls, processes)
        until(lambda: "shoal_round_number{" in fetched(f"{server}/metrics"), federation)
        for model in MODELS:
            name_a_cluster(federation, model)
        yield federation


def name_a_cluster(federation: MonitoredFederation, model: str) -> None:
    """Wait until the model has at least two known clusters, and give the first one a name that its
    metric shows."""

    def known() -> list[int]:
        clusters = json.loads(fetched(f"{federation.server}/v1/clusters?model={model}"))["clusters"]
        return [cluster["identity"] for cluster in clusters]

    until(lambda: len(known()) >= 2, federation)
    url = f"{federation.server}/v1/clusters/{known()[0]}/name?model={model}"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        url, json.dumps({"name": f"{NAME} {model}"}).encode(), headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 202
    until(lambda: f'name="{NAME} {model}"' in fetched(f"{federation.server}/metrics"), federation)


def publish_nonsense(federation: MonitoredFederation) -> None:
    """Publish a message among the updates that no server can accept."""
    with closing(open_log(federation.config.log)) as log:
        log.publish(
            federation.config.contract.updates_topic, b"nonsense", b"clusters", Update.headers()
        )
        log.flush()


def until(holds: Callable[[], bool], federation: MonitoredFederation) -> None:
    """Wait until `holds()`; `AssertionError` when a process ends or after `TIMEOUT_S`."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        dead = [process for process in federation.processes if not process.running()]
        assert not dead, dead[0].log_text()
        try:
            if holds():
                return
        except OSError:
            # The process does not listen yet, or is too busy to respond in time.
            pass
        assert time.monotonic() < end, f"{_alerts_now(federation)}\n{federation.output()[-3000:]}"
        time.sleep(0.1)


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _write_readings(path: Path) -> None:
    """Three clusters; now and then, for each client, the secret, a value out of bounds, one that is
    no number and one that is missing."""
    rng = random.Random(5)
    rows = ["time,warm,damp"]
    start = time.time()
    for number in range(600):
        warm, damp = rng.choice([(20.0, 80.0), (50.0, 30.0), (80.0, 70.0)])
        row = f"{rng.gauss(warm, 3)},{rng.gauss(damp, 3)}"
        special = {
            5: f"{SECRET!r},{SECRET!r}",
            15: f"{1000 * SECRET!r},50",
            25: f"{SECRET_TEXT},{SECRET!r}",
            35: f",{damp}",
        }
        rows.append(f"{start + number / 300:.3f},{special.get(number % 39, row)}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@contextmanager
def scraped(
    folder: Path, program: str, port: int, server: int, clients: Mapping[str, int]
) -> Iterator[str]:
    """Prometheus with the shipped standalone configuration, on other ports, scraping every
    second."""
    copy = folder / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", copy)
    text = (copy / "standalone.yml").read_text(encoding="utf-8")
    assert "127.0.0.1:8765" in text
    text = text.replace("127.0.0.1:8765", f"127.0.0.1:{server}").replace(
        "_interval: 15s", "_interval: 1s"
    )
    (copy / "standalone.yml").write_text(text, encoding="utf-8")
    targets = [
        {"targets": [f"127.0.0.1:{place}"], "labels": {"client": client}}
        for client, place in clients.items()
    ]
    # JSON is valid YAML.
    (copy / "clients.yml").write_text(json.dumps(targets), encoding="utf-8")
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={copy / 'standalone.yml'}",
                f"--storage.tsdb.path={folder / 'prometheus-data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _alerts_now(federation: MonitoredFederation) -> str:
    """The alerts and why each is there, for the message of a failed wait."""
    try:
        return fetched(f"{federation.prometheus}/api/v1/alerts")
    except OSError as unreachable:
        return f"Prometheus: {unreachable}"


def alerts(federation: MonitoredFederation) -> set[str]:
    """The names of the alerts that are pending or firing."""
    response = json.loads(fetched(f"{federation.prometheus}/api/v1/alerts"))
    return {alert["labels"]["alertname"] for alert in response["data"]["alerts"]}


def numbers_in(text: str) -> set[float]:
    """Every number in a text."""
    return {float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)}
