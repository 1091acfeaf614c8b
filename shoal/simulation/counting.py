"""Federations in memory of clients that count windows, and the server of density_tree, which learns
from the counts.

Here each client adds noise to its own counts; `shoal.simulation.masked` adds it to sums over all
clients.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.density_tree import DensityTreeCounter
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.streaming import Arrays, Contribution, State
from shoal.kernels.arrays import Floats, Indices, Ints
from shoal.privacy.base import Bounds
from shoal.privacy.count_noise import CountMechanism, count_noise
from shoal.privacy.imperfect import CoarseReadings
from shoal.privacy.keyed import SOURCE_BYTES
from shoal.saved_state import FloatArray, Opaque, SavedState, require, state_type
from shoal.simulation.federation import Advance, Federation, FederationOptions, to_the_end
from shoal.user_warnings import warn_user

KEY_BYTES = 32
SOURCE = bytes(SOURCE_BYTES)
MODEL = "estimator"
FIRST_WINDOW_PART = 8
"""the first window of a client has at least a full one's readings divided by this"""


@state_type
class CountingClientState(SavedState):
    """The window of one client that is not full yet, and what it has published."""

    readings: Annotated[Floats, FloatArray("n", "d", gaps=True)]
    windows: int
    published: int


@state_type
class WindowFederationState(SavedState):
    """Everything that further learning depends on: readings that wait, and the key that decides the
    noise.

    It must be kept as private as the readings.
    """

    version: ClassVar[int] = 3

    key: bytes
    rows: int
    clients: dict[str, CountingClientState]
    server: Annotated[State, Opaque()]

    def check(self) -> None:
        require(len(self.key) == KEY_BYTES, "the key has another length")
        require(len(self.clients) > 0, "there are rows and no clients")


@dataclass
class CountingClient:
    """The window of one client that is not full yet, and how much it has published."""

    readings: Floats
    """(n, d) in unit coordinates"""
    windows: int = 0
    """windows published"""
    published: int = 0
    """readings in them"""


class FullWindow(NamedTuple):
    """A window of a client that has all its readings."""

    row: int
    """position of the row that fills it among those of the call; -1 for a row of an earlier call"""
    client: str
    readings: Floats
    """(n, d) in unit coordinates"""


