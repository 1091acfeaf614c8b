"""The nodes of a network in preallocated arrays, and the diversity of the initial ones: are there
enough of them?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.streaming import MAGNITUDE_MAX
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.kernels.constants import SIGMA_MIN
from shoal.kernels.correntropy import Scratch
from shoal.saved_state import FloatArray, IntArray, SavedState, require, state_type

FIRST_CAPACITY = 16
SIZE_MAX: Final = 2.0 * MAGNITUDE_MAX
"""more than any weight or bandwidth that rows give, rounding included"""
NodeArrays = tuple[Floats, Floats, Ints, Ints, Ints]
Element = TypeVar("Element", bound=np.generic)


@state_type
class NodesState(SavedState):
    """The live arrays of k nodes with d features."""

    weight: Annotated[Floats, FloatArray("k", "d")]
    sigma: Annotated[Floats, FloatArray("k")]
    count: Annotated[Ints, IntArray("k", least=1)]
    stamp: Annotated[Ints, IntArray("k", least=1)]
    node_id: Annotated[Ints, IntArray("k")]

    def check(self) -> None:
        # Kernels compute with these without a look: what no rows can give must not get there.
        in_range = (self.sigma >= SIGMA_MIN) & (self.sigma <= SIZE_MAX)
        require(
            bool((np.abs(self.weight) <= SIZE_MAX).all()), "weight holds numbers that no rows have"
        )
        require(bool(in_range.all()), "sigma holds numbers that no rows have")
        require(bool((np.diff(self.node_id) > 0).all()), "node_id does not ascend")
        require(len(set(self.stamp.tolist())) == len(self.stamp), "two nodes have the same stamp")


class Nodes:
    """k nodes in the order of their creation; removing nodes leaves no gaps.

    Ids ascend with position: a new node gets the largest live id plus one (0 if none), as in the
    published program. The stamp of a node is the number of the input that created it or that it won
    last.
    """

    def __init__(self, width: int, capacity: int = FIRST_CAPACITY) -> None:
        self.size = 0
        self._weights: Floats = np.empty((capacity, width))
        self._sigmas: Floats = np.empty(capacity)
        self._counts: Ints = np.empty(capacity, dtype=np.int64)
        self._stamps: Ints = np.empty(capacity, dtype=np.int64)
        self._ids: Ints = np.empty(capacity, dtype=np.int64)
        self._allocate_scratch()

    def _allocate_scratch(self) -> None:
        """Make scratch buffers and views for a new capacity."""
        capacity, width = self._weights.shape
        self._distances = np.empty(capacity)
        self._scratch = (np.empty((capacity, width)), np.empty((capacity, width)))
        self._update_views()

    def _update_views(self) -> None:
        """Make everything that follows from the live part of the arrays."""
        self._set_views()
        self._mean_sigma: float | None = None

    def _set_views(self) -> None:
        """Make views of the live part of every array, once per change of size and not once
        per row."""
        k = self.size
        self.weights: Floats = self._weights[:k]
        self.sigmas: Floats = self._sigmas[:k]
        self.counts: Ints = self._counts[:k]
        self.stamps: Ints = self._stamps[:k]
        self.ids: Ints = self._ids[:k]
        self.distances: Floats = self._distances[:k]
        self.scratch: Scratch = (self._scratch[0][:k], self._scratch[1][:k])

    @property
    def mean_sigma(self) -> float:
        """The mean bandwidth; 0 without nodes."""
        # When it is asked for: a new node gets a bandwidth, and then at once another one.
        if self._mean_sigma is None:
            self._mean_sigma = _mean(self.sigmas)
        return self._mean_sigma

    def append(self, row: Floats, sigma: float, stamp: int) -> None:
        """Add a node with weight `row` (d,) and a winning count of 1."""
        k = self.size
        # Doubled, so that the copies of a growing network cost a constant time a node.
        if k == len(self._weights):
            self._resize(2 * k)
        self._weights[k] = row
        self._sigmas[k] = sigma
        self._counts[k] = 1
        self._stamps[k] = stamp
        self._ids[k] = 0
        if k:
            self._ids[k] = self._ids[k - 1] + 1
        self.size = k + 1
        self._update_views()

    @property
    def arrays(self) -> NodeArrays:
        """Weights, bandwidths, winning counts, stamps and ids, with the room behind the live part,
        for a kernel that changes them; `resized` must follow."""
        return self._weights, self._sigmas, self._counts, self._stamps, self._ids

    @property
    def capacity(self) -> int:
        """Nodes for which the arrays have room."""
        return len(self._weights)

    def resized(self, size: int, mean_sigma: float) -> None:
        """A kernel has changed the arrays, and has left `size` nodes with this mean bandwidth."""
        is_other = size != self.size
        self.size = size
        self._shrink()
        if is_other:
            self._set_views()
        self._mean_sigma = mean_sigma

    def keep(self, mask: Bools) -> None:
        """Remove the nodes where `mask` (k,) is false; the others keep their order."""
        left = int(np.count_nonzero(mask))
        for array in self.arrays:
            array[:left] = array[: self.size][mask]
        self.resized(left, _mean(self._sigmas[:left]))

    def set_sigma(self, position: int, sigma: float) -> None:
        """Give one node a bandwidth, above 0; the mean changes with it."""
        self._sigmas[position] = sigma
        self._mean_sigma = None

    def set_all_sigmas(self, sigma: float) -> None:
        """Give all nodes one bandwidth, above 0."""
        self.sigmas[:] = sigma
        self._mean_sigma = None

    def recent(self, n: int) -> Floats:
        """(min(n, k), d) weights of the nodes most recently created or won, the latest first."""
        # No two nodes have the same stamp, so no rule for ties is needed.
        # By `take` and the method: for a few nodes NumPy's general forms take twice as long.
        return self.weights.take(self.stamps.argsort()[: -n - 1 : -1], axis=0)

    def state(self) -> NodesState:
        """The live arrays, as views: `NodesState.saved` copies them."""
        return NodesState(
            weight=self.weights,
            sigma=self.sigmas,
            count=self.counts,
            stamp=self.stamps,
            node_id=self.ids,
        )

    @classmethod
    def restored(cls, saved: NodesState) -> Self:
        """The nodes of a saved state."""
        k, width = saved.weight.shape
        nodes = cls(width, max(FIRST_CAPACITY, k))
        nodes._weights[:k] = saved.weight
        nodes._sigmas[:k] = saved.sigma
        nodes._counts[:k] = saved.count
        nodes._stamps[:k] = saved.stamp
        nodes._ids[:k] = saved.node_id
        nodes.size = k
        nodes._update_views()
        return nodes

    def _shrink(self) -> None:
        """Let memory follow the live nodes, and not the largest number of nodes there ever was."""
        if len(self._weights) > max(FIRST_CAPACITY, 4 * self.size):
            # By half, once a quarter is used: one node more and one less again must not copy
            # everything each time.
            self._resize(max(FIRST_CAPACITY, len(self._weights) // 2))

    def _resize(self, capacity: int) -> None:
        live = self.size
        self._weights = _copy_resized(self._weights, live, capacity)
        self._sigmas = _copy_resized(self._sigmas, live, capacity)
        self._counts = _copy_resized(self._counts, live, capacity)
        self._stamps = _copy_resized(self._stamps, live, capacity)
        self._ids = _copy_resized(self._ids, live, capacity)
        self._allocate_scratch()


def _mean(sigmas: Floats) -> float:
    """The mean bandwidth; 0 without nodes."""
    if len(sigmas) == 0:
        return 0.0
    # Not `np.mean`, which takes four times as long for a few nodes; the bits are the same.
    return float(np.add.reduce(sigmas)) / len(sigmas)


def _copy_resized(array: NDArray[Element], live: int, capacity: int) -> NDArray[Element]:
    resized = np.empty((capacity, *array.shape[1:]), dtype=array.dtype)
    resized[:live] = array[:live]
    return resized


SCHUR_MIN = 1e-6
"""smallest Schur complement whose rounding error (about 1e-12) cannot matter"""
BLOCK_NODES = 64
"""nodes whose rows are added to the inverse factor at once"""
AHEAD_MIN = 8
"""fewest nodes that are prepared at once: preparing fewer costs more in calls than it saves"""
PANEL_NODES = 512
"""columns of the inverse factor that are multiplied at once: above its diagonal it is 0, which is
left out"""
MARGIN = 1.0
"""distance in log(det) above the cut beyond which the incremental value does, and no determinant is
computed"""


class Diversity:
    """The similarities of the nodes so far, in memory of k^2; dropped once the determinant is below
    the cut.

    The determinant is followed by the inverse of the Cholesky factor. Its newest rows wait and are
    added `BLOCK_NODES` at a time, since each addition reads the whole factor: a stream whose first
    rows hardly differ has so small a bandwidth that thousands of nodes come without a cut.
    """

    def __init__(self, cut: float, nodes_min: int) -> None:
        self._log_cut = math.log(cut)
        self._nodes_min = nodes_min
        self._size = 0
        self._similarity = np.empty((nodes_min, nodes_min))
        self._inverse_factor: Floats | None = np.zeros((nodes_min, nodes_min))
        self._waiting = 0
        """newest nodes, whose rows of the inverse factor wait"""
        self._solved = np.zeros((BLOCK_NODES, nodes_min))
        """(waiting, k - waiting) their similarities to older nodes, times the inverse factor of
        these"""
        self._inverse_own = np.zeros((BLOCK_NODES, BLOCK_NODES))
        """(waiting, waiting) inverse factor of what is left of the similarities among them"""
        self._ahead: list[tuple[Floats, Floats | None]] = []
        """the next nodes, the last one first: similarities, and these times the inverse factor of
        the nodes before"""
        self._log_det = 0.0
        self.n_exact = 0
        """number of determinants computed in full"""

    @property
    def room_ahead(self) -> int:
        """Nodes that `look_ahead` takes next: few while there are few nodes, since they may be
        enough soon."""
        return min(BLOCK_NODES - self._waiting, max(AHEAD_MIN, self._size // 2))

    def look_ahead(self, similarities: Sequence[Floats]) -> None:
        """Prepare the next nodes, at most `room_ahead`, by their similarities to earlier ones:
        (k,), (k + 1,) ..."""
        old = self._size - self._waiting
        if self._inverse_factor is None:
            # Reversed, as they are taken from the end of the list, which costs nothing.
            self._ahead = [(row, None) for row in reversed(similarities)]
        else:
            # All at once: the factor is read once for the block, and not once for each node.
            to_old = np.array([row[:old] for row in similarities])
            solved = self._solve(to_old, self._inverse_factor)
            self._ahead = list(zip(reversed(similarities), solved[::-1], strict=True))

    def add_next(self, own: float = math.e) -> bool:
        """Add the next node that was prepared, by its similarity to itself; False: there is
        none."""
        if not self._ahead:
            return False
        self._add(*self._ahead.pop(), own)
        return True

    def add_node(self, similarity: Floats, own: float = math.e) -> None:
        """Add a node, by its similarity to each earlier one (k,), and to itself."""
        self.look_ahead([similarity])
        self.add_next(own)

    def is_below_cut(self) -> bool:
        """Whether the determinant is below the cut, as a negative one is, and there are at least
        `nodes_min` nodes."""
        k = self._size
        if k < self._nodes_min:
            return False
        # Far above the cut the incremental value is enough: a determinant costs k^3, and there is
        # one for each of the first nodes.
        if self._inverse_factor is not None and self._log_det > self._log_cut + MARGIN:
            return False
        self.n_exact += 1
        # The exact one decides: rounding in the incremental value must not move the number of first
        # nodes.
        sign, log_det = np.linalg.slogdet(self._similarity[:k, :k])
        return bool(sign < 0 or log_det < self._log_cut)

    def _solve(self, similarities: Floats, inverse: Floats) -> Floats:
        """(m, k) similarities to the nodes that do not wait -> (m, k) times their inverse factor,
        which is lower."""
        k = similarities.shape[1]
        solved = np.empty_like(similarities)
        for first in range(0, k, PANEL_NODES):
            end = min(first + PANEL_NODES, k)
            solved[:, first:end] = similarities[:, :end] @ inverse[first:end, :end].T
        return solved

    def _add(self, similarity: Floats, solved: Floats | None, own: float) -> None:
        k = self._size
        if k == len(self._similarity):
            self._double_capacity()
        self._similarity[k, :k] = similarity
        self._similarity[:k, k] = similarity
        self._similarity[k, k] = own
        self._size = k + 1
        if solved is not None and self._inverse_factor is not None:
            self._extend_factor(similarity, own, solved)

    def _extend_factor(self, similarity: Floats, own: float, solved: Floats) -> None:
        """Let one more node wait; its Schur complement is the factor by which the determinant
        grows."""
        m = self._waiting
        old = len(solved)
        rest = similarity[old:] - self._solved[:m, :old] @ solved
        last = self._inverse_own[:m, :m] @ rest
        schur = own - float(solved @ solved) - float(last @ last)
        # Nearly equal rows: from here on every determinant is computed in full.
        if schur < SCHUR_MIN:
            self._inverse_factor = None
            return
        root = math.sqrt(schur)
        self._solved[m, :old] = solved
        self._inverse_own[m, :m] = (last @ self._inverse_own[:m, :m]) / -root
        self._inverse_own[m, m] = 1.0 / root
        self._log_det += math.log(schur)
        self._waiting = m + 1
        if self._waiting == BLOCK_NODES:
            self._add_waiting(old)

    def _add_waiting(self, old: int) -> None:
        """Add the rows that wait to the inverse factor of the `old` nodes before: [-J S T, J], J
        their own inverse."""
        inverse = self._inverse_factor
        assert inverse is not None
        rows = slice(old, old + BLOCK_NODES)
        for first in range(0, old, PANEL_NODES):
            columns = slice(first, min(first + PANEL_NODES, old))
            inverse[rows, columns] = -self._inverse_own @ (
                self._solved[:, first:old] @ inverse[first:old, columns]
            )
        inverse[rows, rows] = self._inverse_own
        self._inverse_own[:] = 0.0
        self._waiting = 0

    def _double_capacity(self) -> None:
        k = self._size
        larger = np.empty((2 * k, 2 * k))
        larger[:k, :k] = self._similarity
        self._similarity = larger
        if self._inverse_factor is not None:
            old = k - self._waiting
            room = np.zeros((2 * k, 2 * k))
            solved = np.zeros((BLOCK_NODES, 2 * k))
            room[:old, :old] = self._inverse_factor[:old, :old]
            solved[:, :old] = self._solved[:, :old]
            self._inverse_factor = room
            self._solved = solved
