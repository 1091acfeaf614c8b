"""The contract of streaming algorithms: clients and server learn continuously, and no one waits for
another.

A streaming algorithm has two halves in one file or folder. The client half learns from noisy rows
and contributes named arrays. The server half absorbs contributions and gives a snapshot, again
named arrays. Both halves save and restore their whole state as plain values and arrays (no pickle),
so that a process can be killed at any time and continue bit for bit.

The family of an algorithm, streaming or another, is data: what its clients do with readings, and
its server with updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.claims import Claims
from shoal.algorithms.view import ClusteringView, Predictor, Summary
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import AnyArray, Floats, Ints


@dataclass(frozen=True)
class Family:
    """Abilities of all algorithms of one family. One of the three `client_...` is true."""

    name: str
    title: str
    """an algorithm of it in words, as messages call it"""
    learns_from: str
    """form of readings that leaves the privacy stage for it, in words: "noisy rows" or "private
    counts"
    """
    client_learns: bool = False
    """a half on each client learns every noisy row, and contributes what it has learnt when an
    update is due"""
    client_counts: bool = False
    """each client publishes private counts of whole windows of readings, at an epsilon of their own
    """
    client_answers: bool = False
    """each client answers requests of the server from the window of noisy rows that it keeps"""

    @property
    def in_rounds(self) -> bool:
        """Whether the server asks and combines answers round by round; otherwise it absorbs updates
        as they come."""
        return self.client_answers

    @property
    def takes_rows(self) -> bool:
        """Whether its clients need noisy rows."""
        return self.client_learns or self.client_answers


STREAMING: Final = Family("streaming", "a streaming algorithm", "noisy rows", client_learns=True)
COUNTING: Final = Family("counting", "a streaming algorithm", "private counts", client_counts=True)
ROUNDS: Final = Family("rounds", "an algorithm in rounds", "noisy rows", client_answers=True)


Rows = Floats
"""(n, d) noisy rows"""
Arrays = Mapping[str, AnyArray]
"""named arrays that travel, declared by a table of `ArraySpec`"""
State = dict[str, Any]
"""plain values (None, bool, int, float, str), arrays, and lists and dicts of these; has an int
"version"
"""


DIVISOR_MIN: Final = 1e-150
"""a smaller positive number is 0 once it is squared"""


@dataclass(frozen=True)
class ArraySpec:
    """The declared form of one array that travels, which the receiver checks."""

    dtype: str
    shape: tuple[int | str, ...]
    """sizes, or names of sizes: equal names in one table are equal sizes, and "d" is the number of
    features"""
    not_empty: bool = False
    """whether its first size is above 0: rows are assigned to centres, for instance, so there must
    be one"""
    at_least_one: bool = False
    """whether no value is below 1: a count, for instance"""
    squared_divisor: bool = False
    """whether something is divided by the squares of its values, which must not be 0: see
    `DIVISOR_MIN`"""
    positive: bool = False
    """every value is above 0, as in bandwidths"""
    rowlike: bool = False
    """rows of it are points in feature space, which must lie within the bounds of the contract"""
    points_into: str | None = None
    """values are positions in the arrays whose first size has this name"""
    per_node: bool = False
    """one entry for each node. An update too large for one record is split between nodes, in their
    order (FCAC sends nodes with high winning counts first); arrays that are not per node travel in
    every chunk"""


@dataclass(frozen=True)
class Contribution:
    """Contribution of one client, as the server half receives it."""

    client: str
    sequence: int
    arrays: Arrays


class OfWidth(Protocol):
    """What an update says of its rows."""

    @property
    def width(self) -> int:
        """Columns."""
        ...


AnyOfWidth = TypeVar("AnyOfWidth", bound=OfWidth)


def checked_headers(
    contributions: Sequence[Contribution],
    check: Callable[[Arrays], AnyOfWidth | None],
    width: int | None,
) -> list[AnyOfWidth | None]:
    """The header of each contribution, None for one without rows: all of one width.

    `width`: that of the rows so far; None before the first. Raises `InvalidData` with the client
    of the first that is refused, by `check` or for its width.
    """
    headers = []
    for contribution in contributions:
        try:
            header = check(contribution.arrays)
            if header is not None and header.width != (width or header.width):
                raise InvalidData(f"its rows have {header.width} features, expected {width}")
        except InvalidData as refused:
            raise InvalidData(f"contribution of {contribution.client}: {refused}") from None
        width = width if header is None else header.width
        headers.append(header)
    return headers


def counted_points(
    contribution: Contribution, name: str, width: int | None, noun: str
) -> tuple[Floats, Ints]:
    """The array `name` (n, d) of a contribution, and how many readings each row stands for (n,).

    Raises `InvalidData`, which names the client; `noun` is what a row is.
    """
    try:
        points = check_rows(contribution.arrays[name], width)
        count = np.asarray(contribution.arrays["count"])
    except KeyError as missing:
        raise InvalidData(f"contribution of {contribution.client} lacks {missing}") from None
    except InvalidData as refused:
        raise InvalidData(f"contribution of {contribution.client}: {refused}") from None
    if count.shape != (len(points),) or count.dtype.kind not in "iu" or not (count >= 1).all():
        raise InvalidData(
            f"contribution of {contribution.client}: count must be one whole number from 1 per"
            f" {noun}"
        )
    return points, count.astype(np.int64)


class ClientHalf(Protocol):
    """The half of a streaming algorithm that runs on a client."""

    @property
    def size(self) -> int:
        """Number of nodes."""
        ...

    def learn(self, rows: Rows) -> None:
        """Learn each row once, in order. Any batching gives the same state. Raises
        `InvalidData`."""
        ...

    def contribute(self) -> Arrays:
        """The arrays of the update table to publish now; all empty when there is nothing to
        publish.

        What is returned counts as published: the next call returns only what has changed since,
        unless an option asks for everything each time.
        """
        ...

    def reset_published(self) -> None:
        """Forget what was published: the next call of `contribute` returns everything."""
        ...

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        ...

    def restore(self, state: State) -> None:
        """Become the saved half. Raises `InvalidState`; then nothing has changed."""
        ...


class SequenceLabels(Protocol):
    """The clusters of one snapshot for rows in the order of time, by a window of successive
    ones."""

    @property
    def digest(self) -> int:
        """A number that snapshots share which give the same rows the same clusters."""
        ...

    @property
    def window(self) -> int:
        """Number of rows of a window."""
        ...

    def numbers(self, rows: Rows) -> Ints:
        """rows (n, d), n >= window, NaN where missing -> (n - window + 1,) the cluster of each
        window, by its number in the snapshot; -1 where it lacks too much."""
        ...


class SequenceHalf(ClientHalf, Protocol):
    """The client half of an algorithm whose clusters are seen in successive rows and not in a
    single one."""

    def sequence_labels(self, snapshot: Arrays) -> SequenceLabels:
        """Labels by this snapshot and what the half knows of its own rows. Raises `InvalidData`."""
        ...


class ServerHalf(Protocol):
    """The half of a streaming algorithm that runs on the server."""

    def absorb(self, contributions: Sequence[Contribution], key: bytes) -> None:
        """Merge contributions into the model, in the order given; any randomness is a pure function
        of `key`.

        Raises `InvalidData`; then nothing has changed.
        """
        ...

    def snapshot(self) -> Arrays:
        """The current model, as the arrays of the snapshot table."""
        ...

    def predict(self, rows: Rows) -> Ints:
        """rows (n, d) -> (n,) cluster of each row, -1 before anything is learnt."""
        ...

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        ...

    def restore(self, state: State) -> None:
        """Become the saved half. Raises `InvalidState`; then nothing has changed."""
        ...


class Aggregator(Protocol):
    """Contributions of a region's clients since the region itself contributed last.

    A region is a federation whose server contributes what it has learnt to another one, its
    upstream federation, as a client of it.
    """

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Whether an update can be added before the region contributes; where nothing has been
        added it can."""
        ...

    def add(self, arrays: Arrays, readings: int, client: str = "") -> None:
        """Take in the arrays of one update, of this client or lower region, and the readings that
        it is from."""
        ...

    @property
    def is_due(self) -> bool:
        """Whether the region contributes at once, as what was asked of it is there."""
        ...

    def contribute(self) -> Arrays:
        """The arrays of the region's update, all empty when there is nothing new; the next call
        begins from here."""
        ...

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        ...

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        ...