class WindowFederation(Federation[CountingClient]):
    """Clients that count windows of `window_readings` readings under the plan of the server.

    Rows are in unit coordinates, in the order in which they were read. A row that lacks values
    (NaN) is counted for one that it has, or nowhere, and keeps its place.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        width: int,
        n_clients: int,
        seed: int | None,
        window_readings: int,
        steps: Floats | None,
    ) -> None:
        """`options` of both halves, with the variance of the noise of what the server absorbs.

        `seed`: the noise is a function of it; None: of a secret key that is drawn now. `steps` (d,)
        in unit coordinates: coarse values are spread over them.
        """
        # The 0 is for the check alone: without a seed the key is drawn.
        own = FederationOptions.of(clients=n_clients, random_state=0 if seed is None else seed)
        super().__init__(width, own.clients)
        if seed is None:
            self._key = secrets.token_bytes(KEY_BYTES)
        else:
            self._key = hashlib.sha256(f"estimator {seed}".encode()).digest()
            if options["noise_variance"] > 0.0:
                warn_user(
                    f"noise that is a function of random_state={seed} protects nothing: who knows "
                    "the number can remove it. Leave random_state out where readings are to be "
                    "protected",
                )
        halves = {**options, "window_readings": window_readings}
        self._window_readings = window_readings
        self._counter = DensityTreeCounter(width, **halves)
        self.server = DensityTreeServer(width, **halves)
        self._steps = np.zeros(width) if steps is None else steps

    def predict(self, rows: Floats) -> Ints:
        """rows (n, d) in unit coordinates -> (n,) cluster of each; -1 as long as there is none."""
        return self.server.predict(rows)

    def state(self) -> State:
        """See `WindowFederationState`."""
        return self._saved().saved(width=self.width)

    def restore(self, state: State) -> None:
        """Become the saved federation; this one has learnt nothing. Raises `InvalidState`."""
        self._restore(WindowFederationState.read(state, {"d": self.width}, width=self.width))

    def _saved(self) -> WindowFederationState:
        clients = {}
        for name, client in self._clients.items():
            clients[name] = CountingClientState(
                readings=client.readings, windows=client.windows, published=client.published
            )
        return WindowFederationState(
            key=self._key, rows=self._n_rows, clients=clients, server=self.server.state()
        )

    def _restore(self, saved: WindowFederationState) -> None:
        self.server.restore(saved.server)
        self._counter.adopt(self.server.snapshot())
        self._key = saved.key
        self._n_rows = saved.rows
        for name, client in saved.clients.items():
            self._clients[name] = CountingClient(client.readings, client.windows, client.published)

    def _new_client(self, name: str) -> CountingClient:
        return CountingClient(np.empty((0, self.width)))

    def _absorb(self, client: str, sequence: int, arrays: Arrays) -> None:
        """The server absorbs counts; where they have changed its plan, clients count by the new
        one."""
        before = self.server.plan_version
        # Nothing in density_tree is random, so the key has no effect.
        self.server.absorb([Contribution(client, sequence, arrays)], b"")
        if self.server.plan_version != before:
            self._counter.adopt(self.server.snapshot())

    def _end_stream(self) -> None:
        """No rows follow: the server shows what it would still wait to confirm."""
        self.server.end_stream()
        self._counter.adopt(self.server.snapshot())

    def _spread(self, rows: Floats) -> Floats:
        """Rows (n, d) that continue the stream, spread over the steps of their features."""
        # By the place in the whole stream: any division into calls spreads a row by the same.
        numbers = self._n_rows + np.arange(len(rows))
        places = np.stack([np.zeros(len(rows), dtype=np.int64), numbers], axis=1)
        circular = np.isin(np.arange(self.width), self.server.options.circular_features)
        bounds = Bounds(np.zeros(self.width), np.ones(self.width), circular.tolist())
        return CoarseReadings(bounds, self._steps, self._key, MODEL, SOURCE).spread(rows, places)

    def _fill_windows(self, rows: Floats, client_names: ArrayLike | None) -> list[FullWindow]:
        """The windows that the next rows (n, d) fill, in the order in which they do; clients keep
        the rest. Raises `InvalidData`."""
        dealt = self.deal(len(rows), client_names)
        spread = self._spread(rows)
        full: list[FullWindow] = []
        for name, own in dealt.rows_of_clients():
            full += self._fill_windows_of(name, spread, own)
        # By the row that fills each window, as a server would receive them; the name decides
        # between those that rows of earlier calls had filled.
        return sorted(full, key=lambda window: (window.row, window.client))

    def _fill_windows_of(self, name: str, rows: Floats, own: Indices) -> list[FullWindow]:
        client = self.client(name)
        n_earlier = len(client.readings)
        readings = np.concatenate([client.readings, rows[own]])
        full: list[FullWindow] = []
        first = 0
        size = self._window_readings
        if client.windows == 0:
            size = self._first_size(name)
        while len(readings) >= first + size:
            window = readings[first : first + size]
            first += size
            # `own` has the rows of this call alone, which come after the `n_earlier` that waited.
            row = int(own[first - n_earlier - 1]) if first > n_earlier else -1
            full.append(FullWindow(row, name, window))
            size = self._window_readings
        # A view would keep the windows before it in memory.
        client.readings = readings[first:].copy()
        return full

    def _first_size(self, name: str) -> int:
        """Readings of the first window of a client."""
        return self._window_readings


class CountingFederation(WindowFederation):
    """Clients that each add noise to their own counts; the server absorbs every full window.

    The first window of a client is shorter, by a public phase, so that clients do not all publish
    at once.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        width: int,
        n_clients: int,
        seed: int | None,
        epsilon: float | None,
        window_readings: int,
        steps: Floats | None = None,
    ) -> None:
        """`epsilon` of each reading; None: counts without noise. See `WindowFederation`.

        Raises `SettingsError` for an epsilon or an option out of range.
        """
        self._noise = None if epsilon is None else count_noise(float(epsilon))
        variance = 0.0 if self._noise is None else self._noise.variance
        learnt = {**options, "noise_variance": variance}
        super().__init__(learnt, width, n_clients, seed, window_readings, steps)
        self._mechanisms: dict[str, CountMechanism] = {}

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        advance: Advance = to_the_end,
    ) -> None:
        """See `Federation.learn`; `is_last`: windows that are not full are published too."""
        full = self._fill_windows(rows, client_names)
        self._n_rows += len(rows)
        for window in full:
            self._publish(window.client, window.readings)
            if advance(len(window.readings)):
                return
        if not is_last:
            return
        # By name: the order of the last windows must not depend on the order in which clients came.
        for name, client in sorted(self._clients.items()):
            if len(client.readings):
                self._publish(name, client.readings)
                advance(len(client.readings))
                client.readings = client.readings[:0]
        self._end_stream()

    def _publish(self, name: str, window: Floats) -> None:
        client = self.client(name)
        valid = np.ones(len(window), dtype=np.bool_)
        counted = self._counter.count(window, valid, name.encode(), client.windows)
        private = counted.counts
        if self._noise is not None:
            if name not in self._mechanisms:
                self._mechanisms[name] = CountMechanism(self._noise, self._key, name, SOURCE, MODEL)
            places = (client.windows, client.published, client.published + len(window) - 1)
            private = self._mechanisms[name].release(private, places, self._counter.plan_digest)
        self._absorb(name, client.windows, counted.update(private))
        client.windows += 1
        client.published += len(window)

    def _first_size(self, name: str) -> int:
        digest = hashlib.sha256(name.encode()).digest()
        phase = int.from_bytes(digest[:4], "little") % self._window_readings
        # Not below a part of a full window: the noise of a few readings' counts hides them all.
        return max(phase, self._window_readings // FIRST_WINDOW_PART, 1)
