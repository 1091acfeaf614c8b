"""What travels between both halves in a federation: queries and codebooks in snapshots, answers in
updates.

Plans of many scales have arrays of many shapes, so they travel as one array of whole numbers
(`layout`) and one of floating-point numbers (`number`), which are read in the order in which they
were put.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.regimes.blocks import BLOCKS_MAX, SCALES, n_block_features
from shoal.algorithms.regimes.client import sample_bytes, sample_of
from shoal.algorithms.regimes.exchange import (
    SAMPLE,
    Candidate,
    Codebook,
    Columns,
    Key,
    Phase,
    Query,
    Sums,
)
from shoal.algorithms.regimes.plan import CELLS, SLOW_MAX, ScalePlan, Scaling
from shoal.algorithms.regimes.sets import CellSets
from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.errors import InvalidData
from shoal.kernels.arrays import AnyArray, Floats, Ints, Ints32, Octets
from shoal.kernels.constants import COUNT_MAX

UPDATE: Final = {
    "header": ArraySpec("<i8", ("h",)),
    "regime": ArraySpec("<i8", ("r",)),
    "count": ArraySpec("<i8", ("r",), at_least_one=True),
    "change": ArraySpec("<i8", ("x",)),
    "part": ArraySpec("<i8", ("a", 3)),
    "sums": ArraySpec("<f8", ("s",)),
    "products": ArraySpec("<f4", ("p",)),
    "sample": ArraySpec("|u1", ("b",)),
    "pair": ArraySpec("<i4", ("z",)),
}
"""an update: its header (`Header`); the readings since the update before by the identity of their
regime; changes between regimes (2, k, k) in blocks since then, one and two blocks apart; and a
piece of the answer to the newest query: its parts as place, lag and entries, sums, products,
blocks, and pairs of cells with their number"""
COUNT_BITS: Final = 12
"""bits of the number of a pair of cells in an entry, whose others are the pair; a client remembers
fewer blocks"""
COUNT_BITS_OF_SUMS: Final = 44
"""those of an entry of a region, which has sums"""
REGION_UPDATE: Final = {
    **UPDATE,
    "products": ArraySpec("<f8", ("p",)),
    "pair": ArraySpec("<i8", ("z",)),
    "clients": ArraySpec("<i8", ("n",), at_least_one=True),
}
"""a region's update: sums of what its clients have sent, and how many clients it has"""
CLIENTS_MAX: Final = 2**20
"""clients of a region"""
HEADER_FIELDS: Final = 5
SAMPLE_AT_ONCE: Final = 128
"""blocks of each scale in one update"""
PAIRS_AT_ONCE: Final = 4_000
"""pairs of cells in one update; those of one scale and lag are never more"""
SETS_MAX: Final = 64
"""sets of a codebook or a candidate"""

SNAPSHOT: Final = {
    "header": ArraySpec("<i8", (6,)),
    "query_layout": ArraySpec("<i8", ("l",)),
    "query_number": ArraySpec("<f8", ("v",)),
    "codebook_layout": ArraySpec("<i8", ("bl",)),
    "codebook_number": ArraySpec("<f8", ("bv",)),
    "identity": ArraySpec("<i8", ("c",)),
    "centre": ArraySpec("<f8", ("c", "d"), rowlike=True),
    "centre_mass": ArraySpec("<f8", ("c",)),
    "spread": ArraySpec("<f8", ("c", "d")),
    "rough": ArraySpec("<f8", ("c", "d")),
    "slope": ArraySpec("<f8", ("c", "d")),
    "dwell": ArraySpec("<f8", ("c",)),
    "changes": ArraySpec("<f8", ("c", "c")),
    "recent": ArraySpec("<f8", ("c",)),
    "parent": ArraySpec("<i8", ("c",)),
    "gone": ArraySpec("<i8", ("g",)),
    "gone_into": ArraySpec("<i8", ("g",), points_into="c"),
    "gone_centre": ArraySpec("<f8", ("g", "d"), rowlike=True),
}
"""`header`: the evaluation, the readings when it began, readings of a block of the codebook (0: one
regime), changes seen, whether all is provisional, and the identity that is shown while there is
one. Then what is asked of clients, and the codebook. Of each regime: identity, mean reading,
readings, standard deviation, log roughness less log deviation, slope within a block, mean dwell in
readings (0: for good), changes to each other one, recent readings (they fade to 1/e in 500), and
the identity that it parted from (-1: none). `gone`: identities that are shown no more, the regime
that has most of their readings now, and where they were"""


