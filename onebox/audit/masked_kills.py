"""The audit of kills of masked counts: clients, helpers and the server are killed at random moments and started again.

After every kill the federation's log is compared with the ledgers: no round may have two sums of a helper, no window
two vectors of counts in one round or be unmasked in two, and no ledger may be below what was published.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from functools import partial
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from client_nodes.bootstrap import open_client
from helper_node.node import open_helper
from onebox.audit.client import NOW, new_records
from onebox.audit.kills import KilledRuns, check_forks
from onebox.audit.masked import scratch_federation
from onebox.audit.statistics import EventFinding
from server_node.bootstrap import open_server
from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config
from shoal.errors import InvalidState
from shoal.privacy.ledger import LEDGER, account, read_spending
from shoal.protocol.masked import CloseRound, HelperSum, MaskedCounts
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.logs import open_readings
from shoal.transports import open_log
from shoal.transports.base import Positions, beginning

CLIENTS: Final = ("first", "second", "third")
WINDOWS_AHEAD: Final = 2
"""windows of readings that are written before each process of a client"""
STEP_S: Final = 0.02
"""longest wait of a step"""


class Seen:
    """What the log shows of rounds, and what is wrong about it."""

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
                    self.unmasked.setdefault((message.client, message.window), set()).add(close.round)

    def windows(self, client: str) -> int:
        """How many windows a client has published."""
        return len({window for name, window, _ in self.vectors if name == client})


def audit_masked_kills(
    config: Config, model: ResolvedModel, folder: Path, kills: int, generator: np.random.Generator
) -> list[EventFinding]:
    """Kill clients, helpers and the server with SIGKILL, one after another.

    Raises `SettingsError` on a system without `fork`.
    """
    check_forks()
    keys = {helper.name: secrets.token_bytes(32) for helper in config.contract.privacy.helpers}
    audited = scratch_federation(config, model, folder, keys)
    runs = {
        "server": KilledRuns(partial(_step_for_ever, partial(open_server, audited, clock=_clock)), generator),
        **{
            name: KilledRuns(partial(_step_for_ever, partial(open_helper, audited, key, folder / name)), generator)
            for name, key in keys.items()
        },
        **{
            name: KilledRuns(partial(_step_for_ever, partial(open_client, audited, name, clock=_clock)), generator)
            for name in CLIENTS
        },
    }
    with open_server(audited, clock=_clock):
        pass  # so that clients find topics and contract
    seen, short = Seen(audited), 0
    # In the order in which a round goes on, so that there are many of them; a process that was killed too early to do
    # its part does it the next time.
    turns = cycle((*CLIENTS, "server", *keys, "server"))
    for name in islice(turns, kills):
        if name in CLIENTS:
            _write_readings(audited, name, generator)
        runs[name].run_and_kill()
        seen.read()
        short += any(seen.windows(client) > _charged(audited, client) for client in CLIENTS)
    twice = [sum(len(found) > 1 for found in each.values()) for each in (seen.sums, seen.vectors, seen.unmasked)]
    after = f"after {kills} kills"
    return [
        EventFinding(
            "kills: sums", model.name, len(seen.sums), f"sums of helpers, {after}", twice[0], "with two contents"
        ),
        EventFinding(
            "kills: counts", model.name, len(seen.vectors), f"messages, {after}", twice[1], "with two contents"
        ),
        EventFinding("kills: windows", model.name, len(seen.unmasked), f"windows, {after}", twice[2], "in two batches"),
        EventFinding("kills: ledger", model.name, kills, "kills", short, "with a ledger below what was spent"),
    ]


def _clock() -> float:
    return NOW


def _step_for_ever(opened: Callable[[], AbstractContextManager[Any]], stepped: Connection) -> None:
    with opened() as node:
        while True:
            stepped.send_bytes(b".")
            node.step(timeout_s=STEP_S)


def _write_readings(config: Config, client: str, generator: np.random.Generator) -> None:
    """More readings of two clusters for a client."""
    bounds, n = config.resolved.bounds, WINDOWS_AHEAD * config.contract.privacy.window_readings
    unit = generator.choice([0.2, 0.8], size=n)[:, None] + generator.normal(0.0, 0.04, size=(n, bounds.d))
    (config.client.folder / client).mkdir(parents=True, exist_ok=True)
    with closing(open_readings(config, client)) as log:
        log.ensure(READINGS, readings_settings(config.client))
        for values in bounds.from_unit(unit):
            log.publish(READINGS, Reading(NOW, values).encode(), headers=Reading.headers())
        log.flush()


def _charged(config: Config, client: str) -> int:
    """Windows of a client that its ledger holds; none where it was killed before it had made one."""
    try:
        held = read_spending(config.client.folder / client / LEDGER)[account(client, config.contract.federation)]
    except (InvalidState, KeyError):
        return 0
    return sum(one.windows for one in held.masked)
