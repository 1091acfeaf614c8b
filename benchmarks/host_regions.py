"""Sites whose host feeds a region of its own: what their devices cost the upstream server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import click
import numpy as np

from benchmarks.grown_federation import absorbed_by
from benchmarks.host import CLIENTS_MAX, DIMENSIONS, TOPIC, WAIT_S, contract
from benchmarks.machine import facts, one_line
from benchmarks.process import ONE_THREAD, check_proc, footprint_of, free_port
from benchmarks.results import out_option, quick_option, rounded, table, write
from shoal.config.settings import load_config
from shoal.protocol.messages import Update
from shoal.protocol.readings import Reading
from shoal.protocol.regions import RegionUpdate
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.transports import open_log
from shoal.transports.base import beginning

CENTRES = 4
SPREAD = 0.03
SEED = 5
UPSTREAM = "all"
POLL_S = 0.5
UNTIL_IDLE = ("--until-idle", "5", "--clients-max", str(CLIENTS_MAX))


@click.command(context_settings={"max_content_width": 100})
@quick_option("Two sites of few devices")
@click.option("--sites", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--devices", type=click.IntRange(1), default=500, show_default=True, help="Of a site."
)
@click.option(
    "--readings", type=click.IntRange(1), default=200, show_default=True, help="Of a device."
)
@out_option("host_regions")
def main(quick: bool, sites: int, devices: int, readings: int, out: Path) -> None:
    """Measure sites, each a real `shoal host` and the server of a region, below one upstream
    server: bytes of an update of a device and of a region, and the processor time of the latter.

    Linux only: the figures are read from /proc.
    """
    if quick:
        sites = 2
        devices = 10
        readings = 150
    check_proc()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(Path(scratch), sites, devices, readings)
    result = {
        "made_by": f"python -m benchmarks host_regions --sites {sites} --devices {devices}"
        f" --readings {readings}",
        "machine": facts(("shoal", "numpy", "msgpack")),
        "stream": {"sites": sites, "devices": devices, "readings": readings, "d": DIMENSIONS},
        **figures,
    }
    write(out, "host_regions", result, markdown(result))
    click.echo(f"written to {out}/host_regions.json and {out}/host_regions.md")


class Published(NamedTuple):
    """Messages in a topic of updates, and their size without headers."""

    number: int
    size: int


class Federation(NamedTuple):
    """A federation of the measurement: its file, and the port of its server's page."""

    file: Path
    port: int

    def status(self) -> dict[str, Any]:
        """What its server says of itself. Raises URLError while it does not serve yet."""
        with urlopen(f"http://127.0.0.1:{self.port}/v1/status", timeout=WAIT_S) as answer:
            status: dict[str, Any] = json.loads(answer.read())
        return status

    def readings(self) -> int:
        """The readings that its model has learnt from."""
        absorbed: int = self.status()["models"][0]["readings"]
        return absorbed

    def is_ready(self) -> bool:
        """Whether its server serves."""
        try:
            return bool(self.status()["ready"])
        except URLError:
            return False

    def published(self, kind: str) -> Published:
        """The messages of one type in its topic of updates."""
        config = load_config(self.file)
        topic = config.contract.updates_topic
        number = 0
        size = 0
        with closing(open_log(config.log)) as log:
            at = beginning(log, topic)
            while True:
                records, at = log.read(topic, at)
                if not records:
                    return Published(number, size)
                for record in records:
                    if ("type", kind.encode()) in record.headers:
                        number += 1
                        size += len(record.value or b"")


def measure(folder: Path, sites: int, devices: int, readings: int) -> dict[str, float]:
    """Let the hosts of all sites learn their readings, until all that they publish is upstream."""
    names = [f"site-{number}" for number in range(sites)]
    upstream = _federation(folder, UPSTREAM, f"regions = {json.dumps(names)}\n")
    regions = []
    for number, name in enumerate(names):
        region = _federation(folder, name, "", _site())
        _send(region.file.parent / "site-log.db", devices, readings, number)
        regions.append(region)
    with ExitStack() as running:
        servers = []
        for federation in (upstream, *regions):
            server = running.enter_context(_process("server", federation.file))
            _wait_until(federation.is_ready, server)
            servers.append(server)
        hosts = []
        for region in regions:
            hosts.append(running.enter_context(_process("host", region.file, *UNTIL_IDLE)))
        # A host that ends has read all, and what its clients made of it is published.
        for host in hosts:
            if host.wait(WAIT_S) != 0:
                raise RuntimeError(f"a host ended with {host.returncode}")
        _wait_until(lambda: _is_all_upstream(upstream, regions), servers[0])
        peak_mib = footprint_of(servers[0].pid).peak_mib
        readings_published = upstream.readings()
    of_devices = [region.published(Update.TYPE) for region in regions]
    device_updates = sum(published.number for published in of_devices)
    device_bytes = sum(published.size for published in of_devices)
    of_regions = upstream.published(RegionUpdate.TYPE)
    return {
        "readings_published": readings_published,
        "device_updates": device_updates,
        "device_update_bytes": device_bytes / device_updates,
        "region_updates": of_regions.number,
        "region_update_bytes": of_regions.size / of_regions.number,
        "upstream_cpu_ms_per_region_update": 1e3
        * absorbing_s(upstream.file, readings_published)
        / of_regions.number,
        "upstream_peak_mib": peak_mib,
    }