@dataclass(frozen=True)
class Header:
    """What an update is of."""

    query: int
    """digest of the query that it answers"""
    codebook: int
    """digest of the codebook by which regimes and changes were counted"""
    phase: int
    """phase of that query"""
    width: int
    """columns d"""
    complete: bool
    """whether this is the last piece of the answer"""

    def packed(self) -> Ints:
        """The array `header` of it."""
        return np.array(
            [self.query, self.codebook, self.phase, self.width, int(self.complete)], np.int64
        )

    @classmethod
    def of(cls, arrays: Arrays) -> Header:
        """Raises `InvalidData`."""
        header = arrays["header"]
        _require(header.shape == (HEADER_FIELDS,), "header")
        query, codebook, phase, width, complete = header.tolist()
        _require(phase in tuple(Phase) and width >= 1 and complete in (0, 1), "header")
        return cls(query, codebook, phase, width, bool(complete))


def _require(holds: bool | np.bool_, name: str) -> None:
    if not holds:
        raise InvalidData(f"{name} is not that of an update or snapshot of regimes")


@dataclass
class Packing:
    """Numbers that are put one after the other."""

    whole: list[int] = field(default_factory=list)
    parts: list[Floats] = field(default_factory=list)

    @property
    def layout(self) -> Ints:
        """(l,) the whole numbers."""
        return np.array(self.whole, np.int64)

    @property
    def number(self) -> Floats:
        """(v,) the others."""
        return np.concatenate([np.empty(0), *(part.ravel() for part in self.parts)])

    @property
    def digest(self) -> int:
        """A number of 63 bits that identifies all of them."""
        digest = hashlib.blake2b(
            self.layout.tobytes() + b"/" + self.number.tobytes(), digest_size=8
        ).digest()
        # 63 bits, so that it fits the signed whole numbers of `header`.
        return int.from_bytes(digest, "little") >> 1

    def put_columns(self, columns: Columns | None) -> None:
        self.whole.append(0 if columns is None else len(columns.level))
        if columns is not None:
            self.parts += [columns.level, columns.spread]

    def put_scaling(self, scaling: Scaling) -> None:
        self.whole += [scaling.w, int(scaling.centred), len(scaling.mean)]
        self.parts += [scaling.mean, scaling.deviation]

    def put_plan(self, plan: ScalePlan) -> None:
        self.put_scaling(plan.scaling)
        self.whole += [plan.slow.shape[1], len(plan.codewords)]
        self.parts += [plan.origin, plan.slow, plan.codewords]

    def put_codebook(self, codebook: Codebook | None, with_changes: bool = False) -> None:
        self.whole.append(0 if codebook is None else len(codebook.identity))
        if codebook is not None:
            self.put_plan(codebook.plan)
            self.whole += [*codebook.sets.of_cell.tolist(), *codebook.identity.tolist()]
            if with_changes:
                self.parts += [codebook.sets.changes, codebook.sets.changes_2]

    def put_candidates(self, candidates: tuple[Candidate, ...]) -> None:
        self.whole.append(len(candidates))
        for candidate in candidates:
            self.whole += [candidate.w, int(candidate.centred), int(candidate.plan is not None)]
            if candidate.plan is not None:
                self.put_plan(candidate.plan)
                self.whole += candidate.of_cell.tolist()

    def put_scalings(self, scalings: Mapping[int, Scaling]) -> None:
        self.whole.append(len(scalings))
        for place, scaling in scalings.items():
            self.whole.append(place)
            self.put_scaling(scaling)

    def put_plans(self, plans: Mapping[int, ScalePlan]) -> None:
        self.whole.append(len(plans))
        for place, plan in plans.items():
            self.whole.append(place)
            self.put_plan(plan)

    def put_query(self, query: Query) -> None:
        self.whole += [int(query.phase), query.evaluation]
        self.put_columns(query.columns)
        self.put_scalings(query.scalings)
        self.put_plans(query.plans)
        self.put_candidates(query.candidates)
        self.put_codebook(query.last)


