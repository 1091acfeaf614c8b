"""CAEFC, the server half: nodes connected by edges, whose components are the clusters (paper, 4.1
and Algorithm 1).

It learns the nodes of all clients as if they were rows, the often winning ones first (Algorithms 2
and 3). An edge joins the nearest two nodes of an input when both are within the vigilance; it ages
whenever one of its nodes wins without the other, and is deleted when it is old beside the others of
that node and all that were deleted before. Every lambda inputs nodes without edges are removed, so
noise does not pile up; what is left when a stream ends stays, and counts as clusters of one node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.fcac.art_network import ArtNetwork, NetworkState, Step
from shoal.algorithms.fcac.ca_plus import parts_of, won_by_nodes
from shoal.algorithms.fcac.counted_places import CountedPlaces, CountedPlacesState
from shoal.algorithms.fcac.edges import Edges, Origins, OriginsState
from shoal.algorithms.streaming import Arrays, Contribution, Rows, check_rows, counted_points
from shoal.algorithms.view import ClusteringView, NearestPoint
from shoal.errors import InvalidData, InvalidState
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.art_workspace import (
    COUNTER,
    DELETED_AGE_SUM,
    KEPT,
    N_DELETED,
    SIZE,
    Scalars,
    Workspace,
)
from shoal.kernels.compiled import CompiledKernels
from shoal.kernels.correntropy import ignore_underflow, nearest
from shoal.saved_state import IntArray, require, state_type

Permute = Callable[[str, int], Ints]
"""("high" or "low", n) -> a permutation of 0..n-1; called with "high" first"""


def feed_order(counts: Sequence[Ints], permute: Permute) -> tuple[Ints, Ints]:
    """Winning counts (n_i,) of each client -> positions in their concatenation: the high group,
    then the low one.

    A node is high when its count reaches the 75th percentile of its own client (linear
    interpolation). The groups are taken over the clients in the order given, and each is permuted.
    A client may have no nodes. Source: Algorithm 3; what equals the percentile is high, as in the
    published program.
    """
    high = [client >= upper_quartile(client) for client in counts if len(client)]
    is_high = np.concatenate([np.empty(0, dtype=np.bool_), *high])
    highs = np.flatnonzero(is_high)
    lows = np.flatnonzero(~is_high)
    return highs[permute("high", len(highs))], lows[permute("low", len(lows))]


def upper_quartile(counts: Ints) -> float:
    """counts (n,), n > 0 -> their 75th percentile with the bits of `np.percentile`, which takes ten
    times as long."""
    place = 0.75 * (len(counts) - 1)
    below = int(place)
    ordered = np.sort(counts)
    low = float(ordered[below])
    high = float(ordered[min(below + 1, len(counts) - 1)])
    share = place - below
    # From the nearer end, as NumPy interpolates: the other form differs in the last bit, and a node
    # whose count is the percentile itself would change its group.
    if share >= 0.5:
        return high - (high - low) * (1.0 - share)
    return low + (high - low) * share


def keyed_permutation(key: bytes) -> Permute:
    """A permutation that is a pure function of `key`, the same on every platform and in every
    version.

    It sorts n little-endian words of 64 bits, taken from SHAKE-256 of the key and the name of the
    group.
    """

    def permute(group: str, n: int) -> Ints:
        words = hashlib.shake_256(key + group.encode()).digest(8 * n)
        # Sorting random words of 64 bits is a fair shuffle: two of them are equal once in 2^64
        # pairs.
        return np.argsort(np.frombuffer(words, dtype="<u8"), kind="stable").astype(np.int64)

    return permute


def legacy_permutation(seed: int = 0) -> Permute:
    """The permutation of the paper's experiments: one Mersenne Twister for both groups, the high
    group first."""
    generator = np.random.RandomState(seed)

    def permute(group: str, n: int) -> Ints:
        return generator.permutation(n).astype(np.int64)

    return permute


def predict(snapshot: Arrays, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) cluster of the node nearest by CIM, -1 if the snapshot has no node."""
    if not len(snapshot["weight"]):
        return np.full(len(rows), -1, dtype=np.int64)
    clusters: Ints = snapshot["cluster"]
    with ignore_underflow():
        return clusters[nearest(rows, snapshot["weight"], float(np.mean(snapshot["sigma"])))]


