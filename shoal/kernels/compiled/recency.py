"""The nodes in the order of their stamps, as a circular list: finding the most recent ones needs no sorting.

`newer` and `older` (capacity + 1,), of the workspace, name the next node in either direction; their last place stands
for both ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit
def order_by_stamp(stamps: Any, size: Any, newer: Any, older: Any) -> None:
    """Make the list anew from the stamps."""
    end = len(stamps)
    newer[end] = older[end] = end
    for k in np.argsort(stamps[:size]):
        put_first(k, newer, older)


@njit(forceinline=True)
def put_first(k: Any, newer: Any, older: Any) -> None:
    """Make a node that is not in the list the most recent one."""
    end = len(newer) - 1
    newer[k], older[k] = end, older[end]
    newer[older[end]] = k
    older[end] = k


@njit(forceinline=True)
def make_first(k: Any, newer: Any, older: Any) -> None:
    """Make a node of the list the most recent one."""
    older[newer[k]] = older[k]
    newer[older[k]] = newer[k]
    put_first(k, newer, older)
