"""Federations in memory of clients that count windows, and the server of density_tree, which learns
from the counts.

Either each client adds noise to its own counts, or the sums over all clients get it, as masked
counts do.
"""

from __future__ import annotations

import hashlib
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.density_tree import DensityTreeCounter
from shoal.algorithms.density_tree.plan import CountedWindow
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Contribution, State
from shoal.errors import InvalidData, InvalidState
from shoal.estimators.base import Progress
from shoal.estimators.federation import FederationOptions
from shoal.kernels.arrays import Bools, Floats, Indices, Ints, Texts
from shoal.privacy.base import Bounds
from shoal.privacy.count_noise import CountMechanism, count_noise
from shoal.privacy.gaussian import certify, gaussian_noise
from shoal.privacy.imperfect import CoarseReadings
from shoal.privacy.keyed import SOURCE_BYTES
from shoal.privacy.masked import (
    CLIENTS_ADVISED,
    DELTA,
    Masked,
    clip_order,
    readings_within,
    sum_terms,
)

STATE_VERSION = 2
KEY_BYTES = 32
_SOURCE = bytes(SOURCE_BYTES)
_MODEL = "estimator"
FIRST_WINDOW_PART = 8
"""the first window of a client has at least a full one's readings divided by this"""
MASKED_AXES: Final = 2
"""axes of each leaf that a round of masked sums counts"""
COHORT: Final = "cohort"
"""the client that a sum counts as"""


@dataclass
class _Client:
    mechanism: CountMechanism | None
    readings: Floats
    """(n, d) of the window that is not full yet, in unit coordinates"""
    windows: int = 0
    """windows published"""
    published: int = 0
    """readings in them"""


