"""The client half in a federation: a learner of the client's own stream, of whose states sums are
published."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.half import Half, HalfState
from shoal.algorithms.states.blocks import SCALES
from shoal.algorithms.states.labels import StateLabels, token_of
from shoal.algorithms.states.learner import StateLearner
from shoal.algorithms.states.messages import Header, empty_update
from shoal.algorithms.states.options import StatesOptions
from shoal.algorithms.states.summary import summary_of
from shoal.algorithms.streaming import Arrays, ArraySpec, check_rows
from shoal.errors import InvalidState
from shoal.kernels.arrays import AnyArray, Floats
from shoal.saved_state import FloatArray, Table, require, state_type

READINGS_MIN: Final = 2
"""readings before the first contribution, so that it is never a client's only reading"""
LEARNER: Final = {
    "numbers": ArraySpec("<i8", (8,)),
    "runs": ArraySpec("<i8", ("r", 3)),
    "waiting": ArraySpec("<f8", ("w", "d")),
    "seen": ArraySpec("|b1", ("d",)),
    "tiles_numbers": ArraySpec("<i8", (6,)),
    "tiles_open": ArraySpec("<f8", ("o", "d")),
    "tiles_tail": ArraySpec("<f8", ("t", "d")),
    "tiles_latest": ArraySpec("<f8", ("d",)),
    "tiles_has_latest": ArraySpec("|b1", ("d",)),
    "tiles_scale": ArraySpec("<f8", (2, "d")),
    "tiles_sums": ArraySpec("<f4", ("h", "s")),
    "tiles_periods": ArraySpec("<f4", ("h", 2)),
    "tiles_known": ArraySpec("|b1", ("h",)),
    "blocks_readings": ArraySpec("<i8", (1,)),
    "blocks_open": ArraySpec("<f8", ("b", "d")),
    **{f"blocks_blocks_{w}": ArraySpec("<f4", (f"n{w}", f"m{w}")) for w in SCALES},
}
"""`StateLearner.state`"""


@state_type
class StatesClientState(HalfState):
    """What a client has learnt, and what of it was published."""

    version: ClassVar[int] = 1

    learner: Annotated[Arrays | None, Table(LEARNER)]
    bounds: Annotated[Floats, FloatArray("ends", "d")]
    unpublished: int
    new: bool

    def check(self) -> None:
        has_rows = self.width is not None and self.learner is not None
        require(has_rows == (self.width is not None), "there are rows and nothing learnt from them")
        require(
            len(self.bounds) == (2 if has_rows else 0), "its rows have no least and most values"
        )


class StatesClient(Half[StatesOptions, StatesClientState]):
    """Learns rows in the order of time with a `StateLearner`, and contributes sums over the
    readings of each of its states.

    Options: `StatesOptions`. Labels are by its own learner, in the server's numbers.
    """

    half = "states client"
    options_type = StatesOptions
    state_type = StatesClientState

    def _reset(self, width: int | None) -> None:
        super()._reset(width)
        self.learner: StateLearner | None = None
        if width is not None:
            options = self.options
            self.learner = StateLearner(
                width,
                window=options.window,
                strict=options.strict,
                evaluate_every=options.evaluate_every,
                memory=options.memory,
            )
        self._bounds: Floats = np.empty((0, width or 0))
        """(2, d) least and most values; without rows there are none"""
        self._unpublished = 0
        """readings since the last update"""
        self._new = False
        """whether there is anything that no update has"""

    @property
    def size(self) -> int:
        """States of its stream, once there are readings."""
        if self.learner is None or not self.learner.n_readings:
            return 0
        return max(1, len(self.learner.identities()))

    def learn(self, rows: ArrayLike) -> None:
        """rows (n, d): learn each once, in order; any batching gives the same state, bit for bit.

        Raises `InvalidData` before anything has changed.
        """
        table = check_rows(rows, self._width)
        if not len(table):
            return
        if self.learner is None:
            self._reset(table.shape[1])
        assert self.learner is not None, "it was made for this width"
        self.learner.add(table)
        ends = np.concatenate([self._bounds, table])
        self._bounds = np.stack([ends.min(axis=0), ends.max(axis=0)])
        self._unpublished += len(table)
        self._new = True

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays: all that is known of its states; empty where nothing is new."""
        learner = self.learner
        if learner is None or learner.n_readings < READINGS_MIN or not self._new:
            return empty_update(self._width or 0)
        update = update_of(learner, self._bounds[0], self._bounds[1], self._unpublished)
        assert update is not None, "rows of a federation have all values"
        self._unpublished = 0
        self._new = False
        return update

    def reset_published(self) -> None:
        """Publish all that is known of states once more, to a server that knows nothing. Readings
        count from then on, as an update cannot have more than it is from."""
        self._new = self.learner is not None

    def sequence_labels(self, snapshot: Arrays) -> StateLabels:
        """States of rows by this client's learner, in the numbers of this snapshot."""
        return StateLabels(lambda: self.learner, snapshot)

    def _state(self) -> StatesClientState:
        learner = self.learner
        return StatesClientState(
            width=self._width,
            learner=None if learner is None else learner.state(),
            bounds=self._bounds,
            unpublished=self._unpublished,
            new=self._new,
        )

    def _restore_from(self, saved: StatesClientState) -> None:
        if self.learner is None or saved.learner is None:
            return
        arrays: dict[str, Any] = dict(saved.learner)
        try:
            self.learner.restore(arrays)
        except (IndexError, ValueError) as error:
            raise InvalidState("saved state contradicts itself: it is of no learner") from error
        self._bounds = saved.bounds
        self._unpublished = saved.unpublished
        self._new = saved.new


def update_of(
    learner: StateLearner, low: Floats, high: Floats, new: int
) -> dict[str, AnyArray] | None:
    """The `UPDATE` arrays of all that is known of a learner's states, whose rows are between `low`
    and `high` (d,); `new`: readings since the update before. None where no block has all values."""
    summary = summary_of(learner, low, high)
    if summary is None:
        return None
    window = learner.scale or learner.memory.window or 0
    header = Header(
        token_of(learner),
        learner.memory.width,
        new,
        window if len(summary.state) > 1 else 0,
        bool(len(learner.runs)),
    )
    return {"header": header.packed(), **summary.arrays()}
