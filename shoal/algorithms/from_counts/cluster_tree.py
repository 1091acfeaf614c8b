"""cluster_tree_from_counts: steady clusters of any shape, from private counts of one to three features."""

from __future__ import annotations

from typing import Final

from shoal.algorithms.cluster_tree.algorithm import CLUSTER_TREE
from shoal.algorithms.from_counts.algorithm import from_counts

CLUSTER_TREE_FROM_COUNTS: Final = from_counts(CLUSTER_TREE, "point", ["points_max"])