def predictor(snapshot: Arrays) -> NearestPoint:
    """`predict` as plain data."""
    sigma = 1.0  # without nodes there is nothing to compare with; a bandwidth has to be above 0
    if len(snapshot["sigma"]):
        sigma = float(np.mean(snapshot["sigma"]))
    return NearestPoint(snapshot["weight"], snapshot["cluster"], sigma)


def view(snapshot: Arrays) -> ClusteringView:
    """View of the nodes, the edges between them, and the clusters, which are the connected
    components."""
    counted: Floats | None = None
    recent: Floats | None = None
    # Rows that a server learns itself are of no client, and are not counted.
    if snapshot["counted"].any():
        counted = np.maximum(snapshot["counted"], 0.0)
        recent = np.maximum(snapshot["recent"], 0.0)
    return ClusteringView.from_nodes(
        snapshot["weight"],
        snapshot["count"],
        snapshot["cluster"],
        node_id=snapshot["node_id"],
        edges=snapshot["edge"],
        centres=snapshot["centre"],
        centre_mass=snapshot["centre_weight"],
        bandwidth=snapshot["sigma"],
        recent=recent,
        counted=counted,
        joins_nodes=True,
    )


@state_type
class CaefcState(NetworkState):
    """What CAEFC has learnt."""

    version: ClassVar[int] = 3

    edge: Annotated[Ints, IntArray("edges", 2)]
    """positions of two nodes, the smaller one first"""
    edge_age: Annotated[Ints, IntArray("edges", least=1)]
    n_deleted_edges: int
    deleted_age_sum: int
    origins: OriginsState | None
    """None where no client's share is bounded"""
    counted: CountedPlacesState

    def check(self) -> None:
        super().check()
        require(self.deleted_age_sum >= self.n_deleted_edges, "deleted edges were younger than 1")


