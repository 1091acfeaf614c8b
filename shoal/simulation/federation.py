"""The federation in memory: rows are dealt to clients, which learn in turns with a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from shoal.algorithms.options import AlgorithmOptions, option
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats, Indices, Ints, Texts

ClientT = TypeVar("ClientT")

Advance = Callable[[int], bool]
"""gets the number of rows that have just been learnt; true ends the call there"""


def to_the_end(n: int) -> bool:
    """The `Advance` that never ends a call."""
    return False


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
        plain = dict(parameters)
        for name, value in parameters.items():
            if isinstance(value, np.integer):
                plain[name] = int(value)
        return cls.parse(plain)


class Dealt(NamedTuple):
    """The rows of one call, as they fall to clients."""

    names: list[str]
    """the clients that have rows: by name, or by number where rows are dealt in turn"""
    client_of_row: Ints
    """(n,) position of each row's client in `names`"""

    def rows_of_clients(self) -> Iterator[tuple[str, Indices]]:
        """Each client, and the positions of its rows in their order."""
        # Stable: the rows of a client keep their order, on which all that it learns depends.
        order = np.argsort(self.client_of_row, kind="stable")
        sizes = np.bincount(self.client_of_row, minlength=len(self.names))
        if self.names:
            yield from zip(self.names, np.split(order, np.cumsum(sizes)[:-1]), strict=True)


def deal_by_name(n: int, client_names: ArrayLike, numbers_ascend: bool = False) -> Dealt:
    """The rows of clients (n,) that are named one by one; clients ascend by name.

    `numbers_ascend`: where names are numbers, client 2 comes before client 10. Raises
    `InvalidData`.
    """
    names = np.asarray(client_names)
    if names.shape != (n,):
        raise InvalidData(
            f"clients has shape {names.shape}, it must name the client of each of the {n} rows"
        )
    if not numbers_ascend:
        names = names.astype(str)
    present, position = np.unique(names, return_inverse=True)
    return Dealt([str(name) for name in present], position.astype(np.int64))


class Federation(ABC, Generic[ClientT]):
    """Clients and the server of one algorithm. A client is made when its first row arrives.

    `learn` deals rows to clients and runs turns: in a turn clients learn rows of their own, and the
    server takes in what they contribute. A turn ends as it does in a running federation of the
    algorithm's family, and each family has a subclass, which is a file of this folder:

    - `streaming`: every client has learnt its next `update_readings` rows.
    - `counting`: one client has a window full, whose counts it publishes with noise of its own.
    - `masked`: one client has a second window full; the first ones of all clients make a sum.

    Algorithms in rounds keep nothing on their clients, so their federation is a function
    (`shoal.simulation.rounds.run_rounds`). The halves are those that the service runs, and so are
    their results; what is not simulated is the way between them: logs, messages, checks, and kills
    (`shoal.onebox` runs the nodes themselves).
    """

    def __init__(self, width: int, n_clients: int = 1) -> None:
        """`n_clients`: rows without a client name go to this many clients in turn."""
        self.width = width
        self._n_clients = n_clients
        self._n_rows = 0
        """rows of all calls before"""
        self._clients: dict[str, ClientT] = {}

    @abstractmethod
    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        advance: Advance = to_the_end,
    ) -> None:
        """rows (n, d) are learnt by their clients, in order, and the server takes in what the
        clients contribute.

        `client_names` (n,): the client of each row; None: in turn. `is_last`: no more rows will
        follow, so none stays in a buffer. `advance` counts the rows, and may end the call before
        the last one. Raises `InvalidData` before anything has changed.
        """

    def deal(self, n: int, client_names: ArrayLike | None, first: int = 0) -> Dealt:
        """The clients of the next n rows, after `first` others. Raises `InvalidData`."""
        if client_names is not None:
            return deal_by_name(n, client_names)
        turn = (self._n_rows + first + np.arange(n)) % self._n_clients
        # By number: by name client 10 would come before client 2.
        present, position = np.unique(turn, return_inverse=True)
        return Dealt([str(number) for number in present], position.astype(np.int64))

    def names_of(self, n: int, client_names: ArrayLike | None, first: int = 0) -> Texts:
        """(n,) the client of each of the next n rows, see `deal`."""
        names, client_of_row = self.deal(n, client_names, first)
        if not names:
            return np.empty(0, dtype=np.str_)
        return np.array(names, dtype=np.str_)[client_of_row]

    def client(self, name: str) -> ClientT:
        """The client of this name, which is made if there is none."""
        if name not in self._clients:
            self._clients[name] = self._new_client(name)
        return self._clients[name]

    def on_scale(self, rows: Floats) -> Floats:
        """rows (n, d) as they are given to `learn` -> in the coordinates in which the algorithm
        learns."""
        return rows

    def in_units(self, points: Floats) -> Floats:
        """Points (k, d) in the coordinates in which the algorithm learns -> in the units of the
        rows."""
        return points

    @abstractmethod
    def _new_client(self, name: str) -> ClientT:
        """A client that has learnt nothing yet."""
