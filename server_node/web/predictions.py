"""Predictions over HTTP: the readings posted to /v1/predict, what models that predict a feature add, and their rules.

Posted readings are checked, never stored and never quoted in an error.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import struct
from typing import Any, NoReturn

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server_node.clusters.regression import named_rules, predicted_values, rule_base, rules_json
from server_node.status import ModelStatus
from server_node.web.json_values import NO_SNAPSHOT
from server_node.web.responses import problem, tagged
from shoal.algorithms.regression import written
from shoal.config.resolved import ResolvedContract
from shoal.errors import InvalidData, MissingExtra
from shoal.kernels.arrays import Floats
from shoal.protocol.messages import Snapshot

ROWS_BYTES_MAX = 4 * 1024 * 1024
ROWS_MAX = 10_000
JSON, CSV = "application/json", "text/csv"
PARQUET, ARROW = "application/vnd.apache.parquet", "application/vnd.apache.arrow.stream"
MEDIA_TYPES = (JSON, CSV, PARQUET, ARROW)
NUMERIC = frozenset({f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float", "double"})
"""types of columns that are read"""

Columns = dict[str, Floats]
"""name of a feature -> its values (n,)"""


def read_readings(media_type: str, body: bytes, contract: ResolvedContract, target: int | None = None) -> Floats:
    """A body of one of `MEDIA_TYPES` -> readings (n, d) in the order of the contract, all finite.

    A model that predicts the feature at position `target` ignores its value, which may be missing or null; readings
    have 0 there.

    Raises `InvalidData`; its message is one line, states what to send and quotes nothing of the body, and
    `MissingExtra` where Parquet or Arrow cannot be read.
    """
    names = [feature.name for feature in contract.features]
    if media_type in (JSON, ""):
        return parse_rows(body, names, target)
    columns = {CSV: _csv_columns, PARQUET: _parquet_columns, ARROW: _arrow_columns}[media_type](body, names)
    if missing := [name for j, name in enumerate(names) if name not in columns and j != target]:
        raise InvalidData(f"there is no column {missing[0]!r}; send the columns {', '.join(names)}")
    rows = len(next(iter(columns.values()), ()))
    readings = np.zeros((rows, len(names)))
    for j, name in enumerate(names):
        if j == target:
            continue
        readings[:, j] = columns[name]
        if not np.isfinite(readings[:, j]).all():
            raise InvalidData(f"row {np.flatnonzero(~np.isfinite(readings[:, j]))[0]}, {name}: not a finite number")
    return readings


def parse_rows(body: bytes, names: list[str], target: int | None = None) -> Floats:
    """JSON, `{"rows": [...]}` or `[...]`; a row is a list in the order of `names` or an object by name. See above."""
    try:
        parsed = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidData('the body is not JSON; send {"rows": [[...], ...]} with finite numbers') from None
    rows = parsed.get("rows") if isinstance(parsed, dict) else parsed
    if not isinstance(rows, list):
        raise InvalidData('there are no rows; send {"rows": [[...], ...]}, or [[...], ...]')
    _check_number(len(rows))
    readings = np.empty((len(rows), len(names)))
    for i, row in enumerate(rows):
        listed = _by_name(row, i, names, target) if isinstance(row, dict) else row
        if target is not None:
            listed = _with_target(listed, len(names), target)
        readings[i] = _checked_row(listed, i, len(names))
    return readings


def _check_number(rows: int) -> None:
    if rows > ROWS_MAX:
        raise InvalidData(f"{rows} rows; send at most {ROWS_MAX} at a time")


def _by_name(row: dict[str, Any], i: int, names: list[str], target: int | None) -> list[Any]:
    """The values of an object in the order of the contract; other fields are ignored."""
    if missing := [name for j, name in enumerate(names) if name not in row and j != target]:
        raise InvalidData(f"row {i} has no {missing[0]!r}; send {', '.join(names)}")
    return [None if j == target else row[name] for j, name in enumerate(names)]


def _with_target(row: Any, width: int, target: int) -> Any:
    """A row without the target, or with null there, with 0 in its place; anything else unchanged."""
    if not isinstance(row, list):
        return row
    if len(row) == width - 1:
        return [*row[:target], 0.0, *row[target:]]
    return [*row[:target], 0.0, *row[target + 1 :]] if len(row) == width and row[target] is None else row


def _checked_row(row: Any, i: int, width: int) -> list[float]:
    if not isinstance(row, list):
        raise InvalidData(f"row {i} is not a list of numbers, and no object of them by name")
    if len(row) != width:
        raise InvalidData(f"row {i} has {len(row)} values; this federation has {width} features")
    for j, value in enumerate(row):
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise InvalidData(f"row {i}, value {j}: not a finite number")
    return row


def _is_finite(value: float) -> bool:
    # An integer too large for a float raises instead.
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _refuse_constant(name: str) -> NoReturn:
    """NaN and the infinities, which Python's parser would accept, are not JSON."""
    raise ValueError(name)


