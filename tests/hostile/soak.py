"""The soak: a federation of real processes under a stream of hostile messages, with a kill every 20
seconds.

    python -m tests.hostile.soak --minutes 60 --out benchmarks/results

A server with its page, three clients and a producer run on the embedded log, whose topics are kept
small by retention. Changed messages go into the topic of updates all the time. In the first half a
process at random is killed every `--kill-every` seconds and started again; in the second half all
run on, as a process that is killed cannot show what it loses slowly. Memory, open descriptors and
disk of the last quarter must be those of the third, no process may have ended by itself, both
models must have published, and all processes must end in order.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.results import table, write
from shoal.algorithms.registry import rounds_algorithm
from shoal.config.settings import Config, load_config
from shoal.protocol.messages import Snapshot
from shoal.protocol.topics import ensure_topics
from shoal.transports import open_log
from shoal.transports.base import latest
from tests.federation_text import federation_text
from tests.hostile.fuzzing.test_messages import changed
from tests.hostile.fuzzing.valid_messages import Message
from tests.house.processes import Process, killed_on_exit, wait_until
from tests.small_plant import an_update

CLIENTS = 3
RATE = 60
"""readings per second of all clients"""
HOSTILE_PER_S = 20
SAMPLE_S = 2.0
GROWTH_MAX = 0.15
"""of the median of the last quarter of the samples over that of the quarter before"""
POINTS = 60
"""of the curve that is published"""
MIB = 2**20
FILE = federation_text(
    "soak",
    features=[{"name": "x", "low": 0, "high": 100}, {"name": "y", "low": 0, "high": 100}],
    models=[
        {"name": "clusters", "algorithm": "fcac", "options": {"nodes_max": 100}},
        {
            "name": "centres",
            "algorithm": "kmeans",
            "source": "clusters",
            "options": {"clusters": 3},
            "rounds": {"deadline_s": 5, "wake_s": 5, "rows_min": 5, "robust": "median"},
        },
    ],
    log={
        "address": "sqlite:federation.db",
        "updates_retention_bytes": 2000000,
        "events_retention_bytes": 1000000,
        "rejected_retention_bytes": 2000000,
    },
    client={
        "folder": "clients",
        "publish_readings": 40,
        "publish_s": 2,
        "window_rows": 300,
        "readings_bytes_max": 400000,
        "accept_gap": True,
    },
    server={"folder": "server", "pool_clients": 2, "pool_s": 5, "accept_gap": True, "port": 0},
)


@dataclass
class Soak:
    """The processes, what they used, and what went wrong."""

    folder: Path
    seed: int
    processes: dict[str, Process] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    """seconds from the start to each sample of the disk"""
    memory: dict[str, list[int]] = field(default_factory=dict)
    descriptors: dict[str, list[int]] = field(default_factory=dict)
    disk: list[int] = field(default_factory=list)
    kills: int = 0
    hostile: int = 0
    ended: list[str] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)
    """the largest files at the newest sample, MiB"""
    restarted_at: dict[str, int] = field(default_factory=dict)
    """process -> how long its log was when it was started last"""

    def start(self) -> None:
        """Write the federation file and start everything."""
        file = self.folder / "soak.toml"
        file.write_text(FILE, encoding="utf-8")
        config = ["--config", str(file)]
        rate = ["--synthetic", "gaussians", "--clients", str(CLIENTS), "--rate", f"{RATE}/s"]
        commands = {"server": ["server", *config], "producer": ["producer", *config, *rate]}
        commands |= {
            f"client-{n}": ["client", *config, "--name", f"client-{n}"]
            for n in range(1, CLIENTS + 1)
        }
        for name, arguments in commands.items():
            self.processes[name] = Process(arguments, self.folder / f"{name}.txt")
        self.memory = {name: [] for name in commands}
        self.descriptors = {name: [] for name in commands}

    def run(self, seconds: float, kill_every: float) -> None:
        """Send, sample and kill until the time is over."""
        config = load_config(self.folder / "soak.toml")
        rng = random.Random(self.seed)
        begun = time.monotonic()
        calm = begun + seconds / 2
        killed_at = sampled_at = begun
        with closing(open_log(config.log)) as log:
            ensure_topics(log, config.contract, config.log)
            while (now := time.monotonic()) < begun + seconds:
                seeds = valid(config, log)
                for _ in range(HOSTILE_PER_S if seeds else 0):
                    case = changed(self.seed + self.hostile, seeds)
                    log.publish(
                        config.contract.updates_topic, case.value, case.key.encode(), case.headers
                    )
                    self.hostile += 1
                log.flush()
                if now >= sampled_at + SAMPLE_S:
                    self.sample(now - begun)
                    sampled_at = now
                if killed_at + kill_every <= now < calm:
                    name = rng.choice(sorted(self.processes))
                    self.processes[name].kill()
                    self.restart(name)
                    self.kills = self.kills + 1
                    killed_at = now
                time.sleep(1.0)

    def sample(self, at: float) -> None:
        """Memory, descriptors and bytes on the disk; a process that has ended by itself is noted
        and restarted."""
        self.times.append(round(at, 1))
        for name, process in self.processes.items():
            if not process.running():
                self.ended.append(f"{name}: {process.log_text()[-600:]}")
                self.restart(name)
                continue
            self.memory[name].append(process.resident_bytes())
            self.descriptors[name].append(process.open_descriptors())
        logs = {f"{name}.txt" for name in self.processes}
        found = (
            path for path in self.folder.rglob("*") if path.is_file() and path.name not in logs
        )
        sizes = {str(path.relative_to(self.folder)): size_of(path) for path in found}
        self.disk.append(sum(sizes.values()))
        ordered = sorted(sizes, key=lambda name: -sizes[name])[:6]
        self.largest = {name: round(sizes[name] / MIB, 2) for name in ordered}

    def restart(self, name: str) -> None:
        """A new process in place of one that has ended."""
        self.restarted_at[name] = len(self.processes[name].log_text())
        self.processes[name] = self.processes[name].restarted()

    def has_started(self, name: str) -> bool:
        """Whether it has written that it runs since it was started last, so that it listens to
        signals."""
        return (
            "started" in self.processes[name].log_text()[self.restarted_at.get(name, 0) :]
            or name == "producer"
        )

    def report(self) -> dict[str, Any]:
        """What was measured, and whether it is as it must be."""
        wait_until(lambda: all(map(self.has_started, self.processes)))
        codes = {name: process.stop() for name, process in self.processes.items()}
        config = load_config(self.folder / "soak.toml")
        with closing(open_log(config.log)) as log:
            newest = newest_snapshots(config, log)
        growth = {name: growth_of(samples) for name, samples in self.memory.items()} | {
            "disk": growth_of(self.disk)
        }
        growth |= {
            f"{name}, descriptors": growth_of(samples) for name, samples in self.descriptors.items()
        }
        flat = all(value is not None and value <= GROWTH_MAX for value in growth.values())
        return {
            "passed": (
                flat
                and not self.ended
                and set(codes.values()) == {0}
                and set(newest) == {"clusters", "centres"}
            ),
            "kills": self.kills,
            "hostile_messages": self.hostile,
            "ended_by_themselves": self.ended,
            "exit_codes": codes,
            "growth": growth,
            "memory_mib": {
                name: round(median(samples) / MIB, 1)
                for name, samples in self.memory.items()
                if samples
            },
            "disk_mib": round(median(self.disk) / MIB, 2) if self.disk else None,
            "largest_mib": self.largest,
            "snapshots": {name: snapshot.version for name, snapshot in newest.items()},
            "readings": {name: snapshot.readings for name, snapshot in newest.items()},
            "curve": self.curve(),
        }

    def curve(self) -> dict[str, list[float]]:
        """At most `POINTS` medians: seconds, MiB of memory of each process and on the disk, open
        descriptors."""
        columns: dict[str, list[float]] = {"s": list(self.times)}
        columns |= {
            f"{name}, MiB": [size / MIB for size in samples]
            for name, samples in self.memory.items()
        }
        columns |= {
            f"{name}, descriptors": [*map(float, samples)]
            for name, samples in self.descriptors.items()
        }
        columns["disk, MiB"] = [size / MIB for size in self.disk]
        shortest = min(map(len, columns.values()))
        columns = {name: samples[:shortest] for name, samples in columns.items()}
        return {name: thinned(samples) for name, samples in columns.items()}


def newest_snapshots(config: Config, log: Any) -> dict[str, Snapshot]:
    """model -> its newest snapshot in the log."""
    found = latest(log, config.contract.snapshots_topic)
    names = [model.name for model in config.contract.models]
    records = {name: found[name.encode()] for name in names if name.encode() in found}
    return {name: Snapshot.decode(record.value, record.headers) for name, record in records.items()}


def valid(config: Config, log: Any) -> list[Message]:
    """Valid messages of a stranger that the hostile ones are changed from: none before there are
    snapshots."""
    newest = newest_snapshots(config, log)
    made = [an_update(config.contract, "stranger", 1, rows=30)]
    if "centres" in newest:
        rows = made[0].arrays["weight"]
        arrays = rounds_algorithm("kmeans").answer(newest["centres"].arrays, rows)
        fields = {**vars(made[0]), "model": "centres", "algorithm": "kmeans", "arrays": arrays}
        made.append(type(made[0])(**{**fields, "round": newest["centres"].round}))
    return [Message(moment.model, moment.encode(), moment.headers()) for moment in made]


def growth_of(samples: list[int]) -> float | None:
    """The median of the last quarter over that of the third, minus 1; None for too few samples."""
    quarter = len(samples) // 4
    if quarter < 2:
        return None
    return round(median(samples[3 * quarter :]) / median(samples[2 * quarter : 3 * quarter]) - 1, 3)


def thinned(samples: list[float]) -> list[float]:
    """Medians of at most `POINTS` runs of equal length."""
    length = max(1, -(-len(samples) // POINTS))
    return [
        round(median(samples[start : start + length]), 2)
        for start in range(0, len(samples), length)
    ]


def size_of(path: Path) -> int:
    """Bytes of a file; 0 for a folder, or a file that has just been deleted."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def page_of(report: dict[str, Any], minutes: float) -> str:
    """The report as Markdown, with at most fifteen points of its curve."""
    columns = dict(report["curve"])
    times = columns.pop("s")
    figures = zip(*columns.values(), strict=True)
    lines = [
        [f"{s / 60:.1f}", *(f"{value:.4g}" for value in moment)]
        for s, moment in list(zip(times, figures, strict=True))[3::4]
    ]
    part, growth = max(report["growth"].items(), key=lambda item: item[1] or 0.0)
    return (
        f"# Soak\n\nMade by `python -m tests.hostile.soak --minutes {minutes:g} --out"
        f" benchmarks/results`; do not edit.\n\n{'Passed' if report['passed'] else 'Failed'}:"
        f" {report['hostile_messages']} hostile messages, {report['kills']} kills in the first"
        f" half; {len(report['ended_by_themselves'])} processes ended by themselves.\nThe last"
        f" quarter beside the third: at most {100 * (growth or 0.0):+.1f} % ({part}), where"
        f" {100 * GROWTH_MAX:.0f} % are allowed. A server that is no longer killed grows once, by"
        " 145 MiB: it\nloads the compiled kernels (Numba) after the work of 5,000 rows.\n\n"
        + table(["minute", *columns], lines)
    )


@click.command()
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option(
    "--kill-every", type=float, default=20.0, show_default=True, help="Seconds between two kills."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for soak.json and soak.md.",
)
def main(minutes: float, kill_every: float, seed: int, out: Path | None) -> None:
    """Run the soak and print what was measured as JSON; exit code 1 when anything is not as it must
    be."""
    with tempfile.TemporaryDirectory(prefix="shoal-soak-") as folder:
        soak = Soak(Path(folder), seed)
        soak.start()
        with killed_on_exit(list(soak.processes.values())):
            try:
                soak.run(60 * minutes, kill_every)
                report = soak.report()
            finally:
                for process in soak.processes.values():
                    if process.running():
                        process.kill()
    if out is not None:
        write(out, "soak", report, page_of(report, minutes))
    click.echo(
        json.dumps({name: value for name, value in report.items() if name != "curve"}, indent=1)
    )
    raise SystemExit(0 if report["passed"] else 1)


if __name__ == "__main__":
    main()
