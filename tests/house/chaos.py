"""Chaos: a federation of real processes under operations and faults that one seed draws, and a
check of the history that they leave.

    make chaos SEED=7 MINUTES=10            # on the embedded log
    make chaos SEED=7 MINUTES=10 ON=kafka   # on three brokers with three copies of each topic

After Jepsen: processes do what they always do, faults come at random moments, and what counts is
what the history of the log says at the end. Every reading is in one update; every update is, to
the bit, the one of a client that was never disturbed; a client's updates come in their order; its
ledger has charged each reading once; and the server's model is the one of a server that reads the
log from its beginning, to the bit. A process that ends by itself is a failure too.

The seed draws operations, their order and their pauses. When a fault meets a process depends on the
machine, so that a seed makes a failure likely and not certain: those that failed once are kept in
`chaos_seeds.txt`, and run again by the integration tests.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import click

from benchmarks.machine import facts, one_line
from benchmarks.results import table, write
from shoal.config.settings import Config, load_config
from shoal.privacy.ledger import LEDGER, read_spending
from shoal.protocol.messages import Update
from shoal.transports import open_log
from tests.house.federation_processes import (
    check_exactly_once,
    finish,
    keep_feeding,
    prepare_federation,
    readings_each,
    start_all,
    wait_for_updates,
)
from tests.house.processes import Process, kill_all, killed_on_exit, wait_until
from tests.house.small_federation import CLIENTS, all_records
from tests.house.test_sigkill import wait_until_it_stores
from tests.house.test_three_brokers import COPIES, leadership
from tests.kafka_broker import Cluster

SEEDS: Final = Path(__file__).with_name("chaos_seeds.txt")
SERVER: Final = 0
CLIENT_PLACES: Final = range(1, 1 + len(CLIENTS))
PRODUCER: Final = 1 + len(CLIENTS)
READINGS_PER_S: Final = 60
REJECTED: Final = 5
"""exit code of a server whose lease another one holds"""
STOPPED: Final = frozenset({0, -signal.SIGTERM})
"""exit codes of a process that was told to stop: the latter before it listens to signals"""
REPEATED: Final = 20
"""records that are published a second time at once"""


class Seed(NamedTuple):
    """A seed that failed once."""

    seed: int
    on: str
    """the log: sqlite or kafka"""
    steps: int
    why: str


def kept_seeds() -> list[Seed]:
    """The seeds of `chaos_seeds.txt`."""
    seeds = []
    for line in SEEDS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            seed, on, steps, why = line.split(maxsplit=3)
            seeds.append(Seed(int(seed), on, int(steps), why))
    return seeds


@dataclass
class Chaos:
    """A running federation, and what was done to it."""

    file: Path
    seed: int
    brokers: Cluster | None = None
    processes: list[Process] = field(default_factory=list)
    replaced: list[Process] = field(default_factory=list)
    """servers that another one was to replace: they end by themselves, or it is an error"""
    history: list[dict[str, Any]] = field(default_factory=list)
    """operations, in their order"""
    servers: int = 1
    """servers in folders of their own that there have been"""
    loads: list[float] = field(default_factory=list)
    """processes that ran or waited for a processor, at each operation: the minute's mean"""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.server_file = self.file
        self.processes = start_all(self.file, READINGS_PER_S)
        self._began = time.monotonic()
        operations: list[Callable[[], str]] = [
            self.kill_server,
            self.kill_client,
            self.kill_producer,
            self.kill_server_and_clients,
            self.stop_server,
            self.stop_client,
            self.pause,
            self.lose_history,
            self.damage_history,
            self.lose_checkpoint,
            self.replace_server,
            self.replace_paused_server,
            self.publish_again,
        ]
        if self.brokers is None:
            operations.append(self.lose_lease)
        else:
            operations += [self.kill_broker, self.kill_leading_broker]
        self._operations = operations

    @property
    def config(self) -> Config:
        """The settings of the server that runs."""
        return load_config(self.server_file)

    def run(self, seconds: float = 0.0, steps: int = 0) -> None:
        """Operate for a time, or for a number of operations; each kind comes as often as others."""
        # Each process has got as far as it does without faults, so that every operation finds its
        # files and topics.
        wait_for_updates(self.processes, self.file)
        until = time.monotonic() + seconds
        waiting: list[Callable[[], str]] = []
        while time.monotonic() < until or len(self.history) < steps:
            waiting = waiting or self.chance.sample(self._operations, len(self._operations))
            operation = waiting.pop()
            keep_feeding(self.processes, self.file)
            time.sleep(self.chance.uniform(0.05, 1.5))
            at = time.monotonic() - self._began
            details = operation()
            self.loads.append(os.getloadavg()[0])
            self.history.append({"s": round(at, 1), "operation": operation.__name__, "of": details})
            self._check_running()

    def end(self) -> None:
        """Let every process end when it has nothing left to do."""
        # There was work left at the last fault.
        wait_for_updates(self.processes, self.file)
        finish(self.processes, self.file.parent)

    # -- operations: each returns what it was done to --

    def kill_server(self) -> str:
        return self._kill([SERVER])

    def kill_client(self) -> str:
        return self._kill([self.chance.choice(CLIENT_PLACES)])

    def kill_producer(self) -> str:
        return self._kill([PRODUCER])

    def kill_server_and_clients(self) -> str:
        return self._kill([SERVER, *self.chance.sample(CLIENT_PLACES, 2)])

    def stop_server(self) -> str:
        return self._stop(SERVER)

    def stop_client(self) -> str:
        return self._stop(self.chance.choice(CLIENT_PLACES))

    def pause(self) -> str:
        """SIGSTOP, and SIGCONT some seconds later."""
        place = self.chance.choice([SERVER, *CLIENT_PLACES, PRODUCER])
        self.processes[place].send(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.5, 4.0))
        self.processes[place].send(signal.SIGCONT)
        return self._name(place)

    def lose_history(self) -> str:
        return self._without_server(lambda folder: _remove(folder, "history.db"))

    def damage_history(self) -> str:
        return self._without_server(self._flip_bytes)

    def lose_checkpoint(self) -> str:
        """The server's checkpoint is made again from the log."""
        self.processes[SERVER].kill()
        _remove(self.config.server.folder, "checkpoint.db")
        self._start_server(self.server_file, "--rebuild")
        return self._name(SERVER)

    def lose_lease(self) -> str:
        """The file by which a server on the embedded log shows that it lives."""
        return self._without_server(lambda folder: _remove(self.file.parent, "federation.db-lease"))

    def replace_server(self) -> str:
        """A server in another folder takes over; the one before ends by itself."""
        self._wait_until_served()
        before = self._take_over()
        assert before.wait() == REJECTED, before.log_text()
        return self._name(SERVER)

    def replace_paused_server(self) -> str:
        """The same while the one before is paused: it must not go on as if nothing had happened."""
        self._wait_until_served()
        self._pause_server_outside_transactions()
        before = self._take_over()
        before.send(signal.SIGCONT)
        assert before.wait() == REJECTED, before.log_text()
        return self._name(SERVER)

    def publish_again(self) -> str:
        """Updates that are in the log come a second time, as after a lost acknowledgement."""
        config = self.config
        with closing(open_log(config.log)) as log:
            topic = config.contract.updates_topic
            first, end = log.bounds(topic)[0]
            start = self.chance.randint(first, max(first, end - 1))
            records, _ = log.read(topic, {0: start}, REPEATED)
            for record in records:
                log.publish(topic, record.value, record.key, record.headers)
            log.flush()
        return f"{len(records)} records from {start} on"

    def kill_broker(self) -> str:
        return self._kill_broker(leading=False)

    def kill_leading_broker(self) -> str:
        return self._kill_broker(leading=True)

    # -- their parts --

    def _name(self, place: int) -> str:
        return ("server", *CLIENTS, "producer")[place]

    def _kill(self, places: Sequence[int]) -> str:
        # Half of the kills are aimed at a store, where most can go wrong and chance seldom hits.
        config = self.config
        folders = {SERVER: config.server.folder}
        for place, client in zip(CLIENT_PLACES, CLIENTS, strict=True):
            folders[place] = config.client.folder / client
        if places[-1] in folders and self.chance.random() < 0.5:
            wait_until_it_stores(folders[places[-1]] / "checkpoint.db-wal")
            time.sleep(self.chance.uniform(0.0, 0.004))
        kill_all(self.processes[place] for place in places)
        for place in places:
            self.processes[place] = self.processes[place].restarted()
        return ", ".join(map(self._name, places))

    def _stop(self, place: int) -> str:
        code = self.processes[place].stop()
        assert code in STOPPED, self.processes[place].state_text()
        self.processes[place] = self.processes[place].restarted()
        return self._name(place)

    def _without_server(self, harm: Callable[[Path], None]) -> str:
        """Do something to the folder of the server while none runs."""
        self.processes[SERVER].kill()
        harm(self.config.server.folder)
        self.processes[SERVER] = self.processes[SERVER].restarted()
        return self._name(SERVER)

    def _flip_bytes(self, folder: Path) -> None:
        file = folder / "history.db"
        # A server that was killed at its start has left none, or an empty one.
        content = bytearray(file.read_bytes()) if file.exists() else bytearray()
        if not content:
            return
        for _ in range(200):
            content[self.chance.randrange(len(content))] ^= 0xA5
        file.write_bytes(content)

    def _take_over(self) -> Process:
        """Start a server in a folder of its own; the one before, which is to end."""
        before = self.processes[SERVER]
        self.replaced.append(before)
        self.servers += 1
        text = self.file.read_text(encoding="utf-8")
        assert 'folder = "server"' in text
        self.server_file = self.file.with_name(f"federation-{self.servers}.toml")
        self.server_file.write_text(
            text.replace('folder = "server"', f'folder = "server-{self.servers}"'),
            encoding="utf-8",
        )
        self._start_server(self.server_file, "--rebuild", "--take-over")
        server = self.processes[SERVER]
        wait_until(lambda: "lease_acquired" in server.log_text() or not server.running())
        # From now on it is started as any other: its checkpoint is there, and the lease its own.
        wait_until(
            lambda: (self.config.server.folder / "checkpoint.db").exists() or not server.running()
        )
        return before

    def _wait_until_served(self) -> None:
        """Wait until the server has the lease. Of two that take it at the same moment, as one that
        was just started and one that takes over may, either can keep it."""
        server = self.processes[SERVER]
        wait_until(lambda: "lease_acquired" in server.own_log_text() or not server.running())

    def _pause_server_outside_transactions(self) -> None:
        """SIGSTOP for the server, while it does not hold the lock of the embedded log.

        In a transaction it holds it for as long as it is paused. SQLite lets no other process write
        until then, so that no other server could take over, however long it waited.
        """
        server = self.processes[SERVER]
        self._stop_for_now(server)
        while self.brokers is None and not can_write(self.file.parent / "federation.db"):
            server.send(signal.SIGCONT)
            time.sleep(0.05)
            self._stop_for_now(server)

    @staticmethod
    def _stop_for_now(server: Process) -> None:
        server.send(signal.SIGSTOP)
        # A signal stops a process a moment after it is sent.
        time.sleep(0.1)

    def _start_server(self, file: Path, *options: str) -> None:
        arguments = ["server", "--config", str(file), "--no-page"]
        log = self.file.parent / f"server-{self.servers}.txt"
        self.processes[SERVER] = Process([*arguments, *options], log)
        # With the option a server whose checkpoint is there goes on from it.
        self.processes[SERVER].arguments = [*arguments, "--rebuild"]

    def _kill_broker(self, leading: bool) -> str:
        assert self.brokers is not None
        brokers = self.brokers
        topic = self.config.contract.updates_topic
        # Two of three copies must be there: one broker at a time.
        wait_until(lambda: leadership(brokers, topic)[1] == COPIES)
        leader = leadership(brokers, topic)[0]
        others = [number for number in range(1, COPIES + 1) if number != leader]
        number = leader if leading and leader > 0 else self.chance.choice(others)
        brokers.kill(number)
        time.sleep(self.chance.uniform(0.0, 3.0))
        brokers.start(number)
        return f"broker {number}"

    def _check_running(self) -> None:
        for process in self.processes[:PRODUCER]:
            assert process.running(), f"it has ended by itself: {process.state_text()}"


