"""Predictions over HTTP: the readings posted to /v1/predict, what models that predict a feature
add, and their rules.

Posted readings are checked, never stored and never quoted in an error. A category is one of its
declared values. Where the contract says `missing = "learn"`, a reading may lack values: null, an
empty cell, a column that is not there.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.config.resolved import ResolvedContract
from shoal.errors import InvalidData, MissingExtra
from shoal.kernels.arrays import Floats
from shoal.protocol.messages import Snapshot
from shoal.protocol.no_value import is_no_value
from shoal.protocol.reading_faults import is_missing
from shoal.protocol.readings import Codes, codes_of
from shoal.server_node.outputs.web.answers import Predictions
from shoal.server_node.outputs.web.responses import answered, problem
from shoal.server_node.report.build import NO_SNAPSHOT
from shoal.server_node.report.regression import predicted_values, prediction_rules
from shoal.server_node.report.status import ModelStatus

# A request is held in memory whole, and computed while others wait.
ROWS_BYTES_MAX = 4 * 1024 * 1024
ROWS_MAX = 10_000
JSON = "application/json"
CSV = "text/csv"
PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"
MEDIA_TYPES = (JSON, CSV, PARQUET, ARROW)
NUMERIC = frozenset(
    {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float", "double"}
)
"""types of columns that are read"""
TEXTS = frozenset({"string", "large_string", "bool"})
"""types of further columns that are read of a category; of others, such as views, a short body may
hold gigabytes"""
DICTIONARY = "dictionary<values="
"""start of the type of a column that keeps each of its values once"""
FOOTER_BYTES_MAX = 256 * 1024
"""longest footer of a Parquet file, which is read in Python"""

Columns = dict[str, Floats]
"""name of a feature -> its values (n,): NaN where one is missing, infinite where it is none that
can be"""


class _Wanted(NamedTuple):
    """What readings may have."""

    names: list[str]
    """names of the features, in the order of the contract"""
    codes: Mapping[int, Codes]
    """position -> the values of each category"""
    gaps: bool
    """whether a reading may lack values"""
    target: int | None
    """position of the feature that the model predicts"""

    @classmethod
    def of(cls, contract: ResolvedContract, target: int | None) -> _Wanted:
        names = [feature.name for feature in contract.features]
        return cls(names, codes_of(contract.contract), contract.learns_gaps, target)

    def places(self, j: int, cells: Iterable[Any]) -> Floats:
        """Cells of the category at position j -> their places, see `Columns`."""
        places = []
        for cell in cells:
            place = self.codes[j].place_or_number(cell)
            if place is None and is_missing(cell):
                place = math.nan
            elif place is None:
                place = math.inf
            places.append(place)
        return np.array(places, dtype=np.float64)

    def wrong(self, j: int) -> str:
        """What is wrong with a value of the feature at position j that is none."""
        if j in self.codes:
            return f"not one of {', '.join(self.codes[j].values)}"
        return "not a finite number"


def read_readings(
    media_type: str, body: bytes, contract: ResolvedContract, target: int | None = None
) -> Floats:
    """A body of one of `MEDIA_TYPES` -> readings (n, d) in the order of the contract; NaN where a
    value is missing.

    A model that predicts the feature at position `target` ignores its value, which may be missing
    or null; readings have 0 there.

    Raises `InvalidData`; its message is one line, states what to send and quotes nothing of the
    body, and `MissingExtra` where Parquet or Arrow cannot be read.
    """
    wanted = _Wanted.of(contract, target)
    if media_type in (JSON, ""):
        readings = parse_rows(body, wanted)
    else:
        columns = {CSV: _csv_columns, PARQUET: _parquet_columns, ARROW: _arrow_columns}[media_type](
            body, wanted
        )
        readings = _from_columns(columns, wanted)
    if (empty := np.flatnonzero(np.isnan(readings).all(axis=1))).size:
        raise InvalidData(f"row {empty[0]} has no value")
    return readings


def _from_columns(columns: Columns, wanted: _Wanted) -> Floats:
    names = wanted.names
    target = wanted.target
    missing = [name for j, name in enumerate(names) if name not in columns and j != target]
    if missing and (not wanted.gaps or len(missing) == len(names)):
        raise InvalidData(f"there is no column {missing[0]!r}; send the columns {', '.join(names)}")
    rows = len(next(iter(columns.values()), ()))
    readings = np.zeros((rows, len(names)))
    for j, name in enumerate(names):
        if j == target:
            continue
        values = readings[:, j] = columns.get(name, np.full(rows, np.nan))
        wrong = np.isinf(values)
        if not wanted.gaps:
            wrong |= np.isnan(values)
        if wrong.any():
            raise InvalidData(f"row {np.flatnonzero(wrong)[0]}, {name}: {wanted.wrong(j)}")
    return readings


def parse_rows(body: bytes, wanted: _Wanted) -> Floats:
    """JSON, `{"rows": [...]}` or `[...]`; a row is a list in the order of features or an object by
    name. See above."""
    names = wanted.names
    target = wanted.target
    try:
        parsed = json.loads(body, parse_constant=_constant)
    except (ValueError, RecursionError):
        raise InvalidData(
            'the body is not JSON; send {"rows": [[...], ...]} with finite numbers'
        ) from None
    rows = parsed
    if isinstance(parsed, dict):
        rows = parsed.get("rows")
    if not isinstance(rows, list):
        raise InvalidData('there are no rows; send {"rows": [[...], ...]}, or [[...], ...]')
    _check_number(len(rows))
    readings = np.empty((len(rows), len(names)))
    for i, row in enumerate(rows):
        listed = row
        if isinstance(row, dict):
            listed = _by_name(row, i, wanted)
        if target is not None:
            listed = _with_target(listed, len(names), target)
        readings[i] = _checked_row(listed, i, wanted)
    return readings


def _check_number(rows: int) -> None:
    if rows > ROWS_MAX:
        raise InvalidData(f"{rows} rows; send at most {ROWS_MAX} at a time")


def _by_name(row: dict[str, Any], i: int, wanted: _Wanted) -> list[Any]:
    """The values of an object in the order of the contract; other fields are ignored."""
    names = wanted.names
    target = wanted.target
    missing = [name for j, name in enumerate(names) if name not in row and j != target]
    if missing and not wanted.gaps:
        raise InvalidData(f"row {i} has no {missing[0]!r}; send {', '.join(names)}")
    values = [row.get(name) for name in names]
    if target is not None:
        values[target] = None
    return values


def _with_target(row: Any, width: int, target: int) -> Any:
    """A row without the target, or with null there, with 0 in its place; others unchanged."""
    if not isinstance(row, list):
        return row
    if len(row) == width - 1:
        return [*row[:target], 0.0, *row[target:]]
    if len(row) == width and row[target] is None:
        return [*row[:target], 0.0, *row[target + 1 :]]
    return row


def _checked_row(row: Any, i: int, wanted: _Wanted) -> list[float]:
    width = len(wanted.names)
    if not isinstance(row, list):
        raise InvalidData(f"row {i} is not a list of numbers, and no object of them by name")
    if len(row) != width:
        raise InvalidData(f"row {i} has {len(row)} values; this federation has {width} features")
    numbers = []
    for j, value in enumerate(row):
        number = value
        if j in wanted.codes and isinstance(value, list | dict):
            # Neither can be looked up among the values of a category.
            number = None
        elif j in wanted.codes:
            number = wanted.codes[j].place_or_number(value)
        if wanted.gaps and (is_missing(value) or _is_word(value, number, j, wanted)):
            number = math.nan
        elif (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not _is_finite(number)
        ):
            raise InvalidData(f"row {i}, value {j}: {wanted.wrong(j)}")
        numbers.append(number)
    return numbers


def _is_word(value: Any, number: Any, j: int, wanted: _Wanted) -> bool:
    """Whether a value is a text that means "no value", and none that the contract declares."""
    is_declared = j in wanted.codes and number is not None
    return isinstance(value, str) and not is_declared and is_no_value(value)


def _is_finite(value: float) -> bool:
    # An integer too large for a float raises instead.
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _constant(name: str) -> float:
    """NaN, which Python's parser accepts as JSON, is a missing value; infinities are refused."""
    if name != "NaN":
        raise ValueError(name)
    return math.nan


