"""CA+, the client half: CAEFC without edges, so that nodes are never removed and cover all rows
learnt (paper, 4.2; Algorithm 2, line 3).

Its vigilance and the number of nodes that a bandwidth is computed from are set once, by its first
rows; only bandwidths of new nodes follow a stream that drifts.

The arrays that travel from it to CAEFC on the server stand first, and how a region passes on those
of its clients last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from shoal.algorithms.fcac.art_network import ArtNetwork, NetworkState
from shoal.algorithms.streaming import Arrays, ArraySpec, Contribution, State
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats, Ints, Ints32
from shoal.kernels.art_workspace import Scalars, Workspace
from shoal.kernels.compiled import CompiledKernels
from shoal.saved_state import FloatArray, IntArray, SavedState, require, state_type

# Both counts of 4 bytes: together they take no more of the wire than one of 8.
UPDATE = {
    "weight": ArraySpec("<f8", ("n", "d"), rowlike=True, per_node=True),
    "count": ArraySpec("<i4", ("n",), at_least_one=True, per_node=True),
    "won": ArraySpec("<i4", ("n",), per_node=True),
}
"""nodes of one client, by winning count from the highest, ties by node id; and how many inputs each
has won since the update before"""

COUNT_MAX: Final = 2**31 - 1
"""highest count that an update says; a node that has won more often is said to have won so often"""

REGION_UPDATE = {**UPDATE, "part": ArraySpec("<i8", ("b",), at_least_one=True)}
"""nodes of several updates of a region's clients, one update after the other, and how many nodes
each has"""

SNAPSHOT = {
    "node_id": ArraySpec("<i8", ("k",)),
    "weight": ArraySpec("<f8", ("k", "d"), rowlike=True),
    "count": ArraySpec("<i8", ("k",), at_least_one=True),
    "sigma": ArraySpec("<f8", ("k",), positive=True, squared_divisor=True),
    "cluster": ArraySpec("<i8", ("k",), points_into="c"),
    "edge": ArraySpec("<i8", ("e", 2), points_into="k"),
    "edge_age": ArraySpec("<i8", ("e",), at_least_one=True),
    "centre": ArraySpec("<f8", ("c", "d"), rowlike=True),
    "centre_weight": ArraySpec("<f8", ("c",), at_least_one=True),
    "counted": ArraySpec("<f8", ("c",)),
    "recent": ArraySpec("<f8", ("c",)),
}
"""the server's nodes; the edges between them, as positions with the smaller one first; per cluster
the mean of its nodes weighted by winning count, the sum of these counts, all readings of
clients that lay there, and the recent ones of these"""


def check_parts(arrays: Arrays) -> None:
    """Raises `InvalidData` unless the parts of a region's update have all of its nodes together,
    and no more."""
    # As floats, since a sum of whole numbers could overflow.
    if float(arrays["part"].sum(dtype=np.float64)) != len(arrays["count"]):
        raise InvalidData(
            "its claims do not agree: the nodes of its parts do not add up to its nodes"
        )


def parts_of(contribution: Contribution) -> Iterator[Contribution]:
    """The updates that a contribution consists of, in their order; a client's is one. Raises
    `InvalidData`."""
    arrays = contribution.arrays
    if "part" not in arrays:
        yield contribution
        return
    check_parts(arrays)
    ends = np.cumsum(arrays["part"])
    for first, end in zip(ends - arrays["part"], ends, strict=True):
        part = {name: arrays[name][first:end] for name in UPDATE}
        yield replace(contribution, arrays=part)


def won_by_nodes(contribution: Contribution, count: Ints) -> Ints:
    """(n,) inputs that each node of a contribution has won since the contribution before; `count`
    (n,) are those that it ever has. Raises `InvalidData`, which names the client."""
    won = np.asarray(contribution.arrays["won"])
    is_whole = won.shape == count.shape and won.dtype.kind in "iu"
    if not (is_whole and (won >= 0).all() and (won <= count).all()):
        raise InvalidData(
            f"contribution of {contribution.client}: won must be one whole number per node, from 0"
            " to its count"
        )
    return won.astype(np.int64)


@state_type
class CAPlusState(NetworkState):
    """What CA+ has learnt, and what of it was published."""

    version: ClassVar[int] = 3

    published_count: Annotated[Ints, IntArray("published", least=1)]
    """winning counts of the first nodes at the newest contribution; later nodes are newer"""
    published: bool
    """whether the receiver has what was contributed"""

    def check(self) -> None:
        super().check()
        published = self.published_count
        counts = self.nodes.count[: len(published)]
        require(
            len(published) == len(counts) and bool((published <= counts).all()),
            "published_count counts inputs not yet learnt",
        )


class CAPlus(ArtNetwork):
    """Learns nodes from noisy rows, and contributes the nodes. Options: `FcacOptions`."""

    network = "CA+"
    state_type = CAPlusState

    def _reset(self) -> None:
        super()._reset()
        self._published_counts: Ints = np.empty(0, dtype=np.int64)
        self._published = True

    def _adapt(self, row: Floats, first: int, second: int | None) -> None:
        """Move the second winner a little; its count and its recency do not change (eq. 31)."""
        if second is not None:
            neighbour = self._nodes.weights[second]
            # Divided before it multiplies the row, as in the compiled form: the bits are the same.
            share = self.options.second_winner_factor / self._nodes.counts.item(second)
            neighbour += (row - neighbour) * share

    def _run_kernel(
        self,
        compiled: CompiledKernels,
        rows: Floats,
        workspace: Workspace,
        scalars: Scalars,
        bandwidth_factor: float,
    ) -> int:
        factors = np.array([bandwidth_factor, self.options.second_winner_factor])
        return compiled.learn_ca_plus(
            rows, self._nodes.arrays, workspace, *scalars, factors, compiled.loops
        )

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays of the nodes created or won since the last call, or of all (option
        `contribute`).

        By winning count from the highest, ties by node id. Empty before the initial rows are
        learnt.
        """
        nodes = self._nodes
        new = nodes.counts.copy()
        # Nodes are never removed, so those of before are the first ones.
        new[: len(self._published_counts)] -= self._published_counts
        # Stable: of nodes that won equally often the older one travels first.
        order = np.argsort(-nodes.counts, kind="stable")
        if self.options.contribute == "changed" and self._published:
            order = order[new[order] > 0]
        self._published_counts = nodes.counts.copy()
        self._published = True
        return {
            "weight": nodes.weights[order],
            "count": _said(nodes.counts[order]),
            "won": _said(new[order]),
        }

    def reset_published(self) -> None:
        """Make the next contribution one of all nodes, for a server that has none of them."""
        self._published = False

    def _state(self) -> CAPlusState:
        return CAPlusState(
            **vars(super()._state()),
            published_count=self._published_counts,
            published=self._published,
        )

    def _restore_from(self, saved: NetworkState) -> None:
        assert isinstance(saved, CAPlusState)
        # Nodes are never removed; compiled, an input that must become a node for want of nodes is
        # not looked for.
        require(len(saved.nodes.weight) >= (saved.n_active or 0), "fewer nodes than n_active")
        super()._restore_from(saved)
        self._published_counts = saved.published_count
        self._published = saved.published


