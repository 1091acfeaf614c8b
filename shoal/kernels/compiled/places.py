"""Where the compiled kernels find the numbers that they share with the networks: places in small arrays."""

from __future__ import annotations

SIZE, COUNTER, SATURATED, N_DELETED, DELETED_AGE_SUM, KEPT = range(6)
"""in `whole`: nodes; inputs learnt; inputs that found the network full; edges deleted, and the sum of their ages; 1
where the workspace holds these very nodes, from the chunk before"""
LAST_SIGMA, MEAN_SIGMA, VIGILANCE, MARGIN, FAR, FAR_AT_ALL = range(6)
"""in `real`: the bandwidth computed last; the mean bandwidth, which similarities are computed with; the vigilance; what
rounding can take from a bound of the screen, -1 without a screen; the largest |coordinate| relative to the origin of
the screen, and at all"""
N_ACTIVE, NODES_MAX = range(2)
"""in `limits`: how many recent nodes give a bandwidth; the largest number of nodes, -1 for none"""
BANDWIDTH, NEIGHBOUR, EDGE = range(3)
"""in `factors`: of a bandwidth; learning rate of the second winner (CA+) or of neighbours (CAEFC); of old edges"""
