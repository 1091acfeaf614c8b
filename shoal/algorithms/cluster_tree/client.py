"""The client half of cluster_tree: the readings since the last update as a few weighted points."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.cluster_tree.options import ClusterTreeOptions
from shoal.algorithms.cluster_tree.sketches import SketchState, sketched
from shoal.algorithms.half import Half, HalfState
from shoal.algorithms.streaming import Arrays, check_rows
from shoal.kernels.arrays import Floats
from shoal.kernels.sketching import Sketch, empty_sketch, spread_ties
from shoal.saved_state import FloatArray, require, state_type

BLOCK_ROWS: Final = 256
"""rows that are buffered and then sketched together: a fixed number, so that any batching gives the
same points"""
READINGS_MIN: Final = 2
"""readings before the first contribution, so that it is never a client's only reading"""
HISTORY_EVERY: Final = 8
"""one in this many readings goes into the history, which is published again to a server that has
lost the updates"""
HISTORY_READINGS: Final = 2000
"""readings that the published history stands for at most: a few heavy points must not pass for
clusters"""


@state_type
class ClusterTreeClientState(HalfState):
    """What a client has learnt, and what of it was published."""

    version: ClassVar[int] = 7

    learnt: int
    latest: Annotated[Floats, FloatArray("latest", "d")]
    buffered: int
    sketch: SketchState
    history_buffer: Annotated[Floats, FloatArray("history_buffered", "d")]
    history: SketchState
    history_is_due: bool

    def check(self) -> None:
        require(
            not self.history_is_due or self.learnt > 0,
            "a history is to be published, and there is none",
        )
        require(len(self.latest) <= BLOCK_ROWS, "more than a block of the newest rows")
        require(self.buffered <= len(self.latest), "more rows are in the buffer than were kept")
        buffered = max(self.buffered, len(self.history_buffer))
        require(buffered < BLOCK_ROWS, "a buffer holds a whole block of rows or more")
        require(
            self.width is not None or len(self.latest) + buffered == 0,
            "a buffer holds rows without features",
        )


