"""What a federation file for somebody's files is written from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from shoal.config.base import similar_name
from shoal.config.contract import FEATURES_MAX
from shoal.errors import InvalidData, SettingsError
from shoal.producers.column_types import Column, Sample, Understood
from shoal.producers.columns import understand
from shoal.producers.features import feature_names
from shoal.producers.federation_file import Plan
from shoal.producers.files.csv_table import CsvTable
from shoal.producers.files.dialect import is_unnamed
from shoal.producers.files.form import form_of
from shoal.producers.files.parsing import number_of
from shoal.producers.files.tables import Table, open_table
from shoal.producers.files.times import zone_in
from shoal.producers.subjects import (
    NO_PEOPLE,
    People,
    Subjects,
    clients_of_a_person,
    counting_window,
    persons_per_window,
    subjects_of,
)

HEAD_ROWS = 2000
"""first rows of a file, which follow each other without a gap"""
COLUMNS_NAMED_MAX = 12
"""most columns that an error names"""
ROWS = 6000
"""rows that are looked at: the first ones, and with them others that are spread over the file"""


READ_MAX = 2_000_000
"""rows of a file that are read to reach those spread over it"""


def sample_of(table: Table) -> tuple[Sample, int]:
    """Some rows of a file, and about how many it has.

    Raises `InvalidData` for a file without a header or rows.
    """
    columns = list(dict.fromkeys(name for name in table.columns if name))
    if not columns:
        raise InvalidData(f"{table.path}: the file is empty: it has no header")
    unique = [name for name in columns if table.columns.count(name) == 1]
    total = table.count()
    # Spread over the file: bounds from its first hours would clip what comes later.
    stride = max(1, (min(total, READ_MAX) - HEAD_ROWS) // (ROWS - HEAD_ROWS))
    rows: list[Sequence[Any]] = []
    head = 0
    for place, row in enumerate(islice(table.rows(unique), READ_MAX)):
        if row is None:
            continue
        if place < HEAD_ROWS:
            rows.append(list(row))
            head = len(rows)
        elif place % stride == 0:
            rows.append(list(row))
    if not rows:
        raise InvalidData(f"{table.path}: the file has a header and no rows")
    if isinstance(table, CsvTable):
        text = table.dialect.number_text

        def number(cell: Any) -> Any:
            return number_of(text(cell))

        return Sample(unique, rows, head, number, str(table.path)), total
    return Sample(unique, rows, head, number_of, str(table.path)), total


def plan_of(files: Sequence[Path], options: Mapping[str, Any]) -> Plan:
    """What a federation file for these files is written from; `options` are those of `shoal init`.

    Raises `SettingsError` (ambiguous, no such column) and `InvalidData` (nothing to cluster).
    """
    form = form_of(options)
    subjects = subjects_of(options)
    tables = [open_table(file, Counter(), form.dialect) for file in files]
    if len({table.columns for table in tables}) > 1:
        raise SettingsError(
            "the files have different columns; give files of one kind, or run init for each kind"
        )
    first, total = sample_of(tables[0])
    total += sum(table.count() for table in tables[1:])
    check_person_is_no_client(subjects, options)
    _check_named_columns(first, files[0], options, subjects)
    understood = understand(
        first,
        form.times,
        options["time_columns"],
        options["client_column"],
        form.dialect.na_values,
        subjects.person_column,
        options["bad_quality"],
    )
    features = _features_of(understood, files[0])
    sentences = []
    for table in tables:
        if isinstance(table, CsvTable):
            sentences.append(f"{table.path.name}: {table.dialect.sentence()}")
    if understood.order is not None:
        sentences.append(f"{understood.order} dates (--date-format)")
    if understood.are_days:
        day = understood.of("time")[0].name
        sentences.append(
            f"its times are days alone, each that of several readings: if a column has the time of"
            f" day, give --time-column {day} --time-column and its name"
        )
    names = feature_names(column.name for column in features)
    own_codes = {
        column: codes for column, codes in understood.na_values_of.items() if column in names
    }
    columns = []
    for column in understood.columns:
        columns.append(replace(column, name=names.get(column.name, column.name)))
    understood = replace(understood, columns=tuple(columns))
    client = "".join(column.name for column in understood.of("client")[:1])
    split = f"column:{client}" if client else ""
    people = people_of(first, subjects, client, understood.interval_s)
    label_column = "".join(column.name for column in understood.of("label")[:1])
    settings = {
        "columns": {name: column for column, name in names.items() if name != column},
        "time_columns": [column.name for column in understood.of("time")],
        "split": split,
        "label_column": label_column,
        "user_column": user_column_of(subjects, client),
        "decimal": options["decimal"],
        # Later files of the same kind may be too short to show it.
        "date_format": options["date_format"] or understood.order or "",
        "timezone": options["timezone"] or zone_in(column.name for column in understood.of("time")),
        "encoding": options["encoding"],
        "na_values": list(form.dialect.na_values or understood.na_values),
        "na_values_of": {names[column]: list(codes) for column, codes in own_codes.items()},
        "bad_quality": list(understood.bad_quality),
        "quality": {names[column]: own for column, own in understood.quality.items()},
    }
    name = options["name"] or similar_name(stem_of(files[0])) or "federation"
    return Plan(
        name,
        understood,
        subjects,
        total,
        settings,
        tuple(sentences),
        people=people,
    )


def check_person_is_no_client(subjects: Subjects, options: Mapping[str, Any]) -> None:
    """Raises `SettingsError` for one column that names both."""
    if subjects.person_column and subjects.person_column == options["client_column"]:
        raise SettingsError(
            f"{subjects.person_column!r} names the clients: where each of them is a person, say"
            " --concerns client"
        )


def people_of(sample: Sample, subjects: Subjects, client: str, interval_s: float | None) -> People:
    """Whom a window of one client has, about, and at how many clients one of them has readings.

    `client`: the column of clients; `interval_s`: the seconds between two readings of a client.
    """
    if subjects.kind == "client":
        return People(1.0)
    if subjects.kind != "persons":
        return NO_PEOPLE
    window = counting_window(subjects.unit, interval_s)
    person = subjects.person_column
    return People(
        persons_per_window(sample, person, client, window.readings),
        clients_of_a_person(sample, person, client),
    )


def user_column_of(subjects: Subjects, client: str) -> str:
    """The column of the user ids: of persons, or of clients where each of them is one user.

    Empty where no user ids are needed, or none are there.
    """
    if subjects.unit != "user":
        return ""
    return subjects.person_column or client


def _check_named_columns(
    sample: Sample, file: Path, options: Mapping[str, Any], subjects: Subjects
) -> None:
    """Raises `SettingsError` for a column that a person names and the file does not have."""
    named = list(options["time_columns"])
    if options["client_column"]:
        named.append(options["client_column"])
    if subjects.person_column:
        named.append(subjects.person_column)
    for name in named:
        if name not in sample.names:
            there = ", ".join(sample.names[:COLUMNS_NAMED_MAX])
            raise SettingsError(f"{file}: column {name!r} is missing; the columns are {there}")


def left_out_of(understood: Understood) -> str:
    """The first columns that are left out with their reasons, as a sentence behind an error."""
    left_out = understood.of("left out")[:COLUMNS_NAMED_MAX]
    reasons = [f"{column.name} ({column.reason})" for column in left_out]
    return f". Left out: {'; '.join(reasons)}" if reasons else ""


def _features_of(understood: Understood, file: Path) -> tuple[Column, ...]:
    """The columns to cluster. Raises `InvalidData` for none, or for more than a federation has."""
    features = understood.of("feature")
    if not features:
        message = f"{file}: no column of changing numbers was found, so there is nothing to cluster"
        if all(is_unnamed(column.name) for column in understood.columns):
            message += "; its first line holds no names: a header line gives the columns theirs"
        raise InvalidData(message + left_out_of(understood))
    if len(features) > FEATURES_MAX:
        raise InvalidData(
            f"{file}: {len(features)} features; a federation has at most {FEATURES_MAX}"
        )
    return features


def stem_of(file: Path) -> str:
    """The name of a file without its suffixes."""
    name = file.name.removesuffix(".gz")
    return name.rsplit(".", 1)[0] or name
