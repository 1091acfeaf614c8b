"""CAEFC, the server half: nodes joined by edges; the connected ones are a cluster (paper, 4.1 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.algorithms.fcac.art_network import ArtNetwork
from shoal.algorithms.fcac.edges import Edges
from shoal.algorithms.fcac.feed_order import Permute, feed_order, keyed
from shoal.algorithms.rows import checked_rows
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, Contribution, State
from shoal.errors import InvalidData
from shoal.kernels.correntropy import Floats, ignore_underflow, nearest


class CAEFC(ArtNetwork):
    """Absorbs the nodes of clients, or learns rows itself, into clusters. Options: `FcacOptions`."""

    network = "CAEFC"

    def _begin_empty(self) -> None:
        super()._begin_empty()
        self._edges = Edges()

    @property
    def n_deleted_edges(self) -> int:
        return self._edges.n_deleted

    @property
    def mean_deleted_age(self) -> float:
        return self._edges.mean_deleted_age

    @property
    def n_edges(self) -> int:
        return len(self._edges)

    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(e, 2) positions of joined nodes, the smaller first, ascending; (e,) ages."""
        return self._edges.arrays()

    def clusters(self) -> NDArray[np.int64]:
        """(K,) cluster of each node, numbered by first node. A node without edges is a cluster of its own."""
        return self._edges.components()

    def predict(self, rows: ArrayLike) -> NDArray[np.int64]:
        """rows (n, d) -> (n,) cluster of the nearest node; -1 before anything was learnt. Raises `InvalidData`."""
        table = checked_rows(rows, self._width)
        if self._nodes.size == 0:
            return np.full(len(table), -1, dtype=np.int64)
        with ignore_underflow():
            return self.clusters()[nearest(table, self._nodes.weights, self._nodes.mean_sigma)]

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Learn the nodes of all contributions in one pass: those that won often first, each group in an order
        drawn from `key` (Algorithm 3). Raises `InvalidData` before anything has changed."""
        self.absorb_in_order(contributions, keyed(key))

    def absorb_in_order(self, contributions: Sequence[Contribution], permute: Permute) -> None:
        """As `absorb`, with another source of permutations."""
        width = self._width
        weights, counts = [], []
        for contribution in contributions:
            weight, count = _nodes_of(contribution, width)
            if len(weight):
                width = weight.shape[1]
                weights.append(weight)
                counts.append(count)
        if weights:
            self._learn(np.concatenate(weights)[np.concatenate(feed_order(counts, permute))])

    def snapshot(self) -> Arrays:
        """`SNAPSHOT` arrays, as copies."""
        nodes, cluster = self._nodes, self.clusters()
        edge, edge_age = self.edges()
        n_clusters = int(cluster.max()) + 1 if len(cluster) else 0
        centre_weight = np.zeros(n_clusters)
        np.add.at(centre_weight, cluster, nodes.counts)
        centre = np.zeros((n_clusters, nodes.weights.shape[1]))
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
        }

    def _create(self, row: Floats) -> None:
        super()._create(row)
        self._edges.add_node()

    def _step(self, row: Floats) -> None:
        super()._step(row)
        if self.lambda_ is not None and self._counter % self.lambda_ == 0 and self._nodes.size > 1:
            self._remove_isolated()

    def _adapt(self, row: Floats, first: int, second: int | None) -> None:
        """Lines 24-37: edges of the winner age, the second winner is joined to it, its neighbours follow, edges go."""
        edges, nodes = self._edges, self._nodes
        edges.grow_older(first)
        if second is not None:
            edges.link(first, second)
            neighbours = list(edges.tables[first])
            moved = nodes.weights[neighbours]
            moved += (row - moved) * (self.options.neighbour_factor / nodes.counts[neighbours])[:, None]
            nodes.weights[neighbours] = moved
        edges.prune(first, self.options.edge_factor)

    def _remove_isolated(self) -> None:
        """Line 38-39. Everything else stays as it is; too few nodes are filled up by the next inputs."""
        joined = self._edges.joined()
        if not joined.all():
            self._nodes.keep(joined)
            self._edges.keep(joined)

    def state(self) -> State:
        edge, edge_age = self.edges()
        return super().state() | {
            "edge": edge,
            "edge_age": edge_age,
            "n_deleted_edges": self._edges.n_deleted,
            "deleted_age_sum": self._edges.deleted_age_sum,
        }

    def _take(self, saved: StateReader) -> None:
        super()._take(saved)
        k = self._nodes.size
        edge = saved.wholes("edge", (None, 2))
        edge_age = saved.wholes("edge_age", (len(edge),), least=1)
        self._edges.n_deleted = saved.whole("n_deleted_edges")
        self._edges.deleted_age_sum = saved.whole("deleted_age_sum", least=self._edges.n_deleted)
        for _ in range(k):
            self._edges.add_node()
        for (a, b), age in zip(edge.tolist(), edge_age.tolist(), strict=True):
            saved.require(a < b < k and b not in self._edges.tables[a], "an edge joins what is not there, or twice")
            self._edges.tables[a][b] = self._edges.tables[b][a] = age


def _nodes_of(contribution: Contribution, width: int | None) -> tuple[Floats, NDArray[np.int64]]:
    """The arrays of one contribution, checked once more. Raises `InvalidData`, naming the client."""
    try:
        weight = checked_rows(contribution.arrays["weight"], width)
        count = np.asarray(contribution.arrays["count"])
    except KeyError as missing:
        raise InvalidData(f"contribution of {contribution.client} lacks {missing}") from None
    except InvalidData as rejected:
        raise InvalidData(f"contribution of {contribution.client}: {rejected}") from None
    if count.shape != (len(weight),) or count.dtype.kind not in "iu" or not (count >= 1).all():
        raise InvalidData(f"contribution of {contribution.client}: count must be one whole number from 1 per node")
    return weight, count.astype(np.int64)
