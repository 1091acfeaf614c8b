"""The audit of kills: a client that releases windows as fast as it can is killed at random moments and started again.

After every kill, what the federation's log holds is compared with the client's ledger. The server changes the plan of
counting now and then, so that a window counted again after a kill would be another answer.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np

from client_nodes.bootstrap import open_client
from onebox.audit.client import NAME, NOW, in_folder, new_records
from onebox.audit.statistics import EventFinding
from server_node.bootstrap import open_server
from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config
from shoal.errors import InvalidState, SettingsError
from shoal.privacy.ledger import LEDGER, Spent, account, read_spending
from shoal.protocol.codec import pack
from shoal.protocol.messages import Update
from shoal.protocol.readings import USER_ID, Reading
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.logs import open_readings
from shoal.transports import open_log
from shoal.transports.base import Positions, beginning

STEPS_MAX: Final = 4
"""steps that a process may make before the one in which it is killed"""
STEP_WINDOWS: Final = 2
"""windows that a step releases"""
STARTING: Final = 0.2
"""share of the kills that hit a process while it starts"""
SERVER_EVERY: Final = 10
"""kills between two runs of the server"""
GROW_WINDOWS: Final = 10
"""windows after which the server looks whether to change the tree, so that plans change often"""


class Answers:
    """The answers in the federation's log, window by window."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._positions: Positions | None = None
        self.by_window: dict[tuple[str, int], set[bytes]] = {}
        """(model, sequence) -> the different contents of updates with that number"""
        self.readings: dict[str, int] = {}
        """model -> readings in all windows"""

    def read(self) -> None:
        """Take in what is new in the log."""
        with closing(open_log(self._config.log)) as log:
            if self._positions is None:
                self._positions = beginning(log, self._config.contract.updates_topic)
            records, self._positions = new_records(log, self._config.contract.updates_topic, self._positions)
        for record in records:
            update = Update.decode(record.value, record.headers)
            known = self.by_window.setdefault((update.model, update.sequence), set())
            if not known:
                self.readings[update.model] = self.readings.get(update.model, 0) + update.readings
            known.add(pack(update.arrays))

    @property
    def twice(self) -> int:
        """Windows with more than one answer."""
        return sum(len(contents) > 1 for contents in self.by_window.values())

    def exceed(self, spent: Spent, epsilon: float) -> bool:
        """Whether more was published of a model than its ledger holds."""
        mine = [contents for (model, _), contents in self.by_window.items() if model == spent.model]
        most = epsilon * max((len(contents) for contents in mine), default=0)
        answers = sum(len(contents) for contents in mine)
        readings = self.readings.get(spent.model, 0)
        return len(mine) > spent.windows or answers > spent.releases or readings > spent.places or most > spent.epsilon


def audit_kills(
    config: Config, model: ResolvedModel, folder: Path, kills: int, generator: np.random.Generator
) -> list[EventFinding]:
    """Kill a client with SIGKILL; returns windows answered twice, and kills after which the ledger was short.

    Raises `SettingsError` on a system without `fork`.
    """
    check_forks()
    audited = _small(in_folder(config, folder, [model.declared]))
    answers, epsilon = Answers(audited), model.epsilon or 0.0
    runs, short = KilledRuns(partial(_release_for_ever, audited), generator), 0
    for number in range(kills):
        _write_readings(audited, generator)
        runs.run_and_kill()
        if number % SERVER_EVERY == 0:
            _run_server(audited)
        answers.read()
        short += answers.exceed(_spent(audited, model), epsilon)
    windows = len(answers.by_window)
    after = f"windows released, {kills} kills"
    return [
        EventFinding("kills: answers", model.name, windows, after, answers.twice, "answered twice"),
        EventFinding("kills: ledger", model.name, kills, "kills", short, "with a ledger below what was spent"),
    ]


