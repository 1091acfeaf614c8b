"""The edges of CAEFC: which nodes are connected, and the age of each edge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.graph import age_threshold, components

NEIGHBOURS_MIN = 8
"""least width of a table"""
EdgeTable = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""degrees (capacity,); for each node its neighbours (capacity, width), and the ages (capacity, width) of the edges to
them, of which the first `degree` count, in any order"""


class Edges:
    """Edges between node positions, each with an age; and the number and summed age of all that were deleted.

    `ages[node]` maps each neighbour of a node to the age of the edge; nodes have few edges. Compiled kernels work on a
    table instead; each form is made from the other when it is asked for. The sum of deleted ages is an integer, so it
    does not depend on the order of deletion.
    """

    def __init__(self) -> None:
        self._ages: list[dict[int, int]] = []
        self._table: EdgeTable | None = None
        """where it is set, it is what counts, for the first `_size` nodes"""
        self._size = 0
        self.n_deleted = 0
        self.deleted_age_sum = 0

    @property
    def ages(self) -> list[dict[int, int]]:
        """For each node, the age of the edge to each neighbour. The table no longer counts, because this may change."""
        if self._table is not None:
            self._ages = [
                dict(zip(neighbours[:degree].tolist(), ages[:degree].tolist(), strict=True))
                for degree, neighbours, ages in zip(*(part[: self._size] for part in self._table), strict=True)
            ]
            self._table = None
        return self._ages

    def table(self, capacity: int) -> EdgeTable:
        """The edges as arrays with room for `capacity` nodes, for a kernel that changes them; `resized` must follow."""
        if self._table is None or len(self._table[0]) != capacity:
            tables = self.ages
            width = max(NEIGHBOURS_MIN, 2 * max(map(len, tables), default=0))
            self._size = len(tables)
            degrees = np.zeros(capacity, np.int64)
            neighbours, ages = np.zeros((capacity, width), np.int64), np.zeros((capacity, width), np.int64)
            for node, table in enumerate(tables):
                degrees[node] = len(table)
                neighbours[node, : len(table)] = list(table)
                ages[node, : len(table)] = list(table.values())
            self._table = degrees, neighbours, ages
        return self._table

    def resized(self, size: int) -> None:
        """A kernel has changed the table, and has left `size` nodes."""
        self._size = size

    @property
    def mean_deleted_age(self) -> float:
        """0 while no edge was deleted."""
        return self.deleted_age_sum / self.n_deleted if self.n_deleted else 0.0

    def __len__(self) -> int:
        if self._table is not None:
            return int(self._table[0][: self._size].sum()) // 2
        return sum(map(len, self._ages)) // 2

    def add_node(self) -> None:
        """Make room for one more node, behind the others and without edges."""
        if self._table is not None and self._size < len(self._table[0]):
            self._table[0][self._size] = 0
            self._size += 1
        else:
            self.ages.append({})

    def increment_ages(self, node: int) -> None:
        """Increment the ages of all edges of `node` by 1 (eq. 25)."""
        table = self.ages[node]
        for other in table:
            table[other] += 1
            self.ages[other][node] += 1

    def link(self, a: int, b: int) -> None:
        """Connect two nodes by an edge of age 1, or reset the age of their edge to 1 (eq. 26)."""
        self.ages[a][b] = self.ages[b][a] = 1

    def remove_old_edges(self, node: int, edge_factor: float) -> None:
        """Delete the edges of `node` that are too old compared with its others and all deleted ones (eq. 28, 29)."""
        table = self.ages[node]
        threshold = age_threshold(list(table.values()), edge_factor)
        if threshold is None:
            return
        share = self.n_deleted / (self.n_deleted + len(table))
        age_max = self.mean_deleted_age * share + threshold * (1 - share)
        for other in [other for other, age in table.items() if age > age_max]:
            self.n_deleted += 1
            self.deleted_age_sum += table.pop(other)
            del self.ages[other][node]

    def has_edge(self) -> NDArray[np.bool_]:
        """(k,) whether each node has an edge."""
        return np.array([bool(table) for table in self.ages], dtype=np.bool_)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Renumber nodes when those without edges are removed; `mask` (k,) is false for these."""
        position = (np.cumsum(mask) - 1).tolist()
        kept = [table for table, stays in zip(self.ages, mask.tolist(), strict=True) if stays]
        self._ages = [{position[other]: age for other, age in table.items()} for table in kept]

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(e, 2) positions, the smaller first, in ascending order; (e,) ages."""
        if self._table is not None:
            degrees, neighbours, ages = (part[: self._size] for part in self._table)
            there = np.arange(neighbours.shape[1]) < degrees[:, None]
            edges = np.stack([np.repeat(np.arange(self._size), degrees), neighbours[there], ages[there]], axis=1)
            edges = edges[edges[:, 0] < edges[:, 1]]
            edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
            return edges[:, :2].copy(), edges[:, 2].copy()
        listed = sorted((a, b, age) for a, table in enumerate(self._ages) for b, age in table.items() if a < b)
        table = np.array(listed, dtype=np.int64).reshape(-1, 3)
        return table[:, :2].copy(), table[:, 2].copy()

    def components(self) -> NDArray[np.int64]:
        """(k,) component of each node, numbered by first node; a node without edges is one component."""
        return components(len(self._ages) if self._table is None else self._size, self.arrays()[0])
