"""A round of many clients through the service: requests and answers over the embedded log, all in
one process.

Each simulated client does what a client does between the log and the arithmetic: it reads the
request, validates it, answers from its window, validates its own answer, and stores it in the log:
with a flush of its own, or together with others, as a broker or a process of many clients does. It
has no readings log, no checkpoint and no process of its own; what these add is measured with whole
client nodes (`benchmarks.rounds.live`). The server is complete.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import rounded, spread, table
from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.policies import Answer, Policy, PolicyState, select_answers
from shoal.algorithms.streaming import Rows
from shoal.client_nodes.privacy import PrivateBatch
from shoal.client_nodes.publisher import Publisher
from shoal.client_nodes.round_answers import RoundAnswers
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.contract import Contract, parse_contract
from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.config.resolved import resolve
from shoal.config.sections import ClientSettings, ServerSettings
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint
from shoal.server_node.history.store import HistoryStore
from shoal.server_node.node import ServerNode
from shoal.transports.sqlite.log import SqliteLog

D = 16
K = 10
SEED = 3
MODEL = "measured"
DEADLINE_S = 86_400.0
TOGETHER = 100
"""answers that are flushed together"""
PARTS = {
    "request": "reads the request and validates it",
    "answer": "validates and encodes its answer",
    "flush_each": "stores it in the log, each for itself",
    "flush_together": f"the same, {TOGETHER} at a time",
    "server": "server: reads, validates, combines, saves and publishes",
}
"""part of an answer's way -> what is done there"""


def measured_service(
    names: Sequence[str], clients: int, rows_each: int, rounds: int
) -> list[dict[str, Any]]:
    """A round's processor time through the service beside that of its arithmetic alone, in turn."""
    return [_measure(name, clients, rows_each, rounds) for name in names]


def _measure(name: str, clients: int, rows_each: int, rounds: int) -> dict[str, Any]:
    generator = np.random.default_rng(SEED)
    centres = generator.uniform(0.2, 0.8, size=(K, D))
    windows = [
        np.clip(
            centres[generator.integers(K, size=rows_each)]
            + generator.normal(0, 0.05, (rows_each, D)),
            0,
            1,
        )
        for _ in range(clients)
    ]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        federation = _Federation(Path(folder), name, windows, stack)
        federation.round(1)  # not timed: it also makes the clients known to the server
        turns = [_turn(federation, windows) for _ in range(rounds)]
    return {
        "algorithm": name,
        "clients": clients,
        "rows_each": rows_each,
        "K": K,
        "d": D,
        **{name: spread([turn[name] for turn in turns]) for name in turns[0]},
    }


def _turn(federation: _Federation, windows: Sequence[Rows]) -> dict[str, float]:
    """Seconds of a round and of its parts for each answer, beside those of the arithmetic alone."""
    used = time.thread_time()
    clock = time.perf_counter()
    each = federation.round(1)
    whole = time.thread_time() - used
    waited = time.perf_counter() - clock
    together = federation.round(TOGETHER)
    answering, combining = federation.arithmetic(windows)
    parts = {
        "request": (each.request + together.request) / 2,
        "answer": (each.answer + together.answer) / 2 - answering,
        "flush_each": each.flush,
        "flush_together": together.flush,
        "server": (each.server + together.server) / 2 - combining,
    }
    return {
        "round_s": waited,
        "round_cpu_s": whole,
        "arithmetic_cpu_s": answering + combining,
        "round_to_arithmetic": whole / (answering + combining),
        **{f"{name}_us": 1e6 * seconds / len(windows) for name, seconds in parts.items()},
    }


@dataclass
class _Used:
    """Processor seconds of the parts of a round, of all its answers together."""

    request: float = 0.0
    answer: float = 0.0
    flush: float = 0.0
    server: float = 0.0


