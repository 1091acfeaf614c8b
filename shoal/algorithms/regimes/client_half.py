"""The client half in a federation: remembers blocks of its rows, answers what snapshots ask, and
counts its regimes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.options import AlgorithmOptions, option
from shoal.algorithms.regimes.blocks import (
    BLOCKS_MAX,
    READING_MAX,
    SCALES,
    BlockMemory,
    n_block_features,
    window_features,
)
from shoal.algorithms.regimes.client import BlockStatistics
from shoal.algorithms.regimes.exchange import Candidate, Codebook, Key, Phase, Query
from shoal.algorithms.regimes.messages import (
    PAIRS_AT_ONCE,
    UPDATE,
    Header,
    Packing,
    Piece,
    SnapshotRead,
    Unpacking,
    dense_piece,
    pairs_entries,
    read_snapshot,
)
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, ArraySpec, Rows, State, check_dimensions, check_rows
from shoal.errors import InvalidData, InvalidState
from shoal.kernels.arrays import AnyArray, Floats, Ints, Ints32

STATE_VERSION: Final = 2
READINGS_MIN: Final = 2
"""readings before the first contribution, so that it is never a client's only reading"""
ROWS_AT_ONCE: Final = 1_024
"""rows that are learnt in one go, so that every new block is still remembered when it is counted"""
LEVEL_READINGS_MAX: Final = ROWS_AT_ONCE
"""readings up to which a client's own level is found anew whenever they have doubled, not only in
each evaluation"""
FLOOR_OF_RAW: Final = 1e-300
"""added before logarithms of raw rows, whose spread is not known yet; see `client.standardized`"""
RAW_MAX: Final = 1e18
"""raw readings beyond this are clipped to it; within declared bounds there are none"""
SPREAD_QUANTILES: Final = (0.05, 0.5, 0.95)
SPREADS_APART: Final = 3.29
"""standard deviations of a Gaussian between the outer two of these quantiles"""


class RegimesOptions(AlgorithmOptions):
    """Options of both halves."""

    ALGORITHM = "regimes"

    pool: bool = option(
        False,
        "whether the levels of clients are compared; otherwise each client's own level is taken "
        "from its rows, since the same regime may lie elsewhere for a sensor at another place",
    )
    rebuild_readings: int = option(
        1000,
        "readings of all clients between two evaluations for regimes, at least; they also grow "
        "by a quarter",
        least=100,
    )

    blocks_max: int = option(
        BLOCKS_MAX,
        "blocks of each scale that a client remembers; with 3500 of 8 features it takes 3.7 MiB",
        least=100,
        most=BLOCKS_MAX,
    )

    @property
    def keys(self) -> tuple[Key, ...]:
        """All scales, with how levels are taken."""
        return tuple((w, not self.pool) for w in SCALES)


FIRST_QUERY: Final = Phase.COLUMNS


def first_query(keys: tuple[Key, ...]) -> Query:
    """The query to clients before the first snapshot."""
    return Query(FIRST_QUERY, 0, keys)


def query_digest(query: Query) -> int:
    """The number by which an answer names its query."""
    packing = Packing()
    packing.put_query(query)
    return packing.digest


def codebook_digest(codebook: Codebook | None, single: int) -> int:
    """The number by which an update names the codebook that it has counted by; what was counted is
    no part of it."""
    packing = Packing()
    packing.put_codebook(codebook)
    packing.whole.append(single if codebook is None else 0)
    return packing.digest


