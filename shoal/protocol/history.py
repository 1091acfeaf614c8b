"""The history of a model as it travels: readings of each cluster and of each client, in bins.

A bin is a span of 5 minutes, of 30 minutes, of 6 hours or of a day (UTC), by the times in the
updates. Bins of 5 minutes and of 6 hours also hold where the readings of each cluster lay, once
they are over. The server publishes each bin that has changed with the next snapshot, to the
compacted topic `<federation>.history`, so that what it has decided (which cluster a reading fell
to) is recorded and never decided again.

Its numbers travel in packed tables. A packed table is compressed by zlib (RFC 1950). Within are the
number of rows (4 bytes, little-endian), then the columns, one after the other: 1, 2, 4 or 8, the
bytes of each number in it, then its numbers (signed, little-endian). In all columns but the last
each number is the difference from the one above it; the first is itself.
"""

from __future__ import annotations

import operator
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import ClassVar, Final, NamedTuple, Self

import numpy as np

from shoal.errors import MessageRejected
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.checks import (
    TEXT_CHARACTERS_MAX,
    is_cluster_name,
    is_count,
    is_name,
    require,
)
from shoal.protocol.messages import ModelMessage

FORMS: Final[Mapping[int, str]] = {1: "<i1", 2: "<i2", 4: "<i4", 8: "<i8"}
"""bytes of a number -> its type"""
CODES: Final[Mapping[int, str]] = {1: "b", 2: "h", 4: "i", 8: "q"}
"""the same, as `struct` names it"""
HEAD_BYTES = 4
COMPRESSION_LEVEL = 4
"""a quarter of the time of zlib's own 6; the tables of a bin become 3 % longer"""
FEW_ROWS = 64
"""rows up to which Python's own numbers are quicker than arrays, by far: most bins have a few
clusters and clients"""
FEW_BYTES = 512
"""contents that zlib compresses with its smallest window: to prepare the large one takes ten times
as long as a bin"""
STORED_BYTES = 64
"""contents that are not compressed: most bins of a slow sensor, which would become 8 bytes shorter
in twice the time"""
STORED = b"\x18\x19\x01"
"""bytes that they begin with: the header of zlib for its smallest window, and that of a last block
that is stored"""


def _lie_in(column: Sequence[int] | Ints, least: int) -> bool:
    if isinstance(column, np.ndarray):
        return bool(column.min(initial=least) >= least and column.max(initial=least) <= COUNT_MAX)
    return min(column, default=least) >= least and max(column, default=least) <= COUNT_MAX


class PackedTable(bytes):
    """A table that `pack_table` has packed, and what is known to be in it."""

    columns: int
    rows: int
    counts: bool
    """whether all keys and readings are such as they may be"""


def pack_table(table: Ints) -> PackedTable:
    """table (n, columns) -> bytes."""
    rows, columns = table.shape
    if not rows and columns in EMPTY:
        return EMPTY[columns]
    parts = [struct.pack("<I", rows)]
    last = columns - 1
    counts = True
    of_table = table.T.tolist() if rows <= FEW_ROWS else np.array(table.T, order="C")
    for number, column in enumerate(of_table):
        is_key = number < last
        counts = counts and _lie_in(column, NO_CLUSTER if is_key else 0)
        if isinstance(column, list):
            if is_key:
                # Differences of sorted keys are small, so a narrower type holds them; the last
                # column has the counts.
                # All differences are there before any is set.
                column[1:] = map(operator.sub, column[1:], column)
            width = _bytes_of(min(column, default=0), max(column, default=0))
            parts.append(struct.pack(f"<B{rows}{CODES[width]}", width, *column))
            continue
        if is_key:
            # Of a copy, as the numbers before are differences by the time that they are needed.
            column[1:] -= column[:-1].copy()
        width = _bytes_of(int(column.min()), int(column.max()))
        parts += [bytes([width]), column.astype(FORMS[width]).tobytes()]
    packed = PackedTable(_compressed(b"".join(parts)))
    packed.columns = columns
    packed.rows = rows
    packed.counts = counts
    if not rows:
        EMPTY[columns] = packed
    return packed


def _compressed(contents: bytes) -> bytes:
    if len(contents) > FEW_BYTES:
        return zlib.compress(contents, COMPRESSION_LEVEL)
    if len(contents) > STORED_BYTES:
        small = zlib.compressobj(COMPRESSION_LEVEL, wbits=9, memLevel=1)
        return small.compress(contents) + small.flush()
    # One block that is not compressed, as RFC 1950 and 1951 have it.
    size = len(contents)
    return b"".join(
        [
            STORED,
            struct.pack("<HH", size, size ^ 0xFFFF),
            contents,
            struct.pack(">I", zlib.adler32(contents)),
        ]
    )


