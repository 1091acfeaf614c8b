"""CA+, the client half: CAEFC without edges, so that the nodes cover everything the client has seen (paper, 4.2)."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.fcac.art_network import ArtNetwork
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, State
from shoal.kernels.correntropy import Floats


class CAPlus(ArtNetwork):
    """Learns private rows into nodes and contributes the nodes. Options: `FcacOptions`."""

    network = "CA+"

    def _begin_empty(self) -> None:
        super()._begin_empty()
        self._said = 0

    def _adapt(self, row: Floats, first: int, second: int | None) -> None:
        """The second winner moves a little, untouched and uncounted (eq. 31)."""
        if second is not None:
            neighbour = self._nodes.weights[second]
            neighbour += (row - neighbour) * (self.options.second_winner_factor / self._nodes.counts[second])

    def contribute(self) -> Arrays:
        """`UPDATE` arrays: the nodes created or won since the last call (option `contribute`: all of them), by
        winning count from the highest, ties by node id. Nothing before the initial rows are in."""
        nodes = self._nodes
        since = self._said if self.options.contribute == "changed" else 0
        self._said = self._counter
        order = np.argsort(-nodes.counts, kind="stable")
        order = order[nodes.stamps[order] > since]
        return {"weight": nodes.weights[order], "count": nodes.counts[order]}

    def reset_published(self) -> None:
        """The next contribution is of all nodes: who listens now has heard none of them."""
        self._said = 0

    def state(self) -> State:
        return super().state() | {"said": self._said}

    def _take(self, saved: StateReader) -> None:
        super()._take(saved)
        self._said = saved.whole("said")
        saved.require(self._said <= self._counter, "said counts inputs not yet learnt")