def _csv_columns(body: bytes, wanted: _Wanted) -> Columns:
    """The columns of a CSV whose first line has names."""
    names = wanted.names
    try:
        # A spreadsheet writes a byte order mark, which would become part of the first name.
        lines = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
        header = next(lines, [])
        rows = [row for row in lines if row]
    except (UnicodeDecodeError, csv.Error):
        raise InvalidData(
            "the body is not CSV in UTF-8; send a line of names, then a line for each reading"
        ) from None
    _check_number(len(rows))
    if twice := [name for name in names if header.count(name) > 1]:
        raise InvalidData(f"there are several columns {twice[0]!r}")
    if uneven := [i for i, row in enumerate(rows) if len(row) != len(header)]:
        raise InvalidData(
            f"row {uneven[0]} has {len(rows[uneven[0]])} values; "
            f"the first line has {len(header)} names"
        )
    columns = {}
    for j, name in enumerate(names):
        if name in header:
            cells = [row[header.index(name)] or None for row in rows]
            if j in wanted.codes:
                columns[name] = wanted.places(j, cells)
            else:
                columns[name] = np.array([_number(cell) for cell in cells])
    return columns


def _number(text: str | None) -> float:
    """NaN for a field without a value, and an infinity for one that is no number."""
    if text is None:
        return math.nan
    try:
        return float(text)
    except ValueError:
        return math.nan if is_no_value(text) else math.inf


