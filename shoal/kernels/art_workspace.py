"""The numbers and work arrays that CA+ and CAEFC share with their compiled kernels.

A kernel reads and changes the numbers, which stand in small arrays; the networks give them and take
them back by the names of their positions. The workspace holds what is kept beside the nodes from
one chunk of rows to the next.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import numpy as np

from shoal.kernels.arrays import Floats, Ints, Singles

SIZE, COUNTER, SATURATED, N_DELETED, DELETED_AGE_SUM, KEPT = range(6)
"""positions in `ints`: nodes; inputs learnt; inputs that found the network full; edges deleted, and
the sum of their ages; 1 where the workspace holds these very nodes, from the chunk before"""
LAST_SIGMA, MEAN_SIGMA, VIGILANCE, MARGIN, FAR, FAR_AT_ALL = range(6)
"""positions in `floats`: the bandwidth computed last; the mean bandwidth, which similarities are
computed with; the vigilance; what rounding can take from a bound of the screen, -1 without a
screen; the largest |coordinate| relative to the origin of the screen, and at all"""
N_ACTIVE, NODES_MAX = range(2)
"""positions in `limits`: how many recent nodes give a bandwidth; the largest number of nodes, -1
for none"""
BANDWIDTH, NEIGHBOUR, EDGE = range(3)
"""positions in `factors`: factor of a bandwidth; learning rate of the second winner (CA+) or of
neighbours (CAEFC); factor of the age of old edges"""


class Scalars(NamedTuple):
    """The numbers of one network for one chunk of rows."""

    ints: Ints
    """(6,) `SIZE` to `KEPT`"""
    floats: Floats
    """(6,) `LAST_SIGMA` to `FAR_AT_ALL`; a kernel sets the last three by itself"""
    limits: Ints
    """(2,) `N_ACTIVE` and `NODES_MAX`, which a kernel does not change"""


BLOCK: Final = 16
"""nodes are compared with a row in whole blocks of 32-bit floats: they fill the vectors of the
processor"""
LINE: Final = 4 * BLOCK
"""bytes of a block, and of a line of the processor's cache"""
ORIGIN, TERMS = range(2)
"""rows of `features`: the origin of the screen; the terms of a sum over features"""
NEWER, OLDER, FOUND = range(3)
"""rows of `lists`: the next node by recency in both directions; nodes that are compared in full"""


class Workspace(NamedTuple):
    """Arrays for `capacity` nodes of d features. What they hold follows from the nodes: it is no
    part of a state."""

    columns: Singles
    """(blocks, d, 16) the weights of sixteen nodes side by side, less the origin"""
    bounds: Singles
    """(16 blocks,) an upper bound of the sum of each node"""
    point: Singles
    """(d,) a row less the origin"""
    features: Floats
    """(2, d)"""
    lists: Ints
    """(3, capacity + 1)"""

    @classmethod
    def of(cls, capacity: int, d: int) -> Self:
        """A workspace without nodes."""
        blocks = -(-capacity // BLOCK)
        columns = _aligned(blocks * d * BLOCK).reshape(blocks, d, BLOCK)
        bounds = _aligned(blocks * BLOCK)
        return cls(
            columns,
            bounds,
            np.zeros(d, np.float32),
            np.zeros((2, d)),
            np.zeros((3, capacity + 1), np.int64),
        )

    def fits(self, capacity: int) -> bool:
        """Whether it has room for this number of nodes, no more and no fewer."""
        return len(self.lists[0]) == capacity + 1


def _aligned(n: int) -> Singles:
    """Zeros (n,) that begin with a line of the cache, so that no block is in two lines."""
    room = np.zeros(n + BLOCK, np.float32)
    first = -room.ctypes.data % LINE // room.itemsize
    return room[first : first + n]
