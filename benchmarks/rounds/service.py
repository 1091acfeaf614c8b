"""A round of many clients through the service: requests and answers over the embedded log, all in one process.

Each simulated client does what a client does between the log and the arithmetic: it reads the request, validates it,
answers from its window, validates its own answer, and stores it with a flush of its own. It has no readings log, no
checkpoint and no process of its own. The server is complete.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import spread
from client_nodes.privacy import PrivateBatch
from client_nodes.publisher import Publisher
from client_nodes.round_answers import RoundAnswers
from client_nodes.snapshots import Snapshots
from server_node.node import ServerNode
from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.policies import Answer, Policy, PolicyState, select_answers
from shoal.algorithms.streaming import Rows
from shoal.config.client_settings import ClientSettings
from shoal.config.contract import Contract, parse_contract
from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.config.server_settings import ServerSettings
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports.sqlite.log import SqliteLog

D, K, SEED = 16, 10, 3
MODEL = "measured"
DEADLINE_S = 86_400.0


def measured_service(names: Sequence[str], clients: int, rows_each: int, rounds: int) -> list[dict[str, Any]]:
    """A round's processor time through the service beside that of its arithmetic alone, in turn."""
    return [_measure(name, clients, rows_each, rounds) for name in names]


def _measure(name: str, clients: int, rows_each: int, rounds: int) -> dict[str, Any]:
    generator = np.random.default_rng(SEED)
    centres = generator.uniform(0.2, 0.8, size=(K, D))
    windows = [
        np.clip(centres[generator.integers(K, size=rows_each)] + generator.normal(0, 0.05, (rows_each, D)), 0, 1)
        for _ in range(clients)
    ]
    through, alone, waited = [], [], []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        federation = _Federation(Path(folder), name, windows, stack)
        federation.round()  # not timed: it also makes the clients known to the server
        for _ in range(rounds):
            used, clock = time.process_time(), time.perf_counter()
            federation.round()
            through.append(time.process_time() - used)
            waited.append(time.perf_counter() - clock)
            alone.append(federation.arithmetic(windows))
    return {
        "algorithm": name,
        "clients": clients,
        "rows_each": rows_each,
        "K": K,
        "d": D,
        "round_cpu_s": spread(through),
        "round_s": spread(waited),
        "arithmetic_cpu_s": spread(alone),
        "round_to_arithmetic": spread([whole / sums for whole, sums in zip(through, alone, strict=True)]),
    }


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
        self._server = ServerNode(self._contract, settings, server_log, checkpoint)
        self._server.resume()
        validator = Validator(self._contract)
        publisher = Publisher(self._contract, validator, UPDATE_RECORD_BYTES_MAX)
        self._clients = []
        for number, rows in enumerate(windows):
            snapshots = Snapshots(self._contract, validator, self._log)
            client_settings = ClientSettings(window_rows=len(rows))
            client = RoundAnswers(self._contract, f"client-{number}", publisher, snapshots, client_settings)
            times: list[float | None] = [float(place) for place in range(len(rows))]
            client.keep(PrivateBatch(rows, times, np.arange(len(rows)), times), time.time())
            self._clients.append(client)
        while self._server.step():
            pass

    def round(self) -> None:
        """Run one round: from an open request to the next one."""
        for client in self._clients:
            for record in (record for update in client.make_answers(time.time()).updates for record in update.records):
                self._log.publish(record.topic, record.value, record.key, record.headers)
            self._log.flush()
        before = self._closed()
        while self._closed() == before:
            self._server.step()

    def arithmetic(self, windows: Sequence[Rows]) -> float:
        """Processor seconds of the same answers and their sum alone."""
        snapshot = self._server.models()[MODEL].snapshot
        assert snapshot is not None
        used = time.process_time()
        answers = [
            Answer(f"{n:06}", 0, self._algorithm.answer(snapshot.arrays, rows)) for n, rows in enumerate(windows)
        ]
        self._algorithm.combine(snapshot.arrays, select_answers(Policy(), PolicyState(), answers, 0)[1])
        return time.process_time() - used

    def _closed(self) -> int:
        snapshot = self._server.models()[MODEL].snapshot
        return 0 if snapshot is None or snapshot.round is None else snapshot.round


def _contract(name: str, clients: int) -> Contract:
    rounds = {"quorum": 1.0, "deadline_s": DEADLINE_S, "tolerance": 0.0, "rounds_max": 1000, "between": "fresh"}
    return parse_contract(
        {
            "federation": {"name": f"of-{clients}"},
            "features": [{"name": f"x{number}", "low": 0.0, "high": 1.0} for number in range(D)],
            "privacy": {"mode": "off"},
            "models": [{"name": MODEL, "algorithm": name, "options": {"clusters": K}, "rounds": rounds}],
        }
    )
