"""Whose answers are waited for, and what a region passes on: the sums of its clients' answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from shoal.algorithms.regimes.blocks import n_block_features
from shoal.algorithms.regimes.client_half import RegimesOptions
from shoal.algorithms.regimes.exchange import Key, Phase
from shoal.algorithms.regimes.messages import (
    REGION_UPDATE,
    SETS_MAX,
    Header,
    Piece,
    check_update,
    clients_of,
    count_bits,
)
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import Arrays, State
from shoal.errors import InvalidData, InvalidState
from shoal.kernels.arrays import AnyArray, Floats, Ints, Octets
from shoal.kernels.constants import COUNT_MAX

STATE_VERSION: Final = 1
HALF: Final = "regimes aggregator"
ANSWER_BYTES_MAX: Final = 512 * 1024
"""bytes of an answer before which a region contributes the part of it that it has"""
QUERIES_MAX: Final = 8
"""newest queries of which it is known who has answered them: clients may be a snapshot behind each
other"""


ABSENT_UPDATES: Final = 4
"""updates of each sender in the mean during which one must have sent any to be waited for"""
ABSENT_UPDATES_MORE: Final = 16
"""and this many in all"""


@dataclass
class Senders:
    """Clients, and regions for all of theirs, that have sent an update recently: their answers are
    waited for."""

    updates: int = 0
    """updates of all"""
    newest: dict[str, int] = field(default_factory=dict)
    """sender -> number of its newest update"""
    clients: dict[str, int] = field(default_factory=dict)
    """sender -> clients that it is, or has"""

    def take(self, sender: str, clients: int) -> None:
        """Note an update."""
        self.updates += 1
        self.newest[sender] = self.updates
        self.clients[sender] = clients

    def present(self) -> set[str]:
        """Those that have sent an update recently; the others are forgotten until they do."""
        # Counted in updates and not by the clock, so that a replay of the log waits for the same
        # senders.
        last = self.updates - ABSENT_UPDATES * len(self.newest) - ABSENT_UPDATES_MORE
        self.newest = {sender: newest for sender, newest in self.newest.items() if newest >= last}
        self.clients = {sender: self.clients[sender] for sender in self.newest}
        return set(self.newest)

    @property
    def n_clients(self) -> int:
        """Clients of all of them."""
        return sum(self.clients.values())

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restored`."""
        newest, clients = (
            np.array(list(numbers.values()), np.int64) for numbers in (self.newest, self.clients)
        )
        return {
            "updates": self.updates,
            "senders": list(self.newest),
            "newest": newest,
            "clients": clients,
        }

    @classmethod
    def restored(cls, saved: StateReader) -> Senders:
        """The saved ones. Raises `InvalidState`."""
        names = saved.read_names("senders")
        n = len(saved.read_names("senders"))
        newest = saved.read_ints("newest", (n,)).tolist()
        clients = saved.read_ints("clients", (n,), least=1).tolist()
        of_each = (dict(zip(names, numbers, strict=True)) for numbers in (newest, clients))
        return cls(saved.read_int("updates"), *of_each)


class _Answer:
    """The sum of what several clients have answered to one query."""

    def __init__(self, keys: tuple[Key, ...], width: int) -> None:
        self._keys = keys
        self._width = width
        self.sums: Floats = np.empty(0)
        self.products: Floats = np.empty(0)
        self.samples: dict[int, Octets] = {}
        """place -> blocks of its scale (s, m), as bytes"""
        self.pairs: dict[tuple[int, int], tuple[Ints, Ints]] = {}
        """place and lag -> pairs of cells that occur, ascending, and how often"""

    @property
    def is_empty(self) -> bool:
        return not (len(self.sums) or len(self.products) or self.samples or self.pairs)

    @property
    def size(self) -> int:
        """Bytes, about."""
        pairs = sum(8 * len(code) for code, _ in self.pairs.values())
        return (
            pairs
            + self.sums.nbytes
            + self.products.nbytes
            + sum(blocks.nbytes for blocks in self.samples.values())
        )

    def add(self, header: Header, arrays: Arrays) -> None:
        """Add an answer, or a piece of one. Raises `InvalidData`; then nothing has changed."""
        if header.phase == Phase.PAIRS:
            self._add_pairs(arrays)
            return
        # Everything that can be wrong is looked at before anything is added.
        parts = self._parts_of(arrays)
        sums = _sum(self.sums, arrays["sums"])
        products = _sum(self.products, arrays["products"])
        self.sums = sums
        self.products = products
        for place, blocks in parts:
            known = self.samples.get(place)
            self.samples[place] = blocks if known is None else np.concatenate([known, blocks])

    def _parts_of(self, arrays: Arrays) -> list[tuple[int, Octets]]:
        """The blocks of each place."""
        found = []
        first = 0
        sample = arrays["sample"]
        for place, _, n in arrays["part"].tolist():
            if place >= len(self._keys):
                raise InvalidData("part is of a scale that does not exist")
            m = n_block_features(self._width, self._keys[place][0])
            blocks = sample[first : first + n * m]
            if len(blocks) != n * m:
                raise InvalidData("sample has fewer blocks than its parts")
            found.append((place, blocks.reshape(n, m).copy()))
            first += n * m
        return found

    def _add_pairs(self, arrays: Arrays) -> None:
        bits = count_bits(arrays)
        first = 0
        for place, lag, n in arrays["part"].tolist():
            entries = arrays["pair"][first : first + n].astype(np.int64)
            first += n
            code, count = self.pairs.get(
                (place, lag), (np.empty(0, np.int64), np.empty(0, np.int64))
            )
            # Few of all pairs occur, so a table of codes is much smaller than one of all pairs.
            codes, which = np.unique(np.concatenate([code, entries >> bits]), return_inverse=True)
            counts = np.zeros(len(codes), np.int64)
            np.add.at(counts, which, np.concatenate([count, entries & ((1 << bits) - 1)]))
            self.pairs[place, lag] = codes, counts

    def arrays(self) -> dict[str, AnyArray]:
        """The arrays of it in a region's update."""
        bits = count_bits(REGION_UPDATE)
        tables = [((codes << bits) + counts) for codes, counts in self.pairs.values()]
        parts = [(place, 0, len(blocks)) for place, blocks in self.samples.items()]
        parts += [(place, lag, len(codes)) for (place, lag), (codes, _) in self.pairs.items()]
        sample = [blocks.ravel() for blocks in self.samples.values()]
        piece = Piece(
            self.sums, self.products, tuple(parts), np.concatenate([np.empty(0, np.uint8), *sample])
        )
        pair = np.concatenate([np.empty(0, np.int64), *tables])
        return {**piece.packed(), "products": self.products, "pair": pair}