class Unpacking:
    """Reads what a `Packing` has put; every method raises `InvalidData` for what cannot be that."""

    def __init__(
        self, layout: AnyArray, number: AnyArray, keys: tuple[Key, ...], name: str
    ) -> None:
        self._layout = layout
        self._number = number
        self._keys = keys
        self._name = name
        self._whole = 0
        self._part = 0

    def whole(self, least: int, most: int) -> int:
        """The next whole number, which lies between these."""
        return int(self.wholes(1, least, most)[0])

    def wholes(self, n: int, least: int, most: int) -> Ints:
        """(n,) the next whole numbers."""
        found: Ints = self._layout[self._whole : self._whole + n].astype(np.int64)
        self._whole += n
        _require(len(found) == n and (found >= least).all() and (found <= most).all(), self._name)
        return found

    def floats(self, *shape: int) -> Floats:
        """The next numbers, in this shape."""
        # The product of an empty shape is 1: a single number.
        n = int(np.prod(shape))
        found: Floats = self._number[self._part : self._part + n].astype(np.float64)
        self._part += n
        _require(len(found) == n and np.isfinite(found).all(), self._name)
        return found.reshape(shape)

    def end(self) -> None:
        """All has been read."""
        _require((self._whole, self._part) == (len(self._layout), len(self._number)), self._name)

    def columns(self) -> Columns | None:
        d = self.whole(0, 10_000)
        if not d:
            return None
        found = Columns(self.floats(d), self.floats(d))
        _require((found.spread > 0).all(), self._name)
        return found

    def scaling(self) -> Scaling:
        w = self.whole(1, self._keys[-1][0])
        centred = bool(self.whole(0, 1))
        m = self.whole(1, 40_000)
        # Of a block of one reading there is the value alone; of longer ones there are four kinds of
        # block features.
        _require((w, centred) in self._keys and (w == 1 or m % 4 == 0), self._name)
        found = Scaling(w, centred, self.floats(m), self.floats(m))
        _require((found.deviation > 0).all(), self._name)
        return found

    def plan(self) -> ScalePlan:
        scaling = self.scaling()
        m = len(scaling.mean)
        q = self.whole(1, SLOW_MAX)
        c = self.whole(1, CELLS)
        return ScalePlan(scaling, self.floats(m), self.floats(m, q), self.floats(c, q))

    def codebook(self, with_changes: bool = False) -> Codebook | None:
        k = self.whole(0, SETS_MAX)
        if not k:
            return None
        plan = self.plan()
        of_cell = self.wholes(len(plan.codewords), 0, k - 1)
        identity = self.wholes(k, 0, COUNT_MAX)
        _require(len(np.unique(identity)) == k, self._name)
        shape = (k, k)
        changes = [self.floats(*shape) if with_changes else np.zeros(shape) for _ in range(2)]
        return Codebook(plan, CellSets(of_cell, *changes), identity)

    def candidates(self) -> tuple[Candidate, ...]:
        found = []
        for _ in range(self.whole(0, 3)):
            candidate = Candidate(self.whole(1, self._keys[-1][0]), bool(self.whole(0, 1)))
            if self.whole(0, 1):
                plan = self.plan()
                candidate = replace(
                    candidate, plan=plan, of_cell=self.wholes(len(plan.codewords), 0, SETS_MAX - 1)
                )
            _require((candidate.w, candidate.centred) in self._keys, self._name)
            found.append(candidate)
        return tuple(found)

    def query(self) -> Query:
        phase = Phase(self.whole(0, len(Phase) - 1))
        evaluation = self.whole(0, COUNT_MAX)
        columns = self.columns()
        scalings = self.scalings()
        plans = self.plans()
        return Query(
            phase,
            evaluation,
            self._keys,
            columns,
            scalings,
            plans,
            self.candidates(),
            self.codebook(),
        )

    def scalings(self) -> dict[int, Scaling]:
        last = len(self._keys) - 1
        return {self.whole(0, last): self.scaling() for _ in range(self.whole(0, last + 1))}

    def plans(self) -> dict[int, ScalePlan]:
        last = len(self._keys) - 1
        return {self.whole(0, last): self.plan() for _ in range(self.whole(0, last + 1))}


@dataclass(frozen=True, eq=False)
class Piece:
    """A piece of an answer, as arrays of an update."""

    sums: Floats = field(default_factory=lambda: np.empty(0))
    products: Floats = field(default_factory=lambda: np.empty(0))
    parts: tuple[tuple[int, int, int], ...] = ()
    """place of each array of the piece, lag (0: blocks) and entries"""
    sample: Octets = field(default_factory=lambda: np.empty(0, np.uint8))
    pairs: Ints32 = field(default_factory=lambda: np.empty(0, np.int32))

    def packed(self) -> dict[str, AnyArray]:
        """Arrays of the update table."""
        return {
            "part": np.array(self.parts, np.int64).reshape(-1, 3),
            "sums": self.sums,
            "products": self.products.astype(np.float32),
            "sample": self.sample,
            "pair": self.pairs,
        }


