"""Readings per second, start-up and memory of a replay, by engine, number of workers and number of
clients."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.machine import facts, one_line
from benchmarks.process import MIB, ONE_THREAD
from benchmarks.results import out_option, quick_option, rounded, table, write
from benchmarks.streams import Blobs

DIMENSIONS = 16
CENTRES = 100
SEED = 2
EPSILON_PER_FEATURE = 20.0
PUBLISH_S = 600.0
"""long, so that at one reading a second updates are of 500 readings, like those of a live client
with many waiting"""
FIRST_TIME = 1.8e9
STREAMS = 100
"""different streams; client c has stream c mod this"""
FILES = 6
LOOK_EVERY_S = 0.2
IDLE_S = 1.0
"""pause after which a server ends that has absorbed everything"""


@dataclass(frozen=True)
class Case:
    """One replay."""

    clients: int
    readings_each: int
    engine: str = "local"
    workers: int = 2
    rounds: bool = False
    """whether there is a k-means model in rounds beside the streaming one"""
    served: bool = False
    """whether a server absorbs the updates afterwards"""

    @property
    def readings(self) -> int:
        """Readings of all clients."""
        return self.clients * self.readings_each


DAY = Case(100, 86_400)
FULL = (
    Case(100, 10_000),
    Case(10_000, 100, served=True),
    Case(100, 10_000, "spark"),
    DAY,
    DAY,
    Case(100, 10_000, workers=1),
    Case(10_000, 100, rounds=True),
)
PACKAGES: Final = {"spark": "pyspark"}
"""engine -> the package that its extra brings, which may be missing"""
QUICK = (Case(20, 100, "local", 1), Case(40, 50, "local", 2, rounds=True, served=True))


@click.command(context_settings={"max_content_width": 100})
@quick_option("Small replays, in seconds")
@out_option("replay")
def main(quick: bool, out: Path) -> None:
    """Replay made-up readings with formal privacy, and FCAC, on the engines that are there. About
    fifteen minutes."""
    machine = facts(("shoal", "numpy", "numba", "pyarrow", "pyspark"))
    if not quick:
        subprocess.run([sys.executable, "-m", "shoal", "kernels"], check=True, capture_output=True)
    cases, left_out = measurable(QUICK if quick else FULL)
    for why in left_out:
        click.echo(f"not measured: {why}")
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            measured.append(measure(case, Path(folder)))
            # Written after each case: all of them take long on a busy machine.
            page = _written(out, quick, machine, measured, left_out)
    click.echo(page)


def measurable(cases: Sequence[Case]) -> tuple[list[Case], list[str]]:
    """The cases whose engine can run here; and of each engine that cannot, why."""
    reasons = {case.engine: _why_not(case.engine) for case in cases}
    return [case for case in cases if not reasons[case.engine]], [
        why for why in reasons.values() if why
    ]


def _why_not(engine: str) -> str:
    package = PACKAGES.get(engine)
    if package is not None and find_spec(package) is None:
        return (
            f"the engine {engine}, which is not installed: pip install '.[{engine}]' in a clone of"
            " shoal"
        )
    if engine == "spark" and shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return (
            "the engine spark, which needs Java 17; on Debian: apt install openjdk-17-jre-headless"
        )
    return ""


def _written(
    out: Path,
    quick: bool,
    machine: dict[str, Any],
    cases: list[dict[str, Any]],
    left_out: Sequence[str],
) -> str:
    """Write what is measured so far; returns the page."""
    result = {
        "made_by": "python -m benchmarks replay" + " --quick" * quick,
        "machine": machine,
        "stream": {"d": DIMENSIONS, "centres": CENTRES, "epsilon_per_feature": EPSILON_PER_FEATURE},
        "left_out": left_out,
        "cases": cases,
    }
    page = markdown(result)
    write(out, "replay", result, page)
    return page


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Replay one case in a process of its own, and look at that process and all that it starts."""
    files = written(case, folder / f"{case.clients}-{case.readings_each}")
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))
    with tempfile.TemporaryDirectory(dir=folder) as results:
        config = Path(results) / "plant.toml"
        config.write_text(federation(case.rounds), encoding="utf-8")
        options = [
            "--config",
            config,
            "--key",
            key,
            "--folder",
            Path(results) / "replay",
            "--engine",
            case.engine,
        ]
        options += ["--workers", case.workers, "--client-column", "client", "--time-column", "time"]
        replayed = Run(["replay", *options, *["--publish"] * case.served, *files])
        summary = replayed.printed
        served = (
            Run(["server", "--config", config, "--until-idle", IDLE_S]) if case.served else None
        )
    return {
        **{
            name: getattr(case, name)
            for name in ("clients", "readings", "engine", "workers", "rounds")
        },
        **{name: summary[name] for name in ("records", "digest", "models", "start_s", "seconds")},
        **replayed.costs(),
        "server": None if served is None else served.costs(),
    }


class Run:
    """A command of shoal, run to its end; a look is taken at it and at all that it starts."""

    def __init__(self, words: Sequence[object]) -> None:
        command = [sys.executable, "-m", "shoal", *map(str, words), "--json"]
        began = time.perf_counter()
        # Files, not pipes: nothing is read while the process runs, and a full pipe would stop it.
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(command, stdout=output, stderr=log, env=ONE_THREAD)
            self._tree = Tree(process.pid)
            while process.poll() is None:
                self._tree.look()
                time.sleep(LOOK_EVERY_S)
            self._whole_s = time.perf_counter() - began
            if process.returncode:
                log.seek(0)
                raise click.ClickException(
                    f"shoal {words[0]} ended with {process.returncode}:\n{log.read()[-2000:]}"
                )
            output.seek(0)
            self.printed: dict[str, Any] = json.loads(output.read().splitlines()[-1])
        """last line of the output"""

    def costs(self) -> dict[str, float]:
        """Seconds from start to end, processor seconds, and the most memory in MiB."""
        return {
            "whole_s": self._whole_s,
            "cpu_s": self._tree.cpu_s,
            "peak_mib": self._tree.peak_mib,
        }


