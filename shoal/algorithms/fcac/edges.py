"""The edges of CAEFC: which nodes are connected, and the age of each edge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.graph import age_threshold, components


class Edges:
    """Edges between node positions, each with an age; and the number and summed age of all that were deleted.

    `ages[node]` maps each neighbour of a node to the age of the edge; nodes have few edges. The sum of deleted ages is
    an integer, so it does not depend on the order of deletion.
    """

    def __init__(self) -> None:
        self.ages: list[dict[int, int]] = []
        self.n_deleted = 0
        self.deleted_age_sum = 0

    @property
    def mean_deleted_age(self) -> float:
        """0 while no edge was deleted."""
        return self.deleted_age_sum / self.n_deleted if self.n_deleted else 0.0

    def __len__(self) -> int:
        return sum(map(len, self.ages)) // 2

    def add_node(self) -> None:
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
        self.ages = [{position[other]: age for other, age in table.items()} for table in kept]

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(e, 2) positions, the smaller first, in ascending order; (e,) ages."""
        listed = sorted((a, b, age) for a, table in enumerate(self.ages) for b, age in table.items() if a < b)
        table = np.array(listed, dtype=np.int64).reshape(-1, 3)
        return table[:, :2].copy(), table[:, 2].copy()

    def components(self) -> NDArray[np.int64]:
        """(k,) component of each node, numbered by first node; a node without edges is one component."""
        return components(len(self.ages), self.arrays()[0])