@dataclass(frozen=True)
class Aggregation:
    """Rules by which a region turns the updates of its clients into updates of its own."""

    aggregator: Callable[[Mapping[str, Any], int], Aggregator]
    """(options, d) -> an aggregator to which nothing has been added. Raises `SettingsError`"""
    update: Mapping[str, ArraySpec] | None = None
    """the arrays of a region's update; None: those of a client's"""
    plan_from_upstream: bool = False
    """whether clients work by a plan in the snapshot: then those of a region work by the plan of
    the upstream federation, since what is counted by different plans cannot be added up"""


@dataclass(frozen=True)
class StreamingAlgorithm:
    """The declaration of a streaming algorithm: how its halves are made, and which arrays travel
    between them."""

    family: ClassVar[Family] = STREAMING
    regression: ClassVar[None] = None
    """no streaming algorithm predicts a feature; algorithms in rounds may"""

    name: str
    client: Callable[[Mapping[str, Any], int | None], ClientHalf]
    """(options, d or None) -> a client half that has learnt nothing yet. Raises `SettingsError`"""
    server: Callable[[Mapping[str, Any], int | None], ServerHalf]
    """(options, d or None) -> a server half that has absorbed nothing yet. Raises `SettingsError`
    """
    update: Mapping[str, ArraySpec]
    """the arrays that a client sends"""
    snapshot: Mapping[str, ArraySpec]
    """the arrays that the server publishes"""
    predict: Callable[[Arrays, Rows], Ints]
    """(snapshot arrays, rows (n, d)) -> (n,) cluster of each row, -1 where there is none; needs
    only the snapshot"""
    view: Callable[[Arrays], ClusteringView]
    """snapshot arrays -> its clustering"""
    check_claims: Callable[[Mapping[str, Any], Arrays, Claims], None] | None = None
    """(options, arrays of one update, what is claimed of its rows) -> nothing. Raises `InvalidData`
    for an update that no client with these options can make from its number of rows. None: the
    table alone is checked"""
    predicts_gaps: bool = False
    """whether `predict` takes rows that lack values (NaN)"""
    paper_only: bool = False
    """whether it is for comparisons in experiments only, and not meant for a running federation"""
    predictor: Callable[[Arrays], Predictor] | None = None
    """snapshot arrays -> `predict` as plain data, for other programs; None: it has no such form"""
    aggregation: Aggregation | None = None
    """rules by which a region passes on what its clients have contributed; None: it cannot"""
    update_readings_max: Callable[[Mapping[str, Any]], int] | None = None
    """options -> readings after which a client publishes at the latest, because an update has room
    for so many; None: any number. Raises `SettingsError`"""
    new_readings: str | None = None
    """the array of `update` that counts, for each of its points, the readings since the update
    before; None: it has none, and its points stand for equal parts of them"""
    counted_points: Callable[[Arrays, Arrays], tuple[Rows, Floats]] | None = None
    """(update, snapshot) -> points of the snapshot (n, d), and the readings (n,) that the update
    has counted at each; None: an update shows itself where its readings lie, if it has points"""
    labels_sequences: bool = False
    """whether its client half is a `SequenceHalf`: a client labels its readings by windows then,
    not by `predict`"""
    experimental: str = ""
    """limits of an algorithm whose options and results may still change; else empty"""

    @property
    def aggregates(self) -> bool:
        """Whether a region can contribute to a model of it."""
        return self.aggregation is not None

    def update_readings(self, options: Mapping[str, Any], readings: int) -> int:
        """Readings after which a client with these options publishes, where its settings say
        `readings`. Raises `SettingsError`."""
        if self.update_readings_max is None:
            return readings
        return min(readings, self.update_readings_max(options))

    def summary(self, snapshot: Arrays) -> Summary:
        """Snapshot arrays -> the sizes of its clustering."""
        return self.view(snapshot).summary()

    @cached_property
    def _points(self) -> str | None:
        """The name of the array of points."""
        # Looked up once: an update of each client asks for it.
        return next((name for name, spec in self.update.items() if spec.rowlike), None)

    def points(self, update: Arrays, snapshot: Arrays | None = None) -> tuple[Rows, Floats]:
        """Update arrays -> its points in feature space (n, d), and the readings (n,) that each
        stands for.

        The points are the first array of the update table that is `rowlike`. The readings are
        relative to each other. `snapshot` is the newest one, for algorithms whose updates have no
        points but count those of a snapshot.
        """
        if self.counted_points is not None and snapshot is not None:
            return self.counted_points(update, snapshot)
        if self._points is None:
            return np.empty((0, 0)), np.empty(0)
        points = np.asarray(update[self._points], dtype=np.float64)
        if self.new_readings is None:
            return points, np.ones(len(points))
        return points, np.asarray(update[self.new_readings], dtype=np.float64)


