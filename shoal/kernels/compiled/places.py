"""Where the compiled kernels find the numbers that they share with the networks: places in small arrays."""

from __future__ import annotations

SIZE, COUNTER, SATURATED, N_DELETED, DELETED_AGE_SUM = range(5)
"""in `whole`: nodes; inputs learnt; inputs that found the network full; edges deleted, and the sum of their ages"""
LAST_SIGMA, MEAN_SIGMA, VIGILANCE = range(3)
"""in `real`: the bandwidth computed last; the mean bandwidth, which similarities are computed with; the vigilance"""
N_ACTIVE, NODES_MAX = range(2)
"""in `limits`: how many recent nodes give a bandwidth; the largest number of nodes, -1 for none"""
BANDWIDTH, NEIGHBOUR, EDGE = range(3)
"""in `factors`: of a bandwidth; learning rate of the second winner (CA+) or of neighbours (CAEFC); of old edges"""