class _Federation:
    """A server and many clients on one log."""

    def __init__(self, folder: Path, name: str, windows: Sequence[Rows], stack: ExitStack) -> None:
        self._contract = _contract(name, len(windows))
        self._algorithm = rounds_algorithm(name)
        self._log = stack.enter_context(closing(SqliteLog(folder / "federation.db")))
        ensure_topics(self._log, self._contract)
        server_log = stack.enter_context(closing(SqliteLog(folder / "federation.db")))
        checkpoint = stack.enter_context(Checkpoint(folder / "checkpoint.db", "server"))
        settings = ServerSettings(pool_clients=len(windows), pool_s=DEADLINE_S)
        self._server = ServerNode(
            resolve(self._contract),
            settings,
            server_log,
            checkpoint,
            history=HistoryStore(resolve(self._contract)),
        )
        self._server.resume()
        contract = resolve(self._contract)
        validator = Validator(contract)
        self._clients: list[RoundAnswers] = []
        self._snapshots: list[Snapshots] = []
        for number, rows in enumerate(windows):
            snapshots = Snapshots(self._contract, validator, self._log)
            client_settings = ClientSettings(window_rows=len(rows))
            name = f"client-{number}"
            publisher = Publisher(contract, name, validator, UPDATE_RECORD_BYTES_MAX)
            client = RoundAnswers(contract, name, publisher, snapshots, client_settings)
            times: list[float | None] = [float(place) for place in range(len(rows))]
            client.keep(PrivateBatch(rows, times, np.arange(len(rows)), times), time.time())
            self._clients.append(client)
            self._snapshots.append(snapshots)
        while self._server.step():
            pass

    def round(self, together: int) -> _Used:
        """Run one round, from an open request to the next one; `together` answers are flushed at a
        time."""
        used = _Used()
        before = time.thread_time()
        for number, (client, snapshots) in enumerate(
            zip(self._clients, self._snapshots, strict=True), 1
        ):
            snapshots.follow()
            read = time.thread_time()
            made = client.make_answers(time.time()).updates
            answered = time.thread_time()
            for record in (record for update in made for record in update.records):
                self._log.publish(record.topic, record.value, record.key, record.headers)
            if number % together == 0 or number == len(self._clients):
                self._log.flush()
            flushed = time.thread_time()
            used.request += read - before
            used.answer += answered - read
            used.flush += flushed - answered
            before = flushed
        round_before = self._closed()
        while self._closed() == round_before:
            self._server.step()
        used.server = time.thread_time() - before
        return used

    def arithmetic(self, windows: Sequence[Rows]) -> tuple[float, float]:
        """Processor seconds of the same answers, and of their sum, alone."""
        snapshot = self._server.models()[MODEL].snapshot
        assert snapshot is not None
        began = time.thread_time()
        answers = [
            Answer(f"{n:06}", 0, self._algorithm.answer(snapshot.arrays, rows))
            for n, rows in enumerate(windows)
        ]
        answered = time.thread_time()
        self._algorithm.combine(
            snapshot.arrays, select_answers(Policy(), PolicyState(), answers, 0)[1]
        )
        return answered - began, time.thread_time() - answered

    def _closed(self) -> int:
        snapshot = self._server.models()[MODEL].snapshot
        return 0 if snapshot is None or snapshot.round is None else snapshot.round


def _contract(name: str, clients: int) -> Contract:
    rounds = {
        "quorum": 1.0,
        "deadline_s": DEADLINE_S,
        "tolerance": 0.0,
        "rounds_max": 1000,
        "between": "fresh",
    }
    return parse_contract(
        {
            "federation": {"name": f"of-{clients}"},
            "features": [{"name": f"x{number}", "low": 0.0, "high": 1.0} for number in range(D)],
            "privacy": {"mode": "off"},
            "models": [
                {"name": MODEL, "algorithm": name, "options": {"clusters": K}, "rounds": rounds}
            ],
        }
    )


def service_tables(measured: Sequence[Mapping[str, Any]], live: Mapping[str, Any]) -> str:
    """The figures of `measured_service` and of `benchmarks.rounds.live.measured_clients` as
    Markdown."""
    head = [
        "algorithm",
        "clients",
        "rows each",
        "round, s",
        "round, CPU s",
        "arithmetic, CPU s",
        "round / arithmetic",
    ]
    names = ("round_s", "round_cpu_s", "arithmetic_cpu_s")
    rounds = [
        [
            algorithm["algorithm"],
            str(algorithm["clients"]),
            str(algorithm["rows_each"]),
            *(rounded(algorithm[name]["median"]) for name in names),
            f"{algorithm['round_to_arithmetic']['median']:.2f}",
        ]
        for algorithm in measured
    ]
    parts = [
        [what, *(rounded(algorithm[f"{part}_us"]["median"]) for algorithm in measured)]
        for part, what in PARTS.items()
    ]
    title = [
        "processor time of an answer beyond its arithmetic, µs",
        *(algorithm["algorithm"] for algorithm in measured),
    ]
    return (
        f"{table(head, rounds)}\nA round through the service in one process: every client reads the"
        " request from the embedded log, validates it, answers, validates its answer and stores it"
        " with a flush of its own; the server reads, validates, combines, saves and publishes the"
        " next request. The arithmetic is the answers and their sum alone, in"
        f" turn.\n\n{table(title, parts)}\nThe parts of the same rounds. A whole client node with"
        f" {live['rows']} rows in its window, as `shoal client` runs it, takes"
        f" {rounded(live['answer_us']['median'])} µs of processor time for an answer of"
        f" {live['algorithm']}, arithmetic included: it also looks for readings, stores its state"
        f" and the answer in its own checkpoint, and flushes both. {live['clients']} of them"
        " answered in turn.\n"
    )
