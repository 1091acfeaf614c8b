"""cluster_tree: streaming clustering with a steady number of clusters, and identities that last.

Each client sketches its readings as a few weighted points. The server keeps a bounded number of weighted points, called
cells, and joins them along HDBSCAN's tree of mutual reachability. It refuses the joins whose two sides are
significantly denser than the place where they meet: these sides are clusters of their own.
"""

from shoal.algorithms.cluster_tree.client import ClusterTreeClient
from shoal.algorithms.cluster_tree.options import ClusterTreeOptions
from shoal.algorithms.cluster_tree.server import ClusterTreeServer

__all__ = ["ClusterTreeClient", "ClusterTreeOptions", "ClusterTreeServer"]