class RegimesAggregator:
    """Adds up what the clients of a region answer, and tells when all of them have answered.

    Clients answer what the upstream federation asks, whose snapshots their region publishes. Sums
    over clients are the same wherever they are added up, but for the order: counts to the last
    bit, real numbers up to rounding.
    """

    def __init__(self, options: Mapping[str, Any], dimensions: int) -> None:
        """Raises `SettingsError` for options that the algorithm does not take."""
        self._keys = RegimesOptions.parse(options).keys
        self._width = dimensions
        self._senders = Senders()
        self._queries: dict[int, set[str]] = {}
        """digest of a query -> those that have answered it"""
        self._columns: dict[str, Floats] = {}
        """columns as each has sent them, while that is asked"""
        self._header = Header(0, 0, int(Phase.COLUMNS), dimensions, False)
        self._complete = False
        self._announced = False
        """whether all have answered `_header.query`, and whether the upstream federation knows
        it"""
        self._begin()

    def _begin(self) -> None:
        self._answer = _Answer(self._keys, self._width)
        self._readings: dict[int, int] = {}
        """identity of a regime -> readings"""
        self._changes: Ints = np.empty(0, np.int64)
        self._new = False

    @property
    def is_due(self) -> bool:
        """Whether all have answered, and the upstream federation does not know it yet."""
        return self._complete and not self._announced

    def _is_complete(self) -> bool:
        if self._header.phase in (Phase.COLUMNS, Phase.REST):
            return False
        answered = self._queries.get(self._header.query, set())
        # One that has answered and is away since still counts, so `present` may be smaller than
        # `answered`.
        return bool(answered) and self._senders.present() <= answered

    def has_room(self, arrays: Arrays, readings: int) -> bool:
        """Whether an update is about the same query and codebook as those added, and small enough
        to be added to them."""
        if not self._new or not len(arrays["header"]):
            return True
        header = Header.of(arrays)
        if (
            header.codebook != self._header.codebook
            or len(self._readings.keys() | set(arrays["regime"].tolist())) > SETS_MAX
        ):
            return False
        if self._answer.is_empty or not (
            _answers(arrays) or (header.complete and header.query not in self._queries)
        ):
            return True
        more = sum(arrays[name].nbytes for name in ("sums", "products", "sample")) + 8 * len(
            arrays["pair"]
        )
        return header.query == self._header.query and self._answer.size + more <= ANSWER_BYTES_MAX

    def add(self, arrays: Arrays, readings: int, client: str = "") -> None:
        """Add one update of a client or of a lower region. Raises `InvalidData`."""
        header = check_update(arrays, readings, COUNT_MAX)
        if header is None:
            return
        if header.width != self._width:
            raise InvalidData(f"its rows have {header.width} features, expected {self._width}")
        self._take_in(header, arrays, client)
        self._senders.take(client, clients_of(arrays))
        self._new = True
        self._complete = self._is_complete()

    def _take_in(self, header: Header, arrays: Arrays, client: str) -> None:
        has_answer = _answers(arrays)
        if has_answer and header.phase != Phase.COLUMNS:
            self._answer.add(header, arrays)
        if has_answer or (header.complete and header.query not in self._queries):
            self._turn_to(header)
        if header.phase == Phase.COLUMNS and has_answer:
            self._columns[client] = arrays["sums"].astype(np.float64)
        elif header.complete:
            self._queries.setdefault(header.query, set()).add(client)
        for identity, n in zip(arrays["regime"].tolist(), arrays["count"].tolist(), strict=True):
            self._readings[identity] = self._readings.get(identity, 0) + n
        # Changes are counted by position in a codebook: those by another codebook cannot be added.
        same = header.codebook == self._header.codebook and len(arrays["change"]) == len(
            self._changes
        )
        self._changes = (
            self._changes + arrays["change"] if same else arrays["change"].astype(np.int64)
        )
        self._header = Header(
            self._header.query, header.codebook, self._header.phase, self._width, False
        )

    def _turn_to(self, header: Header) -> None:
        """Answer the query of this update from now on."""
        if header.query == self._header.query:
            return
        self._queries.setdefault(header.query, set())
        if header.phase != Phase.COLUMNS:
            self._columns = {}
        # In the order of insertion: the oldest query first.
        while len(self._queries) > QUERIES_MAX:
            del self._queries[next(iter(self._queries))]
        self._header = Header(header.query, self._header.codebook, header.phase, self._width, False)
        self._announced = False

    def contribute(self) -> Arrays:
        """The `REGION_UPDATE` arrays of what was added since the last call."""
        arrays = self._arrays()
        self._announced = self._complete
        self._begin()
        return arrays

    def _arrays(self) -> dict[str, AnyArray]:
        answer = self._answer.arrays()
        if self._new and self._columns and self._header.phase == Phase.COLUMNS:
            answer["sums"] = _pooled(np.array(list(self._columns.values())))
        header = Header(
            self._header.query,
            self._header.codebook,
            self._header.phase,
            self._width,
            self._complete,
        )
        return {
            "header": header.packed() if self._new else np.empty(0, np.int64),
            "regime": np.array(list(self._readings), np.int64),
            "count": np.array(list(self._readings.values()), np.int64),
            "change": self._changes.copy(),
            **answer,
            "clients": np.array([self._senders.n_clients] if self._new else [], np.int64),
        }

    def state(self) -> State:
        """Everything that further contributions depend on, as copies."""
        return {
            "version": STATE_VERSION,
            "half": HALF,
            "held": self._arrays(),
            "header": self._header.packed(),
            "complete": int(self._complete),
            "announced": int(self._announced),
            "queries": [
                # Sorted, as a set has no order: equal states must be equal bytes.
                [str(query), *sorted(answered)]
                for query, answered in self._queries.items()
            ],
            "column_senders": list(self._columns),
            "columns": np.array(list(self._columns.values())).reshape(
                len(self._columns), 1 + 4 * self._width
            ),
            **self._senders.state(),
        }

    def restore(self, state: State) -> None:
        """Become the saved aggregator. Raises `InvalidState`; then nothing has changed."""
        saved = StateReader(state, STATE_VERSION, half=HALF)
        fresh = RegimesAggregator({}, self._width)
        fresh._keys = self._keys
        fresh._begin()
        held = saved.read_arrays("held", REGION_UPDATE, self._width)
        try:
            header = Header.of({"header": saved.read_ints("header", (None,))})
            check = check_update(held, COUNT_MAX, 0)
            if check is not None:
                fresh._take_in(check, {**held, "sums": held["sums"]}, "")
        except InvalidData as damaged:
            raise InvalidState(f"saved sums: {damaged}") from None
        fresh._header = header
        fresh._new = check is not None
        fresh._complete = bool(saved.read_int("complete"))
        fresh._announced = bool(saved.read_int("announced"))
        fresh._queries = _read_queries(state)
        names = saved.read_names("column_senders")
        columns = saved.read_floats("columns", (len(names), 1 + 4 * self._width))
        fresh._columns = dict(zip(names, columns, strict=True))
        fresh._senders = Senders.restored(saved)
        vars(self).update(vars(fresh))


