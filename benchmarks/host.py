"""A host whose devices each give a reading a second: memory, processor time, restart, commit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
import numpy as np

from benchmarks.machine import facts, one_line
from benchmarks.process import ONE_THREAD, check_proc, footprint_of, free_port
from benchmarks.results import out_option, quick_option, rounded, table, write
from shoal.protocol.readings import Reading
from shoal.runtime.site_readings import SiteReadings, TakenIn
from shoal.transports import open_log

DIMENSIONS = 8
SEED = 3
POLL_S = 0.5
"""between two looks at the metrics, which take a host processor time of their own"""
WAIT_S = 1800.0
TOPIC = "readings"
COMMITS = 5
CLIENTS_MAX = 100_000
FEW = 100
"""one device in so many sends while the host is away for the first time"""


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few devices, in seconds")
@click.option("--devices", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seconds", type=click.IntRange(1), default=40, show_default=True)
@out_option("host")
def main(quick: bool, devices: int, seconds: int, out: Path) -> None:
    """Measure a real `shoal host` whose devices come in one log, a reading a second each, with a
    density_tree and formal privacy.

    Linux only: the figures are read from /proc.
    """
    if quick:
        devices = 20
        seconds = 3
    check_proc()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(Path(scratch), devices, seconds)
        figures["commit_s"] = commit_s(Path(scratch) / "commit.db", devices)
    result = {
        "made_by": f"python -m benchmarks host --devices {devices} --seconds {seconds}",
        "machine": facts(("shoal", "numpy", "msgpack")),
        "stream": {"devices": devices, "seconds": seconds, "d": DIMENSIONS},
        **figures,
    }
    write(out, "host", result, markdown(result))
    click.echo(f"written to {out}/host.json and {out}/host.md")


def measure(folder: Path, devices: int, seconds: int) -> dict[str, Any]:
    """Run one host: its clients begin, then a stream comes, and the host is started again."""
    file = folder / "federation.toml"
    site = {"client": '"key"', "address": '"sqlite:site-log.db"', "topic": f'"{TOPIC}"'}
    file.write_text(federation("sqlite:federation.db", free_port(), site), encoding="utf-8")
    log_file = folder / "host.log"
    generator = np.random.default_rng(SEED)
    with closing(open_log(f"sqlite:{folder / 'site-log.db'}")) as log:
        log.ensure(TOPIC)

        def send(number: int, every: int = 1) -> None:
            rows = generator.random((devices, DIMENSIONS))
            for device in range(0, devices, every):
                values = rows[device]
                reading = Reading(1.7e9 + number, values)
                log.publish(TOPIC, reading.encode(), b"d%d" % device, reading.headers())
            log.flush()

        send(0)
        began = time.monotonic()
        process = _start(file, log_file)
        try:
            _wait_for(folder / "host.log", "readings", "read", devices, process)
            first_start_s = time.monotonic() - began
            before = footprint_of(process.pid)
            began = time.monotonic()
            for number in range(1, seconds + 1):
                send(number)
                time.sleep(max(0.0, began + number - time.monotonic()))
            stream_s = time.monotonic() - began
            all_readings = devices * (seconds + 1)
            _wait_for(folder / "host.log", "readings", "read", all_readings, process)
            behind_s = time.monotonic() - began - stream_s
            after = footprint_of(process.pid)
        finally:
            process.terminate()
            process.wait(WAIT_S)
        # What devices send while the host is away.
        send(seconds + 1, FEW)
        of_few = restart(folder, file, -(-devices // FEW))
        send(seconds + 2)
    readings = devices * seconds
    return {
        "restart_of_few_s": of_few["restart_s"],
        "restart_of_few_cpu_s": of_few["restart_cpu_s"],
        "first_start_s": first_start_s,
        "peak_mib": after.peak_mib,
        "cpu_share": (after.cpu_s - before.cpu_s) / (stream_s + behind_s),
        "cpu_us_per_reading": 1e6 * (after.cpu_s - before.cpu_s) / readings,
        "behind_s": behind_s,
        **restart(folder, file, devices),
    }


def restart(folder: Path, file: Path, sent: int) -> dict[str, float]:
    """Start the host again, and stop it once clients have learnt the readings, `sent` in number,
    that have come meanwhile."""
    log_file = folder / "again.log"
    began = time.monotonic()
    process = _start(file, log_file)
    try:
        _wait_for(log_file, "records", "taken_in", sent, process)
        restart_takes_in_s = time.monotonic() - began
        _wait_for(log_file, "readings", "read", sent, process)
        restart_s = time.monotonic() - began
        restart_cpu_s = footprint_of(process.pid).cpu_s
    finally:
        process.terminate()
        process.wait(WAIT_S)
    return {
        "restart_takes_in_s": restart_takes_in_s,
        "restart_s": restart_s,
        "restart_cpu_s": restart_cpu_s,
    }


def commit_s(file: Path, devices: int) -> float:
    """Seconds in which a reading of each device is stored, in one transaction: the median of
    several."""
    took = []
    value = Reading(1.7e9, np.zeros(DIMENSIONS)).encode()
    with closing(SiteReadings(file, 2**30)) as site:
        for number in range(COMMITS):
            readings = []
            for device in range(devices):
                readings.append(TakenIn(f"d{device}", 0, Reading.headers(), value))
            before = {0: number} if number else {}
            began = time.monotonic()
            site.take_in(readings, b"source", before, {0: number + 1})
            took.append(time.monotonic() - began)
    return float(np.median(took))


def markdown(result: dict[str, Any]) -> str:
    """The page of the results."""
    stream = result["stream"]
    lines = [
        ("memory, at its peak", f"{rounded(result['peak_mib'])} MiB"),
        ("share of one core", f"{100 * result['cpu_share']:.0f} %"),
        ("processor time for a reading", f"{rounded(result['cpu_us_per_reading'])} us"),
        ("time until all was learnt after the last reading", f"{rounded(result['behind_s'])} s"),
        ("first start, until each has read", f"{rounded(result['first_start_s'])} s"),
        (
            f"restart, one client in {FEW} has a reading, until it is learnt",
            f"{rounded(result['restart_of_few_s'])} s",
        ),
        ("processor time of that", f"{rounded(result['restart_of_few_cpu_s'])} s"),
        (
            "restart, each client has a reading, until these are taken in",
            f"{rounded(result['restart_takes_in_s'])} s",
        ),
        ("restart, until each client has learnt its reading", f"{rounded(result['restart_s'])} s"),
        ("processor time of a restart", f"{rounded(result['restart_cpu_s'])} s"),
        ("commit of a reading of each device", f"{rounded(result['commit_s'])} s"),
    ]
    return (
        "# A host\n\n"
        f"Made by `{result['made_by']}`; do not edit. {one_line(result['machine'])}\n\n"
        f"{stream['devices']} devices, {stream['d']} features, a reading a second each for"
        f" {stream['seconds']} s, mode formal, density_tree.\n\n" + table(["figure", ""], lines)
    )


def _start(file: Path, log_file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "shoal", "host", "--config", str(file), "--no-wait"]
    command += ["--json", "--clients-max", str(CLIENTS_MAX)]
    with log_file.open("wb") as errors:
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=ONE_THREAD, cwd=file.parent
        )


def _wait_for(
    log_file: Path, what: str, became: str, number: int, process: subprocess.Popen[bytes]
) -> None:
    """Return when the host's metrics have so many readings, or records, as `read` or `taken_in`."""
    began = time.monotonic()
    address = f"http://127.0.0.1:{_port_of(log_file, process)}/metrics"
    while True:
        _check(process, began)
        with urlopen(address, timeout=WAIT_S) as answer:
            for line in answer.read().decode().splitlines():
                name, _, value = line.rpartition(" ")
                counted = name == f'shoal_host_{what}_total{{result="{became}"}}'
                if counted and float(value) >= number:
                    return


