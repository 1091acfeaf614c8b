"""A federation in memory: the clients and the server of a streaming algorithm, for the streaming estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, ClientHalf, Contribution, State
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.estimators.base import Table

STATE_VERSION = 1


class InMemoryFederation:
    """The halves of one streaming algorithm. A client is made when its first row arrives.

    Parameters
    ----------
    algorithm : str
        Name of an installed streaming algorithm.
    options : mapping
        Options of both halves.
    width : int
        Number of features, d.
    n_clients : int
        Rows without a client name are dealt to this many clients in turn.
    seed : int
        The order in which the server absorbs nodes is a function of the seed and of the number of absorptions before.
    update_readings : int, optional
        Rows of a client after which it contributes within one call of `learn`; by default it contributes at the end.

    Raises `SettingsError`.
    """

    def __init__(
        self,
        algorithm: str,
        options: Mapping[str, Any],
        width: int,
        n_clients: int,
        seed: int,
        update_readings: int | None = None,
    ) -> None:
        numbers = [("clients", n_clients, 1), ("random_state", seed, 0)]
        if update_readings is not None:
            numbers.append(("update_readings", update_readings, 1))
        for name, value, least in numbers:
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise SettingsError(f"{name} = {value!r}, must be a whole number, at least {least}")
        self._algorithm = algorithm
        self._options = dict(options)
        self.width = width
        self._n_clients = int(n_clients)
        self._seed = int(seed)
        self._update_readings = None if update_readings is None else int(update_readings)
        self._clients: dict[str, ClientHalf] = {}
        self._calls = 0
        self._rows = 0
        self.server = streaming_algorithm(algorithm).server(self._options, width)

    def learn(self, rows: Table, client_names: ArrayLike | None, is_last: bool = False) -> None:
        """rows (n, d) are learnt by their clients, in order, and the server absorbs what the clients contribute.

        `client_names` (n,): the client of each row. `is_last`: no more rows will follow, so none stays in a buffer.
        Raises `InvalidData` before anything has changed.
        """
        names, client_of_row = self._assign_clients(len(rows), client_names)
        if not names:
            return
        rows_of = [rows[client_of_row == position] for position in range(len(names))]
        longest = max(map(len, rows_of))
        step = self._update_readings or longest
        for first in range(0, longest, step):
            parts = {name: part[first : first + step] for name, part in zip(names, rows_of, strict=True)}
            self._absorb(parts, is_last and first + step >= longest)
        if is_last:
            self._finish_server()
        self._rows += len(rows)

    def _absorb(self, rows_of: Mapping[str, Table], is_last: bool) -> None:
        """Clients by name learn these rows, and the server absorbs one contribution of each."""
        contributions = [
            Contribution(name, self._calls, self._contribution(name, rows, is_last)) for name, rows in rows_of.items()
        ]
        self.server.absorb(contributions, f"{self._seed}:{self._calls}".encode())
        self._calls += 1

    def state(self) -> State:
        """Everything that further learning depends on."""
        return {
            "version": STATE_VERSION,
            "width": self.width,
            "calls": self._calls,
            "rows": self._rows,
            "clients": {name: client.state() for name, client in self._clients.items()},
            "server": self.server.state(),
        }

    def restore(self, state: State) -> None:
        """Become the saved federation, if this one has learnt nothing yet. Raises `InvalidState`."""
        saved = StateReader(state, STATE_VERSION, width=self.width)
        self._calls, self._rows = saved.read_int("calls"), saved.read_int("rows")
        clients = state.get("clients")
        if not isinstance(clients, Mapping) or "server" not in state:
            raise InvalidState("saved state lacks its clients or its server")
        saved.check(len(clients) > 0, "there are rows and no clients")
        for name, inside in clients.items():
            self._clients[name] = self._new_client()
            self._clients[name].restore(inside)
        self.server.restore(state["server"])

    def _assign_clients(self, n: int, client_names: ArrayLike | None) -> tuple[list[str], NDArray[np.int64]]:
        """The names of the clients that have rows, and (n,) the position of each row's client among them."""
        if client_names is None:
            turn = (self._rows + np.arange(n)) % self._n_clients
            present, position = np.unique(turn, return_inverse=True)
        else:
            names = np.asarray(client_names)
            if names.shape != (n,):
                raise InvalidData(f"clients has shape {names.shape}, it must name the client of each of the {n} rows")
            present, position = np.unique(names.astype(str), return_inverse=True)
        return [str(name) for name in present], position.astype(np.int64)

    def _contribution(self, name: str, rows: Table, is_last: bool) -> Arrays:
        if name not in self._clients:
            self._clients[name] = self._new_client()
        client = self._clients[name]
        client.learn(rows)
        return self._last_contribution(client, rows) if is_last else client.contribute()

    def _new_client(self) -> ClientHalf:
        return streaming_algorithm(self._algorithm).client(self._options, self.width)

    def _last_contribution(self, client: ClientHalf, rows: Table) -> Arrays:
        """What a client contributes when it has just learnt `rows`, the last ones."""
        return client.contribute()

    def _finish_server(self) -> None:
        """Called after the server has absorbed the last contributions."""