class ClusterTreeClient(Half[ClusterTreeOptions, ClusterTreeClientState]):
    """Learns noisy rows as at most `points_max` weighted points, and contributes these points.

    Rows are buffered to blocks of `BLOCK_ROWS`. Of each block, columns of few different values are
    spread over their steps (`spread_ties`), its rows join the sketch as points of mass 1, and near
    points are merged until there are `points_max` again (`sketched`). `contribute` publishes the
    sketch with what is in the buffer, and begins a new one.

    Beside it the client keeps a history: a second sketch, of one reading in `HISTORY_EVERY` since
    the start. It is published when a server has lost the earlier updates. Both sketches, and the
    newest `BLOCK_ROWS` rows, are all that a client keeps.

    Options: `ClusterTreeOptions`.
    """

    half = "cluster_tree client"
    options_type = ClusterTreeOptions
    state_type = ClusterTreeClientState

    def _reset(self, width: int | None) -> None:
        super()._reset(width)
        self._learnt = 0
        self._latest: Floats = np.empty((0, width or 0))
        """the newest rows, at most `BLOCK_ROWS`"""
        self._buffered = 0
        """number of those that are not in the sketch yet"""
        self._sketch = empty_sketch(width or 0)
        self._history_buffer: Floats = np.empty((0, width or 0))
        self._history = empty_sketch(width or 0)
        self._history_is_due = False

    @property
    def size(self) -> int:
        """Points of the sketch, without the rows in the buffer."""
        return len(self._sketch.mass)

    def learn(self, rows: ArrayLike) -> None:
        """rows (n, d): learn each once, in order; any batching gives the same state, bit for bit.

        Raises `InvalidData` before anything has changed.
        """
        table = check_rows(rows, self._width)
        if len(table) == 0:
            return
        if self._width is None:
            self._reset(table.shape[1])
        self._learn_history(table)
        self._learnt += len(table)
        unsketched = np.concatenate([self._buffer, table])
        self._sketch, remainder = self._with_whole_blocks(self._sketch, unsketched, weight=1)
        self._buffered = len(remainder)
        # A copy, or the slice would keep the whole table in memory.
        self._latest = np.concatenate([self._latest, table])[-BLOCK_ROWS:].copy()

    def _learn_history(self, table: Floats) -> None:
        # By their numbers since the start, so that any batching takes the same ones.
        numbers = self._learnt + np.arange(len(table))
        thinned = np.concatenate([self._history_buffer, table[numbers % HISTORY_EVERY == 0]])
        self._history, self._history_buffer = self._with_whole_blocks(
            self._history, thinned, weight=HISTORY_EVERY
        )

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays of the readings since the last call, after `reset_published` with the
        history before.

        Empty until there are `READINGS_MIN` readings.
        """
        if self._learnt < READINGS_MIN:
            return _update_arrays(empty_sketch(self._width or 0))
        sketched_rows = self._latest[: len(self._latest) - self._buffered]
        # The few rows of a block begun do not show which columns are coarse; with those before they
        # do.
        published = self._with_block(self._sketch, self._buffer, 1, before=sketched_rows)
        if self._history_is_due:
            published = self._thinned_history().with_more(published)
        self._history_is_due = False
        # The rows themselves stay in `_latest`: they show the next block which columns are coarse.
        self._buffered = 0
        self._sketch = empty_sketch(self._width or 0)
        return _update_arrays(published)

    def reset_published(self) -> None:
        """Make the next contribution one with all readings since the start, for a server that has
        none of them.

        They come as the history: a sketch of one reading in `HISTORY_EVERY`, with the points of one
        update, and as no more than `HISTORY_READINGS` readings.
        """
        self._history_is_due = self._learnt > 0

    def _state(self) -> ClusterTreeClientState:
        return ClusterTreeClientState(
            width=self._width,
            learnt=self._learnt,
            latest=self._latest,
            buffered=self._buffered,
            sketch=SketchState.of(self._sketch),
            history_buffer=self._history_buffer,
            history=SketchState.of(self._history),
            history_is_due=self._history_is_due,
        )

    def _restore_from(self, saved: ClusterTreeClientState) -> None:
        points = max(len(saved.sketch.mass), len(saved.history.mass))
        require(points <= self.options.points_max, "more points than points_max")
        self._learnt = saved.learnt
        self._latest = saved.latest
        self._buffered = saved.buffered
        self._sketch = saved.sketch.restored()
        self._history_buffer = saved.history_buffer
        self._history = saved.history.restored()
        self._history_is_due = saved.history_is_due

    @property
    def _buffer(self) -> Floats:
        """The rows that are not in the sketch yet."""
        return self._latest[len(self._latest) - self._buffered :]

    def _with_whole_blocks(
        self, sketch: Sketch, rows: Floats, weight: int
    ) -> tuple[Sketch, Floats]:
        """The sketch with all whole blocks of rows added, and the rows of the block begun."""
        whole = len(rows) // BLOCK_ROWS * BLOCK_ROWS
        for first in range(0, whole, BLOCK_ROWS):
            sketch = self._with_block(sketch, rows[first : first + BLOCK_ROWS], weight)
        # A copy, so that the rows of the whole blocks can be freed.
        return sketch, rows[whole:].copy()

    def _with_block(
        self, sketch: Sketch, rows: Floats, weight: int, before: Floats | None = None
    ) -> Sketch:
        """The sketch with one block of rows added, each standing for `weight` readings; `before`:
        the rows before."""
        if not len(rows):
            return sketch
        block = Sketch(spread_ties(rows, before), np.full(len(rows), float(weight)))
        return sketched(sketch.with_more(block), self.options.points_max)

    def _thinned_history(self) -> Sketch:
        """The history with its masses reduced to `HISTORY_READINGS` readings in all, each point at
        least one."""
        history = self._with_block(self._history, self._history_buffer, HISTORY_EVERY)
        # Whole numbers of readings, as an update has: a point of less than one would be none.
        share = min(1.0, HISTORY_READINGS / float(history.mass.sum()))
        return history._replace(mass=np.maximum(1.0, np.floor(history.mass * share)))


def _update_arrays(sketch: Sketch) -> Arrays:
    """The `UPDATE` arrays, as copies."""
    own = sketch.kept(slice(None))
    return {"point": own.points, "count": own.mass.astype(np.int64)}
