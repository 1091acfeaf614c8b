"""FCAC's clients and its server in one memory: what `shoal.estimators.streaming` is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, Contribution, State
from shoal.errors import InvalidData, InvalidState, SettingsError

STATE_VERSION = 1

Table = NDArray[np.float64]
"""(n, d) finite rows"""


class LocalFederation:
    """Clients by name, made when their first row comes, and the server that absorbs what they say.

    n_clients: rows without an owner are dealt to so many clients in turn. seed: the order in which the server
    is fed is a function of it and of the number of calls. Raises `SettingsError`.
    """

    def __init__(self, options: Mapping[str, Any], n_clients: int, seed: int) -> None:
        for name, value, least in (("clients", n_clients, 1), ("random_state", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise SettingsError(f"{name} = {value!r}, must be a whole number, at least {least}")
        self._options = dict(options)
        self._n_clients = int(n_clients)
        self._seed = int(seed)
        self._clients: dict[str, CAPlus] = {}
        self._rounds = 0
        self._rows = 0
        self.server = CAEFC(**self._options)

    @property
    def width(self) -> int:
        """Features of a row; 0 before the first one."""
        return next((client.dimensions or 0 for client in self._clients.values()), 0)

    def learn(self, rows: Table, owners: ArrayLike | None, ended: bool = False) -> None:
        """rows (n, d) go to their clients, in order, and the server absorbs what that changed.

        `owners` (n,): whose row each one is, under any name. `ended`: no more rows will come, so that none
        has to wait for others. Raises `InvalidData` before anything has changed.
        """
        names, owner = self._owned(len(rows), owners)
        if not names:
            return
        said = [
            Contribution(name, self._rounds, self._said_by(name, rows[owner == place], ended))
            for place, name in enumerate(names)
        ]
        self.server.absorb(said, f"{self._seed}:{self._rounds}".encode())
        if ended:
            self.server.flush()
        self._rounds += 1
        self._rows += len(rows)

    def state(self) -> State:
        """Everything later learning depends on."""
        return {
            "version": STATE_VERSION,
            "rounds": self._rounds,
            "rows": self._rows,
            "clients": {name: client.state() for name, client in self._clients.items()},
            "server": self.server.state(),
        }

    def restore(self, state: State) -> None:
        """Become the saved one, if this one has learnt nothing yet. Raises `InvalidState`."""
        saved = StateReader(state, STATE_VERSION)
        self._rounds, self._rows = saved.read_int("rounds"), saved.read_int("rows")
        clients = state.get("clients")
        if not isinstance(clients, Mapping) or "server" not in state:
            raise InvalidState("saved state lacks its clients or its server")
        for name, inside in clients.items():
            self._clients[name] = CAPlus(**self._options)
            self._clients[name].restore(inside)
        self.server.restore(state["server"])
        saved.check(len(self._clients) > 0, "there are rows and no clients")
        widths = {client.dimensions for client in self._clients.values()} | {self.server.dimensions or self.width}
        saved.check(len(widths) == 1, "clients and server have rows of different widths")

    def _owned(self, n: int, owners: ArrayLike | None) -> tuple[list[str], NDArray[np.int64]]:
        """Names of the clients, and for each row the position of its client among them."""
        if owners is None:
            turn = (self._rows + np.arange(n)) % self._n_clients
            present, owner = np.unique(turn, return_inverse=True)
        else:
            given = np.asarray(owners)
            if given.shape != (n,):
                raise InvalidData(f"clients has shape {given.shape}, must name the owner of each of {n} rows")
            present, owner = np.unique(given.astype(str), return_inverse=True)
        return [str(name) for name in present], owner.astype(np.int64)

    def _said_by(self, name: str, rows: Table, ended: bool) -> Arrays:
        client = self._clients.setdefault(name, CAPlus(**self._options))
        client.learn(rows)
        if ended and client.n_buffered == 1:
            # A single row has no spread for CA+ to learn from; the node it would become is the row itself.
            return {"weight": rows, "count": np.ones(1, dtype=np.int64)}
        if ended:
            client.flush()
        return client.contribute()