class CAEFC(ArtNetwork):
    """Clusters the nodes that clients contribute, or rows themselves. Options: `FcacOptions`."""

    network = "CAEFC"
    state_type = CaefcState

    def _reset(self) -> None:
        super()._reset()
        self._edges = Edges()
        self._origins = Origins() if self.options.client_share_max < 1 else None
        self._counted = CountedPlaces(self._width or 0, self.options.nodes_max)

    @property
    def n_deleted_edges(self) -> int:
        return self._edges.n_deleted

    @property
    def mean_deleted_age(self) -> float:
        return self._edges.mean_deleted_age

    @property
    def n_edges(self) -> int:
        return len(self._edges)

    def edges(self) -> tuple[Ints, Ints]:
        """(e, 2) positions of connected nodes, the smaller first, ascending; (e,) ages."""
        return self._edges.arrays()

    def clusters(self) -> Ints:
        """(K,) cluster of each node, numbered by first node. A node without edges is one cluster.

        With `client_share_max` below 1 no client alone joins two of them
        (`shoal.algorithms.fcac.edges`)."""
        if self._origins is None:
            return self._edges.components()
        return self._origins.groups(self.edges()[0], self.options.client_share_max)

    def predict(self, rows: ArrayLike) -> Ints:
        """rows (n, d) -> (n,) cluster of the nearest node; -1 before anything is learnt. Raises
        `InvalidData`."""
        table = check_rows(rows, self._width)
        if self._nodes.size == 0:
            return np.full(len(table), -1, dtype=np.int64)
        with ignore_underflow():
            # Nodes without edges compete as well, as in the published program; no row is rejected.
            return self.clusters()[nearest(table, self._nodes.weights, self._nodes.mean_sigma)]

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Learn the nodes of all contributions in one pass, first those with high winning counts,
        then the others.

        The order within both groups is a pure function of `key` (Algorithm 3). A region's
        contribution is learnt as the updates that it consists of are: together with other
        contributions in the same pass, alone one after the other. Raises `InvalidData` before
        anything has changed.
        """
        for contribution in contributions:
            if "won" not in contribution.arrays:
                raise InvalidData(f"contribution of {contribution.client} lacks 'won'")
        parts = [part for contribution in contributions for part in parts_of(contribution)]
        if len(contributions) > 1 or len(parts) <= 1:
            self.absorb_in_order(parts, keyed_permutation(key))
            return
        # Checked as a whole first: an error in a later part would come when earlier ones have been
        # learnt.
        _, count = counted_points(contributions[0], "weight", self._width, "node")
        won_by_nodes(contributions[0], count)
        for number, part in enumerate(parts):
            self.absorb_in_order([part], keyed_permutation(key + number.to_bytes(4, "big")))

    def absorb_in_order(self, contributions: Sequence[Contribution], permute: Permute) -> None:
        """Absorb contributions, with the order within the two groups given by `permute`.

        Those of the paper's experiments are no updates: where one does not say which readings its
        nodes have won, none are counted.
        """
        width = self._width
        weights = []
        counts = []
        counted = []
        for contribution in contributions:
            weight, count = counted_points(contribution, "weight", width, "node")
            if len(weight):
                width = weight.shape[1]
                weights.append(weight)
                counts.append(count)
            if "won" in contribution.arrays:
                counted.append((weight, won_by_nodes(contribution, count)))
        if weights:
            order = np.concatenate(feed_order(counts, permute))
            self._learn(np.concatenate(weights)[order], self._clients_of(contributions, order))
            self._counted.add(counted)

    def _clients_of(self, contributions: Sequence[Contribution], order: Ints) -> Sequence[str]:
        """Who contributed each node in this order; empty unless `client_share_max` asks for it."""
        if self._origins is None:
            return ()
        clients = [
            contribution.client
            for contribution in contributions
            for _ in contribution.arrays["weight"]
        ]
        return [clients[position] for position in order.tolist()]

    def snapshot(self) -> Arrays:
        """`SNAPSHOT` arrays, as copies."""
        nodes = self._nodes
        cluster = self.clusters()
        edge, edge_age = self.edges()
        n_clusters = int(cluster.max()) + 1 if len(cluster) else 0
        centre_weight = np.zeros(n_clusters)
        np.add.at(centre_weight, cluster, nodes.counts)
        centre = np.zeros((n_clusters, nodes.weights.shape[1]))
        # By shares of the count: a sum of weights times counts could overflow.
        np.add.at(centre, cluster, nodes.weights * (nodes.counts / centre_weight[cluster])[:, None])
        return {
            "node_id": nodes.ids.copy(),
            "weight": nodes.weights.copy(),
            "count": nodes.counts.copy(),
            "sigma": nodes.sigmas.copy(),
            "cluster": cluster,
            "edge": edge,
            "edge_age": edge_age,
            "centre": centre,
            "centre_weight": centre_weight,
            **self._counted_in(cluster, n_clusters),
        }

    def _counted_in(self, cluster: Ints, n_clusters: int) -> Arrays:
        """cluster (k,) of each node -> all readings of clients, and the recent ones (c,) each, by
        the cluster of the nearest node."""
        nodes = self._nodes
        counted = np.zeros(n_clusters)
        recent = np.zeros(n_clusters)
        if n_clusters:
            places = self._counted.state()
            with ignore_underflow():
                own = cluster[nearest(places.place, nodes.weights, nodes.mean_sigma)]
            np.add.at(counted, own, places.readings)
            np.add.at(recent, own, places.recent)
        return {"counted": counted, "recent": recent}

    def _create_node(self, row: Floats) -> None:
        super()._create_node(row)
        self._edges.add_node()

    def _learn(self, rows: Floats, clients: Sequence[str] = ()) -> None:
        if self._width is None and len(rows):
            # The first rows make a new network.
            self._width = rows.shape[1]
            self._reset()
        if self._origins is not None:
            self._origins.expect(clients or [""] * len(rows))
        super()._learn(rows)

    def _step(self, row: Floats) -> Step:
        step = super()._step(row)
        if self._origins is not None:
            # A new node is the last one, and isolated nodes are removed only after this.
            learnt_by = step.first if step.case in (2, 3) else self.size - 1
            self._origins.count(learnt_by)
        # Also after an input that made up for a removed node, as in the published program. A single
        # node has no edge by necessity, so it is kept.
        if self.lambda_ is not None and self._counter % self.lambda_ == 0 and self._nodes.size > 1:
            self._remove_isolated()
        return step

    def _run_kernel(
        self,
        compiled: CompiledKernels,
        rows: Floats,
        workspace: Workspace,
        scalars: Scalars,
        bandwidth_factor: float,
    ) -> int:
        edges = self._edges
        ints = scalars.ints
        factors = np.array(
            [bandwidth_factor, self.options.neighbour_factor, self.options.edge_factor]
        )
        winners = np.empty(len(rows), np.int64)
        learnt = 0
        while learnt < len(rows):
            part = rows[learnt : learnt + self._kernel_rows(int(ints[COUNTER]), len(rows) - learnt)]
            ids = self._node_ids(int(ints[SIZE]))
            ints[N_DELETED] = edges.n_deleted
            ints[DELETED_AGE_SUM] = edges.deleted_age_sum
            table = edges.table(self._nodes.capacity)
            nodes = self._nodes.arrays
            loops = compiled.loops
            done = compiled.learn_caefc(
                part, nodes, table, workspace, *scalars, factors, loops, winners
            )
            edges.resized(int(ints[SIZE]))
            edges.n_deleted = int(ints[N_DELETED])
            edges.deleted_age_sum = int(ints[DELETED_AGE_SUM])
            if self._origins is not None:
                self._origins.count_each(winners[:done], ids, self._node_ids(int(ints[SIZE])))
            learnt += done
            # The kernel ends early where the arrays have no room; the caller makes some.
            if done < len(part):
                break
            ints[KEPT] = 1
        return learnt

    def _kernel_rows(self, counter: int, most: int) -> int:
        """How many rows, at most `most`, one call of the kernel may learn. Where origins are
        counted, isolated nodes are removed after the last of them at most."""
        if self._origins is None or self.lambda_ is None:
            return most
        return min(most, self.lambda_ - counter % self.lambda_)

    def _node_ids(self, size: int) -> Ints:
        """Ids of the first `size` nodes, as a copy."""
        *_, ids = self._nodes.arrays
        return ids[:size].copy()

    def _adapt(self, row: Floats, first: int, second: int | None) -> None:
        """Age the winner's edges, connect the second winner, move the neighbours, remove old edges
        (lines 24-37)."""
        edges = self._edges
        nodes = self._nodes
        # Aged before the link, so an edge that is found again has age 1, not 2.
        edges.increment_ages(first)
        if second is not None:
            edges.link(first, second)
            # Taken after the link: the second winner moves too, as in the published program.
            neighbours = np.array(list(edges.ages[first]))
            share = self.options.neighbour_factor / nodes.counts.take(neighbours)
            moved = nodes.weights.take(neighbours, axis=0)
            moved += (row - moved) * share[:, None]
            # `take` gave a copy, so it is written back.
            nodes.weights[neighbours] = moved
        edges.remove_old_edges(first, self.options.edge_factor)

    def _remove_isolated(self) -> None:
        """Remove nodes without edges (lines 38-39). If too few are left, the next inputs become
        nodes directly."""
        connected = self._edges.has_edge()
        if not connected.all():
            self._nodes.keep(connected)
            self._edges.keep(connected)
            if self._origins is not None:
                self._origins.keep(connected)

    def _state(self) -> CaefcState:
        edge, edge_age = self.edges()
        origins = None
        if self._origins is not None:
            origins = self._origins.state()
        return CaefcState(
            **vars(super()._state()),
            edge=edge,
            edge_age=edge_age,
            n_deleted_edges=self._edges.n_deleted,
            deleted_age_sum=self._edges.deleted_age_sum,
            origins=origins,
            counted=self._counted.state(),
        )

    def _restore_from(self, saved: NetworkState) -> None:
        assert isinstance(saved, CaefcState)
        super()._restore_from(saved)
        k = self._nodes.size
        require(saved.counted.place.shape[1] == (self._width or 0), "counted is of other features")
        self._counted.restore(saved.counted)
        self._edges.n_deleted = saved.n_deleted_edges
        self._edges.deleted_age_sum = saved.deleted_age_sum
        if self._origins is not None:
            if saved.origins is None:
                raise InvalidState("saved state lacks the origins of its nodes")
            self._origins = Origins.restored(saved.origins, k)
        for _ in range(k):
            self._edges.add_node()
        for (a, b), age in zip(saved.edge.tolist(), saved.edge_age.tolist(), strict=True):
            # A kernel uses these as positions without a look, so a wrong one would reach beyond
            # its arrays.
            require(
                a < b < k and b not in self._edges.ages[a],
                "an edge has no such node, or is there twice",
            )
            self._edges.ages[a][b] = self._edges.ages[b][a] = age