def _bytes_of(low: int, high: int) -> int:
    """The fewest bytes of a signed number in which all from `low` to `high` have room."""
    # A signed type reaches one further below 0 than above.
    most = max(high, -low - 1)
    if most < 1 << 7:
        return 1
    if most < 1 << 15:
        return 2
    if most < 1 << 31:
        return 4
    return 8


def unpack_table(packed: bytes, columns: int, rows_max: int) -> Ints:
    """bytes -> table (n, columns).

    Raises `MessageRejected` ("malformed"), also for more rows than `rows_max`.
    """
    unpacked = _unpacked_columns(packed, columns, rows_max)
    try:
        return np.array(unpacked, dtype=np.int64).reshape(columns, -1).T
    except OverflowError:
        raise MessageRejected("malformed", "a table with numbers beyond 64 bits") from None


def _unpacked_columns(packed: bytes, columns: int, rows_max: int) -> list[Sequence[int] | Ints]:
    # No more is unpacked than the largest valid table has: a few bytes may inflate to gigabytes.
    contents = _inflated(packed, HEAD_BYTES + columns * (1 + max(FORMS) * rows_max))
    require(len(contents) >= HEAD_BYTES, "malformed", "a table without a length")
    (rows,) = struct.unpack_from("<I", contents)
    require(rows <= rows_max, "malformed", f"a table of {rows} rows, at most {rows_max}")
    table: list[Sequence[int] | Ints] = []
    place = HEAD_BYTES
    for number in range(columns):
        # 0 is no width: a table that ends here is refused below.
        width = contents[place] if place < len(contents) else 0
        end = place + 1 + width * rows
        require(width in FORMS and end <= len(contents), "malformed", "a table with broken columns")
        is_key = number < columns - 1
        column: Sequence[int] | Ints
        if rows <= FEW_ROWS:
            column = struct.unpack_from(f"<{rows}{CODES[width]}", contents, place + 1)
            if is_key:
                column = tuple(accumulate(column))
        else:
            column = np.frombuffer(contents, FORMS[width], rows, place + 1).astype(np.int64)
            if is_key:
                column = np.cumsum(column)
        table.append(column)
        place = end
    require(place == len(contents), "malformed", "a table with more than its columns")
    return table


def _inflated(packed: bytes, bytes_max: int) -> bytes:
    """Never more than `bytes_max`, however much a hostile message would become."""
    inflater = zlib.decompressobj()
    try:
        contents = inflater.decompress(packed, bytes_max)
    except zlib.error:
        raise MessageRejected("malformed", "a table that is not compressed by zlib") from None
    require(
        inflater.eof and not inflater.unused_data,
        "malformed",
        "a table that is too long, or cut off",
    )
    return contents


FINE_S: Final = 300
COARSE_S: Final = 1800
PLACES_S: Final = 21_600
DAY_S: Final = 86_400
BINS_KEPT: Final = {FINE_S: 576, COARSE_S: 17_520, PLACES_S: 1_460, DAY_S: 7_300}
"""width of a bin in seconds -> how many are kept, by the newest one: two days, a year twice, and 20
years"""
WITH_PLACES: Final = (FINE_S, PLACES_S)
"""widths of the bins that hold places, and the readings of each client in each cluster"""
PLACE_UNITS: Final = 10_000
"""places are whole numbers, this many for 1 in unit coordinates"""
PLACE_MIN = -10 * PLACE_UNITS
PLACE_MAX = 11 * PLACE_UNITS
"""places beyond are counted as these: noise may have put readings that far outside the declared
bounds"""
PLACE_UNKNOWN: Final = PLACE_MIN
"""a mean that is not known, in a table of places: the least that a known one is counted as lies one
unit above"""
PLACES_MAX: Final = 1024
"""numbers for places in a bin: those of the clusters with the most readings"""
PLACES_FEATURES_MAX: Final = 128
"""features whose places are kept, the first ones of the contract"""
PLACED_MAX: Final = 2**45
"""readings of a cluster in a bin that holds places: 64 bits hold the sum of their places"""
CELLS_MAX: Final = 2000
"""pairs of client and cluster in a bin of `FINE_S`: those with the most readings"""
PAIRS_MAX: Final = 256
"""pairs in a bin of `PLACES_S`, which stays for a year: it holds none where there are more"""
NO_CLUSTER: Final = -1
"""stands for all readings that fell to no known cluster"""
OTHER_CLIENTS: Final = -1
"""stands for all clients beyond `CLIENTS_MAX`"""
CLIENTS_MAX: Final = 1000
CLUSTERS_MAX: Final = 1000
"""clusters whose name is kept, the newest ones"""
CLUSTERS_PER_BIN_MAX: Final = 200
EMPTY: dict[int, PackedTable] = {}
"""columns -> the packed table without rows: most bins have one"""
for _columns in (2, 3):
    EMPTY[_columns] = pack_table(np.empty((0, _columns), dtype=np.int64))


