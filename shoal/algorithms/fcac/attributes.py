"""What a network of CA+ or CAEFC shows of itself."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.fcac.nodes import Nodes
from shoal.kernels.distance import Floats


class NetworkAttributes:
    """The attributes that a network sets, and what may be read of them; arrays are read-only views."""

    _nodes: Nodes
    _buffer: Floats
    _width: int | None
    _counter: int
    _last_sigma: float | None
    _vigilance: float
    _n_active: int | None
    _saturated: int

    @property
    def size(self) -> int:
        """Nodes it has now."""
        return self._nodes.size

    @property
    def dimensions(self) -> int | None:
        """Features of a row; None before the first rows."""
        return self._width

    @property
    def weights(self) -> Floats:
        """(K, d)"""
        return _read_only(self._nodes.weights)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(K,) winning counts."""
        return _read_only(self._nodes.counts)

    @property
    def sigmas(self) -> Floats:
        """(K,) bandwidths."""
        return _read_only(self._nodes.sigmas)

    @property
    def node_ids(self) -> NDArray[np.int64]:
        """(K,) ascending. The id of a removed node may be given again."""
        return _read_only(self._nodes.ids)

    @property
    def mean_sigma(self) -> float:
        """The bandwidth that all similarities are computed with; 0 without nodes."""
        return self._nodes.mean_sigma

    @property
    def last_sigma(self) -> float | None:
        """The bandwidth computed last; None before the first row is learnt."""
        return self._last_sigma

    @property
    def vigilance(self) -> float:
        """The similarity threshold; 1 until it is set."""
        return self._vigilance

    @property
    def n_active(self) -> int | None:
        """Number of most recent nodes that a bandwidth is computed from, lambda / 2; None until it is set."""
        return self._n_active

    @property
    def lambda_(self) -> int | None:
        """Number of inputs between two removals of isolated nodes on the server; None until it is set."""
        return None if self._n_active is None else 2 * self._n_active

    @property
    def n_learnt(self) -> int:
        """Rows learnt, without those in the buffer."""
        return self._counter

    @property
    def n_buffered(self) -> int:
        """Rows in the buffer, which are learnt once there are `initial_rows`."""
        return len(self._buffer)

    @property
    def saturated(self) -> int:
        """Inputs that did not become a node only because `nodes_max` was reached."""
        return self._saturated

    def recent_ids(self) -> NDArray[np.int64]:
        """(K,) ids, the most recently created or won first."""
        return self._nodes.ids[np.argsort(self._nodes.stamps)[::-1]]


Element = TypeVar("Element", bound=np.generic)


def _read_only(array: NDArray[Element]) -> NDArray[Element]:
    view = array.view()
    view.flags.writeable = False
    return view
