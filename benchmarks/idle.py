"""What a federation without readings costs its machine: bytes written, wake-ups, processor time."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks.machine import facts, one_line
from benchmarks.process import ONE_THREAD, check_proc, footprint_of
from benchmarks.results import out_option, quick_option, rounded, table, write
from shoal.server_node.lease import RECORD_S

DAY_S = 86_400
SETTLED_WITHIN_S = 300.0
SETTLE_S = 15.0
"""a process that has written nothing for so long has started: the first writes are its files, and a
second request of the first round, after ten seconds"""
GOAL = {"mb_written_per_day": 20.0, "wakeups_per_s": 5.0, "core_percent": 0.2}
"""upper limits of each process; MB are 10^6 bytes"""
FIRST = "d23b7f79"
BEFORE = {
    "server": {"mb_written_per_day": 930.0, "wakeups_per_s": 104.0, "core_percent": 1.1},
    "client": {"wakeups_per_s": 92.0, "core_percent": 0.9},
}
"""the same of commit `FIRST`, measured once; what its client wrote was not"""
LEASE_KIB = 55
"""what one record of the lease writes: three pages, in the write-ahead log and in the file"""
LEASE_MB_PER_DAY = LEASE_KIB * 1024 / 1e6 * DAY_S / RECORD_S
STREAMING = (
    ("clusters", "fcac", ""),
    ("tree", "cluster_tree", ""),
    ("fine", "fcac", ""),
)
CASES = {
    "three models that learn from a stream": STREAMING,
    "and one in rounds, which no client answers": (
        *STREAMING,
        ("heaps", "kmeans", "options = { clusters = 3 }\n"),
    ),
}
"""name -> its models: name, algorithm and further settings"""


class Counters(NamedTuple):
    """What a process has done since it started, from the kernel."""

    written_bytes: int
    """bytes that it has caused to be written to a disk"""
    wakeups: int
    """how often its threads have gone to sleep, and so were woken"""
    cpu_s: float
    """processor time, user and system"""


def counters_of(process: int) -> Counters:
    """The counters of a running process, by its id."""
    folder = Path(f"/proc/{process}")
    wakeups = 0
    for thread in (folder / "task").iterdir():
        wakeups += _field(thread / "status", "voluntary_ctxt_switches")
    written_bytes = _field(folder / "io", "write_bytes")
    return Counters(written_bytes, wakeups, footprint_of(process).cpu_s)


def _field(file: Path, name: str) -> int:
    for line in file.read_text(encoding="ascii", errors="replace").splitlines():
        title, _, value = line.partition(":")
        if title == name:
            return int(value)
    raise LookupError(f"{file} has no {name}")


@click.command(context_settings={"max_content_width": 100})
@quick_option("Five seconds")
@click.option(
    "--seconds", type=click.IntRange(1), default=60, show_default=True, help="How long to measure."
)
@out_option("idle")
def main(quick: bool, seconds: int, out: Path) -> None:
    """Measure a server and a client with default settings on the embedded log while there is no
    reading: with three models, and with one in rounds beside them.

    Linux only: the figures are read from /proc.
    """
    check_proc()
    if quick:
        seconds = 5
    # Not in memory, where nothing is written to a disk.
    cases = {}
    for name, models in CASES.items():
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
            cases[name] = measure(Path(scratch), models, seconds)
    result = {
        "made_by": f"python -m benchmarks idle --seconds {seconds}",
        "machine": facts(("shoal", "numpy", "msgpack")),
        "seconds": seconds,
        "cases": cases,
        "goal": GOAL,
        "before": {"commit": FIRST, **BEFORE},
    }
    write(out, "idle", result, markdown(result))
    click.echo(f"written to {out}/idle.json and {out}/idle.md")


def measure(
    folder: Path, models: Sequence[tuple[str, str, str]], seconds: int
) -> dict[str, dict[str, float]]:
    """Start both, wait until they rest, and count what they do for so many seconds."""
    file = folder / "federation.toml"
    file.write_text(_federation(models), encoding="utf-8")
    commands = {"server": ["server"], "client": ["client", "--name", "attic"]}
    with ExitStack() as stack:
        processes = {}
        for name, command in commands.items():
            log = stack.enter_context((folder / f"{name}.txt").open("wb"))
            processes[name] = subprocess.Popen(
                [sys.executable, "-m", "shoal", *command, "--config", str(file)],
                stdout=log,
                stderr=log,
                env=ONE_THREAD,
                cwd=folder,
            )
            stack.callback(_end, processes[name])
        for name, process in processes.items():
            _wait_until_settled(process, folder / f"{name}.txt")
        before = {name: counters_of(process.pid) for name, process in processes.items()}
        began = time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - began
        return {
            name: {
                **rates(before[name], counters_of(process.pid), took_s),
                "resident_mib": footprint_of(process.pid).resident_mib,
            }
            for name, process in processes.items()
        }


def rates(before: Counters, after: Counters, seconds: float) -> dict[str, float]:
    """What lies between two counts, by day, by second and in percent of a core."""
    written_mb = (after.written_bytes - before.written_bytes) / 1e6
    return {
        "mb_written_per_day": written_mb * DAY_S / seconds,
        "wakeups_per_s": (after.wakeups - before.wakeups) / seconds,
        "core_percent": 100 * (after.cpu_s - before.cpu_s) / seconds,
    }


def _wait_until_settled(process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + SETTLED_WITHIN_S
    written = -1
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"a process has ended:\n{log.read_text(encoding='utf-8')[-2000:]}")
        now = counters_of(process.pid).written_bytes
        if now == written > 0:
            return
        written = now
        time.sleep(SETTLE_S)
    raise TimeoutError(f"still writing after {SETTLED_WITHIN_S:g} s without a reading")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60.0)


def _federation(models: Sequence[tuple[str, str, str]]) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    declared = "".join(
        f'[[models]]\nname = "{name}"\nalgorithm = "{algorithm}"\n{more}'
        for name, algorithm, more in models
    )
    features = "".join(
        f'[[features]]\nname = "x{number}"\nlow = 0.0\nhigh = 1.0\n' for number in range(2)
    )
    return (
        f'[federation]\nname = "idle"\n{features}'
        f'[privacy]\nmode = "formal"\nepsilon_per_reading = 40\n{declared}'
        '[log]\naddress = "sqlite:federation.db"\n[client]\nfolder = "clients"\n'
        f'[server]\nfolder = "server"\nport = {port}\n'
    )


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    lines = []
    for case, processes in result["cases"].items():
        for name, figures in processes.items():
            lines.append([f"{name}: {case}", *_cells(figures), rounded(figures["resident_mib"])])
    for name, figures in BEFORE.items():
        lines.append([f"{name} of {FIRST}", *_cells(figures), "-"])
    head = ["process", "MB written a day", "wake-ups a second", "% of a core", "RSS MiB"]
    return "\n".join(
        [
            f"# A federation that rests\n\nMade by `{result['made_by']}`; do not edit.\n",
            table([*head], [*lines, ["goal, at most", *_cells(GOAL), "-"]]),
            (
                f"{result['seconds']} s without a reading, with default settings: the page, formal"
                " privacy and the embedded log. MB are 10^6 bytes that the"
                " process gave the disk to write (`write_bytes` of the kernel), wake-ups are the"
                " times a thread of it went to sleep. A server also writes its lease every"
                f" {RECORD_S / 60:g} minutes, {rounded(LEASE_MB_PER_DAY)} MB a day, which a minute"
                " may miss.\n"
            ),
            one_line(result["machine"]) + "\n",
        ]
    )


def _cells(figures: dict[str, float]) -> list[str]:
    return [rounded(figures[name]) if name in figures else "-" for name in GOAL]
