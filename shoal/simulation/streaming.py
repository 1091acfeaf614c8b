"""The federation in memory of a streaming algorithm: clients learn rows and contribute, the server
absorbs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import (
    Arrays,
    ClientHalf,
    Contribution,
    State,
    StreamingAlgorithm,
)
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import filled_from
from shoal.privacy.imperfect import EarlierRows
from shoal.saved_state import Opaque, SavedState, require, state_type
from shoal.simulation.federation import Advance, Federation, FederationOptions, to_the_end

BLOCK_ROWS = 500
"""rows of a client between two looks at the clock"""


@state_type
class StreamingClientState(SavedState):
    """What a client half and its earlier rows have saved."""

    half: Annotated[State, Opaque()]
    earlier: Annotated[State, Opaque()]


@state_type
class StreamingFederationState(SavedState):
    """Everything that further learning depends on."""

    version: ClassVar[int] = 2

    absorptions: int
    rows: int
    clients: dict[str, StreamingClientState]
    server: Annotated[State, Opaque()]

    def check(self) -> None:
        require(len(self.clients) > 0, "there are rows and no clients")


@dataclass
class StreamingClient:
    """The client half, and the earlier rows that missing values are taken from."""

    half: ClientHalf
    earlier: EarlierRows


class StreamingFederation(Federation[StreamingClient]):
    """The halves of one streaming algorithm.

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
        Rows of a client after which it contributes within one call of `learn`, or after fewer
        where the algorithm has room for fewer in an update; by default it contributes at the end.

    A missing value (NaN) is taken from the nearest earlier row of the client over what the row has;
    a row without any value is not learnt. Raises `SettingsError`.
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
        super().__init__(width, own.clients)
        self._algorithm_name = algorithm
        self._options = dict(options)
        self._seed = own.random_state
        self._update_readings = own.update_readings
        self._absorptions = 0
        self.server = self._algorithm.server(self._options, width)

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        advance: Advance = to_the_end,
    ) -> None:
        """See `Federation.learn`."""
        dealt = self.deal(len(rows), client_names)
        if not dealt.names:
            return
        rows_of = {name: rows[own] for name, own in dealt.rows_of_clients()}
        longest = max(map(len, rows_of.values()))
        step = self._algorithm.update_readings(self._options, self._update_readings or longest)
        for first in range(0, longest, step):
            turn = {name: own[first : first + step] for name, own in rows_of.items()}
            is_end = first + step >= longest
            if self._run_turn(turn, is_last, is_end, advance):
                break
        if is_last:
            self._finish_server()
        self._n_rows += len(rows)

    @property
    def _algorithm(self) -> StreamingAlgorithm:
        # By name: an estimator is copied and pickled, and the functions of an algorithm are not.
        return streaming_algorithm(self._algorithm_name)

    def predict(self, rows: Floats) -> Ints:
        """rows (n, d) -> (n,) cluster of each as its number in the snapshot; -1 as long as there is
        none.

        A row that lacks values (NaN) falls to the nearest node over those that it has.
        """
        if np.isnan(rows).any():
            rows = filled_from(rows, self._algorithm.view(self.server.snapshot()).nodes)
        return self.server.predict(rows)

    def state(self) -> State:
        """See `StreamingFederationState`."""
        clients = {}
        for name, client in self._clients.items():
            clients[name] = StreamingClientState(
                half=client.half.state(), earlier=client.earlier.state()
            )
        saved = StreamingFederationState(
            absorptions=self._absorptions,
            rows=self._n_rows,
            clients=clients,
            server=self.server.state(),
        )
        return saved.saved(width=self.width)

    def restore(self, state: State) -> None:
        """Become the saved federation; this one has learnt nothing. Raises `InvalidState`."""
        saved = StreamingFederationState.read(state, width=self.width)
        for name, client_state in saved.clients.items():
            client = self.client(name)
            client.half.restore(client_state.half)
            client.earlier.restore(client_state.earlier)
        self.server.restore(saved.server)
        self._absorptions = saved.absorptions
        self._n_rows = saved.rows

    def _run_turn(
        self, turn: Mapping[str, Floats], is_last: bool, is_end: bool, advance: Advance
    ) -> bool:
        """Clients by name learn these rows, and the server absorbs one contribution of each.

        `is_end`: no more rows follow in this call. Whether the call is to end here: then other
        clients did not learn theirs.
        """
        contributions = []
        is_over = False
        for name, rows in turn.items():
            client = self.client(name)
            filled = client.earlier.fill(_with_values(rows))
            learnt = 0
            while learnt < len(filled) and not is_over:
                block = filled[learnt : learnt + BLOCK_ROWS]
                client.half.learn(block)
                learnt += len(block)
                is_over = advance(len(block))
            if is_last and (is_end or is_over):
                arrays = self._last_contribution(client.half, filled[:learnt])
            else:
                arrays = client.half.contribute()
            contributions.append(Contribution(name, self._absorptions, arrays))
            if is_over:
                break
        self.server.absorb(contributions, f"{self._seed}:{self._absorptions}".encode())
        self._absorptions += 1
        return is_over

    def _new_client(self, name: str) -> StreamingClient:
        half = self._algorithm.client(self._options, self.width)
        return StreamingClient(half, EarlierRows(self.width))

    def _last_contribution(self, half: ClientHalf, rows: Floats) -> Arrays:
        """The contribution of a client that has just learnt `rows`, the last ones."""
        return half.contribute()

    def _finish_server(self) -> None:
        """Finish the server, after it has absorbed the last contributions."""


def _with_values(rows: Floats) -> Floats:
    """The rows that have any value."""
    missing = np.isnan(rows)
    return rows[~missing.all(axis=1)] if missing.any() else rows
