"""The audits of kills: processes that release windows as fast as they can are killed at random and
started again.

After every kill, what the federation's log holds is compared with the client's ledger. The server
changes the plan of counting now and then, so that a window counted again after a kill would be
another answer.

With masked counts clients, helpers and the server are killed. After every kill the federation's log
is compared with the ledgers: no round may have two sums of a helper, no window two vectors of
counts in one round or be unmasked in two, and no ledger may be below what was published.
"""

from __future__ import annotations

import multiprocessing
import secrets
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from shoal.client_nodes.bootstrap import open_client
from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config
from shoal.errors import InvalidState, SettingsError
from shoal.helper_node.bootstrap import open_helper
from shoal.onebox.audit.client import NAME, NOW, in_folder, new_records
from shoal.onebox.audit.masked import scratch_federation
from shoal.onebox.audit.statistics import EventFinding
from shoal.privacy.ledger import LEDGER, Spent, account, read_spending
from shoal.privacy.masks import helper_public
from shoal.protocol.codec import pack
from shoal.protocol.masked import CloseRound, HelperSum, MaskedCounts
from shoal.protocol.messages import Update
from shoal.protocol.readings import USER_ID, Reading
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.helper_state import make_helper_state
from shoal.runtime.logs import open_readings
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
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
            records, self._positions = new_records(
                log, self._config.contract.updates_topic, self._positions
            )
        for record in records:
            update = Update.decode(record.value, record.headers)
            known = self.by_window.setdefault((update.model, update.sequence), set())
            # Once for a window: another answer to it is of the same readings.
            if not known:
                self.readings[update.model] = self.readings.get(update.model, 0) + update.readings
            known.add(pack(update.arrays))

    @property
    def twice(self) -> int:
        """Windows with more than one answer."""
        return sum(len(contents) > 1 for contents in self.by_window.values())

    def exceed(self, spent: Spent, model: str, epsilon: float) -> bool:
        """Whether more was published of a model than its ledger holds."""
        mine = [contents for (name, _), contents in self.by_window.items() if name == model]
        most = epsilon * max((len(contents) for contents in mine), default=0)
        answers = sum(len(contents) for contents in mine)
        readings = self.readings.get(model, 0)
        return (
            len(mine) > spent.windows
            or answers > spent.releases
            or readings > spent.places
            or most > spent.epsilon
        )


def audit_kills(
    config: Config, model: ResolvedModel, folder: Path, kills: int, generator: np.random.Generator
) -> list[EventFinding]:
    """Kill a client with SIGKILL; returns windows answered twice, and kills after which the ledger
    was short.

    Raises `SettingsError` on a system without `fork`.
    """
    check_forks()
    assert model.counts is not None
    audited = _small(in_folder(config, folder, [model.declared]))
    answers = Answers(audited)
    epsilon = model.epsilon or 0.0
    runs = KilledRuns(partial(_release_for_ever, audited), generator)
    short = 0
    for number in range(kills):
        _write_readings(audited, generator)
        runs.run_and_kill()
        if number % SERVER_EVERY == 0:
            _run_server(audited)
        answers.read()
        short += answers.exceed(_spent(audited, model.counts.stream), model.name, epsilon)
    windows = len(answers.by_window)
    after = f"windows released, {kills} kills"
    return [
        EventFinding("kills: answers", model.name, windows, after, answers.twice, "answered twice"),
        EventFinding(
            "kills: ledger", model.name, kills, "kills", short, "with a ledger below what was spent"
        ),
    ]