class Tree:
    """A process and all that it has started, as the kernel shows them (Linux)."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._cpu_ticks: dict[tuple[int, str], int] = {}
        self.peak_mib = 0.0
        """most memory of all of them together; pages that several share count once"""

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all of them, as far as they were seen."""
        return sum(self._cpu_ticks.values()) / 100

    def look(self) -> None:
        """Take the memory and the processor time of all that run now."""
        self.peak_mib = max(self.peak_mib, sum(map(self._look_at, self._descendants())))

    def _look_at(self, process: int) -> float:
        place = Path(f"/proc/{process}")
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            self._cpu_ticks[process, fields[19]] = int(fields[11]) + int(fields[12])
            lines = (place / "smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return 0.0
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / MIB

    def _descendants(self) -> list[int]:
        found = []
        waiting = [self._root]
        while waiting:
            process = waiting.pop()
            found.append(process)
            for tasks in Path(f"/proc/{process}/task").glob("*/children"):
                try:
                    waiting += map(int, tasks.read_text().split())
                except (FileNotFoundError, ProcessLookupError):
                    continue
        return found


def written(case: Case, folder: Path) -> list[Path]:
    """Files with the readings of all clients, one a second each, ordered by time; written once for
    each size."""
    files = [folder / f"{number}.parquet" for number in range(FILES)]
    if files[-1].exists():
        return files
    folder.mkdir()
    streams = [
        Blobs(DIMENSIONS, CENTRES, 0, SEED, stream) for stream in range(min(STREAMS, case.clients))
    ]
    names = pa.array([f"client-{number:06d}" for number in range(case.clients)])
    own = np.arange(case.clients) % len(streams)
    for file, seconds in zip(
        files, np.array_split(np.arange(case.readings_each), FILES), strict=True
    ):
        drawn = np.stack([stream.draw(len(seconds)) for stream in streams], axis=1)
        values = drawn[:, own].reshape(-1, DIMENSIONS)
        clients = pa.array(np.tile(np.arange(case.clients, dtype=np.int32), len(seconds)))
        columns = {"client": pa.DictionaryArray.from_arrays(clients, names)}
        columns["time"] = pa.array(FIRST_TIME + np.repeat(seconds, case.clients))
        columns |= {f"x{number}": pa.array(values[:, number]) for number in range(DIMENSIONS)}
        parquet.write_table(pa.table(columns), file, row_group_size=120_000)
    return files


def federation(rounds: bool) -> str:
    """The federation file."""
    features = "".join(
        f'[[features]]\nname = "x{number}"\nlow = 0.0\nhigh = 1.0\n' for number in range(DIMENSIONS)
    )
    means = '[[models]]\nname = "means"\nalgorithm = "kmeans"\noptions = { clusters = 10 }\n'
    return (
        f'[federation]\nname = "plant"\n{features}[privacy]\nmode = "formal"\nepsilon_per_reading ='
        f' {EPSILON_PER_FEATURE * DIMENSIONS}\n[[models]]\nname = "clusters"\nalgorithm ='
        f' "fcac"\n{means * rounds}[client]\npublish_s = {PUBLISH_S}\n[log]\naddress ='
        ' "sqlite:plant.db"\n[server]\nfolder = "server"\nport = 0\n'
    )


def markdown(result: dict[str, Any]) -> str:
    """The result as a Markdown page."""
    setup = ["clients", "readings", "engine", "workers"]
    figures = ["start, s", "replay, s", "readings/s"]
    head = [*setup, *figures, "per CPU second", "peak MiB", "SHA-256 of the updates"]
    return "\n".join(
        [
            f"# Replay\n\nMade by `{result['made_by']}`; do not edit.\n",
            table(head, [_line(case) for case in result["cases"]]),
            *(f"Not measured: {why}.\n" for why in result.get("left_out", ())),
            *_served(result["cases"]),
            (
                "A k-means model in rounds runs beside FCAC where the number of clients has a +."
                " Processor time and memory are those of all processes together, Spark's Java"
                f" included; pages that several share count once. d = {DIMENSIONS},"
                f" {CENTRES} blobs, formal privacy, updates of 500 readings.\n"
            ),
            one_line(result["machine"]) + "\n",
        ]
    )


def _served(cases: Sequence[dict[str, Any]]) -> list[str]:
    """What it costs a server to absorb the updates of a replay."""
    head = [
        "clients, whose updates a server absorbs",
        "readings",
        "updates",
        "CPU s",
        "readings per CPU s",
        "peak MiB",
    ]
    lines = [
        [
            rounded(case["clients"]),
            rounded(case["readings"]),
            rounded(case["records"]),
            f"{server['cpu_s']:.1f}",
            rounded(case["readings"] / server["cpu_s"]) if server["cpu_s"] else "-",
            rounded(server["peak_mib"]),
        ]
        for case in cases
        if (server := case.get("server")) is not None
    ]
    return [table(head, lines)] if lines else []


def _line(case: dict[str, Any]) -> Sequence[str]:
    return [
        rounded(case["clients"]) + " +" * case["rounds"],
        rounded(case["readings"]),
        case["engine"],
        str(case["workers"]),
        f"{case['start_s']:.1f}",
        f"{case['seconds']:.1f}",
        rounded(case["readings"] / case["seconds"]),
        rounded(case["readings"] / case["cpu_s"]) if case["cpu_s"] else "-",
        rounded(case["peak_mib"]),
        f"`{case['digest'][:12]}`",
    ]
