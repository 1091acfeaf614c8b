"""The demo: a real sensor stream, split over a few clients and clustered on this machine,
repeatably."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from shoal.client_nodes.bootstrap import CHECKPOINT, NOISE_KEY, checkpoint_owner
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.files import write_secret
from shoal.onebox.federation import OneBox
from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import split_of
from shoal.producers.pacing import Pacing
from shoal.producers.publisher import Bookmark
from shoal.producers.pump import Pump
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.logs import open_readings
from shoal.server_node.report.status import ServerStatus, StatusBoard
from shoal.transports.sqlite.log import SqliteLog

TICK_S = 1 / 16
"""seconds of one tick; a power of two, so that adding ticks never rounds"""


class TickingClock:
    """Seconds since 1970 in whole ticks, never ahead of real time; on a slow machine it falls
    behind."""

    def __init__(self, real: Callable[[], float] = time.time) -> None:
        self._real = real
        # A whole second: with ticks of a power of two, all times and their differences are exact,
        # and so the same in every run.
        self._start = self._now = float(math.floor(real()))

    def __call__(self) -> float:
        return self._now

    def elapsed(self) -> float:
        """Seconds since the start, the same numbers in every run."""
        return self._now - self._start

    def advance(self) -> bool:
        """Advance by one tick. False when real time has not advanced as far."""
        if self._real() < self._now + TICK_S:
            return False
        self._now += TICK_S
        return True


def seed_clients(config: Config, clients: Sequence[str], seed: int) -> None:
    """Give new clients noise keys and readings logs that are functions of `seed`: the noise depends
    on both.

    Such keys are public, so they are for data that are public as well.
    """
    for client in clients:
        folder = config.client.folder / client
        folder.mkdir(parents=True, exist_ok=True)
        identity = _derived(seed, client, "readings log")[:16]
        with closing(
            SqliteLog(folder / "readings.db", new_identity=partial(bytes, identity))
        ) as log:
            log.ensure(READINGS, readings_settings(config.client))
        # A key without a checkpoint would be the remains of a lost client.
        Checkpoint(folder / CHECKPOINT, checkpoint_owner(config, client)).close()
        write_secret(folder / NOISE_KEY, _derived(seed, client, "noise key"))


def _derived(seed: int, client: str, use: str) -> bytes:
    return hashlib.sha256(f"shoal demo\n{seed}\n{client}\n{use}".encode()).digest()


MARKER = ".shoal-demo"
"""file in folders that the demo has created, which the next demo may empty"""
DEMO_FILE = "demo.toml"
NOISY_ROWS_FILE = "noisy_rows.toml"
"""the federation file, and what it has more where models learn from noisy rows too"""
ROWS = 20_560
"""readings in the stream that ships with shoal"""
COUNTS_EPSILON = 4.0
"""cost of a reading in private counts, as in demo.toml"""
ROWS_EPSILON = 400.0
"""cost of a reading in noisy rows: about the least epsilon at which FCAC finds clusters in them"""


@dataclass
class Demo:
    """A running demo: the producer, the federation and the board of the live page."""

    config: Config
    pump: Pump
    box: OneBox
    board: StatusBoard
    clock: TickingClock
    woken: bool = False
    """whether models in rounds were woken since the last reading was learnt"""

    def step(self) -> bool:
        """Run one tick, if it is time for one: produce readings, run all nodes, publish the status.
        False: not yet."""
        if not self.clock.advance():
            return False
        while self.pump.step():
            pass
        if not self.woken and self._all_learnt:
            self.box.wake_rounds()
            self.woken = True
        self.box.run_until_idle()
        status = self.box.server.status()
        remark = self.board.status.remark
        self.board.post(replace(status, remark=remark, ended=self._all_learnt))
        return True

    @property
    def finished(self) -> bool:
        """Whether all readings are learnt, and models in rounds have finished their rounds on all
        of them."""
        return self._all_learnt and self.woken

    @property
    def _all_learnt(self) -> bool:
        """Whether all readings are learnt, all updates are merged, and no model has a round in
        progress."""
        learnt = self.pump.finished and all(node.up_to_date for node in self.box.clients.values())
        return learnt and self.box.server.up_to_date and self.box.server.idle

    def rows(self) -> list[dict[str, Any]]:
        """One row per client for the progress table."""
        return [
            {"client": name, "nodes": node.nodes, **node.totals}
            for name, node in self.box.clients.items()
        ]

    def summary(self, seconds: float) -> dict[str, Any]:
        """The result so far, as JSON values."""
        model = next(iter(self.box.server.models().values()))
        snapshot = model.snapshot
        rows = self.rows()
        # Before the first snapshot all of its numbers are 0.
        sizes = {"counted": 0, "nodes": 0, "clusters": 0, "version": 0}
        if snapshot is not None:
            sizes = {
                "counted": snapshot.readings,
                "nodes": snapshot.nodes,
                "clusters": snapshot.known,
                "version": snapshot.version,
            }
        return {
            "seconds": round(seconds, 1),
            "readings": sum(row.get("learned", 0) for row in rows),
            **sizes,
            "rejected": sum(row.get("rejected", 0) for row in rows),
            "clients": len(rows),
            "client_nodes": sum(row["nodes"] for row in rows),
            "updates": sum(row.get("updates", 0) for row in rows),
            "known": {
                name: len(served.lineage.known) for name, served in self.box.server.models().items()
            },
            "rounds": self._rounds(),
            "epsilon_total": self.config.resolved.total_epsilon,
            "epsilon_per_model": {
                name: model.epsilon for name, model in self.config.resolved.models.items()
            },
        }

    def _rounds(self) -> dict[str, dict[str, int]]:
        """The newest round and the clusters of each model in rounds, by name."""
        newest = {}
        for model in self.box.server.models().values():
            status = model.status()
            if status.rounds is not None:
                clusters = status.snapshot.clusters if status.snapshot else 0
                newest[status.name] = {"round": status.rounds.round, "clusters": clusters}
        return newest


def prepare_folder(folder: Path, epsilon: float | None, port: int, compare: bool = False) -> Path:
    """Empty `folder` and write the demo's federation file into it; returns its path. Separate
    processes can run it too.

    `epsilon` is that of one reading, in the private counts and in the noisy rows; None:
    `COUNTS_EPSILON` and `ROWS_EPSILON`. `compare`: with the models that learn from noisy rows.

    Raises `SettingsError` if the folder has files and the demo did not create it.
    """
    if folder.exists():
        if not (folder / MARKER).exists() and any(folder.iterdir()):
            raise SettingsError(
                f"{folder} has files that are not the demo's; choose another --folder"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    file = folder / "office.toml"
    file.write_text(_federation_file(epsilon, port, compare), encoding="utf-8")
    return file


def _federation_file(epsilon: float | None, port: int, compare: bool) -> str:
    text, noisy = (
        files("shoal.onebox.demo").joinpath(name).read_text(encoding="utf-8")
        for name in (DEMO_FILE, NOISY_ROWS_FILE)
    )
    counts = f"counts_epsilon = {epsilon or COUNTS_EPSILON!r}\n"
    rows = (
        "# What a reading costs in the noisy rows, from which the other models learn.\n"
        f"epsilon_per_reading = {epsilon or ROWS_EPSILON!r}\n"
    )
    text = text.replace(f"counts_epsilon = {COUNTS_EPSILON!r}\n", counts)
    text = text.replace("[server]\n", f"[server]\nport = {port}\n")
    if not compare:
        return text
    return text.replace(counts, counts + rows) + noisy


@contextmanager
def open_demo(
    file: Path,
    clients: int,
    seconds: float,
    seed: int | None,
    first_status: Callable[[Config], ServerStatus],
) -> Iterator[Demo]:
    """The demo of this federation file; it replays the whole stream in about `seconds`.

    All noise is a function of `seed`, so it can be computed and protects nothing; None: every
    client draws a secret key.
    """
    config = load_config(file)
    columns = Columns(tuple(feature.name for feature in config.resolved.features), ("date",))
    with ExitStack() as stack:
        data = stack.enter_context(as_file(files("shoal.onebox.demo").joinpath("occupancy.csv.gz")))
        source = Replay([data], columns, split_of("round-robin", clients, 0, None))
        names = [f"client-{number}" for number in range(1, clients + 1)]
        if seed is not None:
            seed_clients(config, names, seed)
        clock = TickingClock()
        box = stack.enter_context(OneBox(config, names, clock))
        pump = Pump(
            source,
            lambda client: open_readings(config, client),
            clock=clock.elapsed,
            pacing=Pacing(rate=ROWS / seconds),
            bookmark=Bookmark(),
            topic_settings=readings_settings(config.client),
        )
        stack.enter_context(closing(pump))
        yield Demo(config, pump, box, StatusBoard(first_status(config)), clock)