def _parquet_columns(body: bytes, wanted: _Wanted) -> Columns:
    """The columns of a Parquet file. A small file may unpack to gigabytes, so rows and compression
    are limited."""
    pyarrow = _arrow("pyarrow")
    parquet = _arrow("pyarrow.parquet")
    try:
        rows, codecs = _parquet_facts(body)
        _check_number(rows)
        if not codecs <= {UNCOMPRESSED, SNAPPY}:
            raise InvalidData("the Parquet file must be uncompressed or compressed with Snappy")
        # Types are checked before anything is read: a column of texts or lists can unpack to far
        # more than the body has.
        there = _numeric(parquet.ParquetFile(pyarrow.BufferReader(body)).schema_arrow, wanted)
        kept_once = [wanted.names[j] for j in wanted.codes if wanted.names[j] in there]
        # A dictionary is read as one: a text that is in all rows of a small file would otherwise be
        # there ten thousand times.
        file = parquet.ParquetFile(pyarrow.BufferReader(body), read_dictionary=kept_once)
        return _numbers(file.read(columns=there), wanted)
    except (
        pyarrow.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ) as wrong:
        raise _unreadable(wrong, "a Parquet file") from None


UNCOMPRESSED = 0
SNAPPY = 1
"""codecs of Parquet"""
STRUCT = 12
LIST = 9
SET = 10
MAP = 11
BINARY = 8
DOUBLE = 7
UUID = 13
TRUE = 1
FALSE = 2
BYTE = 3
"""types of Thrift's compact protocol; all others are varints"""


def _parquet_facts(body: bytes) -> tuple[int, set[int]]:
    """Rows and codecs of a Parquet file, by its footer (parquet.thrift: FileMetaData, RowGroup,
    ColumnMetaData).

    Read here because pyarrow ends the process where it is asked for the codecs of a damaged file.
    Raises `ValueError`, `LookupError`, `TypeError` or `RecursionError` for what is none.
    """
    size = int.from_bytes(body[-8:-4], "little")
    if body[-4:] != b"PAR1" or not 0 < size <= min(len(body) - 8, FOOTER_BYTES_MAX):
        raise ValueError("no footer")
    about = _Thrift(body[-8 - size : -8]).struct()
    groups = about[4]
    codecs = {column[3][4] for group in groups for column in group[1]}
    # Both are claims: a reader may believe either.
    return max(about[3], sum(max(0, group[3]) for group in groups)), codecs