def _port_of(log_file: Path, process: subprocess.Popen[bytes]) -> int:
    """The port of the metrics."""
    began = time.monotonic()
    while True:
        for line in log_file.read_text(encoding="utf-8").splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "metrics_served":
                return int(event["address"].rpartition(":")[2].partition("/")[0])
        _check(process, began)


def _check(process: subprocess.Popen[bytes], began: float) -> None:
    """Wait a little. Raises RuntimeError where the host has ended, or takes too long."""
    if process.poll() is not None or time.monotonic() > began + WAIT_S:
        raise RuntimeError("the host has ended, or does not get there")
    time.sleep(POLL_S)


def contract(name: str) -> str:
    """The first part of the file of a federation: counts of 8 features, in mode formal."""
    features = ""
    for number in range(DIMENSIONS):
        features += f'[[features]]\nname = "f{number}"\nlow = 0.0\nhigh = 1.0\n'
    return (
        f'[federation]\nname = "{name}"\n'
        + features
        + '[privacy]\nmode = "formal"\ncounts_epsilon = 4.0\n'
        '[[models]]\nname = "tree"\nalgorithm = "density_tree"\n'
    )


def federation(log: str, metrics_port: int, host: Mapping[str, str]) -> str:
    """The file of such a federation; `host`: the section of hosts, in TOML."""
    section = "".join(f"{name} = {value}\n" for name, value in host.items())
    return (
        contract("measured") + f'[log]\naddress = "{log}"\n'
        f'[client]\nfolder = "clients"\nmetrics_port = {metrics_port}\n[host]\n{section}'
    )


if __name__ == "__main__":
    main()