class _Counting:
    """The regimes of new blocks under one codebook."""

    def __init__(self, codebook: Codebook | None, single: int, blocks: int) -> None:
        """`blocks`: those of its scale that were cut before."""
        self.codebook = codebook
        self.single = single
        self.blocks = blocks
        self.digest = codebook_digest(codebook, single)
        k = 0 if codebook is None else len(codebook.identity)
        self.before: Ints = np.full(2, -1, np.int64)
        """sets of the last two blocks, the newest last; -1 for none"""
        self.changes: Ints = np.zeros((2, k, k), np.int64)
        """changes since the last contribution"""
        self.readings: dict[int, int] = {}
        """identity -> readings, since the last contribution"""

    def count(self, client: BlockStatistics, n_rows: int) -> None:
        """Count the blocks that the last `n_rows` rows have completed."""
        if self.codebook is None:
            self._add(self.single, n_rows)
            return
        codebook = self.codebook
        w = self.codebook.w
        new = client.memory.n_blocks[w] - self.blocks
        self.blocks += new
        if not new:
            return
        candidate = Candidate(
            w, codebook.plan.scaling.centred, codebook.plan, codebook.sets.of_cell
        )
        sets = candidate.of_block(client.blocks(w, candidate.centred)[-new:])
        # With the two blocks before, so that a change between two calls counts as well.
        joined = np.concatenate([self.before, sets])
        for lag in (1, 2):
            first = joined[2 - lag : -lag]
            second = joined[2:]
            known = first >= 0
            np.add.at(self.changes[lag - 1], (first[known], second[known]), 1)
        self.before = joined[-2:].copy()
        for found, n in zip(*np.unique(sets, return_counts=True), strict=True):
            self._add(int(codebook.identity[found]), int(n) * w)

    def take(self) -> tuple[Ints, Ints, Ints]:
        """Identities and readings of regimes, and changes, since the last time; from then on
        anew."""
        regime, count = (
            np.array(list(part), np.int64) for part in (self.readings, self.readings.values())
        )
        changes = self.changes.ravel().copy()
        self.readings = {}
        self.changes = np.zeros_like(self.changes)
        return regime, count, changes

    def _add(self, identity: int, n: int) -> None:
        if n:
            self.readings[identity] = self.readings.get(identity, 0) + n