class _Thrift:
    """Values of Thrift's compact protocol, read one after the other; an index error at the end of
    the buffer."""

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._at = 0

    def struct(self) -> dict[int, Any]:
        """The fields of a struct by number. Raises `ValueError` for one that is there twice."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            # The upper four bits are the distance to the number of the field before; 0 where the
            # distance does not fit, and the number follows.
            distance = head >> 4
            kind = head & 15
            if distance:
                number += distance
            else:
                number = self._integer()
            if number in fields:
                raise ValueError("a field twice")
            if kind in (TRUE, FALSE):
                # The type of a field that is true or false is its value.
                fields[number] = kind == TRUE
            else:
                fields[number] = self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            return self._list()
        if kind == MAP:
            return self._map()
        if kind in (BINARY, DOUBLE, UUID):
            size = {DOUBLE: 8, UUID: 16}.get(kind) or self._varint()
            self._at += self._room(size)
            return None
        if kind in (TRUE, FALSE, BYTE):
            return self._byte()
        return self._integer()

    def _list(self) -> list[Any]:
        head = self._byte()
        size = head >> 4
        if size == 15:
            # 15 and more do not fit into four bits, and follow.
            size = self._varint()
        return [self._value(head & 15) for _ in range(self._room(size))]

    def _map(self) -> list[tuple[Any, Any]]:
        size = self._room(self._varint())
        if size == 0:
            # An empty map has no byte for its types.
            return []
        kinds = self._byte()
        return [(self._value(kinds >> 4), self._value(kinds & 15)) for _ in range(size)]

    def _room(self, size: int) -> int:
        """A number of bytes or values, each of a byte or more, that can be in the rest."""
        if size > len(self._buffer) - self._at:
            raise ValueError("longer than the buffer")
        return size

    def _byte(self) -> int:
        self._at += 1
        return self._buffer[self._at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while (byte := self._byte()) >= 128:
            found = found | (byte & 127) << shift
            shift = shift + 7
            # No number of a footer has more than 64 bits; without this a body of bytes above 127
            # would make a number of megabytes.
            if shift > 63:
                raise ValueError("too long")
        return found | byte << shift

    def _integer(self) -> int:
        found = self._varint()
        return found >> 1 ^ -(found & 1)


def _arrow_columns(body: bytes, wanted: _Wanted) -> Columns:
    """The columns of a stream of Arrow record batches, which must not be compressed: it could
    unpack to gigabytes."""
    pyarrow = _arrow("pyarrow")
    ipc = _arrow("pyarrow.ipc")
    try:
        messages = ipc.MessageReader.open_stream(pyarrow.BufferReader(body))
        if any(
            message.type == "record batch" and _is_compressed(bytes(message.metadata))
            for message in messages
        ):
            raise InvalidData("the Arrow stream must not be compressed")
        with ipc.open_stream(body) as stream:
            batches = []
            rows = 0
            there = _numeric(stream.schema, wanted)
            for batch in stream:
                rows += batch.num_rows
                _check_number(rows)
                # Offsets of a damaged batch may point anywhere in memory, and reading them ends the
                # process.
                batch.validate(full=True)
                batches.append(batch.select(there))
            kept = pyarrow.schema([stream.schema.field(name) for name in there])
            return _numbers(pyarrow.Table.from_batches(batches, kept), wanted)
    except (pyarrow.ArrowException, OSError, ValueError, IndexError, struct.error) as wrong:
        raise _unreadable(wrong, "a stream of Arrow record batches") from None


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise MissingExtra("Parquet and Arrow over HTTP", "parquet") from None


def _numeric(schema: Any, wanted: _Wanted) -> list[str]:
    """The features that a table has. Raises `InvalidData` for one that is no number, or is there
    twice."""
    features = [name for name in wanted.names if name in schema.names]
    for name in features:
        positions = schema.get_all_field_indices(name)
        if len(positions) != 1:
            raise InvalidData(f"there are several columns {name!r}")
        kind = str(schema.field(positions[0]).type)
        kinds = NUMERIC
        if wanted.names.index(name) in wanted.codes:
            kind = kind.removeprefix(DICTIONARY).partition(",")[0]
            kinds = NUMERIC | TEXTS
        if kind not in kinds:
            raise InvalidData(f"the column {name!r} must have integers or floats")
    return features


def _numbers(table: Any, wanted: _Wanted) -> Columns:
    """name -> its values as floats."""
    columns = {}
    for j, name in enumerate(wanted.names):
        if name not in table.column_names:
            continue
        column = table.column(name)
        if j in wanted.codes:
            parts = [_places(j, part, wanted) for part in column.chunks]
            # A table without rows has no parts.
            columns[name] = np.concatenate([np.empty(0), *parts])
        else:
            # A safe cast refuses integers beyond 2**53, which JSON and CSV round.
            columns[name] = column.cast("float64", safe=False).to_numpy().astype(np.float64)
    return columns


def _places(j: int, part: Any, wanted: _Wanted) -> Floats:
    """Cells of the category at position j -> their places; a text of many rows is made once."""
    if not str(part.type).startswith(DICTIONARY):
        return wanted.places(j, part.to_pylist())
    # A missing cell has no index; it gets that of the last place, which is NaN.
    known = np.append(wanted.places(j, part.dictionary.to_pylist()), math.nan)
    indices = part.indices.cast("int64").fill_null(len(known) - 1).to_numpy()
    return np.asarray(known[indices])


def _unreadable(wrong: Exception, what: str) -> InvalidData:
    """Ours as it is; the message of another may quote a value."""
    if isinstance(wrong, InvalidData):
        return wrong
    return InvalidData(f"the body is not {what}")


def _is_compressed(metadata: bytes) -> bool:
    """Whether the metadata of a record batch name a codec (Arrow's Message.fbs, Schema.fbs). Raises
    `struct.error`."""
    header = _table_field(metadata, struct.unpack_from("<I", metadata)[0], 2)
    if header is None:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _table_field(metadata, batch, 3) is not None


def _table_field(buffer: bytes, table: int, number: int) -> int | None:
    """Offset of the field of this number in a FlatBuffers table; None if the table lacks it."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", buffer, vtable)[0]:
        return None
    offset = int(struct.unpack_from("<H", buffer, vtable + 4 + 2 * number)[0])
    if offset == 0:
        # A field with its default value is not written.
        return None
    return table + offset


