"""The client half of density_tree: counts windows of readings under the newest terms it knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.density_tree.terms import CountedWindow, Terms
from shoal.algorithms.streaming import Arrays, Rows


class DensityTreeCounter:
    """Counts windows. It keeps nothing of a reading: all it has are the terms, which are public."""

    def __init__(self, dimensions: int, **options: Any) -> None:
        """Before the first snapshot the terms are those of a tree that has learnt nothing. Raises `SettingsError`."""
        self._terms = Terms.from_arrays(DensityTreeServer(dimensions, **options).snapshot())

    @property
    def terms_digest(self) -> bytes:
        """32 bytes that identify the terms under which the next window is counted."""
        return self._terms.digest

    def adopt(self, snapshot: Arrays) -> None:
        """Count under the terms of this snapshot from now on."""
        self._terms = Terms.from_arrays(snapshot)

    def count(self, rows: Rows, valid: NDArray[np.bool_], client: bytes, number: int) -> CountedWindow:
        """Count a window, see `Terms.count`."""
        return self._terms.count(rows, valid, client, number)
