"""What makes the demo repeatable: a clock that moves in ticks, and noise that is a function of a seed."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from client_nodes.bootstrap import CHECKPOINT, NOISE_KEY, checkpoint_owner
from shoal.config.settings import Config
from shoal.files import write_secret
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports.sqlite.log import SqliteLog

TICK_S = 1 / 16
"""seconds of one tick; a power of two, so that adding ticks never rounds"""


class TickingClock:
    """Seconds since 1970 in whole ticks, never ahead of real time; on a slow machine it falls behind."""

    def __init__(self, real: Callable[[], float] = time.time) -> None:
        self._real = real
        self._start = self._now = float(math.floor(real()))

    def __call__(self) -> float:
        return self._now

    def elapsed(self) -> float:
        """Seconds since its start, the same numbers in every run."""
        return self._now - self._start

    def advance(self) -> bool:
        """Move on by one tick. False when real time has not gone so far."""
        if self._real() < self._now + TICK_S:
            return False
        self._now += TICK_S
        return True


def seed_clients(config: Config, clients: Sequence[str], seed: int) -> None:
    """Give new clients noise keys and readings logs that are functions of `seed`: the noise depends on both.

    Such keys are public, so they are for data that are public as well.
    """
    for client in clients:
        folder = config.client.folder / client
        folder.mkdir(parents=True, exist_ok=True)
        identity = _derived(seed, client, "readings log")[:16]
        with closing(SqliteLog(folder / "readings.db", new_identity=partial(bytes, identity))) as log:
            log.ensure(READINGS, readings_settings(config.client))
        # A key without a checkpoint would be the remains of a lost client.
        Checkpoint(folder / CHECKPOINT, checkpoint_owner(config, client)).close()
        write_secret(folder / NOISE_KEY, _derived(seed, client, "noise key"))


def _derived(seed: int, client: str, use: str) -> bytes:
    return hashlib.sha256(f"shoal demo\n{seed}\n{client}\n{use}".encode()).digest()
