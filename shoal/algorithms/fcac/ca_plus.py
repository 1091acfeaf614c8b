"""CA+, the client half: CAEFC without edges, so that nodes are never removed and cover all rows learnt (paper, 4.2)."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.fcac.art_network import ArtNetwork
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, State
from shoal.kernels.distance import Floats
from shoal.kernels.forms import CompiledKernels
from shoal.kernels.scalars import Scalars
from shoal.kernels.workspace import Workspace


class CAPlus(ArtNetwork):
    """Learns nodes from noisy rows, and contributes the nodes. Options: `FcacOptions`."""

    network = "CA+"

    def _reset(self) -> None:
        super()._reset()
        self._published_counter = 0

    def _adapt(self, row: Floats, first: int, second: int | None) -> None:
        """Move the second winner a little; its count and its recency do not change (eq. 31)."""
        if second is not None:
            neighbour = self._nodes.weights[second]
            neighbour += (row - neighbour) * (self.options.second_winner_factor / self._nodes.counts[second])

    def _run_kernel(
        self, compiled: CompiledKernels, rows: Floats, workspace: Workspace, scalars: Scalars, bandwidth_factor: float
    ) -> int:
        factors = np.array([bandwidth_factor, self.options.second_winner_factor])
        return compiled.learn_ca_plus(rows, self._nodes.arrays, workspace, *scalars, factors, compiled.loops)

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays of the nodes created or won since the last call, or of all (option `contribute`).

        By winning count from the highest, ties by node id. Empty before the initial rows are learnt.
        """
        nodes = self._nodes
        since = self._published_counter if self.options.contribute == "changed" else 0
        self._published_counter = self._counter
        order = np.argsort(-nodes.counts, kind="stable")
        order = order[nodes.stamps[order] > since]
        return {"weight": nodes.weights[order], "count": nodes.counts[order]}

    def reset_published(self) -> None:
        """Make the next contribution one of all nodes, for a server that has none of them."""
        self._published_counter = 0

    def state(self) -> State:
        return super().state() | {"published_counter": self._published_counter}

    def _restore_from(self, saved: StateReader) -> None:
        super()._restore_from(saved)
        # Nodes are never removed; compiled, an input that must become a node for want of nodes is not looked for.
        saved.check(self.size >= (self.n_active or 0), "fewer nodes than n_active")
        self._published_counter = saved.read_int("published_counter")
        saved.check(self._published_counter <= self._counter, "published_counter counts inputs not yet learnt")
