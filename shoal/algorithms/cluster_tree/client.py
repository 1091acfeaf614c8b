"""The client half of cluster_tree: its options, the arrays that travel, the sketch of a client, and
that of a region.

A client keeps the readings since its last update as a few weighted points. A region adds up the
points of its clients, and merges near ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.options import AlgorithmOptions, option
from shoal.algorithms.state_reader import COUNT_MAX, StateReader
from shoal.algorithms.streaming import Arrays, ArraySpec, State, check_dimensions, check_rows
from shoal.errors import InvalidState
from shoal.kernels.arrays import Floats
from shoal.kernels.sketching import Sketch, empty_sketch, merge_targets, merged, spread_ties


class ClusterTreeOptions(AlgorithmOptions):
    """Options of both halves. None depends on the stream: they are limits, significance levels and
    spans."""

    ALGORITHM = "cluster_tree"

    points_max: int = option(128, "weighted points that a client publishes at once", least=8)
    cells_max: int = option(
        1000,
        "weighted points that the server keeps, more of them where clusters are many (`growth_max`)",
        least=16,
    )
    rebuild_readings: int = option(
        500,
        "readings absorbed between two rebuilds of the tree; the first ones come after every quarter more, and others "
        "where readings gather where none were before: at most as many again",
        least=1,
    )
    cluster_mass_max: float = option(
        4000.0,
        "independent readings of a cluster that count: newer ones displace older ones of the same cluster, never those "
        "of another",
        least=100.0,
    )
    mass_max: float = option(
        4000.0,
        "independent readings of all clusters that count, each cluster having an equal part at most, or its share of "
        "the recent readings: with more readings ever finer structure becomes significant, and the number of clusters "
        "would grow with the age of the stream",
        least=100.0,
    )
    growth_max: float = option(
        4.0,
        "how many times `cells_max` and the two numbers of readings are kept at most, in proportion to the clusters, "
        "or places with gaps between them, where there are more than 20: it takes as many more readings to tell them "
        "apart. Where it is too little for them, the model says so",
        least=1.0,
    )
    split_significance: float = option(
        4.5,
        "standard deviations by which both sides of a join must be denser than the join to be clusters of their own",
        above=0.0,
    )
    keep_significance: float = option(
        2.0, "the same, to remain two clusters once they are", above=0.0
    )
    confirm_readings: float = option(
        1000.0,
        "readings for which a split that is barely significant, or the loss of one, must last before it is shown; a "
        "split of twice the significance is shown at once",
        least=0.0,
    )
    noise: bool = option(
        False,
        "whether rows that belong to no cluster are labelled as such (-1), instead of as the nearest cluster",
    )

    def model_post_init(self, context: Any) -> None:
        """Raises `SettingsError` for significances that contradict each other."""
        self.require(
            "keep_significance",
            self.keep_significance <= self.split_significance,
            "<= split_significance",
        )


UPDATE = {
    "point": ArraySpec("<f8", ("n", "d"), rowlike=True, per_node=True),
    "count": ArraySpec("<i8", ("n",), at_least_one=True, per_node=True),
}
"""the readings of one client since its last update as weighted points: the mean of the readings
that each point stands for, and their number; in the order in which the first reading of each point
came. A point of count 1 is a single noisy row"""

SNAPSHOT = {
    "cell_id": ArraySpec("<i8", ("k",)),
    "cell": ArraySpec("<f8", ("k", "d"), rowlike=True),
    "mass": ArraySpec("<f8", ("k",), positive=True),
    "cluster": ArraySpec("<i8", ("k",), points_into="c"),
    "reach": ArraySpec("<f8", ("k",)),
    "identity": ArraySpec("<i8", ("c",)),
    "centre": ArraySpec("<f8", ("c", "d"), rowlike=True),
    "centre_mass": ArraySpec("<f8", ("c",), positive=True),
    "spread": ArraySpec("<f8", ("c", "d")),
    "recent": ArraySpec("<f8", ("c",)),
    "active": ArraySpec("|b1", ("c",)),
    "parent": ArraySpec("<i8", ("c",)),
    "since": ArraySpec("<i8", ("c",)),
    "unresolved": ArraySpec("<i8", ("s",), at_least_one=True),
}
"""the server's cells: centres, masses in readings that still count, the position of each one's
cluster, and the distance from which on a row belongs to no cluster (option `noise`; without it
larger than any); per cluster its identity, which is never given again; its centre; the standard
deviation of its cells per feature, by mass (that of its readings is somewhat larger); its mass; its
recent readings (each fades to 1/e in 500 readings of all clusters); whether it is active; the
identity that it parted from (-1: it appeared where no readings were before); and how many readings
had been absorbed when it was first found; where the memory is at its limit (option `growth_max`)
and has fewer clusters than places with gaps between them, the number of these places, else nothing
"""


STATE_VERSION = 6
BLOCK_ROWS = 256
"""rows that are buffered and then sketched together: a fixed number, so that any batching gives the
same points"""
READINGS_MIN = 2
"""readings before the first contribution, so that it is never a client's only reading"""
POINT_SHARE_MAX = 2.0
"""largest mass of a point, as a multiple of the mean mass: a heavier point would be denser than all
around it"""
HISTORY_EVERY = 8
"""one in this many readings goes into the history, which is published again to a server that has
lost the updates"""
HISTORY_READINGS = 2000
"""readings that the published history stands for at most: a few heavy points must not pass for
clusters"""


