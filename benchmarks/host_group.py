"""Three hosts of a group on one machine, of which one is killed and another one is added."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import click
import numpy as np
from kafka import KafkaAdminClient, KafkaProducer

from benchmarks.host import CLIENTS_MAX, DIMENSIONS, SEED, TOPIC, WAIT_S, federation
from benchmarks.machine import facts, one_line
from benchmarks.process import ONE_THREAD, check_proc, footprint_of, free_port, free_ports
from benchmarks.results import out_option, quick_option, rounded, table, write
from deploy.kafka import broker
from shoal.protocol.readings import Reading

POLL_S = 1.0
HOSTS = 3
LEAST_DEVIATIONS = 4.0
"""standard deviations by which the number of devices of a partition may be below the mean: they are
dealt by a hash of their names"""
TURN_S = 90.0
"""longest time between two turns of the clients of a partition: they rest up to 60 s"""


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few devices, in seconds")
@click.option("--devices", type=click.IntRange(1), default=10_000, show_default=True)
@click.option(
    "--every",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    help="Seconds between two readings of a device.",
)
@click.option("--partitions", type=click.IntRange(HOSTS), default=6, show_default=True)
@out_option("host_group")
def main(quick: bool, devices: int, every: float, partitions: int, out: Path) -> None:
    """Measure three real `shoal host` of a group on a broker of its own, whose devices each send a
    reading at intervals: how long clients take to go on after a kill and after a host was added,
    and memory.

    Linux only: the figures are read from /proc. Needs what a broker of the tests needs.
    """
    if quick:
        devices = 12
        every = 2.0
    check_proc()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(Path(scratch), devices, every, partitions)
    result = {
        "made_by": f"python -m benchmarks host_group --devices {devices} --every {every:g}"
        f" --partitions {partitions}",
        "machine": facts(("shoal", "numpy", "msgpack", "kafka-python")),
        "stream": {"devices": devices, "every": every, "partitions": partitions, "d": DIMENSIONS},
        **figures,
    }
    write(out, "host_group", result, markdown(result))
    click.echo(f"written to {out}/host_group.json and {out}/host_group.md")


class MeasuredHost:
    """A `shoal host` of the group, and what its metrics say."""

    def __init__(self, folder: Path, number: int, address: str) -> None:
        own = folder / f"host-{number}"
        own.mkdir()
        self._port = free_port()
        file = own / "federation.toml"
        file.write_text(_federation(folder, self._port, address), encoding="utf-8")
        command = [sys.executable, "-m", "shoal", "host", "--config", str(file), "--no-wait"]
        command += ["--json", "--clients-max", str(CLIENTS_MAX)]
        with (own / "host.log").open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=errors, env=ONE_THREAD, cwd=own
            )

    def metrics(self) -> dict[str, float]:
        """Its series by name, none while it starts. Raises RuntimeError where it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError("a host has ended")
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=WAIT_S) as answer:
                lines = answer.read().decode().splitlines()
        except URLError:
            return {}
        series = {}
        for line in lines:
            name, _, value = line.rpartition(" ")
            if not line.startswith("#"):
                series[name] = float(value)
        return series


def measure(folder: Path, devices: int, every: float, partitions: int) -> dict[str, Any]:
    """Start three hosts, kill one once all clients have begun, and add one once all go on."""
    figures: dict[str, Any] = {}
    port = free_ports()
    cluster = broker.cluster_of(folder / "kafka", port)
    (folder / "site.key").write_bytes(bytes(range(32)))
    (folder / "site.key").chmod(0o600)
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        (kafka,) = broker.start(cluster)
        stack.callback(kafka.wait)
        stack.callback(kafka.terminate)
        _make_topic(address, partitions)
        sent = _Sent(address, devices, every)
        hosts = [MeasuredHost(folder, number, address) for number in range(HOSTS)]
        stack.callback(_end, hosts)
        stack.enter_context(sent)
        began = time.monotonic()
        _wait(hosts, lambda: _sum(hosts, "shoal_host_readings_total", "read") >= devices)
        figures["first_start_s"] = time.monotonic() - began
        figures["lag_before"] = _lag(hosts)
        # While the group is divided anew, a host has no partition for a moment.
        _wait(hosts, lambda: _begun(hosts[0].metrics()) > 0)
        peaks = [footprint_of(host.process.pid).peak_mib for host in hosts]
        killed = hosts.pop(0)
        figures["clients_of_killed"] = _begun(killed.metrics())
        killed.process.kill()
        began = time.monotonic()
        _wait(hosts, lambda: _sum(hosts, "shoal_host_partitions") == partitions)
        figures["partitions_of_killed_s"] = time.monotonic() - began
        figures["restored_s"] = max(host.metrics()["shoal_host_takeover_seconds"] for host in hosts)
        figures["lag_at_most"] = _wait(hosts, lambda: _goes_on(hosts, sent, devices))
        figures["all_go_on_s"] = time.monotonic() - began
        hosts.append(MeasuredHost(folder, HOSTS, address))
        began = time.monotonic()
        _wait(hosts, lambda: hosts[-1].metrics().get("shoal_host_partitions", 0.0) > 0)
        figures["added_has_partitions_s"] = time.monotonic() - began
        share = _least_share(devices / partitions)
        _wait(hosts, lambda: _has_opened(hosts[-1], share) and _goes_on(hosts, sent, devices))
        figures["all_go_on_with_added_s"] = time.monotonic() - began
        peaks += [footprint_of(host.process.pid).peak_mib for host in hosts]
    figures["peak_mib"] = max(peaks)
    return figures