class CountingFederation:
    """Clients that count windows of `window_readings` readings, and the server of density_tree.

    The first window of a client is shorter, by a public phase, so that clients do not all publish
    at once. Raises `SettingsError` for an epsilon or an option out of range.
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
        """`seed`: the noise is a function of it; None: of a secret key that is drawn now.

        `steps` (d,) in unit coordinates: coarse values are spread over them.
        """
        self._noise = None if epsilon is None else count_noise(float(epsilon))
        variance = 0.0 if self._noise is None else self._noise.variance
        self._begin(
            {**options, "noise_variance": variance}, width, n_clients, seed, window_readings, steps
        )

    def _begin(
        self,
        options: Mapping[str, Any],
        width: int,
        n_clients: int,
        seed: int | None,
        window_readings: int,
        steps: Floats | None,
    ) -> None:
        """Both halves of the algorithm under these options, and no client yet."""
        own = FederationOptions.of(clients=n_clients, random_state=0 if seed is None else seed)
        self.width = width
        self._n_clients = own.clients
        self._key = hashlib.sha256(f"estimator {seed}".encode()).digest()
        if seed is None:
            self._key = secrets.token_bytes(KEY_BYTES)
        elif options["noise_variance"] > 0.0:
            warnings.warn(
                f"noise that is a function of random_state={seed} protects nothing: who knows the number can remove "
                "it. Leave random_state out where readings are to be protected",
                UserWarning,
                stacklevel=5,
            )
        learnt = {**options, "window_readings": window_readings}
        self._window_readings = window_readings
        self._counter = DensityTreeCounter(width, **learnt)
        self.server = DensityTreeServer(width, **learnt)
        self._clients: dict[str, _Client] = {}
        self._rows = 0
        self._steps = np.zeros(width) if steps is None else steps

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """rows (n, d) in unit coordinates, in the order in which they were read; every full window
        is absorbed.

        A row that lacks values (NaN) is counted for one that it has, or nowhere, and keeps its
        place.

        `client_names` (n,): the client of each row. `is_last`: windows that are not full are
        absorbed too. Raises `InvalidData` before anything has changed. `progress` may end the call
        before the last window.
        """
        progress = progress or Progress()
        rows = self._spread(rows)
        names = self._names_of(len(rows), client_names)
        for _, name, window in self._filled(rows, names):
            self._publish(name, window)
            if progress.advance(len(window)):
                break
        # By name: the order of the last windows must not depend on the order in which clients came.
        for name, client in (
            sorted(self._clients.items()) if is_last and not progress.is_over else ()
        ):
            if len(client.readings):
                self._publish(name, client.readings)
                progress.advance(len(client.readings))
                client.readings = client.readings[:0]
        self._rows += len(rows)

    def predict(self, rows: Floats) -> Ints:
        """rows (n, d) in unit coordinates -> (n,) cluster of each; -1 as long as there is none."""
        return self.server.predict(rows)

    def in_units(self, points: Floats) -> Floats:
        """Points (k, d) as they are: the estimator has the bounds."""
        return points

    def state(self) -> State:
        """Everything that further learning depends on: readings that wait, and the key that decides
        the noise.

        It must be kept as private as the readings.
        """
        return {
            "version": STATE_VERSION,
            "width": self.width,
            "key": self._key,
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
        key = state.get("key")
        saved.check(isinstance(key, bytes) and len(key) == KEY_BYTES, "there is no key")
        assert isinstance(key, bytes)
        self._key = key
        if not isinstance(clients, Mapping) or "server" not in state:
            raise InvalidState("saved state lacks its clients or its server")
        saved.check(len(clients) > 0, "there are rows and no clients")
        for name, inside in clients.items():
            own = StateReader(inside, STATE_VERSION)
            client = self._client(name)
            client.readings = own.read_floats("readings", (None, self.width), gaps=True)
            client.windows = own.read_int("windows")
            client.published = own.read_int("published")
        self.server.restore(state["server"])
        self._counter.adopt(self.server.snapshot())

    def _spread(self, rows: Floats) -> Floats:
        """Rows (n, d) that continue the stream, spread over the steps of their features."""
        places = np.stack(
            [np.zeros(len(rows), dtype=np.int64), self._rows + np.arange(len(rows))], axis=1
        )
        circular = np.isin(np.arange(self.width), self.server.options.circular_features)
        bounds = Bounds(np.zeros(self.width), np.ones(self.width), circular.tolist())
        return CoarseReadings(bounds, self._steps, self._key, _MODEL, _SOURCE).spread(rows, places)

    def _filled(self, rows: Floats, names: Texts) -> list[tuple[int, str, Floats]]:
        """The windows that rows (n, d) of clients (n,) fill, see `_full_windows`, in the order in
        which they do."""
        known, of = np.unique(names, return_inverse=True)
        # Stable: the rows of one client keep their order, which decides in which window each is
        # counted.
        own = np.split(
            np.argsort(of, kind="stable"), np.cumsum(np.bincount(of, minlength=len(known)))[:-1]
        )
        full: list[tuple[int, str, Floats]] = []
        for name, places in zip(known.tolist(), own, strict=False):
            full += self._full_windows(name, rows, places)
        # By the row that fills each window, as a server would receive them; the name decides
        # between equal ones.
        return sorted(full, key=lambda each: each[:2])

    def _full_windows(self, name: str, rows: Floats, own: Indices) -> list[tuple[int, str, Floats]]:
        """(the row that fills it, client, its readings) of each window that is full; the client
        keeps the rest.

        -1 for a row before these.
        """
        client = self._client(name)
        held = len(client.readings)
        readings = np.concatenate([client.readings, rows[own]])
        first = 0
        windows = client.windows
        full = []
        while len(readings) >= first + (
            size := self._first_size(name) if windows == 0 else self._window_readings
        ):
            first = first + size
            windows = windows + 1
            row = int(own[first - held - 1]) if first > held else -1
            full.append((row, name, readings[first - size : first]))
        client.readings = readings[first:].copy()
        return full

    def _first_size(self, name: str) -> int:
        phase = (
            int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
            % self._window_readings
        )
        return max(phase, self._window_readings // FIRST_WINDOW_PART, 1)

    def _publish(self, name: str, window: Floats) -> None:
        client = self._client(name)
        counted = self._counter.count(
            window, np.ones(len(window), dtype=np.bool_), name.encode(), client.windows
        )
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
            noise = self._noise
            key = self._key
            mechanism = None if noise is None else CountMechanism(noise, key, name, _SOURCE, _MODEL)
            self._clients[name] = _Client(mechanism, np.empty((0, self.width)))
        return self._clients[name]

    def _names_of(self, n: int, client_names: ArrayLike | None) -> Texts:
        """(n,) the name of each row's client."""
        if client_names is None:
            return ((self._rows + np.arange(n)) % self._n_clients).astype(str)
        names = np.asarray(client_names)
        if names.shape != (n,):
            raise InvalidData(
                f"clients has shape {names.shape}, it must name the client of each of the {n} rows"
            )
        return names.astype(str)


class SumBudget(NamedTuple):
    """Cost of the sums over clients for each of them."""

    epsilon: float | None
    """epsilon of a window, or of all `windows` of a client; None: sums without noise or clip"""
    windows: int | None = None
    """most windows of a client; None: no limit"""
    delta: float = DELTA
    helpers: int = 1
    """parties that each add the whole noise"""


