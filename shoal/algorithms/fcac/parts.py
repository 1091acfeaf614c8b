"""The updates of clients within one update of a region."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shoal.algorithms.streaming import Arrays, Contribution
from shoal.errors import InvalidData


def check_parts(arrays: Arrays) -> None:
    """Raises `InvalidData` unless the parts of a region's update have as many nodes together as it has."""
    # As floats, since a sum of whole numbers could overflow.
    if float(arrays["part"].sum(dtype=np.float64)) != len(arrays["count"]):
        raise InvalidData("its claims do not agree: the nodes of its parts are not as many as its nodes")


def parts_of(contribution: Contribution) -> Iterator[Contribution]:
    """The updates that a contribution consists of, in their order; a client's is one. Raises `InvalidData`."""
    arrays = contribution.arrays
    if "part" not in arrays:
        yield contribution
        return
    check_parts(arrays)
    ends = np.cumsum(arrays["part"])
    for first, end in zip(ends - arrays["part"], ends, strict=True):
        part = {name: arrays[name][first:end] for name in ("weight", "count")}
        yield replace(contribution, arrays=part)
