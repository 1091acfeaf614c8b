"""density_tree as an estimator: clusters from private counts, at an epsilon of 1 to 4 for each reading."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.density_tree import DensityTreeOptions
from shoal.errors import SettingsError
from shoal.estimators.base import Table
from shoal.estimators.counting import CountingFederation
from shoal.estimators.identities import IdentityEstimator


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
        taken from the data would reveal an extreme reading. Values beyond are clipped.
    clients : int, default=1
        Number of virtual clients; row i of the stream is read by client i mod `clients`.
    random_state : int, default=0
        The noise is a function of it. With it the noise can be removed: for anything that is published take a
        secret number, such as `secrets.randbits(128)`.
    leaves_max, grow_readings, cut_significance, depth, filled, finest, decay, oblique_axes
        Options of the algorithm, see docs/reference/algorithms.md.

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
    """

    ALGORITHM = "density_tree"

    def __init__(  # noqa: PLR0913 - scikit-learn's convention: every parameter by its name
        self,
        *,
        epsilon: float | None = 4.0,
        window_readings: int = DensityTreeOptions.window_readings,
        low: ArrayLike = 0.0,
        high: ArrayLike = 1.0,
        clients: int = 1,
        random_state: int = 0,
        leaves_max: int = DensityTreeOptions.leaves_max,
        grow_readings: int = DensityTreeOptions.grow_readings,
        cut_significance: float = DensityTreeOptions.cut_significance,
        depth: float = DensityTreeOptions.depth,
        filled: float = DensityTreeOptions.filled,
        finest: float = DensityTreeOptions.finest,
        decay: float = DensityTreeOptions.decay,
        oblique_axes: int = DensityTreeOptions.oblique_axes,
    ) -> None:
        self.epsilon = epsilon
        self.window_readings = window_readings
        self.low = low
        self.high = high
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

    def _new_federation(self, width: int) -> CountingFederation:
        self._bounds(width)
        options = self.get_params(deep=False)
        own = {name: options.pop(name) for name in ("clients", "random_state", "epsilon", "window_readings")}
        del options["low"], options["high"]
        return CountingFederation(
            options, width, own["clients"], own["random_state"], own["epsilon"], own["window_readings"]
        )

    def _from_learnt(self, points: Table) -> Table:
        low, high = self._bounds(points.shape[1])
        return np.asarray(low + points * (high - low))

    def _to_learnt(self, rows: Table) -> Table:
        low, high = self._bounds(rows.shape[1])
        return np.asarray((np.clip(rows, low, high) - low) / (high - low))

    def _bounds(self, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
