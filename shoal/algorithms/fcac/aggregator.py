"""What a region of FCAC contributes: the nodes of its own model that have changed, as clients contribute theirs."""

from __future__ import annotations

from typing import Final

from shoal.algorithms.fcac.caefc import CAEFC
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, ServerHalf, State

STATE_VERSION: Final = 1


class FcacAggregator:
    """Keeps up to which input the region's CAEFC has been contributed. Edges stay in the region."""

    is_full = False

    def __init__(self) -> None:
        self._contributed = 0

    def add(self, arrays: Arrays, readings: int) -> None:
        """Nothing: the region's own model learns the nodes."""

    def contribute(self, half: ServerHalf) -> Arrays:
        """The `UPDATE` arrays of the nodes that the region's CAEFC has created or moved since the last call."""
        assert isinstance(half, CAEFC)
        changed = half.nodes_since(self._contributed)
        self._contributed = half.inputs
        return changed

    def state(self) -> State:
        """Everything that further contributions depend on."""
        return {"version": STATE_VERSION, "half": "FCAC aggregator", "contributed": self._contributed}

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        self._contributed = StateReader(state, STATE_VERSION, half="FCAC aggregator").read_int("contributed")