MAGNITUDE_MAX = 1e150
"""the squares of larger numbers overflow float64"""


def check_dimensions(dimensions: int | None) -> None:
    """Raise `SettingsError` for a number of features below 1; None: the first rows decide it."""
    if dimensions is not None and (not isinstance(dimensions, int) or dimensions < 1):
        raise SettingsError(f"dimensions = {dimensions!r}, must be at least 1")


def check_rows(rows: ArrayLike, width: int | None, gaps: bool = False) -> Floats:
    """rows (n, d) of any real type -> (n, d) float64, not to be written to.

    `width` is d, or None for any d >= 1. An empty table may have any width. With `gaps`, NaN is a
    value that a row lacks, and a row has one at least. Raises `InvalidData`, whose message contains
    no value.
    """
    try:
        given = np.asarray(rows)
    except ValueError:
        raise InvalidData("rows must form a table (n, d); these are of unequal lengths") from None
    if given.ndim != 2:
        raise InvalidData(f"rows must form a table (n, d); this has {given.ndim} dimensions")
    n, d = given.shape
    if n == 0:
        return np.empty((0, d if width is None else width))
    if d == 0 or width not in (None, d):
        expected = "at least 1" if width is None else width
        raise InvalidData(f"rows have {d} features, expected {expected}")
    if given.dtype.kind not in "fiub":
        raise InvalidData(f"rows must be real numbers, not {given.dtype}")
    table = np.ascontiguousarray(given, dtype=np.float64)
    # Nearly all tables pass here: which row is wrong is found out only where one is. A NaN fails
    # every comparison.
    if np.abs(table).max() <= MAGNITUDE_MAX:
        return table
    in_range = np.abs(table) <= MAGNITUDE_MAX
    sound = in_range.all(axis=1)
    if gaps:
        sound = (in_range | np.isnan(table)).all(axis=1) & in_range.any(axis=1)
    if sound.all():
        return table
    bad = np.flatnonzero(~sound)
    raise InvalidData(
        f"row {bad[0]} ({len(bad)} of {n}) is not finite or beyond ±{MAGNITUDE_MAX:g}; drop it, "
        "nothing was learnt"
    )