def check_forks() -> None:
    """Raises `SettingsError` on a system without `fork`."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise SettingsError(
            "the audit of kills needs a system that can fork processes; leave it out with --kills 0"
        )


def _small(config: Config) -> Config:
    """The configuration with steps of few windows, so that kills hit many releases."""
    size = config.contract.privacy.window_readings
    client = config.client.model_copy(update={"batch_readings_max": STEP_WINDOWS * size})
    models = []
    for model in config.resolved.counted:
        assert model.counts is not None
        # Only a tree that decides which axes are counted grows.
        grown = {}
        if model.counts.algorithm.samples_axes:
            grown["grow_readings"] = GROW_WINDOWS * size
        models.append(
            model.declared.model_copy(update={"options": {**model.declared.options, **grown}})
        )
    contract = config.contract.model_copy(update={"models": tuple(models)})
    return config.model_copy(update={"client": client, "contract": contract})


def _write_readings(config: Config, generator: np.random.Generator) -> None:
    """More readings of three clusters: as many as a process counts on average before it is
    killed."""
    bounds = config.resolved.bounds
    size = config.contract.privacy.window_readings
    n = STEP_WINDOWS * (STEPS_MAX + 1) // 2 * size
    unit = generator.choice([0.2, 0.5, 0.8], size=n)[:, None] + generator.normal(
        0.0, 0.04, size=(n, bounds.d)
    )
    (config.client.folder / NAME).mkdir(parents=True, exist_ok=True)
    with closing(open_readings(config, NAME)) as readings:
        readings.ensure(READINGS, readings_settings(config.client))
        for number, values in enumerate(bounds.from_unit(unit)):
            user = (USER_ID, str(number).encode())
            readings.publish(
                READINGS, Reading(NOW, values).encode(), headers=(*Reading.headers(), user)
            )
        readings.flush()


class KilledRuns:
    """Runs a node in one process after the other, and kills each at a random moment."""

    def __init__(self, run: Callable[[Connection], None], generator: np.random.Generator) -> None:
        """`run` opens the node, and steps for ever; before each step it sends a byte."""
        self._run = run
        self._generator = generator
        self._start_s = 0.1
        self._step_s = 0.01
        """seconds that the start and a step took when they were last seen"""

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
        # This end is the child's: while it is open here, too, a child that has died would be waited
        # for.
        stepped.close()
        with closing(steps):
            if self._generator.random() < STARTING:
                time.sleep(self._generator.uniform(0.0, self._start_s))
            else:
                self._wait(steps, began)
                # Up to two steps, so that kills fall into every part of a step, its end as well.
                time.sleep(self._generator.uniform(0.0, 2.0 * self._step_s))
            node.kill()
            node.join()
        if node.exitcode != -signal.SIGKILL:
            raise RuntimeError(
                f"the process ended with exit code {node.exitcode} before it was killed"
            )

    def _wait(self, steps: Connection, began: float) -> None:
        """Wait until the client has started, and has made a random number of steps."""
        wanted = int(self._generator.integers(STEPS_MAX + 1))
        with suppress(EOFError):
            steps.recv_bytes()
            self._start_s = time.monotonic() - began
            began = time.monotonic()
            for _ in range(wanted):
                steps.recv_bytes()
            if wanted:
                self._step_s = (time.monotonic() - began) / wanted


def _release_for_ever(config: Config, stepped: Connection) -> None:
    with resumed(open_client(config, NAME, clock=lambda: NOW)) as client:
        while True:
            stepped.send_bytes(b".")
            client.step(timeout_s=0.05)


def _spent(config: Config, stream: str) -> Spent:
    """The ledger of the client for a stream of counts; nothing where it was killed before it had
    made one."""
    nothing = Spent(stream, 0, 0, 0, 0.0)
    try:
        held = read_spending(config.client.folder / NAME / LEDGER)[
            account(NAME, config.contract.federation)
        ]
    except (InvalidState, KeyError):
        return nothing
    return next((account for account in held.models if account.model == stream), nothing)


def _run_server(config: Config) -> None:
    with resumed(open_server(config, clock=lambda: NOW)) as server:
        while server.step():
            pass


CLIENTS: Final = ("first", "second", "third")
WINDOWS_AHEAD: Final = 2
"""windows of readings that are written before each process of a client"""
STEP_S: Final = 0.02
"""longest wait of a step"""


class Seen:
    """Rounds as the log shows them, and what is wrong about them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._positions: Positions | None = None
        self._messages: dict[int, MaskedCounts] = {}
        """offset -> message"""
        self.sums: dict[tuple[str, int], set[bytes]] = {}
        """(helper, round) -> the different sums of a helper"""
        self.vectors: dict[tuple[str, int, int], set[bytes]] = {}
        """(client, window, round) -> the different contents of its messages"""
        self.unmasked: dict[tuple[str, int], set[int]] = {}
        """(client, window) -> the rounds whose batch has it"""

    def read(self) -> None:
        """Take in what is new in the log."""
        topic = self._config.contract.updates_topic
        with closing(open_log(self._config.log)) as log:
            if self._positions is None:
                self._positions = beginning(log, topic)
            records, self._positions = new_records(log, topic, self._positions)
        for record in records:
            kind = dict(record.headers).get("type", b"").decode()
            if kind == MaskedCounts.TYPE:
                message = MaskedCounts.decode(record.value, record.headers)
                self._messages[record.offset] = message
                place = (message.client, message.window, message.round)
                self.vectors.setdefault(place, set()).add(message.counts)
            elif kind == HelperSum.TYPE:
                found = HelperSum.decode(record.value, record.headers)
                self.sums.setdefault((found.helper, found.round), set()).add(found.total)
            elif kind == CloseRound.TYPE:
                close = CloseRound.decode(record.value, record.headers)
                for offset in close.places:
                    message = self._messages[offset]
                    self.unmasked.setdefault((message.client, message.window), set()).add(
                        close.round
                    )

    def windows(self, client: str) -> int:
        """Number of windows that a client has published."""
        return len({window for name, window, _ in self.vectors if name == client})