def absorbing_s(file: Path, readings: int) -> float:
    """Processor seconds in which the server of a federation learns all updates again, in this
    process and without a page, once it is open."""
    config = load_config(file)
    shutil.rmtree(config.server.folder)
    with resumed(open_server(config, rebuild=True)) as server:
        began = time.process_time()
        while server.step():
            pass
        spent_s = time.process_time() - began
        absorbed = absorbed_by(server)
    if absorbed != readings:
        raise RuntimeError(f"{absorbed} readings were learnt again, and not {readings}")
    return spent_s


def _is_all_upstream(upstream: Federation, regions: list[Federation]) -> bool:
    """Whether the upstream server has learnt from as many readings as those of all regions."""
    of_regions = 0
    for region in regions:
        status = region.status()
        if status["lag_records"]:
            return False
        of_regions += status["models"][0]["readings"]
    return upstream.readings() == of_regions > 0


def _wait_until(is_so: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Return when a condition holds. Raises RuntimeError where a process has ended, or it takes too
    long."""
    began = time.monotonic()
    while not is_so():
        if process.poll() is not None or time.monotonic() > began + WAIT_S:
            raise RuntimeError("a server has ended, or does not get there")
        time.sleep(POLL_S)


@contextmanager
def _process(command: str, file: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of a federation, stopped at the end."""
    words = [sys.executable, "-m", "shoal", command, "--config", str(file), "--json", *options]
    with (file.parent / f"{command}.log").open("wb") as output:
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=output, env=ONE_THREAD, cwd=file.parent
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(WAIT_S)


def _send(file: Path, devices: int, readings: int, site: int) -> None:
    """Put the readings of all devices of a site into its log: blobs, the same at each site."""
    centres = np.random.default_rng(SEED).uniform(0.1, 0.9, (CENTRES, DIMENSIONS))
    generator = np.random.default_rng([SEED, site])
    with closing(open_log(f"sqlite:{file}")) as log:
        log.ensure(TOPIC)
        for number in range(readings):
            kinds = generator.integers(CENTRES, size=devices)
            noise = generator.normal(0.0, SPREAD, (devices, DIMENSIONS))
            rows = np.clip(centres[kinds] + noise, 0.0, 1.0)
            for device, values in enumerate(rows):
                reading = Reading(1.7e9 + number, values)
                log.publish(TOPIC, reading.encode(), b"d%d" % device, reading.headers())
            log.flush()


def _federation(folder: Path, name: str, of_server: str, of_site: str = "") -> Federation:
    """Write the file of a federation, in a folder of its own."""
    port = free_port()
    file = folder / name / "federation.toml"
    file.parent.mkdir()
    file.write_text(
        contract(name) + '[log]\naddress = "sqlite:federation.db"\n'
        f"[server]\nport = {port}\n{of_server}{of_site}",
        encoding="utf-8",
    )
    return Federation(file, port)


def _site() -> str:
    """What the file of a region has beside that: where its contributions go, and its host."""
    return (
        f'[upstream]\nfile = "../{UPSTREAM}/federation.toml"\n'
        '[client]\nfolder = "clients"\n'
        f'[host]\nclient = "key"\naddress = "sqlite:site-log.db"\ntopic = "{TOPIC}"\n'
    )


def markdown(result: dict[str, Any]) -> str:
    """The page of the results."""
    stream = result["stream"]
    lines = [
        ("readings published by devices", rounded(result["readings_published"])),
        ("updates of devices", rounded(result["device_updates"])),
        ("bytes of one", rounded(result["device_update_bytes"])),
        ("updates of regions", rounded(result["region_updates"])),
        ("bytes of one", rounded(result["region_update_bytes"])),
        (
            "processor time of the upstream server to absorb one",
            f"{rounded(result['upstream_cpu_ms_per_region_update'])} ms",
        ),
        (
            "memory of the upstream server, at its peak",
            f"{rounded(result['upstream_peak_mib'])} MiB",
        ),
    ]
    return (
        "# Hosts with regions of their own\n\n"
        f"Made by `{result['made_by']}`; do not edit. {one_line(result['machine'])}\n\n"
        f"{stream['sites']} sites, each a host of {stream['devices']} devices and the server of a"
        f" region, below one upstream server; {stream['d']} features, {stream['readings']} readings"
        " of each device as fast as they can be learnt, mode formal, density_tree.\n\n"
        + table(["figure", ""], lines)
    )


if __name__ == "__main__":
    main()
