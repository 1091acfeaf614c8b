"""density_tree as an estimator: clusters from private counts, at an epsilon of 1 to 4 for each reading.

A federation in memory has the clients that publish private counts of windows, and the server that learns from them.
"""

from __future__ import annotations

import hashlib
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.density_tree import DensityTreeCounter, DensityTreeOptions
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Contribution, State
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.estimators.base import warn_of_clipping
from shoal.estimators.federation import FederationOptions
from shoal.estimators.progress import Progress
from shoal.estimators.streaming import OF_THE_ESTIMATOR, WARNED_ROWS_MIN, IdentityEstimator
from shoal.kernels.arrays import Floats, Ints
from shoal.privacy.base import Bounds
from shoal.privacy.coarse import CoarseReadings
from shoal.privacy.count_noise import CountMechanism, count_noise
from shoal.privacy.keyed import SOURCE_BYTES

STATE_VERSION = 2
KEY_BYTES = 32
DEFAULTS: Final = DensityTreeOptions()
_SOURCE = bytes(SOURCE_BYTES)
_MODEL = "estimator"
FIRST_WINDOW_PART = 8
"""the first window of a client has at least a full one's readings divided by this"""


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

    The first window of a client is shorter, by a public phase, so that clients do not all publish at once. Raises
    `SettingsError` for an epsilon or an option out of range.
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
        own = FederationOptions.of(clients=n_clients, random_state=0 if seed is None else seed)
        self._noise = None if epsilon is None else count_noise(float(epsilon))
        self.width = width
        self._n_clients = own.clients
        self._key = hashlib.sha256(f"estimator {seed}".encode()).digest()
        if seed is None:
            self._key = secrets.token_bytes(KEY_BYTES)
        elif self._noise is not None:
            warnings.warn(
                f"noise that is a function of random_state={seed} protects nothing: whoever knows the number removes "
                "it. Leave random_state out where readings are to be protected",
                UserWarning,
                stacklevel=4,
            )
        variance = 0.0 if self._noise is None else self._noise.variance
        learnt = {**options, "noise_variance": variance, "window_readings": window_readings}
        self._window_readings = window_readings
        self._counter = DensityTreeCounter(width, **learnt)
        self.server = DensityTreeServer(width, **learnt)
        self._clients: dict[str, _Client] = {}
        self._rows = 0
        self._steps = np.zeros(width) if steps is None else steps

    def learn(
        self, rows: Floats, client_names: ArrayLike | None, is_last: bool = False, progress: Progress | None = None
    ) -> None:
        """rows (n, d) in unit coordinates, in the order in which they were read; every full window is absorbed.

        `client_names` (n,): the client of each row. `is_last`: windows that are not full are absorbed too. Raises
        `InvalidData` before anything has changed. `progress` may end the call before the last window.
        """
        progress = progress or Progress()
        rows = self._spread(rows)
        names = self._names_of(len(rows), client_names)
        full: list[tuple[int, str, Floats]] = []
        for name in np.unique(names).tolist():
            full += self._full_windows(name, rows, np.flatnonzero(names == name))
        # By the row that fills each window, as a server would receive them; the name decides between equal ones.
        for _, name, window in sorted(full, key=lambda each: each[:2]):
            self._publish(name, window)
            if progress.advance(len(window)):
                break
        # By name: the order of the last windows must not depend on the order in which clients came.
        for name, client in sorted(self._clients.items()) if is_last and not progress.is_over else ():
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
        """Everything that further learning depends on: readings that wait, and the key that decides the noise.

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
        clients, key = state.get("clients"), state.get("key")
        saved.check(isinstance(key, bytes) and len(key) == KEY_BYTES, "there is no key")
        assert isinstance(key, bytes)
        self._key = key
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

    def _spread(self, rows: Floats) -> Floats:
        """Rows (n, d) that continue the stream, spread over the steps of their features."""
        places = np.stack([np.zeros(len(rows), dtype=np.int64), self._rows + np.arange(len(rows))], axis=1)
        bounds = Bounds(np.zeros(self.width), np.ones(self.width))
        return CoarseReadings(bounds, self._steps, self._key, _MODEL, _SOURCE).spread(rows, places)

    def _full_windows(self, name: str, rows: Floats, own: NDArray[np.intp]) -> list[tuple[int, str, Floats]]:
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

    def _publish(self, name: str, window: Floats) -> None:
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


class DensityTree(IdentityEstimator):
    """Streaming clustering from private counts. It finds the number of clusters; clusters keep their identities.

    Every client counts windows of its readings on the axes of a public tree, and adds noise to the counts. With
    `epsilon` each reading is protected by pure epsilon-differential privacy against anyone who sees what clients
    publish (replace one reading by any other); how many readings there are, and when, is not protected.

    Rows are learnt in the order given, which should be the order in which they were read. `fit` learns a whole table
    from the beginning, with a last window of each client that may be short; `partial_fit`, `learn_one` and `learn_many`
    continue, and readings wait until their window is full. Labels are identities, whole numbers that are never given
    again.

    Parameters
    ----------
    epsilon : float or None, default=4.0
        What each reading may cost, 0.02 to 40; None for counts without noise.
    window_readings : int, default=400
        Readings of a client that are counted together.
    low, high : float or array-like of shape (d,), default=0.0 and 1.0
        Smallest and largest possible value of each feature. They must be known without looking at the rows: a bound
        taken from the data would reveal an extreme reading. Values beyond are clipped. They scale the features too, so
        there is no parameter `scale`.
    step : float or array-like of shape (d,), default=0.0
        Smallest difference that each feature shows, such as 1 for whole degrees: values are spread over it before they
        are counted, so that gaps between them are no valleys. 0: as they are.
    clients : int, default=1
        Number of virtual clients; row i of the stream is read by client i mod `clients`.
    random_state : int or None, default=None
        None: the noise is a function of a secret key, drawn when learning begins. A number makes the same noise in
        every run; whoever knows it can remove the noise, so a warning says that it protects nothing.
    leaves_max, grow_readings, cut_significance, depth, filled, finest, decay, oblique_axes
        Options of the algorithm, see docs/reference/algorithms.md.
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the windows counted by then and warns with `StoppedEarly`.

    Attributes
    ----------
    labels_ : ndarray of shape (n,)
        Identities of the clusters of the rows learnt last, by `fit` or `partial_fit`.
    n_clusters_ : int
        Number of clusters, active or not.
    identities_ : ndarray of shape (c,)
        Their identities, in the order of `cluster_centers_`.
    active_ : ndarray
        Those to which readings fall at present.
    cluster_centers_ : ndarray of shape (c, d)
        Mean of the readings of each cluster, as estimated from private counts.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (d,)
        Only if the first rows had names.

    Methods raise `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters when learning begins.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> rng = np.random.default_rng(0)
    >>> rows = np.repeat([[0.2, 0.2], [0.8, 0.7]], 10_000, axis=0) + rng.normal(0.0, 0.03, (20_000, 2))
    >>> model = shoal.DensityTree(epsilon=4.0, clients=3).fit(rng.permutation(rows))
    >>> model.n_clusters_
    2
    >>> np.sort(model.cluster_centers_, axis=0).round(1)
    array([[0.2, 0.2],
           [0.8, 0.7]])
    """

    ALGORITHM = "density_tree"

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        *,
        epsilon: float | None = 4.0,
        window_readings: int = DEFAULTS.window_readings,
        low: ArrayLike = 0.0,
        high: ArrayLike = 1.0,
        step: ArrayLike = 0.0,
        clients: int = 1,
        random_state: int | None = None,
        leaves_max: int = DEFAULTS.leaves_max,
        grow_readings: int = DEFAULTS.grow_readings,
        cut_significance: float = DEFAULTS.cut_significance,
        depth: float = DEFAULTS.depth,
        filled: float = DEFAULTS.filled,
        finest: float = DEFAULTS.finest,
        decay: float = DEFAULTS.decay,
        oblique_axes: int = DEFAULTS.oblique_axes,
        verbose: bool = False,
        max_seconds: float | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.window_readings = window_readings
        self.low = low
        self.high = high
        self.step = step
        self.clients = clients
        self.random_state = random_state
        self.leaves_max = leaves_max
        self.grow_readings = grow_readings
        self.cut_significance = cut_significance
        self.depth = depth
        self.filled = filled
        self.finest = finest
        self.decay = decay
        self.oblique_axes = oblique_axes
        self.verbose = verbose
        self.max_seconds = max_seconds

    def _new_federation(self, width: int) -> CountingFederation:
        low, high = self._bounds(width)
        options = self.get_params(deep=False)
        own = {name: options.pop(name) for name in ("clients", "random_state", "epsilon", "window_readings")}
        for name in ("low", "high", "step", *OF_THE_ESTIMATOR):
            del options[name]
        return CountingFederation(
            options,
            width,
            own["clients"],
            own["random_state"],
            own["epsilon"],
            own["window_readings"],
            self._steps(low, high),
        )

    def _from_learnt(self, points: Floats) -> Floats:
        low, high = self._bounds(points.shape[1])
        return np.asarray(low + points * (high - low))

    def _to_learnt(self, rows: Floats) -> Floats:
        low, high = self._bounds(rows.shape[1])
        return np.asarray((np.clip(rows, low, high) - low) / (high - low))

    def _warn(self, rows: Floats) -> None:
        if not self._warned and len(rows) >= WARNED_ROWS_MIN:
            self._warned = warn_of_clipping(rows, *self._bounds(rows.shape[1]), self._names)

    def _steps(self, low: Floats, high: Floats) -> Floats:
        """(d,) the steps in unit coordinates. Raises `SettingsError`."""
        try:
            steps = np.broadcast_to(np.asarray(self.step, dtype=np.float64), low.shape) / (high - low)
        except (TypeError, ValueError):
            raise SettingsError(f"step must be a number, or {len(low)} numbers") from None
        if not ((steps >= 0.0) & (steps <= 1.0)).all():
            raise SettingsError("step must be from 0 to high - low for every feature")
        return steps

    def _bounds(self, width: int) -> tuple[Floats, Floats]:
        """(d,), (d,). Raises `SettingsError`."""
        try:
            low, high = (
                np.broadcast_to(np.asarray(bound, dtype=np.float64), (width,)) for bound in (self.low, self.high)
            )
        except (TypeError, ValueError):
            raise SettingsError(f"low and high must be numbers, or {width} numbers each") from None
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise SettingsError("low and high must be finite, and low below high for every feature")
        return low, high