def audit_masked_kills(
    config: Config, model: ResolvedModel, folder: Path, kills: int, generator: np.random.Generator
) -> list[EventFinding]:
    """Kill clients, helpers and the server with SIGKILL, one after another.

    Raises `SettingsError` on a system without `fork`.
    """
    check_forks()
    keys = {helper.name: secrets.token_bytes(32) for helper in config.contract.privacy.helpers}
    for name, key in keys.items():
        make_helper_state(folder / name, helper_public(key))
    audited = scratch_federation(config, model, folder, keys)
    opened: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "server": partial(open_server, audited, clock=_clock)
    }
    for name, key in keys.items():
        opened[name] = partial(open_helper, audited, key, folder / name)
    for name in CLIENTS:
        opened[name] = partial(open_client, audited, name, clock=_clock)
    runs = {
        name: KilledRuns(partial(_step_for_ever, open_node), generator)
        for name, open_node in opened.items()
    }
    with resumed(open_server(audited, clock=_clock)):
        pass  # so that clients find topics and contract
    seen = Seen(audited)
    short = 0
    # In the order in which a round goes on, so that there are many of them; a process that was
    # killed too early to do its part does it the next time.
    turns = cycle((*CLIENTS, "server", *keys, "server"))
    for name in islice(turns, kills):
        if name in CLIENTS:
            _write_masked_readings(audited, name, generator)
        runs[name].run_and_kill()
        seen.read()
        short += any(seen.windows(client) > _charged(audited, client) for client in CLIENTS)
    twice = [
        sum(len(found) > 1 for found in published.values())
        for published in (seen.sums, seen.vectors, seen.unmasked)
    ]
    after = f"after {kills} kills"
    return [
        EventFinding(
            "kills: sums",
            model.name,
            len(seen.sums),
            f"sums of helpers, {after}",
            twice[0],
            "with two contents",
        ),
        EventFinding(
            "kills: counts",
            model.name,
            len(seen.vectors),
            f"messages, {after}",
            twice[1],
            "with two contents",
        ),
        EventFinding(
            "kills: windows",
            model.name,
            len(seen.unmasked),
            f"windows, {after}",
            twice[2],
            "in two batches",
        ),
        EventFinding(
            "kills: ledger", model.name, kills, "kills", short, "with a ledger below what was spent"
        ),
    ]


def _clock() -> float:
    return NOW


def _step_for_ever(opened: Callable[[], AbstractContextManager[Any]], stepped: Connection) -> None:
    with resumed(opened()) as node:
        while True:
            stepped.send_bytes(b".")
            node.step(timeout_s=STEP_S)


def _write_masked_readings(config: Config, client: str, generator: np.random.Generator) -> None:
    """More readings of two clusters for a client."""
    bounds = config.resolved.bounds
    n = WINDOWS_AHEAD * config.contract.privacy.window_readings
    unit = generator.choice([0.2, 0.8], size=n)[:, None] + generator.normal(
        0.0, 0.04, size=(n, bounds.d)
    )
    (config.client.folder / client).mkdir(parents=True, exist_ok=True)
    with closing(open_readings(config, client)) as log:
        log.ensure(READINGS, readings_settings(config.client))
        for values in bounds.from_unit(unit):
            log.publish(READINGS, Reading(NOW, values).encode(), headers=Reading.headers())
        log.flush()


def _charged(config: Config, client: str) -> int:
    """Windows of a client that its ledger holds; none where it was killed before it had made
    one."""
    try:
        held = read_spending(config.client.folder / client / LEDGER)[
            account(client, config.contract.federation)
        ]
    except (InvalidState, KeyError):
        return 0
    return sum(account.windows for account in held.masked)