def dense_piece(query: Query, answer: Sums, d: int, number: int = 0) -> tuple[Piece, bool]:
    """The piece of this number of an answer, and whether it is the last.

    Products are sent once. Of larger samples a first piece has every second block and another one
    the others.
    """
    if query.phase is not Phase.PRODUCTS:
        return Piece(sums=_joined([answer[name] for name in query.forms(d)])), True
    products = [_half(answer[name]) for name in query.forms(d)] if number == 0 else []
    samples = {place: answer[f"{place}/{SAMPLE}"] for place in query.places()}
    pieces = 1 + (max(map(len, samples.values()), default=0) > SAMPLE_AT_ONCE)
    samples = {place: blocks[number::pieces] for place, blocks in samples.items()}
    parts = tuple((place, 0, len(blocks)) for place, blocks in samples.items())
    packed = [sample_bytes(blocks).ravel() for blocks in samples.values()]
    sample = np.concatenate([np.empty(0, np.uint8), *packed])
    return Piece(products=_joined(products), parts=parts, sample=sample), number + 1 >= pieces


def pairs_entries(pairs: Floats) -> Ints32:
    """(c, c) counts -> (z,) the pairs that occur, each with its number."""
    # Most pairs never occur, and a whole number for each of them would be most of an update.
    code = np.flatnonzero(pairs)
    return ((code << COUNT_BITS) + pairs.ravel()[code].astype(np.int64)).astype(np.int32)


def _joined(arrays: list[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *(array.ravel() for array in arrays)])


def _half(array: Floats) -> Floats:
    """The upper half of a symmetric array; any other as it is."""
    return array[np.triu_indices(len(array))] if array.ndim == 2 else array


def _whole(half: Floats, m: int) -> Floats:
    full = np.zeros((m, m))
    above = np.triu_indices(m)
    full[above] = half
    return full + np.triu(full, 1).T


def unpack_answer(query: Query, arrays: Arrays, d: int) -> Sums | None:
    """The sums in an update that answers this query; None where its arrays are not those of an
    answer to it."""
    forms = query.forms(d)
    if query.phase is Phase.PAIRS:
        return _unpack_pairs(forms, arrays)
    if query.phase is not Phase.PRODUCTS:
        return _split(arrays["sums"], forms)
    return _unpack_products(query, forms, arrays, d)


def _split(numbers: AnyArray, forms: dict[str, tuple[int, ...]]) -> Sums | None:
    sizes = [int(np.prod(shape)) for shape in forms.values()]
    if len(numbers) != sum(sizes):
        return None
    cuts = np.split(numbers.astype(np.float64), np.cumsum(sizes)[:-1]) if sizes else []
    return {
        name: cut.reshape(shape) for (name, shape), cut in zip(forms.items(), cuts, strict=True)
    }


