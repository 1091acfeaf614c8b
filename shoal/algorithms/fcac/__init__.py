"""FCAC: federated clustering via adaptive resonance theory (Masuyama et al., 2023).

Each client learns its rows into nodes with CA+ and contributes the nodes; the server learns the nodes of all
clients with CAEFC, whose connected nodes are the clusters.
"""

from shoal.algorithms.fcac.ca_plus import CAPlus
from shoal.algorithms.fcac.caefc import CAEFC
from shoal.algorithms.fcac.options import FcacOptions

__all__ = ["CAEFC", "CAPlus", "FcacOptions"]