def predicted_feature(contract: ResolvedContract, model: str) -> int | None:
    """The position of the feature that a model predicts; None for the others."""
    return contract.models[model].target


def first_predicting(contract: ResolvedContract) -> str | None:
    """The first model that predicts a feature, if there is one."""
    return next((name for name, model in contract.models.items() if model.target is not None), None)


def with_predictions(
    answer: Predictions,
    target: int | None,
    snapshot: Snapshot | None,
    rows: Floats,
    contract: ResolvedContract,
) -> Predictions:
    """The answer of a model that predicts the feature at `target` with its predictions; the same
    for None. rows (n, d) are in unit coordinates. Null before there is a model."""
    if target is None:
        return answer
    feature = contract.features[target]
    values: list[float | None] = [None] * len(rows)
    if snapshot is not None:
        values = predicted_values(snapshot, rows, contract).tolist()
    return replace(answer, target=feature.name, unit=feature.unit, predictions=values)


def rules_response(request: Request, model: ModelStatus, contract: ResolvedContract) -> Response:
    """The rules of a model as JSON; 404 for one that predicts no feature, and before the first
    snapshot."""
    if predicted_feature(contract, model.name) is None:
        raise HTTPException(404, f"model {model.name} predicts no feature, so it has no rules")
    snapshot = model.snapshot
    rules = None
    if snapshot is not None:
        rules = prediction_rules(snapshot, model.lineage, contract)
    if rules is None:
        return problem(404, "no rules yet", waiting_for=model.waiting_for or NO_SNAPSHOT)
    return answered(request, rules)
