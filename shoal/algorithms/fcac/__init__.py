"""FCAC: federated clustering via adaptive resonance theory (Masuyama et al., 2023).

Each client learns prototypes of its rows, called nodes, with CA+ and publishes them. The server learns the nodes of
all clients with CAEFC, which connects nodes by edges; each connected component is a cluster.
"""

from shoal.algorithms.fcac.ca_plus import CAPlus
from shoal.algorithms.fcac.caefc import CAEFC
from shoal.algorithms.fcac.options import FcacOptions

__all__ = ["CAEFC", "CAPlus", "FcacOptions"]