class RegimesHalf(ABC):
    """Parts that both halves share: options, and a number of features that is given, or fixed by
    the first rows."""

    half: ClassVar[str]

    def __init__(self, dimensions: int | None = None, **options: Any) -> None:
        check_dimensions(dimensions)
        self.options = RegimesOptions.parse(options)
        self._given_width = dimensions
        self._reset(dimensions)

    @abstractmethod
    def _reset(self, width: int | None) -> None:
        """Forget everything."""

    @abstractmethod
    def _restore_from(self, saved: StateReader, width: int | None) -> None:
        """Become the saved half of a new one. Raises `InvalidState` and `InvalidData`."""

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has
        changed."""
        saved = StateReader(state, STATE_VERSION, half=self.half, options=self.options.model_dump())
        # A new half takes the state first, so that a damaged one changes nothing here.
        fresh = type(self)(self._given_width, **self.options.model_dump())
        width = saved.read_optional_int("width", least=1)
        if self._given_width not in (None, width):
            raise InvalidState(f"saved with width {width}, this is {self._given_width}")
        fresh._reset(width)
        try:
            fresh._restore_from(saved, width)
        except InvalidData as damaged:
            raise InvalidState(f"saved state contradicts itself: {damaged}") from None
        vars(self).update(vars(fresh))


class RegimesClient(RegimesHalf):
    """Learns rows as blocks. It contributes sums over them when a snapshot asks, and the regimes of
    new ones.

    Options: `RegimesOptions`. A half that has adopted no snapshot contributes level and spread of
    its columns.
    """

    half = "regimes client"

    def _reset(self, width: int | None) -> None:
        self._width = width
        kept = self.options.blocks_max
        memory = BlockMemory(
            width or 1, floor=FLOOR_OF_RAW, reading_max=RAW_MAX, blocks_max=kept, exact=True
        )
        self._client = BlockStatistics(width or 1, memory=memory)
        self._forget_server()

    def _forget_server(self) -> None:
        self._adopt_query(first_query(self.options.keys))
        self._counting = _Counting(None, 0, 0)
        self._client.evaluation = 0

    def _adopt_query(self, query: Query) -> None:
        self._query = query
        self._digest = query_digest(query)
        self._client.begin(query)
        self._pieces = 0
        self._complete = False
        self._new = True
        """pieces of the answer that were contributed, whether it was the last, and whether there is
        anything new"""

    @property
    def size(self) -> int:
        """Regimes of the newest snapshot, once there are readings."""
        codebook = self._counting.codebook
        return min(
            self._client.memory.n_readings, 1 if codebook is None else len(codebook.identity)
        )

    @property
    def owes_answer(self) -> bool:
        """Whether the newest snapshot asks for something that was not contributed yet."""
        queries = self._query.phase not in (Phase.COLUMNS, Phase.REST)
        return queries and not self._complete and self._client.memory.n_readings >= READINGS_MIN

    def learn(self, rows: ArrayLike) -> None:
        """rows (n, d): learn each once, in order; any batching gives the same state, bit for bit.

        Raises `InvalidData` before anything has changed.
        """
        table = check_rows(rows, self._width)
        if not len(table):
            return
        if self._width is None:
            self._reset(table.shape[1])
        # Blocks that are pushed out of the memory in the same call could not be counted.
        client = self._client
        at_once = min(ROWS_AT_ONCE, self.options.blocks_max)
        while len(table):
            known = client.memory.n_readings
            # The level is found anew whenever the readings have doubled, wherever batches end.
            level_at = min(1 << known.bit_length(), LEVEL_READINGS_MAX)
            part = table[
                : min(at_once, level_at - known) if known < LEVEL_READINGS_MAX else at_once
            ]
            table = table[len(part) :]
            client.memory.add(part)
            if known < client.memory.n_readings == level_at:
                client.find_level()
            self._counting.count(client, len(part))
        self._new = True

    def adopt(self, snapshot: Arrays) -> None:
        """Answer this snapshot from now on, and count regimes by its codebook.

        Raises `InvalidData`; then nothing has changed.
        """
        read = read_snapshot(snapshot, self.options.keys)
        width = self._width
        if (
            width is not None
            and read.query.columns is not None
            and len(read.query.columns.level) != width
        ):
            raise InvalidData("query_layout is not that of an update or snapshot of regimes")
        # Without rows there is nothing to answer with, and no width to check the snapshot by.
        if width is None:
            return
        if query_digest(read.query) != self._digest:
            self._adopt_query(read.query)
        if codebook_digest(read.codebook, read.single) != self._counting.digest:
            before = self._counting
            # Blocks cut before this codebook were counted by the one before.
            cut = 0 if read.codebook is None else self._client.memory.n_blocks[read.codebook.w]
            self._counting = _Counting(read.codebook, read.single, cut)
            # They belong to identities, which outlast a codebook; changes belong to its sets.
            self._counting.readings = before.readings

    def sequence_labels(self, snapshot: Arrays) -> RegimeLabels:
        """Regimes of rows by this snapshot, at the level of this client's own rows. Raises
        `InvalidData`."""
        return RegimeLabels(self, read_snapshot(snapshot, self.options.keys))

    def levelled(self, features: Floats, centred: bool) -> Floats:
        """(n, m) features of windows of standardized rows, in place: see
        `BlockStatistics.levelled`."""
        return self._client.levelled(features, centred)

    def contribute(self) -> Arrays:
        """The `UPDATE` arrays: regimes of the rows since the last call, and the next piece of an
        answer that is owed.

        All are empty where there is neither.
        """
        if self._client.memory.n_readings < READINGS_MIN or not (self._new or self.owes_answer):
            return {name: _empty(spec) for name, spec in UPDATE.items()}
        regime, count, changes = self._counting.take()
        piece = self._next_piece()
        header = Header(
            self._digest, self._counting.digest, self._query.phase, self._width or 1, self._complete
        )
        self._new = False
        return {
            "header": header.packed(),
            "regime": regime,
            "count": count,
            "change": changes,
            **piece.packed(),
        }

    def reset_published(self) -> None:
        """Answer as to a server that knows nothing; what is remembered answers its first
        evaluation."""
        readings = self._counting.readings
        self._forget_server()
        # The identities were those of the log that is gone; a new server begins with one regime, 0.
        self._counting.readings = {0: sum(readings.values())} if readings else {}

    def _next_piece(self) -> Piece:
        query = self._query
        width = self._width or 1
        if query.phase is Phase.COLUMNS:
            self._complete = True
            return Piece(sums=self._columns())
        if not self.owes_answer:
            return Piece()
        if query.phase is Phase.PAIRS:
            return self._next_pairs()
        piece, self._complete = dense_piece(query, self._client.answer(query), width, self._pieces)
        self._pieces += 1
        return piece

    def _next_pairs(self) -> Piece:
        """Pairs of as many scales and lags as an update has room for; at least one."""
        tables = [(place, lag) for place in self._query.places() for lag in (1, 2)]
        parts: list[tuple[int, int, int]] = []
        entries: list[Ints32] = []
        while self._pieces < len(tables):
            place, lag = tables[self._pieces]
            found = pairs_entries(self._client.pairs(self._query.plans[place], lag))
            # One table always goes, whatever its size: else an answer would never end.
            if parts and sum(map(len, entries)) + len(found) > PAIRS_AT_ONCE:
                break
            parts.append((place, lag, len(found)))
            entries.append(found)
            self._pieces += 1
        self._complete = self._pieces == len(tables)
        return Piece(parts=tuple(parts), pairs=np.concatenate([np.empty(0, np.int32), *entries]))

    def _columns(self) -> Floats:
        """(1 + 4 d,) readings, and of each column level, spread, and where most readings lie."""
        rows = self._client.memory.blocks(1)
        low, level, high = np.quantile(rows, SPREAD_QUANTILES, axis=0)
        # A column that hardly ever changes has equal quantiles, and still a deviation.
        spread = np.where(high > low, (high - low) / SPREADS_APART, rows.std(axis=0))
        return np.concatenate([[float(len(rows))], level, spread, low, high])

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        query = Packing()
        counting = self._counting
        codebook = Packing()
        query.put_query(self._query)
        codebook.put_codebook(counting.codebook)
        return {
            "version": STATE_VERSION,
            "half": self.half,
            "options": self.options.model_dump(),
            "width": self._width,
            "memory": {} if self._width is None else self._client.memory.state(),
            "level": self._client.level.copy(),
            "evaluation": self._client.evaluation,
            "query_layout": query.layout,
            "query_number": query.number,
            "pieces": self._pieces,
            "complete": int(self._complete),
            "new": int(self._new),
            "codebook_layout": codebook.layout,
            "codebook_number": codebook.number,
            "single": counting.single,
            "blocks": counting.blocks,
            "before": counting.before.copy(),
            "changes": counting.changes.ravel().copy(),
            "regimes": np.array(list(counting.readings.items()), np.int64).reshape(-1, 2),
        }

    def _restore_from(self, saved: StateReader, width: int | None) -> None:
        client = self._client
        table = {} if width is None else _memory_table(width)
        memory = saved.read_arrays("memory", table, width or 1)
        if width is not None:
            client.memory.restore(memory)
        level = saved.read_floats("level", (width or 1,))
        queried = [
            saved.read_ints("query_layout", (None,)),
            saved.read_floats("query_number", (None,)),
        ]
        unpacking = Unpacking(queried[0], queried[1], self.options.keys, "query_layout")
        self._adopt_query(unpacking.query())
        unpacking.end()
        client.level = level
        client.evaluation = saved.read_int("evaluation")
        self._pieces = saved.read_int("pieces")
        self._complete = bool(saved.read_int("complete"))
        self._new = bool(saved.read_int("new"))
        counted = [
            saved.read_ints("codebook_layout", (None,)),
            saved.read_floats("codebook_number", (None,)),
        ]
        unpacking = Unpacking(counted[0], counted[1], self.options.keys, "codebook_layout")
        codebook = unpacking.codebook()
        unpacking.end()
        self._counting = _Counting(codebook, saved.read_int("single"), saved.read_int("blocks"))
        k = 0 if codebook is None else len(codebook.identity)
        self._counting.before = saved.read_ints("before", (2,), least=-1)
        self._counting.changes = saved.read_ints("changes", (2 * k * k,)).reshape(2, k, k)
        self._counting.readings = dict(saved.read_ints("regimes", (None, 2)).tolist())
        saved.check(
            bool((self._counting.before < max(k, 1)).all()),
            "a block is of a set that does not exist",
        )


class RegimeLabels:
    """The regimes of a snapshot as a client labels its own rows by them: by windows as long as a
    block."""

    def __init__(self, half: RegimesClient, read: SnapshotRead) -> None:
        self._half = half
        self._codebook = read.codebook
        self._columns = read.query.columns
        self.digest: Final = codebook_digest(read.codebook, read.single)

    @property
    def window(self) -> int:
        """Rows of a window; 1 while there is one regime."""
        return 1 if self._codebook is None else self._codebook.w

    def numbers(self, rows: Rows) -> Ints:
        """rows (n, d), n >= window -> (n - window + 1,) the regime of each window, by its number in
        the snapshot.

        -1 for a window that lacks too many values.
        """
        codebook = self._codebook
        if codebook is None:
            return np.zeros(len(rows), np.int64)
        standard = rows if self._columns is None else self._columns.standardize(rows)
        features = window_features(np.clip(standard, -READING_MAX, READING_MAX), codebook.w)
        cells = codebook.plan.cells(self._half.levelled(features, codebook.plan.scaling.centred))
        return np.where(cells >= 0, codebook.sets.of_cell[cells], -1)


def _memory_table(width: int) -> Mapping[str, ArraySpec]:
    blocks = {
        f"blocks_{w}": ArraySpec("<f4" if w > 1 else "<f8", (f"n{w}", n_block_features(width, w)))
        for w in SCALES
    }
    return {"readings": ArraySpec("<i8", (1,)), "open": ArraySpec("<f8", ("n", width)), **blocks}


def _empty(spec: ArraySpec) -> AnyArray:
    return np.empty([size if isinstance(size, int) else 0 for size in spec.shape], spec.dtype)