def _unpack_products(
    query: Query, forms: dict[str, tuple[int, ...]], arrays: Arrays, d: int
) -> Sums | None:
    answer: Sums = {}
    if len(arrays["products"]):
        packed = {
            name: (s[0] * (s[0] + 1) // 2,) if len(s) == 2 else s for name, s in forms.items()
        }
        found = _split(arrays["products"], packed)
        if found is None:
            return None
        # Rounded to 32 bits by the client: the products are estimates from some thousand blocks,
        # and they are most of an answer.
        answer = {
            name: _whole(values, forms[name][0]) if len(forms[name]) == 2 else values
            for name, values in found.items()
        }
    parts = [
        (place, n, n_block_features(d, query.keys[place][0]))
        for place, _, n in arrays["part"].tolist()
    ]
    if tuple(place for place, _, _ in parts) != query.places() or sum(
        n * m for _, n, m in parts
    ) != len(arrays["sample"]):
        return None
    first = 0
    for place, n, m in parts:
        answer[f"{place}/{SAMPLE}"] = sample_of(
            arrays["sample"][first : first + n * m].reshape(n, m)
        )
        first += n * m
    return answer


def _unpack_pairs(forms: dict[str, tuple[int, ...]], arrays: Arrays) -> Sums | None:
    answer: Sums = {}
    bits = count_bits(arrays)
    first = 0
    for place, lag, n in arrays["part"].tolist():
        name = f"{place}/pairs"
        if name not in forms or lag not in (1, 2):
            return None
        entries = arrays["pair"][first : first + n].astype(np.int64)
        first += n
        code = entries >> bits
        cells = forms[name][1]
        # Checked before it is an index: below 0 NumPy would count from the end.
        if len(code) and (code.min() < 0 or code.max() >= cells**2):
            return None
        table = answer.setdefault(name, np.zeros(forms[name]))
        table[lag - 1].ravel()[code] = entries & ((1 << bits) - 1)
    return answer


def count_bits(arrays: Mapping[str, object]) -> int:
    """Bits of the number in an entry of `pair`, by whether the update is a region's."""
    return COUNT_BITS_OF_SUMS if "clients" in arrays else COUNT_BITS


def clients_of(arrays: Arrays) -> int:
    """Clients that an update is of. Raises `InvalidData`."""
    if "clients" not in arrays:
        return 1
    _require(
        arrays["clients"].shape == (1,) and 1 <= int(arrays["clients"][0]) <= CLIENTS_MAX, "clients"
    )
    return int(arrays["clients"][0])


class SnapshotRead(NamedTuple):
    """The parts of a snapshot that clients use."""

    query: Query
    codebook: Codebook | None
    single: int
    """the identity while there is one regime"""


def read_snapshot(arrays: Arrays, keys: tuple[Key, ...]) -> SnapshotRead:
    """The query and the codebook of a snapshot. Raises `InvalidData`."""
    query = Unpacking(arrays["query_layout"], arrays["query_number"], keys, "query_layout")
    codebook = Unpacking(
        arrays["codebook_layout"], arrays["codebook_number"], keys, "codebook_layout"
    )
    found = SnapshotRead(query.query(), codebook.codebook(), int(arrays["header"][5]))
    query.end()
    codebook.end()
    _require(found.single >= 0, "header")
    return found


def check_update(arrays: Arrays, readings: int, spare: int) -> Header | None:
    """The header of an update whose arrays fit together; None for an empty one.

    `readings`: those that it is from, `spare` those that each client may count besides. Raises
    `InvalidData`.
    """
    for name in UPDATE:
        _require(name in arrays and isinstance(arrays[name], np.ndarray), name)
    if not any(len(arrays[name]) for name in UPDATE):
        return None
    header = Header.of(arrays)
    clients = clients_of(arrays)
    bits = count_bits(arrays)
    spare = spare * clients
    blocks = BLOCKS_MAX * clients
    regime = arrays["regime"]
    count = arrays["count"]
    part = arrays["part"]
    _require(regime.ndim == 1 and regime.shape == count.shape and len(regime) <= SETS_MAX, "regime")
    _require((regime >= 0).all() and len(np.unique(regime)) == len(regime), "regime")
    # As a float: whole numbers of a malicious client may add up beyond 64 bits.
    _require((count >= 1).all() and float(count.sum(dtype=np.float64)) <= readings + spare, "count")
    change = arrays["change"]
    # Two tables of k by k, one for each lag.
    k = round(np.sqrt(len(change) / 2))
    _require(
        change.ndim == 1 and len(change) == 2 * k * k and k <= SETS_MAX and (change >= 0).all(),
        "change",
    )
    _require(float(change.sum(dtype=np.float64)) <= 2 * (readings + spare), "change")
    _require(
        part.ndim == 2 and part.shape[1] == 3 and (part >= 0).all() and (part <= blocks).all(),
        "part",
    )
    entries = int(part[:, 2].sum())
    sample = len(arrays["sample"])
    is_pairs = header.phase == Phase.PAIRS
    most = PAIRS_AT_ONCE if clients == 1 else len(SCALES) * 2 * CELLS**2
    _require(
        len(arrays["pair"]) == (entries if is_pairs else 0) and len(arrays["pair"]) <= most, "pair"
    )
    _require(is_pairs or (sample == 0) == (entries == 0), "sample")
    _require(
        (arrays["pair"] >= 0).all() and (arrays["pair"] & ((1 << bits) - 1) <= blocks).all(), "pair"
    )
    _require(
        header.phase == Phase.PRODUCTS or (sample == 0 and not len(arrays["products"])), "products"
    )
    for name in ("sums", "products"):
        _require(arrays[name].ndim == 1 and np.isfinite(arrays[name]).all(), name)
    if header.phase == Phase.COLUMNS:
        _require(len(arrays["sums"]) == 1 + 4 * header.width, "sums")
    return header
