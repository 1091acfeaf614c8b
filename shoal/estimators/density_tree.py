"""density_tree as an estimator: clusters from private counts, at an epsilon of 1 to 4 for each
reading.

With `masked` the epsilon is for all readings of a client in a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.density_tree import DensityTreeOptions
from shoal.errors import SettingsError
from shoal.estimators.base import is_number, shortened, warn_of_clipping
from shoal.estimators.streaming import OF_THE_ESTIMATOR, WARNED_ROWS_MIN, IdentityEstimator
from shoal.kernels.arrays import Floats
from shoal.privacy.base import Bounds
from shoal.privacy.imperfect import step_of
from shoal.privacy.masked import DELTA
from shoal.simulation.counting import CountingFederation, WindowFederation
from shoal.simulation.masked import MaskedFederation, SumBudget
from shoal.user_warnings import warn_user

DEFAULTS: Final = DensityTreeOptions()
STEP_ROWS_MIN = 200
STEP_ROWS = 1000
"""fewest rows in which a coarse grid of values is looked for, and most"""
STEP_ADVICE: Final = (
    "values of {features} are multiples of the number in brackets: counts show gaps between them "
    "as valleys, and too many clusters. Give step, which is as public as low and high"
)


class DensityTree(IdentityEstimator):
    """Streaming clustering from private counts. It finds the number of clusters; clusters keep
    their identities.

    Every client counts windows of its readings on the axes of a public tree, and adds noise to the
    counts. With `epsilon` each reading is protected by pure epsilon-differential privacy against
    anyone who sees what clients publish (replace one reading by any other); how many readings there
    are, and when, is not protected.

    With `masked`, noise is added once, to the sums over all clients, and protects *all readings of
    a client in a window* by (epsilon, delta)-differential privacy. It simulates in one process the
    sums of a federation with masked counts and one helper: nothing is masked here, so nothing is
    hidden from this process; the guarantee is for what is learnt, against everybody else. A sum is
    over the next window of every client, taken when one has a second one full. Below 100 clients
    (200 for 8 features or more) few clusters are found.

    Rows are learnt in the order given, which should be the order in which they were read. `fit`
    learns a whole table from the beginning, with a last window of each client that may be short;
    `partial_fit`, `learn_one` and `learn_many` continue, and readings wait until their window is
    full. Labels are identities, whole numbers that are never given again.

    Parameters
    ----------
    epsilon : float or None, default=4.0
        What each reading may cost, 0.02 to 40; None for counts without noise. With `masked`, what
        all readings of a client cost, in one window or in `budget_windows` of them.
    window_readings : int, default=400
        Readings of a client that are counted together.
    low, high : float or array-like of shape (d,), default=0.0 and 1.0
        Smallest and largest possible value of each feature. They must be known without looking at
        the rows: a bound taken from the data would reveal an extreme reading. Values beyond are
        clipped. They scale the features too, so there is no parameter `scale`.
    step : float or array-like of shape (d,), default=0.0
        Smallest difference that each feature shows, such as 1 for whole degrees: values are spread
        over it before they are counted, so that gaps between them are no valleys. 0: as they are.
    period : float or array-like of shape (d,), default=0.0
        Of a circular feature, what it begins again after: 360 for degrees, 24 for hours; 0 for any
        other. Its circle is cut at `low`, `high` does not count, and centres lie from 0 to below
        it. Clusters across the cut are one.
    masked : bool, default=False
        Whether noise is added to sums over clients instead of each client's counts; name them in
        `fit(X, clients=...)`.
    budget_windows : int or None, default=None
        With `masked`: `epsilon` is for all windows of a client, of which there are this many at
        most; readings after them are left out, and a warning says how many. None: `epsilon` is for
        each window.
    delta : float, default=1e-6
        With `masked`: probability with which it may cost more than `epsilon`, up to 0.001.
    clients : int, default=1
        Number of virtual clients; row i of the stream is read by client i mod `clients`.
    random_state : int or None, default=None
        None: the noise is a function of a secret key, drawn when learning begins. A number makes
        the same noise in every run; with it anyone can remove the noise, so a warning says that it
        protects nothing.
    leaves_max, grow_readings, cut_significance, depth, filled, finest, decay, oblique_axes
        Options of the algorithm, see docs/reference/algorithms.md.
    verbose : bool, default=False
        Whether `fit` shows on standard error how far it is.
    max_seconds : float or None, default=None
        Seconds after which `fit` ends with the windows counted by then and warns with
        `StoppedEarly`.

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

    Methods raise `InvalidData` (a ValueError) for rows, and `SettingsError` for parameters when
    learning begins.

    Examples
    --------
    >>> import numpy as np
    >>> import shoal
    >>> rng = np.random.default_rng(0)
    >>> rows = np.repeat([[0.2, 0.2], [0.8, 0.7]], 10_000, axis=0)
    >>> rows += rng.normal(0.0, 0.03, (20_000, 2))
    >>> model = shoal.DensityTree(epsilon=4.0, clients=3).fit(rng.permutation(rows))
    >>> model.n_clusters_
    2
    >>> np.sort(model.cluster_centers_, axis=0).round(1)
    array([[0.2, 0.2],
           [0.8, 0.7]])
    """

    ALGORITHM = "density_tree"
    WHY_NO_WEIGHTS = (
        "its noise hides a row that counts once, and would not hide one that counts more"
    )

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        *,
        epsilon: float | None = 4.0,
        window_readings: int = DEFAULTS.window_readings,
        low: ArrayLike = 0.0,
        high: ArrayLike = 1.0,
        step: ArrayLike = 0.0,
        period: ArrayLike = 0.0,
        masked: bool = False,
        budget_windows: int | None = None,
        delta: float = DELTA,
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
        self.period = period
        self.masked = masked
        self.budget_windows = budget_windows
        self.delta = delta
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

    def _new_federation(self, width: int) -> WindowFederation:
        bounds = self._bounds(width)
        options = self.get_params(deep=False)
        named = (
            "clients",
            "random_state",
            "epsilon",
            "window_readings",
            "budget_windows",
            "delta",
            "masked",
        )
        own = {name: options.pop(name) for name in named}
        # Rows are brought within bounds, to unit coordinates, before the federation sees them.
        for name in ("low", "high", "step", "period", *OF_THE_ESTIMATOR):
            del options[name]
        options["circular"] = ",".join(map(str, bounds.circular))
        clients = own["clients"]
        epsilon = own["epsilon"]
        if epsilon is not None and not is_number(epsilon):
            raise SettingsError(f"epsilon = {epsilon!r}, must be a number above 0, or None")
        seed = own["random_state"]
        size = own["window_readings"]
        steps = self._steps(bounds)
        if own["masked"]:
            budget = SumBudget(epsilon, own["budget_windows"], own["delta"])
            return MaskedFederation(options, width, clients, seed, budget, size, steps)
        if own["budget_windows"] is not None:
            raise SettingsError(
                "budget_windows is for masked = True: other epsilons are for each reading"
            )
        return CountingFederation(options, width, clients, seed, epsilon, size, steps)

    def _circular(self) -> tuple[int, ...]:
        return self._bounds(self.n_features_in_).circular

    def _from_learnt(self, points: Floats) -> Floats:
        return self._bounds(points.shape[1]).shown(points)

    def _to_learnt(self, rows: Floats) -> Floats:
        bounds = self._bounds(rows.shape[1])
        return bounds.to_unit(bounds.clip(rows, gaps=True)[0])

    def _warn(self, rows: Floats) -> None:
        if not self._warned and len(rows) >= WARNED_ROWS_MIN:
            bounds = self._bounds(rows.shape[1])
            # Copies: the bounds themselves may be views of one number for all features.
            low = bounds.low.copy()
            high = bounds.high.copy()
            # Values of circular features are wrapped, and never clipped.
            low[list(bounds.circular)] = -np.inf
            high[list(bounds.circular)] = np.inf
            self._warned = warn_of_clipping(rows, low, high, self._names)
            self._warned |= _warn_of_steps(rows, self._steps(bounds), self._names)

    def _steps(self, bounds: Bounds) -> Floats:
        """(d,) the steps in unit coordinates. Raises `SettingsError`."""
        try:
            step = np.asarray(self.step, dtype=np.float64)
            steps = np.broadcast_to(step, bounds.span.shape) / bounds.span
        except (TypeError, ValueError):
            raise SettingsError(f"step must be a number, or {bounds.d} numbers") from None
        if not ((steps >= 0.0) & (steps <= 1.0)).all():
            raise SettingsError("step must be from 0 to high - low for every feature")
        return steps

    def _bounds(self, width: int) -> Bounds:
        """Those of `width` features. Raises `SettingsError`."""
        try:
            low = np.broadcast_to(np.asarray(self.low, dtype=np.float64), (width,))
            high = np.broadcast_to(np.asarray(self.high, dtype=np.float64), (width,))
            period = np.broadcast_to(np.asarray(self.period, dtype=np.float64), (width,))
        except (TypeError, ValueError):
            raise SettingsError(
                f"low, high and period must be numbers, or {width} numbers each"
            ) from None
        if not (np.isfinite(period).all() and (period >= 0.0).all()):
            raise SettingsError("period must be 0, or above 0 and finite for a circular feature")
        high = np.where(period > 0.0, low + period, high)
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise SettingsError("low and high must be finite, and low below high for every feature")
        return Bounds(low, high, list(period > 0.0))


def _warn_of_steps(rows: Floats, steps: Floats, names: Sequence[str] | None) -> bool:
    """Warn of features whose values lie on a coarse grid without a step (d,), by name and the step
    that rows (n, d) show. Returns whether a warning was given."""
    if len(rows) < STEP_ROWS_MIN:
        return False
    coarse = []
    for place in np.flatnonzero(steps == 0.0).tolist():
        values = rows[:STEP_ROWS, place]
        step = step_of(values[~np.isnan(values)])
        if step:
            name = names[place] if names else f"feature {place}"
            coarse.append(f"{name} ({step:g})")
    if coarse:
        warn_user(STEP_ADVICE.format(features=shortened(coarse)))
    return bool(coarse)
