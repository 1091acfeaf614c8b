"""The diversity of the initial nodes: there are enough of them when the determinant of their similarities is small.

The determinant of k nodes costs k^3 operations at every new node, too much for a stream whose diversity never falls.
So an incremental value is computed first: with the inverse T of the Cholesky factor of the similarities R, one more
node multiplies det(R) by the Schur complement e - |T r|^2, in k^2 operations. Only near the cut, or once the Schur
complement is too small for float64, is the determinant itself computed; it alone decides.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.kernels.distance import Floats

SCHUR_MIN = 1e-6
"""smallest Schur complement whose rounding error (about 1e-12) cannot matter"""
MARGIN = 1.0
"""in log(det); the determinant itself is not computed while the incremental value is farther above the cut"""


class Diversity:
    """The similarities of the nodes so far, in memory of k^2; dropped once the determinant is below the cut."""

    def __init__(self, cut: float, nodes_min: int) -> None:
        self._log_cut = math.log(cut)
        self._nodes_min = nodes_min
        self._size = 0
        self._similarity = np.empty((nodes_min, nodes_min))
        self._inverse_factor: Floats | None = np.zeros((nodes_min, nodes_min))
        self._log_det = 0.0
        self.n_exact = 0
        """number of determinants computed in full"""

    def add_node(self, similarity: Floats, own: float = math.e) -> None:
        """Add a node, by its similarity to each earlier one (k,), and to itself."""
        k = self._size
        if k == len(self._similarity):
            self._double_capacity()
        self._similarity[k, :k] = similarity
        self._similarity[:k, k] = similarity
        self._similarity[k, k] = own
        self._size = k + 1
        if self._inverse_factor is not None:
            self._extend_factor(self._inverse_factor, similarity, own)

    def is_below_cut(self) -> bool:
        """Whether the determinant is below the cut, as a negative one is, and there are at least `nodes_min` nodes."""
        k = self._size
        if k < self._nodes_min or (self._inverse_factor is not None and self._log_det > self._log_cut + MARGIN):
            return False
        self.n_exact += 1
        sign, log_det = np.linalg.slogdet(self._similarity[:k, :k])
        return bool(sign < 0 or log_det < self._log_cut)

    def _extend_factor(self, inverse: Floats, similarity: Floats, own: float) -> None:
        """inverse factor (k, k) -> (k + 1, k + 1) in place: the last row is [-t T, 1] / sqrt(own - t t), t = T r."""
        k = self._size - 1
        t = inverse[:k, :k] @ similarity
        schur = own - float(t @ t)
        if schur < SCHUR_MIN:
            self._inverse_factor = None
            return
        root = math.sqrt(schur)
        inverse[k, :k] = (t @ inverse[:k, :k]) / -root
        inverse[k, k] = 1.0 / root
        self._log_det += math.log(schur)

    def _double_capacity(self) -> None:
        k = self._size
        larger = np.empty((2 * k, 2 * k))
        larger[:k, :k] = self._similarity
        self._similarity = larger
        if self._inverse_factor is not None:
            room = np.zeros((2 * k, 2 * k))
            room[:k, :k] = self._inverse_factor
            self._inverse_factor = room
