"""The numbers that CA+ and CAEFC share with their compiled kernels, in small arrays, and the position of each.

A kernel reads and changes them; the networks give them and take them back by the same names.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE, COUNTER, SATURATED, N_DELETED, DELETED_AGE_SUM, KEPT = range(6)
"""in `ints`: nodes; inputs learnt; inputs that found the network full; edges deleted, and the sum of their ages; 1
where the workspace holds these very nodes, from the chunk before"""
LAST_SIGMA, MEAN_SIGMA, VIGILANCE, MARGIN, FAR, FAR_AT_ALL = range(6)
"""in `floats`: the bandwidth computed last; the mean bandwidth, which similarities are computed with; the vigilance;
what rounding can take from a bound of the screen, -1 without a screen; the largest |coordinate| relative to the origin
of the screen, and at all"""
N_ACTIVE, NODES_MAX = range(2)
"""in `limits`: how many recent nodes give a bandwidth; the largest number of nodes, -1 for none"""
BANDWIDTH, NEIGHBOUR, EDGE = range(3)
"""in `factors`: of a bandwidth; learning rate of the second winner (CA+) or of neighbours (CAEFC); of old edges"""


class Scalars(NamedTuple):
    """The numbers of one network for one chunk of rows."""

    ints: NDArray[np.int64]
    """(6,) `SIZE` to `KEPT`"""
    floats: NDArray[np.float64]
    """(6,) `LAST_SIGMA` to `FAR_AT_ALL`; a kernel sets the last three by itself"""
    limits: NDArray[np.int64]
    """(2,) `N_ACTIVE` and `NODES_MAX`, which a kernel does not change"""
