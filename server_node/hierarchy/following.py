"""A model of a region that follows the upstream one: clients count by its plan, and the region adds the counts up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from server_node.hierarchy.followed import NOTHING_FOLLOWED, Followed
from server_node.history.recorder import NOTHING_PUBLISHED, PublishedHistory
from server_node.models.streaming import StreamingModel
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, Contribution, Rows, State
from shoal.config.contract import Contract, Model
from shoal.config.privacy import model_options
from shoal.config.sections import ServerSettings
from shoal.errors import InvalidData, InvalidState
from shoal.protocol.messages import Snapshot

STATE_VERSION: Final = 3


class FollowingHalf:
    """A server half whose snapshot is the newest one of the upstream federation. A `ServerHalf`."""

    def __init__(self, contract: Contract, model: Model) -> None:
        """Before the first snapshot it is that of a model that has learnt nothing, the same as upstream."""
        self._algorithm = streaming_algorithm(model.algorithm)
        half = self._algorithm.server(model_options(contract, model), contract.width)
        self._arrays: Arrays = half.snapshot()
        self._width = contract.width
        self.followed = NOTHING_FOLLOWED
        self.readings = 0
        """behind the upstream snapshot"""

    def adopt(self, snapshot: Snapshot) -> None:
        """Follow a snapshot of the upstream federation, which has been checked."""
        self._arrays, self.followed = snapshot.arrays, Followed(snapshot.version, snapshot.made_at)
        self.readings = snapshot.readings

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Nothing: what clients contribute is added up for the upstream federation, which learns it."""

    def snapshot(self) -> Arrays:
        """The arrays of the upstream snapshot, as copies."""
        return {name: array.copy() for name, array in self._arrays.items()}

    def predict(self, rows: Rows) -> NDArray[np.int64]:
        """rows (n, d) -> (n,) cluster of each row by the upstream snapshot, -1 where there is none."""
        return self._algorithm.predict(self._arrays, rows)

    def state(self) -> State:
        """The upstream snapshot."""
        followed = {"followed": list(self.followed), "readings": self.readings}
        return {"version": STATE_VERSION, **followed, "arrays": dict(self._arrays)}

    def restore(self, state: State) -> None:
        """Become the saved half. Raises `InvalidState`."""
        if "arrays" not in state:
            raise InvalidState(
                "the model was no region's model when the checkpoint was stored; put [upstream] as it was before, or "
                "start the federation in a new folder"
            )
        if state.get("version") != STATE_VERSION:
            raise InvalidState("the checkpoint of a region's model is of another version of shoal; run that one")
        arrays = StateReader(state, STATE_VERSION).read_arrays("arrays", self._algorithm.snapshot, self._width)
        try:
            self._algorithm.view(arrays)
        except InvalidData as damaged:
            raise InvalidState(f"saved upstream snapshot: {damaged}") from None
        self._arrays, self.followed = arrays, Followed(*state["followed"])
        self.readings = state["readings"]


class FollowingModel(StreamingModel):
    """Publishes the upstream snapshots to the clients of the region, under the region's own versions.

    Recent shares are shares of the upstream federation's readings, because its clusters were learnt from those.
    """

    _half: FollowingHalf

    def __init__(
        self,
        contract: Contract,
        model: Model,
        settings: ServerSettings,
        history: PublishedHistory = NOTHING_PUBLISHED,
    ) -> None:
        super().__init__(contract, model, settings, history)
        self._pool = None  # nothing is merged here, so there is nothing to wait for

    def follow(self, snapshot: Snapshot) -> None:
        """Adopt an upstream snapshot, unless it is no newer than the one that is followed.

        Nor while the upstream server is rebuilt from its log: clients count by the plan that it will come to again.
        """
        if not self._half.followed.is_before(snapshot):
            return
        if snapshot.readings < self._half.readings:
            if self._is_being_rebuilt(snapshot):
                return
            # The upstream model has unlearned a client, or its log was made anew: nodes have other numbers.
            self._publisher.rebuilt = True
        self._half.adopt(snapshot)
        self._has_news = True

    def _is_being_rebuilt(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot still names clusters of before that it has not found again."""
        found = self._algorithm.view(snapshot.arrays).identity
        named = {one.identity for one in snapshot.cluster_identities}
        return found is not None and not named <= set(found.tolist())

    @property
    def _clustered_readings(self) -> int:
        return self._half.readings

    def _empty_half(self) -> FollowingHalf:
        return FollowingHalf(self._contract, self._model)
