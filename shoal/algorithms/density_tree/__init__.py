"""density_tree: clusters from private counts of readings on the axes of a public tree of cuts."""

from shoal.algorithms.density_tree.options import DensityTreeOptions
from shoal.algorithms.density_tree.server import DensityTreeServer

__all__ = ["DensityTreeOptions", "DensityTreeServer"]