def check_forks() -> None:
    """Raises `SettingsError` on a system without `fork`."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise SettingsError("the audit of kills needs a system that can fork processes; leave it out with --kills 0")


def _small(config: Config) -> Config:
    """The configuration with steps of few windows, so that kills hit many releases."""
    size = config.contract.privacy.window_readings
    client = config.client.model_copy(update={"batch_readings_max": STEP_WINDOWS * size})
    models = [
        model.model_copy(update={"options": {**model.options, "grow_readings": GROW_WINDOWS * size}})
        for model in config.contract.models
    ]
    contract = config.contract.model_copy(update={"models": tuple(models)})
    return config.model_copy(update={"client": client, "contract": contract})


def _write_readings(config: Config, generator: np.random.Generator) -> None:
    """More readings of three clusters: as many as a process counts on average before it is killed."""
    bounds, size = config.resolved.bounds, config.contract.privacy.window_readings
    n = STEP_WINDOWS * (STEPS_MAX + 1) // 2 * size
    unit = generator.choice([0.2, 0.5, 0.8], size=n)[:, None] + generator.normal(0.0, 0.04, size=(n, bounds.d))
    (config.client.folder / NAME).mkdir(parents=True, exist_ok=True)
    with closing(open_readings(config, NAME)) as readings:
        readings.ensure(READINGS, readings_settings(config.client))
        for number, values in enumerate(bounds.from_unit(unit)):
            user = (USER_ID, str(number).encode())
            readings.publish(READINGS, Reading(NOW, values).encode(), headers=(*Reading.headers(), user))
        readings.flush()


class KilledRuns:
    """Runs a node in one process after the other, and kills each at a random moment."""

    def __init__(self, run: Callable[[Connection], None], generator: np.random.Generator) -> None:
        """`run` opens the node, and steps for ever; before each step it sends a byte."""
        self._run = run
        self._generator = generator
        self._start_s, self._step_s = 0.1, 0.01
        """how long the start and a step took when they were last seen"""

    def run_and_kill(self) -> None:
        """Start the node; kill it while it starts, or at any moment of one of its first steps."""
        with warnings.catch_warnings():
            # The copy of this process uses nothing of its threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            fork = multiprocessing.get_context("fork")
            steps, stepped = fork.Pipe(duplex=False)
            node = fork.Process(target=self._run, args=(stepped,), daemon=True)
            began = time.monotonic()
            node.start()
        stepped.close()
        with closing(steps):
            if self._generator.random() < STARTING:
                time.sleep(self._generator.uniform(0.0, self._start_s))
            else:
                self._wait(steps, began)
                time.sleep(self._generator.uniform(0.0, 2.0 * self._step_s))
            node.kill()
            node.join()
        if node.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"the process ended with exit code {node.exitcode} before it was killed")

    def _wait(self, steps: Connection, began: float) -> None:
        """Wait until the client has started, and has made a random number of steps."""
        wanted = int(self._generator.integers(STEPS_MAX + 1))
        with suppress(EOFError):
            steps.recv_bytes()
            self._start_s, began = time.monotonic() - began, time.monotonic()
            for _ in range(wanted):
                steps.recv_bytes()
            if wanted:
                self._step_s = (time.monotonic() - began) / wanted


def _release_for_ever(config: Config, stepped: Connection) -> None:
    with open_client(config, NAME, clock=lambda: NOW) as client:
        while True:
            stepped.send_bytes(b".")
            client.step(timeout_s=0.05)


def _spent(config: Config, model: ResolvedModel) -> Spent:
    """The ledger of the client for a model; nothing where the client was killed before it had made one."""
    nothing = Spent(model.name, 0, 0, 0, 0.0)
    try:
        held = read_spending(config.client.folder / NAME / LEDGER)[account(NAME, config.contract.federation)]
    except (InvalidState, KeyError):
        return nothing
    return next((each for each in held.models if each.model == model.name), nothing)


def _run_server(config: Config) -> None:
    with open_server(config, clock=lambda: NOW) as server:
        while server.step():
            pass