class MaskedFederation(CountingFederation):
    """Clients whose counts are added up before noise: what masked counts come to, simulated in one
    process.

    A round takes the next window of every client that has one. It ends when a client has a second
    one full: in a federation that client would read no further until the round has ended. The noise
    of all helpers is drawn here.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        width: int,
        n_clients: int,
        seed: int | None,
        budget: SumBudget,
        window_readings: int,
        steps: Floats | None = None,
    ) -> None:
        """See `CountingFederation`. Raises `SettingsError`."""
        windows = 1 if budget.windows is None else budget.windows
        epsilon = 1.0 if budget.epsilon is None else budget.epsilon
        Masked.check_terms(
            {"epsilon": epsilon, "delta": budget.delta, "budget_windows": windows}, unit="client"
        )
        self._budget = budget
        self._gaussian = None
        if budget.epsilon is not None:
            self._clip_squared, variance = sum_terms(
                epsilon, budget.delta, windows, window_readings, MASKED_AXES
            )
            self._gaussian = gaussian_noise(variance)
            certify(self._gaussian)
        of_sums = 0.0 if self._gaussian is None else float(budget.helpers * self._gaussian.variance)
        self._noise = None
        learnt = {**options, "noise_variance": of_sums, "axes_per_window": MASKED_AXES}
        self._begin(learnt, width, n_clients, seed, window_readings, steps)
        self._rounds = 0
        self._left_out = 0
        """readings of clients whose budget was spent"""

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """See `CountingFederation.learn`; `is_last`: further rounds take all readings that wait."""
        progress = progress or Progress()
        left_out = self._left_out
        rows = self._spread(rows)
        waiting: dict[str, list[Floats]] = {}
        for _, name, window in self._filled(rows, self._names_of(len(rows), client_names)):
            own = waiting.setdefault(name, [])
            own.append(window)
            if len(own) > 1 and progress.advance(self._end_round(waiting)):
                break
        for name, own in waiting.items():
            client = self._client(name)
            client.readings = np.concatenate([*own, client.readings])
        while is_last and not progress.is_over and (last := self._next_windows()):
            progress.advance(self._end_round(last))
        self._rows += len(rows)
        self._warn(is_last, self._left_out - left_out)

    def _next_windows(self) -> dict[str, list[Floats]]:
        """A window, full or not, of every client that has readings."""
        size = self._window_readings
        found = {}
        for name, client in self._clients.items():
            if len(client.readings):
                found[name] = [client.readings[:size]]
                client.readings = client.readings[size:].copy()
        return found

    def _full_windows(self, name: str, rows: Floats, own: Indices) -> list[tuple[int, str, Floats]]:
        """See `CountingFederation._full_windows`; no window above the budget."""
        full = super()._full_windows(name, rows, own)
        client = self._client(name)
        most = self._budget.windows
        if most is not None and client.windows + len(full) >= most:
            beyond = full[most - client.windows :]
            self._left_out += len(client.readings) + sum(len(window) for _, _, window in beyond)
            client.readings = client.readings[:0]
            full = full[: most - client.windows]
        return full

    def _first_size(self, name: str) -> int:
        return self._window_readings

    def _end_round(self, waiting: Mapping[str, list[Floats]]) -> int:
        """Add up the first window that waits of each client, and absorb the sum; how many readings
        it is of."""
        batch = {name: windows.pop(0) for name, windows in sorted(waiting.items()) if windows}
        counted = [self._counted(name, window) for name, window in batch.items()]
        total: Ints = np.sum([one.counts for one in counted], axis=0)
        name = (
            self._rounds.to_bytes(8, "little")
            + self._counter.plan_digest
            + total.astype("<i8").tobytes()
        )
        for helper in range(self._budget.helpers):
            if self._gaussian is None:
                break
            seed = hashlib.blake2b(
                name + bytes([helper]), key=self._key, person=b"masked sums"
            ).digest()
            total = total + self._gaussian.draw(seed, len(total))
        places = sum(len(window) for window in batch.values())
        arrays = {**counted[0].update(total), "places": np.array([places], dtype=np.int64)}
        before = self.server.plan_version
        self.server.absorb([Contribution(COHORT, self._rounds, arrays)], b"")
        if self.server.plan_version != before:
            self._counter.adopt(self.server.snapshot())
        self._rounds += 1
        return places

    def _counted(self, name: str, window: Floats) -> CountedWindow:
        """The counts of a client's next window, cut off at the clip where there is noise."""
        client = self._client(name)
        public = name.encode()
        number = client.windows
        valid = np.ones(len(window), dtype=np.bool_)
        cohort = COHORT.encode(), self._rounds

        def counts_of(kept: Bools) -> CountedWindow:
            return self._counter.count(window, kept, public, number, cohort)

        client.windows += 1
        client.published += len(window)
        whole = counts_of(valid)
        if self._gaussian is None or int(whole.counts @ whole.counts) <= self._clip_squared:
            return whole
        counted, _ = readings_within(
            counts_of, valid, clip_order(public, number, len(window)), self._clip_squared
        )
        return cast("CountedWindow", counted)

    def _warn(self, is_last: bool, left_out: int) -> None:
        if left_out:
            warnings.warn(
                f"{left_out} readings are left out: their clients have spent budget_windows = {self._budget.windows}",
                UserWarning,
                stacklevel=4,
            )
        if is_last and self._gaussian is not None and len(self._clients) < CLIENTS_ADVISED:
            warnings.warn(
                f"sums over few clients, {len(self._clients)}: with fewer than {CLIENTS_ADVISED} the noise hides most "
                "clusters; clients=... of fit names the client of each row",
                UserWarning,
                stacklevel=4,
            )

    def state(self) -> State:
        """See `CountingFederation.state`."""
        return {**super().state(), "rounds": self._rounds}

    def restore(self, state: State) -> None:
        """See `CountingFederation.restore`."""
        self._rounds = StateReader(state, STATE_VERSION, width=self.width).read_int("rounds")
        super().restore(state)