class BinKey(NamedTuple):
    """Which bin: its model, its width and its start, both in seconds (the start since 1970)."""

    model: str
    width_s: int
    start: int

    def encode(self) -> bytes:
        """The key of its record."""
        return f"{self.model}/{self.width_s}/{self.start}".encode()


@dataclass(frozen=True)
class HistoryBin(ModelMessage):
    """The readings behind the updates of one bin of time. Raises `MessageRejected` ("malformed").

    It counts every reading that the server has accepted, of every client, under the time that the
    client gave it: the readings of an update are spread evenly over the time that they span. Counts
    are whole numbers of readings. Tables are packed (`shoal.protocol.history`), so that a year of
    bins stays small; `pairs` and `triples` read them.
    """

    TYPE: ClassVar[str] = "history_bin"

    width_s: int
    start: int
    """seconds since 1970, a multiple of `width_s`"""
    updates: int
    """updates that the model had absorbed when this was published: later ones are not in it"""
    clusters: bytes
    """a packed table: identity and readings of each cluster; `NO_CLUSTER` for readings of no known
    cluster"""
    clients: bytes
    """a packed table: number and readings of each client; its number is its place in the
    `HistoryNames` of the model"""
    cells: bytes
    """a packed table: number, identity and readings of each client and cluster. In bins of 300 s
    the largest 2000, in bins of 21600 s all or, where there are more than 256, none; none in
    others"""
    places: bytes | None = None
    """a packed table of where the readings of known clusters lay: identity; for each feature the
    mean of its readings, in 1/10000 of unit coordinates, or -100000 where it is not known, as the
    counts of a private model do not show it yet; readings. Each update counts whole, at the
    time of its newest reading. Only in bins of 300 s and 21600 s, once a newer one has begun"""
    features: int = 0
    """features of the contract whose means are in `places`, the first ones"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width_s in BINS_KEPT, "malformed", "width_s")
        # A sensor may claim a time before 1970.
        whole = type(self.start) is int and is_count(abs(self.start))
        require(whole and self.start % self.width_s == 0, "malformed", "start")
        require(is_count(self.updates), "malformed", "updates")
        for name, columns in (("clusters", 2), ("clients", 2), ("cells", 3)):
            require(_is_table(getattr(self, name), columns), "malformed", name)
        some = is_count(self.features) and self.features <= PLACES_FEATURES_MAX
        require(some, "malformed", "features")
        if self.places is None:
            require(not self.features, "malformed", "features")
        else:
            held = self.width_s in WITH_PLACES and isinstance(self.places, bytes)
            require(held and _are_places(self.places, self.features), "malformed", "places")

    @classmethod
    def of(  # noqa: PLR0913, PLR0917 - the fields of a bin
        cls,
        federation: str,
        contract: str,
        model: str,
        width_s: int,
        start: int,
        updates: int,
        clusters: Sequence[int],
        clients: Sequence[int],
        cells: Sequence[int],
    ) -> Self:
        """A bin whose tables are given as flat lists: identity, readings, identity, ..."""
        tables = _packed(clusters, 2), _packed(clients, 2), _packed(cells, 3)
        return cls(federation, contract, model, width_s, start, updates, *tables)

    @property
    def key(self) -> BinKey:
        """Which bin it is."""
        return BinKey(self.model, self.width_s, self.start)

    @property
    def record_key(self) -> bytes:
        """The key of its record: the newest one of a bin counts."""
        return self.key.encode()

    def without_places(self) -> HistoryBin:
        """The same counts, for a model whose features are others by now."""
        if self.places is None:
            return self
        return replace(self, places=None, features=0)

    def place_table(self) -> Ints:
        """table (k, 2 + features): identity, mean places, readings; of no rows without places."""
        if self.places is None:
            return np.empty((0, 2 + self.features), dtype=np.int64)
        return places_table(self.places, self.features)


@dataclass(frozen=True)
class HistoryNames(ModelMessage):
    """The clients and clusters that the bins of a model name by number.

    Raises `MessageRejected` ("malformed").
    """

    TYPE: ClassVar[str] = "history_names"

    clients: list[str]
    """names in the order in which they were first seen; the list only grows"""
    clusters: list[list[int | str]]
    """identity, name, and what sets it apart, as of the last event of the cluster; ended ones
    included"""
    apart_since: list[list[int]] = field(default_factory=list)
    """identity and seconds since 1970: of clusters whose readings the bins do not tell apart from
    those of others before this time, as the plan that was counted under had one cell for both"""
    update_s: int = 0
    """seconds that the readings of an update span, as a rule, to half an hour: of shorter times the
    bins say nothing, as its readings are spread over all of them"""

    def __post_init__(self) -> None:
        super().__post_init__()
        clients = isinstance(self.clients, list) and len(self.clients) <= CLIENTS_MAX
        require(clients and all(map(is_name, self.clients)), "malformed", "clients")
        clusters = isinstance(self.clusters, list) and len(self.clusters) <= CLUSTERS_MAX
        require(clusters and all(map(_is_cluster, self.clusters)), "malformed", "clusters")
        apart = isinstance(self.apart_since, list) and len(self.apart_since) <= CLUSTERS_MAX
        require(apart and all(map(_is_moment, self.apart_since)), "malformed", "apart_since")
        require(is_count(self.update_s), "malformed", "update_s")

    @property
    def record_key(self) -> bytes:
        """The key of its record: the newest one of a model counts."""
        return f"{self.model}/names".encode()


HistoryMessage = HistoryBin | HistoryNames


def key_of(record_key: bytes) -> BinKey | None:
    """The bin whose record has this key.

    None for the names of a model, and for keys of nothing known.
    """
    try:
        model, width, start = record_key.decode().split("/")
        return BinKey(model, int(width), int(start))
    except ValueError:
        # A number that is none, too few parts, or a key that is not UTF-8.
        return None


def _packed(flat: Sequence[int], columns: int) -> bytes:
    return pack_table(np.array(flat, dtype=np.int64).reshape(-1, columns))


def pairs(table: bytes) -> list[tuple[int, int]]:
    """The rows of a packed table of two columns."""
    return [(key, readings) for key, readings in readings_table(table).tolist()]


def readings_table(packed: bytes) -> Ints:
    """A packed table of two columns as an array (n, 2)."""
    return _unpacked(packed, 2)


def cells_table(packed: bytes) -> Ints:
    """A packed table of three columns as an array (n, 3)."""
    return _unpacked(packed, 3)


def triples(table: bytes) -> list[tuple[int, int, int]]:
    """The rows of a packed table of three columns."""
    rows = cells_table(table).tolist()
    return [(client, identity, readings) for client, identity, readings in rows]


def places_table(packed: bytes, features: int) -> Ints:
    """A packed table of places as an array (k, 2 + features): identity, mean places, readings."""
    return unpack_table(packed, 2 + features, clusters_placed(features))


def known_means(table: Ints) -> Floats:
    """table (k, 2 + f) of places -> the means (k, f) in unit coordinates, NaN where one is not
    known."""
    means = table[:, 1:-1]
    return np.where(means == PLACE_UNKNOWN, np.nan, means / PLACE_UNITS)


def clusters_placed(features: int) -> int:
    """Number of clusters whose places a bin can hold."""
    return PLACES_MAX // max(1, features)


def _unpacked(table: bytes, columns: int) -> Ints:
    return unpack_table(table, columns, CELLS_MAX)


def _is_table(value: object, columns: int) -> bool:
    if not isinstance(value, bytes):
        return False
    if isinstance(value, PackedTable):
        # Made here: it was looked at when it was packed, and most bins are.
        return value.columns == columns and value.rows <= CELLS_MAX and value.counts
    *keys, readings = _unpacked_columns(value, columns, CELLS_MAX)
    return all(_lie_in(column, NO_CLUSTER) for column in keys) and _lie_in(readings, 0)


def _are_places(packed: bytes, features: int) -> bool:
    if isinstance(packed, PackedTable) and not packed.rows:
        # Made here, of a bin between two updates of a slow sensor: most of its bins are.
        return packed.columns == 2 + features
    table = places_table(packed, features)
    identities = table[:, 0]
    means = table[:, 1:-1]
    readings = table[:, -1]
    if not _lie_in(identities, 0) or not _lie_in(readings, 1):
        return False
    if readings.max(initial=0) > PLACED_MAX:
        return False
    return bool((means >= PLACE_MIN).all() and (means <= PLACE_MAX).all())


def _is_moment(value: object) -> bool:
    """Whether this is a cluster and a time; a sensor may claim one before 1970."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    identity, moment = value
    return is_count(identity) and type(moment) is int and is_count(abs(moment))


def _is_cluster(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 3:
        return False
    identity, name, label = value
    short = isinstance(label, str) and len(label) <= TEXT_CHARACTERS_MAX
    return is_count(identity) and is_cluster_name(name) and short
