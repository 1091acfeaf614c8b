"""What every mechanism keeps: readings in their units go in, rows in unit coordinates come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.privacy.keyed import Places


class Reach(NamedTuple):
    """Unit coordinates (d,) between which every honest row lies, hence every mean of rows: a node, a centre."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class Released:
    """What `privatise` gives back for n readings."""

    rows: NDArray[np.float64]
    """(k, d) in unit coordinates: what models learn from"""
    kept: NDArray[np.bool_]
    """(n,) which readings the k rows stand for, in order; the others were withheld"""
    clipped: int
    """readings moved into their bounds. Made from raw readings: it must not leave the client"""


class Mechanism(Protocol):
    """Makes readings private. Splitting the same readings into other calls changes no byte of the rows."""

    @property
    def statement(self) -> dict[str, Any]:
        """What is promised, in plain values; travels in every message."""
        ...

    @property
    def reach(self) -> Reach:
        """Where rows can lie; public, a function of the contract alone."""
        ...

    def privatise(self, readings: NDArray[np.float64], places: Places) -> Released:
        """readings (n, d) in their units with their places (n, 2) in the readings log. Raises `InvalidData`."""
        ...

    def state(self) -> dict[str, Any]:
        """All that must outlive the process, as plain values and arrays, with an int "version"."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`, also if key, client, source or terms are others."""
        ...