def _said(counts: Ints) -> Ints32:
    """Counts (n,) as an update says them."""
    return np.minimum(counts, COUNT_MAX).astype(np.int32)


HALF: Final = "FCAC aggregator"


@state_type
class AggregatorState(SavedState):
    """Nodes of updates that were not handed on yet."""

    version: ClassVar[int] = 3

    weight: Annotated[Floats, FloatArray("k", "d")]
    count: Annotated[Ints, IntArray("k", least=1)]
    won: Annotated[Ints, IntArray("k")]
    part: Annotated[Ints, IntArray("parts", least=1)]
    """number of nodes of each update"""

    def check(self) -> None:
        # As floats, since a sum of whole numbers could overflow.
        nodes = float(self.part.sum(dtype=np.float64))
        most = max(self.count.max(initial=0), self.won.max(initial=0))
        require(int(most) <= COUNT_MAX, "a count is above what an update says")
        require(nodes == len(self.weight), "the nodes of its updates do not add up to its nodes")


class FcacAggregator:
    """Keeps the nodes of clients' updates in the order in which they came, and where each update
    ends.

    The nodes of the region's own CAEFC would be fewer by far. But CAEFC at the top would then see
    each part of space so seldom that clusters fall apart or are missed (benchmarks/hierarchy.py),
    so clients' nodes go up as they are. Which of them have high winning counts is decided within
    each update (Algorithm 3), so updates stay apart.
    """

    def __init__(self, options: Mapping[str, Any], dimensions: int) -> None:
        """`options` with `nodes_max`, None for no limit."""
        self._nodes_max: int | None = options["nodes_max"]
        self._width = dimensions
        self._reset()

    def _reset(self) -> None:
        self._weights: Floats = np.empty((0, self._width))
        self._counts: Ints32 = np.empty(0, dtype=np.int32)
        self._won: Ints32 = np.empty(0, dtype=np.int32)
        self._parts: Ints = np.empty(0, dtype=np.int64)

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Whether these nodes and those kept are no more than an update may have."""
        return (
            self._nodes_max is None or len(self._counts) + len(arrays["count"]) <= self._nodes_max
        )

    def add(self, arrays: Arrays, readings: int, client: str = "") -> None:
        """Add the nodes of one update; those of a lower region's are of several."""
        n = len(arrays["count"])
        if "part" in arrays:
            parts = arrays["part"]
        elif n:
            parts = np.array([n], dtype=np.int64)
        else:
            # A part has at least one node.
            parts = np.empty(0, dtype=np.int64)
        self._weights = np.concatenate([self._weights, arrays["weight"]])
        self._counts = np.concatenate([self._counts, arrays["count"]])
        self._won = np.concatenate([self._won, arrays["won"]])
        self._parts = np.concatenate([self._parts, parts])

    @property
    def is_due(self) -> bool:
        """False: nothing was asked for."""
        return False

    def contribute(self) -> Arrays:
        """The `REGION_UPDATE` arrays of what was added since the last call."""
        arrays: Arrays = {
            "weight": self._weights,
            "count": self._counts,
            "won": self._won,
            "part": self._parts,
        }
        self._reset()
        return arrays

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        now = AggregatorState(
            weight=self._weights,
            count=self._counts.astype(np.int64),
            won=self._won.astype(np.int64),
            part=self._parts,
        )
        return now.saved(half=HALF)

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        saved = AggregatorState.read(state, {"d": self._width}, half=HALF)
        self._weights = saved.weight
        self._counts = saved.count.astype(np.int32)
        self._won = saved.won.astype(np.int32)
        self._parts = saved.part