def _answers(arrays: Arrays) -> bool:
    """Whether an update has an answer, or a piece of one."""
    return any(len(arrays[name]) for name in ("sums", "products", "part"))


def _sum(known: Floats, more: AnyArray) -> Floats:
    """The sum of what was added and another one, either of which may be empty. Raises
    `InvalidData`."""
    if not len(known) or not len(more):
        return known if len(known) else more.astype(np.float64)
    if len(known) != len(more):
        raise InvalidData("sums of the same query have different lengths")
    total: Floats = known + more
    return total


def _pooled(table: Floats) -> Floats:
    """(n, 1 + 4 d) columns of several clients -> (1 + 4 d,) those of all: means by readings, and
    outermost ends."""
    weight = table[:, 0] / max(table[:, 0].sum(), 1.0)
    d = (table.shape[1] - 1) // 4
    means = weight @ table[:, 1 : 1 + 2 * d]
    low = table[:, 1 + 2 * d : 1 + 3 * d]
    high = table[:, 1 + 3 * d :]
    return np.concatenate([[table[:, 0].sum()], means, low.min(axis=0), high.max(axis=0)])


def _read_queries(state: State) -> dict[int, set[str]]:
    try:
        return {int(query): {str(name) for name in names} for query, *names in state["queries"]}
    except (KeyError, TypeError, ValueError):
        raise InvalidState(
            "queries must be numbers with the names of those that have answered"
        ) from None
