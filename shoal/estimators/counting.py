"""A federation in memory whose clients publish private counts of windows, for the estimators that learn from counts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.density_tree import DensityTreeCounter
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Contribution, State
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.estimators.base import Table
from shoal.privacy.count_noise import CountMechanism, count_noise
from shoal.privacy.keyed import SOURCE_BYTES

STATE_VERSION = 1
_SOURCE = bytes(SOURCE_BYTES)
_MODEL = "estimator"
FIRST_WINDOW_PART = 8
"""the first window of a client has at least one part of so many of a full one"""


@dataclass
class _Client:
    mechanism: CountMechanism | None
    readings: Table
    """(n, d) of the window that is not full yet, in unit coordinates"""
    windows: int = 0
    """windows published"""
    published: int = 0
    """readings in them"""


class CountingFederation:
    """Clients that count windows of `window_readings` readings, and the server of density_tree.

    The first window of a client is shorter, by a public phase, so that clients do not all publish at once. Raises
    `SettingsError` for an epsilon or an option out of range.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        width: int,
        n_clients: int,
        seed: int,
        epsilon: float | None,
        window_readings: int,
    ) -> None:
        for name, value, least in (("clients", n_clients, 1), ("random_state", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise SettingsError(f"{name} = {value!r}, must be a whole number, at least {least}")
        self._noise = None if epsilon is None else count_noise(float(epsilon))
        self.width = width
        self._n_clients, self._key = int(n_clients), hashlib.sha256(f"estimator {seed}".encode()).digest()
        variance = 0.0 if self._noise is None else self._noise.variance
        learnt = {**options, "noise_variance": variance, "window_readings": window_readings}
        self._window_readings = window_readings
        self._counter = DensityTreeCounter(width, **learnt)
        self.server = DensityTreeServer(width, **learnt)
        self._clients: dict[str, _Client] = {}
        self._rows = 0

    def learn(self, rows: Table, client_names: ArrayLike | None, is_last: bool = False) -> None:
        """rows (n, d) in unit coordinates, in the order in which they were read; every full window is absorbed.

        `client_names` (n,): the client of each row. `is_last`: windows that are not full are absorbed too. Raises
        `InvalidData` before anything has changed.
        """
        names = self._names_of(len(rows), client_names)
        full: list[tuple[int, str, Table]] = []
        for name in np.unique(names).tolist():
            full += self._full_windows(name, rows, np.flatnonzero(names == name))
        for _, name, window in sorted(full, key=lambda each: each[:2]):
            self._publish(name, window)
        for name, client in sorted(self._clients.items()) if is_last else ():
            if len(client.readings):
                self._publish(name, client.readings)
                client.readings = client.readings[:0]
        self._rows += len(rows)

    def state(self) -> State:
        """Everything that further learning depends on."""
        return {
            "version": STATE_VERSION,
            "width": self.width,
            "rows": self._rows,
            "clients": {
                name: {"version": STATE_VERSION, "readings": client.readings.copy(), "windows": client.windows,
                       "published": client.published}
                for name, client in self._clients.items()
            },
            "server": self.server.state(),
        }  # fmt: skip

    def restore(self, state: State) -> None:
        """Become the saved federation, if this one has learnt nothing yet. Raises `InvalidState`."""
        saved = StateReader(state, STATE_VERSION, width=self.width)
        self._rows = saved.read_int("rows")
        clients = state.get("clients")
        if not isinstance(clients, Mapping) or "server" not in state:
            raise InvalidState("saved state lacks its clients or its server")
        saved.check(len(clients) > 0, "there are rows and no clients")
        for name, inside in clients.items():
            own = StateReader(inside, STATE_VERSION)
            client = self._client(name)
            client.readings = own.read_floats("readings", (None, self.width))
            client.windows, client.published = own.read_int("windows"), own.read_int("published")
        self.server.restore(state["server"])
        self._counter.adopt(self.server.snapshot())

    def _full_windows(self, name: str, rows: Table, own: NDArray[np.intp]) -> list[tuple[int, str, Table]]:
        """(the row that fills it, client, its readings) of each window that is full; the client keeps the rest."""
        client = self._client(name)
        held = len(client.readings)
        readings = np.concatenate([client.readings, rows[own]])
        first, windows = 0, client.windows
        full = []
        while len(readings) >= first + (size := self._first_size(name) if windows == 0 else self._window_readings):
            first, windows = first + size, windows + 1
            full.append((int(own[first - held - 1]), name, readings[first - size : first]))
        client.readings = readings[first:].copy()
        return full

    def _first_size(self, name: str) -> int:
        phase = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") % self._window_readings
        return max(phase, self._window_readings // FIRST_WINDOW_PART, 1)

    def _publish(self, name: str, window: Table) -> None:
        client = self._client(name)
        counted = self._counter.count(window, np.ones(len(window), dtype=np.bool_), name.encode(), client.windows)
        private = counted.counts
        if client.mechanism is not None:
            places = (client.windows, client.published, client.published + len(window) - 1)
            private = client.mechanism.release(private, places, self._counter.plan_digest)
        before = self.server.plan_version
        self.server.absorb([Contribution(name, client.windows, counted.update(private))], b"")
        if self.server.plan_version != before:
            self._counter.adopt(self.server.snapshot())
        client.windows += 1
        client.published += len(window)

    def _client(self, name: str) -> _Client:
        if name not in self._clients:
            noise, key = self._noise, self._key
            mechanism = None if noise is None else CountMechanism(noise, key, name, _SOURCE, _MODEL)
            self._clients[name] = _Client(mechanism, np.empty((0, self.width)))
        return self._clients[name]

    def _names_of(self, n: int, client_names: ArrayLike | None) -> NDArray[np.str_]:
        """(n,) the name of each row's client."""
        if client_names is None:
            return ((self._rows + np.arange(n)) % self._n_clients).astype(str)
        names = np.asarray(client_names)
        if names.shape != (n,):
            raise InvalidData(f"clients has shape {names.shape}, it must name the client of each of the {n} rows")
        return names.astype(str)