def _remove(folder: Path, name: str) -> None:
    for path in folder.glob(f"{name}*"):
        path.unlink()


def can_write(database: Path, wait_s: float = 2.0) -> bool:
    """Whether a process gets the write lock of a database within this time."""
    with closing(sqlite3.connect(database, timeout=wait_s, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
    return True


def check_order(updates: Iterable[Update]) -> int:
    """Check that the new updates of each client come in their order and without a gap; how many
    are further copies. Raises `AssertionError`."""
    newest: Counter[str] = Counter()
    repeated = 0
    for update in updates:
        # A further copy may come at any time.
        if update.sequence <= newest[update.client]:
            repeated += 1
            continue
        before = newest[update.client]
        assert update.sequence == before + 1, f"{update.client}: {update.sequence} after {before}"
        newest[update.client] = update.sequence
    return repeated


def check_history(file: Path, server_file: Path, scratch: Path) -> dict[str, Any]:
    """Check what the history of the log says; figures of it. Raises `AssertionError`."""
    config = load_config(server_file)
    topic = config.contract.updates_topic
    records = all_records(config.log.address, topic)
    repeated = check_order(Update.decode(record.value, record.headers) for record in records)
    readings = readings_each(file)
    for client in CLIENTS:
        (spending,) = read_spending(config.client.folder / client / LEDGER).values()
        assert spending.rows is not None
        assert spending.rows.places == readings, f"budget of {client}"
    check_exactly_once(server_file, scratch)
    return {
        "readings": readings * len(CLIENTS),
        "updates": len(records) - repeated,
        "records": len(records),
        "repeated": repeated,
    }


def run_chaos(
    folder: Path, seed: int, on: str, *, seconds: float = 0.0, steps: int = 0
) -> dict[str, Any]:
    """Run a federation under the faults of a seed, and check its history; what was done and found.

    Raises `AssertionError`.
    """
    with ExitStack() as stack:
        brokers = None
        address = "sqlite:federation.db"
        more = ""
        if on == "kafka":
            brokers = Cluster(folder / "kafka", COPIES)
            stack.callback(brokers.end)
            address = f"kafka://{brokers.bootstrap}"
            more = f"replication = {COPIES}"
        file = prepare_federation(folder, address, more)
        chaos = Chaos(file, seed, brokers)
        with killed_on_exit(chaos.processes), killed_on_exit(chaos.replaced):
            chaos.run(seconds, steps)
            chaos.end()
        figures = check_history(file, chaos.server_file, folder)
    operations = Counter(event["operation"] for event in chaos.history)
    return {
        "seed": seed,
        "on": on,
        **figures,
        "load": round(fmean(chaos.loads), 1),
        "operations": dict(sorted(operations.items())),
        "history": chaos.history,
    }


def page(runs: Sequence[dict[str, Any]], machine: dict[str, Any]) -> str:
    """The results as Markdown."""
    names = sorted({name for run in runs for name in run["operations"]})
    head = ["", *(f"{run['on']}, seed {run['seed']}" for run in runs)]
    lines = [["minutes of faults", *(f"{run['minutes']:g}" for run in runs)]]
    # It was not noted at first.
    lines.append(["load, mean", *(f"{run['load']:g}" if "load" in run else "-" for run in runs)])
    for figure in ("readings", "updates", "records", "repeated"):
        lines.append([figure, *(f"{run[figure]:,}" for run in runs)])
    for name in names:
        counts = [str(run["operations"].get(name, 0)) for run in runs]
        lines.append([name.replace("_", " "), *counts])
    return (
        "# Chaos\n\nMade by `make chaos SEED=N MINUTES=M` (`python -m tests.house.chaos`); do not"
        " edit. A federation of three clients, a producer and a server, as real processes, under"
        " faults that a seed draws. In each run below every reading was in one update, every update"
        " was to the bit that of an undisturbed client and came in its order, each ledger had"
        " charged each reading once, and the server's model was to the bit that of a rebuild from"
        " the log. On Kafka there are three brokers with three copies. The load is the number of"
        " processes that run or wait for one of the machine's processors.\n\n"
        f"{table(head, lines)}\n{one_line(machine)}\n"
    )


@click.command()
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--on", type=click.Choice(["sqlite", "kafka"]), default="sqlite", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of chaos.json and chaos.md, to which the run is added.",
)
def main(seed: int, minutes: float, on: str, out: Path | None) -> None:
    """Run chaos, and print the history as JSON; exit code 1 when it is not as it must be."""
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as folder:
        try:
            result = run_chaos(Path(folder), seed, on, seconds=60 * minutes)
        except AssertionError as failed:
            click.echo(f"{failed}\nadd `{seed} {on} STEPS WHY` to {SEEDS}", err=True)
            raise SystemExit(1) from failed
    result["minutes"] = minutes
    click.echo(json.dumps(result))
    if out is not None:
        known = out / "chaos.json"
        runs = json.loads(known.read_text(encoding="utf-8"))["runs"] if known.exists() else []
        runs = [run for run in runs if (run["on"], run["seed"]) != (on, seed)]
        runs.append({name: value for name, value in result.items() if name != "history"})
        machine = facts(("shoal",))
        write(out, "chaos", {"runs": runs, "machine": machine}, page(runs, machine))


if __name__ == "__main__":
    main()
