"""Readings per second, latency, bytes, memory and recovery of the whole path, on the embedded log
and on Kafka."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import facts
from benchmarks.path.logs import EMBEDDED, KAFKA, KINDS, log_place
from benchmarks.path.page import markdown
from benchmarks.path.runs import latency, recovery, throughput
from benchmarks.path.settings import (
    CENTRES,
    DIMENSIONS,
    FULL,
    ROWS,
    SETTINGS,
    SMALL,
    Extent,
    write_stream,
)
from benchmarks.process import check_proc
from benchmarks.results import out_option, quick_option, rounded, write
from deploy.kafka.broker import what_is_missing

PACKAGES = ("shoal", "numpy", "msgpack", "kafka-python")


@click.command(context_settings={"max_content_width": 100})
@quick_option("Few readings, in seconds")
@click.option(
    "--log",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="Which log; again for both. [default: both]",
)
@out_option("path")
def main(quick: bool, kinds: tuple[str, ...], out: Path) -> None:
    """Measure a producer, clients and a server as processes. Linux only; a full run takes about ten
    minutes.

    Kafka is the one at KAFKA_BOOTSTRAP, or one that is started for the run (Java 17 and Maven),
    which can then be killed as well. Without either only the embedded log is measured, and the
    reason is printed.
    """
    check_proc()
    extent = SMALL if quick else FULL
    machine = facts(PACKAGES)
    found = {}
    for kind in kinds or _available():
        with tempfile.TemporaryDirectory() as scratch:
            found[kind] = measure(kind, Path(scratch), extent)
    result = {
        "made_by": "python -m benchmarks path"
        + " --quick" * quick
        + "".join(f" --log {kind}" for kind in kinds),
        "machine": machine,
        "load_after": round(os.getloadavg()[0], 2),
        "stream": {"d": DIMENSIONS, "centres": CENTRES, "privacy": "formal", **asdict(extent)},
        "settings": {name: SETTINGS[name] for name in extent.settings},
        "logs": found,
    }
    write(out, "path", result, markdown(result))
    click.echo(f"written to {out}/path.json and {out}/path.md")


def measure(kind: str, scratch: Path, extent: Extent) -> dict[str, Any]:
    """Throughput, latency and recovery on one log."""
    stream = scratch / "stream.csv"
    write_stream(stream, min(ROWS, extent.readings))
    with log_place(kind, scratch / "kafka") as place:
        fast = throughput(place, stream, extent)
        _report(kind, f"{rounded(fast['readings_per_s']['median'])} readings/s")
        slow = []
        for settings in extent.settings:
            for rate in extent.rates:
                slow.append(latency(place, stream, extent, rate, settings))
                p50 = slow[-1]["p50_s"]
                p99 = slow[-1]["p99_s"]
                _report(
                    kind,
                    f"{rate} readings/s, {settings} settings: p50 {p50:.2f} s, p99 {p99:.2f} s",
                )
        back = recovery(place, stream, extent)
        for recovered in back:
            seconds = recovered["seconds"]["median"]
            _report(kind, f"{recovered['killed']} killed: recovered after {seconds:.2f} s")
    return {"throughput": fast, "latency": slow, "recovery": back}


def _available() -> tuple[str, ...]:
    if os.environ.get("KAFKA_BOOTSTRAP") or (missing := what_is_missing()) is None:
        return KINDS
    click.echo(f"without {KAFKA}: {missing}")
    return (EMBEDDED,)


def _report(kind: str, what: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {kind}: {what} (load {os.getloadavg()[0]:.1f})")