def _csv_columns(body: bytes, names: list[str]) -> Columns:
    """The columns of a CSV whose first line has names; a field that is no number becomes NaN."""
    try:
        lines = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
        header = next(lines, [])
        rows = [row for row in lines if row]
    except (UnicodeDecodeError, csv.Error):
        raise InvalidData("the body is not CSV in UTF-8; send a line of names, then a line for each reading") from None
    _check_number(len(rows))
    if twice := [name for name in names if header.count(name) > 1]:
        raise InvalidData(f"there are several columns {twice[0]!r}")
    if uneven := [i for i, row in enumerate(rows) if len(row) != len(header)]:
        raise InvalidData(f"row {uneven[0]} has {len(rows[uneven[0]])} values; the first line has {len(header)} names")
    places = {name: header.index(name) for name in names if name in header}
    return {name: np.array([_number(row[place]) for row in rows]) for name, place in places.items()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _parquet_columns(body: bytes, names: list[str]) -> Columns:
    """The columns of a Parquet file. A small file may unpack to gigabytes, so rows and compression are limited."""
    pyarrow, parquet = _arrow("pyarrow"), _arrow("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(body))
        about = file.metadata
        _check_number(about.num_rows)
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        codecs = {group.column(j).compression for group in groups for j in range(group.num_columns)}
        if not codecs <= {"UNCOMPRESSED", "SNAPPY"}:
            raise InvalidData("the Parquet file must be uncompressed or compressed with Snappy")
        return _numbers(file.read(columns=_numeric(file.schema_arrow, names)), names)
    except (pyarrow.ArrowException, OSError, ValueError) as wrong:
        raise _unreadable(wrong, "a Parquet file") from None


def _arrow_columns(body: bytes, names: list[str]) -> Columns:
    """The columns of a stream of Arrow record batches, which must not be compressed: it could unpack to gigabytes."""
    pyarrow, ipc = _arrow("pyarrow"), _arrow("pyarrow.ipc")
    try:
        messages = ipc.MessageReader.open_stream(pyarrow.BufferReader(body))
        if any(message.type == "record batch" and _is_compressed(bytes(message.metadata)) for message in messages):
            raise InvalidData("the Arrow stream must not be compressed")
        with ipc.open_stream(body) as stream:
            batches, rows = [], 0
            wanted = _numeric(stream.schema, names)
            for batch in stream:
                rows += batch.num_rows
                _check_number(rows)
                batch.validate(full=True)
                batches.append(batch.select(wanted))
            kept = pyarrow.schema([stream.schema.field(name) for name in wanted])
            return _numbers(pyarrow.Table.from_batches(batches, kept), names)
    except (pyarrow.ArrowException, OSError, ValueError, IndexError, struct.error) as wrong:
        raise _unreadable(wrong, "a stream of Arrow record batches") from None


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise MissingExtra("Parquet and Arrow over HTTP", "parquet") from None


def _numeric(schema: Any, names: list[str]) -> list[str]:
    """The features that a table has. Raises `InvalidData` for one that is no number, or is there twice."""
    found = [name for name in names if name in schema.names]
    for name in found:
        at = schema.get_all_field_indices(name)
        if len(at) != 1:
            raise InvalidData(f"there are several columns {name!r}")
        if str(schema.field(at[0]).type) not in NUMERIC:
            raise InvalidData(f"the column {name!r} must have integers or floats")
    return found


def _numbers(table: Any, names: list[str]) -> Columns:
    """name -> its values as floats, NaN for null."""
    return {
        name: table.column(name).cast("float64", safe=False).to_numpy().astype(np.float64)
        for name in names
        if name in table.column_names
    }


def _unreadable(wrong: Exception, what: str) -> InvalidData:
    """Ours as it is; the message of another may quote a value."""
    return wrong if isinstance(wrong, InvalidData) else InvalidData(f"the body is not {what}")


def _is_compressed(metadata: bytes) -> bool:
    """Whether the metadata of a record batch name a codec (Arrow's Message.fbs, Schema.fbs). Raises `struct.error`."""
    header = _table_field(metadata, struct.unpack_from("<I", metadata)[0], 2)
    batch = 0 if header is None else header + struct.unpack_from("<I", metadata, header)[0]
    return header is not None and _table_field(metadata, batch, 3) is not None


def _table_field(buffer: bytes, table: int, number: int) -> int | None:
    """Offset of the field of this number in a FlatBuffers table; None if the table lacks it."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", buffer, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", buffer, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None


RULES_MAX = 100
"""rules sent to the page: those with most rows"""


def predicted_feature(contract: ResolvedContract, model: str) -> int | None:
    """The position of the feature that a model predicts; None for the others."""
    return contract.models[model].target


def first_predicting(contract: ResolvedContract) -> str | None:
    """The first model that predicts a feature, if there is one."""
    return next((name for name, model in contract.models.items() if model.target is not None), None)


def predictions_json(
    target: int | None, snapshot: Snapshot | None, rows: Floats, contract: ResolvedContract
) -> dict[str, Any]:
    """Further fields of an answer to /v1/predict; rows (n, d) are in unit coordinates. Null before there is a model."""
    if target is None:
        return {}
    feature = contract.features[target]
    values: list[float | None] = [None] * len(rows)
    if snapshot is not None:
        values = predicted_values(snapshot, rows, contract).tolist()
    return {"target": feature.name, "unit": feature.unit, "predictions": values}


def rules_response(request: Request, model: ModelStatus, contract: ResolvedContract) -> Response:
    """The rules of a model as JSON; 404 for one that predicts no feature, and before the first snapshot."""
    if predicted_feature(contract, model.name) is None:
        raise HTTPException(404, f"model {model.name} predicts no feature, so it has no rules")
    snapshot = model.snapshot
    base = None if snapshot is None else rule_base(snapshot, contract)
    if snapshot is None or base is None:
        return problem(404, "no rules yet", waiting_for=model.waiting_for or NO_SNAPSHOT)
    return tagged(request, rules_json(snapshot, base, model.lineage, contract))


def rules_table(snapshot: Snapshot, contract: ResolvedContract) -> dict[str, Any] | None:
    """The rules as the page shows them; None for a model that predicts no feature."""
    base = rule_base(snapshot, contract)
    if base is None:
        return None
    target = contract.features[base.target]
    rules = named_rules(base, contract)
    return {
        "target": target.name,
        "unit": target.unit,
        "error": None if base.error is None else written(base.error),
        "conditions_found": base.settled,
        "total": len(rules),
        "rules": [{"cluster": rule.number, "share": rule.share, "text": rule.text} for rule in rules[:RULES_MAX]],
    }
