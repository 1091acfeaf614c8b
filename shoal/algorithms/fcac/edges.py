"""The edges of CAEFC: who is joined to whom, and how old each edge is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.graph import age_threshold, components


class Edges:
    """Edges between node positions, each with an age; and the number and summed age of all that were deleted.

    A node has a handful of edges, so each keeps a small table neighbour -> age. The sum of deleted ages is a
    whole number: it does not depend on the order of deletion.
    """

    def __init__(self) -> None:
        self.tables: list[dict[int, int]] = []
        self.n_deleted = 0
        self.deleted_age_sum = 0

    @property
    def mean_deleted_age(self) -> float:
        """0 while none was deleted."""
        return self.deleted_age_sum / self.n_deleted if self.n_deleted else 0.0

    def __len__(self) -> int:
        return sum(map(len, self.tables)) // 2

    def add_node(self) -> None:
        self.tables.append({})

    def grow_older(self, node: int) -> None:
        """All edges of `node` age by 1 (eq. 25)."""
        table = self.tables[node]
        for other in table:
            table[other] += 1
            self.tables[other][node] += 1

    def link(self, a: int, b: int) -> None:
        """A new edge, or an old one made young again: age 1 (eq. 26)."""
        self.tables[a][b] = self.tables[b][a] = 1

    def prune(self, node: int, edge_factor: float) -> None:
        """Delete the edges of `node` that are too old for its others and for all deleted ones (eq. 28, 29)."""
        table = self.tables[node]
        threshold = age_threshold(list(table.values()), edge_factor)
        if threshold is None:
            return
        share = self.n_deleted / (self.n_deleted + len(table))
        age_max = self.mean_deleted_age * share + threshold * (1 - share)
        for other in [other for other, age in table.items() if age > age_max]:
            self.n_deleted += 1
            self.deleted_age_sum += table.pop(other)
            del self.tables[other][node]

    def joined(self) -> NDArray[np.bool_]:
        """(k,) whether each node has an edge."""
        return np.array([bool(table) for table in self.tables], dtype=np.bool_)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Renumber after nodes without edges were removed: `mask` (k,) is false for those."""
        position = (np.cumsum(mask) - 1).tolist()
        kept = [table for table, stays in zip(self.tables, mask.tolist(), strict=True) if stays]
        self.tables = [{position[other]: age for other, age in table.items()} for table in kept]

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(e, 2) positions, the smaller first, in ascending order; (e,) ages."""
        listed = sorted((a, b, age) for a, table in enumerate(self.tables) for b, age in table.items() if a < b)
        table = np.array(listed, dtype=np.int64).reshape(-1, 3)
        return table[:, :2].copy(), table[:, 2].copy()

    def components(self) -> NDArray[np.int64]:
        """(k,) component of each node, numbered by first node; a node without edges is one of its own."""
        return components(len(self.tables), self.arrays()[0])
