"""Learning chunks of rows with a compiled kernel, which keeps a workspace from one chunk to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shoal.algorithms.fcac.nodes import Nodes
from shoal.kernels.distance import Floats
from shoal.kernels.scalars import COUNTER, LAST_SIGMA, MEAN_SIGMA, SATURATED, SIZE, VIGILANCE, Scalars
from shoal.kernels.workspace import Workspace

Kernel = Callable[[Workspace, Scalars], int]
"""learns rows up to one that needs more room than the arrays have, and returns how many; it changes the nodes, the
workspace and the scalars"""


class Progress(NamedTuple):
    """The numbers of a network that learning changes, besides its nodes and edges."""

    counter: int
    """inputs learnt"""
    saturated: int
    """inputs that did not become a node only because the network was full"""
    last_sigma: float
    """the bandwidth computed last"""
    vigilance: float


class CompiledLearning:
    """The workspace of one network's kernel. What it holds follows from the nodes: it is no part of a state."""

    def __init__(self) -> None:
        self._workspace = Workspace.of(0, 0)
        self._counter = 0
        """inputs learnt when the workspace held the nodes"""

    def holds(self, counter: int) -> bool:
        """Whether the workspace holds the nodes of a network that has learnt so many inputs: nodes change only when an
        input is learnt, so it does if there were as many when the kernel left it."""
        return self._counter == counter

    def learn(
        self, rows: Floats, nodes: Nodes, progress: Progress, n_active: int, nodes_max: int | None, kernel: Kernel
    ) -> tuple[int, Progress]:
        """Learn rows (n, d) up to one that the kernel leaves to NumPy's form. Returns how many, and the progress."""
        kept = self.holds(progress.counter)
        if not self._workspace.fits(nodes.capacity):
            self._workspace, kept = Workspace.of(nodes.capacity, rows.shape[1]), False
        scalars = Scalars(
            np.array([nodes.size, progress.counter, progress.saturated, 0, 0, kept]),
            np.array([progress.last_sigma, nodes.mean_sigma, progress.vigilance, 0.0, 0.0, 0.0]),
            np.array([n_active, nodes_max or -1]),
        )
        learnt = kernel(self._workspace, scalars)
        ints, floats = scalars.ints.tolist(), scalars.floats.tolist()
        self._counter = ints[COUNTER]
        nodes.resized(ints[SIZE], floats[MEAN_SIGMA])
        return learnt, Progress(ints[COUNTER], ints[SATURATED], floats[LAST_SIGMA], floats[VIGILANCE])
