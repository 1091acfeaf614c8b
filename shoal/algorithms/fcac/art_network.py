"""The network that CA+ and CAEFC share: adaptive resonance theory with the correntropy-induced
metric (CIM).

It follows the paper's Algorithm 1 as the published program runs it, because that program made the
published tables. Line numbers in this package are those of Algorithm 1 (Masuyama et al., 2023).

The program differs from the text in what decides the results: the first bandwidth is that of the
first rows, and stays until the initial nodes are diverse enough; similarities are computed with the
mean bandwidth of all live nodes; lambda is set once, and a bandwidth is computed from the
lambda / 2 most recent nodes, the new one included; the vigilance is computed again only when a
removal of nodes has been made up for. Where the program is undefined, ties go to the lowest
position, and the counter of inputs never restarts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.fcac.nodes import Diversity, Nodes, NodesState
from shoal.algorithms.fcac.options import FcacOptions
from shoal.algorithms.streaming import MAGNITUDE_MAX, State, check_dimensions, check_rows
from shoal.errors import InvalidData
from shoal.kernels import forms
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.art_workspace import (
    COUNTER,
    LAST_SIGMA,
    MEAN_SIGMA,
    SATURATED,
    SIZE,
    VIGILANCE,
    Scalars,
    Workspace,
)
from shoal.kernels.compiled import CompiledKernels
from shoal.kernels.constants import SIGMA_MIN
from shoal.kernels.correntropy import (
    bandwidth,
    bandwidth_factor,
    cim,
    correntropy,
    ignore_underflow,
    mean_nearest_other,
)
from shoal.saved_state import FloatArray, Number, SavedState, Whole, require, state_type

Kernel = Callable[[Workspace, Scalars], int]
"""learns rows up to one that needs more room than the arrays have, and returns how many; it changes
the nodes, the workspace and the scalars"""


class Progress(NamedTuple):
    """The numbers of a network that learning changes, besides its nodes and edges."""

    counter: int
    """inputs learnt"""
    saturated: int
    """inputs that did not become a node only because the network was full"""
    last_sigma: float
    """the bandwidth computed last"""
    vigilance: float


class CompiledLearning:
    """The workspace of one network's kernel. What it holds follows from the nodes: it is no part of
    a state."""

    def __init__(self) -> None:
        self._workspace = Workspace.of(0, 0)
        self._counter = 0
        """inputs learnt when the workspace held the nodes"""

    def holds(self, counter: int) -> bool:
        """Whether the workspace holds the nodes of a network that has learnt this number of inputs.
        Nodes change only when an input is learnt, so it does if the number was the same when the
        kernel left it."""
        return self._counter == counter

    def learn(
        self,
        rows: Floats,
        nodes: Nodes,
        progress: Progress,
        n_active: int,
        nodes_max: int | None,
        kernel: Kernel,
    ) -> tuple[int, Progress]:
        """Learn rows (n, d) up to one that the kernel leaves to NumPy's form. Returns how many, and
        the progress."""
        # It is filled anew only where the nodes have changed outside of the kernel.
        kept = self.holds(progress.counter)
        if not self._workspace.fits(nodes.capacity):
            self._workspace = Workspace.of(nodes.capacity, rows.shape[1])
            kept = False
        scalars = Scalars(
            np.array([nodes.size, progress.counter, progress.saturated, 0, 0, kept]),
            np.array([progress.last_sigma, nodes.mean_sigma, progress.vigilance, 0.0, 0.0, 0.0]),
            # -1 for no limit: a compiled kernel takes whole numbers alone.
            np.array([n_active, nodes_max or -1]),
        )
        learnt = kernel(self._workspace, scalars)
        ints = scalars.ints.tolist()
        floats = scalars.floats.tolist()
        self._counter = ints[COUNTER]
        nodes.resized(ints[SIZE], floats[MEAN_SIGMA])
        return learnt, Progress(
            ints[COUNTER], ints[SATURATED], floats[LAST_SIGMA], floats[VIGILANCE]
        )


class NetworkAttributes:
    """The attributes that a network sets, and what may be read of them; arrays are read-only
    views."""

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
    def counts(self) -> Ints:
        """(K,) winning counts."""
        return _read_only(self._nodes.counts)

    @property
    def sigmas(self) -> Floats:
        """(K,) bandwidths."""
        return _read_only(self._nodes.sigmas)

    @property
    def node_ids(self) -> Ints:
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
        """Number of most recent nodes that a bandwidth is computed from, lambda / 2; None until it
        is set."""
        return self._n_active

    @property
    def lambda_(self) -> int | None:
        """Number of inputs between two removals of isolated nodes on the server; None until it is
        set."""
        if self._n_active is None:
            return None
        return 2 * self._n_active

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

    def recent_ids(self) -> Ints:
        """(K,) ids, the most recently created or won first."""
        # Stamps are all different, so no order of equal ones has to be kept.
        return self._nodes.ids[np.argsort(self._nodes.stamps)[::-1]]


Element = TypeVar("Element", bound=np.generic)


def _read_only(array: NDArray[Element]) -> NDArray[Element]:
    view = array.view()
    view.flags.writeable = False
    return view


FILL = 0
REFILL = 4
"""cases of an input that became a node without the vigilance test: before the vigilance is set, and
after nodes were removed"""


class Step(NamedTuple):
    """The effect of one input. Positions are those before any removal; -1 when there was no
    competition."""

    case: int
    """1, 2, 3 as in the paper, `FILL` or `REFILL`"""
    first: int
    second: int
    distance_first: float
    distance_second: float


@state_type
class NetworkState(SavedState):
    """What CA+ and CAEFC have learnt."""

    version: ClassVar[int] = 2

    width: Annotated[int | None, Whole(least=1, size="d")]
    """number of features; None before any row came"""
    buffer: Annotated[Floats, FloatArray("buffered", "d")]
    counter: int
    last_sigma: Annotated[float | None, Number(least=SIGMA_MIN)]
    vigilance: Annotated[float, Number(above=0.0)]
    n_active: Annotated[int | None, Whole(least=2)]
    saturated: int
    nodes: NodesState

    def check(self) -> None:
        started = self.last_sigma is not None
        require(
            started == (self.counter > 0), "a bandwidth without rows, or rows without a bandwidth"
        )
        require(
            bool((np.abs(self.buffer) <= MAGNITUDE_MAX).all()),
            "the buffer holds numbers that no rows have",
        )
        require(
            self.width is not None or len(self.buffer) == 0,
            "the buffer holds rows without features",
        )
        require(
            not (started and len(self.buffer)), "the buffer holds rows after learning has begun"
        )
        # Kernels rely on nodes that this number of inputs can have made.
        require(
            bool((self.nodes.stamp <= self.counter).all()),
            "a node was changed by an input not yet learnt",
        )
        require(
            bool((self.nodes.count <= self.counter).all()),
            "a node has won more inputs than were learnt",
        )
        require(
            (self.n_active or 0) <= self.counter, "n_active counts nodes of inputs not yet learnt"
        )


class ArtNetwork(NetworkAttributes, ABC):
    """A network that learns rows one by one. The number of features is given, or fixed by the first
    rows."""

    network: ClassVar[str]
    """name in the paper, and in a saved state"""
    state_type: ClassVar[type[NetworkState]]
    """type of its saved state"""

    def __init__(self, dimensions: int | None = None, **options: Any) -> None:
        check_dimensions(dimensions)
        self.options = FcacOptions.parse(options)
        self._given_width = dimensions
        self._width = dimensions
        self._reset()

    def _reset(self) -> None:
        self._nodes = Nodes(self._width or 0)
        self._buffer: Floats = np.empty((0, self._width or 0))
        self._diversity: Diversity | None = Diversity(
            self.options.diversity_cut, self.options.diversity_nodes_min
        )
        self._counter = 0
        self._last_sigma: float | None = None
        self._vigilance = 1.0
        self._n_active: int | None = None
        self._saturated = 0
        self._compiled_learning = CompiledLearning()

    # Learning.

    def learn(self, rows: ArrayLike) -> None:
        """rows (n, d): learn each once, in order; any batching gives the same state, bit for bit.

        The first `initial_rows` are buffered and learnt together. Raises `InvalidData` before
        anything has changed.
        """
        self._learn(check_rows(rows, self._width))

    def flush(self) -> None:
        """Learn the rows in the buffer, at the end of a stream. Raises `InvalidData` if it is a
        single one."""
        if len(self._buffer) == 1:
            raise InvalidData("a single row has no spread to learn from; give at least 2 rows")
        if len(self._buffer):
            self._learn_first_rows(self._buffer)

    def _learn(self, rows: Floats) -> None:
        if len(rows) == 0:
            return
        if self._width is None:
            self._width = rows.shape[1]
            self._reset()
        if self._last_sigma is not None:
            self._learn_each(rows)
            return
        buffered = np.concatenate([self._buffer, rows])
        if len(buffered) < self.options.initial_rows:
            self._buffer = buffered
        else:
            self._learn_first_rows(buffered)

    def _learn_first_rows(self, rows: Floats) -> None:
        # Of exactly these rows, however many came with the last batch: any batching must give the
        # same state.
        self._last_sigma = bandwidth(rows[: self.options.initial_rows])
        self._buffer = np.empty((0, rows.shape[1]))
        self._learn_each(rows)

    def _learn_each(self, rows: Floats) -> None:
        compiled = forms.PROCESS.compiled_for(len(rows))
        # A row far from a node has a correntropy that underflows to 0, which is its right value.
        with ignore_underflow():
            rows = rows[self._learn_first_nodes(rows) :]
            if compiled is None:
                for row in rows:
                    self._step(row)
            else:
                self._learn_compiled(np.ascontiguousarray(rows), compiled)

    def _learn_first_nodes(self, rows: Floats) -> int:
        """Learn rows until the nodes are diverse enough. Returns how many. Each becomes a node as
        it is, so that many can be compared with all before them at once."""
        learnt = 0
        while self._diversity is not None and learnt < len(rows):
            block = rows[learnt : learnt + self._diversity.room_ahead]
            # With the first bandwidth, which stays until the nodes are diverse enough: so what is
            # computed ahead for a later row of the block cannot become wrong by an earlier one.
            self._diversity.look_ahead(self._similarities_to_earlier(block))
            for row in block:
                self._step(row)
                learnt += 1
                # What was prepared for the rest of the block is dropped: those rows compete.
                if self._diversity is None:
                    break
        return learnt

    def _learn_compiled(self, rows: Floats, compiled: CompiledKernels) -> None:
        """Learn rows with a compiled kernel. It leaves the first nodes, and rows that need more
        room."""
        learnt = 0
        while learnt < len(rows):
            if self._n_active is not None:
                learnt += self._learn_chunk(rows[learnt:], self._n_active, compiled)
            # The row at which the kernel stopped: NumPy's form makes room for its node, so that
            # the kernel can go on behind it.
            if learnt < len(rows):
                self._step(rows[learnt])
                learnt += 1

    def _learn_chunk(self, rows: Floats, n_active: int, compiled: CompiledKernels) -> int:
        """Learn rows (n, d) with a compiled kernel, up to one that it leaves to NumPy's form.
        Returns how many."""
        assert self._last_sigma is not None
        progress = Progress(self._counter, self._saturated, self._last_sigma, self._vigilance)
        factor = bandwidth_factor(n_active, rows.shape[1])

        def kernel(workspace: Workspace, scalars: Scalars) -> int:
            return self._run_kernel(compiled, rows, workspace, scalars, factor)

        learning = self._compiled_learning
        nodes_max = self.options.nodes_max
        learnt, progress = learning.learn(rows, self._nodes, progress, n_active, nodes_max, kernel)
        self._counter, self._saturated, self._last_sigma, self._vigilance = progress
        return learnt

    @abstractmethod
    def _run_kernel(
        self,
        compiled: CompiledKernels,
        rows: Floats,
        workspace: Workspace,
        scalars: Scalars,
        bandwidth_factor: float,
    ) -> int:
        """Call the compiled kernel, which changes nodes, workspace and scalars. Returns how many
        rows it has learnt."""

    def _step(self, row: Floats) -> Step:
        """Learn one input (Algorithm 1, lines 2-37)."""
        # Never restarted, unlike the program's, which begins again at the length of each array it
        # is given: then the same rows in other batches would remove nodes at other inputs.
        self._counter += 1
        if self._n_active is None or self._nodes.size < self._n_active:
            return self._insert_directly(row)
        return self._compete(row, self._n_active)

    def _insert_directly(self, row: Floats) -> Step:
        """Make the input a node without a test (lines 3-11); the last one needed sets the
        vigilance."""
        case = FILL if self._n_active is None else REFILL
        self._create_node(row)
        if self._diversity is not None:
            self._update_diversity(self._diversity)
        # True when the first nodes are diverse enough, and again each time that removed nodes have
        # been made up for: only then are all bandwidths and the vigilance computed.
        if self._nodes.size == self._n_active:
            self._last_sigma = bandwidth(self._nodes.recent(self._n_active))
            self._nodes.set_all_sigmas(self._last_sigma)
            self._vigilance = mean_nearest_other(self._nodes.weights, self._nodes.mean_sigma)
        return Step(case, -1, -1, math.nan, math.nan)

    def _create_node(self, row: Floats) -> None:
        assert self._last_sigma is not None
        self._nodes.append(row, self._last_sigma, self._counter)

    def _update_diversity(self, diversity: Diversity) -> None:
        size = self._nodes.size
        if not diversity.add_next():
            diversity.add_node(self._similarity_to_earlier(size - 1))
        # At the limit the number of nodes is what it can be, diverse or not; else no vigilance
        # would ever be set.
        if diversity.is_below_cut() or size == self.options.nodes_max:
            self._n_active = size
            self._diversity = None

    def _similarity_to_earlier(self, position: int) -> Floats:
        """(position,) entries of the matrix R (eq. 30 or 13) for a node."""
        return self._similarities(self._nodes.weights[: position + 1], position)[0]

    def _similarities_to_earlier(self, rows: Floats) -> list[Floats]:
        """The same for rows (n, d) that will be the next nodes: (size,), (size + 1,), ..."""
        return self._similarities(np.concatenate([self._nodes.weights, rows]), self._nodes.size)

    def _similarities(self, points: Floats, first: int) -> list[Floats]:
        """Similarities of each of the points (k, d) from the first on to earlier ones. Bandwidths
        are initial ones."""
        assert self._last_sigma is not None
        # Two scratch arrays for all points: arrays of their own cost more than the arithmetic.
        differences = np.empty_like(points)
        products = np.empty_like(points)
        out = np.empty(len(points))
        similarities = []
        for k in range(first, len(points)):
            scratch = (differences[:k], products[:k])
            arguments = (points[k], points[:k], self._last_sigma, out[:k], scratch)
            if self.options.similarity == "cae":
                exponent = 1.0 - cim(*arguments)
            else:
                exponent = correntropy(*arguments)
            similarities.append(np.exp(exponent))
        return similarities

    def _compete(self, row: Floats, n_active: int) -> Step:
        """Find the two nearest nodes and test the vigilance (lines 13-30). n_active is at least 2,
        so there are two."""
        nodes = self._nodes
        distances = cim(row, nodes.weights, nodes.mean_sigma, nodes.distances, nodes.scratch)
        first = int(distances.argmin())
        distance_first = distances.item(first)
        # `argmin` takes the lowest position of a tie, which the published program leaves undefined.
        distances[first] = math.inf
        second = int(distances.argmin())
        distance_second = distances.item(second)
        # Case I: the input is farther from all nodes than the vigilance allows (line 15).
        if self._vigilance < distance_first and not self._is_full():
            case = 1
            self._create_node(row)
            # The new node is one of the active nodes that its bandwidth is computed from.
            self._last_sigma = bandwidth(nodes.recent(n_active))
            nodes.set_sigma(nodes.size - 1, self._last_sigma)
        else:
            # Case III: the second nearest node is within the vigilance as well (line 26). A full
            # network compares as before and learns into the nearest node, as in Case II or III.
            case = 2 if self._vigilance < distance_second else 3
            # A number of Python: arithmetic of an array with one of NumPy takes twice as long.
            count = nodes.counts.item(first) + 1
            nodes.counts[first] = count
            winner = nodes.weights[first]
            # By the new count, so that the node is the mean of all rows it has won (lines 21-22).
            winner += (row - winner) / count
            nodes.stamps[first] = self._counter
            self._adapt(row, first, second if case == 3 else None)
        return Step(case, first, second, distance_first, distance_second)

    def _is_full(self) -> bool:
        # Counts only inputs that would have become a node: this is asked after the test of the
        # vigilance.
        if self._nodes.size != self.options.nodes_max:
            return False
        self._saturated += 1
        return True

    @abstractmethod
    def _adapt(self, row: Floats, first: int, second: int | None) -> None:
        """Change other nodes and edges after the winner has moved; `second` is None in Case II."""

    # Saving and restoring.

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        return self._state().saved(network=self.network, options=self.options.as_dict())

    def restore(self, state: State) -> None:
        """Become the saved network and continue bit for bit. Raises `InvalidState`; then nothing
        has changed."""
        sizes = {} if self._given_width is None else {"d": self._given_width}
        saved = self.state_type.read(
            state, sizes, network=self.network, options=self.options.as_dict()
        )
        # Into a new network, so that a state that proves damaged halfway changes nothing.
        fresh = type(self)(self._given_width, **self.options.as_dict())
        fresh._restore_from(saved)
        vars(self).update(vars(fresh))

    def _state(self) -> NetworkState:
        """The state of this network; a subclass has a type with more."""
        return NetworkState(
            width=self._width,
            buffer=self._buffer,
            counter=self._counter,
            last_sigma=self._last_sigma,
            vigilance=self._vigilance,
            n_active=self._n_active,
            saturated=self._saturated,
            nodes=self._nodes.state(),
        )

    def _restore_from(self, saved: NetworkState) -> None:
        """Fill this empty network from a saved state. Raises `InvalidState`."""
        nodes_max = self.options.nodes_max
        require(
            len(saved.buffer) < self.options.initial_rows,
            "the buffer holds initial_rows rows or more",
        )
        if nodes_max is not None:
            require(len(saved.nodes.weight) <= nodes_max, "more nodes than nodes_max")
            require((saved.n_active or 0) <= nodes_max, "n_active is above nodes_max")
        self._width = saved.width
        self._reset()
        self._buffer = saved.buffer
        self._counter = saved.counter
        self._last_sigma = saved.last_sigma
        self._vigilance = saved.vigilance
        self._n_active = saved.n_active
        self._saturated = saved.saturated
        self._nodes = Nodes.restored(saved.nodes)
        if self._n_active is not None:
            self._diversity = None
        elif self._diversity is not None:
            with ignore_underflow():
                # What `Diversity` keeps follows from the nodes, so it is computed again and is no
                # part of a state.
                for position in range(self._nodes.size):
                    self._diversity.add_node(self._similarity_to_earlier(position))