class ClusterTreeHalf(ABC):
    """Parts that both halves share: options, and a number of features that is given, or fixed by
    the first rows."""

    half: ClassVar[str]

    def __init__(self, dimensions: int | None = None, **options: Any) -> None:
        check_dimensions(dimensions)
        self.options = ClusterTreeOptions.parse(options)
        self._given_width = dimensions
        self._reset(dimensions)

    @abstractmethod
    def _reset(self, width: int | None) -> None:
        """Forget everything."""
        self._width = width

    @property
    def dimensions(self) -> int | None:
        """Features of a row; None before the first ones."""
        return self._width

    def _saved_identity(self) -> State:
        """The entries of a saved state that say whose it is."""
        options = self.options.as_dict()
        return {
            "version": STATE_VERSION,
            "half": self.half,
            "options": options,
            "width": self._width,
        }

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has
        changed."""
        saved = StateReader(state, STATE_VERSION, half=self.half, options=self.options.as_dict())
        # A new half takes the state first, so that a damaged one changes nothing here.
        fresh = type(self)(self._given_width, **self.options.as_dict())
        width = saved.read_optional_int("width", least=1)
        if self._given_width not in (None, width):
            raise InvalidState(f"saved with width {width}, this is {self._given_width}")
        fresh._reset(width)
        fresh._restore_from(saved, width or 0)
        vars(self).update(vars(fresh))

    @abstractmethod
    def _restore_from(self, saved: StateReader, width: int) -> None:
        """Fill this empty half from a saved state. Raises `InvalidState`."""


class ClusterTreeClient(ClusterTreeHalf):
    """Learns noisy rows as at most `points_max` weighted points, and contributes these points.

    Options: `ClusterTreeOptions`.
    """

    half = "cluster_tree client"

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
        # By their numbers since the start, so that any batching takes the same ones.
        some = table[(self._learnt + np.arange(len(table))) % HISTORY_EVERY == 0]
        self._learnt += len(table)
        self._sketch, left = self._blocks(self._sketch, np.concatenate([self._buffer, table]), 1)
        self._buffered = len(left)
        # A copy, or the slice would keep the whole table in memory.
        self._latest = np.concatenate([self._latest, table])[-BLOCK_ROWS:].copy()
        self._history, self._history_buffer = self._blocks(
            self._history, np.concatenate([self._history_buffer, some]), HISTORY_EVERY
        )

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays of the readings since the last call, after `reset_published` with the
        history before.

        Empty until there are `READINGS_MIN` readings.
        """
        if self._learnt < READINGS_MIN:
            return _update_arrays(empty_sketch(self._width or 0))
        published = self._with(
            self._sketch, self._buffer, 1, self._latest[: len(self._latest) - self._buffered]
        )
        if self._history_is_due:
            published = self._thinned_history().with_more(published)
        self._history_is_due = False
        self._buffered, self._sketch = 0, empty_sketch(self._width or 0)
        return _update_arrays(published)

    def reset_published(self) -> None:
        """Make the next contribution one with all readings since the start, for a server that has
        none of them.

        They come as the history: a sketch of one reading in `HISTORY_EVERY`, with the points of one
        update, and as no more than `HISTORY_READINGS` readings.
        """
        self._history_is_due = self._learnt > 0

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        return {
            **self._saved_identity(),
            "learnt": self._learnt,
            "latest": self._latest.copy(),
            "buffered": self._buffered,
            **sketch_state("sketch", self._sketch),
            "history_buffer": self._history_buffer.copy(),
            **sketch_state("history", self._history),
            "history_is_due": int(self._history_is_due),
        }

    def _restore_from(self, saved: StateReader, width: int) -> None:
        self._learnt = saved.read_int("learnt")
        self._latest = saved.read_floats("latest", (None, width))
        self._buffered = saved.read_int("buffered")
        self._sketch = restored_sketch(saved, "sketch", width)
        self._history_buffer = saved.read_floats("history_buffer", (None, width))
        self._history = restored_sketch(saved, "history", width)
        due = saved.read_int("history_is_due")
        saved.check(due <= (self._learnt > 0), "a history is to be published, and there is none")
        saved.check(len(self._latest) <= BLOCK_ROWS, "more than a block of the newest rows")
        saved.check(
            self._buffered <= len(self._latest), "more rows are in the buffer than were kept"
        )
        buffered = max(self._buffered, len(self._history_buffer))
        saved.check(buffered < BLOCK_ROWS, "a buffer holds a whole block of rows or more")
        saved.check(
            width > 0 or len(self._latest) + buffered == 0, "a buffer holds rows without features"
        )
        saved.check(
            max(self.size, len(self._history.mass)) <= self.options.points_max,
            "more points than points_max",
        )
        self._history_is_due = bool(due)

    def _blocks(self, sketch: Sketch, rows: Floats, weight: int) -> tuple[Sketch, Floats]:
        """The sketch with all whole blocks of rows added, and the rows left over."""
        whole = len(rows) // BLOCK_ROWS * BLOCK_ROWS
        for first in range(0, whole, BLOCK_ROWS):
            sketch = self._with(sketch, rows[first : first + BLOCK_ROWS], weight)
        return sketch, rows[whole:].copy()

    @property
    def _buffer(self) -> Floats:
        """The rows that are not in the sketch yet."""
        return self._latest[len(self._latest) - self._buffered :]

    def _with(
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
        history = self._with(self._history, self._history_buffer, HISTORY_EVERY)
        share = min(1.0, HISTORY_READINGS / float(history.mass.sum()))
        return history._replace(mass=np.maximum(1.0, np.floor(history.mass * share)))


def sketched(sketch: Sketch, points_max: int) -> Sketch:
    """Merge near points until there are at most `points_max`, in the same order."""
    # Two single readings may always be merged, however few readings there are.
    mass_max = max(2.0, POINT_SHARE_MAX * float(sketch.mass.sum()) / points_max)
    while len(sketch.mass) > points_max:
        into = merge_targets(sketch, points_max, mass_max)
        if (into == np.arange(len(into))).all():
            # No pair is left below the limit of mass. The number of points is the limit that must
            # hold.
            mass_max *= 2.0
        else:
            sketch = merged(sketch, into)
    return sketch


def _update_arrays(sketch: Sketch) -> Arrays:
    """The `UPDATE` arrays, as copies."""
    own = sketch.kept(slice(None))
    return {"point": own.points, "count": own.mass.astype(np.int64)}


def sketch_state(name: str, sketch: Sketch) -> State:
    """A sketch as entries of a saved state, under `name` and `name`_mass; copies."""
    own = sketch.kept(slice(None))
    return {name: own.points, f"{name}_mass": own.mass}


def restored_sketch(saved: StateReader, name: str, width: int) -> Sketch:
    """A sketch of a saved state. Raises `InvalidState`."""
    points = saved.read_floats(name, (None, width))
    mass = saved.read_floats(f"{name}_mass", (len(points),))
    saved.check(bool((mass > 0).all()), f"{name} has points without mass")
    saved.check(
        bool((mass <= COUNT_MAX).all()), f"{name} has points of more readings than can be counted"
    )
    return Sketch(points, mass)


REGION_STATE_VERSION: Final = 1
HALF: Final = "cluster_tree aggregator"
POINTS_FACTOR: Final = 2
"""points of a region's update, as a multiple of `points_max`: those of the largest update of a
client"""


class ClusterTreeAggregator:
    """Pools weighted points. Every reading stays counted once, and a merged point is the mean of
    its readings."""

    def __init__(self, options: Mapping[str, Any], dimensions: int) -> None:
        """Raises `SettingsError` for options that the algorithm does not take."""
        self._points_max = POINTS_FACTOR * ClusterTreeOptions.parse(options).points_max
        self._width = dimensions
        self._sketch = empty_sketch(dimensions)
        self._readings = 0

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Whether at most one of the updates stands for more readings than it is from.

        An update to a server that has lost the earlier ones stands for earlier readings too. The
        receiver accepts as many of those as one client can have.
        """
        return bool(self._sketch.mass.sum() <= self._readings or arrays["count"].sum() <= readings)

    def add(self, arrays: Arrays, readings: int, client: str = "") -> None:
        """Add the points of one update."""
        more = Sketch(
            np.asarray(arrays["point"], dtype=np.float64), arrays["count"].astype(np.float64)
        )
        self._sketch = sketched(self._sketch.with_more(more), self._points_max)
        self._readings += readings

    @property
    def is_due(self) -> bool:
        """False: nothing was asked for."""
        return False

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays of the points since the last call."""
        published = self._sketch
        self._sketch = empty_sketch(self._width)
        self._readings = 0
        return {"point": published.points, "count": published.mass.astype(np.int64)}

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        return {
            "version": REGION_STATE_VERSION,
            "half": HALF,
            "readings": self._readings,
            **sketch_state("sketch", self._sketch),
        }

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        saved = StateReader(state, REGION_STATE_VERSION, half=HALF)
        sketch = restored_sketch(saved, "sketch", self._width)
        readings = saved.read_int("readings")
        self._sketch = sketch
        self._readings = readings