def _make_topic(address: str, partitions: int) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        made = {"num_partitions": partitions, "replication_factor": 1}
        admin.create_topics({TOPIC: made})


class _Sent:
    """Sends a reading of each device at intervals, spread over time, until it is left."""

    def __init__(self, address: str, devices: int, every: float) -> None:
        self.number = 0
        """readings so far"""
        self._address = address
        self._devices = devices
        self.every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _send(self) -> None:
        rows = np.random.default_rng(SEED).random((self._devices, DIMENSIONS))
        headers = list(Reading.headers())
        began = time.monotonic()
        with closing(KafkaProducer(bootstrap_servers=self._address)) as producer:
            while not self._stop.wait(0.1):
                due = int((time.monotonic() - began) * self._devices / self.every)
                for number in range(self.number, due):
                    device = number % self._devices
                    value = Reading(time.time(), rows[device]).encode()
                    producer.send(TOPIC, value, b"d%d" % device, headers)
                producer.flush()
                self.number = max(self.number, due)


def _goes_on(hosts: Sequence[MeasuredHost], sent: _Sent, devices: int) -> bool:
    """Whether every client is open or has nothing to do, and no more waits than comes while clients
    rest."""
    clients = sum(_begun(host.metrics()) for host in hosts)
    few = max(TURN_S * devices / sent.every, 10.0)
    return sent.number >= devices and clients >= devices and _lag(hosts) <= few


def _least_share(mean: float) -> float:
    """Devices that a partition has at least, where it has so many on average."""
    return max(0.0, mean - LEAST_DEVIATIONS * math.sqrt(mean))


def _has_opened(host: MeasuredHost, share: float) -> bool:
    """Whether a host has so many clients that have begun for each of its partitions.

    Until a host that loses a partition has ended its step it counts those clients as its own.
    """
    metrics = host.metrics()
    return _begun(metrics) >= share * metrics.get("shoal_host_partitions", math.inf)


def _begun(metrics: Mapping[str, float]) -> float:
    """Clients of a host that are open, or closed as they have nothing to do."""
    states = ("open", "away")
    return sum(metrics.get(f'shoal_host_clients{{state="{state}"}}', 0.0) for state in states)


def _lag(hosts: Sequence[MeasuredHost]) -> float:
    return _sum(hosts, "shoal_host_records_waiting") + _sum(hosts, "shoal_host_lag_records")


def _sum(hosts: Sequence[MeasuredHost], name: str, value: str = "", label: str = "result") -> float:
    series = f'{name}{{{label}="{value}"}}' if value else name
    return sum(host.metrics().get(series, 0.0) for host in hosts)


def _wait(hosts: Sequence[MeasuredHost], holds: Callable[[], bool]) -> float:
    """Return once this holds; the most readings that waited meanwhile."""
    until = time.monotonic() + WAIT_S
    most = 0.0
    while not holds():
        most = max(most, _lag(hosts))
        if time.monotonic() > until:
            raise RuntimeError("the hosts do not get there")
        time.sleep(POLL_S)
    return most


def _end(hosts: Sequence[MeasuredHost]) -> None:
    for host in hosts:
        host.process.terminate()
    for host in hosts:
        host.process.wait(WAIT_S)


def _federation(folder: Path, port: int, address: str) -> str:
    host = {
        "client": '"key"',
        "address": f'"kafka://{address}"',
        "topic": f'"{TOPIC}"',
        "group": '"measured"',
        "noise_key_file": f'"{folder / "site.key"}"',
    }
    return federation(f"sqlite:{folder / 'federation.db'}", port, host)


def markdown(result: dict[str, Any]) -> str:
    """The page of the results."""
    stream = result["stream"]
    lines = [
        ("first start, until each client has read", f"{rounded(result['first_start_s'])} s"),
        ("memory of a host, at its peak", f"{rounded(result['peak_mib'])} MiB"),
        ("clients of the host that was killed", f"{result['clients_of_killed']:.0f}"),
        (
            "after the kill, until the others had its partitions",
            f"{rounded(result['partitions_of_killed_s'])} s",
        ),
        ("to restore the clients of a partition", f"{rounded(result['restored_s'])} s"),
        (
            "after the kill, until every client was open or had nothing to do, and nothing waited",
            f"{rounded(result['all_go_on_s'])} s",
        ),
        ("readings that waited meanwhile, at most", f"{result['lag_at_most']:.0f}"),
        (
            "a host was added: until it had a partition",
            f"{rounded(result['added_has_partitions_s'])} s",
        ),
        (
            "until every client was open or had nothing to do, and nothing waited",
            f"{rounded(result['all_go_on_with_added_s'])} s",
        ),
    ]
    return (
        "# Hosts of a group\n\n"
        f"Made by `{result['made_by']}`; do not edit. {one_line(result['machine'])}\n\n"
        f"{HOSTS} hosts and a broker on one machine. {stream['devices']} devices, {stream['d']}"
        f" features, a reading of each in {stream['every']:g} s, {stream['partitions']} partitions,"
        " mode formal, density_tree.\n\n" + table(["figure", ""], lines)
    )


if __name__ == "__main__":
    main()
