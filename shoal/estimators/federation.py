"""A federation in memory: the clients and the server of one streaming algorithm, without a log
between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from shoal.algorithms.options import AlgorithmOptions, option
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, ClientHalf, Contribution, ServerHalf, State
from shoal.errors import InvalidData, InvalidState
from shoal.estimators.base import Progress
from shoal.kernels.arrays import Floats, Ints, Texts
from shoal.kernels.distance import filled_from
from shoal.privacy.imperfect import EarlierRows

STATE_VERSION = 1
BLOCK_ROWS = 500
"""rows of a client between two looks at the clock"""


class FederationOptions(AlgorithmOptions):
    """Parameters of an estimator that assign its rows to clients."""

    clients: int = option(
        1, "virtual clients to which rows without a client name are dealt in turn", least=1
    )
    random_state: int = option(0, "seed of everything that is random", least=0)
    update_readings: Annotated[int, Field(ge=1)] | None = option(
        None, "rows of a client after which it contributes within one call; None: at the end"
    )

    @classmethod
    def of(cls, **parameters: Any) -> Self:
        """Checked parameters; NumPy's whole numbers count as such. Raises `SettingsError`."""
        return cls.parse(
            {name: int(n) if isinstance(n, np.integer) else n for name, n in parameters.items()}
        )


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
        Rows without a client name go to this many clients in turn.
    seed : int
        The order in which the server absorbs nodes is a function of the seed and of the number of
        absorptions before.
    update_readings : int, optional
        Rows of a client after which it contributes within one call of `learn`; by default it
        contributes at the end.

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
        own = FederationOptions.of(
            clients=n_clients, random_state=seed, update_readings=update_readings
        )
        self._algorithm = algorithm
        self._options = dict(options)
        self.width = width
        self._n_clients = own.clients
        self._seed = own.random_state
        self._update_readings = own.update_readings
        self._clients: dict[str, ClientHalf] = {}
        self._earlier: dict[str, EarlierRows] = {}
        self._calls = 0
        self._rows = 0
        self.server = streaming_algorithm(algorithm).server(self._options, width)

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """rows (n, d) are learnt by their clients, in order, and the server absorbs what the
        clients contribute.

        A missing value (NaN) is taken from the nearest earlier row of the client over what the row
        has; a row without any value is not learnt.
        `client_names` (n,): the client of each row. `is_last`: no more rows will follow, so none
        stays in a buffer. `progress` counts the rows, and may end the call before the last one.
        Raises `InvalidData` before anything has changed.
        """
        names, client_of_row = self._assign_clients(len(rows), client_names)
        if not names:
            return
        progress = progress or Progress()
        rows_of = [rows[client_of_row == position] for position in range(len(names))]
        longest = max(map(len, rows_of))
        step = self._update_readings or longest
        for first in range(0, longest, step):
            parts = {
                name: part[first : first + step] for name, part in zip(names, rows_of, strict=True)
            }
            self._absorb(parts, is_last, first + step >= longest, progress)
            if progress.is_over:
                break
        if is_last:
            self._finish_server()
        self._rows += len(rows)

    def predict(self, rows: Floats) -> Ints:
        """rows (n, d) -> (n,) cluster of each as its number in the snapshot; -1 as long as there is
        none.

        A row that lacks values (NaN) falls to the nearest node over those that it has.
        """
        if np.isnan(rows).any():
            rows = filled_from(
                rows, streaming_algorithm(self._algorithm).view(self.server.snapshot()).nodes
            )
        return self.server.predict(rows)

    def in_units(self, points: Floats) -> Floats:
        """Points (k, d) in the coordinates in which the algorithm learns -> in the units of the
        rows."""
        return points

    def names_of(self, n: int, client_names: ArrayLike | None, first: int = 0) -> Texts:
        """(n,) the client of each of n rows; `first` rows came before them. Raises `InvalidData`."""
        if client_names is None:
            return np.asarray(((self._rows + first + np.arange(n)) % self._n_clients).astype(str))
        names, position = self._assign_clients(n, client_names)
        return np.array(names, dtype=np.str_)[position] if names else np.empty(0, dtype=np.str_)

    def _absorb(
        self, rows_of: Mapping[str, Floats], is_last: bool, is_end: bool, progress: Progress
    ) -> None:
        """Clients by name learn these rows, and the server absorbs one contribution of each.

        `is_end`: no more rows follow in this call. When the time is over, neither do other clients
        learn theirs.
        """
        contributions = []
        for name, given in rows_of.items():
            if name not in self._clients:
                self._clients[name], self._earlier[name] = (
                    self._new_client(),
                    EarlierRows(self.width),
                )
            with_values = given[~np.isnan(given).all(axis=1)] if np.isnan(given).any() else given
            rows = self._earlier[name].fill(with_values)
            client = self._clients[name]
            learnt = 0
            while learnt < len(rows):
                block = rows[learnt : learnt + BLOCK_ROWS]
                client.learn(block)
                learnt += len(block)
                if progress.advance(len(block)):
                    break
            ends = is_last and (is_end or progress.is_over)
            arrays = self._last_contribution(client, rows[:learnt]) if ends else client.contribute()
            contributions.append(Contribution(name, self._calls, arrays))
            if progress.is_over:
                break
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
            "earlier": {name: earlier.state() for name, earlier in self._earlier.items()},
            "server": self.server.state(),
        }

    def restore(self, state: State) -> None:
        """Become the saved federation, if this one has learnt nothing yet. Raises `InvalidState`."""
        saved = StateReader(state, STATE_VERSION, width=self.width)
        self._calls = saved.read_int("calls")
        self._rows = saved.read_int("rows")
        clients = state.get("clients")
        if not isinstance(clients, Mapping) or "server" not in state:
            raise InvalidState("saved state lacks its clients or its server")
        saved.check(len(clients) > 0, "there are rows and no clients")
        earlier = state.get("earlier")
        for name, inside in clients.items():
            self._clients[name], self._earlier[name] = self._new_client(), EarlierRows(self.width)
            self._clients[name].restore(inside)
            self._earlier[name].restore(earlier.get(name) if isinstance(earlier, Mapping) else None)
        self.server.restore(state["server"])

    def _assign_clients(self, n: int, client_names: ArrayLike | None) -> tuple[list[str], Ints]:
        """The names of the clients that have rows, and (n,) the position of each row's client among
        them."""
        if client_names is None:
            turn = (self._rows + np.arange(n)) % self._n_clients
            present, position = np.unique(turn, return_inverse=True)
        else:
            names = np.asarray(client_names)
            if names.shape != (n,):
                raise InvalidData(
                    f"clients has shape {names.shape}, it must name the client of each of the {n} rows"
                )
            present, position = np.unique(names.astype(str), return_inverse=True)
        return [str(name) for name in present], position.astype(np.int64)

    def _new_client(self) -> ClientHalf:
        return streaming_algorithm(self._algorithm).client(self._options, self.width)

    def _last_contribution(self, client: ClientHalf, rows: Floats) -> Arrays:
        """The contribution of a client that has just learnt `rows`, the last ones."""
        return client.contribute()

    def _finish_server(self) -> None:
        """Finish the server, after it has absorbed the last contributions."""


class Federation(Protocol):
    """The part of a federation in memory that an estimator uses."""

    @property
    def width(self) -> int:
        """Number of features, d."""
        ...

    @property
    def server(self) -> ServerHalf:
        """The half that predicts."""
        ...

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """rows (n, d) of clients (n,), in order; `is_last`: no more will follow. Raises
        `InvalidData`."""
        ...

    def predict(self, rows: Floats) -> Ints: ...

    def in_units(self, points: Floats) -> Floats: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...
